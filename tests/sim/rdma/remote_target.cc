// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/remote_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/sim/rdma/storage_model.h"

namespace cleat::sim::rdma {
namespace {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::SubmissionEntry;
using nvme::rdma::DataPlace;

constexpr uint64_t kWorkNs = 4'000;    // that a command takes, at most
constexpr uint64_t kRepostNs = 1'000;  // until memory for a capsule is there again, at most
constexpr uint64_t kLateNs = 60'000;   // that a controller is late, at most, in one case of two
constexpr uint64_t kSoonNs = 10'000;   // ... in the other
constexpr uint64_t kWhileNs = 60'000;  // until one is silent or gone, at most
constexpr uint64_t kFailsPercent = 5;
constexpr uint16_t kInvalidField = 2;
constexpr uint32_t kEntryBytes = sizeof(SubmissionEntry);

}  // namespace

RemoteTarget::RemoteTarget(ModelWorld& world, const RemoteTargetOptions& options,
                           std::vector<ShownMemory>& shown)
    : world_(world),
      options_(options),
      shown_(shown),
      disk_(size_t{options.entries} * kPartBytes, static_cast<uint8_t>(options.mark << 4)),
      receives_(options.entries) {}

void RemoteTarget::Start(InitiatorPair& pair) {
  pair_ = &pair;
  const uint64_t when_ns = world_.random.Below(kWhileNs);
  if (options_.kind == TargetKind::kSilent) world_.After(when_ns, [this] { silent_ = true; });
  if (options_.kind == TargetKind::kDisconnects) {
    world_.After(when_ns, [this] {
      if (pair_ != nullptr) pair_->FarDisconnects();
    });
  }
}

bool RemoteTarget::TakeReceive() {
  if (receives_ == 0) return false;
  --receives_;
  world_.After(world_.random.Below(kRepostNs), [this] { ++receives_; });
  return true;
}

void RemoteTarget::Arrived(std::vector<uint8_t> capsule) {
  auto command = std::make_shared<Command>();
  if (capsule.size() < kEntryBytes) return world_.Wrong("a capsule without an entry");
  std::memcpy(&command->entry, capsule.data(), kEntryBytes);
  arrived(command->entry.cdw12);
  const std::span behind = std::span(capsule).subspan(kEntryBytes);
  if (command->entry.flags != nvme::fabrics::kFlagsSgl) world_.Wrong("a command without an SGL");
  if (const auto wrong = nvme::rdma::ParseData(command->entry, behind, command->data))
    return world_.Wrong(fmt::format("a command with a wrong descriptor: {:#x}", wrong->field()));
  if (command->data.place == DataPlace::kInCapsule) {
    command->bytes.assign(behind.begin(), behind.end());
    if (command->data.offset_bytes != 0 || command->data.bytes != behind.size())
      world_.Wrong("data in a capsule that is not all of what is there");
    CheckMarks(command->bytes);
  } else if (command->data.place == DataPlace::kHostMemory) {
    if (!command->data.invalidates || command->data.piece_count != 1)
      world_.Wrong("a descriptor whose key is not to be invalidated");
    shown_.push_back(MemoryOf(*command));
  }
  if (!active_.emplace(command->entry.cid, command).second) world_.Wrong("two commands of one CID");
  if (active_.size() >= options_.entries && options_.kind != TargetKind::kAnswersOthers)
    world_.Wrong("more commands than the queue has entries for");
  world_.After(world_.random.Below(kWorkNs), [this, command] { Begin(command); });
}

ShownMemory RemoteTarget::MemoryOf(const Command& command) const {
  if (command.data.place != DataPlace::kHostMemory) return {};
  const nvme::rdma::HostPiece& piece = command.data.pieces[0];
  return {piece.key, piece.address, piece.length_bytes};
}

void RemoteTarget::Begin(const CommandPtr& command) {
  if (pair_ == nullptr || silent_) return;
  if (Misbehaves()) return Misbehave(command);
  Serve(command);
}

void RemoteTarget::Serve(const CommandPtr& command) {
  if (world_.Chance(kFailsPercent)) return Answer(command, kInvalidField);
  const bool is_write = command->entry.opcode == kOpcodeWrite;
  if (is_write && command->data.place == DataPlace::kHostMemory)
    return ReadData(command, [this, command] { Execute(command); });
  Execute(command);
}

void RemoteTarget::ReadData(const CommandPtr& command, std::function<void()> then) {
  const ShownMemory memory = MemoryOf(*command);
  command->bytes.assign(memory.bytes, 0);
  const uint32_t first =
      world_.Chance(50) ? memory.bytes : static_cast<uint32_t>(world_.random.Below(memory.bytes));
  for (const auto& [from, to] : {std::pair{0U, first}, std::pair{first, memory.bytes}}) {
    if (from == to) continue;
    ++command->reads;
    FarWork work;
    work.op = FarWork::Op::kRead;
    work.key = memory.key;
    work.address = memory.address + from;
    work.read_bytes = to - from;
    work.done = [this, command, from, then](const std::vector<uint8_t>& bytes) {
      CheckMarks(bytes);
      std::copy(bytes.begin(), bytes.end(), command->bytes.begin() + from);
      if (--command->reads == 0) then();
    };
    pair_->Far(std::move(work));
  }
}

void RemoteTarget::Execute(const CommandPtr& command) {
  if (pair_ == nullptr) return;
  const uint32_t offset = command->entry.cdw10;
  if (offset + command->data.bytes > disk_.size()) return world_.Wrong("a command beyond the disk");
  if (command->entry.opcode == kOpcodeWrite) {
    if (command->bytes.size() != command->data.bytes || !wrote(offset, command->bytes))
      world_.Wrong("a write is executed with other data than was submitted");
    std::copy(command->bytes.begin(), command->bytes.end(), disk_.begin() + offset);
  } else if (command->data.bytes > 0) {
    WriteData(command);
  }
  Answer(command, 0);
}

void RemoteTarget::WriteData(const CommandPtr& command) {
  const ShownMemory memory = MemoryOf(*command);
  const auto* const from = disk_.data() + command->entry.cdw10;
  const uint32_t first =
      world_.Chance(50) ? memory.bytes : static_cast<uint32_t>(world_.random.Below(memory.bytes));
  for (const auto& [begin, end] : {std::pair{0U, first}, std::pair{first, memory.bytes}}) {
    if (begin == end) continue;
    FarWork work;
    work.op = FarWork::Op::kWrite;
    work.key = memory.key;
    work.address = memory.address + begin;
    work.data.assign(from + begin, from + end);
    pair_->Far(std::move(work));
  }
}

void RemoteTarget::Answer(const CommandPtr& command, uint16_t status) {
  active_.erase(command->entry.cid);
  const ShownMemory memory = MemoryOf(*command);
  const bool invalidates = memory.bytes > 0 && world_.Chance(options_.invalidates_percent);
  Send(command->entry.cid, status, invalidates, memory.key, sizeof(CompletionEntry));
}

void RemoteTarget::Send(uint16_t cid, uint16_t status, bool invalidates, uint32_t key, size_t bytes) {
  if (pair_ == nullptr) return;
  CompletionEntry entry;
  entry.cid = cid;
  entry.status_field = static_cast<uint16_t>(status << 1);
  FarWork work;
  work.data.assign(std::max(bytes, sizeof(entry)), 0);
  std::memcpy(work.data.data(), &entry, sizeof(entry));
  work.data.resize(bytes);
  work.invalidates = invalidates;
  work.key = key;
  pair_->Far(std::move(work));
}

// ---- What a controller may not do

std::vector<uint8_t> RemoteTarget::Marked(size_t bytes) {
  return std::vector<uint8_t>(bytes, static_cast<uint8_t>(options_.mark << 4 | world_.random.Below(16)));
}

void RemoteTarget::CheckMarks(const std::vector<uint8_t>& bytes) {
  const bool own = std::all_of(bytes.begin(), bytes.end(),
                               [&](uint8_t byte) { return byte == 0 || byte >> 4 == options_.mark; });
  if (!own) world_.Wrong("a controller has read what is not its own");
}

void RemoteTarget::AccessLater(const ShownMemory& memory, bool is_shown) {
  if (memory.bytes == 0) return;
  world_.After(world_.random.Below(world_.Chance(50) ? kLateNs : kSoonNs), [this, memory, is_shown] {
    if (pair_ == nullptr) return;
    FarWork work;
    work.key = memory.key;
    work.address = memory.address;
    if (world_.Chance(50)) {
      work.op = FarWork::Op::kWrite;
      work.data = Marked(memory.bytes);
    } else {
      work.op = FarWork::Op::kRead;
      work.read_bytes = memory.bytes;
      work.done = [this](const std::vector<uint8_t>& bytes) { CheckMarks(bytes); };
    }
    if (!is_shown)
      work.done = [this](const auto&) { world_.Wrong("a controller has reached beyond its window"); };
    pair_->Far(std::move(work));
  });
}

void RemoteTarget::Misbehave(const CommandPtr& command) {
  constexpr uint32_t kFlood = 100;
  const uint16_t cid = command->entry.cid;
  const ShownMemory memory = MemoryOf(*command);
  const bool invalidates = memory.bytes > 0 && world_.Chance(options_.invalidates_percent);
  constexpr size_t kBytes = sizeof(CompletionEntry);
  switch (options_.kind) {
    case TargetKind::kAccessesLate:
      Serve(command);
      return AccessLater(memory);
    case TargetKind::kAnswersTwice:
      Answer(command, 0);
      return Send(cid, 0, invalidates && world_.Chance(50), memory.key, kBytes);
    case TargetKind::kAnswersOthers: {
      const auto other =
          static_cast<uint16_t>(world_.Chance(50) ? cid + world_.random.Below(4) : world_.random.Next());
      return Send(other, 0, invalidates && world_.Chance(50), memory.key, kBytes);
    }
    case TargetKind::kWrongLength:
      active_.erase(cid);
      return Send(cid, 0, invalidates, memory.key, world_.random.Below(40));
    case TargetKind::kWrongKey: {
      const ShownMemory other = shown_.empty() ? memory : shown_[world_.random.Below(shown_.size())];
      active_.erase(cid);
      return Send(cid, 0, true, world_.Chance(70) ? other.key : static_cast<uint32_t>(world_.random.Next()),
                  kBytes);
    }
    case TargetKind::kAnswersEarly:
      AccessLater(memory);
      return Answer(command, 0);
    case TargetKind::kOutOfWindow:
      if (memory.bytes > 0)
        AccessLater({memory.key, memory.address - world_.random.Below(2), memory.bytes + 1}, false);
      return Serve(command);
    case TargetKind::kOldKeys:
      for (uint32_t i = 0; i < 3 && !shown_.empty(); ++i)
        AccessLater(shown_[world_.random.Below(shown_.size())]);
      return Serve(command);
    case TargetKind::kFloods:
      for (uint32_t i = 0; i < kFlood; ++i)
        Send(static_cast<uint16_t>(world_.random.Next()), 0, false, 0, kBytes);
      return;
    default:
      return Answer(command, 0);
  }
}

}  // namespace cleat::sim::rdma
