// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/channel/nvmf_channel.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::modules {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::Reached;
using nvme::host::LifeId;
using nvme::host::RequestQueue;

void NvmfControlLink::Post(std::function<void(NvmfChannelOwner&)> call) const {
  control->PostCall([core = owner, call = std::move(call)] {
    if (const auto held = core.lock()) call(*held);
  });
}

// ---- One I/O queue

void NvmfChannel::Queue::Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) {
  if (!IsOfLogin(cookie)) [[likely]] {
    channel_.requests_->Completed(life_, cookie, entry, data_bytes);
    channel_.ArmTickForRequests();
    return;
  }
  if (TakeLogin(cookie, entry, data_bytes)) channel_.QueueReady(path_);
}

void NvmfChannel::Queue::Unanswered(uint64_t cookie, Reached reached) {
  if (!IsOfLogin(cookie)) channel_.requests_->Unanswered(life_, cookie, reached);
}

void NvmfChannel::Queue::Ended(const Error& reason) {
  channel_.QueueEnded(path_, EndLogin(reason));
}

void NvmfChannel::Queue::Breaks(const Error& reason) {
  channel_.QueueBreaks(path_, reason);
}

// ---- The channel

NvmfChannel::NvmfChannel(std::shared_ptr<const NvmfChannelShared> shared,
                         std::shared_ptr<NvmfChannelPort> port, NvmfControlLink control)
    : shared_(std::move(shared)),
      port_(std::move(port)),
      control_(std::move(control)),
      reactor_(port_->reactor) {
  port_->channel = this;
  control_.Post([to = port_](NvmfChannelOwner& core) { core.Joined(to); });
}

NvmfChannel::~NvmfChannel() {
  CLEAT_CHECK(early_.empty());
  Close();
  for (auto& life : lives_) {
    if (life && life->queue && !life->queue->ended())
      life->queue->End(
          {ErrorCode::kCancelled, IoQueue::NameOf(shared_->target, life->plan.id) + ": not used any more"});
    life.reset();
  }
  requests_.reset();
  shared_->open.fetch_sub(1, std::memory_order_relaxed);
  control_.Post([port = port_](NvmfChannelOwner& core) { core.Left(port.get()); });
}

// No mail of the core comes any more.
void NvmfChannel::Close() {
  closing_ = true;
  port_->channel = nullptr;
}

class NvmfChannel::Lent final : public block::Channel {
 public:
  explicit Lent(std::unique_ptr<NvmfChannel> channel) : channel_(std::move(channel)) {}
  ~Lent() override {
    channel_->Close();
    channel_->reactor_.PostCall([channel = channel_] {});
  }
  void Submit(block::Request& request) override { channel_->Submit(request); }
  void AbortQueued(const block::Request* only) override { channel_->AbortQueued(only); }

 private:
  const std::shared_ptr<NvmfChannel> channel_;
};

std::unique_ptr<block::Channel> NvmfChannel::Lend(std::unique_ptr<NvmfChannel> channel) {
  return std::make_unique<Lent>(std::move(channel));
}

// What waits here, for whatever it is, is the storage's: the time counts as its own, and makes it one that does not answer.
void NvmfChannel::Submit(block::Request& request) {
  request.stamps.Stamp(RequestStage::kSubmitted, reactor_.now_ns());
  if (!requests_) [[unlikely]]
    return early_.PushBack(request);
  requests_->Submit(request);
  ArmTickForRequests();
}

void NvmfChannel::RequestDone(block::Request& request, const block::Frame& frame) {
  request.stamps.Stamp(RequestStage::kDone, static_cast<NvmfChannel*>(frame.layer)->reactor_.now_ns());
  request.Complete(request.status);
}

void NvmfChannel::AbortQueued(const block::Request* only) {
  if (requests_) {
    requests_->AbortQueued(only);
    return ArmTick();
  }
  // All are taken out first: a completion may submit the next request.
  block::RequestList aborted;
  block::RequestList kept;
  while (block::Request* request = early_.PopFront())
    (only == nullptr || request == only ? aborted : kept).PushBack(*request);
  while (block::Request* request = kept.PopFront()) early_.PushBack(*request);
  while (block::Request* request = aborted.PopFront()) request->Complete(block::IoStatus::kAborted);
}

bool NvmfChannel::WantsTick() const {
  if (requests_ && requests_->wants_tick()) return true;
  return std::any_of(lives_.begin(), lives_.end(), [](const std::optional<Life>& life) {
    return life && !life->is_over && (life->queue == nullptr || !life->queue->ready());
  });
}

void NvmfChannel::Tick() {
  if (requests_) requests_->Tick(reactor_.now_ns());
  for (auto& life : lives_) {
    if (life && !life->is_over) Tick(*life);
  }
  ArmTick();
}

void NvmfChannel::Tick(Life& life) {
  if (life.queue != nullptr && life.queue->ended()) life.queue.reset();
  if (life.queue != nullptr) {
    life.queue->CheckOverdue();
  } else if (reactor_.now_ns() >= life.try_at_ns) {
    TryQueue(life);
  }
}

// ---- Mail of the core

void NvmfChannel::Welcome(uint32_t number, const block::InDoubt& rule) {
  RequestQueue::Config config;
  config.reactor = number;
  config.first_origin = port_->first_origin;
  config.write_cache = shared_->write_cache;
  if (shared_->doubt_log != nullptr) config.log = shared_->doubt_log->log();
  config.waits = &port_->waits;
  config.done = &RequestDone;
  config.layer = this;
  nvme::host::RequestQueueOwner& self = *this;
  requests_.emplace(config, self);
  requests_->SetInDoubt(rule);
  while (block::Request* request = early_.PopFront()) requests_->Submit(*request);
  ArmTick();
}

