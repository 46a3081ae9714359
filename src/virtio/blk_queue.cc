// SPDX-License-Identifier: Apache-2.0
#include "virtio/blk_queue.h"

#include "base/no_stack_buffer.h"

#include <linux/virtio_blk.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace cleat::virtio {
namespace {

static_assert(sizeof(virtio_blk_outhdr) == 16);
static_assert(sizeof(virtio_blk_discard_write_zeroes) == 16);
constexpr uint32_t kKnownRangeFlags = VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;

uint8_t BlkStatus(block::IoStatus status) {
  switch (status) {
    case block::IoStatus::kOk:
      return VIRTIO_BLK_S_OK;
    case block::IoStatus::kUnsupported:
      return VIRTIO_BLK_S_UNSUPP;
    default:
      return VIRTIO_BLK_S_IOERR;
  }
}

// Byte offset of a sector; one that is no disk's when it does not fit.
uint64_t OffsetOf(uint64_t sector) {
  constexpr uint64_t kSectorMax = std::numeric_limits<uint64_t>::max() / kBlkSectorBytes;
  return std::min(sector, kSectorMax) * kBlkSectorBytes;
}

}  // namespace

// Of a chain with a writable byte.
inline BlkSlot& BlkQueue::TakeSlot(const Chain& chain, Ticket ticket) {
  BlkSlot& slot = slots_.Take();
  accounting().Began(slot);
  slot.column = observe::OpColumn::kOther;
  slot.counted_bytes = 0;
  slot.epoch = ticket.epoch;
  slot.head = ticket.head;
  const block::Segment& last = chain.writable().back();
  slot.status_byte = {last.region, last.offset_bytes + last.length_bytes - 1, 1};
  slot.written_bytes =
      static_cast<uint32_t>(std::min<uint64_t>(chain.writable_bytes(), std::numeric_limits<uint32_t>::max()));
  slot.data = {};
  return slot;
}

void BlkQueue::HandleReplayed(const Chain& chain, Ticket ticket, uint32_t tag) {
  const bool of_another = tag != 0 && tag_ != 0 && tag != tag_;
  if (!of_another || chain.writable_bytes() == 0) return HandleChain(chain, ticket);
  Answer(TakeSlot(chain, ticket), VIRTIO_BLK_S_IOERR);
}

CLEAT_NO_STACK_BUFFER void BlkQueue::HandleChain(const Chain& chain, Ticket ticket) {
  if (chain.writable_bytes() == 0) [[unlikely]] {
    Abandon(ticket, "virtio-blk request without a status byte: nothing in the chain of descriptor " +
                        std::to_string(chain.head()) + " is device-writable");
    return;
  }
  BlkSlot& slot = TakeSlot(chain, ticket);
  Header header;
  if (chain.readable_bytes() < sizeof(header)) [[unlikely]]
    return Answer(slot, VIRTIO_BLK_S_IOERR);
  const block::Segment& first = chain.readable().front();
  if (first.length_bytes >= sizeof(header)) [[likely]] {
    CopyShared(&header, first.data(), sizeof(header));
  } else {
    Gather(chain.readable(), 0, &header, sizeof(header));
  }

  switch (header.type) {
    case VIRTIO_BLK_T_IN:
      return Transfer(slot, chain, block::Op::kRead, header.sector);
    case VIRTIO_BLK_T_OUT:
      return Transfer(slot, chain, block::Op::kWrite, header.sector);
    case VIRTIO_BLK_T_FLUSH:
      return Flush(slot);
    case VIRTIO_BLK_T_DISCARD:
      return StartRanges(slot, chain, block::Op::kDiscard);
    case VIRTIO_BLK_T_WRITE_ZEROES:
      return StartRanges(slot, chain, block::Op::kWriteZeroes);
    case VIRTIO_BLK_T_GET_ID:
      return GetId(slot, chain);
    default:
      return Answer(slot, VIRTIO_BLK_S_UNSUPP);
  }
}

