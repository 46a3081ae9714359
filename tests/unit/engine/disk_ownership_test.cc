// SPDX-License-Identifier: Apache-2.0
// Two controllers with the same two disks, as the engines of a migration's two hosts have them, in virtual time: who owns
// what, and what the front end is told. The disks are locks with a size, the endpoints what the test makes of them.
#include "engine/controller/disk_ownership.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/controller/controller.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::engine::disk_ownership_test {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// The storage that both hosts see.
struct Storage {
  std::map<std::string, std::string> owners;  // by disk
  std::map<std::string, uint64_t> bytes;
  std::map<std::string, std::string> broken;                   // can't be acquired: why
  std::map<std::string, std::string> stuck;                    // can't be given to another host yet: why
  std::map<std::string, int> released;                         // or tried to be, how often
  uint64_t resize_ns = 0;                                      // takes so long
  std::map<std::string, std::optional<uint64_t>> patience_ns;  // of the last who acquired, if told
  uint64_t release_ns = 0;                                     // takes so long
  std::map<std::string, uint64_t> leaving;  // whose, as each host's engines have kept it, by host and disk
};

class LockDevice final : public block::Device {
 public:
  LockDevice(const block::Geometry& geometry, std::string disk, std::string host, Storage& storage,
             DiskEvents events)
      : Device(std::move(disk), geometry),
        host_(std::move(host)),
        storage_(storage),
        events_(std::move(events)) {}

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    struct Nothing final : block::Channel {
      void Submit(block::Request& request) override { request.Complete(block::IoStatus::kOk); }
    };
    return std::unique_ptr<block::Channel>(std::make_unique<Nothing>());
  }
  void SetAcquireTimeout(std::optional<uint64_t> wait_ns) override { patience_ns_ = wait_ns; }
  Task<Status> Acquire(block::AccessMode /*mode*/) override {
    Reactor& control = *Reactor::Current();
    storage_.patience_ns[name()] = patience_ns_;
    for (uint64_t waited_ns = 0;; waited_ns += kNsPerMs) {
      std::string& owner = storage_.owners[name()];
      const std::string broken = storage_.broken[name()];
      if (broken.empty() && (owner.empty() || owner == host_)) {
        owner = host_;
        if (storage_.bytes[name()] > geometry().size_bytes) events_.grew(storage_.bytes[name()]);
        co_return Ok{};
      }
      if (waited_ns >= patience_ns_.value_or(0)) {
        co_return Error(ErrorCode::kFailedPrecondition,
                        name() + (broken.empty() ? " is owned by " + owner : " is " + broken));
      }
      co_await control.SleepFor(kNsPerMs);
    }
  }
  Task<Status> Release() override {
    EXPECT_EQ(storage_.owners[name()], host_) << "releases what it does not own";
    ++storage_.released[name()];
    if (storage_.release_ns != 0) co_await Reactor::Current()->SleepFor(storage_.release_ns);
    const std::string stuck = storage_.stuck[name()];
    if (!stuck.empty() && parting_ == Parting::kToOtherHost)
      co_return Error(ErrorCode::kAborted, name() + ": " + stuck);
    if (parting_ == Parting::kStaysAttached) co_return Ok{};  // for the next engine
    storage_.owners[name()].clear();
    if (parting_ == Parting::kToOtherHost || parting_ == Parting::kDetached) SetLeaving(0);
    co_return Ok{};
  }
  void SetLeaving(uint64_t attachment) override { storage_.leaving[host_ + name()] = attachment; }
  bool IsLeaving(uint64_t attachment) const override {
    return storage_.leaving[host_ + name()] == attachment;
  }
  void SetParting(Parting parting) override { parting_ = parting; }
  Task<Status> Resize(uint64_t size_bytes) override {
    co_await Reactor::Current()->SleepFor(storage_.resize_ns);
    SetSize(size_bytes);
    co_return Ok{};
  }

 private:
  const std::string host_;
  Storage& storage_;
  const DiskEvents events_;
  std::optional<uint64_t> patience_ns_;
  Parting parting_ = Parting::kToNextEngine;
};

