// SPDX-License-Identifier: Apache-2.0
// The device's side of a split virtqueue (virtio 1.2, 2.7): takes chains that the guest made available, gives
// used ones back, and decides about notifications in both directions. Pure code on plain memory, with a
// hostile guest on the other side: each field is read once, checked, then used.
//
// A ring that breaks the rules says so (false, and fault()); nothing outside the ring and the memory map is
// touched, and whoever owns the ring stops using it.
//
// Belongs to one queue, on its reactor. PackedRing has the same members and fills the same Chain; a queue picks its
// ring by type, not by virtual calls.
#pragma once

#include <cstdint>
#include <string>

#include "block/memory.h"
#include "virtio/chain.h"
#include "virtio/descriptors.h"
#include "virtio/device_queue.h"
#include "virtio/dirty_log.h"
#include "virtio/guest_access.h"
#include "virtio/ring_format.h"

namespace cleat::virtio {

class SplitRing {
 public:
  // `dirty_log` outlives the ring's use. The ring memory is as RingMemory demands (checked: a caller's
  // error). `features` are the negotiated ones; next_available is where fetching goes on.
  void Start(const RingMemory& memory, uint64_t features, uint16_t next_available, DirtyLog* dirty_log);
  // After Start: so many chains were taken by a predecessor and not given back. Fetching goes on behind them. False:
  // fault(), the guest has not made so many available.
  bool Resume(uint16_t in_flight);
  // The same ring at another place of our address space.
  void Move(const RingMemory& memory);

  // ---- Fetching
  // How many chains wait. 0 with a fault when the guest's index makes no sense.
  uint32_t Available() {
    const auto index =
        LoadShared<uint16_t>(available_ + kRingIndexAt, std::memory_order_acquire);  // 2.7.13.3
    const auto count = static_cast<uint16_t>(index - next_available_);
    // Each chain in use has at least one descriptor, so there can't be more of them than descriptors.
    if (count > size_ - in_use_) [[unlikely]]
      return RefuseIndex(index);
    seen_available_ = index;
    return count;
  }
  // The next of Available()'s chains. Taken for good, even if Read finds it broken. False: fault().
  bool TakeHead(uint16_t& head) {
    head = LoadShared<uint16_t>(AvailableElement(next_available_), std::memory_order_relaxed);
    if (head >= size_) [[unlikely]]
      return RefuseHead(head);
    ++next_available_;
    ++in_use_;
    return true;
  }
  // Hints for the chain that is `ahead` of the next one: first its descriptor comes into this core's cache, then, once
  // that may be there, what the descriptor refers to (an indirect table, mostly). What they read is not trusted, nor
  // used for anything else. Always inline, as Chain::Prefetch is.
  [[gnu::always_inline]] void HintDescriptor(uint32_t ahead) const {
    __builtin_prefetch(DescriptorAhead(ahead));
  }
  [[gnu::always_inline]] void HintIndex() const {
    __builtin_prefetch(available_ + kRingIndexAt);
    __builtin_prefetch(AvailableElement(next_available_));
  }
  [[gnu::always_inline]] void HintFirst() const {
    for (uint32_t ahead = 0; ahead < 8; ++ahead) HintDescriptor(ahead);
  }
  [[gnu::always_inline]] void HintTable(uint32_t ahead, const block::MemoryMap& map) const {
    __builtin_prefetch(map.Hint(ReadWord(DescriptorAhead(ahead))));
  }
  // Walks, checks and translates a chain that was taken. False: fault(); `chain` is of no use then.
  bool Read(uint16_t head, const block::MemoryMap& map, Chain& chain);

  // ---- Giving back
  // Writes the used element; the guest sees it at the next PublishUsed or Publish. `written_bytes`: 2.7.8.
  void Push(uint16_t head, uint32_t written_bytes) {
    uint8_t* element = used_ + kRingElementsAt + kUsedElementBytes * (used_index_ & mask_);
    StoreShared<uint32_t>(element, head, std::memory_order_relaxed);
    StoreShared<uint32_t>(element + 4, written_bytes, std::memory_order_relaxed);
    ++used_index_;
  }
  // Shows the guest what was pushed: a guest that polls goes on with it. A Publish has to follow.
  void PublishUsed();
  // Shows the guest what was pushed. True when it wants to be notified of what was shown since the last Publish (2.7.7,
  // 2.7.10).
  bool Publish();
  uint32_t unpublished() const { return static_cast<uint16_t>(used_index_ - published_); }

  // ---- The guest's notifications (2.7.10). Off after Start.
  // Asks for them, for the next available chain; Available() afterwards sees what came in before the asking.
  void EnableNotifications();
  void DisableNotifications();

  uint16_t next_available() const { return next_available_; }
  uint16_t shown_index() const { return shown_; }  // the guest's used index
  // Why the ring is broken, for an operator; empty while it is not.
  const std::string& fault() const { return fault_; }

 private:
  friend struct WaysOfReading;  // a test compares these two
  bool ReadUsual(uint16_t head, const block::MemoryMap& map, Chain& chain) const;
  bool ReadAny(uint16_t head, const block::MemoryMap& map, Chain& chain);
  bool EnterIndirect(const Descriptor& descriptor, const block::MemoryMap& map, bool nested,
                     DescriptorTable& table);
  [[gnu::cold]] bool RefuseHead(uint16_t head);
  [[gnu::cold]] bool RefuseIndirect(const Descriptor& descriptor, bool nested);
  [[gnu::cold]] bool RefuseNext(uint32_t next, uint32_t entries);
  [[gnu::cold]] bool BreakHere();  // with why_, about the chain being read

  const uint8_t* AvailableElement(uint16_t index) const {
    return available_ + kRingElementsAt + kAvailableElementBytes * (index & mask_);
  }
  const uint8_t* DescriptorAhead(uint32_t ahead) const {
    const auto head = LoadShared<uint16_t>(AvailableElement(static_cast<uint16_t>(next_available_ + ahead)),
                                           std::memory_order_relaxed);
    return descriptors_ + kDescriptorBytes * (head & mask_);
  }
  const uint8_t* UsedEvent() const { return available_ + kRingElementsAt + kAvailableElementBytes * size_; }
  bool WantsCall(uint16_t old_index, uint16_t new_index);
  void MarkUsed(uint16_t from, uint16_t to);
  void StoreUsedField(uint64_t at, uint16_t value);
  [[gnu::cold]] uint32_t RefuseIndex(uint16_t index);
  bool Break(std::string reason);
  std::string Where() const;

  uint8_t* descriptors_ = nullptr;
  uint8_t* available_ = nullptr;
  uint8_t* used_ = nullptr;
  uint64_t used_guest_address_ = 0;
  uint16_t size_ = 0;
  uint16_t mask_ = 0;
  uint16_t next_available_ = 0;
  uint16_t seen_available_ = 0;  // the guest's index when we last looked
  uint16_t used_index_ = 0;      // of the next Push
  uint16_t shown_ = 0;           // what the guest's memory has
  uint16_t published_ = 0;       // ... had at the last Publish
  uint16_t in_use_ = 0;          // taken and not shown
  uint16_t head_ = 0;            // of the chain being read, for messages
  bool event_idx_ = false;
  bool indirect_ = false;
  bool call_first_ = false;  // nothing is known of what the guest was told before
  DirtyLog* dirty_log_ = nullptr;
  std::string fault_;
  std::string why_;  // of the descriptor that was refused last
};

}  // namespace cleat::virtio