void BlkQueue::Prefetch(const Chain& chain) const {
  Header header;
  if (chain.readable().empty() || chain.readable().front().length_bytes < sizeof(header)) return;
  CopyShared(&header, chain.readable().front().data(), sizeof(header));
  if (header.type > VIRTIO_BLK_T_OUT) return;
  channel_.Prefetch(header.type == VIRTIO_BLK_T_IN ? block::Op::kRead : block::Op::kWrite,
                    OffsetOf(header.sector));
}

// ---- Read, write, flush

void BlkQueue::Transfer(BlkSlot& slot, const Chain& chain, block::Op op, uint64_t sector) {
  slot.op = op;
  slot.column = observe::ColumnOf(op);
  slot.offset_bytes = OffsetOf(sector);
  if (op == block::Op::kRead) {
    slot.length_bytes = chain.writable_bytes() - 1;
    slot.SetData(chain.writable(), 0, slot.length_bytes);
    slot.fua = false;
  } else {
    slot.length_bytes = chain.readable_bytes() - sizeof(Header);
    slot.SetData(chain.readable(), sizeof(Header), slot.length_bytes);
    slot.fua = write_through();
  }
  slot.counted_bytes = slot.length_bytes;
  slot.may_unmap = false;
  slot.segments = slot.data;
  Submit(slot, &TransferDone);
}

void BlkQueue::Flush(BlkSlot& slot) {
  slot.op = block::Op::kFlush;
  slot.column = observe::OpColumn::kFlush;
  slot.offset_bytes = slot.length_bytes = 0;
  slot.segments = {};
  slot.fua = slot.may_unmap = false;
  Submit(slot, &TransferDone);
}

// A driver that did not take VIRTIO_BLK_F_FLUSH can't flush: what it was told is written has to be durable
// (5.2.6.2).
bool BlkQueue::write_through() const {
  return (features() >> VIRTIO_BLK_F_FLUSH & 1) == 0;
}

void BlkQueue::TransferDone(block::Request& request, const block::Frame& frame) {
  auto& self = *static_cast<BlkQueue*>(frame.layer);
  auto& slot = static_cast<BlkSlot&>(request);
  // Also after a failure, for whatever part was written.
  if (slot.op == block::Op::kRead) self.MarkWritten({slot.epoch, slot.head}, slot.data);
  if (slot.status != block::IoStatus::kOk) [[unlikely]]
    return self.Fail(slot);
  self.Answer(slot, VIRTIO_BLK_S_OK);
}

// ---- Get id (5.2.6, VIRTIO_BLK_T_GET_ID): up to 20 bytes, padded with zeroes, not terminated

void BlkQueue::GetId(BlkSlot& slot, const Chain& chain) {
  slot.SetData(chain.writable(), 0, chain.writable_bytes() - 1);
  std::array<char, VIRTIO_BLK_ID_BYTES> id{};
  std::copy_n(serial_.begin(), std::min<size_t>(serial_.size(), id.size()), id.begin());
  size_t done = 0;
  for (const block::Segment& segment : slot.data) {
    const size_t piece = std::min<size_t>(segment.length_bytes, id.size() - done);
    std::memcpy(segment.data(), id.data() + done, piece);
    done += piece;
  }
  MarkWritten({slot.epoch, slot.head}, slot.data);
  Answer(slot, done > 0 ? VIRTIO_BLK_S_OK : VIRTIO_BLK_S_IOERR);
}

// ---- Discard, write zeroes

void BlkQueue::StartRanges(BlkSlot& slot, const Chain& chain, block::Op op) {
  const uint64_t bytes = chain.readable_bytes() - sizeof(Header);
  const uint64_t count = bytes / sizeof(virtio_blk_discard_write_zeroes);
  if (bytes % sizeof(virtio_blk_discard_write_zeroes) != 0 || count == 0 || count > kBlkRangesMax) {
    return Answer(slot, VIRTIO_BLK_S_IOERR);
  }
  slot.SetData(chain.readable(), sizeof(Header), bytes);
  slot.op = op;
  slot.column = observe::ColumnOf(op);
  slot.segments = {};
  slot.fua = op == block::Op::kWriteZeroes && write_through();
  slot.range_count = static_cast<uint16_t>(count);
  slot.range_next = 0;
  ContinueRanges(slot);
}

