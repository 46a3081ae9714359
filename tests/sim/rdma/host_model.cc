// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/host_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "nvme/rdma/keyed_sgl.h"
#include "tests/sim/rdma/storage_model.h"

namespace cleat::sim::rdma {
namespace {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::SubmissionEntry;
using nvme::rdma::KeyedDescriptor;

constexpr uint64_t kThinkNs = 3'000;   // before a command, at most
constexpr uint64_t kRepostNs = 1'000;  // until memory for an answer is there again, at most
constexpr uint32_t kMisbehavePercent = 15;
constexpr uint8_t kUntouched = 0x55;

template <typename Value>
void Append(std::vector<uint8_t>& bytes, const Value& value) {
  const auto* const from = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), from, from + sizeof(value));
}

}  // namespace

HostModel::HostModel(ModelWorld& world, const HostOptions& options, const std::vector<uint8_t>& disk)
    : world_(world),
      options_(options),
      disk_(disk),
      commands_(options.entries),
      content_(disk.size()),
      receives_(options.entries) {}

void HostModel::Start(ModelQueuePair& pair) {
  pair_ = &pair;
  for (uint32_t i = 0; i < options_.entries; ++i)
    world_.After(world_.random.Below(kThinkNs), [this] { Issue(); });
  constexpr uint64_t kWhileNs = 60'000;
  const uint64_t when_ns = world_.random.Below(kWhileNs);
  if (options_.kind == HostKind::kSilent) world_.After(when_ns, [this] { silent_ = true; });
  if (options_.kind == HostKind::kDisconnects) {
    world_.After(when_ns, [this] {
      if (pair_ != nullptr) pair_->HostDisconnects();
    });
  }
}

void HostModel::Issue() {
  if (pair_ == nullptr || broken_ || silent_ || issued_ == options_.commands) return;
  for (uint16_t cid = 0; cid < commands_.size(); ++cid) {
    if (commands_[cid].busy) continue;
    ++issued_;
    return IssueOne(cid);
  }
}

// Each CID has a part of the disk of its own, so that what a read gives is known whatever the order.
void HostModel::IssueOne(uint16_t cid) {
  Command& command = commands_[cid];
  command = {};
  command.busy = true;
  constexpr uint32_t kPartBytes = 6144;
  static constexpr uint32_t kSizes[] = {512, 4096, kPartBytes, 1024, 3000, 1};
  command.bytes = kSizes[world_.random.Below(std::size(kSizes))];
  const uint32_t offset =
      cid * kPartBytes + static_cast<uint32_t>(world_.random.Below(kPartBytes - command.bytes + 1));
  const uint64_t what = world_.random.Below(10);
  command.entry.opcode = what == 0 ? kOpcodeFlush : what < 6 ? kOpcodeWrite : kOpcodeRead;
  command.entry.flags = nvme::fabrics::kFlagsSgl;
  command.entry.cid = cid;
  command.entry.cdw10 = offset;
  if (command.entry.opcode == kOpcodeFlush) command.bytes = 0;
  command.memory.assign(command.bytes, kUntouched);
  if (command.entry.opcode == kOpcodeWrite) {
    for (uint8_t& byte : command.memory) byte = static_cast<uint8_t>(world_.random.Next());
    std::copy(command.memory.begin(), command.memory.end(), content_.begin() + offset);
  }
  command.expected.assign(content_.begin() + offset, content_.begin() + offset + command.bytes);
  std::vector<uint8_t> capsule(sizeof(SubmissionEntry));
  Describe(cid, capsule);
  std::memcpy(capsule.data(), &command.entry, sizeof(command.entry));
  if (options_.kind != HostKind::kGood && world_.Chance(kMisbehavePercent)) Misbehave(command, capsule);
  pair_->HostSends(std::move(capsule));
}

