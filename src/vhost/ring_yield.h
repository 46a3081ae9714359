// SPDX-License-Identifier: Apache-2.0
// How rings are taken away in the middle of a conversation with the front end: asked for from outside, and done by whoever
// converses between two calls of the session, which takes one at a time. Owned by the conversation; on control.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/result.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"
#include "vhost/session.h"

namespace cleat::vhost {

class RingYield {
 public:
  // `wake` has the conversation look whether it is wanted(); `busy` says what it is at, for people.
  RingYield(Reactor& control, std::function<void()> wake, std::function<std::string()> busy)
      : control_(control), wake_(std::move(wake)), busy_(std::move(busy)) {}
  RingYield(const RingYield&) = delete;
  RingYield& operator=(const RingYield&) = delete;

  // OK: the rings are yielded (Session::YieldRings), and the conversation ends. kDeadlineExceeded: not all had drained by
  // then, or no message came to its end before: it goes on. kCancelled: it has ended. One at a time.
  Task<Status> Ask(uint64_t deadline_ns);

  // ---- For the conversation
  bool wanted() const { return request_ != nullptr; }
  // Wanted, and no other call of the session is under way. True: yielded.
  Task<bool> Take(Session& session);
  void End();  // of the conversation: who asks hears of it. Again: nothing

 private:
  struct Request {
    Request(Reactor& control, uint64_t by_ns) : deadline_ns(by_ns), over(control) {}
    const uint64_t deadline_ns;
    bool begun = false;
    Event over;
    Status result;
  };
  void Finish(Status result);

  Reactor& control_;
  const std::function<void()> wake_;
  const std::function<std::string()> busy_;
  Request* request_ = nullptr;
};

}  // namespace cleat::vhost
