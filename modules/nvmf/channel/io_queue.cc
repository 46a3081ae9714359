// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/channel/io_queue.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace cleat::modules {
namespace {

nvme::host::QueueLoginConfig LoginConfigOf(const IoQueueTarget& target, const IoQueueId& id,
                                           nvme::host::HostChap chap) {
  nvme::host::QueueLoginConfig config;
  config.who = IoQueue::NameOf(target, id);
  config.host = {.nqn = target.host_nqn, .id = id.host_id};
  config.subsystem_nqn = target.subsystem_nqn;
  config.chap = std::move(chap);
  config.controller_id = id.controller_id;
  config.queue_id = id.queue_id;
  config.entries = id.entries;
  config.kato_ms = id.kato_ms;
  config.timeout_ns = IoQueue::kLoginTimeoutNs;
  return config;
}

TransportQueueOptions QueueOptionsOf(const IoQueueTarget& target, const IoQueueId& id,
                                     std::function<void(const Error&)> on_breaks) {
  TransportQueueOptions options;
  options.transport = target.paths.at(id.path).transport;
  options.transport.tls.queue = nvmf::TlsNames::Queue::kIo;
  options.name = IoQueue::NameOf(target, id);
  options.queue_id = id.queue_id;
  options.controller_id = id.controller_id;
  options.entries = id.entries;
  options.connect_timeout_ns = IoQueue::kConnectTimeoutNs;
  options.on_breaks = std::move(on_breaks);
  return options;
}

}  // namespace

std::string IoQueue::NameOf(const IoQueueTarget& target, const IoQueueId& id) {
  return target.paths.at(id.path).who + ", queue " + std::to_string(id.queue_id);
}

IoQueue::IoQueue(const IoQueueTarget& target, const IoQueueId& id, Reactor& reactor)
    : reactor_(reactor),
      in_capsule_bytes_(id.in_capsule_bytes),
      arithmetic_(
          target.arithmetic, {target.subsystem_nqn, target.paths.at(id.path).who}, reactor,
          [this] { Computed(); }, id.place),
      login_(LoginConfigOf(target, id, arithmetic_.ChapWith(target.chap))),
      queue_(MakeQueue(QueueOptionsOf(target, id, [this](const Error& reason) { Breaks(reason); }), reactor,
                       *this)) {}

void IoQueue::CheckOverdue() {
  if (const auto overdue = login_.Overdue(reactor_.now_ns())) queue_->Abort(*overdue);
}

void IoQueue::Computed() {
  login_.Computed(*queue_, reactor_.now_ns());
}

Error IoQueue::EndLogin(const Error& reason) {
  if (reason.code == ErrorCode::kCancelled) {
    arithmetic_.Cancel();
    return reason;
  }
  Error why = login_.WhyEnded(reason);
  arithmetic_.Lose(why);
  return why;
}

uint64_t IoQueue::PauseNs() const {
  return std::max(kConnectPauseNs, arithmetic_.PauseNs());
}

void IoQueue::Connected() {
  login_.Begin(*queue_, reactor_.now_ns());
}

bool IoQueue::TakeLogin(uint64_t cookie, const nvme::fabrics::CompletionEntry& entry, uint64_t data_bytes) {
  const auto ready = login_.Take(*queue_, cookie, entry, data_bytes, reactor_.now_ns());
  if (!ready) queue_->Abort(ready.error());
  if (!ready || !*ready) return false;
  arithmetic_.Succeed();
  queue_->set_in_capsule_bytes(in_capsule_bytes_);
  return true;
}

}  // namespace cleat::modules
