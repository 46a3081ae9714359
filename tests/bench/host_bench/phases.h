// SPDX-License-Identifier: Apache-2.0
// The measurements, each on hosts of its own or on one that was made by another. See main.cc for what they are for.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "bench_host.h"
#include "control_plane.h"
#include "figures.h"
#include "guest_fleet.h"

namespace cleat::bench {

struct Plan {
  HostShape shape{.controllers = 384, .targets = 8};
  bool serial = true;       // attach one by one, idle, wake
  bool parallel = true;     // attach together, a few busy disks
  bool pool = true;         // make disks of a pool, attach them together
  uint32_t active = 64;     // disks under load, on as many controllers
  uint32_t in_flight = 32;  // calls of the parallel attach
  uint32_t idle_windows = 3;
  uint32_t idle_window_ms = 5000;
  uint32_t wakes = 400;
  uint32_t load_pairs = 31;  // short ones, so that what else runs on the machine meets both of a pair
  uint32_t load_ms = 250;
  uint32_t depth = 4;
  uint32_t get_ms = 5000;  // of each run of Gets
  uint32_t creates = 100;  // of disks in the pool, and as many in files, in turns
  int generator_core = 1;
  HostOptions host;
};

// A host with its guests connected and their disks attached. The guests go last.
struct Populated {
  std::unique_ptr<GuestFleet> guests;
  std::unique_ptr<BenchHost> host;
  AttachTimes times;
  uint64_t engine_empty_bytes = 0;   // Private_Dirty before there was anything
  uint64_t engine_guests_bytes = 0;  // with controllers and guests, without disks
  uint64_t cleatd_empty_bytes = 0;
  double handshakes_s = 0;
  double engine_cpu_us = 0;  // a disk, while they were attached
  double cleatd_cpu_us = 0;
};

class Phases {
 public:
  Phases(const Plan& plan, Figures& figures, const std::atomic<bool>& stop)
      : plan_(plan), figures_(figures), stop_(stop) {}

  Status Run();

 private:
  // Each ends the hosts that it is done with.
  Status Disk();
  Status SlowStore();
  Status Serial();
  Status Parallel(Populated* crowded);
  Status Pool();
  Status Active(Populated& crowded);

  Status CreateTimes(ControlPlane& control, const std::string& folder);
  Result<Populated> Populate(const HostShape& shape, uint32_t in_flight);
  // `made` has a host, or is given one.
  Status PopulateOn(Populated& made, const HostShape& shape, uint32_t in_flight);
  // A Get each millisecond, for a while: how long each took, in milliseconds.
  Result<std::vector<double>> GetTimes(v1::Cleat::Stub& stub) const;
  Status Idle(const Populated& made);
  Status Wake(const Populated& made, const std::string& figure);
  Status BareWake();
  Status Used(const Populated& made);
  Result<double> WakeAsleep(perf::ScsiDriver& driver, uint8_t target, uint64_t buffer_gpa);
  Result<double> WakeOnce(perf::ScsiDriver& driver, uint8_t target, uint64_t buffer_gpa);
  // Target 0 of every `step`-th guest.
  Result<std::vector<perf::LoadDevice>> ActiveDisks(GuestFleet& guests, size_t step) const;
  Result<double> LoadOnce(std::vector<perf::LoadDevice>& devices);  // requests a second
  Status Sleep(uint64_t ms);                                        // kCancelled when interrupted
  static Status EndHost(Populated& made);
  void Say(const std::string& what) const;

  const Plan& plan_;
  Figures& figures_;
  const std::atomic<bool>& stop_;
};

}  // namespace cleat::bench
