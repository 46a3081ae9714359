// SPDX-License-Identifier: Apache-2.0
#include "nvme/rdma_target/target_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::rdma_target {
namespace {

using fabrics::CompletionEntry;
using fabrics::SubmissionEntry;
using rdma::DataPlace;
using verbs::SendOp;
using verbs::WorkStatus;
using State = fabrics::TargetCommand::State;

constexpr uint32_t kEntryBytes = sizeof(SubmissionEntry);
// Base 2.0, 3.3.3.2.1.1.
constexpr Status kDataTransferError{0x04};
constexpr Status kInternalError{0x06};

CommandWire& WireOf(fabrics::TargetCommand& command) {
  return command.wire<CommandWire>();
}

// Where the host has its data, and by which keys, is nobody else's to know.
fabrics::SglDescriptor NeutralDescriptor(const fabrics::TargetCommand& command) {
  fabrics::SglDescriptor descriptor;
  descriptor.length_bytes = command.data_bytes;
  descriptor.type = command.in_capsule ? fabrics::kSglInCapsule : fabrics::kSglByTransport;
  return descriptor;
}

// The data that a command is to have along, as far as it can be: its descriptors are looked at once there is a command that can be answered.
uint32_t InCapsuleBytes(const SubmissionEntry& entry, uint32_t behind_entry_bytes) {
  return entry.data.type == fabrics::kSglInCapsule ? std::min(entry.data.length_bytes, behind_entry_bytes)
                                                   : 0;
}

}  // namespace

TargetQueue::TargetQueue(TargetAdapter& adapter, verbs::QueuePair& pair, const TargetQueueOptions& options,
                         fabrics::TargetQueueOwner& owner)
    : adapter_(adapter),
      pair_(&pair),
      options_(options),
      limits_(pair.limits()),
      number_(pair.number()),
      pieces_max_(std::min(limits_.pieces, kWorkPiecesMax)),
      copies_entries_(limits_.inline_bytes >= sizeof(CompletionEntry)),
      reads_(adapter.scheduler(), std::max(limits_.read_credits, 1U)),
      parts_(limits_.works),
      room_(limits_.works - limits_.read_credits),
      in_capsule_bytes_(adapter.options().in_capsule_bytes) {
  CLEAT_CHECK(options.entries_max > 0 && pieces_max_ > 0 && limits_.works > limits_.read_credits);
  if (!copies_entries_) {
    sends_max_ = options.entry_memory.length_bytes / sizeof(CompletionEntry);
    CLEAT_CHECK(sends_max_ > 0);
  }
  SetOwner(owner);
  due_.reserve(limits_.read_credits);
  generation_ = adapter_.Attach(*this);
}

TargetQueue::~TargetQueue() {
  CLEAT_CHECK(pair_ == nullptr);
}

// ---- For the owner

void TargetQueue::BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes) {
  CLEAT_CHECK(entries <= options_.entries_max);
  CLEAT_CHECK(in_capsule_bytes <= adapter_.options().in_capsule_bytes);
  fabrics::TargetQueue::BecomeQueue(entries, flow_control, in_capsule_bytes);
  in_capsule_bytes_ = in_capsule_bytes;
}

void TargetQueue::Ask(TargetCommand& command) {
  CommandWire& wire = WireOf(command);
  CLEAT_CHECK(command.state == State::kRunning && wire.data.place == DataPlace::kHostMemory && !ended_);
  if (limits_.read_credits == 0) return Answer(command, kDataTransferError, 0, 0);
  wire.cursor = {};
  wire.move_bytes = command.data_bytes;
  wire.staged = !AllRegistered(command.data, command.data_bytes, adapter_.keys());
  if (wire.staged && options_.staging_in.length_bytes == 0) return Answer(command, kInternalError, 0, 0);
  command.state = State::kAsked;
  if (wire.staged) {
    asks_.PushBack(command);
    if (staging_in_ == nullptr) BeginStagedAsk(*asks_.PopFront());
    return;
  }
  wire.round_from_bytes = 0;
  wire.round_end_bytes = wire.move_bytes;
  AddReads(wire);
}

void TargetQueue::Answer(TargetCommand& command, Status status, uint64_t result, uint32_t data_bytes) {
  CLEAT_CHECK(command.state == State::kRunning && (data_bytes == 0 || status.ok()));
  if (ended_) return LetGo(command);
  CommandWire& wire = WireOf(command);
  CLEAT_CHECK(data_bytes == 0 ||
              (wire.data.place == DataPlace::kHostMemory && data_bytes <= command.data_bytes));
  wire.cursor = {};
  wire.move_bytes = data_bytes;
  wire.staged = data_bytes > 0 && !AllRegistered(command.data, data_bytes, adapter_.keys());
  if (wire.staged && options_.staging_out.length_bytes == 0) {
    status = kInternalError;
    wire.staged = false;
    wire.move_bytes = 0;
    result = 0;
  }
  wire.round_from_bytes = 0;
  wire.round_end_bytes = wire.staged ? 0 : wire.move_bytes;
  command.state = State::kAnswering;
  wire.entry = MakeEntry(command, status, result);
  answers_.PushBack(command);
  adapter_.Line(*this);
}

