// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/rdma/rdma_link.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace cleat::nvmf_target {

namespace {

// Between looks whether the adapter has let go of what was posted.
constexpr uint64_t kLookNs = 5 * kNsPerMs;

}  // namespace

RdmaLink::~RdmaLink() {
  CLEAT_CHECK(connection_ == nullptr);
}

void RdmaLink::OnReactor(std::function<void(RdmaLink&)> what) {
  port_.reactor().PostCall([self = shared_from_this(), what = std::move(what)] {
    what(*self);
    self->port_.Wake();
  });
}

// ---- Control reactor: what the relay wants, and the connection manager says

void RdmaLink::BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes) {
  OnReactor([=](RdmaLink& link) {
    if (link.queue_->ended()) return;
    if (entries > link.queue_->entries_max()) {
      return link.EndQueue(
          {ErrorCode::kInvalidArgument,
           fmt::format("{}: the host's Connect asks for {} entries, and its connection was made for {}",
                       link.name_, entries, link.queue_->entries_max())});
    }
    link.queue_->BecomeQueue(entries, flow_control, in_capsule_bytes);
  });
}

void RdmaLink::Ask(uint16_t tag, uint32_t bytes) {
  OnReactor([=](RdmaLink& link) { link.relay_end_->Ask(tag, bytes); });
}

void RdmaLink::Answer(uint16_t tag, nvme::Status status, uint64_t result, std::vector<uint8_t> data) {
  OnReactor([tag, status, result, data = std::move(data)](RdmaLink& link) {
    link.relay_end_->Answer(tag, status, result, data);
  });
}

void RdmaLink::Abort(const Error& reason) {
  OnReactor([reason](RdmaLink& link) { link.EndQueue(reason); });
}

void RdmaLink::TakeNext() {
  OnReactor([](RdmaLink& link) { link.relay_end_->TakeNext(); });
}

void RdmaLink::Accept(std::span<const uint8_t> private_data) {
  const Status accepted = connection_->Accept(private_data);
  if (!accepted.ok()) OnReactor([reason = accepted.error()](RdmaLink& link) { link.EndQueue(reason); });
}

void RdmaLink::Break(const Error& reason) {
  ended_ = true;
  OnReactor([reason](RdmaLink& link) { link.EndQueue(reason); });
}

void RdmaLink::GiveUp() {
  connection_.reset();
  port_.GiveStaging(staging_);
  on_over_(*this);
}

void RdmaLink::Ended(rdma::Connection& /*connection*/, const rdma::ConnectionEnd& end) {
  Break(end.error);
}

// ---- The port's reactor

Status RdmaLink::MakeQueue(const std::string& name, uint16_t queue_id, uint32_t entries) {
  rdma::QueuePair& pair = *connection_->queue_pair();
  CLEAT_TRY(port_.adapter().CheckRoom(entries, pair.limits()));
  name_ = name;
  relay_end_ = std::make_unique<RelayEnd>(control_, relay_, queue_id == 0 ? entries : 1);
  queue_ = std::make_unique<nvme::rdma_target::TargetQueue>(
      port_.adapter(), pair,
      nvme::rdma_target::TargetQueueOptions{.name = name,
                                            .entries_max = entries,
                                            .staging_in = staging_.in,
                                            .staging_out = staging_.out,
                                            .entry_memory = staging_.entries},
      *relay_end_);
  relay_end_->SetQueue(*queue_);
  return {};
}

void RdmaLink::EndQueue(const Error& reason) {
  if (queue_ == nullptr || std::exchange(ends_, true)) return;
  keeps_itself_ = shared_from_this();
  queue_->Abort(reason);
  polled_before_ = port_.Now();
  flush_until_ns_ = port_.reactor().now_ns() + kFlushNs;
  port_.reactor().AddTimer(flush_, port_.reactor().now_ns() + kLookNs);
}

void RdmaLink::FlushTimer::Fire(Timer& timer) {
  static_cast<FlushTimer&>(timer).link.LookWhetherFlushed();
}

void RdmaLink::LookWhetherFlushed() {
  Reactor& reactor = port_.reactor();
  // What the queue pair has received and nobody has polled would be lost with it, and the memory of those capsules.
  const bool is_flushed = queue_->with_adapter() == 0 && port_.IsDrainedSince(polled_before_);
  if (!is_flushed && reactor.now_ns() < flush_until_ns_) {
    port_.Wake();
    return reactor.AddTimer(flush_, reactor.now_ns() + kLookNs);
  }
  DestroyQueuePair();
}

void RdmaLink::DestroyQueuePair() {
  control_.PostCall([self = std::move(keeps_itself_)] {
    self->connection_->DestroyQueuePair();
    self->OnReactor([](RdmaLink& link) {
      link.queue_->Destroyed();
      link.control_.PostCall([self = link.shared_from_this()] {
        self->connection_.reset();
        self->port_.GiveStaging(self->staging_);
        self->on_over_(*self);
      });
    });
  });
}

}  // namespace cleat::nvmf_target
