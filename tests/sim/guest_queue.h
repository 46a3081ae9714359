// SPDX-License-Identifier: Apache-2.0
// One virtqueue of a pretend guest: a real ring in plain memory with requests whose every answer is checked - status,
// used length, data against the disk's model, each completed once. The driver's side of the ring is src/perf's, which
// shares nothing with the engine. Owned by a SimGuest; same thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "defect.h"
#include "disk_model.h"
#include "guest_request.h"
#include "perf/ring/driver_ring.h"
#include "perf/ring/request_layout.h"
#include "perf/vhost_user/guest_memory.h"
#include "world.h"

namespace cleat::sim {

inline constexpr uint32_t kIoBlocksMax = 16;

// What a guest knows of the disk that it sees.
struct GuestDisk {
  DiskModel* model = nullptr;
  uint32_t logical_blocks = 1;  // kBlockBytes each, in a logical block
  bool read_only = false;
  bool may_fail = false;  // requests fail now and then, as the storage's plan says
};

class GuestQueue {
 public:
  struct Options {
    perf::RingOptions ring;
    GuestDeviceType device = GuestDeviceType::kBlk;
    bool interrupts = false;  // looks at the ring only when it was called
    uint32_t slots = 16;
    uint32_t io_blocks_max = kIoBlocksMax;
    bool was_reset = false;   // its unit, before there was this queue: there may be something to report
    bool watch_idle = false;  // nobody may write the buffers that are not lent to the device
    Defect defect = Defect::kNone;
    std::string name;  // for messages
  };
  static constexpr uint32_t kSlotsMax = 32;

  // The memory and the planner outlive the queue.
  GuestQueue(World& world, perf::GuestMemory& memory, perf::LayoutPlanner& planner, const Options& options);
  ~GuestQueue();  // nothing is open

  // One more request from `random`, put into the ring and not yet shown. False: no room.
  bool Issue(const GuestDisk& disk, Random& random);
  bool IssueGetId();
  // Of a virtio-scsi device's control queue: resets its unit. One at a time.
  bool IssueReset();
  void Submit() { ring_->Submit(); }

  // Takes and checks what has come back. `must_look`: without having been called. True when there was something.
  bool Collect(bool must_look);
  // The answer to IssueGetId, once.
  std::optional<std::string> TakeIdentity();

  // What is open will never be answered by this ring.
  std::vector<OpenIo> TakeOpen();
  // The driver forgets what is open: nobody has fetched it, or a process that died may have done it.
  void ForgetOpen();
  uint32_t open() const { return open_; }

  // Data buffers of idle slots go to another region of memory; false when some slots were busy.
  bool MoveBuffers(uint64_t region_gpa);

  perf::DriverRing& ring() { return *ring_; }
  uint64_t completed() const { return completed_; }
  // Reports what was written to idle buffers since they came back; with watch_idle.
  void CheckIdle();
  // The answer to IssueReset, once.
  std::optional<uint8_t> TakeResetAnswer() { return std::exchange(reset_answer_, std::nullopt); }
  // Of the request queues, when a reset of their unit is asked for, and when it has been answered: how many requests of
  // before it are still open.
  void BeginReset();
  uint32_t EndReset();
  // The process that was asked has died: what is open may have happened or not.
  void Survive();
  // The disk that what is open is for was taken away.
  void LoseDisk();
  std::string Describe() const;

 private:
  struct Slot {
    bool busy = false;
    bool dropped = false;  // by a planted defect
    OpenIo io;
    uint64_t area_gpa = 0;
    uint64_t buffer_gpa = 0;
    uint32_t expected_written_bytes = 0;
    perf::RequestLayout::Bounce bounce;
    bool read_only = false;
    bool may_fail = false;
    bool watched = false;
    bool survived = false;      // a process died while it was open
    bool before_reset = false;  // open when a reset was asked for
    bool may_reset = false;     // ... or was not answered
    bool lost_disk = false;     // it was taken away while this was open
  };
  uint64_t buffer_bytes() const { return uint64_t{options_.io_blocks_max} * kBlockBytes; }

  Slot* FreeSlot();
  OpenIo Draw(const GuestDisk& disk, Random& random) const;
  void BeginInModel(OpenIo& io, const GuestDisk& disk) const;
  bool Enqueue(Slot& slot);
  void Lend(Slot& slot);
  bool MayEndSo(const Slot& slot, GuestRequest::Outcome outcome) const;
  void Finish(Slot& slot, uint32_t written_bytes);
  void FinishOk(Slot& slot, uint32_t written_bytes);
  void FinishMiscompare(const Slot& slot);
  void Duplicate(uint32_t id);
  void Watch(Slot& slot);
  void CheckWatched(Slot& slot);
  void Wrong(const Slot& slot, const std::string& what);

  World& world_;
  perf::GuestMemory& memory_;
  perf::LayoutPlanner& planner_;
  const Options options_;
  const GuestRequest request_;
  std::unique_ptr<perf::DriverRing> ring_;
  std::vector<Slot> slots_;
  uint32_t open_ = 0;
  uint64_t completed_ = 0;
  perf::RequestLayout layout_;
  std::optional<std::string> identity_;
  std::optional<uint8_t> reset_answer_;
  bool resetting_ = false;
  bool was_reset_;
  bool reported_broken_ = false;
};

}  // namespace cleat::sim
