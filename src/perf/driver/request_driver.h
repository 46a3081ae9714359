// SPDX-License-Identifier: Apache-2.0
// What drivers have in common that depends on the type of a completion: taking completions from the rings, waiting for
// some or for one, and keeping those that a synchronous helper came across for a later Poll. Owner, thread and life: see
// VirtioDriver.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/driver/virtio_driver.h"
#include "perf/vhost_user/deadline.h"

namespace cleat::perf {

template <typename Completion>
class RequestDriver : public VirtioDriver {
 public:
  // What has completed on the queue.
  size_t Poll(uint16_t queue, std::span<Completion> completions) {
    std::deque<Completion>& kept = Kept(queue);
    size_t count = 0;
    while (count < completions.size() && !kept.empty()) {
      completions[count++] = kept.front();
      kept.pop_front();
    }
    while (count < completions.size() && PopOne(queue, &completions[count])) ++count;
    return count;
  }
  // Sleeps until some queue has completions. kUnavailable when the back end is gone and auto_reconnect is
  // off.
  Status Wait(uint64_t timeout_ns) {
    for (const std::deque<Completion>& kept : kept_) {
      if (!kept.empty()) return Ok{};
    }
    Collect();
    return WaitRings(timeout_ns);
  }

  // As Wait, but of the rings from `first_ring` on it learns as a guest does, by calls alone: asked for once, and only
  // a ring that was called is looked at (awake). That the host's front end has a new back end is no news to a guest: a
  // call that the old one owed and the new one does not make is missed here as it is there.
  Status WaitAsGuest(uint16_t first_ring, uint64_t timeout_ns) {
    Collect();
    return WaitCalls(first_ring, timeout_ns);
  }

 protected:
  using VirtioDriver::VirtioDriver;
  ~RequestDriver() = default;

  // What the device has answered in the slot's area.
  virtual Completion Read(uint16_t queue, const Slot& slot, uint32_t written_bytes) = 0;
  // Takes from the rings what nobody polls, for nobody sleeps while something can be taken.
  virtual void Collect() {}

  bool PopOne(uint16_t queue, Completion* completion) {
    uint32_t written_bytes = 0;
    const Slot* slot = TakeUsed(queue, &written_bytes);
    if (slot == nullptr) return false;
    *completion = Read(queue, *slot, written_bytes);
    return true;
  }

  // Everything that has completed on these queues, for Poll.
  void KeepCompleted(uint16_t first_queue) {
    for (uint16_t queue = first_queue; queue < num_queues(); ++queue) {
      for (Completion completion; PopOne(queue, &completion);) Kept(queue).push_back(completion);
    }
  }

  // Until the request with `token` has completed. Others' completions that come meanwhile are kept for Poll.
  Result<Completion> WaitFor(uint16_t queue, uint64_t token) {
    const Deadline deadline(io_timeout_ns_);
    for (;;) {
      for (Completion completion; PopOne(queue, &completion);) {
        if (completion.token == token) return completion;
        Kept(queue).push_back(completion);
      }
      CLEAT_TRY(Health());
      if (deadline.passed()) {
        return Error(ErrorCode::kDeadlineExceeded,
                     "queue " + std::to_string(queue) + ": a request did not complete in time");
      }
      Collect();
      CLEAT_TRY(WaitRings(io_timeout_ns_));
    }
  }

 private:
  std::deque<Completion>& Kept(uint16_t queue) {
    if (kept_.size() <= queue) kept_.resize(num_queues());
    return kept_[queue];
  }

  std::vector<std::deque<Completion>> kept_;  // by queue: taken by a synchronous helper for somebody else
};

}  // namespace cleat::perf
