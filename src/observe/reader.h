// SPDX-License-Identifier: Apache-2.0
// Reads an engine's segment (layout.h) from outside: cleatd, cleatctl, tests. Goes by what the header says, so that an
// engine with other operations or stages is understood; checks all of it, so that a broken one does no harm.
//
// Any thread, one at a time. Costs the engine nothing but cache misses on what it writes next.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "observe/histogram.h"
#include "observe/layout.h"

namespace cleat::observe {

struct OpCount {
  uint64_t requests = 0;
  uint64_t bytes = 0;
  uint64_t errors = 0;
};

// What the oldest request in flight is, as of the last scan.
struct OldestSeen {
  uint64_t in_flight = 0;
  uint64_t seen_ns = 0;  // 0: there was none
  uint64_t stage_ns = 0;
  uint32_t op = 0;     // index into op_names()
  uint32_t stage = 0;  // index into stage_names(): the last one that it has reached
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// One disk of one controller on one reactor.
struct CellSeen {
  uint64_t index = 0;       // of the cell, for Histogram
  uint64_t generation = 0;  // another one: the cell is another disk's, and its counters began anew
  std::string controller;   // resource names
  std::string disk;
  uint32_t target = 0;
  uint32_t reactor = 0;
  uint64_t since_ns = 0;
  std::vector<OpCount> ops;  // by op_names()
  OldestSeen oldest;
};

// Durations of one stage of one operation: how many fell into which bucket.
class Histogram {
 public:
  void Add(uint32_t group, uint32_t bucket, uint64_t count);
  void Add(const Histogram& other);
  uint64_t count() const { return count_; }
  template <typename Visit>  // of each bucket that has any: visit(BucketAt, count)
  void ForEach(Visit visit) const {
    for (uint32_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] > 0) visit(BucketAt{i / kGroupBuckets, i % kGroupBuckets}, counts_[i]);
    }
  }
  uint64_t PercentileNs(double part) const;  // 0 to 1; the middle of the bucket; 0 without any
  uint64_t LongestNs() const;                // of the highest bucket that has any
  double SumNs() const;                      // by the buckets' middles: 1.6 % off at most
  // How many lasted at most so long; exact where a bucket ends there.
  uint64_t CountUpTo(uint64_t duration_ns) const;
  // What came since `before`, an earlier state of the same.
  Histogram Since(const Histogram& before) const;

 private:
  std::vector<uint64_t> counts_;  // [group * kGroupBuckets + bucket], as long as need be
  uint64_t count_ = 0;
};

struct ReactorSeen {
  std::string name;
  uint64_t scanned_ns = 0;
  uint64_t oldest_ns = 0;  // as ReactorHead's
};

struct SlowSeen {
  std::string controller;
  std::string disk;
  uint32_t target = 0;
  uint32_t op = 0;
  bool ended = false;
  bool failed = false;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t noticed_ns = 0;
  std::vector<uint64_t> moments_ns;  // by RequestStage; 0: did not come there
};

class SegmentReader {
 public:
  // failed_precondition: what it describes is no segment, or one of a layout that is not known here.
  static Result<std::unique_ptr<SegmentReader>> Open(UniqueFd fd);

  const std::string& engine() const { return engine_; }
  uint64_t process() const { return header_.process; }
  uint64_t incarnation() const { return header_.incarnation; }
  uint64_t slow_after_ns() const { return header_.slow_after_ns; }
  const std::vector<std::string>& op_names() const { return op_names_; }
  const std::vector<std::string>& stage_names() const { return stage_names_; }

  enum class Which : uint8_t { kAll, kInFlight };
  // The cells in use, with their counters; or only those with requests in flight at their reactor's last look, which
  // takes a fraction of the time where most are idle. One that is being changed just now is left out.
  std::vector<CellSeen> Cells(Which which = Which::kAll) const;
  // The cells of one controller's disks: among these (indices), or without any, among all.
  std::vector<CellSeen> CellsOf(const std::string& controller, std::span<const uint64_t> among = {}) const;
  // One cell's, [op][stage]; empty when the cell is no longer the one that was seen.
  std::vector<std::vector<Histogram>> Histograms(const CellSeen& cell) const;
  std::vector<ReactorSeen> Reactors() const;
  // Slow requests that were noticed since the last call, oldest first; at most a ring's worth, `lost` says how many
  // came too fast to be read.
  std::vector<SlowSeen> NewSlow(uint64_t* lost);

 private:
  SegmentReader(UniqueFd fd, const SegmentHeader& header);
  uint64_t Used() const;  // cells from there on were never used
  template <typename Wanted>
  std::vector<CellSeen> Choose(std::span<const uint64_t> among, Wanted wanted) const;
  bool ReadCell(uint64_t index, const std::vector<ReactorSeen>& reactors, std::vector<uint8_t>* copy,
                CellSeen* cell) const;
  bool IsOf(uint64_t index, const std::string& controller) const;
  bool IsIdle(uint64_t index, const std::vector<ReactorSeen>& reactors) const;
  bool ReadAt(uint64_t offset_bytes, void* out, size_t bytes) const;

  const UniqueFd fd_;
  const SegmentHeader header_;
  std::string engine_;
  std::vector<std::string> op_names_;
  std::vector<std::string> stage_names_;
  std::vector<uint64_t> slow_read_;  // by reactor
};

}  // namespace cleat::observe
