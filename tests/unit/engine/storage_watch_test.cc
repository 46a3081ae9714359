// SPDX-License-Identifier: Apache-2.0
// An attached disk whose storage fails requests, or does not answer them, in virtual time: what the attachment's status says
// meanwhile and afterwards, and that a disk that is well has no timer.
#include "engine/attached/storage_watch.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/attached/attached_disk.h"
#include "nvme/status.h"
#include "observe/engine_counters.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::engine::storage_watch_test {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// What every request comes to.
struct Storage {
  block::IoStatus status = block::IoStatus::kOk;
  int error_number = 0;
  uint64_t open_ns = 0;
  std::optional<block::PathsReport> paths = std::nullopt;
};

class Device final : public block::Device {
 public:
  Device(const block::Geometry& geometry, const Storage& storage)
      : block::Device("disks/a", geometry), storage_(storage) {}
  uint32_t frames() const override { return 0; }
  std::optional<block::PathsReport> paths() const override { return storage_.paths; }
  void SetInDoubt(const block::InDoubt& rule) override { in_doubt = rule; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    struct Channel final : block::Channel {
      explicit Channel(const Storage& s) : storage(s) {}
      void Submit(block::Request& request) override {
        if (storage.status == block::IoStatus::kOk) return request.Complete(storage.status);
        request.Fail(storage.status, storage.error_number);
      }
      const Storage& storage;
    };
    return std::unique_ptr<block::Channel>(std::make_unique<Channel>(storage_));
  }

  block::InDoubt in_doubt;

 private:
  const Storage& storage_;
};

struct Disks final : DiskFactory {
  Disks(Reactor& c, const Storage& s) : control(c), storage(s) {}
  Task<Result<OpenDisk>> Open(const DiskSpec& disk, block::AccessMode mode, std::shared_ptr<qos::Group> group,
                              DiskEvents events) override {
    paths_changed = std::move(events.paths_changed);
    if (storage.open_ns != 0) co_await control.SleepFor(storage.open_ns);
    block::Geometry geometry;
    geometry.size_bytes = disk.size_bytes;
    auto made = std::make_unique<Device>(geometry, storage);
    last = made.get();
    std::unique_ptr<block::Device> device = std::move(made);
    co_return MakeLimitedPipeline(device, disk.limits.limits, std::move(group), mode);
  }
  Reactor& control;
  const Storage& storage;
  std::function<void()> paths_changed;
  const Device* last = nullptr;
};

struct NoEndpoints final : vhost::EndpointFactory {
  Result<std::unique_ptr<vhost::Endpoint>> Make(const vhost::EndpointOptions& /*options*/,
                                                virtio::DeviceModel& /*model*/,
                                                vhost::StatusFn /*on_status*/) override {
    return Error(ErrorCode::kUnimplemented, "none");
  }
};

// A queue with one request that its storage has and keeps.
struct HangingQueue final : observe::InFlightSource {
  bool any_in_flight() const override { return disk != nullptr; }
  void VisitInFlight(observe::InFlightVisitor& visitor) override {
    visitor.Visit(*disk, observe::OpColumn::kWrite, request);
  }
  observe::DiskCounters* disk = nullptr;
  block::Request request;
};

// A write of a block, until it is answered.
struct WaitingWrite {
  WaitingWrite() {
    request.op = block::Op::kWrite;
    request.length_bytes = data.size();
    request.segments = {&segment, 1};
    request.Push([](block::Request&,
                    const block::Frame& frame) { static_cast<WaitingWrite*>(frame.layer)->done = true; },
                 this);
  }
  std::array<uint8_t, 512> data{};
  std::shared_ptr<block::MemoryRegion> region = block::MemoryRegion::Borrow(data.data(), data.size());
  block::Segment segment{region.get(), 0, 512};
  bool done = false;
  block::Request request;
};

