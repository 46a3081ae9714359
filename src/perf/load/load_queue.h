// SPDX-License-Identifier: Apache-2.0
// The load on one virtqueue or NVMe queue pair: keeps requests in flight on it, with a slot for each whose chain is
// written once and aimed at another block with every use. A generator thread owns it (its LoadThreadState is shared by
// the thread's queues) and polls it; ring and memory outlive it. It allocates when it is made and never again, and what the device
// may still write to belongs to the GuestMemory, not to it.
//
// In the inner loop nothing is virtual: one implementation is compiled for each ring format and device type, and the
// queue pair is one more format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/tick_clock.h"
#include "perf/driver/scsi_cdb.h"
#include "perf/load/load_options.h"
#include "perf/load/load_stats.h"
#include "perf/nvme_tcp/driver.h"
#include "perf/ring/driver_ring.h"
#include "perf/vhost_user/guest_memory.h"
#include "perf/wire/virtio_blk.h"
#include "perf/workload/verify.h"

namespace cleat::perf {

enum class DeviceType : uint8_t { kBlk, kScsi, kNvme };

// A disk behind a queue: the device's one, or one of a controller's targets.
struct LoadDisk {
  std::string name;
  uint64_t bytes = 0;
  uint32_t logical_block_bytes = wire::kSectorBytes;
  scsi::Lun lun{};    // scsi only
  uint32_t nsid = 0;  // NVMe only
  StampedBlocks* stamps =
      nullptr;  // with verification; shared by the disk's queues, which write disjoint blocks
};

// Shared by the queues of one generator thread; that thread's.
struct LoadThreadState {
  enum class Phase : uint8_t { kLoad, kVerify };
  explicit LoadThreadState(const TickRate& rate) : clock(rate) {}

  const TickClock clock;
  LoadStats stats;
  uint64_t start_ns = 0;       // of the open loops' schedule
  uint64_t count_from_ns = 0;  // requests that began (were due) before are warm-up
  uint64_t end_ns = UINT64_MAX;
  uint64_t in_flight = 0;
  uint64_t live_streams = 0;  // open loop: that will send more even with nothing in flight
  Phase phase = Phase::kLoad;
  uint64_t reconnects = 0;
  bool broken = false;  // some queue is: see LoadQueue::Problem
};

class LoadQueue {
 public:
  struct Setup {
    DeviceType type = DeviceType::kBlk;
    std::vector<LoadDisk> disks;  // `depth` requests in flight on each
    uint16_t queue = 0;           // this one's number, of `queues` that the disks have
    uint16_t queues = 1;
    uint64_t stream = 0;  // number of the queue's first disk-and-queue pair, of `streams` in the whole load
    uint64_t streams = 1;
    std::string name;  // for messages
  };

  static Result<std::unique_ptr<LoadQueue>> Make(DriverRing& ring, GuestMemory& memory, const Setup& setup,
                                                 const LoadOptions& options, LoadThreadState& state);
  static Result<std::unique_ptr<LoadQueue>> Make(NvmePostedQueue& queue, GuestMemory& memory,
                                                 const Setup& setup, const LoadOptions& options,
                                                 LoadThreadState& state);
  virtual ~LoadQueue() = default;

  // Descriptors that a queue needs for this load on so many disks.
  static uint32_t DescriptorsNeeded(const LoadOptions& options, size_t disks, bool indirect);

  // Sends the first requests (closed loop) or begins the schedule (open loop).
  virtual void Start() = 0;
  // Takes what has completed, sends what is to be sent, kicks if the device wants that. How many completed.
  virtual size_t Poll() = 0;
  // After the load: reads back every block that was written. Poll goes on until nothing is in flight.
  virtual void StartVerification() = 0;
  // Open loop: when the next request is due; UINT64_MAX when none is or none can be sent now.
  virtual uint64_t NextDueNs() const = 0;
  // Ends the schedule: what was due and not sent is counted with the time that it has waited.
  virtual void EndSchedule(uint64_t now_ns) = 0;
  virtual uint32_t in_flight() const = 0;
  virtual uint64_t completed() const = 0;

  // Waiting, as DriverRing has it.
  virtual int call_fd() const = 0;
  virtual bool EnableCalls() = 0;
  virtual void DisableCalls() = 0;
  // What the other side has broken; empty: nothing.
  virtual std::string Problem() const = 0;

  const std::string& name() const { return name_; }

 protected:
  explicit LoadQueue(std::string name) : name_(std::move(name)) {}

  const std::string name_;
};

}  // namespace cleat::perf
