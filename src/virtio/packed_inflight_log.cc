// SPDX-License-Identifier: Apache-2.0
#include "virtio/packed_inflight_log.h"

#include <algorithm>
#include <string>
#include <utility>

#include "virtio/guest_access.h"

namespace cleat::virtio {
namespace {

// struct QueueRegionPacked: u64 features; u16 version, desc_num, free_head, old_free_head, used_idx, old_used_idx;
// u8 used_wrap_counter, old_used_wrap_counter, padding[7]; then the entries, 8-byte aligned.
constexpr uint64_t kVersionAt = kInflightVersionAt;
constexpr uint64_t kDescNumAt = 10;
constexpr uint64_t kFreeHeadAt = 12;
constexpr uint64_t kOldFreeHeadAt = 14;
constexpr uint64_t kUsedAt = 16;  // used_idx, old_used_idx and both wrap counters: an aligned word
// struct DescStatePacked: u8 inflight, padding; u16 next, last, num; u64 counter; u16 id, flags; u32 len; u64 addr.
constexpr uint64_t kInflightAt = 0;
constexpr uint64_t kNextAt = 2;
constexpr uint64_t kLastAt = 4;
constexpr uint64_t kNumAt = 6;
constexpr uint64_t kCounterAt = 8;
constexpr uint64_t kIdAt = 16;
constexpr uint64_t kFlagsAt = 18;
constexpr uint64_t kLenAt = 20;
constexpr uint64_t kAddrAt = 24;

template <typename T>
T Get(const uint8_t* at) {
  return LoadShared<T>(at, std::memory_order_acquire);
}
template <typename T>
void Put(uint8_t* at, T value) {
  StoreShared<T>(at, value, std::memory_order_release);
}

Error Refusal(const std::string& why) {
  return {ErrorCode::kInvalidArgument, "in-flight log: " + why};
}

// The word at kUsedAt.
struct UsedIndices {
  PackedIndex used;
  PackedIndex old_used;

