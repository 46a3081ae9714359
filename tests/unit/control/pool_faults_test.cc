// SPDX-License-Identifier: Apache-2.0
// Drives of pools that hang, fail, and can't be erased in part: what is said, what goes on beside, and that it is mended by itself.
#include <chrono>
#include <memory>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "control/pools/block_drive.h"
#include "pool_rig.h"

namespace cleat::control::pool_rig::pool_faults_test {
namespace {

using std::chrono::milliseconds;

// How the drive misbehaves, as the test says. Any thread.
class Faults {
 public:
  void Hang() {
    Set([&]() CLEAT_REQUIRES(mutex_) { hangs_ = true; });
  }
  void GoOn() {
    Set([&]() CLEAT_REQUIRES(mutex_) { hangs_ = false; });
  }
  void Fail(bool fails) {
    Set([&]() CLEAT_REQUIRES(mutex_) { fails_ = fails; });
  }
  // Extents that can't be zeroed, or that keep what they have though the drive says otherwise.
  void SetBad(std::set<uint32_t> extents) {
    Set([&]() CLEAT_REQUIRES(mutex_) { bad_ = std::move(extents); });
  }
  void SetStale(std::set<uint32_t> extents) {
    Set([&]() CLEAT_REQUIRES(mutex_) { stale_ = std::move(extents); });
  }
  // Waits until a call has come that hangs; false: none has.
  [[nodiscard]] bool AwaitHanging() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    const MutexLock lock(mutex_);
    while (waiting_ == 0 && changed_.WaitUntil(mutex_, until)) {
    }
    return waiting_ > 0;
  }

  // ---- The drive's side: waits while it hangs.
  Status Pass() {
    const MutexLock lock(mutex_);
    ++waiting_;
    changed_.NotifyAll();
    while (hangs_) changed_.Wait(mutex_);
    --waiting_;
    return fails_ ? Status(Error(ErrorCode::kIo, "the test's drive fails")) : Status(Ok{});
  }
  enum class Zeroing : uint8_t { kDone, kRefused, kForgotten };
  Zeroing Zeroed(uint64_t offset_bytes) {
    const auto extent = static_cast<uint32_t>((offset_bytes - pool::kDataOffset) / kExtentBytes);
    const MutexLock lock(mutex_);
    if (offset_bytes < pool::kDataOffset) return Zeroing::kDone;
    if (bad_.contains(extent)) return Zeroing::kRefused;
    return stale_.contains(extent) ? Zeroing::kForgotten : Zeroing::kDone;
  }

 private:
  template <typename Change>
  void Set(Change change) {
    const MutexLock lock(mutex_);
    change();
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  int waiting_ CLEAT_GUARDED_BY(mutex_) = 0;
  bool hangs_ CLEAT_GUARDED_BY(mutex_) = false;
  bool fails_ CLEAT_GUARDED_BY(mutex_) = false;
  std::set<uint32_t> bad_ CLEAT_GUARDED_BY(mutex_);
  std::set<uint32_t> stale_ CLEAT_GUARDED_BY(mutex_);
};

class FaultyDrive final : public PassingDrive {
 public:
  FaultyDrive(std::unique_ptr<HostDrive> drive, std::shared_ptr<Faults> faults)
      : PassingDrive(std::move(drive)), faults_(std::move(faults)) {}

  Status Read(uint64_t offset_bytes, std::span<uint8_t> to) override {
    CLEAT_TRY(faults_->Pass());
    return PassingDrive::Read(offset_bytes, to);
  }
  Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) override {
    CLEAT_TRY(faults_->Pass());
    return PassingDrive::Write(offset_bytes, from);
  }
  Status Zero(uint64_t offset_bytes, uint64_t length_bytes) override {
    CLEAT_TRY(faults_->Pass());
    switch (faults_->Zeroed(offset_bytes)) {
      case Faults::Zeroing::kRefused:
        return Error(ErrorCode::kIo, "the test's drive zeroes nothing there");
      case Faults::Zeroing::kForgotten:
        return Ok{};
      case Faults::Zeroing::kDone:
        break;
    }
    return PassingDrive::Zero(offset_bytes, length_bytes);
  }
  Status Flush() override {
    CLEAT_TRY(faults_->Pass());
    return PassingDrive::Flush();
  }

 private:
  const std::shared_ptr<Faults> faults_;
};

class PoolFaultsTest : public PoolRig {
 protected:
  void SetUp() override {
    pace_ = {.retry = milliseconds(10),
             .patience = milliseconds(1000),
             .look_at = milliseconds(5),
             .locked = milliseconds(5),
             .bad = milliseconds(20)};
    drives_ = [faults = faults_, faulty = dir_ / "drive"](
                  const UniqueFd& found, const std::string& path) -> Result<std::unique_ptr<HostDrive>> {
      CLEAT_ASSIGN(std::unique_ptr<HostDrive> drive, BlockDrive::OpenAny(found, path));
      if (path != faulty) return drive;
      return std::unique_ptr<HostDrive>(std::make_unique<FaultyDrive>(std::move(drive), faults));
    };
    PoolRig::SetUp();
    MakePool();
  }
  void TearDown() override { faults_->GoOn(); }

