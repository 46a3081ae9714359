// SPDX-License-Identifier: Apache-2.0
// What a reactor shows of itself, and its look at what is in flight: every quarter of a second, while there is anything,
// it goes through the requests of the queues that have some, writes each disk's oldest one to its DiskCounters, and logs those
// that have become slow. An idle reactor does not look and is not woken.
//
// Belongs to one reactor; made and destroyed on any thread while the reactor does not run or by the reactor itself.
// Outlives the queues that use it.
#pragma once

#include <cstdint>
#include <vector>

#include "base/intrusive_list.h"
#include "block/request.h"
#include "observe/disk_counters.h"
#include "observe/segment.h"
#include "reactor/reactor.h"

namespace cleat::observe {

struct SlowRequest {
  OpColumn op = OpColumn::kOther;
  bool ended = false;
  bool failed = false;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  block::StageStamps stamps{};
  uint64_t used_ns = 0;
  uint64_t called_ns = 0;
};

class InFlightVisitor {
 public:
  // `op`: what it is to the guest, whatever step the storage has now.
  virtual void Visit(DiskCounters& disk, OpColumn op, const block::Request& request) = 0;

 protected:
  ~InFlightVisitor() = default;
};

// Something that has requests in flight: a queue.
class InFlightSource {
 public:
  virtual ~InFlightSource() = default;
  virtual bool any_in_flight() const = 0;
  virtual void VisitInFlight(InFlightVisitor& visitor) = 0;

 private:
  friend class ReactorCounters;
  ListHook watched_;
};

class ReactorCounters {
 public:
  static constexpr uint64_t kScanNs = 250 * kNsPerMs;

  // `segment` and `reactor` outlive it; `index` is the reactor's in the segment.
  ReactorCounters(Segment& segment, Reactor& reactor, uint32_t index);
  ReactorCounters(const ReactorCounters&) = delete;
  ReactorCounters& operator=(const ReactorCounters&) = delete;

  uint32_t index() const { return index_; }
  uint64_t slow_after_ns() const { return slow_after_ns_; }
  uint64_t now_ns() const { return reactor_.now_ns(); }

  // `source` has something in flight from now on; may be called again and again. A scan that finds nothing ends the watch.
  void Watch(InFlightSource& source) {
    if (source.watched_.linked()) [[likely]]
      return;
    StartWatching(source);
  }
  void LogSlow(DiskCounters& disk, const SlowRequest& slow);
  // When it last looked at what is in flight. Any thread.
  uint64_t last_scan_ns() const { return std::atomic_ref(head_.scanned_ns).load(std::memory_order_relaxed); }

 private:
  struct ScanTimer : Timer {
    explicit ScanTimer(ReactorCounters& s)
        : Timer([](Timer& timer) { static_cast<ScanTimer&>(timer).counters.Scan(); }), counters(s) {}
    ReactorCounters& counters;
  };
  void StartWatching(InFlightSource& source);
  void Scan();
  void Note(DiskCounters& disk, OpColumn op, const block::Request& request);

  Reactor& reactor_;
  ReactorHead& head_;
  SlowEntry* const slow_ring_;
  const uint32_t index_;
  const uint64_t slow_after_ns_;
  uint64_t scanned_ns_ = 0;
  std::vector<DiskCounters*> scanned_;  // with requests in flight, while it scans
  IntrusiveList<InFlightSource, &InFlightSource::watched_> watched_;
  ScanTimer timer_{*this};
};

}  // namespace cleat::observe
