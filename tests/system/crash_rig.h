// SPDX-License-Identifier: Apache-2.0
// Guests on a host whose processes are killed: one for each kind of device, ring and disk, each with a load that judges
// (perf/crash/crash_load.h). Tells how long each device was silent around each kill, and what was found.
//
// Of the test's main thread; the guests have threads of their own. Guests that lose requests say so within a limit, so
// that everything here ends by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host.h"
#include "peer.h"
#include "perf/crash/crash_load.h"
#include "perf/driver/disk_port.h"
#include "perf/workload/latency_histogram.h"
#include "perf/workload/verify.h"

namespace cleat::system_test {

struct CrashCase {
  bool scsi = false;
  bool packed = false;
  uint16_t queues = 1;
  bool memory = false;        // otherwise a file
  uint64_t delay_ns_max = 0;  // of each request, at random: answers out of order, many in flight at the kill
  bool sparse = false;        // the file has nothing but holes at first
  uint32_t block_bytes = 4096;            // the disk's logical blocks
  std::string device = {};                // a block device in the file's place
  std::optional<v1::DiskSpec> spec = {};  // any other disk, in the file's place
  std::string storage = {};               // what to call that
  std::string group = {};                 // whose limits the controller shares; there already
  bool memory_pinned = false;             // the controller's, which says that the guest has no balloon
  std::string Id() const;                 // "blk-packed-q4-file"
};

// The same disk, encrypted; the host has a key for keys (HostOptions::with_keys).
v1::DiskSpec WithEncryption(v1::DiskSpec spec);

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
  bool memory_pinned() const { return memory_pinned_; }
  perf::CrashLoad& load() { return *load_; }
  perf::LatencyHistogram& gaps() { return gaps_; }
  // virtio-blk's alone; the load has its driver.
  Peer& blk() { return *blk_; }

 private:
  CrashGuest(const CrashCase& what, uint64_t disk_id);
  Status BootBlk(Host& host, const CrashCase& what, const CrashGuestOptions& options);
  Status BootScsi(Host& host, const CrashCase& what, const CrashGuestOptions& options);

  const std::string id_;
  const bool memory_pinned_;
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
  // Of each guest's load that says nothing else. Sixteen of them on memory disks would leave the kernel's own threads, which complete direct
  // writes, without a processor for seconds.
  static constexpr uint64_t kPauseNs = 2 * kNsPerMs;
  // For all guests to be well again after an event. Far above what it takes.
  static constexpr uint64_t kRecoverTimeoutNs = 120 * kNsPerSecond;

  CrashRig(Host& host, uint64_t seed) : host_(host), random_(seed) {}
  ~CrashRig();

  Status Add(const CrashCase& what, CrashGuestOptions options = {});
  Status Start();  // the loads

  // Called under load just before an engine is killed, and between its end and the start of its successor.
  void SetAroundKill(std::function<void()> before, std::function<void()> after) {
    before_kill_ = std::move(before);
    after_kill_ = std::move(after);
  }
  // One of them at a random moment under load, and everything started again. False when some guest did not recover or
  // has a finding.
  bool Do(CrashEvent event);
  // Likewise with something of the test's own, by which each guest gets to another engine: it says what went wrong, if it
  // did, and leaves everything running.
  bool Do(const std::string& name, const std::function<std::string()>& event);
  // Likewise with something that no guest is to notice: each goes on over the connection that it has.
  bool DoUnnoticed(const std::string& name, const std::function<std::string()>& event);
  // Until this guest has all of its requests in flight and the engine answers none of them any more: the disk stands still.
  bool WaitAllInFlight(CrashGuest& guest, uint64_t requests);
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
  void Mark();
  bool WaitRecovered();
  bool WaitUnnoticed();

  Host& host_;
  Random random_;
  std::vector<std::unique_ptr<CrashGuest>> guests_;
  std::vector<uint64_t> marks_;  // by guest
  std::map<std::string, uint64_t> events_;
  uint64_t engine_kills_ = 0;
  std::function<void()> before_kill_ = [] {};
  std::function<void()> after_kill_ = [] {};
  std::vector<std::string> failures_;  // beside what the guests found
};

}  // namespace cleat::system_test
