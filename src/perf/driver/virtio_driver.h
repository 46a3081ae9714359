// SPDX-License-Identifier: Apache-2.0
// What drivers of all virtio devices have in common: rings, a slot for each request in flight with guest
// memory of its own, set-up, stop, reconnection, waiting. VirtioDriver knows no request; RequestDriver
// (request_driver.h) adds what depends on the type of a completion.
//
// Owned by a test or by cleat-perf; uses a Frontend and a GuestMemory that outlive it. One thread. It takes
// guest memory when it starts and gives it back when it is destroyed; before that, stop the device (Stop) or
// be sure that nobody serves it any more, or the device writes into memory that has another use. Submitting
// and polling allocate nothing.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/ring/driver_ring.h"
#include "perf/ring/request_layout.h"
#include "perf/vhost_user/deadline.h"
#include "perf/vhost_user/frontend.h"
#include "perf/vhost_user/guest_memory.h"

namespace cleat::perf {

inline constexpr uint64_t kDefaultIoTimeoutNs = 60 * kNsPerSecond;
inline constexpr uint16_t kDefaultQueueSize = 128;
// Data segments a chain may have when the device states no seg_max.
inline constexpr uint32_t kDefaultSegMax = 126;
// What the synchronous helpers move with one request.
inline constexpr uint32_t kSyncChunkBytes = 256 * 1024;
// Tokens of the synchronous helpers' own requests: far from what a caller would use.
inline constexpr uint64_t kSyncTokenBase = 1ULL << 63;

// What a back end that takes over is given of its predecessor's in-flight memory.
enum class InflightUse : uint8_t {
  kKeep,      // the same memory, as QEMU does
  kMakeAnew,  // none: it makes its own and can't know what was accepted. A negative control
};

// BlkOptions, ScsiOptions: one set of options, with the device type's features as the default.
template <uint64_t kFeatures>
struct DriverOptions {
  uint16_t num_queues = 1;  // for requests
  uint16_t queue_size = kDefaultQueueSize;
  uint64_t features = kFeatures;
  bool packed = false;  // packed rings; an error where the device does not offer them
  LayoutPolicy layout = LayoutPolicy::kIndirect;
  uint64_t layout_seed = 1;
  uint32_t piece_alignment_bytes = 1;  // see LayoutLimits
  uint64_t io_timeout_ns = kDefaultIoTimeoutNs;
  // Synchronous helpers and Wait take a new connection when the back end closes this one, and go on.
  bool auto_reconnect = false;
  InflightUse inflight = InflightUse::kKeep;
};

class VirtioDriver {
 public:
  struct Stats {
    uint64_t submitted = 0;
    uint64_t completed = 0;
    uint64_t failed = 0;                  // with a status other than OK
    uint64_t used_length_mismatches = 0;  // OK, but the used entry doesn't say what was to be written
    uint64_t reconnects = 0;
  };

  VirtioDriver(const VirtioDriver&) = delete;
  VirtioDriver& operator=(const VirtioDriver&) = delete;

  // The guest shuts the device down: every ring disabled and drained by the back end. Afterwards everything
  // that the device had begun can be polled. Resume brings the same rings up where they stopped (pause and
  // continue).
  Status Stop();
  Status Resume();
  // The guest resets the device: after Stop, once everything was polled, the rings are made anew and empty, and no in-flight memory is
  // kept. What the device had not begun is forgotten. kFailedPrecondition where a request was begun and is not answered, or was answered and
  // not polled. A back end that goes away meanwhile is no error: Reconnect begins with these rings. Of drivers whose device has event buffers,
  // theirs (ScsiDriver::StartAnew).
  Status StartAnew();
  // A new connection after the back end's end (it waits for one), with the same rings and the kept in-flight memory, as
  // QEMU 10 does it (vhost_virtqueue_stop when GET_VRING_BASE is not answered): a split ring's base is its used index; a
  // packed ring has no such thing in memory, and its base stays what it was when the ring was last started or stopped
  // well. Nothing is submitted again: what was in flight completes when the back end replays it.
  Status Reconnect();
  // To be called after regions of guest memory were added or removed; allowed under I/O.
  Status UpdateMemory() { return frontend_.SetMemTable(memory_); }

  void Kick(uint16_t queue) { queues_[queue].ring->Submit(); }  // publishes what was submitted
  // What keeps the requests of a ring, for people.
  std::string Describe(uint16_t ring) const;
  // OK, or why a ring is broken: the device broke the rules.
  Status Health() const;

  // Buffers in guest memory, for as long as the driver lives.
  Result<uint64_t> AllocateBuffer(uint64_t size_bytes, uint64_t alignment = GuestMemory::kPageBytes);

