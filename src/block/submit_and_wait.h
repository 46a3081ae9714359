// SPDX-License-Identifier: Apache-2.0
// How a coroutine submits a request and waits for it: for the rare command that takes several steps. The I/O path
// proper has frames and plain functions.
//
//     const IoStatus status = co_await SubmitAndWait(channel, request);
//
// Goes on where the request was completed: at once when the storage answered within Submit, without a deeper stack
// either way. On the channel's reactor.
#pragma once

#include <coroutine>

#include "block/request.h"
#include "reactor/await_suspend.h"

namespace cleat::block {

template <typename SubmitTo>  // a Channel or a PipelineChannel
class SubmitAndWait {
 public:
  // Both outlive the wait. `request` is filled in, with no frame of the caller's for this.
  SubmitAndWait(SubmitTo& channel, Request& request) : channel_(channel), request_(request) {}

  bool await_ready() const { return false; }
  CLEAT_AWAIT_SUSPEND bool await_suspend(std::coroutine_handle<> awaiting) {
    request_.Push(&Done, this);
    channel_.Submit(request_);
    if (done_) return false;
    awaiting_ = awaiting;
    return true;
  }
  IoStatus await_resume() const { return request_.status; }

 private:
  static void Done(Request& /*request*/, const Frame& frame) {
    auto& self = *static_cast<SubmitAndWait*>(frame.layer);
    self.done_ = true;
    if (self.awaiting_) self.awaiting_.resume();  // self may be gone now
  }

  SubmitTo& channel_;
  Request& request_;
  std::coroutine_handle<> awaiting_;
  bool done_ = false;
};

}  // namespace cleat::block
