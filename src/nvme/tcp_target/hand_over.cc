// SPDX-License-Identifier: Apache-2.0
// A connection that goes on in another process: what that one is told, whether what it is told may be, and how it goes on.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/check.h"
#include "block/segments.h"
#include "nvme/tcp_target/saved_connection.h"
#include "nvme/tcp_target/target_connection.h"

namespace cleat::nvme::tcp {
namespace {

constexpr uint64_t kUnsentBytesMax = uint64_t{1} << 30;  // far above what is ever handed over

cleat::Status Wrong(std::string text) {
  return Error(ErrorCode::kInvalidArgument, std::move(text));
}

bool HasData(const SavedCommand& command) {
  return command.next == SavedCommand::Next::kAwaitData || command.next == SavedCommand::Next::kRunWithData;
}

// What the memory of the command's data has to hold.
uint64_t DataBytesOf(const SavedCommand& command) {
  if (!HasData(command)) return 0;
  return command.in_capsule ? command.data.size() : command.entry.data.length_bytes;
}

cleat::Status Check(const SavedCommand& command, uint32_t in_capsule_bytes) {
  using Next = SavedCommand::Next;
  const size_t has = command.data.size();
  const uint64_t whole = DataBytesOf(command);
  switch (command.next) {
    case Next::kRun:
    case Next::kHold:
      if (has > 0 || command.in_capsule) return Wrong("a command with data that it can't have");
      return Ok{};
    case Next::kAwaitData:
      if (command.in_capsule || has >= whole || whole > fabrics::kTransferBytesMax)
        return Wrong(
            fmt::format("a command that awaits data, of which {} of {} bytes have come", has, whole));
      return Ok{};
    case Next::kRunWithData:
      if (has == 0 || has != whole ||
          whole > (command.in_capsule ? in_capsule_bytes : fabrics::kTransferBytesMax) ||
          command.entry.data.length_bytes != whole)
        return Wrong(fmt::format("a command with {} bytes of data, where it has {}", has, whole));
      return Ok{};
  }
  return Wrong("a command of an unknown state");
}

}  // namespace

uint64_t BytesOf(const SavedConnection& saved) {
  uint64_t bytes = saved.received.size() + saved.unsent.size();
  for (const SavedCommand& command : saved.commands) bytes += sizeof(command) + command.data.size();
  return bytes;
}

uint64_t RoomOf(const SavedConnection& saved) {
  uint64_t bytes = 0;
  for (const SavedCommand& command : saved.commands) bytes += DataBytesOf(command);
  return bytes;
}

cleat::Status Check(const SavedConnection& saved, uint32_t entries_max, uint32_t in_capsule_bytes_max) {
  if (saved.entries < 2 || saved.entries > entries_max)
    return Wrong(fmt::format("a queue of {} entries, 2 to {} expected", saved.entries, entries_max));
  if (saved.in_capsule_bytes > in_capsule_bytes_max)
    return Wrong(fmt::format("{} bytes of data in a capsule", saved.in_capsule_bytes));
  if (saved.sq_head >= saved.entries) return Wrong(fmt::format("a head at entry {}", saved.sq_head));
  const uint32_t align = saved.data_align_bytes;
  if (align == 0 || align % kDataAlignUnitBytes != 0 ||
      align > (uint32_t{kDataAlignMax} + 1) * kDataAlignUnitBytes)
    return Wrong(fmt::format("data at multiples of {} bytes", align));
  if (saved.received.size() > kSavedReceivedBytesMax || saved.unsent.size() > kUnsentBytesMax)
    return Wrong(fmt::format("{} bytes received and {} to send", saved.received.size(), saved.unsent.size()));
  if (saved.commands.size() > saved.entries)
    return Wrong(fmt::format("{} commands in {} entries", saved.commands.size(), saved.entries));
  std::set<std::pair<uint16_t, uint16_t>> tags;
  for (const SavedCommand& command : saved.commands) {
    CLEAT_TRY(Check(command, saved.in_capsule_bytes));
    if (command.next == SavedCommand::Next::kAwaitData &&
        !tags.emplace(command.tag, command.entry.cid).second)
      return Wrong(fmt::format("two commands that await data by the tag {:#x}", command.tag));
  }
  return Ok{};
}

// ---- The process that gives it away

// Of data that was asked for what came by PDUs that are whole: the one that is under way begins anew.
SavedCommand TargetConnection::SavedOf(const TargetCommand& command) const {
  SavedCommand saved;
  saved.entry = command.entry;
  saved.in_capsule = command.in_capsule;
  saved.digest_is_wrong = WireOf(command).digest_is_wrong;
  saved.data.resize(command.moved_bytes);
  if (command.moved_bytes > 0) block::Gather(command.data, 0, saved.data.data(), command.moved_bytes);
  if (command.state == TargetCommand::State::kAsked) {
    saved.next = SavedCommand::Next::kAwaitData;
    const auto restored = restored_.find(&command);
    saved.tag = restored == restored_.end() ? command.tag : restored->second.tag;
  } else if (command.moved_bytes > 0) {
    saved.next = SavedCommand::Next::kRunWithData;
  }
  return saved;
}

SavedConnection TargetConnection::Save() {
  CLEAT_CHECK(connected_ && !ended_);
  SavedConnection saved;
  saved.entries = entries_;
  saved.in_capsule_bytes = in_capsule_bytes_;
  saved.flow_control = flow_control_;
  saved.header_digest = responses_.digests().header;
  saved.data_digest = responses_.digests().data;
  saved.data_align_bytes = responses_.data_align_bytes();
  saved.sq_head = sq_head_;
  receiver_.SaveTo(saved.received);
  std::array<iovec, 64> pieces;
  while (const uint32_t count = FillSend(pieces)) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const auto* const at = static_cast<const uint8_t*>(pieces[i].iov_base);
      saved.unsent.insert(saved.unsent.end(), at, at + pieces[i].iov_len);
      bytes += pieces[i].iov_len;
    }
    Sent(bytes);
  }
  ended_ = true;
  receiving_ = nullptr;
  asked_ = 0;
  while (TargetCommand* const command = of_queue_.front()) {
    // One whose capsule is under way comes anew.
    if (command->state != TargetCommand::State::kReceiving) saved.commands.push_back(SavedOf(*command));
    LetGo(*command);
  }
  return saved;
}

