// SPDX-License-Identifier: Apache-2.0
// The log of doubt of a disk over NVMe-oF, which cleatd and engines keep together: who has it, when it is zeroes, and when it says that the
// one before is gone.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <string>

#include "moves_rig.h"
#include "nvme/host/doubt/doubt_log.h"
#include "requests.h"
#include "restored.h"

namespace cleat::control::doubt_logs_test {
namespace {

using Beginning = std::array<uint8_t, nvme::host::kDoubtLogLost.size()>;

Beginning BeginningOf(const UniqueFd& log) {
  Beginning start{};
  EXPECT_TRUE(log.valid());
  if (log.valid()) {
    EXPECT_EQ(pread(log.get(), start.data(), start.size(), 0), static_cast<ssize_t>(start.size()));
  }
  return start;
}

uint64_t SizeOf(const UniqueFd& log) {
  struct stat info {};
  EXPECT_EQ(fstat(log.get(), &info), 0);
  return static_cast<uint64_t>(info.st_size);
}

constexpr Beginning kNew{};
// One of an engine that has used it.
constexpr Beginning kUsed = {'u', 's', 'e', 'd', 'l', 'o', 'g', '!'};

class DoubtLogsTest : public ReconcilerRig {
 protected:
  void SetUp() override {
    ASSERT_TRUE(state_->subsystems().Create(NewSubsystem("array")).ok());
    ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
    ASSERT_TRUE(state_->controllers().Create(NewController("vm")).ok());
    ASSERT_TRUE(engine_.Connect());
  }
  void AttachAndUse() {
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
    AwaitAttached();
    Use();
  }
  void Use() {
    const UniqueFd log = engine_.MemoryOf("disks/a");
    ASSERT_EQ(pwrite(log.get(), kUsed.data(), kUsed.size(), 0), static_cast<ssize_t>(kUsed.size()));
  }
  void AwaitAttached() {
    Await("the disk is attached", [this] {
      return state_->attachments().Get(GetAttachment("vm", "a"))->status().state() ==
             v1::ATTACHMENT_STATE_READY;
    });
  }
  v1::DiskState State() { return state_->disks().Get(GetDisk("a"))->status().state(); }
  void AwaitReady() {
    Await("the disk is ready", [this] { return State() == v1::DISK_STATE_READY; });
  }
};

TEST_F(DoubtLogsTest, IsZeroesOfItsOwnSizeForADiskThatIsNew) {
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
  AwaitAttached();
  EXPECT_EQ(BeginningOf(engine_.MemoryOf("disks/a")), kNew);
  EXPECT_EQ(SizeOf(engine_.MemoryOf("disks/a")), nvme::host::kDoubtLogBytes);
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"PutController controllers/vm", "KeepMemory disks/a",
                                              "Attach controllers/vm 0 disks/a"}));
}

TEST_F(DoubtLogsTest, OutlivesCleatdInTheEngineAndTheEngineInCleatd) {
  AttachAndUse();
  RestartCleatd();
  EXPECT_EQ(State(), v1::DISK_STATE_PENDING);
  ASSERT_TRUE(engine_.Connect());
  AwaitReady();
  EXPECT_EQ(BeginningOf(memory_->Share("a")), kUsed);
  engine_.TakeRequests();
  engine_.Restart();
  engine_.WaitForRequest("Attach controllers/vm 0 disks/a");
  EXPECT_EQ(BeginningOf(engine_.MemoryOf("disks/a")), kUsed);
}

// As after a reboot of the host.
TEST_F(DoubtLogsTest, WithoutBothTheNewOneSaysSoAndTheDiskIsAttached) {
  AttachAndUse();
  RestartCleatd();
  engine_.TakeRequests();
  engine_.Restart();
  engine_.WaitForRequest("Attach controllers/vm 0 disks/a");
  EXPECT_EQ(BeginningOf(engine_.MemoryOf("disks/a")), nvme::host::kDoubtLogLost);
  EXPECT_EQ(SizeOf(engine_.MemoryOf("disks/a")), nvme::host::kDoubtLogBytes);
  AwaitReady();
  AwaitAttached();
}

TEST_F(DoubtLogsTest, IsNewStillAfterARestartWhereNoEngineHadIt) {
  RestartCleatd();
  ASSERT_TRUE(engine_.Connect());
  EXPECT_EQ(State(), v1::DISK_STATE_READY);
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
  AwaitAttached();
  EXPECT_EQ(BeginningOf(engine_.MemoryOf("disks/a")), kNew);
}

TEST_F(DoubtLogsTest, StaysAsLargeAsItIsWhenItsDiskGrows) {
  AttachAndUse();
  engine_.GrowDisk("controllers/vm", 0, 64 * kMiB);
  Await("the disk's size",
        [this] { return state_->disks().Get(GetDisk("a"))->spec().size_bytes() == 64 * kMiB; });
  engine_.TakeRequests();
  // The engine's memory is smaller than the disk now, and is not to be told of that for ever.
  engine_.Restart();
  engine_.WaitForRequest("Attach controllers/vm 0 disks/a");
  AwaitAttached();
  EXPECT_EQ(SizeOf(engine_.MemoryOf("disks/a")), nvme::host::kDoubtLogBytes);
  EXPECT_EQ(BeginningOf(engine_.MemoryOf("disks/a")), kUsed);
  RestartCleatd();
  ASSERT_TRUE(engine_.Connect());
  AwaitReady();
  EXPECT_EQ(BeginningOf(memory_->Share("a")), kUsed);
  for (const std::string& request : engine_.TakeRequests()) EXPECT_FALSE(request.starts_with("ResizeDisk"));
}