void HostModel::Describe(uint16_t cid, std::vector<uint8_t>& capsule) {
  Command& command = commands_[cid];
  const uint64_t how = world_.random.Below(10);
  if (command.bytes == 0) {
    command.entry.data.type = nvme::rdma::kSglKeyed;
    return;
  }
  if (how < 4 && command.entry.opcode == kOpcodeWrite && command.bytes + 8 <= options_.in_capsule_bytes) {
    const uint32_t at = how < 2 ? 0 : 8;
    command.entry.data = {
        .address = at, .length_bytes = command.bytes, .reserved = {}, .type = nvme::fabrics::kSglInCapsule};
    capsule.resize(capsule.size() + at);
    capsule.insert(capsule.end(), command.memory.begin(), command.memory.end());
    return;
  }
  const bool invalidates = world_.Chance(60);
  uint64_t address = 0;
  if (how < 7 || options_.in_capsule_bytes < nvme::rdma::kDescriptorsMax * nvme::rdma::kDescriptorBytes) {
    const uint32_t key = ShowMemory(cid, 0, command.bytes, address);
    command.key_to_invalidate = invalidates ? key : 0;
    command.entry.data =
        nvme::rdma::EntryDescriptorOf(nvme::rdma::MakeKeyed(address, command.bytes, key, invalidates));
    return;
  }
  // Several, by one key or each by its own.
  const uint32_t most = std::min(command.bytes, nvme::rdma::kDescriptorsMax);
  const auto count = static_cast<uint32_t>(world_.random.Between(1, most));
  uint32_t shared = 0;
  if (invalidates) command.key_to_invalidate = shared = ShowMemory(cid, 0, command.bytes, address);
  for (uint32_t i = 0, offset = 0; i < count; ++i) {
    const uint32_t bytes = i + 1 == count ? command.bytes - offset : command.bytes / count;
    uint64_t piece_address = address + offset;
    const uint32_t key = invalidates ? shared : ShowMemory(cid, offset, bytes, piece_address);
    Append(capsule, nvme::rdma::MakeKeyed(piece_address, bytes, key, invalidates));
    offset += bytes;
  }
  command.entry.data = {.address = 0,
                        .length_bytes = count * nvme::rdma::kDescriptorBytes,
                        .reserved = {},
                        .type = nvme::rdma::kSglLastInCapsule};
}

uint32_t HostModel::ShowMemory(uint16_t cid, uint32_t offset, uint32_t bytes, uint64_t& address) {
  uint32_t key = 0;
  while (key == 0 || keys_.contains(key)) key = static_cast<uint32_t>(world_.random.Next());
  address = world_.random.Below(uint64_t{1} << 48);
  keys_[key] = {cid, address, offset, bytes, commands_[cid].entry.opcode == kOpcodeRead};
  commands_[cid].keys.push_back(key);
  return key;
}

void HostModel::Misbehave(Command& command, std::vector<uint8_t>& capsule) {
  auto descriptor = std::bit_cast<KeyedDescriptor>(command.entry.data);
  command.bad = true;
  switch (options_.kind) {
    case HostKind::kWrongKey:
      descriptor.key[world_.random.Below(4)] ^= 1;
      break;
    case HostKind::kTooLong:
      descriptor.length_bytes[world_.random.Below(2)] += 1;
      break;
    case HostKind::kNoAccess:
      command.entry.opcode = command.entry.opcode == kOpcodeRead ? kOpcodeWrite : kOpcodeRead;
      break;
    case HostKind::kGarbage:
      for (uint32_t i = 0; i < 3; ++i)
        reinterpret_cast<uint8_t*>(&descriptor)[world_.random.Below(16)] =
            static_cast<uint8_t>(world_.random.Next());
      if (world_.Chance(50)) descriptor.type = static_cast<uint8_t>(world_.random.Below(6) << 4 | 1);
      break;
    case HostKind::kShortCapsule:
      capsule.resize(world_.random.Below(sizeof(SubmissionEntry)));
      return;
    case HostKind::kLongCapsule:
      capsule.resize(sizeof(SubmissionEntry) + options_.in_capsule_bytes + 1 + world_.random.Below(100));
      return;
    case HostKind::kTooMany:
      for (uint32_t i = 0; i < options_.entries; ++i) pair_->HostSends(capsule);
      return;
    default:
      command.bad = false;
      return;
  }
  command.entry.data = std::bit_cast<nvme::fabrics::SglDescriptor>(descriptor);
  std::memcpy(capsule.data(), &command.entry, sizeof(command.entry));
}

