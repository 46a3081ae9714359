// SPDX-License-Identifier: Apache-2.0
// The device's side of one virtqueue, whatever device and ring format: what a transport (src/vhost, or a pretend one
// in tests) drives. Pure code on plain memory: no socket, no descriptor but the call eventfd behind `Notifier`.
//
// Everything here happens on the queue's own I/O reactor. Life: made stopped; Start; Stop, which lets every request
// in flight end; Start again or destroy. A queue whose ring broke the rules (virtio 1.2, 2.7) stops fetching and
// tells its listener; requests in flight still end; only Stop and Start bring it back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/disk_identity.h"
#include "block/memory.h"
#include "reactor/poller.h"
#include "reactor/reactor.h"

namespace cleat::virtio {

inline constexpr uint16_t kQueueSizeMax = 1024;

// How the guest is told about used buffers; owned by the transport, outlives its use by the queue.
class Notifier {
 public:
  virtual ~Notifier() = default;
  virtual void Call() = 0;  // hot path: at most a write to an eventfd
};

// A virtqueue's memory (virtio 1.2, 2.7; packed: 2.8.10.1), as addresses in the device's own mapping. Whoever makes it
// has checked that each part lies in one region of `memory` with its full size (below) and alignment: descriptor table,
// available and used ring with 16, 2, 4; packed: descriptor ring, driver's and device's event suppression with 16, 4, 4.
struct RingMemory {
  uint16_t size = 0;  // up to kQueueSizeMax; a split ring's is a power of two
  uint8_t* descriptors = nullptr;
  uint8_t* available = nullptr;
  uint8_t* used = nullptr;
  uint64_t used_guest_address = 0;         // where the dirty log finds what the device writes
  uint64_t descriptors_guest_address = 0;  // ... also there in a packed ring
};
constexpr uint64_t DescriptorBytes(uint16_t size) {
  return uint64_t{16} * size;
}
constexpr uint64_t AvailableBytes(uint16_t size) {
  return 6 + uint64_t{2} * size;
}  // with used_event
constexpr uint64_t UsedBytes(uint16_t size) {
  return 6 + uint64_t{8} * size;
}  // with avail_event

// One queue's part of the in-flight log (vhost-user specification, "Inflight I/O tracking"), in memory
// that outlives this process. `keep` holds the mapping.
struct InflightMemory {
  uint8_t* base = nullptr;  // nullptr: the peer tracks nothing
  uint64_t size_bytes = 0;
  std::shared_ptr<block::MemoryRegion> keep;
  DiskIdentity disk = {};  // whose requests it is to have (DeviceModel::log_disk)
};

// The dirty log of a live migration (vhost-user specification, "Migration"): one bit a 4 KiB page of guest-physical
// memory, set after the write. Shared by several threads and processes: set with an atomic or.
struct DirtyLogMemory {
  uint8_t* base = nullptr;  // nullptr: not migrating
  uint64_t size_bytes = 0;
  std::shared_ptr<block::MemoryRegion> keep;
};

struct QueueSetup {
  uint64_t features = 0;  // negotiated; VIRTIO_F_RING_PACKED says which format the ring has
  std::shared_ptr<const block::MemoryMap> memory;
  RingMemory ring;
  uint32_t next_available = 0;  // the ring position to go on from, see DeviceQueue::next_available
  InflightMemory inflight;
  DirtyLogMemory dirty_log;
  Notifier* notifier = nullptr;  // may be nullptr: the guest polls
};

class DeviceQueue : public Poller {
 public:
  // The ring broke: why, in words for an operator. Called on the queue's reactor, once until the next Start.
  using BrokenFn = std::function<void(const std::string& reason)>;

  // Begins to serve the ring and adds itself to the reactor's pollers, active.
  virtual void Start(const QueueSetup& setup, BrokenFn on_broken) = 0;

  // Fetches nothing from now on; calls `on_drained` (perhaps before it returns) when every request in flight has been
  // completed to the ring and no guest memory is held any more. Not twice without a Start between. `on_drained` may
  // destroy the queue, but not the storage below it, which may be on the stack.
  virtual void Stop(std::function<void()> on_drained) = 0;
  // A successor goes on with the ring by its in-flight log: until this queue has stopped, or goes on itself, what the storage has no
  // space for is left there, unanswered, for the successor to try again. Before Stop; without a log it is answered as ever.
  virtual void LeaveToSuccessor() = 0;
  // Takes a Stop back that has not drained yet: `on_drained` is forgotten, and the queue goes on as if nothing had been.
  virtual void Resume() = 0;

  // While it runs, without stopping: the next fetch uses the new map (and where the ring lies in it), requests in
  // flight keep the old one alive until they end.
  virtual void SetMemory(std::shared_ptr<const block::MemoryMap> memory, const RingMemory& ring) = 0;
  virtual void SetNotifier(Notifier* notifier) = 0;
  virtual void SetDirtyLog(const DirtyLogMemory& dirty_log) = 0;

  // Where a successor goes on. Split: the index of the next available entry that was not fetched. Packed: a
  // PackedPosition's word (ring_format.h), in which 0 is no fresh ring's: that is kPackedStart.
  virtual uint32_t next_available() const = 0;
  virtual uint32_t in_flight() const = 0;
};

}  // namespace cleat::virtio
