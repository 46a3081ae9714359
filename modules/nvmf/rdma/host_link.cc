// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/rdma/host_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nvme/rdma/connect_data.h"

namespace cleat::modules {

using nvme::rdma_host::HostAdapter;

namespace {

// Between looks whether the adapter has let go of what was posted.
constexpr uint64_t kLookNs = 5 * kNsPerMs;
// READs of the target outstanding, by which it fetches data: as many as Linux' host serves where the adapter can.
constexpr uint32_t kReadsServed = 16;

// The connection manager has reasons of its own, which come without an NVMe controller's word.
Error WhyEnded(const rdma::ConnectionEnd& end) {
  const auto said = [](uint8_t byte) { return byte != 0; };
  if (end.kind != rdma::EndKind::kRejected || std::ranges::none_of(end.private_data, said)) return end.error;
  const Error rejected = nvme::rdma::ParseReject(end.private_data);
  return {rejected.code, end.error.message + ": " + rejected.message};
}

}  // namespace

HostLink::HostLink(const TransportQueueOptions& options, Reactor& reactor, HostLinkOwner& owner)
    : reactor_(reactor),
      control_(options.transport.rdma->control()),
      ports_(*options.transport.rdma),
      options_(options),
      owner_(&owner) {}

HostLink::~HostLink() {
  CLEAT_CHECK(connection_ == nullptr && queue_ == nullptr);
}

void HostLink::OnReactor(std::function<void(HostLink&)> what) {
  reactor_.PostCall([self = shared_from_this(), what = std::move(what)] { what(*self); });
}

void HostLink::OnControl(std::function<void(HostLink&)> what) {
  control_.PostCall([self = shared_from_this(), what = std::move(what)] { what(*self); });
}

// ---- Control reactor: the way there

Task<void> HostLink::Connect(std::shared_ptr<HostLink> self) {
  if (self->given_up_) co_return self->Over();
  self->finding_ = true;
  const TransportOptions& transport = self->options_.transport;
  const nvme::fabrics::PathAddress address{transport.address, transport.source};
  auto way = co_await self->ports_.Find(address, self->reactor_, *self);
  self->finding_ = false;
  if (self->over_ || self->given_up_) co_return self->Over();
  if (!way.ok()) co_return self->Fail(way.error());
  self->port_ = way->port;
  const nvme::rdma::ConnectRequest request =
      nvme::rdma::RequestOf(self->options_.queue_id, self->options_.entries, self->options_.controller_id);
  rdma::ConnectOptions options;
  options.from = way->from;
  options.to = nvmf::EndpointOf(transport.address);
  options.traffic_class = static_cast<uint8_t>(transport.dscp << 2);
  options.parts.device = &way->port->device();
  options.parts.completions = &way->port->completions();
  options.parts.receives = &way->port->receives();
  options.parts.wanted = HostAdapter::LimitsFor(self->options_.entries);
  options.private_data = {reinterpret_cast<const uint8_t*>(&request), sizeof(request)};
  options.reads_served = kReadsServed;
  options.timeout_ms = static_cast<uint32_t>(self->options_.connect_timeout_ns / kNsPerMs);
  auto connection = way->manager->Connect(options, *self);
  if (!connection.ok()) co_return self->Fail(connection.error());
  self->connection_ = std::move(connection).value();
}

void HostLink::Established(rdma::Connection& /*connection*/, std::span<const uint8_t> private_data) {
  established_ = true;
  OnReactor([commands_max = nvme::rdma::ParseReply(private_data)](HostLink& link) {
    link.MakeQueue(commands_max);
  });
}

// Its queue pair is broken, and Ended is its last word.
void HostLink::Ended(rdma::Connection& /*connection*/, const rdma::ConnectionEnd& end) {
  if (!established_) return Fail(WhyEnded(end));
  Break(end.error);
}

void HostLink::Break(const Error& reason) {
  if (!established_) return Fail(reason);
  OnReactor([reason](HostLink& link) {
    if (link.queue_ != nullptr) link.queue_->Abort({reason.code, link.options_.name + ": " + reason.message});
  });
}

// ---- Control reactor: the end of a link that was never established

void HostLink::Fail(const Error& reason) {
  if (over_) return;
  OnReactor([reason](HostLink& link) {
    if (link.owner_ != nullptr) std::exchange(link.owner_, nullptr)->LinkFailed(reason);
  });
  Over();
}

void HostLink::GiveUp() {
  given_up_ = true;
  // What was established goes on where its reactor hears of that.
  if (!established_ && connection_ != nullptr) Over();
}

void HostLink::Over() {
  over_ = true;
  if (finding_) return;
  connection_.reset();
  ports_.Over(*this);
}

// ---- The reactor

void HostLink::Start() {
  OnControl([](HostLink& link) { Spawn(Connect(link.shared_from_this())); });
}

void HostLink::MakeQueue(const Result<uint32_t>& commands_max) {
  const rdma::SendLimits& limits = connection_->queue_pair()->limits();
  Status status;
  if (!commands_max.ok()) {
    status = commands_max.error();
  } else {
    status = port_->adapter().CheckRoom(options_.entries, limits);
  }
  if (status.ok() && owner_ != nullptr) {
    // The controller may have memory for fewer commands than the queue has entries.
    const uint32_t entries = std::min(options_.entries, *commands_max + 1);
    queue_ = std::make_unique<nvme::rdma_host::HostQueue>(
        port_->adapter(), *connection_->queue_pair(),
        nvme::rdma_host::HostQueueOptions{.name = options_.name,
                                          .target = nvme::fabrics::TextOfAddress(options_.transport.address),
                                          .entries = entries,
                                          .in_capsule_bytes = 0,
                                          .on_broken = [this](const Error& reason) { Broken(reason); }},
        owner_->queue_owner());
    return owner_->LinkConnected(*queue_);
  }
  keeps_itself_ = shared_from_this();
  if (owner_ != nullptr) std::exchange(owner_, nullptr)->LinkFailed(status.error());
  DestroyQueuePair(/*is_flushed=*/true);
}

void HostLink::End() {
  owner_ = nullptr;
  if (queue_ == nullptr) OnControl([](HostLink& link) { link.GiveUp(); });
}

void HostLink::Broken(const Error& reason) {
  if (queue_->owes()) owner_->LinkBreaks(reason);
  keeps_itself_ = shared_from_this();
  polled_before_ = port_->Now();
  flush_until_ns_ = reactor_.now_ns() + kFlushNs;
  reactor_.AddTimer(flush_, reactor_.now_ns() + kLookNs);
  // What commands that were not posted had may serve others.
  port_->Wake();
}

void HostLink::FlushTimer::Fire(Timer& timer) {
  static_cast<FlushTimer&>(timer).link.LookWhetherFlushed();
}

void HostLink::LookWhetherFlushed() {
  // What the queue pair has received and nobody has polled would be lost with it, and the memory for answers.
  const bool is_flushed = queue_->flushed() && port_->IsDrainedSince(polled_before_);
  if (!is_flushed && reactor_.now_ns() < flush_until_ns_) {
    port_->Wake();
    return reactor_.AddTimer(flush_, reactor_.now_ns() + kLookNs);
  }
  DestroyQueuePair(queue_->flushed());
}

// A window is destroyed ahead of the queue pair that it is bound to, as soft-RoCE waits in vain for it otherwise; but behind work that refers to it, which
// an adapter that has not let go of it may still have.
void HostLink::DestroyQueuePair(bool is_flushed) {
  std::vector<rdma::MemoryWindow*> bound;
  if (queue_ != nullptr) bound = queue_->bound();
  OnControl([is_flushed, bound = std::move(bound)](HostLink& link) {
    if (!is_flushed) link.connection_->DestroyQueuePair();
    std::vector<rdma::MemoryWindow*> fresh = link.port_->Replace(bound);
    link.connection_->DestroyQueuePair();
    link.OnReactor([fresh = std::move(fresh)](HostLink& self) {
      if (self.queue_ != nullptr) self.queue_->Destroyed(fresh);
      self.queue_.reset();
      self.port_->Wake();
      self.OnControl([](HostLink& last) { last.Over(); });
      self.keeps_itself_.reset();
    });
  });
}

}  // namespace cleat::modules
