// SPDX-License-Identifier: Apache-2.0
// cleatd is killed again and again while disks of a pool are made, grow, and are deleted, undeleted and purged, and their guests write. Whatever
// the moment: no extent has two owners, the drive's map says nothing else than the store, and no disk has a byte of another one.
#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "base/random.h"
#include "pool_rig.h"

namespace cleat::control::pool_rig::pool_kills_test {
namespace {

constexpr int kKills = 40;
constexpr int kForeignBytes = 42;  // exit status: a new disk had bytes of another one

using Block = std::vector<uint8_t>;

Block BlockOf(const std::string& uid) {
  Block block(pool::kBlockBytes);
  for (size_t at = 0; at + uid.size() <= block.size(); at += uid.size())
    std::memcpy(block.data() + at, uid.data(), uid.size());
  return block;
}

// What a disk's guest writes: its uid, at both ends of each extent.
template <typename Visit>
void ForEachBlock(const pool::ExtentRuns& runs, Visit visit) {
  for (const pool::ExtentRun& run : runs) {
    for (uint32_t extent = run.first; extent < run.end(); ++extent) {
      visit(OffsetOf(extent));
      visit(OffsetOf(extent) + kExtentBytes - pool::kBlockBytes);
    }
  }
}

bool HasNothingOfOthers(PlainDrive& drive, const v1::Disk& disk) {
  const Block own = BlockOf(disk.uid());
  const Block nothing(pool::kBlockBytes);
  Block block(pool::kBlockBytes);
  bool clean = true;
  ForEachBlock(ExtentsOf(disk.spec()), [&](uint64_t at) {
    CLEAT_CHECK(drive.Read(at, block).ok());
    clean = clean && (block == own || block == nothing);
  });
  return clean;
}

class PoolKillsTest : public PoolRig {
 protected:
  // The child: never returns.
  [[noreturn]] void Work(uint64_t seed) {
    Open();
    PlainDrive drive(dir_ / "drive");
    Random random(seed);
    for (uint64_t made = 0;; ++made) {
      const uint64_t what = random.Below(10);
      if (what < 5) {
        Make(drive, fmt::format("d{}-{}", seed, made), random);
      } else if (what < 6) {
        Grow(drive, random);
      } else {
        Remove(random, what);
      }
    }
  }

  void Make(PlainDrive& drive, const std::string& id, Random& random) {
    const auto disk = state_->disks().Create(PoolDisk(id, static_cast<uint32_t>(random.Between(1, 3))));
    if (disk.ok()) Write(drive, *disk);
  }
  void Write(PlainDrive& drive, const v1::Disk& disk) {
    if (!HasNothingOfOthers(drive, disk)) _exit(kForeignBytes);
    const Block own = BlockOf(disk.uid());
    ForEachBlock(ExtentsOf(disk.spec()), [&](uint64_t at) { CLEAT_CHECK(drive.Write(at, own).ok()); });
  }
  void Grow(PlainDrive& drive, Random& random) {
    const std::vector<v1::Disk> disks = DisksOf(*state_, false);
    if (disks.empty()) return;
    const v1::Disk& disk = disks[random.Below(disks.size())];
    v1::UpdateDiskRequest request;
    request.mutable_disk()->set_name(disk.name());
    request.mutable_disk()->mutable_spec()->set_size_bytes(disk.spec().size_bytes() + kExtentBytes);
    request.mutable_update_mask()->add_paths("spec.size_bytes");
    const auto grown = state_->disks().Update(request);
    if (grown.ok()) Write(drive, *grown);
  }
  void Remove(Random& random, uint64_t what) {
    const std::vector<v1::Disk> disks = DisksOf(*state_, what == 9);
    if (disks.empty()) return;
    const v1::Disk& disk = disks[random.Below(disks.size())];
    if (what < 9) {
      v1::DeleteDiskRequest request;
      request.set_name(disk.name());
      request.set_purge(what < 8);
      (void)state_->disks().Delete(request);
    } else if (random.Chance(1, 2)) {
      v1::UndeleteDiskRequest request;
      request.set_name(disk.name());
      (void)state_->kept_disks().Undelete(request);
    } else {
      v1::PurgeDiskRequest request;
      request.set_name(disk.name());
      (void)state_->kept_disks().Purge(request);
    }
  }

  // Lets a child work for a while, and kills it. Its exit status, or nothing: it was killed.
  std::optional<int> WorkAndKill(uint64_t seed, uint64_t after_us) {
    Close();
    const pid_t child = fork();
    if (child == 0) Work(seed);
    std::this_thread::sleep_for(std::chrono::microseconds(after_us));
    kill(child, SIGKILL);
    int status = 0;
    CLEAT_CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    return std::nullopt;
  }

  // Loading has checked that no extent has two owners (state/tables/invariants.h).
  void CheckDrive() {
    PlainDrive drive(dir_ / "drive");
    const PoolRow row = store_->Load().value().pools.front();
    pool::ExtentSet to_erase;
    to_erase.Add(row.to_erase);
    std::map<std::string, v1::Disk> known;
    for (const bool deleted : {false, true}) {
      for (const v1::Disk& disk : DisksOf(*state_, deleted)) {
        EXPECT_TRUE(HasNothingOfOthers(drive, disk)) << disk.name();
        known[disk.uid()] = disk;
      }
    }
    for (const auto& [name, disk] : MapOnDrive()) {
      const auto owner = known.find(fmt::format("{:016x}", disk.identity));
      pool::ExtentSet own;
      if (owner != known.end()) own.Add(ExtentsOf(owner->second.spec()));
      for (const pool::ExtentRun& run : disk.extents)
        EXPECT_TRUE(own.HasAll(run) || to_erase.HasAll(run))
            << name << " has " << run.first << "+" << run.count;
    }
  }
};

TEST_F(PoolKillsTest, WhateverTheMomentOfAKillNothingIsLostOrSeen) {
  MakePool();
  Random random(4711);
  for (int kills = 0; kills < kKills; ++kills) {
    const auto exited = WorkAndKill(static_cast<uint64_t>(kills), random.Between(5'000, 80'000));
    ASSERT_EQ(std::nullopt, exited) << "a new disk had bytes of another one";
    Open(false);
    CheckDrive();
  }
  Open();
  AwaitErased();
}

// The negative control: with extents that the store takes for erased and are not, the child finds foreign bytes. The drive's map would keep
// them from being given, so that it goes as well.
TEST_F(PoolKillsTest, ExtentsThatAreGivenBeforeTheyAreErasedAreFound) {
  MakePool();
  const v1::Disk disk = Create(PoolDisk("a", kExtents));
  PlainDrive drive(dir_ / "drive");
  Write(drive, disk);
  Open(false);
  Delete("a", true);
  PoolRow row = store_->Load().value().pools.front();
  ASSERT_EQ(kExtents, pool::CountOf(row.to_erase));
  row.to_erase.clear();
  ASSERT_TRUE(store_->Apply({row}).ok());
  for (const uint64_t offset : pool::kMapOffsets)
    ASSERT_TRUE(drive.Write(offset, Block(pool::kBlockBytes)).ok());
  constexpr unsigned kLongSeconds = 60;
  Close();
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLongSeconds);
    Work(1);
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kForeignBytes);
}

}  // namespace
}  // namespace cleat::control::pool_rig::pool_kills_test
