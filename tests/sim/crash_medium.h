// SPDX-License-Identifier: Apache-2.0
// A disk as the kernel and what is below it make one: it outlives every process. Requests land block by block, late and
// in any order; data moves between the guest's memory and the medium at the instant when a block lands, as a device's
// DMA does. A process that dies leaves behind what it had under way, which goes on landing, more slowly even, and keeps
// the disk's lock until the last of it has, as an open file's lock does. Owned by the test; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "block/device.h"
#include "defect.h"
#include "disk_model.h"
#include "kill_switch.h"
#include "perf/vhost_user/guest_memory.h"
#include "world.h"

namespace cleat::sim {

inline constexpr uint64_t kCrashGuestBytes = 192 << 10;  // the memory of one guest

class CrashMedium final : public Actor {
 public:
  struct Plan {
    uint64_t land_ns_max = 100 * kNsPerUs;  // from one block of a request to the next
    uint64_t late_ns_max = 5 * kNsPerMs;    // more, when the process has died
    uint32_t at_once_percent = 0;           // requests that are done before Submit returns
    uint32_t fail_percent = 0;              // requests that end with an error, some of their blocks landed
  };
  // All of it outlives the medium.
  struct Parts {
    World& world;
    KillSwitch& kill;
    perf::GuestMemory& memory;  // of the one guest whose disk it is; one region, at 0
    // The disk that this guest knows: nothing that it asks may reach another one.
    std::function<const DiskModel*()> known_to_guest;
  };

  CrashMedium(const Parts& parts, const std::string& name, DiskIdentity identity, uint64_t blocks,
              const Plan& plan, uint64_t seed, Defect defect);
  ~CrashMedium() override;

  const std::string& name() const { return model_.name(); }
  DiskIdentity identity() const { return identity_; }
  DiskModel& model() { return model_; }
  uint64_t size_bytes() const { return bytes_.size(); }
  bool may_fail() const { return plan_.fail_percent > 0; }

  // ---- For the device of a process, which goes by its number
  std::unique_ptr<block::Device> Open(uint64_t process, const block::Geometry& geometry);
  // A process is to end (SIGTERM), and has ended or died.
  void Terminating(uint64_t process);
  void Gone(uint64_t process);

  bool idle() const { return under_way_.empty(); }
  // Requests that a living process waits for.
  uint64_t waited_for() const;
  // What dead processes have under way lands at once.
  void LandAll();
  // Nothing of a dead process is under way any more.
  bool all_landed() const { return waited_for() == under_way_.size(); }
  void CheckContent();
  uint64_t landed_late() const { return landed_late_; }
  uint64_t replayed() const { return replayed_; }

  // ---- Actor
  bool Step() override;
  uint64_t NextNs() const override;
  std::string Describe() const override;

 private:
  class CrashDevice;
  class CrashChannel;
  struct UnderWay {
    uint64_t process = 0;
    block::Op op = block::Op::kFlush;
    std::vector<uint64_t> blocks;  // that are still to land
    uint64_t first_block = 0;
    std::vector<block::Segment> segments;
    // Of a request whose memory is the process' own: what it writes, or what it is to be given.
    std::vector<uint8_t> own;
    uint64_t next_ns = 0;
    block::Request* request = nullptr;  // nullptr: nobody waits for it any more
    Reactor* reactor = nullptr;
    bool fenced = true;  // keeps the lock of its process
    bool fails = false;
  };

  void Submit(uint64_t process, Reactor& reactor, block::Request& request);
  void CheckSubmitted(uint64_t process, const block::Request& request);
  void CountSubmitted(uint64_t stamp);
  bool locks() const {
    return defect_ != Defect::kNoLock && defect_ != Defect::kReplayBeforeLock &&
           defect_ != Defect::kTakeBeforeYield;
  }
  bool TryLock(uint64_t process);
  void Unlock(uint64_t process);
  void LandOne(UnderWay& io);
  void LandBlock(UnderWay& io, uint64_t index);
  void GiveOwn(const UnderWay& io);
  void Finish(UnderWay& io, block::IoStatus status);

  World& world_;
  KillSwitch& kill_;
  perf::GuestMemory& memory_;
  const std::function<const DiskModel*()> known_to_guest_;
  const DiskIdentity identity_;
  const Plan plan_;
  const Defect defect_;
  Random random_;
  DiskModel model_;
  std::vector<uint8_t> bytes_;
  std::list<UnderWay> under_way_;
  uint64_t owner_ = 0;  // process; 0: none
  uint64_t landed_late_ = 0;
  uint64_t replayed_ = 0;        // writes that came more than once
  std::vector<bool> submitted_;  // by stamp
};

}  // namespace cleat::sim