struct Disks final : DiskFactory {
  Disks(std::string h, Storage& s) : host(std::move(h)), storage(s) {}
  Task<Result<OpenDisk>> Open(const DiskSpec& disk, block::AccessMode mode, std::shared_ptr<qos::Group> group,
                              DiskEvents events) override {
    block::Geometry geometry;
    geometry.size_bytes = disk.size_bytes;
    std::unique_ptr<block::Device> device =
        std::make_unique<LockDevice>(geometry, disk.name, host, storage, std::move(events));
    co_return MakeLimitedPipeline(device, disk.limits.limits, std::move(group), mode);
  }
  const std::string host;
  Storage& storage;
};

struct Endpoints final : vhost::EndpointFactory {
  struct Nowhere final : vhost::Endpoint {
    Status Start() override { return Ok{}; }
    Task<void> Stop() override { co_return; }
    Task<Status> Yield(uint64_t /*deadline_ns*/) override { co_return Ok{}; }
    void ConfigChanged() override {}
    vhost::EndpointStatus status() const override { return {}; }
  };
  Result<std::unique_ptr<vhost::Endpoint>> Make(const vhost::EndpointOptions& options,
                                                virtio::DeviceModel& /*model*/,
                                                vhost::StatusFn /*on_status*/) override {
    ownership = options.ownership;
    return std::unique_ptr<vhost::Endpoint>(std::make_unique<Nowhere>());
  }
  vhost::Ownership* ownership = nullptr;
};

// One of the two hosts, with a SCSI controller.
class Side {
 public:
  Side(const std::string& host, test::VirtualReactors& reactors, Storage& storage)
      : reactors_(reactors),
        ios_{&reactors[1]},
        disks_(host, storage),
        context_{reactors[0],
                 placement_,
                 disks_,
                 endpoints_,
                 nullptr,
                 [](const std::string&) {},
                 [this](const std::string&, uint32_t) {
                   if (on_change) on_change();
                 },
                 [](const std::string&, const std::string&, uint64_t) {}},
        host_(host) {
    StartEngine();
  }
  ~Side() { StopEngine(); }

  // Of the host: what it has acquired stays the host's.
  void RestartEngine() {
    StopEngine();
    StartEngine();
  }

  static constexpr uint64_t kRevision = 1;
  Status Attach(uint32_t target, const std::string& disk, bool incoming, uint64_t revision = kRevision) {
    AttachmentSpec spec;
    spec.revision = revision;
    spec.controller = controller_->spec().name;
    spec.target = target;
    spec.disk.name = disk;
    spec.disk.size_bytes = kBytes;
    spec.incoming = incoming;
    return reactors_.Await(controller_->Attach(spec));
  }
  void AttachBoth(bool incoming) {
    EXPECT_TRUE(Attach(0, "disks/x", incoming).ok());
    EXPECT_TRUE(Attach(1, "disks/y", incoming).ok());
  }
  Status Detach(uint32_t target) { return reactors_.Await(controller_->Detach(target)); }

  // To another engine of the host, which gives it back.
  void HandOverAndBack() {
    const auto yielded = reactors_.Await(controller_->Yield(UINT64_MAX));
    ASSERT_TRUE(yielded.ok()) << yielded.error().message;
    EXPECT_TRUE(reactors_.Await(controller_->Take(yielded->hand_over, UniqueFd())).ok());
  }
  // Begins it.
  void Resize(const std::string& disk, uint64_t bytes) {
    resize_ = {disk, bytes};
    Tell([this] { Spawn(DoResize()); });
  }

  // The front end's part, on control.
  void AcquireAsync() {
    Tell([&] { endpoints_.ownership->AcquireAsync([this] { ++told; }); });
  }
  void CancelAcquire() {
    Tell([&] { endpoints_.ownership->CancelAcquire(); });
  }
  void HandOff() {
    Tell([&] {
      endpoints_.ownership->HandOff();
      EXPECT_FALSE(owned());
    });
  }
  bool owned() const { return endpoints_.ownership->owned(); }
  std::string pending_reason() const { return endpoints_.ownership->pending_reason(); }

