// SPDX-License-Identifier: Apache-2.0
#include "modules/fault/fault.h"

#include <string>
#include <utility>

#include "base/random.h"

namespace cleat::modules {

using block::IoStatus;

// The waiting requests of one channel, ordered by when they go on. Shared, so that a LetGo that comes late
// finds out that the channel is gone.
class FaultDevice::Stage : public std::enable_shared_from_this<FaultDevice::Stage> {
 public:
  Stage(const FaultDevice& device, Reactor& reactor, uint64_t seed, std::unique_ptr<block::Channel> below)
      : device_(device), reactor_(reactor), random_(seed), below_(std::move(below)), timer_(*this) {}
  ~Stage() { CLEAT_CHECK(in_flight_ == 0); }

  void Submit(block::Request& request) {
    ++in_flight_;
    request.stamps.Stamp(RequestStage::kSubmitted, reactor_.now_ns());
    // Always as many draws, so that one request's fate does not depend on another's.
    const FaultPlan& plan = device_.plan_;
    const uint64_t delay_ns = random_.Below(plan.delay_ns_max + 1);
    const uint64_t before_ns = random_.Below(delay_ns + 1);
    const bool fails = random_.Chance(plan.fail_per_million, 1'000'000);
    const bool carried_out = random_.Chance(1, 2);
    Wait(reactor_.now_ns() + before_ns, Waiting{&request, delay_ns - before_ns, IoStatus::kOk, fails,
                                                /*goes_down=*/!fails || carried_out});
  }

  // Everything that is due. What it completes may submit more, and may end the channel.
  void Run() {
    if (running_) return;  // the outer one goes on
    const std::shared_ptr<Stage> self = shared_from_this();
    running_ = true;
    while (!waiting_.empty() && !device_.held_.load(std::memory_order_acquire)) {
      const auto first = waiting_.begin();
      if (first->first.first > reactor_.now_ns()) break;
      const Waiting waiting = first->second;
      waiting_.erase(first);
      GoOn(waiting);
    }
    running_ = false;
    timer_.Cancel();
    // While it is held, LetGo and not the time will call.
    if (!waiting_.empty() && waiting_.begin()->first.first > reactor_.now_ns()) {
      reactor_.AddTimer(timer_, waiting_.begin()->first.first);
    }
  }

  void Resized() { below_->Resized(); }
  void AbortQueued(const block::Request* only) { below_->AbortQueued(only); }
  block::ThrottleControl* throttle() { return below_->throttle(); }

 private:
  struct Waiting {
    block::Request* request;
    uint64_t after_ns;  // how long it waits once the device below is done with it
    IoStatus status;
    bool fails;
    bool goes_down;  // the device below has yet to see it
  };
  struct WaitTimer : Timer {
    explicit WaitTimer(Stage& s)
        : Timer([](Timer& timer) { static_cast<WaitTimer&>(timer).stage.Run(); }), stage(s) {}
    Stage& stage;
  };

  void Wait(uint64_t due_ns, const Waiting& waiting) {
    waiting_.emplace(std::pair(due_ns, next_number_++), waiting);
    Run();
  }

  void GoOn(const Waiting& waiting) {
    block::Request& request = *waiting.request;
    if (waiting.goes_down) {
      block::Frame& frame = request.Push(&Stage::BelowDone, this);
      frame.scratch[0] = waiting.after_ns;
      frame.scratch[1] = waiting.fails ? 1 : 0;
      below_->Submit(request);
      return;
    }
    --in_flight_;
    request.stamps.Stamp(RequestStage::kDone, reactor_.now_ns());
    request.Complete(waiting.fails ? IoStatus::kIoError : waiting.status);
  }

  static void BelowDone(block::Request& request, const block::Frame& frame) {
    auto& stage = *static_cast<Stage*>(frame.layer);
    const uint64_t after_ns = frame.scratch[0];
    stage.Wait(stage.reactor_.now_ns() + after_ns,
               Waiting{&request, 0, request.status, frame.scratch[1] != 0, /*goes_down=*/false});
  }

  const FaultDevice& device_;
  Reactor& reactor_;
  Random random_;
  const std::unique_ptr<block::Channel> below_;
  std::map<std::pair<uint64_t, uint64_t>, Waiting> waiting_;  // by due time, then in the order of arrival
  uint64_t next_number_ = 0;
  uint64_t in_flight_ = 0;
  bool running_ = false;
  WaitTimer timer_;
};

class FaultDevice::FaultChannel final : public block::Channel {
 public:
  explicit FaultChannel(std::shared_ptr<Stage> stage) : stage_(std::move(stage)) {}
  void Submit(block::Request& request) override { stage_->Submit(request); }
  void Resized() override { stage_->Resized(); }
  void AbortQueued(const block::Request* only) override { stage_->AbortQueued(only); }
  block::ThrottleControl* throttle() override { return stage_->throttle(); }

 private:
  const std::shared_ptr<Stage> stage_;
};

Result<std::unique_ptr<FaultDevice>> FaultDevice::Make(std::unique_ptr<block::Device>&& below,
                                                       const FaultPlan& plan) {
  if (plan.delay_ns_max > kFaultDelayNsMax) {
    return Error(ErrorCode::kInvalidArgument,
                 below->name() + ": fault plan: a delay of " + std::to_string(plan.delay_ns_max) +
                     " ns is above the limit of " + std::to_string(kFaultDelayNsMax));
  }
  if (plan.fail_per_million > 1'000'000) {
    return Error(ErrorCode::kInvalidArgument, below->name() +
                                                  ": fault plan: " + std::to_string(plan.fail_per_million) +
                                                  " of a million can't fail");
  }
  return std::unique_ptr<FaultDevice>(new FaultDevice(std::move(below), plan));
}

FaultDevice::FaultDevice(std::unique_ptr<block::Device> below, const FaultPlan& plan)
    : FilterDevice(std::move(below)), plan_(plan) {}

FaultDevice::~FaultDevice() = default;

void FaultDevice::Hold() {
  held_.store(true, std::memory_order_release);
}

void FaultDevice::LetGo() {
  held_.store(false, std::memory_order_release);
  const MutexLock lock(mutex_);
  for (const Opened& opened : opened_) {
    if (opened.stage.expired()) continue;
    opened.reactor->PostCall([weak = opened.stage] {
      if (const auto stage = weak.lock()) stage->Run();
    });
  }
}

Result<std::unique_ptr<block::Channel>> FaultDevice::OpenChannel(Reactor& reactor) {
  CLEAT_ASSIGN(auto channel, below().OpenChannel(reactor));
  const MutexLock lock(mutex_);
  std::erase_if(opened_, [](const Opened& opened) { return opened.stage.expired(); });
  // The same for the same order of openings on each reactor, whatever the order between reactors.
  Random mix(plan_.seed ^ (uint64_t{reactor.index()} << 32) ^ opened_on_[reactor.index()]++);
  auto stage = std::make_shared<Stage>(*this, reactor, mix.Next(), std::move(channel));
  opened_.push_back({&reactor, stage});
  return std::unique_ptr<block::Channel>(std::make_unique<FaultChannel>(std::move(stage)));
}

}  // namespace cleat::modules
