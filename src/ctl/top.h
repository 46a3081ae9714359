// SPDX-License-Identifier: Apache-2.0
// What `top` shows: who is busy, who is slow, in which stage. Rates are differences of two answers of GetStats. Pure
// functions.
#pragma once

#include <google/protobuf/struct.pb.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cleat/v1/cleat.pb.h"

namespace cleat::ctl {

enum class TopOrder { kIops, kBytes, kLatency, kInFlight, kOldest };

struct TopRow {
  std::string disk;  // ids
  std::string controller;
  uint32_t target = 0;
  double iops = 0;
  double bytes_per_s = 0;
  double errors_per_s = 0;
  uint64_t latency_ns = 0;  // the mean of what was answered in between; 0: nothing was
  uint64_t in_flight = 0;
  uint64_t oldest_ns = 0;
  bool stuck = false;
  // Where the time went: the stage that took most of it, and its part, 0 to 1. While nothing is answered: where the
  // oldest request in flight is, and 0.
  std::string slow_stage;
  double slow_part = 0;

  bool active() const { return iops > 0 || in_flight > 0; }
};

// A row for each disk of `now`, in the order. Disks that were not there before, or anew, count from their attach on.
std::vector<TopRow> TopRows(const v1::GetStatsResponse& before, const v1::GetStatsResponse& now,
                            TopOrder order);

// A line of sums, a header, and the first rows: `lines_max` lines in all.
std::string TopText(const std::vector<TopRow>& rows, bool idle_too, size_t lines_max);
// The same for programs: {"disks": [...]}.
google::protobuf::Struct TopMessage(const std::vector<TopRow>& rows, bool idle_too);

}  // namespace cleat::ctl