  std::vector<AttachmentState> states() const {
    std::vector<AttachmentState> states;
    for (const AttachmentReport& report : controller_->Attachments()) states.push_back(report.state);
    return states;
  }
  std::string message(uint32_t target) const { return controller_->Attachment(target)->message; }
  uint64_t bytes(uint32_t target) const { return controller_->Attachment(target)->spec.disk.size_bytes; }

  int told = 0;
  std::function<void()> on_change;  // of an attachment

 private:
  void StartEngine() {
    controller_.emplace(context_, SpecOf(host_), nullptr, DescriptorBudget::Reservation());
    EXPECT_TRUE(Call([&] { return controller_->Serve(); }).ok());
  }
  void StopEngine() {
    EXPECT_TRUE(reactors_.Await(controller_->Close(Controller::CloseMode::kDetach)).ok());
    controller_.reset();
  }
  Task<void> DoResize() { EXPECT_TRUE((co_await controller_->Resize(resize_)).ok()); }
  static ControllerSpec SpecOf(const std::string& host) {
    ControllerSpec spec;
    spec.name = "controllers/" + host;
    spec.type = ControllerType::kScsi;
    return spec;
  }
  void Tell(const std::function<void()>& what) {
    reactors_[0].PostCall([what] { what(); });
    reactors_.RunUntilIdle();
  }
  Status Call(const std::function<Status()>& what) {
    Status status;
    Tell([&] { status = what(); });
    return status;
  }

  test::VirtualReactors& reactors_;
  const std::vector<Reactor*> ios_;
  Placement placement_{ios_};
  Disks disks_;
  Endpoints endpoints_;
  ControllerContext context_;
  const std::string host_;
  ResizeSpec resize_;
  std::optional<Controller> controller_;  // the engine's
};

class DiskOwnershipTest : public testing::Test {
 protected:
  using States = std::vector<AttachmentState>;
  static constexpr AttachmentState kActive = AttachmentState::kActive;
  static constexpr AttachmentState kIncoming = AttachmentState::kIncoming;
  static constexpr AttachmentState kReleased = AttachmentState::kReleased;

  void RunFor(uint64_t ns) {
    const uint64_t until_ns = reactors.clock().NowNs() + ns;
    reactors.RunUntil([&] { return reactors.clock().NowNs() >= until_ns; });
  }
  std::string OwnerOf(const std::string& disk) { return storage.owners["disks/" + disk]; }

  test::VirtualReactors reactors{2};
  Storage storage;
  Side source{"source", reactors, storage};
  Side target{"target", reactors, storage};
};

TEST_F(DiskOwnershipTest, ThereAndBack) {
  source.AttachBoth(false);
  EXPECT_TRUE(source.owned());
  source.AcquireAsync();
  target.AttachBoth(true);
  EXPECT_FALSE(target.owned());
  EXPECT_EQ(target.states(), States({kIncoming, kIncoming}));
  EXPECT_EQ(OwnerOf("x"), "source");

  source.HandOff();
  EXPECT_TRUE(reactors.RunUntil([&] { return OwnerOf("x").empty() && OwnerOf("y").empty(); }));
  EXPECT_EQ(source.states(), States({kReleased, kReleased}));
  target.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return target.told == 1; }));
  EXPECT_TRUE(target.owned());
  EXPECT_EQ(target.states(), States({kActive, kActive}));
  EXPECT_EQ(OwnerOf("x") + OwnerOf("y"), "targettarget");
  target.CancelAcquire();  // its guest reboots
  target.AcquireAsync();
  EXPECT_TRUE(target.owned());

  target.HandOff();
  source.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return source.told == 1; }));
  EXPECT_EQ(source.states(), States({kActive, kActive}));
  EXPECT_EQ(target.states(), States({kReleased, kReleased}));
}

TEST_F(DiskOwnershipTest, WhoIsTooEarlyWaitsAndSaysForWhom) {
  source.AttachBoth(false);
  source.AcquireAsync();
  target.AttachBoth(true);
  target.AcquireAsync();
  RunFor(5 * kNsPerSecond);
  EXPECT_EQ(target.told, 0);
  EXPECT_FALSE(target.owned());
  EXPECT_NE(target.pending_reason().find("is owned by source"), std::string::npos) << target.pending_reason();
  EXPECT_EQ(OwnerOf("x") + OwnerOf("y"), "sourcesource");
  source.HandOff();
  EXPECT_TRUE(reactors.RunUntil([&] { return target.told == 1; }));
  EXPECT_EQ(target.pending_reason(), "");
}

