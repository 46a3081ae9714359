// SPDX-License-Identifier: Apache-2.0
// Disks of a pool that grew right before their drive failed, so that its map never had that, and stores that were restored then: whatever
// the store says of the growth, what guests wrote is there.
#include <atomic>
#include <memory>
#include <utility>

#include "control/pools/block_drive.h"
#include "pool_rig.h"
#include "restored.h"

namespace cleat::control::pool_rig::grown_restored_test {
namespace {

// A drive that takes no writes as long as the flag is set.
class UnwritableDrive final : public PassingDrive {
 public:
  UnwritableDrive(std::unique_ptr<HostDrive> below, std::shared_ptr<const std::atomic<bool>> unwritable)
      : PassingDrive(std::move(below)), unwritable_(std::move(unwritable)) {}

  Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) override {
    if (*unwritable_) return Error(ErrorCode::kIo, "the test's drive takes no writes");
    return PassingDrive::Write(offset_bytes, from);
  }

 private:
  const std::shared_ptr<const std::atomic<bool>> unwritable_;
};

class GrownRestoredTest : public PoolRig {
 protected:
  void SetUp() override {
    drives_ = [unwritable = unwritable_](const UniqueFd& found,
                                         const std::string& path) -> Result<std::unique_ptr<HostDrive>> {
      CLEAT_ASSIGN(auto below, BlockDrive::OpenAny(found, path));
      return std::unique_ptr<HostDrive>(std::make_unique<UnwritableDrive>(std::move(below), unwritable));
    };
    pace_.retry = std::chrono::milliseconds(5);
    PoolRig::SetUp();
    MakePool();
    former_ = ExtentsOf(Create(PoolDisk("a", 2)).spec());
    Create(PoolDisk("between", 1));
    PlainDrive drive(dir_ / "drive");
    Fill(drive, former_, 7);
    // The growth is in the store, and nowhere else.
    *unwritable_ = true;
    GrowA(3);
    Await([](const v1::PoolStatus& s) { return s.state() == v1::POOL_STATE_FAILED; });
    ASSERT_EQ(MapOnDrive().at("disks/a").extents, former_);
  }
  void GrowA(uint32_t extents) {
    v1::UpdateDiskRequest request;
    request.mutable_disk()->set_name("disks/a");
    request.mutable_disk()->mutable_spec()->set_size_bytes(extents * kExtentBytes);
    request.mutable_update_mask()->add_paths("spec.size_bytes");
    const auto grown = state_->disks().Update(request);
    ASSERT_TRUE(grown.ok()) << grown.error().message;
  }
  void DriveIsWellAgain() {
    *unwritable_ = false;
    Open();
    AwaitErased();
  }
  // The disk has all that was written to it, and more that reads as zeroes.
  void ExpectWhole(uint32_t extents) {
    const v1::Disk a = state_->disks().Get(GetDisk("a")).value();
    EXPECT_NE(a.status().state(), v1::DISK_STATE_LOST) << a.status().message();
    EXPECT_EQ(a.spec().size_bytes(), extents * kExtentBytes);
    const pool::ExtentRuns runs = pool::Joined(ExtentsOf(a.spec()));
    EXPECT_EQ(pool::CountOf(runs), extents);
    ASSERT_TRUE(pool::BeginsWith(runs, pool::Joined(former_)));
    PlainDrive drive(dir_ / "drive");
    EXPECT_TRUE(IsAll(drive, former_, 7));
    pool::ExtentSet others;
    others.Add(runs);
    others.Remove(former_);
    EXPECT_TRUE(IsAll(drive, others.Runs(), 0));
    EXPECT_EQ(pool::Joined(MapOnDrive().at("disks/a").extents), runs);
  }

  const std::shared_ptr<std::atomic<bool>> unwritable_ = std::make_shared<std::atomic<bool>>(false);
  pool::ExtentRuns former_;
};

TEST_F(GrownRestoredTest, TheSameStoreKeepsTheGrowth) {
  const std::string backup = BytesOfBackup(*state_);
  const auto restored = Restore(*state_, backup);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  DriveIsWellAgain();
  ExpectWhole(3);
}

// The drive may have been used meanwhile, so that nobody knows what is in the extents that the disk had been given.
TEST_F(GrownRestoredTest, AStoreThatTakesALostOnesPlaceUndoesIt) {
  const std::string backup = BytesOfBackup(*state_);
  Close();
  RemoveStore();
  Open(false);
  const auto restored = Restore(*state_, backup);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  PlainDrive drive(dir_ / "drive");
  Fill(drive, {{3, 1}}, 9);
  DriveIsWellAgain();
  ExpectWhole(2);
  GrowA(3);
  AwaitErased();
  ExpectWhole(3);
}

TEST_F(GrownRestoredTest, ADeletedDiskIsWholeWhenItComesBack) {
  Delete("a", false);
  const std::string backup = BytesOfBackup(*state_);
  Close();
  RemoveStore();
  Open(false);
  ASSERT_TRUE(Restore(*state_, backup).ok());
  DriveIsWellAgain();
  v1::UndeleteDiskRequest request;
  request.set_name("disks/a");
  const auto undeleted = state_->kept_disks().Undelete(request);
  ASSERT_TRUE(undeleted.ok()) << undeleted.error().message;
  ExpectWhole(2);
}

}  // namespace
}  // namespace cleat::control::pool_rig::grown_restored_test