class StorageWatchTest : public testing::Test {
 protected:
  StorageWatchTest() : disks_(reactors_[0], storage_) {
    AttachmentSpec spec;
    spec.controller = "controllers/vm";
    spec.disk.name = "disks/a";
    spec.disk.size_bytes = kBytes;
    disk_ = std::make_unique<AttachedDisk>(context_, spec, ios_, nullptr);
  }
  ~StorageWatchTest() override { Close(); }

  void Close() {
    if (disk_ == nullptr) return;
    EXPECT_TRUE(reactors_.Await(CloseDisk()).ok());
    disk_.reset();
  }
  Task<Status> CloseDisk() {
    co_await disk_->Close(block::Device::Parting::kDetached);
    co_return Ok{};
  }
  void Attach() {
    ASSERT_TRUE(reactors_.Await(disk_->Open()).ok());
    ASSERT_TRUE(reactors_.Await(disk_->Acquire()).ok());
    disk_->state = AttachmentState::kActive;
  }
  // Reads of a block each, and counts them as a queue does.
  void Read(int count, uint64_t offset_bytes = 0) {
    reactors_[1].PostCall([this, count, offset_bytes] {
      const virtio::DiskChannelRef ref = disk_->ChannelOn(reactors_[1]);
      for (int i = 0; i < count; ++i) {
        block::Request request;
        std::array<uint8_t, 512> data;
        const auto region = block::MemoryRegion::Borrow(data.data(), data.size());
        const block::Segment segment{region.get(), 0, data.size()};
        request.offset_bytes = offset_bytes;
        request.length_bytes = data.size();
        request.segments = {&segment, 1};
        request.Push([](block::Request&, const block::Frame&) {}, nullptr);
        ref.channel->Submit(request);
        const bool failed = request.status != block::IoStatus::kOk;
        ref.counters->Count(observe::OpColumn::kRead, 1, data.size(), failed ? 1 : 0);
      }
    });
    reactors_.RunUntilIdle();
  }
  // A request of the disk's that is under way and stays so: in the storage, or before it, where limits are waited for.
  void Hang(HangingQueue& queue, bool submitted) {
    const virtio::DiskChannelRef ref = disk_->ChannelOn(reactors_[1]);
    reactors_[1].PostCall([this, ref, &queue, submitted] {
      const uint64_t now_ns = reactors_[1].now_ns();
      queue.disk = ref.counters;
      queue.request.stamps.Seen(now_ns, now_ns, /*batch=*/0);
      if (submitted) queue.request.stamps.Stamp(RequestStage::kSubmitted, now_ns);
      ref.reactor_counters->Watch(queue);
    });
  }
  void Pass(uint64_t ns) {
    const uint64_t until_ns = reactors_.clock().NowNs() + ns;
    Timer over([](Timer&) {});
    reactors_[0].AddTimer(over, until_ns);
    reactors_.RunUntil([&] { return reactors_.clock().NowNs() >= until_ns; });
  }
  AttachmentReport Report() const { return disk_->Report(); }

  test::VirtualReactors reactors_{2};
  std::vector<Reactor*> ios_{&reactors_[1]};
  Storage storage_;
  Disks disks_;
  NoEndpoints endpoints_;
  Placement placement_{ios_};
  std::unique_ptr<observe::EngineCounters> counters_ =
      observe::EngineCounters::Make("engine-0", 1, ios_).value();
  int changes_ = 0;
  ControllerContext context_{reactors_[0],
                             placement_,
                             disks_,
                             endpoints_,
                             counters_.get(),
                             [](const std::string&) {},
                             [this](const std::string&, uint32_t) { ++changes_; },
                             [](const std::string&, const std::string&, uint64_t) {}};
  std::unique_ptr<AttachedDisk> disk_;
};