void TargetQueue::Abort(const Error& reason) {
  if (!ended_) End(reason);
}

void TargetQueue::Resume() {
  while (!ended_ && !waiting_.empty()) {
    if (!Begin(*waiting_.front())) return;
  }
}

// ---- Commands

void TargetQueue::Received(ReceiveSlot& slot) {
  if (ended_) return adapter_.Return(slot);
  const uint32_t bytes = slot.received_bytes;
  if (bytes < kEntryBytes || bytes - kEntryBytes > in_capsule_bytes_ || unanswered_ >= entries_) [[unlikely]]
    return Refuse(slot);
  ++unanswered_;
  if (waiting_.empty() && Begin(slot)) return;
  if (ended_) return adapter_.Return(slot);  // with Take
  waiting_.PushBack(slot);
}

// Whether there is a command for the first capsule.
bool TargetQueue::Begin(ReceiveSlot& slot) {
  const uint8_t* const bytes = adapter_.BytesOf(slot);
  const uint32_t behind_bytes = slot.received_bytes - kEntryBytes;
  SubmissionEntry entry;
  std::memcpy(&entry, bytes, sizeof(entry));
  TargetCommand* const command = owner_->Take(entry, InCapsuleBytes(entry, behind_bytes));
  if (command == nullptr) return false;
  CLEAT_CHECK(command->state == State::kFree && !ended_);
  auto& wire = command->MakeWire<CommandWire>();
  wire.command = command;
  wire.queue = this;
  const auto wrong = rdma::ParseData(entry, {bytes + kEntryBytes, behind_bytes}, wire.data);
  command->entry = entry;
  command->state = State::kRunning;
  command->in_capsule = wire.data.place == DataPlace::kInCapsule;
  command->data_bytes = wrong ? 0 : wire.data.bytes;
  command->moved_bytes = 0;
  command->entry.data = NeutralDescriptor(*command);
  if (!wrong && command->in_capsule) {
    CopyTo(command->data, 0, {bytes + kEntryBytes + wire.data.offset_bytes, wire.data.bytes});
    command->moved_bytes = wire.data.bytes;
  }
  fabrics::TargetQueue::Begin(*command);
  if (slot.hook.linked()) slot.hook.Unlink();
  adapter_.Return(slot);
  if (wrong) [[unlikely]] {
    wire.data.place = DataPlace::kNowhere;
    wire.data.invalidates = false;
    Answer(*command, *wrong, 0, 0);
  } else {
    owner_->Run(*command);
  }
  return true;
}

void TargetQueue::LetGo(TargetCommand& command) {
  CommandWire& wire = WireOf(command);
  if (staging_in_ == &wire) staging_in_ = nullptr;
  if (staging_out_ == &wire) staging_out_ = nullptr;
  wire.~CommandWire();
  if (command.to_send.linked()) command.to_send.Unlink();
  GiveBack(command);
}

// What may not come as it is.
void TargetQueue::Refuse(ReceiveSlot& slot) {
  const uint32_t bytes = slot.received_bytes;
  std::string rule;
  if (bytes < kEntryBytes) {
    rule = fmt::format("a capsule of {} bytes, {} at least", bytes, kEntryBytes);
  } else if (bytes - kEntryBytes > in_capsule_bytes_) {
    rule = fmt::format("a capsule with {} bytes behind its entry, {} at most", bytes - kEntryBytes,
                       in_capsule_bytes_);
  } else {
    rule = fmt::format("a command more than the {} for which its queue has entries", entries_);
  }
  adapter_.Return(slot);
  Abort({ErrorCode::kInvalidArgument,
         fmt::format("{}: the host has sent what it may not: {}", options_.name, rule)});
}

void TargetQueue::Failed(const char* what, WorkStatus status) {
  if (ended_) return;
  Abort({ErrorCode::kUnavailable, fmt::format("{}: {}: {}", options_.name, what, verbs::NameOf(status))});
}

