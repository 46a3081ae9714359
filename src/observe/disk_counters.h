// SPDX-License-Identifier: Apache-2.0
// The counters and histograms of one disk of one controller on one reactor, as their only writer sees them: that
// reactor. A few additions to memory that no other core writes. Made by Segment on the control reactor, which outlives
// it; destroyed there, when nothing on the reactor uses it any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "block/request.h"
#include "observe/histogram.h"
#include "observe/layout.h"

namespace cleat::observe {

// What one thread writes and others may read at any time: whole, in no particular order.
inline void Store(uint64_t& at, uint64_t value) {
  std::atomic_ref(at).store(value, std::memory_order_relaxed);
}
inline void Increase(uint64_t& at, uint64_t by) {
  Store(at, at + by);
}

constexpr OpColumn ColumnOf(block::Op op) {
  switch (op) {
    case block::Op::kRead:
      return OpColumn::kRead;
    case block::Op::kWrite:
      return OpColumn::kWrite;
    case block::Op::kFlush:
      return OpColumn::kFlush;
    case block::Op::kDiscard:
      return OpColumn::kDiscard;
    case block::Op::kWriteZeroes:
      return OpColumn::kWriteZeroes;
    case block::Op::kCompareAndWrite:
      return OpColumn::kCompareAndWrite;
  }
  return OpColumn::kOther;
}

class Segment;

// A SlowListener hears that a request has become slow while it is in flight.
class SlowListener {
 public:
  virtual void BecameSlow() = 0;  // on the counters' reactor, once for each request

 protected:
  ~SlowListener() = default;
};

class DiskCounters {
 public:
  ~DiskCounters();
  DiskCounters(const DiskCounters&) = delete;
  DiskCounters& operator=(const DiskCounters&) = delete;

  void Count(OpColumn op, uint64_t requests, uint64_t bytes, uint64_t errors) {
    OpCounters& counters = counters_[static_cast<uint32_t>(op)];
    Increase(counters.requests, requests);
    Increase(counters.bytes, bytes);
    if (errors > 0) Increase(counters.errors, errors);
  }
  void Record(OpColumn op, RequestStage stage, uint64_t duration_ns, uint64_t count) {
    const BucketAt at = BucketOf(duration_ns);
    const uint32_t column = static_cast<uint32_t>(op) * kStageCount + static_cast<uint32_t>(stage);
    Increase(histograms_[(at.group * (kOpCount * kStageCount) + column) * kGroupBuckets + at.bucket], count);
  }
  // Since when the cell counts, or the engines before this one whose counters it continues.
  void SetSince(uint64_t since_ns) { Store(head_->since_ns, since_ns); }
  void SetOldest(const OldestRequest& oldest);  // `sequence` is set here
  // Any thread. What the last scan has seen, torn never; nothing: it is just being written.
  std::optional<OldestRequest> CopyOldest() const;
  // Any thread: requests that have ended well, so far.
  uint64_t succeeded() const;
  const CellHead& head() const { return *head_; }
  uint64_t index() const { return index_; }  // in its segment's table

  // A scan's notes (reactor_counters.h).
  OldestRequest scan{};
  SlowListener* slow_listener = nullptr;  // set on control before the counters are used; outlives them

 private:
  friend class Segment;
  DiskCounters(Segment& segment, uint64_t index, uint8_t* at);

  Segment& segment_;
  const uint64_t index_;
  CellHead* const head_;
  OpCounters* const counters_;
  uint64_t* const histograms_;
};

}  // namespace cleat::observe
