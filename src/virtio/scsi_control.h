// SPDX-License-Identifier: Apache-2.0
// The control queue of a virtio-scsi device (virtio 1.2, 5.6.6.2): task management (SAM-5 7) and asynchronous
// notifications, of which there are none here.
//
// An abort or a reset is answered complete when every command that it affects, on all queues of all reactors, has
// ended and its answer lies in the used ring: the storage can no longer write for it. Commands are not torn out of
// the storage; they end as they end, and those of several steps take no further one. A function that waits holds up
// no other, and the draining of this queue for no longer than the storage takes.
//
// A function that a predecessor accepted and did not answer is carried out (again): each leaves the same behind when it
// is done twice. What it is to affect may be waiting to be run again in another queue, and ends first. When the queue is
// stopped before the others can be known to have started, it fails: the next to serve them will carry out what they have.
//
// On its reactor; task management visits the others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "reactor/sync.h"
#include "reactor/task.h"
#include "virtio/ring_queue.h"
#include "virtio/scsi_format.h"
#include "virtio/scsi_port.h"

namespace cleat::virtio {

class ScsiControlQueue final : public RingQueue {
 public:
  // Functions that wait at a time; more are rejected.
  static constexpr uint32_t kFunctionsMax = 32;
  // A front end starts a device's rings one after the other, this one first. A function that came in while nobody
  // served the device would be answered before the other rings are looked at, and the commands that it is about carried
  // out afterwards. So none begins sooner than this after the ring's start, by which time the others have started:
  // new ones stay in the ring, for whoever serves it then.
  static constexpr uint64_t kSettleNs = 100 * kNsPerMs;

  // The ports of all reactors; they outlive the queue.
  ScsiControlQueue(Reactor& reactor, std::span<const std::unique_ptr<ScsiPort>> ports)
      : RingQueue(reactor), home_(reactor), ports_(ports), hurry_(reactor) {}

 private:
  void HandleChain(const Chain& chain, Ticket ticket) override;
  uint64_t hold_until_ns() const override { return started_ns() + kSettleNs; }
  void BypassLimits(bool on) override {
    if (on) hurry_.Pulse();
  }
  void AnswerNotification(const Chain& chain, Ticket ticket, const ScsiNotificationRequest& request);
  void StartFunction(Ticket ticket, block::Segment response, const ScsiManagementRequest& request);

  Task<bool> Settle();
  Task<void> Run(Ticket ticket, block::Segment response, ScsiManagementRequest request);
  Task<uint8_t> Manage(uint32_t target, uint32_t function, uint64_t tag);
  Task<uint8_t> Query(uint32_t target, std::optional<uint64_t> tag);
  void Answer(Ticket ticket, const block::Segment& response, uint8_t result);

  Reactor& home_;
  const std::span<const std::unique_ptr<ScsiPort>> ports_;
  Event hurry_;  // for who settles: the queue is being stopped
  uint32_t functions_ = 0;
};

}  // namespace cleat::virtio
