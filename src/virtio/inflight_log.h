// SPDX-License-Identifier: Apache-2.0
// The in-flight log of a split ring (vhost-user specification, "Inflight I/O tracking"): which requests were
// fetched and not yet given back, in memory that QEMU keeps when this process dies. The successor answers
// those, and only those. Byte-compatible with the specification's QueueRegionSplit.
//
// Order of one I/O, so that a SIGKILL between any two stores loses no request and runs no acknowledged one
// again:
//
//   1. Fetched(head):     counter, then inflight = 1. Before the request is submitted, or the next is fetched
//   2. Used(head):        next, then last_batch_head. For each request of the batch
//   3. (the ring):        used elements, then the used index. This acknowledges the batch to the guest
//   4. Published(index):  inflight = 0 for the batch, then used_idx. Before the next Used
//
// Killed before the used index: the whole batch is still in flight. Killed after it: used_idx shows that the
// last batch was not finished, and its entries, linked from last_batch_head, are cleared by Attach. The order
// of stores need only hold for the compiler and for whoever takes over afterwards: release stores, free on
// x86.
//
// Where fetching goes on after a kill: everything that was ever fetched was given back or is in flight, so it is the
// ring's used index + the number of requests in flight, whatever base the front end names. QEMU names the used index
// (hw/virtio/vhost.c, vhost_virtqueue_stop: when GET_VRING_BASE can't be had,
// virtio_queue_restore_last_avail_idx), and means just that: QEMU's libvhost-user (vu_check_queue_inflights) takes
// used index + in flight, DPDK's librte_vhost (vhost_check_queue_inflights_split) adds the number in flight to a base
// that it has set to the used index before. A front end that names another - the guest's available index, or 0 -
// would have requests lost or run twice if it were believed. Only over a fresh log the base is all there is to go by.
// What of the available ring lies between the used index and there need not be the requests in flight, which were
// given back in any order: the log has their heads, and the guest's table their descriptors.
//
// Over an orderly GET_VRING_BASE nothing is in flight and the front end knows where the ring stands: the log is
// forgotten then (ForgetInflight), since the guest may begin the ring anew under it. QEMU's vhost-user-blk makes a new
// log when the device is reset, its vhost-user-scsi does not.
//
// The log says whose requests it has, and of each the disk that it was submitted to (virtio/inflight_entry.h): one that was recorded
// for a disk is not run on another.
//
// A batch may be larger than one, which some implementations of the recovery (librte_vhost's own) do not
// expect: Attach or Recover has to see the log before they do.
//
// Belongs to one queue, on its reactor. Without a log each call is one predictable branch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "virtio/device_queue.h"
#include "virtio/guest_access.h"
#include "virtio/inflight_entry.h"

namespace cleat::virtio {

class InflightLog {
 public:
  static constexpr uint64_t kHeaderBytes = 16;
  static constexpr uint64_t kEntryBytes = 16;
  static constexpr uint16_t kVersion = 1;
  static constexpr uint64_t Bytes(uint16_t queue_size) { return kHeaderBytes + kEntryBytes * queue_size; }

  // Takes the log of a queue whose ring has `used_index`; prepares a fresh one (all zeroes), repairs one that
  // a killed predecessor left. Fails when it is too small or made for a smaller queue. Without memory: no
  // log.
  // A log of another disk of the same store is taken as well. What a log without a disk, or of another store, says of disks is
  // dropped. A log that another ring left - its used index can't have become this ring's - has nothing in flight: no driver
  // waits for that any more.
  Status Attach(const InflightMemory& memory, uint16_t queue_size, uint16_t used_index);
  void Detach();
  bool enabled() const { return base_ != nullptr; }
  // Whether a predecessor used the log: then it, and not the front end, knows where the ring stands.
  bool resumed() const { return resumed_; }

  void Fetched(uint16_t head) {
    if (enabled()) StoreFetched(head);
  }
  // The request is submitted to that disk, in a log of several disks. Before it is.
  void SubmittedTo(uint16_t head, uint32_t tag) {
    if (enabled()) Store<uint32_t>(EntryAt(base_, head) + kCounterAt + kCounterTagAt, tag);
  }
  void Used(uint16_t head) {
    if (enabled()) StoreUsed(head);
  }
  void Published(uint16_t used_index) {
    if (enabled()) StorePublished(used_index);
  }

  // The heads that are in flight, in the order in which they were fetched: what a successor submits first,
  // before it goes on at the available index (used index + their number).
  std::vector<uint16_t> InFlight() const;
  // Which disk that one was submitted to: DiskIdentity::tag; 0: none, or not known.
  uint32_t TagOf(uint16_t head) const;

  // The specification's "When reconnecting", step 1, on memory that Attach would accept.
  static void Recover(uint8_t* base, uint16_t descriptors, uint16_t used_index);

 private:
  static void TakeOver(const InflightMemory& memory, uint16_t descriptors);
  std::vector<InflightRequest> Requests() const;

  // struct QueueRegionSplit: u64 features; u16 version, desc_num, last_batch_head, used_idx; then the entries.
  static constexpr uint64_t kVersionAt = kInflightVersionAt;
  static constexpr uint64_t kDescNumAt = 10;
  static constexpr uint64_t kLastBatchHeadAt = 12;
  static constexpr uint64_t kUsedIndexAt = 14;
  // struct DescStateSplit: u8 inflight, padding[5]; u16 next; u64 counter.
  static constexpr uint64_t kInflightAt = 0;
  static constexpr uint64_t kNextAt = 6;
  static constexpr uint64_t kCounterAt = 8;

  static uint8_t* EntryAt(uint8_t* base, uint16_t head) { return base + kHeaderBytes + kEntryBytes * head; }
  template <typename T>
  static T Load(const uint8_t* at) {
    return LoadShared<T>(at, std::memory_order_acquire);
  }
  template <typename T>
  static void Store(uint8_t* at, T value) {
    StoreShared<T>(at, value, std::memory_order_release);
  }
  static void ClearAll(uint8_t* base, uint16_t descriptors);
  static void ClearBatch(uint8_t* base, uint16_t descriptors, uint16_t head, uint32_t count);

  void StoreFetched(uint16_t head) {
    uint8_t* entry = EntryAt(base_, head);
    Store<uint64_t>(entry + kCounterAt, CounterOf(serial_++, tag_));
    Store<uint8_t>(entry + kInflightAt, 1);
  }
  void StoreUsed(uint16_t head) {
    Store<uint16_t>(EntryAt(base_, head) + kNextAt, batch_head_);
    Store<uint16_t>(base_ + kLastBatchHeadAt, head);
    batch_head_ = head;
    ++batch_count_;
  }
  void StorePublished(uint16_t used_index);

  uint8_t* base_ = nullptr;
  bool resumed_ = false;
  uint16_t size_ = 0;         // entries that we may touch: the queue's size
  uint16_t batch_head_ = 0;   // what last_batch_head holds
  uint32_t batch_count_ = 0;  // Used since the last Published
  uint32_t serial_ = 0;       // of the next request
  uint32_t tag_ = 0;          // of each request when it is fetched
  bool tagged_ = false;       // the tags in the log mean something
  std::shared_ptr<block::MemoryRegion> keep_;
};

// Of either format: makes the log of a stopped ring as good as new. The front end knows where the ring stands.
void ForgetInflight(const InflightMemory& memory);

}  // namespace cleat::virtio
