// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/io/io_queue.h"

#include <algorithm>
#include <utility>

#include "block/segments.h"
#include "nvme/fabrics/commands.h"

namespace cleat::nvmf_target {

using nvme::Status;
using nvme::fabrics::FabricsType;
using nvme::fabrics::SubmissionEntry;
using nvme::fabrics::TargetCommand;

namespace {

constexpr uint32_t kCopiesBetween = 4096;  // commands, from one whose data was kept to the next try

block::Op OpOf(IoPlan::Kind kind) {
  switch (kind) {
    case IoPlan::Kind::kRead:
    case IoPlan::Kind::kReservationReport:
      return block::Op::kRead;
    case IoPlan::Kind::kWrite:
      return block::Op::kWrite;
    case IoPlan::Kind::kWriteZeroes:
      return block::Op::kWriteZeroes;
    case IoPlan::Kind::kDiscard:
      return block::Op::kDiscard;
    case IoPlan::Kind::kFlush:
    case IoPlan::Kind::kReservationChange:
    case IoPlan::Kind::kNothing:
      break;
  }
  return block::Op::kFlush;
}

}  // namespace

IoQueue::IoQueue(Parts parts)
    : parts_(std::move(parts)),
      queue_(&parts_.transport->queue()),
      was_handed_over_(!parts_.commands.empty()),
      always_receives_(parts_.transport->traits().always_receives),
      uses_registered_memory_(parts_.transport->traits().uses_registered_memory) {}

IoQueue::~IoQueue() {
  CLEAT_CHECK(closed_);
}

void IoQueue::Start() {
  Open();
  ReadOn();
}

// A queue that has ended before has told nobody whose it is now.
void IoQueue::Own() {
  if (std::exchange(owns_, true)) return;
  CLEAT_CHECK(queue_->commands() == 0);  // which would be somebody else's
  queue_->SetOwner(*this);
  if (queue_->ended()) Ended({ErrorCode::kUnavailable, parts_.name + ": the host has left"});
}

void IoQueue::Close(const Error& reason) {
  Own();
  queue_->Abort(reason);
}

void IoQueue::Open() {
  Own();
  if (std::exchange(opened_, true) || queue_->ended()) return;
  parts_.transport->SetReads(false);
  const cleat::Status started =
      parts_.transport->Start(parts_.port.reactor(), *this, QueueTransport::Kind::kIo);
  if (!started.ok()) return queue_->Abort(started.error());
  if (parts_.commands.empty()) return;
  BeginTurn();
  if (EndIfExpired()) return;
  for (nvme::tcp::SavedCommand& saved : std::exchange(parts_.commands, {})) {
    IoCommand* const command = parts_.port.TakeRestored(*this);
    if (command == nullptr)
      return queue_->Abort({ErrorCode::kResourceExhausted, parts_.name + ": too many commands"});
    parts_.transport->TakeBack(*command, saved);
    if (command->state == TargetCommand::State::kRunning) {
      Run(*command);
      continue;
    }
    const NamespacePort* const space = parts_.subsystem.Find(command->entry.nsid);
    command->epoch = space == nullptr ? 0 : space->epoch;
    command->plans_later = true;
  }
  parts_.port.order().TellOf(*this);
}

void IoQueue::ReadOn() {
  if (queue_->ended()) return;
  parts_.transport->SetReads(true);
  // What came with Connect, or to another process, if anything did.
  BeginTurn();
  if (!EndIfExpired()) queue_->Resume();
  parts_.transport->Wake();
}

// ---- What the transport says

TargetCommand* IoQueue::Take(const SubmissionEntry& /*entry*/, uint32_t in_capsule_bytes) {
  if (always_receives_ && (!parts_.transport->reads() || EndIfFoundLate())) [[unlikely]]
    return nullptr;
  IoCommand* const command = parts_.port.Take(*this, in_capsule_bytes);
  if (command == nullptr) parts_.port.WaitForRoom(*this);
  return command;
}

TargetCommand* IoQueue::TakeHere(const SubmissionEntry& entry, std::span<const uint8_t> here) {
  NamespacePort* const space = parts_.subsystem.Find(entry.nsid);
  if (parts_.keeps_data && space != nullptr && entry.opcode == static_cast<uint8_t>(nvme::Opcode::kWrite)) {
    if (space->copies_left > 0) {
      --space->copies_left;
    } else if (IoCommand* const command = parts_.port.TakeReceived(*this, here)) {
      return command;
    }
  }
  return Take(entry, static_cast<uint32_t>(here.size()));
}

void IoQueue::Ahead(const SubmissionEntry& entry) {
  const NamespacePort* const space = parts_.subsystem.Find(entry.nsid);
  if (space == nullptr || !space->channel->wants_prefetch()) return;
  const uint64_t block = uint64_t{entry.cdw11} << 32 | entry.cdw10;
  const uint64_t offset_bytes = block * space->channel->geometry().logical_block_bytes;
  if (entry.opcode == static_cast<uint8_t>(nvme::Opcode::kRead)) {
    space->channel->Prefetch(block::Op::kRead, offset_bytes);
  } else if (entry.opcode == static_cast<uint8_t>(nvme::Opcode::kWrite)) {
    space->channel->Prefetch(block::Op::kWrite, offset_bytes);
  }
}

TargetCommand* IoQueue::Find(uint16_t tag) {
  IoCommand* const command = parts_.port.Find(tag);
  return command != nullptr && command->queue == this ? command : nullptr;
}

void IoQueue::Run(TargetCommand& of_target) {
  auto& command = static_cast<IoCommand&>(of_target);
  if (command.entry.opcode == nvme::fabrics::kFabricsOpcode) [[unlikely]]
    return AnswerFabrics(command);
  const NamespacePort* const space = parts_.subsystem.Find(command.entry.nsid);
  if (space == nullptr) [[unlikely]]
    return Refuse(command, kInvalidNamespace);
  if (parts_.subsystem.path_status != 0 && !was_handed_over_) [[unlikely]]
    return Refuse(command, Status(parts_.subsystem.path_status));
  command.epoch = space->epoch;
  IoPlan plan;
  const Status refusal =
      PlanOf(command.entry, space->channel->geometry(), space->channel->mode(), command.data_bytes, plan);
  if (!refusal.ok() || plan.kind == IoPlan::Kind::kNothing) [[unlikely]]
    return Refuse(command, refusal);
  // A read that brings data along: what for, nobody knows.
  if (command.in_capsule && !plan.to_target) [[unlikely]]
    return Refuse(command, kSglTypeInvalid);
  Plan(command, plan);
  if (command.for_control && parts_.on_reservation == nullptr) [[unlikely]]
    return Refuse(command, kInvalidOpcode);
  const bool needs_buffer = command.data.empty() && (command.op == block::Op::kRead || plan.to_target);
  if (!needs_buffer)
    return command.buffer_of == BufferOf::kReceived ? SubmitReceived(command) : Submit(command);
  if (parts_.port.TakeBuffer(command)) GoOn(command);
}

void IoQueue::Plan(IoCommand& command, const IoPlan& plan) {
  command.op = OpOf(plan.kind);
  command.for_control =
      plan.kind == IoPlan::Kind::kReservationChange || plan.kind == IoPlan::Kind::kReservationReport;
  command.column = observe::ColumnOf(command.op);
  command.fua = plan.fua;
  command.may_unmap = plan.may_unmap;
  command.offset_bytes = plan.offset_bytes;
  command.length_bytes = plan.length_bytes;
  command.counted_bytes = plan.length_bytes;
  command.status = block::IoStatus::kOk;
  command.segments = {};
  command.range_count = plan.ranges;
  command.range_next = 0;
  command.range_end_bytes = plan.offset_bytes + plan.length_bytes;
}

void IoQueue::GoOn(IoCommand& command) {
  if (command.op == block::Op::kRead || command.in_capsule) return Submit(command);
  queue_->Ask(command);
}

void IoQueue::Proceed(IoCommand& command) {
  parts_.transport->Wake();
  if (EndIfExpired()) return queue_->Answer(command, kTransientError);
  GoOn(command);
}

void IoQueue::DataCame(TargetCommand& of_target) {
  auto& command = static_cast<IoCommand&>(of_target);
  if (always_receives_ && EndIfFoundLate()) [[unlikely]]
    return queue_->Answer(command, kTransientError);
  if (std::exchange(command.plans_later, false)) [[unlikely]]
    return RunIfSameNamespace(command);
  Submit(command);
}

// Of a command that came earlier: its namespace may have gone since, and another one may be in its place.
void IoQueue::RunIfSameNamespace(IoCommand& command) {
  if (IsForPresentNamespace(command)) return Run(command);
  queue_->Answer(command, kInvalidNamespace);
}

bool IoQueue::IsForPresentNamespace(const IoCommand& command) const {
  const NamespacePort* const space = parts_.subsystem.Find(command.entry.nsid);
  return space != nullptr && space->epoch == command.epoch;
}

void IoQueue::Give(TargetCommand& of_target) {
  auto& command = static_cast<IoCommand&>(of_target);
  if (std::exchange(command.lent, false)) [[unlikely]] {
    const block::Segment piece = parts_.port.TakeLent(command);
    if (!parts_.transport->Keep(piece)) GiveKept(piece, false);
  }
  parts_.port.Give(command);
  if (queue_->commands() > 0) return;
  if (queue_->ended()) FinishClosing();
  if (disconnecting_) parts_.transport->Wake();
}

// What waited for room was found some turns ago.
void IoQueue::Resume() {
  if (!parts_.transport->reads() || EndIfExpired()) return;
  queue_->Resume();
  parts_.transport->Wake();
}

// A host whose association is over may have sent the same write by another path since, and a newer one behind it: what this engine finds in
// the socket then, perhaps after it was stopped itself, must not be executed. So the time is looked at behind each look into the socket.
bool IoQueue::EndIfExpired() {
  parts_.port.reactor().RefreshNow();
  return EndIfFoundLate();
}

bool IoQueue::EndIfFoundLate() {
  if (queue_->ended()) return true;
  if (parts_.port.reactor().now_ns() < parts_.deadline_ns->load(std::memory_order_relaxed)) [[likely]]
    return false;
  queue_->Abort(
      {ErrorCode::kDeadlineExceeded, parts_.name + ": the keep alive timeout of its association is over"});
  return true;
}

// Only Disconnect: authentication and properties belong to the beginning of a queue, and to the admin queue.
void IoQueue::AnswerFabrics(IoCommand& command) {
  const bool disconnects = (command.entry.nsid & 0xffU) == static_cast<uint32_t>(FabricsType::kDisconnect);
  disconnecting_ = disconnects;
  queue_->Answer(command, disconnects ? kSuccess : kInvalidOpcode);
}

// ---- To the storage and back

Status IoQueue::WhyNotExecuted(const IoCommand& command, const NamespacePort* space) const {
  // As in RunIfSameNamespace, while the data came.
  if (space == nullptr || space->epoch != command.epoch) [[unlikely]]
    return kInvalidNamespace;
  // Nor may the subsystem be served any more.
  if (parts_.subsystem.path_status != 0 && !was_handed_over_) [[unlikely]]
    return Status(parts_.subsystem.path_status);
  if (space->reservation == nullptr) [[likely]]
    return kSuccess;
  // Hosts keep their requests then, as on any path that is not to be used for a while.
  if (space->shut) return Status(nvme::target::PathStatusOf(nvme::fabrics::AnaState::kInaccessible));
  const bool may =
      command.for_control || MayExecute(*space->reservation, parts_.host_id, AccessOf(command.op));
  return may ? kSuccess : kReservationConflict;
}

void IoQueue::Submit(IoCommand& command) {
  NamespacePort* const space = parts_.subsystem.Find(command.entry.nsid);
  if (const Status refusal = WhyNotExecuted(command, space); !refusal.ok()) [[unlikely]]
    return Refuse(command, refusal);
  if (command.for_control) [[unlikely]]
    return CallControl(command);
  if (ChangesData(command.op)) {
    command.range = {command.offset_bytes, command.range_end_bytes};
    if (command.op == block::Op::kDiscard) command.range = RangeOf(command, space->channel->geometry());
    if (parts_.port.order().Holds(command, *space)) return;
  }
  ToStorage(command, *space);
}

// Storage has no part in it.
void IoQueue::Refuse(IoCommand& command, Status status) {
  parts_.port.LetGoOfReceived(command);
  queue_->Answer(command, status);
}

// What storage is not through with at once keeps a whole buffer. So the next ones are copied, and one is tried again after a while.
void IoQueue::SubmitReceived(IoCommand& command) {
  NamespacePort* const space = parts_.subsystem.Find(command.entry.nsid);
  CLEAT_CHECK(space != nullptr);  // else Run has answered
  IoPort& port = parts_.port;     // the command, and the queue with it, may be gone
  const uint32_t before = port.kept();
  Submit(command);
  if (port.kept() >= before) [[unlikely]]
    space->copies_left = kCopiesBetween;
}

void IoQueue::GoOnAfterOlder(IoCommand& command) {
  parts_.transport->Wake();
  NamespacePort* const space = parts_.subsystem.Find(command.entry.nsid);
  CLEAT_CHECK(space != nullptr && space->epoch == command.epoch);  // else it was abandoned
  const Status refusal = EndIfExpired() ? kTransientError : WhyNotExecuted(command, space);
  if (!refusal.ok()) {
    parts_.port.order().Drop(command, *space);
    queue_->Answer(command, refusal);
    return TellIfQuiet();
  }
  ToStorage(command, *space);
  if (settles_) parts_.port.AbortQueued(*this);  // Settle has not met it there
}

void IoQueue::NamespaceGone(IoCommand& command) {
  parts_.transport->Wake();
  queue_->Answer(command, kInvalidNamespace);
  TellIfQuiet();
}

void IoQueue::ToStorage(IoCommand& command, NamespacePort& space) {
  parts_.port.Submitted(command, space);
  if (command.op == block::Op::kDiscard || command.op == block::Op::kWriteZeroes) {
    if (command.op == block::Op::kDiscard) command.counted_bytes = command.range_end_bytes = 0;
    command.length_bytes = 0;
    return ContinueRanges(command);
  }
  if (command.op != block::Op::kFlush) command.segments = command.data;
  command.Push(&TransferDone, this);
  space.channel->Submit(command);
}

void IoQueue::TransferDone(block::Request& request, const block::Frame& frame) {
  auto& self = *static_cast<IoQueue*>(frame.layer);
  auto& command = static_cast<IoCommand&>(request);
  const bool reads = command.op == block::Op::kRead;
  const Status status = StatusOf(command.status, reads);
  self.Finish(command, status);
}

// The next of a discard's ranges. False: it is not within the namespace.
bool IoQueue::TakeRange(IoCommand& command) {
  const block::Geometry& geometry = command.space->channel->geometry();
  nvme::DatasetRange range;
  block::Gather(command.data, command.range_next * sizeof(range), &range, sizeof(range));
  ++command.range_next;
  const uint64_t size = geometry.size_bytes / geometry.logical_block_bytes;
  if (range.first_block > size || range.blocks > size - range.first_block) return false;
  command.offset_bytes = range.first_block * geometry.logical_block_bytes;
  command.range_end_bytes = command.offset_bytes + uint64_t{range.blocks} * geometry.logical_block_bytes;
  command.counted_bytes += command.range_end_bytes - command.offset_bytes;
  return true;
}

// The next piece of a range: no longer than the storage takes, of the range after it when this one is over. False: there is none, or `refusal` is
// the answer.
bool IoQueue::NextRange(IoCommand& command, Status& refusal) {
  const block::Geometry& geometry = command.space->channel->geometry();
  command.offset_bytes += command.length_bytes;
  const bool range_is_over = command.offset_bytes >= command.range_end_bytes;
  if (range_is_over && (command.op != block::Op::kDiscard || command.range_next == command.range_count))
    return false;
  // Of a namespace that goes, or a host that has gone, nothing new begins.
  if (!command.space->open || queue_->ended()) {
    refusal = kInvalidNamespace;
    return false;
  }
  if (command.must_end) {
    refusal = kReservationConflict;
    return false;
  }
  // Nor of one that goes to another process, which does all of it again.
  if (settles_) {
    command.status = block::IoStatus::kAborted;
    return false;
  }
  if (range_is_over && !TakeRange(command)) {
    refusal = kLbaOutOfRange;
    return false;
  }
  const bool discards = command.op == block::Op::kDiscard;
  const uint64_t most = discards ? geometry.discard_max_bytes : geometry.write_zeroes_max_bytes;
  const uint64_t rest = command.range_end_bytes - command.offset_bytes;
  command.length_bytes =
      most == 0 ? rest : std::min(rest, most / geometry.logical_block_bytes * geometry.logical_block_bytes);
  return true;
}

// A loop and not a recursion: storage that answers at once must not build a stack of ranges.
void IoQueue::ContinueRanges(IoCommand& command) {
  Status refusal = kSuccess;
  while (NextRange(command, refusal)) {
    if (command.length_bytes == 0) continue;  // an empty range
    command.range_state = IoCommand::RangeState::kSubmitting;
    command.Push(&RangeDone, this);
    command.space->channel->Submit(command);
    if (command.range_state == IoCommand::RangeState::kSubmitting) {
      command.range_state = IoCommand::RangeState::kSubmitted;  // RangeDone goes on
      return;
    }
    if (command.status != block::IoStatus::kOk) break;
  }
  if (refusal.ok()) refusal = StatusOf(command.status, false);
  Finish(command, refusal);
}

void IoQueue::RangeDone(block::Request& request, const block::Frame& frame) {
  auto& self = *static_cast<IoQueue*>(frame.layer);
  auto& command = static_cast<IoCommand&>(request);
  if (command.range_state == IoCommand::RangeState::kSubmitting) {
    command.range_state = IoCommand::RangeState::kCompleted;  // ContinueRanges, our caller, goes on
  } else if (command.status != block::IoStatus::kOk) {
    self.Finish(command, StatusOf(command.status, false));
  } else {
    self.ContinueRanges(command);
  }
}

void IoQueue::Finish(IoCommand& command, Status status) {
  const bool was_ended =
      command.status == block::IoStatus::kAborted || command.status == block::IoStatus::kNoSpace;
  if (command.must_end && was_ended) [[unlikely]]
    status = kReservationConflict;
  if (settles_) [[unlikely]]
    return FinishStopping(command, status);
  parts_.port.Done(command);
  const uint32_t data_bytes = command.op == block::Op::kRead && status.ok() ? command.data_bytes : 0;
  parts_.transport->Wake();
  queue_->Answer(command, status, 0, data_bytes);  // the command, and the queue with it, may be gone now
}

// ---- Reservations

void IoQueue::CallControl(IoCommand& command) {
  ReservationCall call{.nsid = command.entry.nsid, .host_id = parts_.host_id, .entry = command.entry};
  if (command.op != block::Op::kRead) {
    call.data.resize(command.data_bytes);
    block::Gather(command.data, 0, call.data.data(), call.data.size());
  }
  // The command keeps the queue from being drained, and so its association.
  call.answer = [self = shared_from_this(), &command](nvme::target::Answer answer) {
    self->Post([self, &command, answer = std::move(answer)] { self->AnswerReservation(command, answer); });
  };
  parts_.control.PostCall(
      [self = shared_from_this(), call = std::move(call)] { self->parts_.on_reservation(call); });
}

void IoQueue::AnswerReservation(IoCommand& command, const nvme::target::Answer& answer) {
  const auto bytes = static_cast<uint32_t>(answer.data.size());
  CLEAT_CHECK(bytes == 0 || (command.op == block::Op::kRead && bytes <= command.data_bytes));
  if (bytes > 0) block::Scatter(answer.data.data(), bytes, command.data, 0);
  parts_.transport->Wake();
  queue_->Answer(command, Status(answer.status), 0, bytes);
  TellIfQuiet();
}

// ---- The end

void IoQueue::Ended(const Error& reason) {
  reason_ = reason;
  parts_.port.order().Ended(*this);
  parts_.port.Forget(*this);
  parts_.port.order().AbandonHeld(*this,
                                  [this](IoCommand& command) { queue_->Answer(command, kTransientError); });
  parts_.port.AbandonWaiting(*this, [this](IoCommand& command) { queue_->Answer(command, kTransientError); });
  for (IoCommand* const command : std::exchange(undone_, {})) queue_->Answer(*command, kTransientError);
  parts_.port.AbortQueued(*this);
  parts_.transport->Wake();
  if (queue_->commands() == 0) FinishClosing();
}

void IoQueue::EndTurn() {
  if (disconnecting_ && queue_->commands() == 0 && !queue_->ended())
    queue_->Abort({ErrorCode::kUnavailable, parts_.name + ": the host has disconnected"});
  if (queue_->ended()) parts_.transport->Close();
  parts_.port.FlushCounters();
}

const block::FrontEnd& IoQueue::FrontEnd() {
  // A queue that has ended has nobody who waits for its answers; for one that settles another process waits.
  class Queues final : public block::FrontEnd {
    bool MayWait(const block::Request& request) const override {
      const IoQueue& queue = *static_cast<const IoQueue*>(request.top().layer);
      return !queue.ended() && !queue.settles() && !static_cast<const IoCommand&>(request).must_end;
    }
  };
  static const Queues queues;
  return queues;
}

// By mail to its own reactor first: whoever called may still be within the queue.
void IoQueue::FinishClosing() {
  if (std::exchange(closed_, true)) return;
  EndBypass();
  TellIfQuiet();
  parts_.port.reactor().PostCall([self = shared_from_this()] {
    self->parts_.transport->Close();
    self->parts_.control.PostCall([self] { self->parts_.on_drained(self->reason_); });
  });
}

}  // namespace cleat::nvmf_target