// Reads the next range, once, into the request. False: `refusal` is the answer.
bool BlkQueue::NextRange(BlkSlot& slot, uint8_t& refusal) {
  virtio_blk_discard_write_zeroes range;
  Gather(slot.data, slot.range_next * sizeof(range), &range, sizeof(range));
  ++slot.range_next;
  const bool unmap = (range.flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP) != 0;
  if ((range.flags & ~kKnownRangeFlags) != 0 || (unmap && slot.op == block::Op::kDiscard)) {
    refusal = VIRTIO_BLK_S_UNSUPP;
    return false;
  }
  slot.offset_bytes = OffsetOf(range.sector);
  slot.length_bytes = uint64_t{range.num_sectors} * kBlkSectorBytes;
  slot.counted_bytes += slot.length_bytes;
  slot.may_unmap = unmap;
  return true;
}

// A loop and not a recursion: storage that answers at once must not build a stack of ranges.
void BlkQueue::ContinueRanges(BlkSlot& slot) {
  while (slot.range_next < slot.range_count) {
    uint8_t refusal = 0;
    if (!NextRange(slot, refusal)) return Answer(slot, refusal);
    slot.range_state = BlkSlot::RangeState::kSubmitting;
    Submit(slot, &RangeDone);
    if (slot.range_state == BlkSlot::RangeState::kSubmitting) {
      slot.range_state = BlkSlot::RangeState::kSubmitted;  // RangeDone goes on
      return;
    }
    if (slot.status != block::IoStatus::kOk) return Fail(slot);
  }
  Answer(slot, VIRTIO_BLK_S_OK);
}

void BlkQueue::RangeDone(block::Request& request, const block::Frame& frame) {
  auto& self = *static_cast<BlkQueue*>(frame.layer);
  auto& slot = static_cast<BlkSlot&>(request);
  if (slot.range_state == BlkSlot::RangeState::kSubmitting) {
    slot.range_state = BlkSlot::RangeState::kCompleted;  // ContinueRanges, our caller, goes on
  } else if (slot.status != block::IoStatus::kOk) {
    self.Fail(slot);
  } else {
    self.ContinueRanges(slot);
  }
}

const block::FrontEnd& BlkQueue::FrontEnd() {
  // A queue that drains leaves what waits for space to a successor, or fails it; the disk's other queues' requests wait on.
  class Queues final : public block::FrontEnd {
    bool MayWait(const block::Request& request) const override {
      return !static_cast<const BlkQueue*>(request.top().layer)->draining();
    }
  };
  static const Queues queues;
  return queues;
}

// ---- The end of all of them

// The storage has failed it. What it had no space for may be a successor's to try again, unanswered; but a flush is not: storage tells of what it
// has lost only once.
[[gnu::noinline, gnu::cold]] void BlkQueue::Fail(BlkSlot& slot) {
  const bool had_no_space = slot.status == block::IoStatus::kNoSpace && slot.op != block::Op::kFlush;
  if (!had_no_space || !leaves()) return Answer(slot, BlkStatus(slot.status));
  const Ticket ticket{slot.epoch, slot.head};
  slots_.Give(slot);
  Leave(ticket);  // the queue may be gone now
}

CLEAT_NO_STACK_BUFFER void BlkQueue::Answer(BlkSlot& slot, uint8_t status) {
  const Ticket ticket{slot.epoch, slot.head};
  const uint32_t written_bytes = slot.written_bytes;
  *slot.status_byte.data() = status;
  MarkWritten(ticket, {&slot.status_byte, 1});
  const bool failed = status != VIRTIO_BLK_S_OK;
  accounting().Ended(counters_, slot, slot.column, failed ? 0 : slot.counted_bytes, failed);
  slots_.Give(slot);
  Complete(ticket, written_bytes);  // the queue may be gone now
}

void BlkQueue::VisitInFlight(observe::InFlightVisitor& visitor) {
  if (counters_ == nullptr) return;
  slots_.ForEachInUse([&](BlkSlot& slot) { visitor.Visit(*counters_, slot.column, slot); });
}

}  // namespace cleat::virtio
