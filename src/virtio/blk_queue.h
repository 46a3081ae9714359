// SPDX-License-Identifier: Apache-2.0
// A request queue of a virtio-blk device (virtio 1.2, 5.2.6): chains become block requests, their outcomes
// status bytes. The rules:
//   - The header is the first 16 readable bytes, the status the last writable one, the data what is between,
//     however the driver cut it into descriptors (2.7.4). Readable data of a read, writable data of a write:
//     ignored.
//   - A chain without a writable byte has no place for an answer and breaks the queue. A header that is too
//     short, or data that makes no sense, is answered with IOERR; a type that is not known with UNSUPP.
//   - The used length reaches to the status byte, that is all writable bytes, also when a read has failed.
//   - What a predecessor had submitted to another disk is answered with IOERR: it is run on none.
//   - A discard or write zeroes of several ranges is one block request after the other, answered once, when
//     all are done or the first has failed: one request in flight for one chain, whatever it asks for.
#pragma once

#include <cstdint>
#include <string>

#include "block/pipeline.h"
#include "virtio/blk_slots.h"
#include "virtio/disk_channel_ref.h"
#include "virtio/ring_queue.h"

namespace cleat::virtio {

// Ranges in a discard or write zeroes request.
inline constexpr uint32_t kBlkRangesMax = 32;
inline constexpr uint32_t kBlkSectorBytes =
    512;  // the unit of addresses, whatever the disk's block size (5.2.4)

class BlkQueue final : public RingQueue {
 public:
  // `disk`, the reactor's and with a channel, and `serial` outlive the queue.
  BlkQueue(Reactor& reactor, const DiskChannelRef& disk, const std::string& serial)
      : RingQueue(reactor),
        channel_(*disk.channel),
        counters_(disk.counters),
        tag_(disk.disk.tag()),
        serial_(serial) {
    accounting().UseCounters(disk.reactor_counters);
    UsePrefetch(channel_.wants_prefetch());
    channel_.SetFrontEnd(&FrontEnd());
  }

  void VisitInFlight(observe::InFlightVisitor& visitor) override;

 private:
  // The one front end of all of a channel's queues.
  static const block::FrontEnd& FrontEnd();
  struct Header {  // struct virtio_blk_outhdr
    uint32_t type;
    uint32_t io_priority;
    uint64_t sector;
  };

  void HandleChain(const Chain& chain, Ticket ticket) override;
  void HandleReplayed(const Chain& chain, Ticket ticket, uint32_t tag) override;
  BlkSlot& TakeSlot(const Chain& chain, Ticket ticket);
  void Prefetch(const Chain& chain) const override;
  void Trim() override { slots_.Trim(); }
  void BypassLimits(bool on) override {
    if (on) {
      channel_.BeginBypass();
    } else {
      channel_.EndBypass();
    }
  }

  uint64_t hold_until_ns() const override { return channel_.throttle_debt_until_ns(); }

  void Transfer(BlkSlot& slot, const Chain& chain, block::Op op, uint64_t sector);
  void Flush(BlkSlot& slot);
  void GetId(BlkSlot& slot, const Chain& chain);
  void StartRanges(BlkSlot& slot, const Chain& chain, block::Op op);
  void ContinueRanges(BlkSlot& slot);
  bool NextRange(BlkSlot& slot, uint8_t& refusal);

  bool write_through() const;
  void Submit(BlkSlot& slot, block::Frame::DoneFn done) {
    slot.Push(done, this);
    channel_.Submit(slot);
  }
  void Fail(BlkSlot& slot);
  void Answer(BlkSlot& slot, uint8_t status);

  static void TransferDone(block::Request& request, const block::Frame& frame);
  static void RangeDone(block::Request& request, const block::Frame& frame);

  block::PipelineChannel& channel_;
  observe::DiskCounters* const counters_;
  const uint32_t tag_;  // the disk's, as in-flight logs have it (DiskIdentity)
  const std::string& serial_;
  BlkSlots slots_;
};

}  // namespace cleat::virtio