  static UsedIndices Of(uint64_t word) {
    return {{static_cast<uint16_t>(word), (word >> 32 & 0xff) != 0},
            {static_cast<uint16_t>(word >> 16), (word >> 40 & 0xff) != 0}};
  }
  uint64_t word() const {
    return used.index | uint64_t{old_used.index} << 16 | uint64_t{used.wrap} << 32 |
           uint64_t{old_used.wrap} << 40;
  }
};

}  // namespace

Result<PackedPosition> PackedInflightLog::Attach(const InflightMemory& memory, const RingMemory& ring,
                                                 const PackedPosition& position) {
  Detach();
  if (memory.base == nullptr) return position;
  CLEAT_TRY(Check(memory, ring));
  base_ = memory.base;
  keep_ = memory.keep;
  const auto desc_num = Get<uint16_t>(base_ + kDescNumAt);
  const bool fresh = Get<uint16_t>(base_ + kVersionAt) == 0;
  entries_ = desc_num != 0
                 ? std::min(desc_num, static_cast<uint16_t>((memory.size_bytes - kHeaderBytes) / kEntryBytes))
                 : ring.size;
  if (entries_ < ring.size) {  // Check had seen another number
    Detach();
    return Refusal("it changes while it is read");
  }
  if (!fresh) {
    if (Status owner = CheckInflightOwner(base_, memory.disk); !owner) {
      Detach();
      return std::move(owner).error();
    }
  }
  TakeOver(memory.disk);
  if (fresh) {
    Prepare(entries_, position.used);
    used_ = position.used;
  } else {
    const auto used = UsedIndices::Of(Get<uint64_t>(base_ + kUsedAt));
    if (used.old_used.index >= ring.size || used.used.index >= ring.size) {
      Detach();
      return Refusal("its used index is outside of the ring");
    }
    used_ = Repair(ring, used.used, used.old_used);
  }
  Status loaded = Load();
  if (loaded && fresh) return position;
  Result<PackedPosition> found =
      loaded ? Position(ring.size) : Result<PackedPosition>(std::move(loaded).error());
  if (!found) Detach();
  return found;
}

Status PackedInflightLog::Check(const InflightMemory& memory, const RingMemory& ring) const {
  if (memory.size_bytes < Bytes(ring.size)) {
    return Refusal("it has " + std::to_string(memory.size_bytes) + " bytes, a packed queue of " +
                   std::to_string(ring.size) + " needs " + std::to_string(Bytes(ring.size)));
  }
  if (reinterpret_cast<uintptr_t>(memory.base) % alignof(uint64_t) != 0)
    return Refusal("it is not 8-byte aligned");
  const auto version = Get<uint16_t>(memory.base + kVersionAt);
  if (version > kVersion) return Refusal("its version " + std::to_string(version) + " is not known here");
  const auto desc_num = Get<uint16_t>(memory.base + kDescNumAt);
  if (desc_num != 0 && desc_num < ring.size) {
    return Refusal("it was made for a queue of " + std::to_string(desc_num) + ", this one has " +
                   std::to_string(ring.size) + " entries");
  }
  return Ok{};
}

// Killed in between: the successor does the same again.
void PackedInflightLog::TakeOver(DiskIdentity disk) {
  tagged_ = disk.known();
  tag_ = disk == DiskIdentity::Several() ? 0 : disk.tag();
  if (!tagged_ || DiskIdentity(Get<uint64_t>(base_ + kInflightOwnerAt)) == disk) return;
  for (uint16_t entry = 0; entry < entries_; ++entry)
    Put<uint32_t>(EntryAt(entry) + kCounterAt + kCounterTagAt, 0);
  Put<uint64_t>(base_ + kInflightOwnerAt, disk.value());
}

void PackedInflightLog::Prepare(uint16_t entries, PackedIndex used) {
  Put<uint16_t>(base_ + kDescNumAt, entries);
  for (uint16_t entry = 0; entry < entries; ++entry) {
    Put<uint8_t>(EntryAt(entry) + kInflightAt, 0);
    Put<uint16_t>(EntryAt(entry) + kNextAt, static_cast<uint16_t>(entry + 1));
  }
  Put<uint16_t>(base_ + kFreeHeadAt, 0);
  Put<uint16_t>(base_ + kOldFreeHeadAt, 0);
  StoreUsedIndices(used, used);
  Put<uint16_t>(base_ + kVersionAt, kVersion);  // last: what is before it is valid now
}

// The specification's "When reconnecting": takes or drops what was under way, and says up to where the guest was told. It
// can be cut short and begun again. Both positions were checked, and are not read again: others can write to the log.
PackedIndex PackedInflightLog::Repair(const RingMemory& ring, PackedIndex used, PackedIndex old_used) {
  if (used != old_used) {
    const auto meta = LoadShared<uint64_t>(
        ring.descriptors + kDescriptorBytes * old_used.index + kDescriptorMetaAt, std::memory_order_acquire);
    const auto bits = static_cast<uint16_t>(meta >> 48 & (kDescAvail | kDescUsed));
    if (bits != PackedAvailableBits(old_used.wrap)) {  // the guest was told
      Put<uint16_t>(base_ + kOldFreeHeadAt, Get<uint16_t>(base_ + kFreeHeadAt));
      old_used = used;
    }
  }
  Put<uint16_t>(base_ + kFreeHeadAt, Get<uint16_t>(base_ + kOldFreeHeadAt));
  auto entry = Get<uint16_t>(base_ + kFreeHeadAt);
  for (uint32_t count = 0; count < entries_ && entry < entries_; ++count) {
    Put<uint8_t>(EntryAt(entry) + kInflightAt, 0);
    entry = Get<uint16_t>(EntryAt(entry) + kNextAt);
  }
  StoreUsedIndices(old_used, old_used);
  return old_used;
}

// Reads the lists. Each entry has to be in the free list or in one chain that is in flight.
Status PackedInflightLog::Load() {
  free_head_ = Get<uint16_t>(base_ + kFreeHeadAt);
  next_.resize(entries_);
  last_.resize(entries_);
  head_.assign(entries_, kNone);
  in_flight_ = 0;
  std::vector<bool> seen(entries_);
  uint32_t found = 0;
  // Up to `count` entries from `entry` on; says how many, and the last of them.
  const auto walk = [&](uint16_t entry, uint32_t count) {
    std::pair<uint32_t, uint16_t> walked{0, entry};
    for (; walked.first < count && entry < entries_ && !seen[entry]; ++walked.first, ++found) {
      seen[entry] = true;
      walked.second = entry;
      entry = next_[entry] = Get<uint16_t>(EntryAt(entry) + kNextAt);
    }
    return walked;
  };
  walk(free_head_, entries_);
  for (uint16_t head = 0; head < entries_; ++head) {
    if (Get<uint8_t>(EntryAt(head) + kInflightAt) == 0) continue;
    const auto num = Get<uint16_t>(EntryAt(head) + kNumAt);
    const auto [length, last] = walk(head, num);
    if (num == 0 || length != num) return Refusal("its lists are broken");
    last_[head] = last;
    const auto id = Get<uint16_t>(EntryAt(last_[head]) + kIdAt);
    if (id >= entries_ || head_[id] != kNone) {
      return Refusal("it has a request with buffer id " + std::to_string(id) +
                     (id >= entries_ ? "" : ", and another one"));
    }
    head_[id] = head;
    in_flight_ += length;
  }
  if (found != entries_) return Refusal("its lists are broken");
  if (const auto requests = Requests(); !requests.empty()) serial_ = requests.back().serial + 1;
  return Ok{};
}

Result<PackedPosition> PackedInflightLog::Position(uint16_t ring_size) const {
  if (in_flight_ > ring_size) return Refusal("it has more descriptors in flight than the ring");
  PackedPosition position{used_, used_};
  position.available.Advance(static_cast<uint16_t>(in_flight_), ring_size);
  return position;
}

void PackedInflightLog::StoreFetched(uint16_t id, std::span<const Descriptor> chain) {
  const uint16_t head = free_head_;
  uint16_t entry = head;
  uint16_t last = head;
  for (const Descriptor& descriptor : chain) {
    uint8_t* at = EntryAt(entry);
    Put<uint16_t>(at + kIdAt, descriptor.packed_id());
    Put<uint16_t>(at + kFlagsAt, descriptor.packed_flags());
    Put<uint32_t>(at + kLenAt, descriptor.length());
    Put<uint64_t>(at + kAddrAt, descriptor.address);
    last = entry;
    entry = next_[entry];
  }
  uint8_t* at = EntryAt(head);
  Put<uint16_t>(at + kLastAt, last);
  Put<uint16_t>(at + kNumAt, static_cast<uint16_t>(chain.size()));
  Put<uint64_t>(at + kCounterAt, CounterOf(serial_++, tag_));
  Put<uint8_t>(at + kInflightAt, 1);
  head_[id] = head;
  last_[head] = last;
  free_head_ = entry;
  Put<uint16_t>(base_ + kFreeHeadAt, entry);
  Put<uint16_t>(base_ + kOldFreeHeadAt, entry);
}

void PackedInflightLog::StoreTag(uint16_t id, uint32_t tag) {
  Put<uint32_t>(EntryAt(head_[id]) + kCounterAt + kCounterTagAt, tag);
}

void PackedInflightLog::StoreUsing(uint16_t id, PackedIndex after) {
  const uint16_t head = head_[id];
  const uint16_t last = last_[head];
  next_[last] = free_head_;
  Put<uint16_t>(EntryAt(last) + kNextAt, free_head_);
  free_head_ = head;
  Put<uint16_t>(base_ + kFreeHeadAt, head);
  using_ = after;
  StoreUsedIndices(using_, used_);
}

void PackedInflightLog::StoreUsed(uint16_t id) {
  Put<uint8_t>(EntryAt(head_[id]) + kInflightAt, 0);
  Put<uint16_t>(base_ + kOldFreeHeadAt, free_head_);
  used_ = using_;
  StoreUsedIndices(used_, used_);
}

void PackedInflightLog::StoreUsedIndices(PackedIndex used, PackedIndex old_used) {
  Put<uint64_t>(base_ + kUsedAt, UsedIndices{used, old_used}.word());
}

uint32_t PackedInflightLog::CopyChain(uint16_t id, std::span<Descriptor> out) const {
  if (id >= head_.size() || head_[id] == kNone) return 0;
  const uint16_t last = last_[head_[id]];
  uint32_t count = 0;
  for (uint16_t entry = head_[id]; count < out.size(); entry = next_[entry]) {
    const uint8_t* at = EntryAt(entry);
    Descriptor& descriptor = out[count++];
    descriptor.address = Get<uint64_t>(at + kAddrAt);
    descriptor.meta =
        Get<uint32_t>(at + kLenAt) | uint64_t{id} << 32 | uint64_t{Get<uint16_t>(at + kFlagsAt)} << 48;
    if (entry == last) return count;
  }
  return 0;
}

std::vector<InflightRequest> PackedInflightLog::Requests() const {
  std::vector<InflightRequest> found;
  for (uint16_t head = 0; head < entries_; ++head) {
    if (Get<uint8_t>(EntryAt(head) + kInflightAt) == 0) continue;
    const auto id = Get<uint16_t>(EntryAt(last_[head]) + kIdAt);
    // Not what was loaded or fetched: somebody else wrote to it.
    if (id >= head_.size() || head_[id] != head) continue;
    found.push_back({.serial = static_cast<uint32_t>(Get<uint64_t>(EntryAt(head) + kCounterAt)), .head = id});
  }
  SortByAge(found);
  return found;
}

std::vector<uint16_t> PackedInflightLog::InFlight() const {
  std::vector<uint16_t> ids;
  for (const InflightRequest& request : Requests()) ids.push_back(request.head);
  return ids;
}

uint32_t PackedInflightLog::TagOf(uint16_t id) const {
  if (!tagged_ || id >= head_.size() || head_[id] == kNone) return 0;
  return Get<uint32_t>(EntryAt(head_[id]) + kCounterAt + kCounterTagAt);
}

}  // namespace cleat::virtio
