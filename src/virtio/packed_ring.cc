// SPDX-License-Identifier: Apache-2.0
#include "virtio/packed_ring.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/no_stack_buffer.h"

namespace cleat::virtio {

void PackedRing::Start(const RingMemory& memory, uint64_t features, const PackedPosition& position,
                       DirtyLog* dirty_log, PackedInflightLog* inflight_log) {
  CLEAT_CHECK(memory.size > 0 && memory.size <= kQueueSizeMax && position.InUse(memory.size) <= memory.size);
  size_ = memory.size;
  Move(memory);
  position_ = position;
  in_use_ = static_cast<uint16_t>(position.InUse(size_));
  lengths_.assign(size_, 0);
  pushed_.resize(size_);
  taken_.resize(std::min<uint32_t>(size_, kChainDescriptorsMax));
  pushed_count_ = taken_count_ = unpublished_ = shown_descriptors_ = 0;
  event_idx_ = (features >> kFeatureEventIdx & 1) != 0;
  indirect_ = (features >> kFeatureIndirectDesc & 1) != 0;
  call_first_ = true;
  dirty_log_ = dirty_log;
  inflight_log_ = inflight_log;
  fault_.clear();
  DisableNotifications();
  // A predecessor may have died between showing an answer and marking it.
  dirty_log_->Mark(descriptors_guest_address_, uint64_t{kDescriptorBytes} * size_);
}

void PackedRing::Move(const RingMemory& memory) {
  CLEAT_CHECK(memory.size == size_);
  CLEAT_CHECK(memory.descriptors != nullptr && memory.available != nullptr && memory.used != nullptr);
  descriptors_ = memory.descriptors;
  driver_event_ = memory.available;
  device_event_ = memory.used;
  descriptors_guest_address_ = memory.descriptors_guest_address;
  device_event_guest_address_ = memory.used_guest_address;
}

uint32_t PackedRing::RefuseOverrun() {
  Break("descriptor " + std::to_string(position_.available.index) + " is made available again with all " +
        std::to_string(size_) + " of the ring in use");
  return 0;
}

CLEAT_NO_STACK_BUFFER bool PackedRing::TakeHead(uint16_t& id) {
  PackedIndex at = position_.available;
  uint32_t count = 0;
  for (;;) {
    const uint8_t* slot = Slot(at.index);
    // The guest writes the first one's flags last (2.8.21); the whole word, which they are part of, is read once.
    const auto meta = LoadShared<uint64_t>(slot + kDescriptorMetaAt, std::memory_order_acquire);
    const auto flags = static_cast<uint16_t>(meta >> 48);
    if (!IsAvailable(flags, at.wrap)) {
      if (count == 0) return false;
      return Break("chain goes on with descriptor " + std::to_string(at.index) + ", which is not available" +
                   Where());
    }
    if (count == static_cast<uint32_t>(size_ - in_use_)) [[unlikely]] {
      return Break("chain is longer than the ring's " + std::to_string(count) + " free descriptors" +
                   Where());
    }
    if (count == taken_.size()) [[unlikely]] {
      return Break("chain is longer than " + std::to_string(count) + " descriptors" + Where());
    }
    taken_[count++] = {LoadShared<uint64_t>(slot, std::memory_order_relaxed), meta};
    at.Advance(1, size_);
    if ((flags & kDescNext) == 0) break;
  }
  id = taken_[count - 1].packed_id();
  if (id >= size_) [[unlikely]] {
    return Break("buffer id " + std::to_string(id) + " in a ring of " + std::to_string(size_) + Where());
  }
  if (lengths_[id] != 0) [[unlikely]] {
    return Break("buffer id " + std::to_string(id) + " is in use already" + Where());
  }
  lengths_[id] = static_cast<uint16_t>(count);
  in_use_ = static_cast<uint16_t>(in_use_ + count);
  taken_count_ = count;
  position_.available = at;
  return true;
}

void PackedRing::Leave(uint16_t id) {
  lengths_[id] = 0;
}

bool PackedRing::Refetch(uint16_t id) {
  const uint32_t count = id < size_ && lengths_[id] == 0 ? inflight_log_->CopyChain(id, taken_) : 0;
  if (count == 0) {
    return Break("in-flight log: its request with buffer id " + std::to_string(id) +
                 " can't be one of a ring of " + std::to_string(size_));
  }
  lengths_[id] = static_cast<uint16_t>(count);
  taken_count_ = count;
  return true;
}

// 2.8.7: all of a table's entries, one after the other. Of their flags only WRITE means anything.
bool PackedRing::ReadTable(const block::MemoryMap& map, ChainFiller& chain) {
  DescriptorTable table;
  (void)chain.CountDescriptor();  // the first of the chain
  if (!OpenIndirect(taken_[0], map, table, why_)) return BreakHere();
  for (uint32_t i = 0; i < table.entries; ++i) {
    if (!CountDescriptor(chain, why_)) [[unlikely]]
      return BreakHere();
    const Descriptor descriptor = ReadDescriptor(table, map, i);
    if (!AddBuffer(descriptor, (descriptor.packed_flags() & kDescWrite) != 0, map, chain, why_)) [[unlikely]]
      return BreakHere();
  }
  return true;
}

bool PackedRing::Read(uint16_t id, const block::MemoryMap& map, Chain& chain) {
  return ReadUsual(id, map, chain) || ReadAny(id, map, chain);
}

// As SplitRing::ReadUsual: what nearly all chains are, in registers. False: the other way begins anew.
bool PackedRing::ReadUsual(uint16_t id, const block::MemoryMap& map, Chain& chain) const {
  // A table has the layout of what was taken, but for the flags that count: of a table's only WRITE does (2.8.7).
  const auto* at = reinterpret_cast<const uint8_t*>(taken_.data());
  uint32_t entries = taken_count_;
  uint16_t refused = kDescIndirect;
  const Descriptor first = taken_.front();
  if ((first.packed_flags() & kDescIndirect) != 0) {
    block::Segment table;
    if (taken_count_ > 1 || !indirect_ || first.length() % kDescriptorBytes != 0 ||
        !map.TranslateWhole(first.address, first.length(), table)) [[unlikely]] {
      return false;
    }
    at = table.data();
    entries = static_cast<uint32_t>(first.length() / kDescriptorBytes);
    refused = 0;
  }
  if (entries >= kChainDescriptorsMax) [[unlikely]]
    return false;
  ChainFiller filler(chain, id);
  for (const uint8_t* end = at + kDescriptorBytes * entries; at != end; at += kDescriptorBytes) {
    const uint64_t address = ReadWord(at);
    const uint64_t meta = ReadWord(at + kDescriptorMetaAt);
    const auto flags = static_cast<uint16_t>(meta >> 48);
    block::Segment whole;
    if ((flags & refused) != 0 || !map.TranslateWhole(address, static_cast<uint32_t>(meta), whole) ||
        !filler.AddUsual(whole, (flags & kDescWrite) != 0)) [[unlikely]] {
      return false;
    }
  }
  return filler.CommitUsual(refused == 0 ? 1 : 0);
}

bool PackedRing::ReadAny(uint16_t id, const block::MemoryMap& map, Chain& chain) {
  ChainFiller filler(chain, id);
  for (const Descriptor& descriptor : taken()) {
    const uint16_t flags = descriptor.packed_flags();
    // A list is of one kind, and one that refers to a table is of one descriptor (2.8.19).
    if ((flags & kDescIndirect) != 0) {
      if (taken_count_ > 1 || !indirect_) [[unlikely]]
        return RefuseIndirect();
      if (!ReadTable(map, filler)) return false;
      break;
    }
    if (!CountDescriptor(filler, why_) ||
        !AddBuffer(descriptor, (flags & kDescWrite) != 0, map, filler, why_)) [[unlikely]] {
      return BreakHere();
    }
  }
  filler.Commit();
  return true;
}

void PackedRing::PublishUsed() {
  uint32_t descriptors = 0;
  for (const Pushed& pushed : std::span(pushed_.data(), pushed_count_)) {
    const uint16_t length = std::exchange(lengths_[pushed.id], uint16_t{0});
    CLEAT_DCHECK(length > 0);
    const PackedIndex at = position_.used;
    position_.used.Advance(length, size_);
    descriptors += length;
    inflight_log_->Using(pushed.id, position_.used);
    // Id, length and flags at once; the data that they tell of before them (2.8.22).
    const uint16_t flags = PackedUsedBits(at.wrap) | (pushed.written_bytes > 0 ? kDescWrite : 0);
    StoreShared<uint64_t>(Slot(at.index) + kDescriptorMetaAt,
                          pushed.written_bytes | uint64_t{pushed.id} << 32 | uint64_t{flags} << 48,
                          std::memory_order_release);
    inflight_log_->Used(pushed.id);
    dirty_log_->Mark(descriptors_guest_address_ + kDescriptorBytes * at.index, kDescriptorBytes);
  }
  pushed_count_ = 0;
  in_use_ = static_cast<uint16_t>(in_use_ - descriptors);
  shown_descriptors_ += descriptors;
}

bool PackedRing::Publish() {
  PublishUsed();
  unpublished_ = 0;
  return WantsCall(std::exchange(shown_descriptors_, 0));
}

bool PackedRing::WantsCall(uint32_t descriptors) {
  // The guest writes what it wants and then looks at the ring; we the other way round (2.8.22).
  FullFence();
  const auto event = LoadShared<uint32_t>(driver_event_, std::memory_order_relaxed);
  const auto flags = static_cast<uint16_t>(event >> 16 & kEventFlagsMask);
  if (flags == kEventDisable) return false;
  // What makes no sense gets a notification too many.
  if (flags != kEventDesc || !event_idx_) return true;
  if (std::exchange(call_first_, false)) return true;
  if (descriptors > size_) return true;  // more than once around: passed in any case
  const PackedIndex wanted = PackedIndex::FromWord(static_cast<uint16_t>(event));
  const PackedIndex& used = position_.used;
  // An index of the round before lies below 0.
  const auto wanted_index = static_cast<uint16_t>(wanted.index - (wanted.wrap == used.wrap ? 0 : size_));
  return PassesEvent(wanted_index, used.index, static_cast<uint16_t>(used.index - descriptors));
}

void PackedRing::EnableNotifications() {
  StoreEvent(event_idx_ ? position_.available.word() | uint32_t{kEventDesc} << 16
                        : uint32_t{kEventEnable} << 16);
  // Pairs with the guest's fence between its descriptor and its look at what we wrote.
  FullFence();
}

void PackedRing::StoreEvent(uint32_t word) {
  StoreShared<uint32_t>(device_event_, word, std::memory_order_relaxed);
  dirty_log_->Mark(device_event_guest_address_, kEventSuppressionBytes);
}

bool PackedRing::RefuseIndirect() {
  why_ = indirect_ ? "indirect descriptor in a chain of several"
                   : "indirect descriptor, but the feature was not negotiated";
  return BreakHere();
}

bool PackedRing::BreakHere() {
  return Break(why_ + Where());
}

bool PackedRing::Break(std::string reason) {
  if (fault_.empty()) fault_ = std::move(reason);
  return false;
}

std::string PackedRing::Where() const {
  return " (chain at descriptor " + std::to_string(position_.available.index) + ", wrap counter " +
         std::to_string(static_cast<int>(position_.available.wrap)) + ")";
}

}  // namespace cleat::virtio
