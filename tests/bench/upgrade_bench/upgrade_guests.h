// SPDX-License-Identifier: Apache-2.0
// The guests of a host whose engines are exchanged. The first ones are under a load that judges all that it gets, each on
// a thread of its own, and say how long the longest silence was. The others have nothing in flight: one thread takes the
// next engine's connection for all of them. Made, used and destroyed by one thread; it goes before the host.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../host_bench/guest_fleet.h"
#include "base/result.h"
#include "perf/crash/crash_load.h"
#include "perf/driver/disk_port.h"
#include "perf/workload/verify.h"

namespace cleat::bench {

class UpgradeGuests {
 public:
  static Result<std::unique_ptr<UpgradeGuests>> Listen(const std::vector<std::string>& sockets);
  ~UpgradeGuests();
  UpgradeGuests(const UpgradeGuests&) = delete;
  UpgradeGuests& operator=(const UpgradeGuests&) = delete;

  // Waits for the engine at all of them.
  Status Open(const std::atomic<bool>& stop) { return fleet_->Open(stop); }
  // The first `loaded` on target 0, which has zeroes so far.
  struct Load {
    uint32_t loaded = 1;
    uint32_t depth = 8;
    uint64_t pause_ns = 0;  // of each guest between two looks at its rings
  };
  Status Start(const Load& load);

  // Forgets the silences so far, and remembers who has which engine.
  void Mark();
  // Until all have another engine than at Mark, and those under load have compared their disks. Adds the longest silence
  // that each saw since Mark, in milliseconds.
  Status WaitMoved(const std::atomic<bool>& stop, std::vector<double>* gaps_ms);
  // The longest silences since Mark, without having been moved.
  void TakeGaps(std::vector<double>* gaps_ms);
  // Compares everything once more; an error when a guest has found fault.
  Status Stop();

 private:
  struct Loaded {
    Loaded(perf::ScsiDriver& driver, uint64_t id, const Load& load);
    perf::ScsiPort port;
    perf::StampedBlocks blocks;
    perf::CrashLoad load;
    uint64_t mark = 0;
  };

  explicit UpgradeGuests(std::unique_ptr<GuestFleet> fleet) : fleet_(std::move(fleet)) {}
  void KeepConnected();
  Status Judge() const;

  std::unique_ptr<GuestFleet> fleet_;
  std::vector<std::unique_ptr<Loaded>> loaded_;
  uint64_t idle_goal_ = 0;
  std::atomic<uint64_t> idle_reconnects_{0};
  std::atomic<bool> idle_failed_{false};
  std::atomic<bool> ending_{false};
  std::thread keeper_;
};

}  // namespace cleat::bench
