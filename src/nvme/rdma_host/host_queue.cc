// SPDX-License-Identifier: Apache-2.0
#include "nvme/rdma_host/host_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "block/segments.h"
#include "nvme/fabrics/queues/target_queue.h"
#include "nvme/rdma/keyed_sgl.h"

namespace cleat::nvme::rdma_host {
namespace {

using fabrics::CompletionEntry;
using fabrics::SubmissionEntry;
using verbs::WorkStatus;

constexpr uint32_t kEntryBytes = sizeof(SubmissionEntry);

uint64_t AddressOf(const uint8_t* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

// Where the controller finds the command's data: in its capsule, behind its window, or nowhere.
fabrics::SglDescriptor DescriptorOf(const HostCommand& command) {
  if (!command.in_capsule) {
    const bool has_data = command.data_bytes > 0;
    const uint64_t address = has_data ? AddressOf(command.piece.data()) : 0;
    return rdma::EntryDescriptorOf(
        rdma::MakeKeyed(address, command.data_bytes, has_data ? command.key : 0, has_data));
  }
  fabrics::SglDescriptor descriptor;
  descriptor.length_bytes = command.data_bytes;
  descriptor.type = fabrics::kSglInCapsule;
  return descriptor;
}

// What the segments are in one piece; nullopt: they do not lie side by side in one region.
std::optional<block::Segment> InOnePiece(std::span<const block::Segment> segments) {
  block::Segment piece;
  for (const block::Segment& segment : segments) {
    if (segment.length_bytes == 0) continue;
    if (piece.length_bytes == 0) {
      piece = segment;
    } else if (segment.region == piece.region &&
               segment.offset_bytes == piece.offset_bytes + piece.length_bytes) {
      piece.length_bytes += segment.length_bytes;
    } else {
      return std::nullopt;
    }
  }
  return piece;
}

uint32_t CommandsOf(const HostQueueOptions& options) {
  CLEAT_CHECK(options.entries > 1 && options.entries - 1 <= fabrics::CommandIds::kCommandsMax);
  return options.entries - 1;
}

}  // namespace

HostQueue::HostQueue(HostAdapter& adapter, verbs::QueuePair& pair, const HostQueueOptions& options,
                     fabrics::QueuePairOwner& owner)
    : adapter_(adapter),
      pair_(&pair),
      owner_(owner),
      name_(options.name),
      target_name_(options.target),
      limits_(pair.limits()),
      number_(pair.number()),
      table_(CommandsOf(options)),
      free_(table_.size()),
      free_count_(CommandsOf(options)),
      ids_(free_count_),
      room_(limits_.works),
      on_broken_(options.on_broken) {
  CLEAT_CHECK(adapter.CheckRoom(options.entries, limits_).ok());
  for (uint32_t i = 0; i < free_count_; ++i) {
    table_[i].queue = this;
    table_[i].number = static_cast<uint16_t>(i);
    free_[i] = static_cast<uint16_t>(free_count_ - 1 - i);
  }
  set_in_capsule_bytes(options.in_capsule_bytes);
  owner_of_data_ = adapter_.Attach(*this, target_name_);
}

HostQueue::~HostQueue() {
  CLEAT_CHECK(pair_ == nullptr);
}

// ---- For the owner

void HostQueue::set_in_capsule_bytes(uint32_t bytes) {
  in_capsule_bytes_ = std::min(bytes, adapter_.options().in_capsule_bytes);
}

void HostQueue::Submit(const fabrics::QueuedCommand& command) {
  CLEAT_CHECK(room() > 0);
  const uint64_t to_bytes = block::SumBytes(command.to_target);
  const uint64_t from_bytes = block::SumBytes(command.from_target);
  CLEAT_CHECK(to_bytes == 0 || from_bytes == 0);
  CLEAT_CHECK(to_bytes + from_bytes <= fabrics::kTransferBytesMax);
  HostCommand& taken = Take();
  taken.entry = command.entry;
  taken.to_target = command.to_target;
  taken.from_target = command.from_target;
  taken.cookie = command.cookie;
  taken.data_bytes = static_cast<uint32_t>(to_bytes + from_bytes);
  taken.in_capsule = to_bytes > 0 && to_bytes <= in_capsule_bytes_;
  taken.is_large = taken.data_bytes > DataShares::kSmallBytesMax;
  taken.direct = nullptr;
  if (taken.needs_window() && adapter_.options().direct != nullptr) FindDirect(taken);
  adapter_.Wait(taken);
}

void HostQueue::Abort(const Error& reason) {
  if (!ended_) End(reason);
}

// ---- Commands

HostCommand& HostQueue::Take() {
  HostCommand& command = table_[free_[--free_count_]];
  command.cid = ids_.Take(command.number);
  command.in_use = true;
  command.posted = command.sent = command.answered = false;
  commands_.PushBack(command);
  return command;
}

void HostQueue::FindDirect(HostCommand& command) {
  const auto piece = InOnePiece(command.to_target.empty() ? command.from_target : command.to_target);
  if (!piece) return;
  command.direct = adapter_.options().direct->Find(*piece->region);
  if (command.direct != nullptr) command.piece = *piece;
}

HostCommand* HostQueue::Find(uint16_t cid) {
  const uint16_t number = ids_.Find(cid);
  if (number == fabrics::CommandIds::kNoNumber) return nullptr;
  HostCommand& command = table_[number];
  return command.cid == cid ? &command : nullptr;
}

void HostQueue::Free(HostCommand& command) {
  CLEAT_CHECK(command.in_use);
  command.in_use = false;
  command.of_queue.Unlink();
  ids_.Free(command.cid);
  free_[free_count_++] = command.number;
}

void HostQueue::Placed(HostCommand& command) {
  to_post_.PushBack(command);
  adapter_.Line(*this);
}

bool HostQueue::IsOver(const HostCommand& command) {
  return command.sent && command.answered && command.window == WindowState::kShut;
}

// The memory is given back before the owner hears of it, so that the owner has room for the next.
void HostQueue::CompleteIfOver(HostCommand& command) {
  if (!IsOver(command)) return;
  const CompletionEntry answer = command.answer;
  const uint64_t cookie = command.cookie;
  const uint64_t data_bytes = TakeData(command);
  adapter_.Give(command);
  Free(command);
  owner_.Completed(cookie, answer, data_bytes);
}

// The command is answered. Returns how many bytes the owner has now.
uint64_t HostQueue::TakeData(const HostCommand& command) {
  if (command.from_target.empty() || command.data_bytes == 0 || !command.answer.status().ok()) return 0;
  if (command.direct == nullptr)
    block::Scatter(command.piece.data(), command.data_bytes, command.from_target, 0);
  return command.data_bytes;
}

void HostQueue::Received(const CompletionEntry& entry, const verbs::Completion& completion) {
  if (ended_) return;
  if (completion.received_bytes != sizeof(entry)) {
    return Refuse(fmt::format("a message of {} bytes; a completion entry has {}", completion.received_bytes,
                              sizeof(entry)));
  }
  HostCommand* const command = Find(entry.cid);
  const auto refuse = [&](const char* why) {
    Refuse(fmt::format("a completion entry for CID {:#x}, {}", entry.cid, why));
  };
  if (command == nullptr) return refuse("which no command has");
  if (!command->posted) return refuse("whose command was not sent yet");
  if (command->answered) return refuse("which was answered");
  const bool invalidates = completion.key_was_invalidated;
  if (invalidates && (command->window != WindowState::kOpen || completion.invalidated_key != command->key)) {
    return Refuse(
        fmt::format("a completion entry for CID {:#x} that invalidates key {:#x}, which its command "
                    "does not have",
                    entry.cid, completion.invalidated_key));
  }
  command->answer = entry;
  command->answered = true;
  if (invalidates) {
    command->window = WindowState::kShut;
  } else if (command->window == WindowState::kOpen) {
    command->window = WindowState::kShutting;
    to_shut_.PushBack(*command);
    adapter_.Line(*this);
  }
  CompleteIfOver(*command);
}

void HostQueue::Completed(WorkKind kind, uint32_t number, WorkStatus status) {
  const bool ok = status == WorkStatus::kDone;
  if (kind == WorkKind::kBind) {
    if (last_binding_ == number) {
      last_binding_.reset();
      --outstanding_;
    }
    return Failed("the binding of a memory window", status);
  }
  CLEAT_CHECK(number < table_.size() && outstanding_ > 0);
  HostCommand& command = table_[number];
  --outstanding_;
  if (!ok) {
    return Failed(kind == WorkKind::kSend ? "a capsule" : "the end of a memory window", status);
  }
  // What is parked stays as it is.
  if (ended_) return;
  if (kind == WorkKind::kSend) {
    CLEAT_CHECK(command.posted && !command.sent);
    command.sent = true;
    room_ += command.works();
  } else {
    CLEAT_CHECK(command.window == WindowState::kShutting);
    command.window = WindowState::kShut;
    ++room_;
  }
  if (!to_post_.empty() || !to_shut_.empty()) adapter_.Line(*this);
  CompleteIfOver(command);
}

// ---- The end

void HostQueue::Refuse(const std::string& rule) {
  Abort({ErrorCode::kIo,
         fmt::format("{}: connection ended, the controller sent what it may not: {}; look for a fault of the "
                     "controller or the network",
                     name_, rule)});
}

void HostQueue::Failed(const char* what, WorkStatus status) {
  Abort({ErrorCode::kUnavailable,
         fmt::format("{}: connection ended: {}: {}", name_, what, verbs::NameOf(status))});
}

// What was posted keeps what it has of the adapter's until Destroyed. The owner's calls change nothing of the list: there is no room any more.
void HostQueue::End(const Error& reason) {
  ended_ = true;
  pair_->Break();
  turn.Unlink();
  for (HostCommand* command = commands_.front(); command != nullptr; command = commands_.Next(*command)) {
    if (command->waits.linked()) command->waits.Unlink();
    if (command->shows_owners_memory()) ++late_;
  }
  if (on_broken_) on_broken_(reason);
  HostCommand* next = nullptr;
  for (HostCommand* command = commands_.front(); command != nullptr; command = next) {
    next = commands_.Next(*command);
    if (command->shows_owners_memory()) continue;
    if (!command->posted && command->window == WindowState::kShut) {
      adapter_.Give(*command);
      Free(*command);
    }
    TellEnd(*command);
  }
  if (late_ > 0) {
    reason_ = reason;
  } else {
    owner_.Ended(reason);
  }
}

void HostQueue::TellEnd(const HostCommand& command) {
  if (command.answered) return owner_.Completed(command.cookie, command.answer, TakeData(command));
  owner_.Unanswered(command.cookie,
                    command.posted ? fabrics::Reached::kPerhapsAll : fabrics::Reached::kNothing);
}

std::vector<verbs::MemoryWindow*> HostQueue::bound() {
  CLEAT_CHECK(ended_);
  std::vector<verbs::MemoryWindow*> windows;
  for (HostCommand* command = commands_.front(); command != nullptr; command = commands_.Next(*command)) {
    if (command->window != WindowState::kShut) windows.push_back(command->place->window);
  }
  return windows;
}

void HostQueue::Destroyed(std::span<verbs::MemoryWindow* const> windows) {
  CLEAT_CHECK(ended_ && pair_ != nullptr);
  pair_ = nullptr;
  outstanding_ = 0;
  HostCommand* next = nullptr;
  for (HostCommand* command = commands_.front(); command != nullptr; command = next) {
    next = commands_.Next(*command);
    const bool is_late = command->shows_owners_memory();
    GiveBack(*command, windows);
    if (!is_late) Free(*command);
  }
  CLEAT_CHECK(windows.empty());
  adapter_.Detach(*this);
  if (std::exchange(late_, 0) == 0) return;
  while (HostCommand* const late = commands_.front()) {
    TellEnd(*late);
    Free(*late);
  }
  owner_.Ended(*reason_);
}

// A window that is bound takes the first of `windows` as its replacement.
void HostQueue::GiveBack(HostCommand& command, std::span<verbs::MemoryWindow* const>& windows) {
  if (command.window == WindowState::kShut) return adapter_.Give(command);
  CLEAT_CHECK(!windows.empty());
  command.window = WindowState::kShut;
  adapter_.Give(command, windows.front());
  windows = windows.subspan(1);
}

// ---- Works

void HostQueue::Post(WorkChain& chain) {
  while (!ended_) {
    chain.Clear();
    FillInvalidates(chain);
    FillCommands(chain);
    const auto works = chain.works();
    if (works.empty()) return;
    const uint32_t posted = pair_->Post(works);
    if (posted == works.size()) continue;
    NotPosted(works.subspan(posted));
    Abort({ErrorCode::kUnavailable,
           fmt::format("{}: connection ended: the adapter takes no more works of the queue pair", name_)});
  }
}

void HostQueue::NotPosted(std::span<const verbs::SendWork> works) {
  for (const verbs::SendWork& work : works) {
    const WorkId id = WorkId::Of(work.id);
    HostCommand& command = table_[id.number];
    if (id.kind == WorkKind::kBind) {
      command.window = WindowState::kShut;
      continue;
    }
    --outstanding_;
    if (id.kind == WorkKind::kSend) command.posted = false;
  }
  // A binding that was taken without its SEND: nothing but an error or the queue pair's end says that it is over.
  const WorkId first = WorkId::Of(works.front().id);
  if (first.kind != WorkKind::kSend || table_[first.number].window == WindowState::kShut) return;
  last_binding_ = static_cast<uint16_t>(first.number);
  ++outstanding_;
}

// First, so that what waits for their end is over before others begin.
void HostQueue::FillInvalidates(WorkChain& chain) {
  while (room_ > 0 && chain.room() > 0) {
    HostCommand* const command = to_shut_.PopFront();
    if (command == nullptr) return;
    chain.AddInvalidate(IdOf(WorkKind::kInvalidate, *command), command->key);
    --room_;
    ++outstanding_;
  }
}

void HostQueue::FillCommands(WorkChain& chain) {
  while (HostCommand* const command = to_post_.front()) {
    if (std::min(room_, chain.room()) < command->works()) return;
    to_post_.PopFront();
    if (command->needs_window()) FillBinding(chain, *command);
    FillCapsule(chain, *command);
    room_ -= command->works();
    ++outstanding_;
  }
}

void HostQueue::FillBinding(WorkChain& chain, HostCommand& command) {
  const bool is_write = !command.to_target.empty();
  const block::Segment& piece = command.piece;
  if (command.needs_piece()) {
    if (is_write) block::Gather(command.to_target, 0, piece.data(), command.data_bytes);
    adapter_.data().Clear(piece, is_write ? command.data_bytes : 0, owner_of_data_);
  }
  command.key = command.place->window->NextKey();
  command.window = WindowState::kOpen;
  chain.AddBinding(
      IdOf(WorkKind::kBind, command),
      {.window = command.place->window,
       .key = command.key,
       .registration = command.needs_piece() ? adapter_.options().data_registration : command.direct,
       .address = AddressOf(piece.data()),
       .length_bytes = command.data_bytes,
       .peer_may_read = is_write,
       .peer_may_write = !is_write});
}

void HostQueue::FillCapsule(WorkChain& chain, HostCommand& command) {
  SubmissionEntry& entry = command.entry;
  entry.cid = command.cid;
  entry.flags = fabrics::kFlagsSgl;
  entry.data = DescriptorOf(command);
  uint8_t* const capsule = adapter_.CapsuleOf(*command.place);
  std::memcpy(capsule, &entry, kEntryBytes);
  uint32_t bytes = kEntryBytes;
  if (command.in_capsule) {
    block::Gather(command.to_target, 0, capsule + kEntryBytes, command.data_bytes);
    bytes += command.data_bytes;
  }
  chain.AddSend(IdOf(WorkKind::kSend, command),
                {AddressOf(capsule), bytes, adapter_.options().slot_memory.local_key},
                bytes <= limits_.inline_bytes);
  command.posted = true;
}

}  // namespace cleat::nvme::rdma_host
