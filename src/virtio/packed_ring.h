// SPDX-License-Identifier: Apache-2.0
// The device's side of a packed virtqueue (virtio 1.2, 2.8): one ring of descriptors in which the driver marks what is
// available and the device what is used, told apart by wrap counters. Pure code on plain memory, with a hostile guest
// on the other side: each descriptor is read once, as two whole words, checked, then used.
//
// The members are SplitRing's, so that a queue can serve either by type. What differs:
//   - nothing says how many chains wait: Available() only knows whether there is one, TakeHead finds the end;
//   - a chain is as many descriptors in a row as NEXT links, or one that refers to a table; the guest's name for it,
//     the buffer id, stands in the last one (2.8.6), so TakeHead reads them all and Read works on what it read;
//   - a used chain takes one descriptor, and the next one goes as many further as the chain had (2.8.9): kept for each
//     buffer id that is in use.
//
// A ring that breaks the rules says so (false, and fault()); whoever owns the ring stops using it. Belongs to one
// queue, on its reactor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "block/memory.h"
#include "virtio/chain.h"
#include "virtio/descriptors.h"
#include "virtio/device_queue.h"
#include "virtio/dirty_log.h"
#include "virtio/guest_access.h"
#include "virtio/packed_inflight_log.h"
#include "virtio/ring_format.h"

namespace cleat::virtio {

class PackedRing {
 public:
  // Both logs outlive the ring's use. The ring memory is as RingMemory demands and `position` is one of a ring of its
  // size (checked: a caller's error). `features` are the negotiated ones.
  void Start(const RingMemory& memory, uint64_t features, const PackedPosition& position, DirtyLog* dirty_log,
             PackedInflightLog* inflight_log);
  // The same ring at another place of our address space.
  void Move(const RingMemory& memory);

  // ---- Fetching
  // 0: no chain waits. Otherwise how many there could be at most. 0 with a fault when there is no room for one.
  uint32_t Available() {
    const auto meta =
        LoadShared<uint64_t>(Slot(position_.available.index) + kDescriptorMetaAt, std::memory_order_acquire);
    if (!IsAvailable(static_cast<uint16_t>(meta >> 48), position_.available.wrap)) return 0;
    if (in_use_ == size_) [[unlikely]]
      return RefuseOverrun();
    return size_ - in_use_;
  }
  // The next chain, if there is one: its buffer id. False without a fault: there is none.
  bool TakeHead(uint16_t& id);
  // As SplitRing's, for the chain that is `ahead` of the next one if each is of one descriptor.
  [[gnu::always_inline]] void HintDescriptor(uint32_t ahead) const { __builtin_prefetch(SlotAhead(ahead)); }
  [[gnu::always_inline]] void HintIndex() const {
    for (uint32_t ahead = 0; ahead < std::min<uint32_t>(12, size_); ahead += 4) HintDescriptor(ahead);
  }
  [[gnu::always_inline]] void HintTable(uint32_t ahead, const block::MemoryMap& map) const {
    __builtin_prefetch(map.Hint(LoadShared<uint64_t>(SlotAhead(ahead), std::memory_order_relaxed)));
  }
  // Takes a chain again that a predecessor took, as the in-flight log has it; `position` counted it. False: fault().
  bool Refetch(uint16_t id);
  // The chain is not given back: a later Refetch takes it again.
  void Leave(uint16_t id);
  // The descriptors of the chain that was taken last, as they stood in the ring.
  std::span<const Descriptor> taken() const { return {taken_.data(), taken_count_}; }
  // Checks and translates the chain that was taken last. False: fault(); `chain` is of no use then.
  bool Read(uint16_t id, const block::MemoryMap& map, Chain& chain);

  // ---- Giving back
  // The guest sees it at the next PublishUsed or Publish. `written_bytes`: 2.8.4.
  void Push(uint16_t id, uint32_t written_bytes) {
    pushed_[pushed_count_++] = {written_bytes, id};
    ++unpublished_;
  }
  // Shows the guest what was pushed, one after the other, each with its steps in the in-flight log around it: a guest
  // that polls goes on with it. A Publish has to follow.
  void PublishUsed();
  // Shows the guest what was pushed. True when it wants to be notified of what was shown since the last Publish (2.8.10).
  bool Publish();
  uint32_t unpublished() const { return unpublished_; }

  // ---- The guest's notifications (2.8.10). Off after Start.
  void EnableNotifications();
  void DisableNotifications() { StoreEvent(uint32_t{kEventDisable} << 16); }

  uint32_t next_available() const { return position_.word(); }
  const PackedPosition& position() const { return position_; }
  // Why the ring is broken, for an operator; empty while it is not.
  const std::string& fault() const { return fault_; }

 private:
  struct Pushed {
    uint32_t written_bytes;
    uint16_t id;
  };

  static bool IsAvailable(uint16_t flags, bool wrap) {
    return (flags & (kDescAvail | kDescUsed)) == PackedAvailableBits(wrap);
  }
  uint8_t* Slot(uint16_t index) const { return descriptors_ + kDescriptorBytes * index; }
  const uint8_t* SlotAhead(uint32_t ahead) const {  // below the ring's size
    const uint32_t index = position_.available.index + ahead;
    return Slot(static_cast<uint16_t>(index < size_ ? index : index - size_));
  }
  friend struct WaysOfReading;  // a test compares these two
  bool ReadUsual(uint16_t id, const block::MemoryMap& map, Chain& chain) const;
  bool ReadAny(uint16_t id, const block::MemoryMap& map, Chain& chain);
  bool ReadTable(const block::MemoryMap& map, ChainFiller& chain);
  bool WantsCall(uint32_t descriptors);
  void StoreEvent(uint32_t word);
  [[gnu::cold]] uint32_t RefuseOverrun();
  [[gnu::cold]] bool RefuseIndirect();
  [[gnu::cold]] bool BreakHere();  // with why_, about the chain that was taken last
  bool Break(std::string reason);
  std::string Where() const;

  uint8_t* descriptors_ = nullptr;
  uint8_t* driver_event_ = nullptr;
  uint8_t* device_event_ = nullptr;
  uint64_t descriptors_guest_address_ = 0;
  uint64_t device_event_guest_address_ = 0;
  PackedPosition position_;  // the used half: of what was shown
  uint16_t size_ = 0;
  uint16_t in_use_ = 0;            // descriptors taken and not shown
  std::vector<uint16_t> lengths_;  // of the chain with that buffer id, in descriptors; 0: not in use
  std::vector<Pushed> pushed_;     // since the last PublishUsed
  std::vector<Descriptor> taken_;
  uint32_t pushed_count_ = 0;
  uint32_t unpublished_ = 0;        // chains pushed since the last Publish
  uint32_t shown_descriptors_ = 0;  // of those that were shown since then, as the ring counts
  uint32_t taken_count_ = 0;
  bool event_idx_ = false;
  bool indirect_ = false;
  bool call_first_ = false;  // nothing is known of what the guest was told before
  DirtyLog* dirty_log_ = nullptr;
  PackedInflightLog* inflight_log_ = nullptr;
  std::string fault_;
  std::string why_;  // of the descriptor that was refused last
};

}  // namespace cleat::virtio
