// SPDX-License-Identifier: Apache-2.0
// A request queue of a virtio-scsi device (virtio 1.2, 5.6.6.1): chains become SCSI commands, their outcomes
// responses. The rules:
//   - The header is the first 51 readable bytes, data-out what follows; the response is the first 108 writable bytes,
//     data-in what follows, however the driver cut it into descriptors.
//   - A chain without room for a response breaks the queue. A header that is too short, or data in both directions
//     (which was not negotiated), is answered with FAILURE.
//   - Data that is too short for the command, or goes the wrong way, is answered with OVERRUN, and nothing is carried
//     out. Data beyond the command's is residual.
//   - What a predecessor left in flight is carried out (again), but for COMPARE AND WRITE: see
//     scsi::UnitChannel::ExecuteReplayed. What it had submitted to another disk than the one that is at that target now is answered with
//     BAD_TARGET, as everything is that comes for a target which is gone: the driver fails it and does not try again. That answer waits
//     until what the predecessor may still read has landed (EarlierIo).
//   - Task attributes are mapped to SIMPLE, as the specification allows; priority and CRN say nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "scsi/command.h"
#include "virtio/ring_queue.h"
#include "virtio/scsi_format.h"
#include "virtio/scsi_port.h"
#include "virtio/slot_pool.h"

namespace cleat::virtio {

struct ScsiSlot : scsi::Command, PooledSlot {
  ScsiSlot();

  class ScsiQueue* queue = nullptr;
  MemoryEpoch* epoch = nullptr;  // of the chain, with `head` what the ring wants back
  uint16_t head = 0;
  observe::DiskCounters* counters = nullptr;  // of the disk that it is for
  std::span<const block::Segment> response;
};

class ScsiQueue final : public RingQueue {
 public:
  // `port` is the reactor's; it outlives the queue.
  ScsiQueue(Reactor& reactor, ScsiPort& port) : RingQueue(reactor), port_(port) { port_.Register(*this); }
  ~ScsiQueue() override { port_.Unregister(*this); }

  // ---- For task management: has everything that was offered at some time been fetched?
  uint64_t fetched() const { return fetched_; }
  // Whether a command that was for this target waits for what a predecessor may still read.
  bool Holds(uint32_t target) const;
  using RingQueue::draining;
  using RingQueue::left_behind;
  using RingQueue::offered;
  // ---- For the port
  using RingQueue::accounting;

  void VisitInFlight(observe::InFlightVisitor& visitor) override;

 private:
  // A function for each, so that one that nobody ran before costs nothing more.
  template <bool kReplayed>
  void Handle(const Chain& chain, Ticket ticket, uint32_t tag);
  void HandleChain(const Chain& chain, Ticket ticket) override;
  void HandleReplayed(const Chain& chain, Ticket ticket, uint32_t tag) override;
  void Trim() override { slots_.Trim(); }
  void BypassLimits(bool on) override { port_.BypassLimits(on); }

  void KeepSegments(ScsiSlot& slot, const Chain& chain);
  template <bool kReplayed>
  void Execute(ScsiSlot& slot, const ScsiAddress& address, uint32_t tag);
  void AnswerGone(ScsiSlot& slot, uint32_t target);
  Task<void> AnswerHeld();
  static void CommandDone(scsi::Command& command);
  void Answer(ScsiSlot& slot, uint8_t response);
  void LeaveSlot(ScsiSlot& slot);

  // Of a predecessor, for a disk that is not there any more.
  struct Held {
    ScsiSlot* slot;
    uint32_t target;
  };

  ScsiPort& port_;
  uint64_t fetched_ = 0;
  std::vector<Held> held_;  // until the predecessor's I/O has ended: at most the ring's size
  SlotPool<ScsiSlot> slots_;
};

}  // namespace cleat::virtio