TEST_F(DiskOwnershipTest, WhoAsksOnceWaitsAsLongAsTheStorageThinksRight) {
  target.AttachBoth(true);
  target.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return target.told == 1; }));
  EXPECT_EQ(storage.patience_ns["disks/x"], DiskOwnership::kAcquireTimeoutNs) << "it would have asked again";
  target.HandOverAndBack();
  EXPECT_EQ(storage.patience_ns["disks/x"], std::nullopt);
}

TEST_F(DiskOwnershipTest, AllOrNone) {
  target.AttachBoth(true);
  storage.broken["disks/y"] = "out of reach";
  target.AcquireAsync();
  for (int i = 0; i < 20; ++i) {
    RunFor(100 * kNsPerMs);
    EXPECT_EQ(target.told, 0);
    EXPECT_EQ(target.states(), States({kIncoming, kIncoming}));
  }
  EXPECT_NE(target.pending_reason().find("disks/y is out of reach"), std::string::npos)
      << target.pending_reason();
  // Between two attempts it has nothing.
  EXPECT_TRUE(reactors.RunUntil([&] { return OwnerOf("x").empty(); }));
  storage.broken.clear();
  EXPECT_TRUE(reactors.RunUntil([&] { return target.told == 1; }));
  EXPECT_EQ(OwnerOf("x") + OwnerOf("y"), "targettarget");
}

TEST_F(DiskOwnershipTest, WhoGoesGivesBackWhatItHasAndAsksForNothingMore) {
  source.AttachBoth(false);
  EXPECT_TRUE(source.Detach(0).ok());
  target.AttachBoth(true);
  target.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return OwnerOf("x") == "target"; }));
  target.CancelAcquire();
  EXPECT_TRUE(reactors.RunUntil([&] { return OwnerOf("x").empty(); }));
  EXPECT_TRUE(source.Detach(1).ok());
  RunFor(5 * kNsPerSecond);
  EXPECT_EQ(OwnerOf("x") + OwnerOf("y"), "");
  EXPECT_EQ(target.told, 0);
}

TEST_F(DiskOwnershipTest, AbortedBeforeTheReleaseIsDone) {
  source.AttachBoth(false);
  source.AcquireAsync();
  source.HandOff();
  source.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return source.told == 1; }));
  EXPECT_EQ(source.states(), States({kActive, kActive}));
  EXPECT_EQ(OwnerOf("x") + OwnerOf("y"), "sourcesource");
}

TEST_F(DiskOwnershipTest, ADiskThatIsBusyIsNotGivenUpOnceTheGuestHasComeBack) {
  source.AttachBoth(false);
  source.AcquireAsync();
  storage.resize_ns = kNsPerSecond;
  source.Resize("disks/y", 2 * kBytes);
  source.HandOff();
  EXPECT_EQ(source.states(), States({kReleased, kActive})) << "y waits for its turn";
  source.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return source.told == 1; }));
  EXPECT_EQ(source.states(), States({kActive, kActive}));
  EXPECT_EQ(source.bytes(1), 2 * kBytes);
  EXPECT_EQ(storage.released["disks/y"], 0) << "another host could have taken it";
}

TEST_F(DiskOwnershipTest, WhatCantBeGivenUpYetIsGivenUpLater) {
  source.AttachBoth(false);
  source.AcquireAsync();
  target.AttachBoth(true);
  storage.stuck["disks/y"] = "writes are in doubt";
  source.HandOff();
  target.AcquireAsync();
  RunFor(5 * kNsPerSecond);
  EXPECT_EQ(source.states(), States({kReleased, kActive}));
  EXPECT_EQ(source.message(1), "disks/y: writes are in doubt");
  EXPECT_EQ(target.told, 0);
  storage.stuck.clear();
  EXPECT_TRUE(reactors.RunUntil([&] { return target.told == 1; }));
  EXPECT_EQ(source.states(), States({kReleased, kReleased}));
}

