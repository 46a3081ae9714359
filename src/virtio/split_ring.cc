// SPDX-License-Identifier: Apache-2.0
#include "virtio/split_ring.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace cleat::virtio {

void SplitRing::Start(const RingMemory& memory, uint64_t features, uint16_t next_available,
                      DirtyLog* dirty_log) {
  CLEAT_CHECK(std::has_single_bit(memory.size) && memory.size <= kQueueSizeMax);
  size_ = memory.size;
  mask_ = static_cast<uint16_t>(size_ - 1);
  Move(memory);
  dirty_log_ = dirty_log;
  event_idx_ = (features >> kFeatureEventIdx & 1) != 0;
  indirect_ = (features >> kFeatureIndirectDesc & 1) != 0;
  next_available_ = seen_available_ = next_available;
  used_index_ = shown_ = published_ = LoadShared<uint16_t>(used_ + kRingIndexAt, std::memory_order_relaxed);
  in_use_ = 0;
  call_first_ = true;
  fault_.clear();
  // With EVENT_IDX the flags have to be 0 (2.7.10.1), and a stale avail_event is all that "off" can mean.
  StoreUsedField(kRingFlagsAt, event_idx_ ? 0 : kUsedNoNotify);
  // A predecessor may have died between showing an answer and marking it.
  dirty_log_->Mark(used_guest_address_, kRingElementsAt + uint64_t{kUsedElementBytes} * size_);
}

bool SplitRing::Resume(uint16_t in_flight) {
  const auto index = LoadShared<uint16_t>(available_ + kRingIndexAt, std::memory_order_acquire);
  const auto offered = static_cast<uint16_t>(index - used_index_);
  if (offered < in_flight || offered > size_) {
    return Break("in-flight log: it has " + std::to_string(in_flight) +
                 " requests in flight, the guest waits for " + std::to_string(offered) +
                 " (available index " + std::to_string(index) + ", used index " +
                 std::to_string(used_index_) + ")");
  }
  next_available_ = seen_available_ = static_cast<uint16_t>(used_index_ + in_flight);
  in_use_ = in_flight;
  return true;
}

void SplitRing::Move(const RingMemory& memory) {
  CLEAT_CHECK(memory.size == size_);
  CLEAT_CHECK(memory.descriptors != nullptr && memory.available != nullptr && memory.used != nullptr);
  descriptors_ = memory.descriptors;
  available_ = memory.available;
  used_ = memory.used;
  used_guest_address_ = memory.used_guest_address;
}

uint32_t SplitRing::RefuseIndex(uint16_t index) {
  Break("available index " + std::to_string(index) + " is " +
        std::to_string(static_cast<uint16_t>(index - next_available_)) + " ahead of the last one fetched (" +
        std::to_string(next_available_) + "), with " + std::to_string(in_use_) + " of the queue's " +
        std::to_string(size_) + " entries in use");
  return 0;
}

bool SplitRing::RefuseHead(uint16_t head) {
  return Break("available entry " + std::to_string(next_available_ & mask_) + " names descriptor " +
               std::to_string(head) + ", the queue has " + std::to_string(size_));
}

inline bool SplitRing::EnterIndirect(const Descriptor& descriptor, const block::MemoryMap& map, bool nested,
                                     DescriptorTable& table) {
  if (!indirect_ || nested || (descriptor.split_flags() & kDescNext) != 0) [[unlikely]]
    return RefuseIndirect(descriptor, nested);
  return OpenIndirect(descriptor, map, table, why_) || BreakHere();
}

bool SplitRing::Read(uint16_t head, const block::MemoryMap& map, Chain& chain) {
  head_ = head;
  return ReadUsual(head, map, chain) || ReadAny(head, map, chain);
}

// A chain as nearly all are - in the ring's table or in one indirect one, every piece in one region of memory, nothing
// wrong with it - and with everything that counts in registers, since it is walked for every request. False: there is
// something else about it. What has been read until then is dropped and the other way begins anew, so that each value
// that is used is still the one that was checked.
bool SplitRing::ReadUsual(uint16_t head, const block::MemoryMap& map, Chain& chain) const {
  const uint8_t* table = descriptors_;
  uint32_t entries = size_;
  uint32_t left = std::min(entries, kChainDescriptorsMax);
  ChainFiller filler(chain, head);
  uint32_t index = head;
  for (bool first = true;; first = false) {
    const uint8_t* at = table + kDescriptorBytes * index;
    const uint64_t address = ReadWord(at);
    const uint64_t meta = ReadWord(at + kDescriptorMetaAt);
    const auto length = static_cast<uint32_t>(meta);
    const auto flags = static_cast<uint16_t>(meta >> 32);
    block::Segment whole;
    if (!map.TranslateWhole(address, length, whole)) [[unlikely]]
      return false;
    if ((flags & kDescIndirect) != 0) {
      if (!first || !indirect_ || (flags & kDescNext) != 0 || length % kDescriptorBytes != 0) [[unlikely]]
        return false;
      table = whole.data();
      entries = length / kDescriptorBytes;
      left = std::min(entries, kChainDescriptorsMax - 1);
      index = 0;
      continue;
    }
    if (!filler.AddUsual(whole, (flags & kDescWrite) != 0)) [[unlikely]]
      return false;
    if ((flags & kDescNext) == 0) break;
    index = static_cast<uint16_t>(meta >> 48);
    if (index >= entries || --left == 0) [[unlikely]]
      return false;
  }
  return filler.CommitUsual(table != descriptors_ ? 1 : 0);
}