void HostModel::DataCame(uint16_t cid, const std::vector<uint8_t>& bytes) {
  if (options_.kind == HostKind::kTooMany) return;
  const Command& command = commands_[cid];
  if (!command.bad) {
    if (bytes != command.memory) world_.Wrong("data is said to have come that has not");
    return;
  }
  const bool keyed = command.entry.data.type == nvme::rdma::kSglKeyed ||
                     command.entry.data.type == nvme::rdma::kSglKeyedInvalidate;
  if (keyed && options_.kind != HostKind::kGarbage) world_.Wrong("data comes by a READ that was refused");
}

// ---- The host's adapter

uint8_t* HostModel::Access(uint32_t key, uint64_t address, uint32_t bytes, bool write) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return nullptr;
  const Key& shown = found->second;
  if (address < shown.address || address - shown.address > shown.bytes ||
      bytes > shown.bytes - (address - shown.address) || write != shown.may_write)
    return nullptr;
  return commands_[shown.cid].memory.data() + shown.offset + (address - shown.address);
}

bool HostModel::TakeReceive() {
  if (receives_ == 0) return false;
  --receives_;
  world_.After(world_.random.Below(kRepostNs), [this] { ++receives_; });
  return true;
}

void HostModel::Broken() {
  broken_ = true;
}

void HostModel::Arrived(std::span<const uint8_t> message, uint32_t key) {
  CompletionEntry answer;
  if (message.size() != sizeof(answer)) return world_.Wrong("an answer of another size");
  std::memcpy(&answer, message.data(), sizeof(answer));
  heads_ = heads_ + 1 == options_.entries ? 0 : heads_ + 1;
  if (answer.sq_head != (options_.flow_control ? heads_ : 0xffff)) world_.Wrong("a wrong head of the queue");
  if (answer.cid >= commands_.size() || !commands_[answer.cid].busy) {
    if (options_.kind != HostKind::kTooMany) world_.Wrong("an answer to no command");
    return;
  }
  Command& command = commands_[answer.cid];
  if (options_.kind != HostKind::kTooMany) CheckAnswer(command, answer, key);
  for (const uint32_t own : command.keys) keys_.erase(own);
  command.busy = false;
  std::fill(command.memory.begin(), command.memory.end(), kUntouched);
  ++answered_;
  world_.After(world_.random.Below(kThinkNs), [this] { Issue(); });
}

void HostModel::CheckAnswer(Command& command, const CompletionEntry& answer, uint32_t key) {
  if (key != 0 && std::find(command.keys.begin(), command.keys.end(), key) == command.keys.end() &&
      !command.bad)
    world_.Wrong("an answer invalidates a key that is not its command's");
  if (command.bad) {
    // What was done of it nobody knows: from now on its part of the disk is as it is there.
    std::copy_n(disk_.begin() + command.entry.cdw10, command.expected.size(),
                content_.begin() + command.entry.cdw10);
    return;
  }
  if (!answer.status().ok())
    return world_.Wrong(fmt::format("a command fails: {:#x}", answer.status().field()));
  if (key != command.key_to_invalidate) world_.Wrong("a key is not invalidated");
  if (command.entry.opcode == kOpcodeRead && command.memory != command.expected)
    world_.Wrong("an answer without its data");
  if (command.entry.opcode == kOpcodeWrite &&
      !std::equal(command.expected.begin(), command.expected.end(), disk_.begin() + command.entry.cdw10))
    world_.Wrong("a write is answered whose data is not on the disk");
}

}  // namespace cleat::sim::rdma