// What the owner works on stays until it is answered, and what the adapter has until that has let go of it.
void TargetQueue::End(const Error& reason) {
  ended_ = true;
  pair_->Break();
  while (ReceiveSlot* const slot = waiting_.PopFront()) adapter_.Return(*slot);
  reads_.End();
  while (reads_.TakeUnposted() != nullptr) {
  }
  for (; due_at_ < due_.size(); ++due_at_) adapter_.scheduler().Completed(*due_[due_at_], false);
  adapter_.Line(*this);  // others may have READs in the place of these
  // Give may make the owner answer commands that run, which changes the list of all.
  IntrusiveList<TargetCommand, &TargetCommand::to_send> over;
  for (TargetCommand* command = of_queue_.front(); command != nullptr; command = of_queue_.Next(*command)) {
    if (command->to_send.linked()) command->to_send.Unlink();
    const CommandWire& wire = WireOf(*command);
    if (command->state != State::kRunning && wire.idle() && wire.outstanding == 0) over.PushBack(*command);
  }
  while (TargetCommand* const command = over.PopFront()) LetGo(*command);
  owner_->Ended(reason);
}

void TargetQueue::Destroyed() {
  CLEAT_CHECK(ended_ && pair_ != nullptr);
  pair_ = nullptr;
  adapter_.Detach(*this);
  IntrusiveList<TargetCommand, &TargetCommand::to_send> over;
  for (TargetCommand* command = of_queue_.front(); command != nullptr; command = of_queue_.Next(*command)) {
    if (command->state == State::kRunning) continue;
    while (!WireOf(*command).idle()) adapter_.scheduler().Completed(WireOf(*command), false);
    over.PushBack(*command);
  }
  while (TargetCommand* const command = over.PopFront()) LetGo(*command);
}

void TargetQueue::Completed(WorkKind kind, CommandWire& wire, WorkStatus status) {
  const bool ok = status == WorkStatus::kDone;
  const bool reads = kind == WorkKind::kRead;
  if (reads) {
    ReadCompleted(wire, ok);
  } else {
    AnswerCompleted(wire, ok);
  }
  if (!ok) [[unlikely]]
    Failed(reads ? "a READ of data" : "an answer", status);
}

// ---- Data that is asked for

inline LocalMemory TargetQueue::MemoryOf(const CommandWire& wire, const verbs::LocalPiece& staging) const {
  return {.segments = wire.command->data,
          .keys = &adapter_.keys(),
          .staged = wire.staged,
          .staging = staging,
          .round_from_bytes = wire.round_from_bytes};
}

// The memory for it is free.
void TargetQueue::BeginStagedAsk(TargetCommand& command) {
  CommandWire& wire = WireOf(command);
  staging_in_ = &wire;
  wire.round_from_bytes = wire.cursor.bytes;
  wire.round_end_bytes =
      wire.cursor.bytes + std::min(wire.move_bytes - wire.cursor.bytes, options_.staging_in.length_bytes);
  AddReads(wire);
}

void TargetQueue::AddReads(CommandWire& wire) {
  const LocalMemory local = MemoryOf(wire, options_.staging_in);
  reads_.Add(wire, CountWorks(wire.cursor, wire.data.host(), local, wire.round_end_bytes, pieces_max_));
  adapter_.Line(*this);
}

void TargetQueue::ReadCompleted(CommandWire& wire, bool ok) {
  const ReadProgress progress = adapter_.scheduler().Completed(wire, ok);
  adapter_.Line(*this);
  if (progress == ReadProgress::kMore) return;
  // Of one that fails, and with it the queue, the end gives it back.
  if (ended_) return LetGo(*wire.command);
  if (progress == ReadProgress::kAllCame) AllCame(wire);
}

void TargetQueue::AllCame(CommandWire& wire) {
  TargetCommand& command = *wire.command;
  command.moved_bytes = wire.round_end_bytes;
  if (wire.staged) {
    const auto* const bytes = std::bit_cast<const uint8_t*>(options_.staging_in.address);
    CopyTo(command.data, wire.round_from_bytes, {bytes, wire.round_end_bytes - wire.round_from_bytes});
    if (wire.round_end_bytes < wire.move_bytes) return BeginStagedAsk(command);
    staging_in_ = nullptr;
    if (TargetCommand* const next = asks_.PopFront()) BeginStagedAsk(*next);
  }
  command.state = State::kRunning;
  owner_->DataCame(command);
}

// ---- Works

void TargetQueue::Post(SendChain& chain) {
  while (!ended_) {
    chain.Clear();
    FillAnswers(chain);
    FillReads(chain);
    const auto works = chain.works();
    if (works.empty()) return;
    // Of what was not taken nothing comes: its commands come back with the queue pair's end.
    if (pair_->Post(works) < works.size()) {
      return Abort({ErrorCode::kUnavailable,
                    fmt::format("{}: the adapter takes no more works of the queue pair", options_.name)});
    }
    if (!chain.full()) return;
  }
}

void TargetQueue::FillReads(SendChain& chain) {
  for (; due_at_ < due_.size() && !chain.full(); ++due_at_) {
    CommandWire& wire = *due_[due_at_];
    const TransferWork next = NextWork(wire.cursor, wire.data.host(), MemoryOf(wire, options_.staging_in),
                                       wire.round_end_bytes, chain.pieces(pieces_max_));
    verbs::SendWork& work = chain.Add(next.pieces);
    work.id = WorkId{WorkKind::kRead, generation_, &wire}.Pack();
    work.op = SendOp::kRead;
    work.remote_address = next.remote_address;
    work.key = next.key;
  }
  if (due_at_ < due_.size()) return;
  due_.clear();
  due_at_ = 0;
}