TEST_F(DoubtLogsTest, GoesWithItsDisk) {
  AttachAndUse();
  ASSERT_TRUE(state_->attachments().Detach(Detach("vm", "a")).ok());
  Await("it is detached", [this] { return !state_->attachments().Get(GetAttachment("vm", "a")).ok(); });
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("a")).ok());
  Await("it is gone", [this] { return !state_->disks().Get(GetDisk("a")).ok(); });
  EXPECT_FALSE(memory_->Has("a"));
  EXPECT_FALSE(engine_.MemoryOf("disks/a").valid());
}

TEST_F(DoubtLogsTest, ADiskThatIsOnlyReadHasNone) {
  v1::CreateDiskRequest request = NvmeDisk("r", "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f12");
  request.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  ASSERT_TRUE(state_->disks().Create(request).ok());
  EXPECT_FALSE(memory_->Has("r"));
}

// ---- Stores that were restored

// The backup was made before the first engine had the disk.
class RestoredDoubtLogsTest : public DoubtLogsTest {
 protected:
  void RestoreBefore() {
    const auto restored = Restore(*state_, backup_);
    ASSERT_TRUE(restored.ok()) << restored.error().message;
    RestartCleatd();
  }
  void SetUp() override {
    DoubtLogsTest::SetUp();
    backup_ = BytesOfBackup(*state_);
  }
  std::string backup_;
};

TEST_F(RestoredDoubtLogsTest, IsTheEnginesWhereOneHasIt) {
  AttachAndUse();
  RestoreBefore();
  EXPECT_EQ(BeginningOf(memory_->Share("a")), nvme::host::kDoubtLogLost);
  ASSERT_TRUE(engine_.Connect());
  Await("it is fetched", [this] { return BeginningOf(memory_->Share("a")) == kUsed; });
}

TEST_F(RestoredDoubtLogsTest, IsLostWhereNoneHasIt) {
  AttachAndUse();
  RestoreBefore();
  engine_.Restart();
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
  AwaitAttached();
  EXPECT_EQ(BeginningOf(engine_.MemoryOf("disks/a")), nvme::host::kDoubtLogLost);
}

TEST_F(RestoredDoubtLogsTest, IsNewOfADiskThatWasMadeSince) {
  RestoreBefore();
  ASSERT_TRUE(state_->disks().Create(NvmeDisk("b", "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f12")).ok());
  RestartCleatd();
  EXPECT_EQ(BeginningOf(memory_->Share("b")), kNew);
  EXPECT_EQ(BeginningOf(memory_->Share("a")), nvme::host::kDoubtLogLost);
}

// ---- Two engines

class DoubtLogsOfTwoEnginesTest : public TwoEngines {};

// Each says that it has the disk's log, and another one than the other has.
TEST_F(DoubtLogsOfTwoEnginesTest, TheAnswerThatComesFirstIsNotReplaced) {
  ASSERT_TRUE(state_->subsystems().Create(NewSubsystem("array")).ok());
  Create(NvmeDisk("a"), "vm");
  blue_.WaitForRequest("Attach controllers/vm 0 disks/a");
  MemfdKeeper other;
  ASSERT_TRUE(other.MakeLostLog("a").ok());
  RestartCleatd();
  green_.SetMemory("disks/a", other.Share("a"));
  for (FakeEngine* engine : {&blue_, &green_}) {
    engine->TakeRequests();
    engine->Hold("FetchMemory");
    ASSERT_TRUE(engine->Connect());
  }
  for (FakeEngine* engine : {&blue_, &green_}) engine->WaitForRequest("FetchMemory disks/a");
  blue_.Release();
  Await("blue's is fetched", [this] { return memory_->IsUsed("a"); });
  green_.Release();
  AwaitProbe();
  EXPECT_EQ(BeginningOf(memory_->Share("a")), kNew);
}

// ---- Disks that come back

TEST(DeletedDoubtLogs, OfADiskThatComesBackAreLostIfAnEngineHadIt) {
  const test::TempDir dir;
  MemfdKeeper memory;
  const auto store = std::move(Store::Open(dir.path()).value());
  const KeepDeleted keep{.time_s = 1000, .now_s = [] { return uint64_t{1'000'000}; }};
  const auto state = std::move(HostState::Load(*store, memory, WatchHub::kQueueMax, nullptr, keep).value());
  ASSERT_TRUE(state->subsystems().Create(NewSubsystem("array")).ok());
  const auto delete_and_undelete = [&] {
    EXPECT_TRUE(state->disks().Delete(DeleteDisk("a")).ok());
    EXPECT_FALSE(memory.Has("a"));
    v1::UndeleteDiskRequest undelete;
    undelete.set_name("disks/a");
    EXPECT_TRUE(state->kept_disks().Undelete(undelete).ok());
    return BeginningOf(memory.Share("a"));
  };
  ASSERT_TRUE(state->disks().Create(NvmeDisk("a")).ok());
  EXPECT_EQ(delete_and_undelete(), kNew);
  ASSERT_TRUE(state->disks().RecordKept("a", "e", true).ok());
  ASSERT_TRUE(state->disks().RecordKept("a", "e", false).ok());
  EXPECT_EQ(delete_and_undelete(), nvme::host::kDoubtLogLost);
  EXPECT_EQ(delete_and_undelete(), nvme::host::kDoubtLogLost) << "once more";
}

}  // namespace
}  // namespace cleat::control::doubt_logs_test
