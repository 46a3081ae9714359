// SPDX-License-Identifier: Apache-2.0
#include "virtio/scsi_queue.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

namespace cleat::virtio {
namespace {

constexpr uint64_t kResponseBytes = sizeof(ScsiResponse);
constexpr size_t kSenseAt = offsetof(ScsiResponse, sense);

uint8_t ResponseOf(const scsi::Command& command) {
  switch (command.delivery) {
    case scsi::Delivery::kComplete:
      return VIRTIO_SCSI_S_OK;
    case scsi::Delivery::kOverrun:
      return VIRTIO_SCSI_S_OVERRUN;
    case scsi::Delivery::kAborted:
      return command.abort == scsi::Abort::kTask    ? VIRTIO_SCSI_S_ABORTED
             : command.abort == scsi::Abort::kReset ? VIRTIO_SCSI_S_RESET
                                                    : VIRTIO_SCSI_S_BAD_TARGET;
  }
  return VIRTIO_SCSI_S_FAILURE;
}

// As what a command is counted: what it is to the guest, whatever the storage is asked to do for it.
observe::OpColumn ColumnOf(const scsi::Command& command) {
  using scsi::Action;
  if (command.info == nullptr) return observe::OpColumn::kOther;
  switch (command.info->action) {
    case Action::kRead:
      return observe::OpColumn::kRead;
    case Action::kWrite:
    case Action::kWriteAndVerify:
      return observe::OpColumn::kWrite;
    case Action::kSynchronizeCache:
      return observe::OpColumn::kFlush;
    case Action::kUnmap:
      return observe::OpColumn::kDiscard;
    case Action::kWriteSame:
      return observe::OpColumn::kWriteZeroes;
    case Action::kCompareAndWrite:
      return observe::OpColumn::kCompareAndWrite;
    default:
      return observe::OpColumn::kOther;
  }
}

}  // namespace

ScsiSlot::ScsiSlot() {
  queue_drains = [](const scsi::Command& command) {
    return static_cast<const ScsiSlot&>(command).queue->draining();
  };
}

void ScsiQueue::HandleChain(const Chain& chain, Ticket ticket) {
  Handle<false>(chain, ticket, 0);
}

void ScsiQueue::HandleReplayed(const Chain& chain, Ticket ticket, uint32_t tag) {
  Handle<true>(chain, ticket, tag);
}

template <bool kReplayed>
inline void ScsiQueue::Handle(const Chain& chain, Ticket ticket, uint32_t tag) {
  ++fetched_;
  if (chain.writable_bytes() < kResponseBytes) [[unlikely]] {
    Abandon(ticket,
            "virtio-scsi request without room for a response: " + std::to_string(chain.writable_bytes()) +
                " of " + std::to_string(kResponseBytes) +
                " bytes are device-writable in the chain of descriptor " + std::to_string(chain.head()));
    return;
  }
  ScsiSlot& slot = slots_.Take();
  accounting().Began(slot);
  slot.queue = this;
  slot.counters = nullptr;
  slot.info = nullptr;
  slot.on_done = &CommandDone;
  slot.epoch = ticket.epoch;
  slot.head = ticket.head;
  KeepSegments(slot, chain);

  ScsiRequestHeader header;
  if (chain.readable_bytes() < sizeof(header)) [[unlikely]]
    return Answer(slot, VIRTIO_SCSI_S_FAILURE);
  const block::Segment& first = chain.readable().front();
  if (first.length_bytes >= sizeof(header)) [[likely]] {
    CopyShared(&header, first.data(), sizeof(header));
  } else {
    Gather(chain.readable(), 0, &header, sizeof(header));
  }
  if (slot.data_in_bytes > 0 && slot.data_out_bytes > 0) [[unlikely]]
    return Answer(slot, VIRTIO_SCSI_S_FAILURE);
  slot.tag = header.tag;
  std::memcpy(slot.cdb.data(), header.cdb, sizeof(header.cdb));
  Execute<kReplayed>(slot, ScsiAddress::Parse(header.lun), tag);
}

// Response, data-in and data-out, each cut out of the chain.
void ScsiQueue::KeepSegments(ScsiSlot& slot, const Chain& chain) {
  const uint64_t header_bytes = std::min<uint64_t>(chain.readable_bytes(), sizeof(ScsiRequestHeader));
  slot.data_in_bytes = chain.writable_bytes() - kResponseBytes;
  slot.data_out_bytes = chain.readable_bytes() - header_bytes;
  const size_t out_count = slot.data_out_bytes > 0 ? chain.readable().size() : 0;
  block::Segment* at = slot.room.Take(chain.writable().size() + 1 + out_count);
  const auto keep = [&at](std::span<const block::Segment> from, uint64_t skip, uint64_t bytes) {
    const std::span<block::Segment> kept(at, Cut(from, skip, bytes, at));
    at += kept.size();
    return kept;
  };
  slot.response = keep(chain.writable(), 0, kResponseBytes);
  slot.data_in = keep(chain.writable(), kResponseBytes, slot.data_in_bytes);
  slot.data_out = keep(chain.readable(), header_bytes, slot.data_out_bytes);
}

template <bool kReplayed>
void ScsiQueue::Execute(ScsiSlot& slot, const ScsiAddress& address, uint32_t tag) {
  using Unit = ScsiAddress::Unit;
  scsi::UnitChannel* unit = address.target < kScsiTargetsMax ? port_.unit(address.target) : nullptr;
  if (address.unit == Unit::kZero && unit != nullptr) [[likely]] {
    const uint32_t present = port_.tag(address.target);
    if (kReplayed && tag != 0 && present != 0 && tag != present) return AnswerGone(slot, address.target);
    NoteDisk(slot.head, present);
    slot.counters = port_.counters(address.target);
    return kReplayed ? unit->ExecuteReplayed(slot) : unit->Execute(slot);
  }
  if (address.unit == Unit::kReportLuns && address.target == kScsiTargetsMax) {
    std::array<scsi::Lun, kScsiTargetsMax> units;
    const uint32_t count = port_.ListUnits(units);
    return scsi::ExecuteForReportLunsUnit(slot, {units.data(), count});
  }
  if (unit == nullptr)
    return kReplayed ? AnswerGone(slot, address.target) : Answer(slot, VIRTIO_SCSI_S_BAD_TARGET);
  if (address.unit == Unit::kReportLuns) return scsi::ExecuteForReportLunsUnit(slot, scsi::kTargetUnits);
  scsi::ExecuteForAbsentUnit(slot);
}

void ScsiQueue::AnswerGone(ScsiSlot& slot, uint32_t target) {
  if (port_.earlier_io() == nullptr) return Answer(slot, VIRTIO_SCSI_S_BAD_TARGET);
  held_.push_back({&slot, target});
  if (held_.size() == 1) Spawn(AnswerHeld());
}

// All that is held was in flight when this queue was started, by when the predecessor was dead: what joins meanwhile waits for no more.
Task<void> ScsiQueue::AnswerHeld() {
  co_await port_.earlier_io()->Ended();
  const std::vector<Held> held = std::exchange(held_, {});
  for (const Held& each : held)
    Answer(*each.slot, VIRTIO_SCSI_S_BAD_TARGET);  // the queue may be gone after the last
}

bool ScsiQueue::Holds(uint32_t target) const {
  return std::ranges::any_of(held_, [target](const Held& each) { return each.target == target; });
}

void ScsiQueue::CommandDone(scsi::Command& command) {
  auto& slot = static_cast<ScsiSlot&>(command);
  slot.queue->Answer(slot, ResponseOf(command));
}

void ScsiQueue::Answer(ScsiSlot& slot, uint8_t response) {
  ScsiResponse reply;
  size_t reply_bytes = kSenseAt;
  reply.sense_len = 0;
  reply.status_qualifier = 0;
  reply.response = response;
  reply.status = 0;
  uint64_t transferred = 0;
  if (response == VIRTIO_SCSI_S_OK) [[likely]] {
    reply.status = static_cast<uint8_t>(slot.scsi_status);
    transferred = slot.transferred_bytes;
    if (slot.scsi_status == scsi::ScsiStatus::kCheckCondition) [[unlikely]] {
      // A flush is not tried again: storage tells of what it has lost only once.
      const bool may_try_again = slot.op != block::Op::kFlush;
      if (slot.sense.code == scsi::SenseCode::kSpaceAllocationFailed && may_try_again && leaves())
        return LeaveSlot(slot);
      const std::span<uint8_t, scsi::kSenseBytesMax> sense(reply.sense, scsi::kSenseBytesMax);
      reply.sense_len = static_cast<uint32_t>(scsi::WriteSense(slot.sense, slot.descriptor_sense, sense));
      reply_bytes += reply.sense_len;
    }
  }
  reply.resid = static_cast<uint32_t>(
      std::min<uint64_t>(slot.data_in_bytes + slot.data_out_bytes - transferred, UINT32_MAX));

  const Ticket ticket{slot.epoch, slot.head};
  if (slot.response.size() == 1) [[likely]] {
    std::memcpy(slot.response.front().data(), &reply, reply_bytes);
  } else {
    block::Scatter(&reply, reply_bytes, slot.response, 0);
  }
  // Data-in also after a failure, for whatever part was written.
  MarkWritten(ticket, slot.response);
  if (!slot.data_in.empty()) MarkWritten(ticket, slot.data_in);
  const bool failed = reply.response != VIRTIO_SCSI_S_OK || reply.status != 0;
  accounting().Ended(slot.counters, slot, ColumnOf(slot), failed ? 0 : transferred, failed);
  const uint64_t written = kResponseBytes + (slot.data_in_bytes > 0 ? transferred : 0);
  slots_.Give(slot);
  Complete(ticket,
           static_cast<uint32_t>(std::min<uint64_t>(written, UINT32_MAX)));  // the queue may be gone now
}

// A successor tries it again.
void ScsiQueue::LeaveSlot(ScsiSlot& slot) {
  const Ticket ticket{slot.epoch, slot.head};
  slots_.Give(slot);
  Leave(ticket);  // the queue may be gone now
}

void ScsiQueue::VisitInFlight(observe::InFlightVisitor& visitor) {
  slots_.ForEachInUse([&](ScsiSlot& slot) {
    if (slot.counters != nullptr) visitor.Visit(*slot.counters, ColumnOf(slot), slot);
  });
}

}  // namespace cleat::virtio