void TargetQueue::FillAnswers(SendChain& chain) {
  while (TargetCommand* const command = answers_.front()) {
    CommandWire& wire = WireOf(*command);
    if (!FillData(chain, wire)) return;
    if (room_ == 0 || chain.full() || sends_ == sends_max_) return SignalLast(chain, wire);
    FillEntry(chain, wire);
    answers_.PopFront();
  }
}

// Whether all of the answer's data is in works. What of it is in the chain otherwise ends with a signaled work.
bool TargetQueue::FillData(SendChain& chain, CommandWire& wire) {
  while (wire.cursor.bytes < wire.move_bytes) {
    const bool round_is_over = wire.cursor.bytes == wire.round_end_bytes;
    if (room_ == 0 || chain.full() || (round_is_over && !BeginRound(wire))) {
      SignalLast(chain, wire);
      return false;
    }
    const TransferWork next = NextWork(wire.cursor, wire.data.host(), MemoryOf(wire, options_.staging_out),
                                       wire.round_end_bytes, chain.pieces(pieces_max_));
    verbs::SendWork& work = chain.Add(next.pieces);
    work.id = WorkId{WorkKind::kWrite, generation_, &wire}.Pack();
    work.op = SendOp::kWrite;
    work.signaled = false;
    work.remote_address = next.remote_address;
    work.key = next.key;
    --room_;
    ++unsignaled_;
  }
  return true;
}

// Of staged data: whether the memory is free, and has the next part of the data now.
bool TargetQueue::BeginRound(CommandWire& wire) {
  // Of its own round before, the works in this chain are not signaled yet.
  if (staging_out_ != nullptr && (staging_out_ != &wire || wire.outstanding > 0 || unsignaled_ > 0))
    return false;
  staging_out_ = &wire;
  wire.round_from_bytes = wire.cursor.bytes;
  const uint32_t bytes = std::min(wire.move_bytes - wire.cursor.bytes, options_.staging_out.length_bytes);
  wire.round_end_bytes = wire.round_from_bytes + bytes;
  auto* const staging = std::bit_cast<uint8_t*>(options_.staging_out.address);
  CopyFrom(wire.command->data, wire.round_from_bytes, {staging, bytes});
  return true;
}

void TargetQueue::FillEntry(SendChain& chain, CommandWire& wire) {
  CompletionEntry* entry = &chain.entry();
  uint32_t key = 0;
  if (!copies_entries_) {
    entry = std::bit_cast<CompletionEntry*>(options_.entry_memory.address) + next_entry_;
    key = options_.entry_memory.local_key;
    next_entry_ = next_entry_ + 1 == sends_max_ ? 0 : next_entry_ + 1;
  }
  *entry = wire.entry;
  chain.pieces(1)[0] = {std::bit_cast<uint64_t>(entry), sizeof(CompletionEntry), key};
  verbs::SendWork& work = chain.Add(1);
  work.op = wire.data.invalidates ? SendOp::kSendAndInvalidate : SendOp::kSend;
  work.key = wire.data.key_to_invalidate;
  work.copies_data = copies_entries_;
  --room_;
  ++unsignaled_;
  ++sends_;
  --unanswered_;
  wire.sent = true;
  SignalLast(chain, wire);
}

// What the chain has of the answer, if it has any, ends here.
void TargetQueue::SignalLast(SendChain& chain, CommandWire& wire) {
  if (unsignaled_ == 0) return;
  verbs::SendWork& work = chain.last();
  work.id = WorkId{WorkKind::kAnswer, generation_, &wire}.Pack();
  work.signaled = true;
  ++wire.outstanding;
  parts_[PartAt(parts_begin_ + parts_count_++)] = std::exchange(unsignaled_, 0);
}

void TargetQueue::AnswerCompleted(CommandWire& wire, bool ok) {
  CLEAT_CHECK(wire.outstanding > 0 && parts_count_ > 0);
  --wire.outstanding;
  if (ok) {
    room_ += parts_[parts_begin_];
    parts_begin_ = PartAt(parts_begin_ + 1);
    --parts_count_;
  }
  const bool over = wire.outstanding == 0 && wire.sent;
  if (over && ok) --sends_;
  if (!ended_ && !answers_.empty()) adapter_.Line(*this);
  // Of one that fails, and with it the queue, the end gives it back.
  if (ended_ ? wire.outstanding == 0 : over && ok) LetGo(*wire.command);
}

}  // namespace cleat::nvme::rdma_target
