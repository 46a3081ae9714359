// SPDX-License-Identifier: Apache-2.0
// A store that was lost: what a drive says of its pool, and that pool made as the drive has it. Drives are regular files; the next cleatd has
// another folder for its store. Costs 2 s.
#include <sys/wait.h>

#include <csignal>
#include <filesystem>

#include "base/random.h"
#include "control/pools/block_drive.h"
#include "control/state/pools/host_uid.h"
#include "found_pools_rig.h"
#include "restored.h"

namespace cleat::control::pool_rig::found_pools_test {
namespace {

class FoundPoolsTest : public FoundPoolsRig {
 protected:
  // All that cleatd remembers is gone; the drives are as they were.
  void LoseStore(bool threads = true, uint64_t keep_s = 86'400) {
    Close();
    RemoveStore();
    Open(threads, keep_s);
    ASSERT_EQ(0U, store_->Load().value().pools.size());
  }
  Result<v1::ScanDriveResponse> Scan(const std::string& device) {
    v1::ScanDriveRequest request;
    request.set_device(device);
    return state_->found_pools().Scan(request);
  }
  // The scanned disks by their names.
  std::map<std::string, v1::ScannedDisk> Scanned() {
    std::map<std::string, v1::ScannedDisk> disks;
    const auto answer = Scan(Drive());
    EXPECT_TRUE(answer.ok()) << answer.error().message;
    if (!answer.ok()) return disks;
    for (const v1::ScannedDisk& disk : answer->disks()) disks.emplace(disk.disk().name(), disk);
    return disks;
  }
  v1::Reason WhyNotMade(const v1::CreatePoolRequest& request) {
    const auto made = state_->found_pools().Create(request);
    return made.ok() ? v1::REASON_UNSPECIFIED : ReasonOf(made.error());
  }
  v1::Disk Get(const std::string& id) {
    v1::GetDiskRequest request;
    request.set_name(DiskName(id));
    const auto disk = state_->disks().Get(request);
    EXPECT_TRUE(disk.ok()) << id;
    return disk.ok() ? *disk : v1::Disk();
  }
  void Describe(const std::string& disk, const std::function<void(v1::Disk&)>& edit) {
    EditMap([&](pool::Map& map) {
      for (pool::MapDisk& found : map.disks) {
        v1::Disk described;
        CLEAT_CHECK(described.ParseFromString(found.description));
        if (described.name() != disk) continue;
        edit(described);
        found.description = described.SerializeAsString();
      }
    });
  }
};

TEST_F(FoundPoolsTest, ALostStoreIsMadeAnewWithAllThatItsDiskHeld) {
  MakePool();
  v1::CreateDiskRequest limited = PoolDisk("limited", 3);
  limited.mutable_disk()->mutable_spec()->mutable_limits()->mutable_iops()->set_per_second(500);
  limited.mutable_disk()->mutable_spec()->set_wwn("0x3000000000000042");
  const v1::Disk former = Create(limited);
  const v1::Disk deleted = Create(PoolDisk("deleted", 2));
  Create(PoolDisk("purged", 1));
  const pool::ExtentRuns unowned = ExtentsOf(Create(PoolDisk("gone", 2)).spec());
  PlainDrive drive(Drive());
  Fill(drive, ExtentsOf(former.spec()), 1);
  Fill(drive, ExtentsOf(deleted.spec()), 2);
  Delete("deleted", false);
  Delete("purged", true);
  Delete("gone", true);
  AwaitErased();
  const std::string uid = Pool().status().uid();
  LoseStore();
  // Bytes that nobody owns: of a disk, say, that was purged and not erased before the host went down.
  Fill(drive, unowned, 3);

  auto scanned = Scan(Drive());
  ASSERT_TRUE(scanned.ok()) << scanned.error().message;
  EXPECT_EQ("pools/p", scanned->pool().name());
  EXPECT_EQ(uid, scanned->pool().status().uid());
  EXPECT_EQ(IsThisHost(HostUid()), scanned->of_this_host());
  EXPECT_EQ(3 * kExtentBytes, scanned->pool().status().allocated_bytes());
  EXPECT_EQ(2 * kExtentBytes, scanned->pool().status().reclaimable_bytes());
  EXPECT_EQ((kExtents - 5) * kExtentBytes, scanned->pool().status().to_erase_bytes());
  auto disks = Scanned();
  ASSERT_EQ(2U, disks.size());
  EXPECT_EQ("", disks["disks/limited"].problem());
  EXPECT_TRUE(disks["disks/deleted"].deleted());
  EXPECT_EQ(0, state_->pools().List({}).value().pools_size()) << "a scan makes nothing";

  MakeFromDrive();
  EXPECT_EQ(uid, Pool().status().uid());
  const v1::Disk again = Get("limited");
  EXPECT_EQ(former.spec().SerializeAsString(), again.spec().SerializeAsString());
  EXPECT_NE(former.uid(), again.uid());
  EXPECT_EQ(v1::DISK_STATE_READY, again.status().state());
  EXPECT_TRUE(IsAll(drive, ExtentsOf(again.spec()), 1));
  ASSERT_EQ(1U, DisksOf(*state_, true).size());
  v1::UndeleteDiskRequest undelete;
  undelete.set_name("disks/deleted");
  const auto back = state_->kept_disks().Undelete(undelete);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(ExtentsOf(deleted.spec()), ExtentsOf(back->spec()));
  EXPECT_TRUE(IsAll(drive, ExtentsOf(back->spec()), 2));
  // What is nobody's was erased before it is given.
  const v1::Disk fresh = Create(PoolDisk("fresh", kExtents - 5));
  EXPECT_TRUE(IsAll(drive, ExtentsOf(fresh.spec()), 0)) << "a new disk has bytes of a former one";
  EXPECT_EQ(again.uid(), fmt::format("{:016x}", MapOnDrive()["disks/limited"].identity));

  // The same call again answers the same pool; and so it is after a restart.
  EXPECT_EQ(v1::REASON_UNSPECIFIED, WhyNotMade(FromDrive("p", Drive())));
  Open();
  AwaitErased();
  EXPECT_EQ(again.uid(), Get("limited").uid());
  EXPECT_EQ(kExtents * kExtentBytes, Pool().status().allocated_bytes());
}

// Before a thread has done anything. The call waits for the drive to be open meanwhile.
TEST_F(FoundPoolsTest, WhatNobodyOwnsIsGivenToNobodyBeforeItIsErased) {
  MakePool();
  Create(PoolDisk("a", 2));
  LoseStore(false);
  std::thread call([&] { EXPECT_EQ(v1::REASON_UNSPECIFIED, WhyNotMade(FromDrive("p", Drive()))); });
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (state_->pools().All().empty() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ((kExtents - 2) * kExtentBytes, Pool().status().to_erase_bytes());
  EXPECT_EQ(2 * kExtentBytes, Pool().status().allocated_bytes());
  EXPECT_EQ(0U, Pool().status().free_bytes());
  state_->StartPoolThreads();
  call.join();
  AwaitErased();
}

TEST_F(FoundPoolsTest, DisksThatCantBeMadeKeepTheirExtents) {
  MakePool();
  for (const char* const id :
       {"good", "encrypted", "taken", "same-wwn", "nameless", "elsewhere", "large", "newer"})
    Create(PoolDisk(id, 1));
  PlainDrive drive(Drive());
  std::map<std::string, pool::ExtentRuns> extents;
  uint8_t mark = 10;
  for (const auto& [name, disk] : MapOnDrive()) {
    extents[name] = disk.extents;
    Fill(drive, disk.extents, mark++);
  }
  LoseStore(false);
  Describe("disks/encrypted", [](v1::Disk& disk) {
    disk.mutable_spec()->mutable_encryption()->set_cipher(v1::CIPHER_AES_256_XTS);
    disk.mutable_spec()->mutable_encryption()->set_data_unit_bytes(512);
  });
  Describe("disks/same-wwn", [](v1::Disk& disk) { disk.mutable_spec()->set_wwn("0x3000000000000099"); });
  Describe("disks/elsewhere",
           [](v1::Disk& disk) { disk.mutable_spec()->mutable_pool()->set_pool("pools/q"); });
  Describe("disks/large", [](v1::Disk& disk) { disk.mutable_spec()->set_size_bytes(2 * kExtentBytes); });
  Describe("disks/newer", [](v1::Disk& disk) {
    disk.mutable_spec()->GetReflection()->MutableUnknownFields(disk.mutable_spec())->AddVarint(999, 1);
  });
  Describe("disks/nameless", [](v1::Disk& disk) { disk.set_name("disks/\x1b[31m"); });
  Open();
  Create(NullDisk("taken"));
  v1::CreateDiskRequest wwn = NullDisk("other");
  wwn.mutable_disk()->mutable_spec()->set_wwn("0x3000000000000099");
  Create(wwn);

  auto disks = Scanned();
  ASSERT_EQ(8U, disks.size());
  EXPECT_EQ("", disks["disks/good"].problem());
  const std::pair<const char*, const char*> kProblems[] = {
      {"disks/encrypted", "its key was in the lost store alone"},
      {"disks/taken", "disks/taken is another disk of this host"},
      {"disks/same-wwn", "wwn"},
      {"", "no name of a disk"},
      {"disks/elsewhere", "not in this pool"},
      {"disks/large", "its extents have"},
      {"disks/newer", "newer cleatd"}};
  for (const auto& [name, problem] : kProblems)
    EXPECT_NE(std::string::npos, disks[name].problem().find(problem))
        << name << ": " << disks[name].problem();
  EXPECT_FALSE(disks[""].disk().has_spec());

  MakeFromDrive();
  EXPECT_EQ(1U, Pool().status().disks());
  EXPECT_EQ(7 * kExtentBytes, Pool().status().unknown_bytes());
  EXPECT_NE(std::string::npos, Pool().status().message().find("7 disks")) << Pool().status().message();
  EXPECT_EQ(v1::DiskSpec::kNull, Get("taken").spec().backend_case());
  Open();
  AwaitErased();
  mark = 10;
  for (const auto& [name, runs] : extents) EXPECT_TRUE(IsAll(drive, runs, mark++)) << name;
  // The disks' descriptions stay on the drive as well, and the disks go with the pool alone.
  EXPECT_EQ(extents["disks/encrypted"], MapOnDrive()["disks/encrypted"].extents);
  Delete("good", true);
  v1::DeletePoolRequest request;
  request.set_name("pools/p");
  EXPECT_EQ(v1::REASON_POOL_IN_USE, ReasonOf(state_->pools().Delete(request).error()));
  request.set_discard_unknown(true);
  EXPECT_TRUE(state_->pools().Delete(request).ok());
}

TEST_F(FoundPoolsTest, OfDisksOfOneNameTheFirstIsMade) {
  MakePool();
  Create(PoolDisk("a", 1));
  Create(PoolDisk("b", 1));
  LoseStore();
  Describe("disks/b", [](v1::Disk& disk) { disk.set_name("disks/a"); });
  const auto scanned = Scan(Drive());
  ASSERT_TRUE(scanned.ok() && scanned->disks_size() == 2);
  EXPECT_EQ("", scanned->disks(0).problem());
  EXPECT_NE(std::string::npos, scanned->disks(1).problem().find("has its name"));
  MakeFromDrive();
  EXPECT_EQ(1U, Pool().status().disks());
  EXPECT_EQ(kExtentBytes, Pool().status().unknown_bytes());
}

// Whatever the bytes of a description are, what is made of them has its extents and no others, and nobody else's bytes change.
TEST_F(FoundPoolsTest, DamagedDescriptionsAreReadOrLeftAlone) {
  MakePool();
  for (int i = 0; i < 6; ++i) Create(PoolDisk(fmt::format("d{}", i), 1));
  PlainDrive drive(Drive());
  const auto good = MapOnDrive();
  for (const auto& [name, disk] : good) Fill(drive, disk.extents, 7);
  Random random(4711);
  size_t made = 0;
  size_t refused = 0;
  for (int round = 0; round < 40; ++round) {
    LoseStore();
    EditMap([&](pool::Map& map) {
      for (pool::MapDisk& disk : map.disks) {
        for (const auto& [name, before] : good) {
          if (before.extents == disk.extents) disk.description = before.description;
        }
        std::string& bytes = disk.description;
        for (uint64_t i = random.Below(4); i > 0; --i)
          bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
        if (random.Chance(1, 8)) bytes.resize(random.Below(bytes.size()));
      }
    });
    const auto scanned = Scan(Drive());
    ASSERT_TRUE(scanned.ok()) << scanned.error().message;
    ASSERT_TRUE(v1::ScanDriveResponse().ParseFromString(scanned->SerializeAsString()));
    const auto pool = state_->found_pools().Create(FromDrive("p", Drive()));
    ASSERT_TRUE(pool.ok()) << pool.error().message;
    EXPECT_EQ(6 * kExtentBytes, pool->status().unknown_bytes() + pool->status().allocated_bytes());
    for (const v1::ScannedDisk& disk : scanned->disks()) {
      ++(disk.problem().empty() ? made : refused);
      for (const char c : disk.problem()) ASSERT_TRUE(c >= ' ' && c <= '~') << disk.problem();
      if (!disk.problem().empty()) continue;
      v1::GetDiskRequest get;
      get.set_name(disk.disk().name());
      const auto there = state_->disks().Get(get);
      ASSERT_TRUE(there.ok()) << there.error().message;
      EXPECT_EQ(ExtentsOf(disk.disk().spec()), ExtentsOf(there->spec()));
    }
  }
  EXPECT_GT(made, 20U);
  EXPECT_GT(refused, 20U);
  for (const auto& [name, disk] : good) EXPECT_TRUE(IsAll(drive, disk.extents, 7));
}

TEST_F(FoundPoolsTest, WhatCantBeToldIsRefusedByReason) {
  MakePool();
  Create(PoolDisk("a", 1));
  v1::CreatePoolRequest both = FromDrive("p", Drive());
  both.set_overwrite(true);
  EXPECT_EQ(v1::REASON_INVALID_FIELD, WhyNotMade(both));
  EXPECT_EQ(v1::REASON_INVALID_FIELD, ReasonOf(Scan("relative").error()));
  EXPECT_EQ(v1::REASON_RESOURCE_NOT_FOUND, ReasonOf(Scan(dir_ / "missing").error()));
  EXPECT_EQ(v1::REASON_DRIVE_UNUSABLE, ReasonOf(Scan(MakeDrive("empty", 2)).error()));
  EXPECT_EQ(v1::REASON_DRIVE_UNUSABLE, WhyNotMade(FromDrive("p2", dir_ / "empty")));
  // A copy of a drive whose pool is here.
  Await([](const v1::PoolStatus& s) { return s.state() == v1::POOL_STATE_READY; });
  PlainDrive drive(Drive());
  const pool::Label label = **pool::ReadLabel(drive);
  PlainDrive copy(MakeDrive("copy", kExtents));
  ASSERT_TRUE(copy.Write(0, pool::Encode(label, 0)).ok());
  EXPECT_EQ(v1::REASON_DRIVE_TAKEN, WhyNotMade(FromDrive("p2", dir_ / "copy")));
  LoseStore();
  EXPECT_EQ(v1::REASON_INVALID_FIELD, WhyNotMade(FromDrive("other", Drive())))
      << "its disks are said to be in p";
  v1::CreatePoolRequest cut = FromDrive("p", Drive());
  cut.mutable_pool()->mutable_spec()->set_extent_bytes(2 * kExtentBytes);
  EXPECT_EQ(v1::REASON_INVALID_FIELD, WhyNotMade(cut));
  // An engine that outlives the store has a disk open.
  ASSERT_TRUE(drive.Lock(0));
  EXPECT_EQ(v1::REASON_DRIVE_UNUSABLE, WhyNotMade(FromDrive("p", Drive())));
  EXPECT_TRUE(Scan(Drive()).ok());
  drive.Unlock(0);
  // One copy of the map may be damaged, and that is told; not both: an empty pool would be made of it, and all erased.
  EXPECT_EQ("", Scan(Drive())->pool().status().message());
  std::vector<uint8_t> first(pool::kBlockBytes);
  ASSERT_TRUE(drive.Read(pool::kMapOffsets[0], first).ok());
  const size_t newer = pool::Encode(pool::ReadMap(drive, label).value().value()).value() == first ? 0 : 1;
  const std::vector<uint8_t> junk(pool::kBlockBytes, 0xff);
  ASSERT_TRUE(drive.Write(pool::kMapOffsets[1 - newer], junk).ok());
  EXPECT_NE(std::string::npos, Scan(Drive())->pool().status().message().find("damaged"));
  ASSERT_TRUE(drive.Write(pool::kMapOffsets[newer], junk).ok());
  EXPECT_EQ(v1::REASON_DRIVE_UNUSABLE, ReasonOf(Scan(Drive()).error()));
  EXPECT_EQ(v1::REASON_DRIVE_UNUSABLE, WhyNotMade(FromDrive("p", Drive())));
}

// A look at the drive of a pool that is well.
TEST_F(FoundPoolsTest, AnOpenPoolIsScannedAndLeftAsItIs) {
  MakePool();
  const v1::Disk disk = Create(PoolDisk("a", 1));
  Create(PoolDisk("b", 1));
  Delete("b", false);
  Await([&](const v1::PoolStatus&) { return MapOnDrive()["disks/b"].deleted; });
  const auto scanned = Scan(Drive());
  ASSERT_TRUE(scanned.ok()) << scanned.error().message;
  EXPECT_EQ(v1::POOL_STATE_READY, scanned->pool().status().state());
  auto disks = Scanned();
  EXPECT_EQ("it is here already", disks["disks/a"].problem());
  EXPECT_EQ("it is here already", disks["disks/b"].problem());
  EXPECT_EQ(disk.uid(), disks["disks/a"].disk().uid());
  EXPECT_EQ(disk.spec().SerializeAsString(), disks["disks/a"].disk().spec().SerializeAsString());
  Create(PoolDisk("c", 1));
}

// A drive of another host, with numbers that are higher than this store's, and higher than any store's.
TEST_F(FoundPoolsTest, TheLabelIsThisHostsAndTheMapGoesOnByThisStoresNumbers) {
  MakePool();
  Create(PoolDisk("a", 1));
  Close();
  PlainDrive drive(Drive());
  pool::Label label = **pool::ReadLabel(drive);
  label.host.fill(9);
  for (size_t copy = 0; copy < pool::kLabelCopies; ++copy)
    ASSERT_TRUE(drive.Write(pool::kLabelOffsets[copy], pool::Encode(label, copy)).ok());
  EditMap([](pool::Map& map) { map.generation = pool::kGenerationMax; });
  LoseStore();
  EXPECT_FALSE(Scan(Drive())->of_this_host());
  EXPECT_EQ(pool::kGenerationMax, Scan(Drive())->map_generation());
  MakeFromDrive();
  EXPECT_EQ(HostUid(), (**pool::ReadLabel(drive)).host);
  Create(PoolDisk("b", 1));
  EXPECT_LE(Scan(Drive())->map_generation(), state_->NewestRevision());
  Open();
  AwaitErased();
  Create(PoolDisk("c", 1));
  EXPECT_EQ(3U, MapOnDrive().size());
}

// A map that names, for a disk that can't be made, the number of a disk that this store has yet to make.
TEST_F(FoundPoolsTest, ANumberThatALaterDiskWillHaveIsRefused) {
  MakePool();
  Create(PoolDisk("a", 1));
  LoseStore();
  EditMap([&](pool::Map& map) {
    map.disks[0].description = "?";
    map.disks[0].identity = DiskIdentity::Of(store_->number(), state_->NewestRevision() + 100).value();
  });
  EXPECT_EQ(v1::REASON_DRIVE_UNUSABLE, WhyNotMade(FromDrive("p", Drive())));
}

// Deleted disks are not purged at once where this cleatd keeps none.
TEST_F(FoundPoolsTest, DeletedDisksAreKeptAFewDaysMore) {
  MakePool();
  Create(PoolDisk("a", 1));
  Delete("a", false);
  Await([&](const v1::PoolStatus&) { return MapOnDrive()["disks/a"].deleted; });
  LoseStore(true, 0);
  MakeFromDrive();
  ASSERT_TRUE(state_->kept_disks().PurgeExpired().ok());
  ASSERT_EQ(1U, DisksOf(*state_, true).size());
  EXPECT_EQ(kExtentBytes, Pool().status().reclaimable_bytes());
}

// A drive whose process dies at its `left`th change, before or after it.
class DyingDrive final : public PassingDrive {
 public:
  DyingDrive(std::unique_ptr<HostDrive> below, int left) : PassingDrive(std::move(below)), left_(left) {}

  Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) override {
    return Change([&] { return PassingDrive::Write(offset_bytes, from); });
  }
  Status Zero(uint64_t offset_bytes, uint64_t length_bytes) override {
    return Change([&] { return PassingDrive::Zero(offset_bytes, length_bytes); });
  }
  Status Flush() override {
    return Change([&] { return PassingDrive::Flush(); });
  }

 private:
  Status Change(const std::function<Status()>& change) {
    if (--left_ == 0) kill(getpid(), SIGKILL);
    Status done = change();
    if (--left_ == 0) kill(getpid(), SIGKILL);
    return done;
  }

  int left_;
};

// Whatever the moment: no pool, and a drive that says all that it said; or the pool with its disks.
TEST_F(FoundPoolsTest, AKillLeavesNoPoolOrTheWholeOne) {
  MakePool();
  for (int i = 0; i < 3; ++i) Create(PoolDisk(fmt::format("d{}", i), 2));
  PlainDrive drive(Drive());
  std::map<std::string, pool::ExtentRuns> extents;
  for (const auto& [name, disk] : MapOnDrive()) {
    extents[name] = disk.extents;
    Fill(drive, disk.extents, 5);
  }
  // Each change of the drive until the pool's thread has begun its own work on it; two deaths for each.
  constexpr int kChangesMax = 24;
  int none = 0;
  int whole = 0;
  for (int left = 1; left <= kChangesMax; ++left) {
    LoseStore(false);
    Close();
    const pid_t child = fork();
    if (child == 0) {
      drives_ = [left](const UniqueFd& found, const std::string& path) -> Result<std::unique_ptr<HostDrive>> {
        CLEAT_ASSIGN(auto below, BlockDrive::OpenAny(found, path));
        return std::unique_ptr<HostDrive>(std::make_unique<DyingDrive>(std::move(below), left));
      };
      Open();
      (void)state_->found_pools().Create(FromDrive("p", Drive()));
      for (;;) pause();
    }
    int status = 0;
    ASSERT_EQ(child, waitpid(child, &status, 0));
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    Open(false);
    const bool made = state_->pools().List({}).value().pools_size() != 0;
    ++(made ? whole : none);
    for (const auto& [name, disk] : Scanned())
      EXPECT_EQ(made ? "it is here already" : "", disk.problem()) << name << " after " << left;
    Open();
    EXPECT_EQ(v1::REASON_UNSPECIFIED, WhyNotMade(FromDrive("p", Drive()))) << left;
    EXPECT_EQ(3U, Pool().status().disks());
    for (const auto& [name, runs] : extents)
      EXPECT_EQ(runs, ExtentsOf(Get(name.substr(name.find('/') + 1)).spec()));
  }
  EXPECT_GT(none, 0);
  EXPECT_GT(whole, 0);
  Open();
  AwaitErased();
  for (const auto& [name, runs] : extents) EXPECT_TRUE(IsAll(drive, runs, 5)) << name;
}

}  // namespace
}  // namespace cleat::control::pool_rig::found_pools_test