// ---- The process that takes it

void TargetConnection::Restore(SavedConnection& saved) {
  CLEAT_CHECK(!connected_ && !ended_ && commands_ == 0);
  connected_ = true;
  BecomeQueue(saved.entries, saved.flow_control, saved.in_capsule_bytes);
  sq_head_ = saved.sq_head;
  const Digests digests{.header = saved.header_digest, .data = saved.data_digest};
  receiver_.set_digests(digests);
  receiver_.Restore(std::move(saved.received));
  responses_.Restore(digests, saved.data_align_bytes, std::move(saved.unsent));
}

void TargetConnection::TakeBack(TargetCommand& command, SavedCommand& saved) {
  CLEAT_CHECK(command.state == TargetCommand::State::kFree && !ended_);
  command.entry = saved.entry;
  command.in_capsule = saved.in_capsule;
  command.moved_bytes = static_cast<uint32_t>(saved.data.size());
  command.data_bytes = saved.in_capsule ? command.moved_bytes : saved.entry.data.length_bytes;
  command.MakeWire<Wire>().digest_is_wrong = saved.digest_is_wrong;
  Begin(command);
  if (HasData(saved)) {
    Restored& restored = restored_[&command];
    restored.command = &command;
    restored.tag = saved.tag;
    // Memory that the kernel gives only as data comes.
    restored.bytes = std::make_unique_for_overwrite<uint8_t[]>(command.data_bytes);
    std::ranges::copy(saved.data, restored.bytes.get());
    restored.region = block::MemoryRegion::Borrow(restored.bytes.get(), command.data_bytes);
    restored.segment = {restored.region.get(), 0, command.data_bytes};
    command.data = {&restored.segment, 1};
  }
  const bool awaits = saved.next == SavedCommand::Next::kAwaitData;
  command.state = awaits ? TargetCommand::State::kAsked : TargetCommand::State::kRunning;
  asked_ += awaits ? 1 : 0;
}

// There are few, and soon none.
TargetCommand* TargetConnection::FindRestored(uint16_t tag, uint16_t cid) const {
  const auto found = std::ranges::find_if(restored_, [tag, cid](const auto& known) {
    const Restored& restored = known.second;
    return restored.command->state == TargetCommand::State::kAsked && restored.tag == tag &&
           restored.command->entry.cid == cid;
  });
  return found == restored_.end() ? nullptr : found->second.command;
}

}  // namespace cleat::nvme::tcp
