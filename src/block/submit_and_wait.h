// SPDX-License-Identifier: Apache-2.0
// For coroutines that do I/O: control flows and commands of several steps, never the hot path.
//
//     const IoStatus status = co_await SubmitAndWait(channel, request);
//
// On the channel's reactor, which is also where the coroutine goes on, at its next turn unless the request
// was completed at once. `request` is filled in, without frames, and stays until then.
#pragma once

#include <coroutine>

#include "block/request.h"
#include "reactor/reactor.h"

namespace cleat::block {

template <typename SubmitTo>  // a Channel or a PipelineChannel
class SubmitAndWait {
 public:
  SubmitAndWait(SubmitTo& channel, Request& request) : channel_(channel), request_(request) {}

  bool await_ready() const { return false; }
  bool await_suspend(std::coroutine_handle<> awaiting) {
    ready_.handle = awaiting;
    reactor_ = Reactor::Current();
    request_.Push(&Done, this);
    submitting_ = true;
    channel_.Submit(request_);
    submitting_ = false;
    return !done_;
  }
  IoStatus await_resume() const { return request_.status; }

 private:
  static void Done(Request& /*request*/, const Frame& frame) {
    auto& self = *static_cast<SubmitAndWait*>(frame.layer);
    self.done_ = true;
    if (!self.submitting_) self.reactor_->Resume(self.ready_);
  }

  SubmitTo& channel_;
  Request& request_;
  Reactor* reactor_ = nullptr;
  Ready ready_;
  bool submitting_ = false;
  bool done_ = false;
};

}  // namespace cleat::block
