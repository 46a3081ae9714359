// SPDX-License-Identifier: Apache-2.0
// Guests on a host whose processes are killed: one for each kind of device, ring and disk, each with a load that judges
// (perf/crash_load.h). Tells how long each device was silent around each kill, and what was found.
//
// Of the test's main thread; the guests have threads of their own. Guests that lose requests say so within a limit, so
// that everything here ends by itself.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "host.h"
#include "peer.h"
#include "perf/crash_load.h"
#include "perf/disk_port.h"
#include "perf/latency_histogram.h"
#include "perf/verify.h"

namespace cleat::system_test {

struct CrashCase {
  bool scsi = false;
  bool packed = false;
  uint16_t queues = 1;
  bool memory = false;        // otherwise a file
  uint64_t delay_ns_max = 0;  // of each request, at random: answers out of order, many in flight at the kill
  std::string Id() const;     // "blk-packed-q4-file"
};

// What of the in-flight memory a guest gives to the next engine.
enum class CrashControl : uint8_t {
  kNone,           // all of it, as QEMU does
  kNoInflight,     // none was negotiated
  kFreshInflight,  // a new log for each engine
};

struct CrashGuestOptions {
  CrashControl control = CrashControl::kNone;
  perf::CrashLoadOptions load = {};
};

class CrashGuest {
 public:
  // A disk and a controller on the host, a guest that has booted, and its load, not yet begun.
  static Result<std::unique_ptr<CrashGuest>> Make(Host& host, const CrashCase& what,
                                                  const CrashGuestOptions& options);

  const std::string& id() const { return id_; }
  perf::CrashLoad& load() { return *load_; }
  perf::LatencyHistogram& gaps() { return gaps_; }

 private:
  CrashGuest(std::string id, uint64_t disk_id);
  Status BootBlk(Host& host, const CrashCase& what, const CrashGuestOptions& options);
  Status BootScsi(Host& host, const CrashCase& what, const CrashGuestOptions& options);

  const std::string id_;
  perf::StampedBlocks blocks_;
  std::unique_ptr<Peer> blk_;
  std::unique_ptr<ScsiPeer> scsi_;
  std::unique_ptr<perf::DiskPort> port_;
  std::unique_ptr<perf::CrashLoad> load_;
  perf::LatencyHistogram gaps_;  // the longest of each event
};

enum class CrashEvent : uint8_t {
  kEngine,           // SIGKILL
  kEngineAgain,      // and once more while its successor takes over
  kCleatd,           // that alone: the guests don't notice
  kCleatdAndEngine,  // everything but the guests; cleatd is there first again
  kEngineAndCleatd,  // the engine is there first again
};
const char* CrashEventName(CrashEvent event);

class CrashRig {
 public:
  static constexpr uint64_t kDiskBytes = uint64_t{2} << 20;
  // The disks' logical blocks. A file system that has larger ones would carry a load of smaller ones out one by one
  // (ext4 takes its lock for direct writes that are not aligned), and then there is no depth to be killed in.
  static constexpr uint32_t kBlockBytes = 4096;
  // Of each guest's load. Sixteen of them on memory disks would leave the kernel's own threads, which complete direct
  // writes, without a processor for seconds.
  static constexpr uint64_t kPauseNs = 2 * kNsPerMs;
  // For all guests to be well again after an event. Far above what it takes.
  static constexpr uint64_t kRecoverTimeoutNs = 60 * kNsPerSecond;

  CrashRig(Host& host, uint64_t seed) : host_(host), random_(seed) {}
  ~CrashRig();

  Status Add(const CrashCase& what, CrashGuestOptions options = {});
  Status Start();  // the loads

  // One of them at a random moment under load, and everything started again. False when some guest did not recover or
  // has a finding.
  bool Do(CrashEvent event);
  // Lets the loads end with a last comparison of everything. False when there is a finding.
  bool Stop();

  uint64_t kills() const;  // of the engine
  uint64_t findings() const;
  std::string FindingsText() const;
  // Counts, gaps and findings, of all and by guest.
  std::string Json() const;
  std::string Summary() const;  // a line
  const std::vector<std::unique_ptr<CrashGuest>>& guests() const { return guests_; }

 private:
  bool Work();  // a random while of load; false when a guest does not go on
  void KillEngine();
  void KillSuccessor();
  bool WaitRecovered();

  Host& host_;
  Random random_;
  std::vector<std::unique_ptr<CrashGuest>> guests_;
  std::vector<uint64_t> marks_;  // by guest
  std::map<CrashEvent, uint64_t> events_;
  uint64_t engine_kills_ = 0;
  std::vector<std::string> failures_;  // beside what the guests found
};

}  // namespace cleat::system_test
