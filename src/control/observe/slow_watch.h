// SPDX-License-Identifier: Apache-2.0
// Looks at the engines' counters four times a second: collects slow requests and says in the log which disks are
// stuck, once when they become so and once when they are no more. What it says in a second is bounded, so that a
// storage cluster that hangs does not fill the log with thousands of disks.
//
// A thread of its own; Turn() is what it does each time. The questions: any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/mutex.h"
#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/observe/counters.h"
#include "stats/disk_stats.h"

namespace cleat::control {

class SlowWatch {
 public:
  static constexpr uint64_t kTurnNs = 250 * kNsPerMs;
  static constexpr size_t kRequestsMax = 1024;
  static constexpr int kRequestsDefault = 100;
  static constexpr uint32_t kLinesPerSecondMax = 20;  // of each kind
  // A disk with one slow request after another is stuck throughout: not before so long without it is no more.
  static constexpr uint64_t kCalmNs = 1000 * kNsPerMs;

  using Say = std::function<void(spdlog::level::level_enum level, const std::string& line)>;
  // `counters` outlives it. `say`: cleatd's log, if it is empty.
  explicit SlowWatch(const Counters& counters, Say say = {});
  ~SlowWatch();  // Stop()

  void Start();
  void Stop();  // idempotent
  void Turn();

  // As the API says.
  Result<v1::ListSlowRequestsResponse> List(const v1::ListSlowRequestsRequest& request) const;
  size_t stuck_disks() const;
  uint64_t slow_requests() const;  // collected so far, and lost

 private:
  // At most kLinesPerSecondMax a second; how many were left out is told afterwards.
  struct Budget {
    uint64_t second = 0;
    uint32_t lines = 0;
    uint64_t left_out = 0;
  };
  struct Stuck {
    uint64_t since_ns = 0;     // its request was noticed by the engine then
    uint64_t last_old_ns = 0;  // the last look that found an old one
  };
  struct Engine {
    uint64_t serial = 0;
    std::unique_ptr<observe::SegmentReader> reader;
    std::map<std::string, Stuck> stuck;  // by "disks/a of controllers/b"
  };

  void Run();
  void Follow(CountersOf& counters);
  void Collect(Engine& engine, uint64_t now_ns);
  void LookAtDisks(Engine& engine, uint64_t now_ns);
  void LookAtDisk(Engine& engine, const stats::DiskSeen& disk, uint64_t now_ns);
  // `what`: what the line is one of.
  void Tell(Budget& budget, spdlog::level::level_enum level, const char* what, uint64_t now_ns,
            const std::string& line);
  void TellLeftOut(Budget& budget, const char* what, uint64_t now_ns);

  const Counters& counters_;
  const Say say_;
  const uint64_t started_ns_;
  std::map<std::string, Engine> engines_;
  Budget slow_lines_;
  Budget stuck_lines_;

  mutable Mutex mutex_;
  CondVar stop_;
  bool stopping_ CLEAT_GUARDED_BY(mutex_) = false;
  std::deque<v1::SlowRequest> requests_ CLEAT_GUARDED_BY(mutex_);
  uint64_t collected_ CLEAT_GUARDED_BY(mutex_) = 0;
  uint64_t lost_ CLEAT_GUARDED_BY(mutex_) = 0;
  size_t stuck_disks_ CLEAT_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace cleat::control
