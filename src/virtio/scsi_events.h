// SPDX-License-Identifier: Apache-2.0
// The event queue of a virtio-scsi device (virtio 1.2, 5.6.6.3): what the device has to tell the guest, in the order
// in which it happened, and the queue whose buffers take it. The guest's buffers are left in its ring until there is
// something to say, so that no request is in flight meanwhile. A buffer that a predecessor took is given back at once,
// with EVENTS_MISSED: what was to be in it is lost, and whatever else had not been told when the predecessor died.
//
// Both on the event queue's reactor. ScsiEvents outlives the queue and waits for the next one.
#pragma once

#include <cstdint>
#include <deque>

#include "virtio/ring_queue.h"
#include "virtio/scsi_format.h"

namespace cleat::virtio {

class ScsiEventQueue;

class ScsiEvents {
 public:
  // Events that wait. What comes beyond is lost, and the guest is told that something was (EVENTS_MISSED), so that
  // it looks for itself.
  static constexpr size_t kPendingMax = 32;

  ~ScsiEvents();

  void Post(uint32_t event, uint32_t target, uint32_t reason);

  // ---- For the queue
  void Attach(ScsiEventQueue* queue);
  uint32_t pending() const {
    return events_.empty() ? (missed_ ? 1 : 0) : static_cast<uint32_t>(events_.size());
  }
  // The next event for a guest that negotiated `features`. NO_EVENT when what waited is not for it.
  ScsiEvent Take(uint64_t features);
  // The next one it is told will say that something was lost.
  void Missed() { missed_ = true; }

 private:
  std::deque<ScsiEvent> events_;
  bool missed_ = false;
  ScsiEventQueue* queue_ = nullptr;
};

class ScsiEventQueue final : public RingQueue {
 public:
  ScsiEventQueue(Reactor& reactor, ScsiEvents& events) : RingQueue(reactor), events_(events) {
    events_.Attach(this);
    Wanted();
  }
  ~ScsiEventQueue() override { events_.Attach(nullptr); }

  void Wanted() { AllowFetches(events_.pending()); }

 private:
  void HandleChain(const Chain& chain, Ticket ticket) override;
  void HandleReplayed(const Chain& chain, Ticket ticket, uint32_t tag) override;

  ScsiEvents& events_;
};

}  // namespace cleat::virtio