TEST_F(DiskOwnershipTest, AGuestThatComesBackHasWhatWasNotGivenUp) {
  source.AttachBoth(false);
  storage.stuck["disks/y"] = "writes are in doubt";
  source.HandOff();
  EXPECT_TRUE(reactors.RunUntil([&] { return OwnerOf("x").empty() && !source.message(1).empty(); }));
  source.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return source.told == 1; }));
  EXPECT_EQ(source.states(), States({kActive, kActive}));
  EXPECT_EQ(source.message(1), "");
  EXPECT_EQ(OwnerOf("x") + OwnerOf("y"), "sourcesource");
}

TEST_F(DiskOwnershipTest, WhatCantBeGivenUpYetIsGivenUpByTheNextEngine) {
  source.AttachBoth(false);
  target.AttachBoth(true);
  storage.stuck["disks/y"] = "writes are in doubt";
  source.HandOff();
  target.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return OwnerOf("x") != "source" && !source.message(1).empty(); }));
  source.RestartEngine();
  EXPECT_TRUE(source.Attach(0, "disks/x", true).ok());
  EXPECT_TRUE(source.Attach(1, "disks/y", false).ok());
  RunFor(5 * kNsPerSecond);
  EXPECT_EQ(source.states(), States({kIncoming, kActive}));
  EXPECT_EQ(source.message(1), "disks/y: writes are in doubt");
  EXPECT_EQ(target.told, 0);
  storage.stuck.clear();
  EXPECT_TRUE(reactors.RunUntil([&] { return target.told == 1; }));
  EXPECT_EQ(source.states(), States({kIncoming, kReleased}));
}

// The attachment is detached while no engine is there, and attached anew for a VM that is to start here.
TEST_F(DiskOwnershipTest, ANewAttachmentKeepsWhatOneBeforeItWasGivingAway) {
  source.AttachBoth(false);
  storage.stuck["disks/y"] = "writes are in doubt";
  source.HandOff();
  EXPECT_TRUE(reactors.RunUntil([&] { return !source.message(1).empty(); }));
  source.RestartEngine();
  EXPECT_TRUE(source.Attach(1, "disks/y", false, Side::kRevision + 1).ok());
  storage.stuck.clear();
  RunFor(5 * kNsPerSecond);
  EXPECT_EQ(source.states(), States({kActive}));
  EXPECT_EQ(OwnerOf("y"), "source");
  source.RestartEngine();
  EXPECT_TRUE(source.Attach(1, "disks/y", false).ok());  // a restored store may have the one before again
  RunFor(5 * kNsPerSecond);
  EXPECT_EQ(source.states(), States({kActive}));
  EXPECT_EQ(OwnerOf("y"), "source");
}

TEST_F(DiskOwnershipTest, AGuestThatComesBackToTheNextEngineHasWhatWasNotGivenUp) {
  source.AttachBoth(false);
  storage.stuck = {{"disks/x", "writes are in doubt"}, {"disks/y", "writes are in doubt"}};
  source.HandOff();
  EXPECT_TRUE(reactors.RunUntil([&] { return !source.message(0).empty() && !source.message(1).empty(); }));
  source.RestartEngine();
  source.AttachBoth(false);
  source.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return source.told == 1; }));
  storage.stuck.clear();
  RunFor(5 * kNsPerSecond);
  EXPECT_EQ(source.states(), States({kActive, kActive}));
  EXPECT_EQ(OwnerOf("x") + OwnerOf("y"), "sourcesource");
  source.RestartEngine();
  source.AttachBoth(false);
  RunFor(5 * kNsPerSecond);
  EXPECT_EQ(source.states(), States({kActive, kActive})) << "that is over";
}