  uint64_t features() const { return features_; }
  bool has(uint64_t feature) const { return (features_ & feature) != 0; }
  // False: WaitAsGuest has gone to sleep on this ring, and no call has come. A guest does not look at it then.
  bool awake(uint16_t ring) const { return !queues_[ring].asleep; }
  uint16_t num_queues() const { return static_cast<uint16_t>(queues_.size()); }
  uint64_t in_flight(uint16_t queue) const {
    return queues_[queue].slots.size() - queues_[queue].free_slots.size();
  }
  DriverRing& ring(uint16_t queue) { return *queues_[queue].ring; }
  Frontend& frontend() { return frontend_; }
  GuestMemory& memory() { return memory_; }
  const Stats& stats() const { return stats_; }

 protected:
  struct Slot {
    uint64_t token = 0;
    uint8_t* area = nullptr;
    uint64_t area_gpa = 0;
    uint32_t expected_written_bytes = 0;
    RequestLayout::Bounce bounce;
  };
  template <typename T>
  static T& Area(const Slot& slot) {
    return *reinterpret_cast<T*>(slot.area);
  }
  struct Settings {           // of the device, as negotiated
    uint32_t area_bytes = 0;  // guest memory for each request's own use
    uint32_t seg_max = kDefaultSegMax;
    uint32_t piece_bytes_max = UINT32_MAX;
  };

  template <typename Options>
  VirtioDriver(Frontend& frontend, GuestMemory& memory, const Options& options)
      : frontend_(frontend),
        memory_(memory),
        queue_size_(options.queue_size),
        packed_(options.packed),
        layout_policy_(options.layout),
        layout_seed_(options.layout_seed),
        piece_alignment_bytes_(options.piece_alignment_bytes),
        io_timeout_ns_(options.io_timeout_ns),
        auto_reconnect_(options.auto_reconnect),
        inflight_use_(options.inflight) {}
  ~VirtioDriver();

  // ---- Set-up, in this order.
  static Status Connect(Frontend& frontend);  // unless it is
  Status Negotiate(uint64_t wanted_features);
  Status MakeQueues(uint16_t count, const Settings& settings);
  Status StartFresh();
  // See StartAnew.
  Status CheckLeft(uint16_t first_ring) const;
  Status RenewRings();

  // ---- Requests. Take a free slot (nullptr: there is none), fill its area, enqueue it. False: no room now,
  // or impossible under the device's limits; the slot is still free then.
  Slot* NextSlot(uint16_t queue);
  bool Enqueue(uint16_t queue, const RequestShape& shape, std::span<const Segment> out,
               std::span<const Segment> in, uint64_t token);
  // A completed request's slot, free again, valid until the next Enqueue; nullptr when there is none.
  const Slot* TakeUsed(uint16_t queue, uint32_t* written_bytes);

  // Until some ring has completions to take. kUnavailable when the back end is gone and auto_reconnect is
  // off.
  Status WaitRings(uint64_t timeout_ns);
  // See RequestDriver::WaitAsGuest.
  Status WaitCalls(uint16_t first_ring, uint64_t timeout_ns);

  Frontend& frontend_;
  GuestMemory& memory_;
  uint64_t features_ = 0;
  uint64_t sync_gpa_ = 0;  // kSyncChunkBytes of buffer for the synchronous helpers
  uint64_t sync_token_ = 0;
  const uint16_t queue_size_;
  const bool packed_;
  const LayoutPolicy layout_policy_;
  const uint64_t layout_seed_;
  const uint32_t piece_alignment_bytes_;
  const uint64_t io_timeout_ns_;
  const bool auto_reconnect_;
  const InflightUse inflight_use_;
  Stats stats_;

 private:
  struct Queue {
    std::unique_ptr<DriverRing> ring;
    std::vector<Slot> slots;
    std::vector<uint16_t> free_slots;
    bool asleep = false;  // calls are asked for, and nothing is looked at before one comes
  };
  struct Buffer {
    uint64_t gpa;
    uint64_t size_bytes;
  };
  Status StartRings(std::span<const uint32_t> bases);
  bool FallAsleep(uint16_t first_ring);  // false: a ring has something
  bool WakeCalled(uint16_t first_ring);

  std::vector<Queue> queues_;
  std::vector<Buffer> buffers_;
  std::vector<uint32_t> bases_;  // as the rings were last started with, or stopped at
  bool stopped_ = false;
  RingOptions ring_options_;
  std::unique_ptr<LayoutPlanner> planner_;
  RequestLayout layout_;
  std::vector<pollfd> poll_fds_;
};

}  // namespace cleat::perf
