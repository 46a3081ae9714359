// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/guest_model.h"

#include <algorithm>
#include <cstring>

#include "tests/sim/rdma/remote_target.h"
#include "tests/sim/rdma/storage_model.h"

namespace cleat::sim::rdma {
namespace {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::Reached;

constexpr uint8_t kPoison = 0xfe;     // of no mark
constexpr uint64_t kThinkNs = 3'000;  // before a command, at most
constexpr uint64_t kCookieShift = 8;

bool IsPoison(const uint8_t* memory, size_t bytes) {
  return bytes == 0 || (*memory == kPoison && std::memcmp(memory, memory + 1, bytes - 1) == 0);
}

}  // namespace

void DirectModel::Register(const block::MemoryRegion& region) {
  const auto key = static_cast<uint32_t>(kFirstKey + registrations_.size());
  registrations_.try_emplace(&region, key, region.base(), region.size_bytes());
}

const verbs::Registration* DirectModel::Find(const block::MemoryRegion& region) {
  constexpr uint64_t kFoundPercent = 70;
  const auto known = registrations_.find(&region);
  found_ = known != registrations_.end() && world_.Chance(kFoundPercent);
  return found_ ? &known->second : nullptr;
}

GuestModel::GuestModel(ModelWorld& world, const GuestOptions& options)
    : world_(world),
      options_(options),
      slots_(options.entries - 1),
      memory_(slots_.size() * options.part_bytes, kPoison),
      region_(block::MemoryRegion::Borrow(memory_.data(), memory_.size())),
      content_(slots_.size() * options.part_bytes, static_cast<uint8_t>(options.mark << 4)) {
  if (options.direct != nullptr) options.direct->Register(*region_);
}

void GuestModel::Start(nvme::rdma_host::HostQueue& queue) {
  queue_ = &queue;
  for (size_t i = 0; i < slots_.size(); ++i) world_.After(world_.random.Below(kThinkNs), [this] { Issue(); });
}

uint8_t* GuestModel::MemoryOf(uint32_t number) {
  return memory_.data() + size_t{number} * options_.part_bytes;
}

void GuestModel::CheckPoison(uint32_t number) {
  const uint8_t* const memory = MemoryOf(number);
  if (!IsPoison(memory, options_.part_bytes))
    world_.Wrong("somebody has written to memory whose command is over");
}

void GuestModel::Issue() {
  if (queue_ == nullptr || ends_ > 0 || issued_ == options_.commands || queue_->room() == 0) return;
  for (uint32_t number = 0; number < slots_.size(); ++number) {
    if (slots_[number].busy) continue;
    return IssueOne(number);
  }
  world_.Wrong("room for a command more than there are entries");
}

void GuestModel::IssueOne(uint32_t number) {
  Slot& slot = slots_[number];
  CheckPoison(number);
  slot.cookie = uint64_t{++issued_} << kCookieShift | number;
  slot.busy = true;
  static constexpr uint32_t kSizes[] = {512, 4096, 8192, 1024, 3000, 1};
  slot.bytes = world_.Chance(options_.large_percent)
                   ? static_cast<uint32_t>(world_.random.Between(16 * 1024 + 1, kPartBytes))
                   : std::min(kSizes[world_.random.Below(std::size(kSizes))], options_.part_bytes);
  slot.offset = number * options_.part_bytes +
                static_cast<uint32_t>(world_.random.Below(options_.part_bytes - slot.bytes + 1));
  const uint64_t what = world_.random.Below(10);
  if (what == 0) slot.bytes = 0;
  slot.is_write = slot.bytes > 0 && what < 6;
  uint8_t* const memory = MemoryOf(number);
  if (slot.is_write) {
    for (uint32_t i = 0; i < slot.bytes; ++i)
      memory[i] = static_cast<uint8_t>(options_.mark << 4 | ((issued_ * 5 + i / 97) & 15));
    slot.data.assign(memory, memory + slot.bytes);
  } else {
    slot.data.assign(content_.begin() + slot.offset, content_.begin() + slot.offset + slot.bytes);
  }
  slot.segments.clear();
  for (uint32_t at = 0; at < slot.bytes;) {
    const uint32_t left = slot.bytes - at;
    const uint32_t part = world_.Chance(50) ? left : static_cast<uint32_t>(world_.random.Below(left + 1));
    slot.segments.push_back({region_.get(), uint64_t{number} * options_.part_bytes + at, part});
    at += part;
  }
  nvme::fabrics::QueuedCommand command;
  command.entry.opcode = slot.bytes == 0 ? kOpcodeFlush : slot.is_write ? kOpcodeWrite : kOpcodeRead;
  command.entry.cdw10 = slot.offset;
  command.entry.cdw12 = issued_;
  command.cookie = slot.cookie;
  (slot.is_write ? command.to_target : command.from_target) = slot.segments;
  queue_->Submit(command);
  slot.is_direct = options_.direct != nullptr && options_.direct->TakeFound();
}

bool GuestModel::Wrote(uint32_t offset, const std::vector<uint8_t>& bytes) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& slot) {
    return slot.is_write && slot.offset == offset && slot.data == bytes;
  });
}

