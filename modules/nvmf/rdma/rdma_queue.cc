// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/rdma/rdma_queue.h"

#include <utility>

#include "base/check.h"

namespace cleat::modules {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::Reached;

RdmaQueue::RdmaQueue(TransportQueueOptions options, Reactor& reactor, nvme::fabrics::QueuePairOwner& owner)
    : name_(options.name),
      on_breaks_(options.on_breaks),
      owner_(owner),
      link_(std::make_shared<HostLink>(std::move(options), reactor, static_cast<HostLinkOwner&>(*this))) {}

RdmaQueue::~RdmaQueue() {
  CLEAT_CHECK(!started_ || ended());
}

void RdmaQueue::Start() {
  CLEAT_CHECK(!started_);
  started_ = true;
  link_->Start();
}

void RdmaQueue::Submit(const nvme::fabrics::QueuedCommand& command) {
  queue_->Submit(command);
  link_->Wake();
}

void RdmaQueue::Abort(const Error& reason) {
  if (ended()) return;
  if (queue_ != nullptr) return queue_->Abort(reason);
  ended_ = true;
  if (started_) link_->End();
  owner_.Ended(reason);
}

// ---- What the link says

void RdmaQueue::LinkConnected(nvme::rdma_host::HostQueue& queue) {
  queue_ = &queue;
  owner_.Connected();
}

void RdmaQueue::LinkFailed(const Error& reason) {
  ended_ = true;
  owner_.Ended({reason.code, name_ + ": " + reason.message});
}

void RdmaQueue::LinkBreaks(const Error& reason) {
  if (on_breaks_) on_breaks_(reason);
}

// ---- What the queue says

void RdmaQueue::Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) {
  owner_.Completed(cookie, entry, data_bytes);
}

void RdmaQueue::Unanswered(uint64_t cookie, Reached reached) {
  owner_.Unanswered(cookie, reached);
}

// The link's queue stays for as long as its queue pair; nothing more is asked of it.
void RdmaQueue::Ended(const Error& reason) {
  ended_ = true;
  queue_ = nullptr;
  link_->End();
  owner_.Ended(reason);
}

}  // namespace cleat::modules
