// SPDX-License-Identifier: Apache-2.0
#include "vhost/ring.h"

#include <string>
#include <utility>

#include "reactor/sync.h"
#include "vhost/peer_files.h"

namespace cleat::vhost {
namespace {

constexpr uint64_t kDrainMeterNs = 100 * kNsPerMs;

}  // namespace

Ring::Ring(Reactor& control, Reactor& io, virtio::DeviceModel& model, uint32_t index, BrokenFn on_broken,
           std::atomic<bool>& blocked)
    : control_(control),
      io_(io),
      model_(model),
      index_(index),
      on_broken_(std::move(on_broken)),
      blocked_(blocked) {}

Ring::~Ring() {
  CLEAT_CHECK(!running_ && queue_ == nullptr);
  *self_ = nullptr;
}

void Ring::CallNotifier::Call() {
  if (ring.Signal(fd)) [[likely]]
    return;
  ring.control_.PostCall([self = ring.self_] {
    if (*self != nullptr) (*self)->on_broken_(**self);
  });
}

bool Ring::Signal(const UniqueFd& eventfd) {
  if (blocked_.load(std::memory_order_relaxed)) return true;
  if (SignalEventfd(eventfd)) [[likely]]
    return true;
  blocked_.store(true, std::memory_order_relaxed);
  return false;
}

void Ring::KickWatch::OnKick(FdWatch& watch, uint32_t /*epoll_events*/) {
  Ring& ring = static_cast<KickWatch&>(watch).ring;
  ring.io_.Activate(*ring.queue_);
}

bool Ring::KeepActive::Poll() {
  ring.io_.Activate(*ring.queue_);
  return false;
}

void Ring::DrainMeter::Fire(Timer& timer) {
  Ring& ring = static_cast<DrainMeter&>(timer).ring;
  ring.draining_requests_.store(ring.queue_->in_flight(), std::memory_order_relaxed);
  ring.io_.AddTimer(timer, ring.io_.now_ns() + kDrainMeterNs);
}

Task<Status> Ring::Start(virtio::QueueSetup* setup) {
  CLEAT_CHECK(!running_);
  broken_.clear();
  ++life_;
  co_await io_.Enter();
  Status started = StartQueue(setup);
  co_await control_.Enter();
  running_ = started.ok();
  co_return started;
}

Status Ring::StartQueue(virtio::QueueSetup* setup) {
  if (queue_ == nullptr) {
    CLEAT_ASSIGN(queue_, model_.OpenQueue(io_, index_));
  }
  CLEAT_TRY(WatchKick());
  setup->notifier = notifier_.get();
  queue_->Start(*setup, [this, self = self_, life = life_](const std::string& reason) {
    control_.PostCall([self, life, reason] {
      if (*self != nullptr) (*self)->Broke(life, reason);
    });
  });
  return Ok{};
}

void Ring::Broke(uint64_t life, const std::string& reason) {
  if (life != life_ || !running_) return;
  broken_ = reason;
  if (error_) Signal(error_);
  on_broken_(*this);
}

Status Ring::WatchKick() {
  if (!kick_) {
    io_.AddPoller(keep_active_);
    kept_active_ = true;
    return Ok{};
  }
  return kick_watch_.Start(io_, kick_.get(), EPOLLIN);
}

void Ring::UnwatchKick() {
  kick_watch_.Stop();
  if (kept_active_) io_.RemovePoller(keep_active_);
  kept_active_ = false;
}

Task<void> Ring::Stop(StopFor stop_for) {
  (void)co_await StopBy(kNoDeadline, stop_for);
}

Task<uint32_t> Ring::StopBy(uint64_t deadline_ns, StopFor stop_for) {
  CLEAT_CHECK(running_);
  co_await io_.Enter();
  UnwatchKick();
  Event over(io_);
  bool drained = false;
  if (stop_for == StopFor::kSuccessor) queue_->LeaveToSuccessor();
  queue_->Stop([&] {
    drained = true;
    over.Set();
  });
  if (!drained) {
    DrainMeter::Fire(drain_meter_);
    const Deadline deadline(io_, over, deadline_ns);
    co_await over.Wait();
    drain_meter_.Cancel();
    draining_requests_.store(0, std::memory_order_relaxed);
  }
  if (!drained) {
    const uint32_t in_flight = queue_->in_flight();
    queue_->Resume();
    const Status watching = WatchKick();
    co_await control_.Enter();
    if (!watching) Broke(life_, watching.error().message);
    co_return in_flight;
  }
  const uint32_t next = queue_->next_available();
  co_await control_.Enter();
  config.base = next;
  running_ = false;
  broken_.clear();
  co_return 0;
}

Task<void> Ring::Close() {
  CLEAT_CHECK(!running_);
  if (queue_ == nullptr) co_return;
  co_await io_.Enter();
  queue_.reset();
  co_await control_.Enter();
}

Task<Status> Ring::SetKick(UniqueFd kick) {
  if (kick) {
    CLEAT_CO_TRY(CheckEventfd(kick));
  }
  if (!running_) {
    kick_ = std::move(kick);
    co_return Ok{};
  }
  co_await io_.Enter();
  UnwatchKick();
  std::swap(kick_, kick);
  Status watching = WatchKick();
  io_.Activate(*queue_);  // a kick may have gone to the old one, unseen
  co_await control_.Enter();
  co_return watching;
}

Task<Status> Ring::SetCall(UniqueFd call) {
  std::unique_ptr<CallNotifier> notifier;
  if (call) {
    CLEAT_CO_TRY(CheckEventfd(call));
    notifier = std::make_unique<CallNotifier>(*this, std::move(call));
  }
  if (!running_) {
    notifier_ = std::move(notifier);
    co_return Ok{};
  }
  co_await io_.Enter();
  queue_->SetNotifier(notifier.get());
  std::swap(notifier_, notifier);
  if (notifier_ != nullptr) notifier_->Call();  // a notification may have gone to the old one, unseen
  co_await control_.Enter();
  co_return Ok{};
}

Status Ring::SetError(UniqueFd error) {
  if (error) {
    CLEAT_TRY(CheckEventfd(error));
  }
  error_ = std::move(error);
  return Ok{};
}

void Ring::DropDescriptors() {
  CLEAT_CHECK(!running_);
  kick_.Reset();
  notifier_.reset();
  config.kick = false;
}

Task<void> Ring::SetMemory(std::shared_ptr<const block::MemoryMap> memory, const virtio::RingMemory* ring) {
  CLEAT_CHECK(running_);
  co_await io_.Enter();
  queue_->SetMemory(std::move(memory), *ring);
  co_await control_.Enter();
}

Task<void> Ring::SetDirtyLog(const virtio::DirtyLogMemory* log) {
  CLEAT_CHECK(running_);
  co_await io_.Enter();
  queue_->SetDirtyLog(*log);
  co_await control_.Enter();
}

}  // namespace cleat::vhost