// The next engine tries to give both away, in vain or not, when the rings come: before that, in the midst of it, between two tries, later.
TEST_F(DiskOwnershipTest, AGuestThatComesBackToTheNextEngineIsToldOnceWheneverItComes) {
  const std::map<std::string, std::string> both{{"disks/x", "in doubt"}, {"disks/y", "in doubt"}};
  for (const auto& stuck : {both, std::map<std::string, std::string>{*both.begin()}, {}}) {
    for (uint64_t after_ms = 0; after_ms < 60; ++after_ms) {
      SCOPED_TRACE(std::to_string(stuck.size()) + " stuck, after ms: " + std::to_string(after_ms));
      Storage own;
      Side here("source", reactors, own);
      here.AttachBoth(false);
      own.stuck = both;
      here.HandOff();
      RunFor(kNsPerMs);
      here.RestartEngine();
      own.stuck = stuck;
      own.release_ns = 3 * kNsPerMs;
      here.AttachBoth(false);
      EXPECT_FALSE(here.owned());
      if (after_ms != 0) RunFor(after_ms * kNsPerMs);
      EXPECT_EQ(here.told, 0);
      here.AcquireAsync();
      own.stuck.clear();
      RunFor(5 * kNsPerSecond);
      EXPECT_EQ(here.told, 1);
      EXPECT_TRUE(here.owned());
      EXPECT_EQ(here.states(), States({kActive, kActive}));
      EXPECT_EQ(own.owners["disks/x"] + own.owners["disks/y"], "sourcesource");
      EXPECT_EQ(own.leaving["sourcedisks/x"] + own.leaving["sourcedisks/y"], 0U);
    }
  }
}

// Rings that run already, or want to before the disk is there, need not be told of it.
TEST_F(DiskOwnershipTest, ADiskThatWasLeavingStaysWithAGuestThatIsHereBeforeIt) {
  source.AttachBoth(false);
  storage.stuck["disks/y"] = "writes are in doubt";
  source.HandOff();
  EXPECT_TRUE(reactors.RunUntil([&] { return !source.message(1).empty(); }));
  source.RestartEngine();
  storage.stuck.clear();
  EXPECT_TRUE(source.owned()) << "it has none";
  source.AcquireAsync();
  source.on_change = [&] { EXPECT_TRUE(source.owned()) << "a ring that asks now would not be told"; };
  EXPECT_TRUE(source.Attach(1, "disks/y", false).ok());
  RunFor(5 * kNsPerSecond);
  EXPECT_EQ(source.states(), States({kActive}));
  EXPECT_EQ(OwnerOf("y"), "source");
  EXPECT_EQ(source.told, 0);
}

TEST_F(DiskOwnershipTest, TheGuestGoesOnWhenWhatItWaitedForIsDetached) {
  EXPECT_TRUE(source.Attach(1, "disks/y", false).ok());
  target.AttachBoth(true);
  target.AcquireAsync();
  RunFor(kNsPerSecond);
  EXPECT_EQ(target.told, 0);
  EXPECT_TRUE(target.Detach(1).ok());
  EXPECT_TRUE(reactors.RunUntil([&] { return target.told == 1; }));
  EXPECT_EQ(target.states(), States({kActive}));
}

TEST_F(DiskOwnershipTest, OneThatComesToARunningGuestIsOwnedFirst) {
  EXPECT_TRUE(target.Attach(0, "disks/x", true).ok());
  target.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return target.told == 1; }));
  EXPECT_TRUE(target.Attach(1, "disks/y", true).ok());
  EXPECT_EQ(target.states(), States({kActive, kActive}));
  EXPECT_EQ(OwnerOf("y"), "target");
  EXPECT_TRUE(source.Attach(0, "disks/z", false).ok());
  EXPECT_FALSE(target.Attach(2, "disks/z", true).ok()) << "its owner is another";
  EXPECT_TRUE(target.owned());
}

TEST_F(DiskOwnershipTest, WhatHasGrownMeanwhileIsSeenBeforeTheGuestRuns) {
  target.AttachBoth(true);
  storage.bytes["disks/y"] = 2 * kBytes;
  target.AcquireAsync();
  EXPECT_TRUE(reactors.RunUntil([&] { return target.told == 1; }));
  EXPECT_EQ(target.bytes(0), kBytes);
  EXPECT_EQ(target.bytes(1), 2 * kBytes);
}

}  // namespace
}  // namespace cleat::engine::disk_ownership_test