bool SplitRing::ReadAny(uint16_t head, const block::MemoryMap& map, Chain& chain) {
  ChainFiller filler(chain, head);
  DescriptorTable table{descriptors_, 0, size_};
  bool nested = false;
  uint32_t index = head;
  uint32_t left = table.entries;
  for (;;) {
    if (!CountDescriptor(filler, why_)) [[unlikely]]
      return BreakHere();
    const Descriptor descriptor = ReadDescriptor(table, map, index);
    const uint16_t flags = descriptor.split_flags();
    if ((flags & kDescIndirect) != 0) {
      // Also behind ordinary descriptors (2.7.5.3.2).
      if (!EnterIndirect(descriptor, map, nested, table)) [[unlikely]]
        return false;
      nested = true;
      index = 0;
      left = table.entries;
      continue;
    }
    if (!AddBuffer(descriptor, (flags & kDescWrite) != 0, map, filler, why_)) [[unlikely]]
      return BreakHere();
    if ((flags & kDescNext) == 0) break;
    index = descriptor.split_next();
    if (index >= table.entries || --left == 0) [[unlikely]]
      return RefuseNext(index, table.entries);
  }
  filler.Commit();
  return true;
}

bool SplitRing::RefuseNext(uint32_t next, uint32_t entries) {
  why_ = next >= entries ? "next is " + std::to_string(next) + " in a table of " + std::to_string(entries)
                         : "chain loops in a table of " + std::to_string(entries);
  return BreakHere();
}

bool SplitRing::RefuseIndirect(const Descriptor& descriptor, bool nested) {
  if (!indirect_) return Break("indirect descriptor, but the feature was not negotiated" + Where());
  if (nested) return Break("indirect descriptor inside an indirect table" + Where());
  CLEAT_CHECK((descriptor.split_flags() & kDescNext) != 0);
  return Break("indirect descriptor with the next flag" + Where());
}

void SplitRing::PublishUsed() {
  const uint16_t old_index = shown_;
  if (old_index == used_index_) return;
  StoreShared<uint16_t>(used_ + kRingIndexAt, used_index_, std::memory_order_release);  // 2.7.8
  shown_ = used_index_;
  in_use_ = static_cast<uint16_t>(in_use_ - static_cast<uint16_t>(shown_ - old_index));
  if (dirty_log_->enabled()) [[unlikely]]
    MarkUsed(old_index, shown_);
}

bool SplitRing::Publish() {
  PublishUsed();
  const uint16_t old_index = published_;
  published_ = used_index_;
  return WantsCall(old_index, published_);
}

bool SplitRing::WantsCall(uint16_t old_index, uint16_t new_index) {
  // The guest writes what it wants and then looks at the used index; we the other way round (2.7.10.2).
  FullFence();
  if (!event_idx_) {
    return (LoadShared<uint16_t>(available_ + kRingFlagsAt, std::memory_order_relaxed) &
            kAvailableNoInterrupt) == 0;
  }
  const auto event = LoadShared<uint16_t>(UsedEvent(), std::memory_order_relaxed);
  if (std::exchange(call_first_, false)) return true;
  return PassesEvent(event, new_index, old_index);
}

void SplitRing::EnableNotifications() {
  if (event_idx_) {
    StoreUsedField(kRingElementsAt + kUsedElementBytes * size_, next_available_);
  } else {
    StoreUsedField(kRingFlagsAt, 0);
  }
  // Pairs with the guest's fence between its available index and its look at what we wrote.
  FullFence();
}

void SplitRing::DisableNotifications() {
  // With EVENT_IDX there is nothing to write: the event lies behind, the guest reaches it again after 65536
  // chains.
  if (!event_idx_) StoreUsedField(kRingFlagsAt, kUsedNoNotify);
}

void SplitRing::StoreUsedField(uint64_t at, uint16_t value) {
  StoreShared<uint16_t>(used_ + at, value, std::memory_order_relaxed);
  dirty_log_->Mark(used_guest_address_ + at, sizeof(value));
}

void SplitRing::MarkUsed(uint16_t from, uint16_t to) {
  const uint32_t first = from & mask_;
  const uint32_t count = static_cast<uint16_t>(to - from);
  const uint64_t elements = used_guest_address_ + kRingElementsAt;
  if (first + count <= size_) {
    dirty_log_->Mark(elements + kUsedElementBytes * first, kUsedElementBytes * count);
  } else {
    dirty_log_->Mark(elements, kUsedElementBytes * size_);
  }
  dirty_log_->Mark(used_guest_address_ + kRingIndexAt, sizeof(uint16_t));
}

bool SplitRing::BreakHere() {
  return Break(why_ + Where());
}

bool SplitRing::Break(std::string reason) {
  if (fault_.empty()) fault_ = std::move(reason);
  return false;
}

std::string SplitRing::Where() const {
  return " (chain of descriptor " + std::to_string(head_) + ", available entry " +
         std::to_string(static_cast<uint16_t>(next_available_ - 1)) + ")";
}

}  // namespace cleat::virtio