TEST_F(StorageWatchTest, ADiskThatIsWellHasNoTimerAndNoNews) {
  Attach();
  Read(100);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_EQ(Report().message, "");
  Pass(2 * StorageWatch::kOpeningNs);  // the wheel forgets what was cancelled
  EXPECT_EQ(changes_, 0);
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline);
  EXPECT_EQ(reactors_[1].NextTimerNs(), kNoDeadline);
}

TEST_F(StorageWatchTest, AnNvmeDrivesReasonIsInItsOwnWords) {
  Attach();
  storage_ = {block::IoStatus::kIoError, nvme::ErrorNumberOf(nvme::Status(0x281)), 0};
  Read(1, 4096);
  EXPECT_EQ(Report().storage, StorageState::kFailing);
  EXPECT_NE(Report().message.find(
                "read at byte 4096: NVMe status Unrecovered Read Error (2/81h); see the drive's logs"),
            std::string::npos)
      << Report().message;
}

TEST_F(StorageWatchTest, AnEpisodeOfFailuresIsToldOnceWithItsReasonAndItsEnd) {
  Attach();
  storage_ = {block::IoStatus::kNoSpace, ENOSPC, 0};
  Read(3, 4096);
  EXPECT_EQ(Report().state, AttachmentState::kActive);
  EXPECT_EQ(Report().storage, StorageState::kFailing);
  EXPECT_NE(Report().message.find("read at byte 4096: No space left on device; make room"), std::string::npos)
      << Report().message;
  EXPECT_EQ(changes_, 1);
  Read(14);
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(changes_, 1) << "the same episode";
  EXPECT_NE(Report().message.find("storage fails: 17 requests since"), std::string::npos) << Report().message;

  Pass(2 * StorageWatch::kQuietNs);
  EXPECT_EQ(Report().storage, StorageState::kFailing) << "nothing has gone well yet";
  storage_ = {};
  Read(1);
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_EQ(Report().message, "");
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline) << "nobody looks any more";

  storage_ = {block::IoStatus::kIoError, 0, 0};
  Read(1);
  EXPECT_NE(Report().message.find("storage fails: 1 requests since"), std::string::npos) << Report().message;
  EXPECT_NE(Report().message.find("Input/output error"), std::string::npos) << Report().message;
}

TEST_F(StorageWatchTest, WritesThatWaitForSpaceAreToldWithTheirNumberAndTheirEnd) {
  Attach();
  disk_->SetOnNoSpace(OnNoSpace::kWait);
  storage_ = {block::IoStatus::kNoSpace, ENOSPC, 0};
  std::array<WaitingWrite, 3> writes;
  reactors_[1].PostCall([&] {
    for (WaitingWrite& write : writes) disk_->ChannelOn(reactors_[1]).channel->Submit(write.request);
  });
  reactors_.RunUntilIdle();
  EXPECT_EQ(Report().state, AttachmentState::kActive);
  EXPECT_EQ(Report().storage, StorageState::kNoSpace);
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_NE(Report().message.find("storage has no space: 3 requests wait for it since"), std::string::npos)
      << Report().message;
  EXPECT_NE(Report().message.find("make room"), std::string::npos) << Report().message;
  Pass(3 * StorageWatch::kUnansweredNs);
  EXPECT_EQ(Report().storage, StorageState::kNoSpace) << "it answers, and fails nothing";

  storage_ = {};
  Pass(2 * block::SpaceWait::kRetryNs);
  for (const WaitingWrite& write : writes) EXPECT_TRUE(write.done);
  Pass(StorageWatch::kSpaceQuietNs + 2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_EQ(Report().message, "");
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline) << "nobody looks any more";
  EXPECT_EQ(reactors_[1].NextTimerNs(), kNoDeadline);
}

