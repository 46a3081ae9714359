// SPDX-License-Identifier: Apache-2.0
#include "nvmf/rdma/port_poller.h"

#include <sys/epoll.h>

#include <utility>

#include "base/check.h"

namespace cleat::nvmf {

RdmaPortPoller::~RdmaPortPoller() {
  CLEAT_CHECK(!added());
}

void RdmaPortPoller::SetCompletions(rdma::CompletionQueue& completions, uint32_t entries) {
  completions_ = &completions;
  completions_max_ = entries;
}

Status RdmaPortPoller::Start() {
  CLEAT_TRY(watch_.Start(reactor_, completions_->descriptor(), EPOLLIN));
  reactor_.AddPoller(*this);
  reactor_.Activate(*this);
  return {};
}

void RdmaPortPoller::Stop() {
  if (!added()) return;
  watch_.Stop();
  reactor_.RemovePoller(*this);
}

void RdmaPortPoller::Watch::OnEvent(FdWatch& watch, uint32_t /*events*/) {
  RdmaPortPoller& poller = static_cast<Watch&>(watch).poller;
  poller.completions_->TakeEvents();
  poller.reactor_.Activate(poller);
}

bool RdmaPortPoller::Count(uint32_t polled) {
  polled_ += polled;
  if (polled == 0) ++empty_polls_;
  return polled > 0;
}

void RdmaPortPoller::Fail() {
  if (on_failed_ != nullptr) std::exchange(on_failed_, nullptr)();
}

// What is woken within its own last look has something to do: the reactor does not hear of it, as the poller is not armed yet.
bool RdmaPortPoller::Arm() {
  woken_ = false;
  if (completions_->Arm().ok()) return !Poll() && !woken_;
  // An adapter that can't be armed is gone: no completion is missed.
  Fail();
  return true;
}

}  // namespace cleat::nvmf
