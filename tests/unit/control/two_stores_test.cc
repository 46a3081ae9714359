// SPDX-License-Identifier: Apache-2.0
// A drive that was used with another store, or has another host's label: what its pool is, and that nothing is written over what others have
// on it.
#include <filesystem>

#include "found_pools_rig.h"
#include "restored.h"

namespace cleat::control::pool_rig::two_stores_test {
namespace {

class TwoStoresTest : public FoundPoolsRig {
 protected:
  // The folder's store, as it is, into another one; and back again.
  void Keep() {
    Close();
    std::filesystem::create_directory(dir_ / "kept");
    MoveStore(dir_.path(), dir_ / "kept");
    RemoveStore();
  }
  void PutBack() {
    Close();
    RemoveStore();
    MoveStore(dir_ / "kept", dir_.path());
    Open();
  }
  v1::PoolStatus AwaitLookedAt() {
    return Await([](const v1::PoolStatus& s) { return s.state() != v1::POOL_STATE_OPENING; }).status();
  }
  void SetHost(uint8_t first_byte) {
    PlainDrive drive(Drive());
    pool::Label label = **pool::ReadLabel(drive);
    label.host[0] = first_byte;
    for (size_t copy = 0; copy < pool::kLabelCopies; ++copy)
      ASSERT_TRUE(drive.Write(pool::kLabelOffsets[copy], Encode(label, copy)).ok());
  }
  pool::Uid Host() {
    PlainDrive drive(Drive());
    return (**pool::ReadLabel(drive)).host;
  }

 private:
  static void MoveStore(const std::string& from, const std::string& to) {
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      if (entry.path().filename().string().starts_with("cleat.db"))
        std::filesystem::rename(entry.path(), std::filesystem::path(to) / entry.path().filename());
    }
  }
};

TEST_F(TwoStoresTest, AStoreDoesNotGoOnWhereAnotherOneHasTakenItsDriveOver) {
  MakePool();
  Create(PoolDisk("a", 2));
  Keep();
  Open();
  MakeFromDrive();
  Delete("a", true);
  AwaitErased();
  const v1::Disk theirs = Create(PoolDisk("b", 3));
  PlainDrive drive(Drive());
  Fill(drive, ExtentsOf(theirs.spec()), 7);
  Close();
  const auto before = MapOnDrive();
  PutBack();
  const v1::PoolStatus status = AwaitLookedAt();
  EXPECT_EQ(v1::POOL_STATE_FAILED, status.state());
  EXPECT_NE(status.message().find("was used with another store since"), std::string::npos)
      << status.message();
  EXPECT_EQ(0U, status.free_bytes());
  EXPECT_EQ(v1::REASON_POOL_NOT_READY, WhyNot(PoolDisk("c", 1)));
  Close();
  EXPECT_EQ(before, MapOnDrive());
  EXPECT_TRUE(IsAll(drive, ExtentsOf(theirs.spec()), 7));
}

TEST_F(TwoStoresTest, AnOlderStoreThatWasPutInPlaceByHandIsNoticedByADiskThatItDoesNotKnow) {
  MakePool();
  Close();
  std::filesystem::create_directory(dir_ / "kept");
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    if (entry.path().filename().string().starts_with("cleat.db"))
      std::filesystem::copy(entry.path(), dir_ / "kept" / entry.path().filename());
  }
  Open();
  Create(PoolDisk("a", 2));
  AwaitErased();
  PutBack();
  for (int starts = 0; starts < 3; ++starts) Open();  // so that it has handed out the map's generation
  EXPECT_EQ(v1::POOL_STATE_FAILED, AwaitLookedAt().state());
  EXPECT_EQ(1U, MapOnDrive().size());
  // What the message and the manual say is to be done.
  const auto restored = Restore(*state_, BytesOfBackup(*state_));
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  Open();
  AwaitErased();
  EXPECT_EQ(2 * kExtentBytes, Pool().status().unknown_bytes());
  EXPECT_NE(std::string::npos, Pool().status().message().find("disks/a")) << Pool().status().message();
}

TEST_F(TwoStoresTest, UnderAnotherHostsLabelTheSamePoolIsTakenOverAndWhatNobodyHasIsErasedAgain) {
  MakePool();
  const v1::Disk disk = Create(PoolDisk("a", 2));
  AwaitErased();
  Close();
  const pool::Uid host = Host();
  SetHost(static_cast<uint8_t>(host[0] + 1));
  PlainDrive drive(Drive());
  Fill(drive, {{0, kExtents}}, 3);
  Open();
  AwaitErased();
  Close();
  EXPECT_EQ(host, Host());
  const pool::ExtentRuns runs = ExtentsOf(disk.spec());
  EXPECT_TRUE(IsAll(drive, runs, 3));
  pool::ExtentSet rest;
  rest.Add(pool::ExtentRun{0, kExtents});
  rest.Remove(runs);
  EXPECT_TRUE(IsAll(drive, rest.Runs(), 0));
}

TEST_F(TwoStoresTest, ADiskThatTheDriveHasElsewhereIsNotThisStores) {
  MakePool();
  const pool::ExtentRuns runs = ExtentsOf(Create(PoolDisk("a", 2)).spec());
  AwaitErased();
  EditMap([&](pool::Map& map) { map.disks.at(0).extents = {{runs.front().first + 4, 2}}; });
  const auto before = MapOnDrive();
  Open();
  const v1::PoolStatus status = AwaitLookedAt();
  EXPECT_EQ(v1::POOL_STATE_FAILED, status.state());
  EXPECT_NE(status.message().find("elsewhere than the store has it"), std::string::npos) << status.message();
  Close();
  EXPECT_EQ(before, MapOnDrive());
}

TEST_F(TwoStoresTest, UnderAnotherHostsLabelAnythingElseIsRefused) {
  MakePool();
  Create(PoolDisk("a", 2));
  AwaitErased();
  EditMap([](pool::Map& map) { map.disks.clear(); });
  SetHost(static_cast<uint8_t>(Host()[0] + 1));
  Open();
  const v1::PoolStatus status = AwaitLookedAt();
  EXPECT_EQ(v1::POOL_STATE_FAILED, status.state());
  EXPECT_NE(status.message().find("another host's label"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace cleat::control::pool_rig::two_stores_test
