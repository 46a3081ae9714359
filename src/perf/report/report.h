// SPDX-License-Identifier: Apache-2.0
// A load's report for programs (JSON with stable names), for people, and as a histogram file. Pure functions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "perf/load/load_stats.h"
#include "perf/workload/latency_histogram.h"

namespace cleat::perf {

using Json = nlohmann::ordered_json;

inline constexpr int kReportVersion = 1;

// {"min":..,"mean":..,"p50":..,"p90":..,"p99":..,"p99.9":.. to "p99.9999":..,"max":..}, nanoseconds.
Json LatencyJson(const LatencyHistogram& latency);
// The "result" object.
Json ReportJson(const LoadReport& report);
// {"version":1,"command":[...],"options":{...},"result":{...}}
Json ResultFile(const std::vector<std::string>& command, Json options, Json result);
std::string ReportText(const LoadReport& report);
// A line for each bucket with something in it: its upper end in ns, its count, the part of all that is at or below it.
std::string HistogramText(const LatencyHistogram& latency);

// To a file, or to standard output for "-".
Status WriteText(const std::string& path, const std::string& text);

}  // namespace cleat::perf
