// SPDX-License-Identifier: Apache-2.0
// The in-flight log of a packed ring (vhost-user specification, "Inflight I/O tracking"): which requests were fetched
// and not yet given back, with their descriptors, since used ones overwrite the ring. In memory that QEMU keeps when
// this process dies; byte-compatible with the specification's QueueRegionPacked.
//
// Order of one I/O, so that a SIGKILL between any two stores loses no request and runs no acknowledged one again:
//
//   Fetched(id, chain)  the chain's entries from the free list, its head with inflight = 1, free_head; then
//                       old_free_head, with which it counts             before the request is submitted
//   Using(id, after)    the entries back to the free list, used_idx and used_wrap_counter
//   (the ring)          the used descriptor, which acknowledges it to the guest
//   Used(id)            inflight = 0, old_free_head, old_used_idx and old_used_wrap_counter
//
// Whose requests they are is noted as in the split ring's log (virtio/inflight_entry.h).
//
// Killed before the used descriptor: Attach finds that descriptor as the guest made it, and takes the old_ values.
// Killed after it: the new ones, and what is in the free list is not in flight. One chain at a time, not a batch: a
// batch's later used descriptors would have to be in the ring before the first one, and stay there, for the guest to
// stumble over, when the process dies between them. Indices and wrap counters are stored as one word.
//
// Belongs to one queue, on its reactor. Without a log each call is one predictable branch. The lists are kept here too
// and never read back: others can write to the log.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "virtio/descriptors.h"
#include "virtio/device_queue.h"
#include "virtio/inflight_entry.h"
#include "virtio/ring_format.h"

namespace cleat::virtio {

class PackedInflightLog {
 public:
  static constexpr uint64_t kHeaderBytes = 32;
  static constexpr uint64_t kEntryBytes = 32;
  static constexpr uint16_t kVersion = 1;
  static constexpr uint64_t Bytes(uint16_t queue_size) { return kHeaderBytes + kEntryBytes * queue_size; }

  // Takes the log of a ring, and says where the ring goes on: a fresh log (all zeroes) is prepared for `position`; one
  // that a predecessor left, killed or not, is repaired with the help of the ring's descriptors and knows better.
  // Fails when it is too small, made for a smaller queue, another disk's of the same store, or makes no sense. Without memory: no
  // log, `position`.
  Result<PackedPosition> Attach(const InflightMemory& memory, const RingMemory& ring,
                                const PackedPosition& position);
  void Detach() { *this = PackedInflightLog(); }
  bool enabled() const { return base_ != nullptr; }

  void Fetched(uint16_t id, std::span<const Descriptor> chain) {
    if (enabled()) StoreFetched(id, chain);
  }
  // The request is submitted to that disk, in a log of several disks. Before it is.
  void SubmittedTo(uint16_t id, uint32_t tag) {
    if (enabled()) StoreTag(id, tag);
  }
  // `after`: the ring's used position with this chain.
  void Using(uint16_t id, PackedIndex after) {
    if (enabled()) StoreUsing(id, after);
  }
  void Used(uint16_t id) {
    if (enabled()) StoreUsed(id);
  }

  // The buffer ids that are in flight, in the order in which they were fetched: what a successor submits first.
  std::vector<uint16_t> InFlight() const;
  // Which disk that one was submitted to: DiskIdentity::tag; 0: none, or not known.
  uint32_t TagOf(uint16_t id) const;
  // The descriptors of the one with that id, as it was in flight when the log was taken. How many they are; 0: there
  // is none, or `out` has no room for them.
  uint32_t CopyChain(uint16_t id, std::span<Descriptor> out) const;

 private:
  Status Check(const InflightMemory& memory, const RingMemory& ring) const;
  void TakeOver(DiskIdentity disk);
  void Prepare(uint16_t entries, PackedIndex used);
  PackedIndex Repair(const RingMemory& ring, PackedIndex used, PackedIndex old_used);
  Status Load();
  std::vector<InflightRequest> Requests() const;
  Result<PackedPosition> Position(uint16_t ring_size) const;
  static constexpr uint16_t kNone = UINT16_MAX;  // as an entry; there are never so many

  void StoreFetched(uint16_t id, std::span<const Descriptor> chain);
  void StoreTag(uint16_t id, uint32_t tag);
  void StoreUsing(uint16_t id, PackedIndex after);
  void StoreUsed(uint16_t id);
  void StoreUsedIndices(PackedIndex used, PackedIndex old_used);
  uint8_t* EntryAt(uint16_t entry) const { return base_ + kHeaderBytes + kEntryBytes * entry; }

  uint8_t* base_ = nullptr;
  uint16_t entries_ = 0;
  uint32_t in_flight_ = 0;  // descriptors, when the log was taken
  uint16_t free_head_ = 0;
  PackedIndex used_;            // as the log has it
  PackedIndex using_;           // between Using and Used
  uint32_t serial_ = 0;         // of the next request
  uint32_t tag_ = 0;            // of each request when it is fetched
  bool tagged_ = false;         // the tags in the log mean something
  std::vector<uint16_t> next_;  // of the free list, and of each chain in flight
  std::vector<uint16_t> head_;  // of the chain with that buffer id
  std::vector<uint16_t> last_;  // of the chain with that head
  std::shared_ptr<block::MemoryRegion> keep_;
};

}  // namespace cleat::virtio