TEST_F(StorageWatchTest, WhatADiskDoesWithoutSpaceChangesWhileItIsAttached) {
  Attach();
  EXPECT_EQ(Report().spec.disk.on_no_space, OnNoSpace::kError);
  storage_ = {block::IoStatus::kNoSpace, ENOSPC, 0};
  disk_->SetOnNoSpace(OnNoSpace::kWait);
  WaitingWrite write;
  reactors_[1].PostCall([&] { disk_->ChannelOn(reactors_[1]).channel->Submit(write.request); });
  Pass(2 * block::SpaceWait::kRetryNs);
  EXPECT_FALSE(write.done);
  disk_->SetOnNoSpace(OnNoSpace::kError);
  Pass(2 * block::SpaceWait::kRetryNs);
  EXPECT_TRUE(write.done);
  EXPECT_EQ(write.request.status, block::IoStatus::kNoSpace);
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kFailing);
}

TEST_F(StorageWatchTest, WhatAGuestHasGivenUpDoesNotFailForEver) {
  Attach();
  storage_ = {block::IoStatus::kIoError, EIO, 0};
  Read(1);
  EXPECT_EQ(Report().storage, StorageState::kFailing);
  Pass(StorageWatch::kGivenUpNs + 2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline);
}

TEST_F(StorageWatchTest, WhatTheGuestMayNotDoIsNoFailureOfTheStorage) {
  Attach();
  Read(1, kBytes);
  storage_ = {block::IoStatus::kUnsupported, EOPNOTSUPP, 0};
  Read(1);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_EQ(changes_, 0);
}

TEST_F(StorageWatchTest, ADetachEndsTheEpisode) {
  Attach();
  storage_ = {block::IoStatus::kIoError, EIO, 0};
  Read(5);
  EXPECT_EQ(Report().storage, StorageState::kFailing);
  Close();
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline);
}

TEST_F(StorageWatchTest, ARequestThatTheStorageKeepsIsToldWithinSeconds) {
  Attach();
  HangingQueue queue;
  Hang(queue, /*submitted=*/true);
  Pass(StorageWatch::kUnansweredNs - StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kOk) << "slow, but not so slow";
  Pass(3 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kNotAnswering);
  EXPECT_NE(Report().message.find("storage does not answer: the oldest request waits since"),
            std::string::npos)
      << Report().message;
  queue.disk = nullptr;  // answered
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_EQ(changes_, 2);
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline);
}

block::PathsReport TwoPaths() {
  block::PathsReport paths;
  paths.optimized = 1;
  paths.unusable = 1;
  paths.losses = 1;
  paths.doubt_ranges = 2;
  paths.doubt_bytes = 8192;
  paths.doubt_left_by = "left by subsystems/s at 10.0.0.1:4420 (reset)";
  return paths;
}

TEST_F(StorageWatchTest, WhatWaitsForWritesInDoubtIsStuckAndSaysWhatToDo) {
  storage_.paths = TwoPaths();
  Attach();
  HangingQueue queue;
  Hang(queue, /*submitted=*/true);
  storage_.paths->waiting = 3;
  storage_.paths->waiting_since_ns = reactors_.clock().NowNs();
  Pass(StorageWatch::kUnansweredNs + 2 * StorageWatch::kLookEveryNs);
  AttachmentReport report = Report();
  EXPECT_EQ(report.state, AttachmentState::kActive);
  EXPECT_EQ(report.storage, StorageState::kStuck);
  EXPECT_EQ(report.paths, storage_.paths);
  EXPECT_NE(report.waiting_since_s, 0U);
  for (const char* const part :
       {"stuck: 3 requests wait for writes in doubt since 2", "left by subsystems/s at 10.0.0.1:4420 (reset)",
        "then cleatctl disk confirm-dead a"}) {
    EXPECT_NE(report.message.find(part), std::string::npos) << part << ": " << report.message;
  }
  const int changes = changes_;
  storage_.paths->waiting = 4;
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(changes_, changes + 1) << "the number is told";
  EXPECT_NE(Report().message.find("stuck: 4 requests"), std::string::npos) << Report().message;

  storage_.paths->waiting = 0;
  storage_.paths->waiting_since_ns = 0;
  storage_.paths->doubt_left_by.clear();
  queue.disk = nullptr;  // answered
  Pass(3 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_EQ(Report().message, "");
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline) << "nobody looks any more";
}

