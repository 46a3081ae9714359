// SPDX-License-Identifier: Apache-2.0
// Two result files as ratios: of cleat-perf (run, ring-loop), or an object name -> {value, unit, spread, runs}. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cleat::perf {

struct ResultValue {
  std::string name;  // "iops", "latency_ns.p99", "blk_null_qd32_ns"
  double value = 0;
  double spread = 0;  // in the value's unit; 0: not known
  std::string unit;
};

// `name` is the file's, for errors.
Result<std::vector<ResultValue>> ReadResults(std::string_view json, const std::string& name);
// A line for each name: a, b, b / a, and whether the difference is larger than the spreads of both. Names that one of
// them lacks come last.
std::string CompareTable(const std::vector<ResultValue>& a, const std::vector<ResultValue>& b);

}  // namespace cleat::perf
