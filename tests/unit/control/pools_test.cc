// SPDX-License-Identifier: Apache-2.0
// Pools: whose an extent is, what is erased and when, what is refused; in the store, on the drive, and after a restart or a restored store.
#include <filesystem>

#include "control/model/reasons.h"
#include "pool_rig.h"

namespace cleat::control::pool_rig::pools_test {
namespace {

using PoolsTest = PoolRig;

TEST_F(PoolsTest, ANewPoolIsLabelledErasedAndFree) {
  const std::string drive = dir_ / "drive";
  {
    PlainDrive before(drive);
    Fill(before, {{0, kExtents}}, 0xaa);
  }
  MakePool();
  const v1::Pool pool = Pool();
  EXPECT_EQ(kExtents * kExtentBytes, pool.status().capacity_bytes());
  EXPECT_EQ(kExtents * kExtentBytes, pool.status().free_bytes());
  EXPECT_EQ(kExtents * kExtentBytes, pool.status().largest_free_bytes());
  PlainDrive after(drive);
  EXPECT_TRUE(IsAll(after, {{0, kExtents}}, 0));
  const auto label = pool::ReadLabel(after);
  ASSERT_TRUE(label.ok() && *label);
  EXPECT_EQ(pool.status().uid(), pool::TextOf((**label).pool));
  EXPECT_EQ("p", (**label).name);
}

TEST_F(PoolsTest, ADiskHasItsExtentsInStoreAnswerAndMap) {
  MakePool();
  const v1::Disk disk = Create(PoolDisk("a", 3));
  EXPECT_EQ(3U, pool::CountOf(ExtentsOf(disk.spec())));
  auto map = MapOnDrive();
  ASSERT_TRUE(map.contains("disks/a"));
  EXPECT_EQ(ExtentsOf(disk.spec()), map["disks/a"].extents);
  EXPECT_EQ(disk.uid(), fmt::format("{:016x}", map["disks/a"].identity));
  EXPECT_EQ(3 * kExtentBytes, Pool().status().allocated_bytes());
  EXPECT_EQ(1U, Pool().status().disks());

  // Asked for again, as it was and as it is answered, it is the same.
  EXPECT_EQ(disk.uid(), Create(PoolDisk("a", 3)).uid());
  v1::CreateDiskRequest echo = PoolDisk("a", 3);
  *echo.mutable_disk()->mutable_spec() = disk.spec();
  EXPECT_EQ(disk.uid(), Create(echo).uid());

  Open();
  Await([](const v1::PoolStatus& s) { return s.state() == v1::POOL_STATE_READY; });
  EXPECT_EQ(ExtentsOf(disk.spec()), ExtentsOf(Create(PoolDisk("a", 3)).spec()));
  EXPECT_EQ((kExtents - 3) * kExtentBytes, Pool().status().free_bytes());
}

TEST_F(PoolsTest, ADiskGrowsByExtentsThatNeedNotLieBehindItsOwn) {
  MakePool();
  Create(PoolDisk("a", 1));
  Create(PoolDisk("between", 1));
  const v1::Disk grown = [&] {
    v1::UpdateDiskRequest request;
    request.mutable_disk()->set_name("disks/a");
    request.mutable_disk()->mutable_spec()->set_size_bytes(2 * kExtentBytes + pool::kBlockBytes);
    request.mutable_update_mask()->add_paths("spec.size_bytes");
    return state_->disks().Update(request).value();
  }();
  EXPECT_EQ((pool::ExtentRuns{{0, 1}, {2, 2}}), ExtentsOf(grown.spec()));
  EXPECT_EQ(4 * kExtentBytes, Pool().status().allocated_bytes());
  Open();
  EXPECT_EQ(4 * kExtentBytes, Pool().status().allocated_bytes());
}

// The last extent of a deleted disk is given to another one only after it was erased, and not before the disk was purged.
TEST_F(PoolsTest, WhatWasADisksIsErasedBeforeItIsGivenAgain) {
  MakePool();
  const pool::ExtentRuns all = ExtentsOf(Create(PoolDisk("a", kExtents)).spec());
  PlainDrive drive(dir_ / "drive");
  Fill(drive, all, 0x5a);
  Delete("a", false);
  EXPECT_EQ(kExtents * kExtentBytes, Pool().status().reclaimable_bytes());
  EXPECT_EQ(v1::REASON_POOL_FULL, WhyNot(PoolDisk("b", 1)));

  // An engine that still has an extent keeps it from being erased.
  ASSERT_TRUE(drive.Lock(4));
  v1::PurgeDiskRequest purge;
  purge.set_name("disks/a");
  ASSERT_TRUE(state_->kept_disks().Purge(purge).ok());
  Await([](const v1::PoolStatus& s) { return s.to_erase_bytes() == kExtentBytes; });
  EXPECT_TRUE(IsAll(drive, {{4, 1}}, 0x5a));
  EXPECT_TRUE(IsAll(drive, {{0, 4}, {5, kExtents - 5}}, 0));
  EXPECT_EQ(v1::REASON_POOL_NOT_READY, WhyNot(PoolDisk("b", kExtents)));
  const pool::ExtentRuns given = ExtentsOf(Create(PoolDisk("c", kExtents - 1)).spec());
  for (const pool::ExtentRun& run : given) EXPECT_FALSE(run.first <= 4 && 4 < run.end());
  drive.Unlock(4);
  AwaitErased();
  EXPECT_TRUE(IsAll(drive, {{4, 1}}, 0));
  EXPECT_EQ((pool::ExtentRuns{{4, 1}}), ExtentsOf(Create(PoolDisk("b", 1)).spec()));
}

TEST_F(PoolsTest, ADeletedDiskComesBackWithItsContent) {
  MakePool();
  const v1::Disk disk = Create(PoolDisk("a", 2));
  PlainDrive drive(dir_ / "drive");
  Fill(drive, ExtentsOf(disk.spec()), 0x77);
  Delete("a", false);
  Open();
  v1::UndeleteDiskRequest undelete;
  undelete.set_name("disks/a");
  const auto back = state_->kept_disks().Undelete(undelete);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(ExtentsOf(disk.spec()), ExtentsOf(back->spec()));
  EXPECT_TRUE(IsAll(drive, ExtentsOf(disk.spec()), 0x77));
  EXPECT_EQ(2 * kExtentBytes, Pool().status().allocated_bytes());
  EXPECT_EQ(0U, Pool().status().reclaimable_bytes());
}

// What is to be erased is known after a restart too; without threads nothing is erased, and nothing of it is given.
TEST_F(PoolsTest, WhatIsToBeErasedOutlivesARestart) {
  MakePool();
  Create(PoolDisk("a", kExtents));
  Open(false);
  Delete("a", true);
  Open(false);
  EXPECT_EQ(kExtents * kExtentBytes, Pool().status().to_erase_bytes());
  EXPECT_EQ(v1::REASON_POOL_NOT_READY, WhyNot(PoolDisk("b", 1)));
  Open();
  AwaitErased();
  Create(PoolDisk("b", kExtents));
}

// The store goes back to a backup, as cleatctl store restore makes it do.
class RestoredPoolsTest : public PoolRig {
 protected:
  void BackUp() {
    Close();
    std::filesystem::copy_file(dir_ / Store::kFileName, dir_ / "backup");
    Open();
  }
  void Restore() {
    const uint64_t next = store_->NextRevision().value();
    Close();
    for (const char* const suffix : {"", "-wal", "-shm"})
      std::filesystem::remove(dir_ / (Store::kFileName + std::string(suffix)));
    std::filesystem::copy_file(dir_ / "backup", dir_ / Store::kFileName);
    {
      const auto restored = std::move(Store::Open(dir_.path()).value());
      CLEAT_CHECK(restored->GoOnFrom(next, {{1, next}}).ok());
    }
    Open();
    AwaitErased();
  }
  v1::Disk Get(const std::string& id) {
    v1::GetDiskRequest request;
    request.set_name(DiskName(id));
    return state_->disks().Get(request).value();
  }
};

// What the backup takes for free may be anything, and what it takes for one that is to be erased may be a disk's.
TEST_F(RestoredPoolsTest, UnknownDisksStayAndTheRestIsErasedAgain) {
  MakePool();
  const v1::Disk old = Create(PoolDisk("old", 1));
  Create(PoolDisk("before", 5));
  Open(false);
  Delete("before", true);
  BackUp();  // with five extents that are to be erased
  AwaitErased();
  const v1::Disk lost = Create(PoolDisk("lost", 5));
  const v1::Disk purged = Create(PoolDisk("purged", 1));
  PlainDrive drive(dir_ / "drive");
  Fill(drive, ExtentsOf(old.spec()), 1);
  Fill(drive, ExtentsOf(lost.spec()), 2);
  Fill(drive, ExtentsOf(purged.spec()), 3);
  ASSERT_TRUE(drive.Lock(ExtentsOf(purged.spec()).front().first));
  Delete("purged", true);  // and is not erased before the store is gone
  Await([&](const v1::PoolStatus&) { return !MapOnDrive().contains("disks/purged"); });
  drive.Unlock(ExtentsOf(purged.spec()).front().first);
  Restore();
  EXPECT_TRUE(IsAll(drive, ExtentsOf(old.spec()), 1));
  EXPECT_TRUE(IsAll(drive, ExtentsOf(lost.spec()), 2)) << "a disk that nobody knows was erased";
  EXPECT_TRUE(IsAll(drive, ExtentsOf(purged.spec()), 0));
  EXPECT_EQ(5 * kExtentBytes, Pool().status().unknown_bytes());
  EXPECT_NE(std::string::npos, Pool().status().message().find("disks/lost")) << Pool().status().message();
  EXPECT_EQ(v1::REASON_POOL_FULL, WhyNot(PoolDisk("b", kExtents - 5)));
  const v1::Disk b = Create(PoolDisk("b", kExtents - 6));
  EXPECT_TRUE(IsAll(drive, ExtentsOf(b.spec()), 0));
  auto map = MapOnDrive();
  EXPECT_TRUE(map.contains("disks/lost") && map.contains("disks/old") && map.contains("disks/b"));

  // Known for good: the next start finds a map that is as new as the store.
  Open();
  AwaitErased();
  EXPECT_EQ(5 * kExtentBytes, Pool().status().unknown_bytes());
  EXPECT_TRUE(IsAll(drive, ExtentsOf(lost.spec()), 2));
  Delete("b", true);
  Delete("old", true);
  v1::DeletePoolRequest request;
  request.set_name("pools/p");
  EXPECT_EQ(v1::REASON_POOL_IN_USE, ReasonOf(state_->pools().Delete(request).error()));
  request.set_discard_unknown(true);
  EXPECT_TRUE(state_->pools().Delete(request).ok());
}

// A disk that was purged after the backup, and whose extents another one had since, has nothing any more.
TEST_F(RestoredPoolsTest, ADiskThatWasPurgedSinceIsLost) {
  MakePool();
  const v1::Disk purged = Create(PoolDisk("purged", 4));
  const v1::Disk kept = Create(PoolDisk("kept", 2));
  Delete("kept", false);
  BackUp();
  Delete("purged", true);
  v1::PurgeDiskRequest purge;
  purge.set_name("disks/kept");
  ASSERT_TRUE(state_->kept_disks().Purge(purge).ok());
  AwaitErased();
  const v1::Disk other = Create(PoolDisk("other", 6));
  PlainDrive drive(dir_ / "drive");
  Fill(drive, ExtentsOf(other.spec()), 9);
  Restore();
  const v1::Disk lost = Get("purged");
  EXPECT_EQ(v1::DISK_STATE_LOST, lost.status().state()) << lost.DebugString();
  EXPECT_EQ(0, lost.spec().pool().extents_size());
  v1::UndeleteDiskRequest undelete;
  undelete.set_name("disks/kept");
  const auto back = state_->kept_disks().Undelete(undelete);
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(v1::DISK_STATE_LOST, back->status().state());
  Open();
  AwaitErased();
  EXPECT_EQ(v1::DISK_STATE_LOST, Get("purged").status().state());
  Delete("purged", true);
  Delete("kept", true);
  AwaitErased();
  EXPECT_TRUE(IsAll(drive, ExtentsOf(other.spec()), 9)) << "what was another disk's went with a lost one";
}

TEST_F(RestoredPoolsTest, WhatADiskHasGrownBySinceIsItsOwn) {
  MakePool();
  Create(PoolDisk("a", 1));
  BackUp();
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name("disks/a");
  request.mutable_disk()->mutable_spec()->set_size_bytes(3 * kExtentBytes);
  request.mutable_update_mask()->add_paths("spec.size_bytes");
  const v1::Disk grown = state_->disks().Update(request).value();
  PlainDrive drive(dir_ / "drive");
  Fill(drive, ExtentsOf(grown.spec()), 5);
  Await([&](const v1::PoolStatus&) { return pool::CountOf(MapOnDrive()["disks/a"].extents) == 3; });
  Restore();
  EXPECT_EQ(kExtentBytes, Get("a").spec().size_bytes());
  EXPECT_EQ(ExtentsOf(grown.spec()), ExtentsOf(Get("a").spec()));
  EXPECT_TRUE(IsAll(drive, ExtentsOf(grown.spec()), 5));
  EXPECT_EQ(3 * kExtentBytes, Pool().status().allocated_bytes());
}

TEST_F(PoolsTest, DrivesThatAreNotEmptyOrInUseAreRefused) {
  const auto why = [&](const v1::CreatePoolRequest& request) {
    const auto made = state_->pools().Create(request);
    return made.ok() ? v1::REASON_UNSPECIFIED : ReasonOf(made.error());
  };
  MakePool();
  EXPECT_EQ(v1::REASON_DRIVE_TAKEN, why(NewPool("q", dir_ / "drive")));
  // The same drive by another name.
  std::filesystem::create_symlink(dir_ / "drive", dir_ / "link");
  EXPECT_EQ(v1::REASON_DRIVE_UNUSABLE, why(NewPool("q", dir_ / "link")));
  // A disk is on it, by another name, and is not attached.
  const std::string file = MakeDrive("file", 1);
  Create(FileDisk("e", file, false));
  std::filesystem::create_hard_link(file, dir_ / "hard");
  v1::CreatePoolRequest over = NewPool("q", dir_ / "hard");
  over.set_overwrite(true);
  EXPECT_EQ(v1::REASON_DRIVE_TAKEN, why(over));
  EXPECT_EQ(v1::REASON_FILE_TAKEN, WhyNot(FileDisk("g", dir_ / "link", false)));
  v1::CreatePoolRequest small = NewPool("q", MakeDrive("small", 0));
  EXPECT_EQ(v1::REASON_DRIVE_UNUSABLE, why(small));
  EXPECT_EQ(v1::REASON_RESOURCE_NOT_FOUND, why(NewPool("q", dir_ / "missing")));
  EXPECT_EQ(v1::REASON_FILE_TAKEN, WhyNot(FileDisk("f", dir_ / "drive", false)));
  EXPECT_EQ(v1::REASON_RESOURCE_NOT_FOUND, WhyNot(PoolDisk("a", 1, "none")));

  // Deleted, a pool leaves no label; its disks go first.
  Create(PoolDisk("a", 1));
  v1::DeletePoolRequest request;
  request.set_name("pools/p");
  auto deleted = state_->pools().Delete(request);
  ASSERT_FALSE(deleted.ok());
  EXPECT_EQ(v1::REASON_POOL_IN_USE, ReasonOf(deleted.error()));
  Delete("a", false);
  deleted = state_->pools().Delete(request);
  ASSERT_FALSE(deleted.ok());
  EXPECT_EQ(v1::REASON_POOL_IN_USE, ReasonOf(deleted.error()));
  v1::PurgeDiskRequest purge;
  purge.set_name("disks/a");
  ASSERT_TRUE(state_->kept_disks().Purge(purge).ok());
  ASSERT_TRUE(state_->pools().Delete(request).ok());
  PlainDrive drive(dir_ / "drive");
  // A pool's label that this host does not know any more.
  MakePool();  // at once: the former pool's thread takes its label away, and lets go of the drive
  Close();
  test::TempDir elsewhere;
  {
    const auto other_store = std::move(Store::Open(elsewhere.path()).value());
    MemfdKeeper memory;
    const auto other = std::move(HostState::Load(*other_store, memory).value());
    other->StartPoolThreads();
    const auto made = other->pools().Create(NewPool("q", dir_ / "drive"));
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(v1::REASON_DRIVE_UNUSABLE, ReasonOf(made.error()));
    EXPECT_NE(std::string::npos, made.error().message.find("overwrite")) << made.error().message;
    v1::CreatePoolRequest again = NewPool("q", dir_ / "drive");
    again.set_overwrite(true);
    EXPECT_TRUE(other->pools().Create(again).ok());
    other->StopPoolThreads();
  }
}

// The former pool's thread does nothing to the next one.
TEST_F(PoolsTest, APoolThatIsMadeAnewIsAnotherOne) {
  MakeDrive("second", 3);
  for (int round = 0; round < 10; ++round) {
    const auto first = state_->pools().Create(NewPool("p", dir_ / "drive"));
    ASSERT_TRUE(first.ok()) << first.error().message;
    v1::DeletePoolRequest request;
    request.set_name("pools/p");
    ASSERT_TRUE(state_->pools().Delete(request).ok());
    {
      PlainDrive second(dir_ / "second");
      Fill(second, {{0, 3}}, 0x33);
    }
    ASSERT_TRUE(state_->pools().Create(NewPool("p", dir_ / "second")).ok());
    AwaitErased();
    PlainDrive second(dir_ / "second");
    EXPECT_TRUE(IsAll(second, {{0, 3}}, 0));
    EXPECT_EQ(3 * kExtentBytes, Pool().status().free_bytes());
    ASSERT_TRUE(state_->pools().Delete(request).ok());
  }
}

// A drive that is gone, or another one, is said, and tried again.
TEST_F(PoolsTest, ADriveThatIsAnotherOneIsNotTouched) {
  MakePool();
  Close();
  std::filesystem::rename(dir_ / "drive", dir_ / "away");
  MakeDrive("drive", kExtents);
  Open();
  const v1::Pool failed = Await([](const v1::PoolStatus& s) { return s.state() == v1::POOL_STATE_FAILED; });
  EXPECT_FALSE(failed.status().message().empty());
  EXPECT_EQ(v1::REASON_POOL_NOT_READY, WhyNot(PoolDisk("a", 1)));
  PlainDrive other(dir_ / "drive");
  EXPECT_FALSE(pool::ReadLabel(other).value().has_value());
  std::filesystem::rename(dir_ / "away", dir_ / "drive");
  // A call that asks for a disk has the drive looked at again.
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (WhyNot(PoolDisk("a", 1)) != v1::REASON_UNSPECIFIED && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(1U, Pool().status().disks());
}

}  // namespace
}  // namespace cleat::control::pool_rig::pools_test