TEST_F(StorageWatchTest, WhatIsStuckHidesNoStorageThatDoesNotAnswerTheRest) {
  storage_.paths = TwoPaths();
  Attach();
  HangingQueue held;
  HangingQueue other;
  Hang(held, /*submitted=*/true);
  Hang(other, /*submitted=*/true);
  storage_.paths->waiting = 1;
  storage_.paths->waiting_since_ns = reactors_.clock().NowNs();
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kStuck);
  Read(1);
  Pass(StorageWatch::kUnansweredNs - StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kStuck) << "it answered a moment ago";
  Pass(3 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kNotAnswering);
  EXPECT_NE(Report().message.find("stuck: 1 requests"), std::string::npos) << "both are said";
  other.disk = nullptr;
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kStuck);
  held.disk = nullptr;
  Pass(2 * StorageWatch::kLookEveryNs);
}

TEST_F(StorageWatchTest, WithoutAPathTheStorageDoesNotAnswerWhateverIsInDoubt) {
  storage_.paths = TwoPaths();
  Attach();
  HangingQueue queue;
  Hang(queue, /*submitted=*/true);
  storage_.paths->waiting = 3;
  storage_.paths->waiting_since_ns = reactors_.clock().NowNs();
  storage_.paths->optimized = 0;
  storage_.paths->unusable = 2;
  Pass(StorageWatch::kUnansweredNs + 2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kNotAnswering);
  storage_.paths->non_optimized = 1;
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kStuck);
  queue.disk = nullptr;
  Pass(2 * StorageWatch::kLookEveryNs);
}

// What every broken path costs until the reactors know is no news.
TEST_F(StorageWatchTest, AMomentOfWaitingIsNotStuck) {
  storage_.paths = TwoPaths();
  Attach();
  disks_.paths_changed();
  storage_.paths->waiting = 1;
  storage_.paths->waiting_since_ns = reactors_.clock().NowNs() + StorageWatch::kLookEveryNs / 2;
  Pass(StorageWatch::kLookEveryNs + 1);
  EXPECT_EQ(Report().storage, StorageState::kOk);
}

TEST_F(StorageWatchTest, PathsThatChangeAreToldOnceASecondAndOfADiskThatIsWellByNoTimer) {
  storage_.paths = TwoPaths();
  Attach();
  Pass(3 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline);
  const int changes = changes_;
  for (int i = 0; i < 10; ++i) {
    ++storage_.paths->losses;
    disks_.paths_changed();
  }
  EXPECT_EQ(changes_, changes);
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(changes_, changes + 1);
  EXPECT_EQ(Report().paths->losses, 11U);
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline);
  disks_.paths_changed();
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(changes_, changes + 1) << "nothing is another";
}

TEST_F(StorageWatchTest, TheRuleForWritesInDoubtReachesTheDeviceAndAnAcceptedRiskIsSaid) {
  storage_.paths = TwoPaths();
  const block::InDoubt accept{.policy = block::InDoubt::Policy::kAccept, .fail_after_ns = 0};
  disk_->SetInDoubt(accept);
  Attach();
  EXPECT_EQ(disks_.last->in_doubt, accept) << "said before it was open";
  storage_.paths->accepts = true;
  disks_.paths_changed();
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_NE(Report().message.find("writes in doubt are accepted: 8192 bytes, left by subsystems/s at"),
            std::string::npos)
      << Report().message;
  const block::InDoubt fail{.policy = block::InDoubt::Policy::kFailAfter, .fail_after_ns = kNsPerSecond};
  disk_->SetInDoubt(fail);
  EXPECT_EQ(disks_.last->in_doubt, fail);
  EXPECT_EQ(Report().spec.disk.in_doubt, fail);
}

