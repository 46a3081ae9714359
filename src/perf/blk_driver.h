// SPDX-License-Identifier: Apache-2.0
// A virtio-blk driver (virtio 1.2, 5.2) in user space: what the guest's kernel is to the disk. Asynchronous
// by default - Submit, Kick, Poll - with synchronous helpers for tests. It drives the Frontend for set-up,
// stop and reconnection; on the I/O path there are only rings.
//
// Owned by a test or by cleat-perf; uses a Frontend and a GuestMemory that outlive it. One thread. It takes
// guest memory at Start and gives it back when it is destroyed; before that, stop the device (Stop) or be
// sure that nobody serves it any more, or the device writes into memory that has another use. Submit and Poll
// allocate nothing.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/driver_ring.h"
#include "perf/frontend.h"
#include "perf/guest_memory.h"
#include "perf/request_layout.h"

namespace cleat::perf {

// What this driver can do; masked with what the device offers.
inline constexpr uint64_t kDefaultBlkFeatures =
    wire::kFeatureVersion1 | wire::kFeatureIndirectDesc | wire::kFeatureEventIdx | wire::kBlkSizeMax |
    wire::kBlkSegMax | wire::kBlkGeometry | wire::kBlkReadOnly | wire::kBlkBlkSize | wire::kBlkFlush |
    wire::kBlkTopology | wire::kBlkConfigWce | wire::kBlkMq | wire::kBlkDiscard | wire::kBlkWriteZeroes;

inline constexpr uint64_t kDefaultIoTimeoutNs = 30 * kNsPerSecond;
inline constexpr uint16_t kDefaultQueueSize = 128;
// Data segments a chain may have when the device states no seg_max.
inline constexpr uint32_t kDefaultSegMax = 126;
// What the synchronous helpers move with one request.
inline constexpr uint32_t kSyncChunkBytes = 256 * 1024;

struct BlkOptions {
  uint16_t num_queues = 1;
  uint16_t queue_size = kDefaultQueueSize;
  uint64_t features = kDefaultBlkFeatures;
  LayoutPolicy layout = LayoutPolicy::kIndirect;
  uint64_t layout_seed = 1;
  uint32_t piece_alignment_bytes = 1;  // see LayoutLimits
  uint64_t io_timeout_ns = kDefaultIoTimeoutNs;
  // Synchronous helpers and Wait take a new connection when the back end closes this one, and go on.
  bool auto_reconnect = false;
};

enum class BlkOp : uint8_t { kRead, kWrite, kFlush, kDiscard, kWriteZeroes, kGetId };

struct BlkIo {
  BlkOp op = BlkOp::kRead;
  uint64_t offset_bytes = 0;  // a multiple of 512
  uint32_t length_bytes = 0;  // of data, or to discard or zero
  uint64_t data_gpa = 0;      // reads, writes and GetId (20 bytes)
  uint64_t token = 0;
  bool unmap = false;  // write zeroes may deallocate
};

struct BlkCompletion {
  static constexpr uint8_t kNoStatus = 0xff;  // the device completed the request without writing one
  uint64_t token = 0;
  uint8_t status = kNoStatus;  // wire::BlkStatus
  uint32_t written_bytes = 0;  // as the used entry says
};

class BlkDriver {
 public:
  struct Stats {
    uint64_t submitted = 0;
    uint64_t completed = 0;
    uint64_t failed = 0;                  // with a status other than OK
    uint64_t used_length_mismatches = 0;  // OK, but the used entry doesn't say data + status
    uint64_t reconnects = 0;
  };

  // Connects (Accept, Open) if `frontend` isn't yet, reads the configuration, negotiates, brings up all
  // queues.
  static Result<std::unique_ptr<BlkDriver>> Start(Frontend& frontend, GuestMemory& memory,
                                                  const BlkOptions& options = {});
  ~BlkDriver();
  BlkDriver(const BlkDriver&) = delete;
  BlkDriver& operator=(const BlkDriver&) = delete;

  // The guest shuts the device down: every ring disabled and drained by the back end. Afterwards everything
  // that was submitted can be polled. Resume brings the same rings up where they stopped (pause and
  // continue).
  Status Stop();
  Status Resume();
  // A new connection after the back end's end (it waits for one), with the same rings, the kept in-flight
  // memory and each ring's base at its used index, as QEMU does it. What was in flight completes when the
  // back end replays it.
  Status Reconnect();
  // To be called after regions of guest memory were added or removed; allowed under I/O.
  Status UpdateMemory() { return frontend_.SetMemTable(memory_); }