GuestModel::Slot* GuestModel::Over(uint64_t cookie) {
  const auto number = static_cast<uint32_t>(cookie & ((1 << kCookieShift) - 1));
  if (number >= slots_.size() || !slots_[number].busy || slots_[number].cookie != cookie) {
    world_.Wrong("a command ends that does not run");
    return nullptr;
  }
  if (ends_ > 0) world_.Wrong("a command ends behind its queue's end");
  slots_[number].busy = false;
  ++over_;
  return &slots_[number];
}

void GuestModel::Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) {
  Slot* const slot = Over(cookie);
  if (slot == nullptr) return;
  const bool ok = entry.status().ok();
  uint8_t* const memory = MemoryOf(static_cast<uint32_t>(slot - slots_.data()));
  if (data_bytes != (slot->is_write || !ok ? 0 : slot->bytes)) world_.Wrong("another count of bytes");
  if (ok && slot->is_write) std::copy(slot->data.begin(), slot->data.end(), content_.begin() + slot->offset);
  if (!slot->is_write && ok) CheckRead(*slot, memory);
  if (!slot->is_write && !ok && !slot->is_direct && !IsPoison(memory, slot->bytes))
    world_.Wrong("data of a read that failed");
  if (slot->is_write && !std::equal(slot->data.begin(), slot->data.end(), memory))
    world_.Wrong("the memory of a write is written to");
  std::memset(memory, kPoison, slot->bytes);
  ++completed_;
  // From within as well.
  if (world_.Chance(50)) return Issue();
  world_.After(world_.random.Below(kThinkNs), [this] { Issue(); });
}

void GuestModel::CheckRead(const Slot& slot, const uint8_t* memory) {
  if (options_.believes) {
    if (!std::equal(slot.data.begin(), slot.data.end(), memory)) world_.Wrong("a read ends without its data");
    return;
  }
  const uint8_t nothing = slot.is_direct ? kPoison : 0;  // where the controller has not written
  const bool own = std::all_of(memory, memory + slot.bytes,
                               [&](uint8_t byte) { return byte == nothing || byte >> 4 == options_.mark; });
  if (!own) world_.Wrong("a read brings what is another guest's");
}

void GuestModel::Arrived(uint32_t number) {
  arrived_.insert(number);
  if (is_nowhere_.contains(number)) world_.Wrong("a command arrives that was said to be nowhere");
}

void GuestModel::Unanswered(uint64_t cookie, Reached reached) {
  Slot* const slot = Over(cookie);
  if (slot == nullptr) return;
  const uint32_t number = static_cast<uint32_t>(slot - slots_.data());
  uint8_t* const memory = MemoryOf(number);
  if (reached == Reached::kNoData) world_.Wrong("what cannot be known over RDMA");
  if (!slot->is_write && !slot->is_direct && !IsPoison(memory, slot->bytes))
    world_.Wrong("data of a read that was not answered");
  std::memset(memory, kPoison, slot->bytes);
  const auto issue = static_cast<uint32_t>(cookie >> kCookieShift);
  if (reached == Reached::kNothing) {
    is_nowhere_.insert(issue);
    if (arrived_.contains(issue)) world_.Wrong("a command is said to be nowhere that the controller has");
  }
  ++unanswered_;
}

void GuestModel::Ended(const Error& why) {
  if (++ends_ > 1) world_.Wrong("an end that is heard twice");
  if (why.message.empty()) world_.Wrong("an end without a reason");
  reason_ = why.message;
  for (const Slot& slot : slots_) {
    if (slot.busy) world_.Wrong("a command that has not come back at the end");
  }
  if (on_ended) on_ended();
}

void GuestModel::CheckAllBack() {
  for (uint32_t number = 0; number < slots_.size(); ++number) {
    if (slots_[number].busy) world_.Wrong("a command has never come back");
    CheckPoison(number);
  }
}

}  // namespace cleat::sim::rdma