TEST_F(StorageWatchTest, AWriteThatWaitedTooLongForDoubtSaysSo) {
  storage_.paths = TwoPaths();
  Attach();
  storage_.status = block::IoStatus::kIoError;
  storage_.error_number = ETIME;
  Read(1);
  EXPECT_EQ(Report().storage, StorageState::kFailing);
  EXPECT_NE(Report().message.find("confirm-dead"), std::string::npos) << Report().message;
}

// An engine that was stopped goes on: control looks before the I/O reactor has looked at its requests again.
TEST_F(StorageWatchTest, WhatAReactorHasNotLookedAtLatelyIsNoAnswer) {
  Attach();
  HangingQueue queue;
  Hang(queue, /*submitted=*/true);
  Pass(StorageWatch::kUnansweredNs + 2 * StorageWatch::kLookEveryNs);
  ASSERT_EQ(Report().storage, StorageState::kNotAnswering);
  for (int stop = 0; stop < 2; ++stop) {
    reactors_.clock().AdvanceBy(3 * kNsPerSecond);
    reactors_[0].RunOnce();
    EXPECT_EQ(Report().storage, StorageState::kNotAnswering) << "nobody knows better";
    Pass(2 * StorageWatch::kLookEveryNs);
    EXPECT_EQ(Report().storage, StorageState::kNotAnswering) << "the request is where it was";
  }
  queue.disk = nullptr;  // answered
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline);
}

// The same holds before the first verdict: the request has been told of as slow, and is told of once.
TEST_F(StorageWatchTest, AStopDoesNotHideARequestThatWasSlowBefore) {
  Attach();
  HangingQueue queue;
  Hang(queue, /*submitted=*/true);
  Pass(StorageWatch::kUnansweredNs - 2 * StorageWatch::kLookEveryNs);
  ASSERT_EQ(Report().storage, StorageState::kOk);
  reactors_.clock().AdvanceBy(3 * kNsPerSecond);
  reactors_[0].RunOnce();
  EXPECT_EQ(Report().storage, StorageState::kOk) << "nobody knows yet";
  Pass(2 * StorageWatch::kLookEveryNs);
  EXPECT_EQ(Report().storage, StorageState::kNotAnswering);
  queue.disk = nullptr;
  Pass(2 * StorageWatch::kLookEveryNs);
}

TEST_F(StorageWatchTest, ARequestThatWaitsForItsLimitsIsNotTheStoragesFault) {
  Attach();
  HangingQueue queue;
  Hang(queue, /*submitted=*/false);
  Pass(3 * StorageWatch::kUnansweredNs);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  queue.disk = nullptr;
  Pass(2 * StorageWatch::kLookEveryNs);
}

TEST_F(StorageWatchTest, AnOpeningThatTakesLongNamesWhatDoesNotAnswer) {
  storage_.open_ns = 3 * StorageWatch::kOpeningNs;
  disk_->message = "opening disks/a";
  bool opened = false;
  const auto open = [&]() -> Task<void> {
    EXPECT_TRUE((co_await disk_->Open()).ok());
    opened = true;
  };
  reactors_[0].PostCall([&] { Spawn(open()); });
  Pass(StorageWatch::kOpeningNs / 2);
  EXPECT_EQ(Report().message, "opening disks/a");
  Pass(StorageWatch::kOpeningNs);
  EXPECT_EQ(Report().storage, StorageState::kNotAnswering);
  EXPECT_NE(Report().message.find("opening disks/a: its storage does not answer since"), std::string::npos)
      << Report().message;
  Pass(2 * StorageWatch::kOpeningNs);
  EXPECT_TRUE(opened);
  EXPECT_EQ(Report().storage, StorageState::kOk);
  EXPECT_EQ(changes_, 2);
}

}  // namespace
}  // namespace cleat::engine::storage_watch_test