  // ---- Asynchronous. False: no room now (poll first), or the request is impossible under the device's
  // limits.
  bool Submit(uint16_t queue, const BlkIo& io);
  // Any request type with any data, all of it readable or all of it writable by the device.
  bool SubmitRaw(uint16_t queue, uint32_t type, uint64_t sector, std::span<const Segment> data,
                 uint64_t token);
  void Kick(uint16_t queue) { queues_[queue].ring->Submit(); }  // publishes what was submitted
  size_t Poll(uint16_t queue, std::span<BlkCompletion> completions);
  // Sleeps until some queue has completions. kUnavailable when the back end is gone and auto_reconnect is
  // off.
  Status Wait(uint64_t timeout_ns);
  // OK, or why a ring is broken: the device broke the rules.
  Status Health() const;

  // ---- Synchronous: submit, wait, translate the status. Offsets and lengths in bytes. Completions of other
  // requests on the queue that arrive meanwhile are kept for Poll.
  Status ReadSync(uint64_t offset_bytes, std::span<uint8_t> data, uint16_t queue = 0);
  Status WriteSync(uint64_t offset_bytes, std::span<const uint8_t> data, uint16_t queue = 0);
  Status FlushSync(uint16_t queue = 0);
  Status DiscardSync(uint64_t offset_bytes, uint32_t length_bytes, uint16_t queue = 0);
  Status WriteZeroesSync(uint64_t offset_bytes, uint32_t length_bytes, bool unmap = false,
                         uint16_t queue = 0);
  Result<std::string> GetIdSync(uint16_t queue = 0);
  Result<BlkCompletion> Execute(uint16_t queue, const BlkIo& io);
  Result<BlkCompletion> ExecuteRaw(uint16_t queue, uint32_t type, uint64_t sector,
                                   std::span<const Segment> data);

  // ---- Buffers in guest memory, for as long as the driver lives.
  Result<uint64_t> AllocateBuffer(uint64_t size_bytes, uint64_t alignment = GuestMemory::kPageBytes);

  // Re-reads the configuration space (after a resize).
  Status RefreshConfig();
  const wire::BlkConfig& config() const { return config_; }
  uint64_t capacity_bytes() const { return config_.capacity_sectors * wire::kSectorBytes; }
  uint32_t block_bytes() const { return has(wire::kBlkBlkSize) ? config_.blk_size : wire::kSectorBytes; }
  uint64_t features() const { return features_; }
  bool has(uint64_t feature) const { return (features_ & feature) != 0; }
  uint16_t num_queues() const { return static_cast<uint16_t>(queues_.size()); }
  uint64_t in_flight(uint16_t queue) const {
    return queues_[queue].slots.size() - queues_[queue].free_slots.size();
  }
  DriverRing& ring(uint16_t queue) { return *queues_[queue].ring; }
  Frontend& frontend() { return frontend_; }
  GuestMemory& memory() { return memory_; }
  const Stats& stats() const { return stats_; }

 private:
  struct Slot {
    uint64_t token = 0;
    RequestArea* area = nullptr;
    uint64_t area_gpa = 0;
    uint32_t expected_written_bytes = 0;
    uint32_t tail_bytes = 0;
    uint8_t* tail = nullptr;
  };
  struct Queue {
    std::unique_ptr<DriverRing> ring;
    std::vector<Slot> slots;
    std::vector<uint16_t> free_slots;
    std::deque<BlkCompletion> kept;  // taken by a synchronous helper for somebody else
  };
  struct Buffer {
    uint64_t gpa;
    uint64_t size_bytes;
  };

  BlkDriver(Frontend& frontend, GuestMemory& memory, const BlkOptions& options)
      : frontend_(frontend), memory_(memory), options_(options) {}
  Status Negotiate();
  Status MakeQueues();
  Status StartRings(std::span<const uint16_t> bases);
  bool Enqueue(Queue& queue, uint32_t type, uint64_t sector, std::span<const Segment> data, uint64_t token);
  bool PopOne(Queue& queue, BlkCompletion* completion);
  Result<BlkCompletion> WaitFor(uint16_t queue, uint64_t token);
  Status RunSync(uint16_t queue, const BlkIo& io);

  Frontend& frontend_;
  GuestMemory& memory_;
  const BlkOptions options_;
  uint64_t features_ = 0;
  wire::BlkConfig config_{};
  std::vector<Queue> queues_;
  std::vector<Buffer> buffers_;
  std::vector<uint16_t> stopped_bases_;
  std::unique_ptr<LayoutPlanner> planner_;
  RequestLayout layout_;
  std::vector<pollfd> poll_fds_;
  uint64_t sync_gpa_ = 0;
  uint64_t sync_token_ = 0;
  Stats stats_;
};

}  // namespace cleat::perf