  // The disk's content, and then the disk is purged.
  void FillAndPurge(PlainDrive& drive, const std::string& id) {
    Fill(drive, ExtentsOf(Create(PoolDisk(id, kExtents)).spec()), 0x5a);
    Delete(id, true);
  }
  // All but extent 4 is erased, which is what the pool says and nobody gets.
  void ExpectAllButOneErased(PlainDrive& drive, const std::string& part) {
    const v1::Pool pool = Await([](const v1::PoolStatus& s) {
      return s.state() == v1::POOL_STATE_READY && s.to_erase_bytes() == kExtentBytes && !s.message().empty();
    });
    EXPECT_EQ(v1::POOL_STATE_READY, pool.status().state());
    EXPECT_NE(std::string::npos, pool.status().message().find("extent 4 can't be erased"))
        << pool.DebugString();
    EXPECT_NE(std::string::npos, pool.status().message().find(part)) << pool.DebugString();
    EXPECT_TRUE(IsAll(drive, {{0, 4}, {5, kExtents - 5}}, 0));
    EXPECT_TRUE(IsAll(drive, {{4, 1}}, 0x5a));
    EXPECT_EQ(v1::REASON_POOL_NOT_READY, WhyNot(PoolDisk("b", kExtents)));
    for (const pool::ExtentRun& run : ExtentsOf(Create(PoolDisk("c", kExtents - 1)).spec()))
      EXPECT_FALSE(run.first <= 4 && 4 < run.end());
  }
  void ExpectMended(PlainDrive& drive) {
    AwaitErased();
    Await([](const v1::PoolStatus& s) { return s.message().empty(); });
    EXPECT_TRUE(IsAll(drive, {{4, 1}}, 0));
    EXPECT_EQ((pool::ExtentRuns{{4, 1}}), ExtentsOf(Create(PoolDisk("b", 1)).spec()));
  }

  const std::shared_ptr<Faults> faults_ = std::make_shared<Faults>();
};

TEST_F(PoolFaultsTest, ADriveThatHangsIsSaidAndNothingElseWaitsForIt) {
  ASSERT_TRUE(state_->pools().Create(NewPool("q", MakeDrive("other", 2))).ok());
  AwaitErased("q");
  Create(PoolDisk("a", 1));
  faults_->Hang();
  // The store has it so; the drive's map will.
  Delete("a", false);
  const v1::Pool hanging =
      Await([](const v1::PoolStatus& s) { return s.state() == v1::POOL_STATE_NOT_ANSWERING; });
  EXPECT_NE(std::string::npos, hanging.status().message().find("does not answer")) << hanging.DebugString();
  EXPECT_FALSE(MapOnDrive()["disks/a"].deleted);
  EXPECT_EQ(v1::REASON_POOL_NOT_READY, WhyNot(PoolDisk("b", 1)));
  AwaitErased("q");  // the host may have stalled for as long as a drive is waited for
  EXPECT_EQ(1U, ExtentsOf(Create(PoolDisk("c", 1, "q")).spec()).size());
  Delete("c", true);
  AwaitErased("q");
  faults_->GoOn();
  AwaitErased();
  Await([](const v1::PoolStatus& s) { return s.message().empty(); });
  Create(PoolDisk("b", 1));
  EXPECT_TRUE(MapOnDrive()["disks/a"].deleted);
}

// The pool's thread is left behind, and touches nothing any more when the drive answers.
TEST_F(PoolFaultsTest, ADriveThatHangsHoldsUpNoEnd) {
  Create(PoolDisk("a", 1));
  faults_->Hang();
  Delete("a", false);
  ASSERT_TRUE(faults_->AwaitHanging()) << "the pool's thread asked the drive that hangs for nothing";
  Close();
  faults_->GoOn();
  Open();
  AwaitErased();
  Create(PoolDisk("b", 1));
  EXPECT_TRUE(MapOnDrive()["disks/a"].deleted);
}

TEST_F(PoolFaultsTest, ADriveThatFailsIsOpenedAgainUntilItIsWell) {
  faults_->Fail(true);
  Create(PoolDisk("a", 1));
  const v1::Pool failed = Await([](const v1::PoolStatus& s) { return s.state() == v1::POOL_STATE_FAILED; });
  EXPECT_NE(std::string::npos, failed.status().message().find("the test's drive fails"))
      << failed.DebugString();
  EXPECT_EQ(v1::REASON_POOL_NOT_READY, WhyNot(PoolDisk("b", 1)));
  faults_->Fail(false);
  AwaitErased();
  Create(PoolDisk("b", 1));
  EXPECT_TRUE(MapOnDrive().contains("disks/a") && MapOnDrive().contains("disks/b"));
}

TEST_F(PoolFaultsTest, AnExtentThatCannotBeErasedKeepsNoOtherFromIt) {
  PlainDrive drive(dir_ / "drive");
  faults_->SetBad({4});
  FillAndPurge(drive, "a");
  ExpectAllButOneErased(drive, "zeroes nothing there");
  faults_->SetBad({});
  ExpectMended(drive);
}

TEST_F(PoolFaultsTest, AnExtentThatDoesNotReadAsZeroesIsGivenToNobody) {
  PlainDrive drive(dir_ / "drive");
  faults_->SetStale({4});
  FillAndPurge(drive, "a");
  ExpectAllButOneErased(drive, "other bytes than zeroes");
  faults_->SetStale({});
  ExpectMended(drive);
}

}  // namespace
}  // namespace cleat::control::pool_rig::pool_faults_test