void NvmfChannel::BeginLife(const IoQueuePlan& plan) {
  std::optional<Life>& life = lives_.at(plan.id.path);
  CLEAT_CHECK(requests_ && IsFree(plan.id.path));
  life.emplace(plan);
  TryQueue(*life);
  ArmTick();
}

// A life that was left has been reported meanwhile: the core does not begin the path's next one before that.
bool NvmfChannel::IsFree(uint32_t path) const {
  const std::optional<Life>& life = lives_[path];
  return !life || (life->is_left && life->queue->ended());
}

NvmfChannel::Life* NvmfChannel::Find(LifeId life) {
  for (auto& candidate : lives_) {
    if (candidate && candidate->plan.id.life == life) return &*candidate;
  }
  return nullptr;
}

void NvmfChannel::TryQueue(Life& life) {
  ++life.tries;
  life.queue = std::make_unique<Queue>(*this, life.plan.id);
  life.queue->Start();
}

void NvmfChannel::QueueReady(uint32_t path) {
  Life& life = *lives_[path];
  requests_->PathReady(life.plan.id.life, life.queue->queue(), life.plan.format, life.plan.state);
  ArmTick();
}

// Requests go by other paths from now on, and the core may end the life elsewhere; here it is over when the queue has ended.
void NvmfChannel::QueueBreaks(uint32_t path, const Error& reason) {
  Life& life = *lives_[path];
  if (std::exchange(life.is_over, true)) return;
  control_.Post([id = life.plan.id.life, reason](NvmfChannelOwner& core) { core.QueueBroken(id, reason); });
  requests_->PathBreaks(life.plan.id.life);
}

// Within a callback of the queue, which is destroyed later.
void NvmfChannel::QueueEnded(uint32_t path, const Error& reason) {
  if (closing_) return;
  Life& life = *lives_[path];
  if (life.is_over) {
    if (!life.is_reported) Report(life);
    return;
  }
  const bool is_refused = reason.code == ErrorCode::kPermissionDenied;
  if (life.queue->IsForgiven(reason)) --life.tries;
  if (!life.queue->ready() && !is_refused && life.tries < IoQueue::kConnectTriesMax) {
    life.plan.id.place = life.queue->place();
    life.try_at_ns = reactor_.now_ns() + life.queue->PauseNs();
    return ArmTick();
  }
  life.is_over = true;
  Report(life);
  control_.Post([id = life.plan.id.life, reason](NvmfChannelOwner& core) { core.QueueBroken(id, reason); });
}

void NvmfChannel::Report(Life& life) {
  life.is_reported = true;
  requests_->PathEnded(life.plan.id.life);
  ArmTick();
}

void NvmfChannel::EndLife(LifeId id, const Error& reason) {
  Life* const life = Find(id);
  if (life == nullptr) {
    requests_->PathEnded(id);
    return ArmTick();
  }
  const uint32_t path = life->plan.id.path;
  life->is_over = true;
  // A login that is under way comes to nothing by no fault of its own.
  if (life->queue && !life->queue->ended()) {
    life->queue->End({life->queue->ready() ? reason.code : ErrorCode::kCancelled, reason.message});
  }
  if (life->queue && !life->queue->ended()) {
    life->is_left = true;
    return;
  }
  if (!life->is_reported) Report(*life);
  lives_[path].reset();
}

void NvmfChannel::SetState(LifeId id, nvme::host::PathState state) {
  Life* const life = Find(id);
  if (life == nullptr || life->is_over) return;
  life->plan.state = state;
  if (life->queue && life->queue->ready()) requests_->SetState(id, state);
  ArmTick();
}

void NvmfChannel::SetFormat(LifeId id, const nvme::host::PathFormat& format) {
  Life* const life = Find(id);
  if (life == nullptr || life->is_over) return;
  life->plan.format = format;
  if (life->queue && life->queue->ready()) requests_->SetFormat(id, format);
  ArmTick();
}

void NvmfChannel::Adopt(nvme::host::DoubtTable table) {
  requests_->Adopt(std::move(table));
  ArmTick();
}

void NvmfChannel::SetInDoubt(const block::InDoubt& rule) {
  requests_->SetInDoubt(rule);
  ArmTick();
}

// ---- Mail to the core

void NvmfChannel::Report(nvme::host::LifeReport report) {
  control_.Post([report = std::move(report)](NvmfChannelOwner& core) { core.Take(report); });
}

void NvmfChannel::Acked(nvme::host::DoubtAck ack) {
  control_.Post([ack = std::move(ack)](NvmfChannelOwner& core) { core.Take(ack); });
}

void NvmfChannel::BarrierOver(nvme::host::BarrierEnded ended) {
  control_.Post([ended](NvmfChannelOwner& core) { core.Take(ended); });
}

void NvmfChannel::GivenUp(nvme::host::OriginId origin) {
  control_.Post([origin](NvmfChannelOwner& core) { core.GivenUp(origin); });
}

void NvmfChannel::PathRefused(LifeId life) {
  control_.Post([life](NvmfChannelOwner& core) { core.PathRefused(life); });
}

void NvmfChannel::Conflicted(LifeId life) {
  control_.Post([life](NvmfChannelOwner& core) { core.Conflicted(life); });
}

}  // namespace cleat::modules
