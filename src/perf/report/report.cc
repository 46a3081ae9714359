// SPDX-License-Identifier: Apache-2.0
#include "perf/report/report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace cleat::perf {
namespace {

struct Percentile {
  const char* name;
  double part;
};
constexpr Percentile kPercentiles[] = {{"p50", 0.5},          {"p90", 0.9},       {"p99", 0.99},
                                       {"p99.9", 0.999},      {"p99.99", 0.9999}, {"p99.999", 0.99999},
                                       {"p99.9999", 0.999999}};

std::string Time(double ns) {
  if (ns < 10 * kNsPerUs) return fmt::format("{:.2f} us", ns / kNsPerUs);
  if (ns < 10 * kNsPerMs) return fmt::format("{:.1f} us", ns / kNsPerUs);
  return fmt::format("{:.1f} ms", ns / kNsPerMs);
}

std::string LatencyText(const LatencyHistogram& latency) {
  std::string text = fmt::format("mean {}", Time(latency.mean_ns()));
  for (const Percentile& percentile : kPercentiles) {
    text += fmt::format(", {} {}", percentile.name,
                        Time(static_cast<double>(latency.PercentileNs(percentile.part))));
  }
  return text + ", max " + Time(static_cast<double>(latency.max_ns()));
}

}  // namespace

Json LatencyJson(const LatencyHistogram& latency) {
  Json json;
  json["min"] = latency.min_ns();
  json["mean"] = std::round(latency.mean_ns() * 10) / 10;
  for (const Percentile& percentile : kPercentiles)
    json[percentile.name] = latency.PercentileNs(percentile.part);
  json["max"] = latency.max_ns();
  return json;
}

Json ReportJson(const LoadReport& report) {
  const auto rate = [&](uint64_t count) {
    return report.elapsed_ns == 0
               ? 0.0
               : std::round(static_cast<double>(count) * 1e10 / static_cast<double>(report.elapsed_ns)) / 10;
  };
  Json json;
  json["requests"] = report.requests;
  json["errors"] = report.errors;
  json["unsent"] = report.unsent;
  json["elapsed_ns"] = report.elapsed_ns;
  json["iops"] = rate(report.requests);
  json["bytes_per_second"] = rate(report.data_bytes);
  json["latency_ns"] = LatencyJson(report.latency);
  json["longest_gap_ns"] = report.longest_gap_ns;
  json["operations"] = Json::object();
  for (size_t op = 0; op < kLoadOps; ++op) {
    const LoadReport::Operation& operation = report.operations[op];
    if (operation.latency.total() == 0 && operation.errors == 0) continue;
    json["operations"][kLoadOpNames[op]] = {{"requests", operation.requests},
                                            {"errors", operation.errors},
                                            {"iops", rate(operation.requests)},
                                            {"latency_ns", LatencyJson(operation.latency)}};
  }
  json["devices"] = report.devices;
  json["disks"] = report.disks;
  json["reconnects"] = report.reconnects;
  json["polls"] = report.polls;
  json["idle_polls"] = report.idle_polls;
  json["verified_blocks"] = report.verified_blocks;
  json["faults"] = report.faults;
  json["first_error"] = report.first_error;
  json["first_fault"] = report.first_fault;
  return json;
}

Json ResultFile(const std::vector<std::string>& command, Json options, Json result) {
  Json json;
  json["version"] = kReportVersion;
  json["command"] = command;
  json["options"] = std::move(options);
  json["result"] = std::move(result);
  return json;
}

std::string ReportText(const LoadReport& report) {
  std::string text = fmt::format("disks      {} behind {} device(s)\n", report.disks, report.devices);
  text += fmt::format("requests   {} in {:.3f} s, {} errors\n", report.requests,
                      static_cast<double>(report.elapsed_ns) / kNsPerSecond, report.errors);
  if (!report.first_error.empty()) text += fmt::format("error      the first: {}\n", report.first_error);
  if (report.unsent > 0) {
    text += fmt::format(
        "unsent     {}: due before the end, but the disks were too slow; counted in the latencies\n",
        report.unsent);
  }
  text += fmt::format("iops       {:.0f}\n", report.iops());
  text += fmt::format("bandwidth  {:.1f} MiB/s\n", report.bytes_per_second() / (1 << 20));
  text += fmt::format("latency    {}\n", LatencyText(report.latency));
  size_t kinds = 0;
  for (const auto& operation : report.operations) kinds += operation.latency.total() > 0 ? 1 : 0;
  for (size_t op = 0; op < kLoadOps && kinds > 1; ++op) {
    const LoadReport::Operation& operation = report.operations[op];
    if (operation.latency.total() == 0) continue;
    text += fmt::format("  {:<8} {} requests, {} errors; {}\n", kLoadOpNames[op], operation.requests,
                        operation.errors, LatencyText(operation.latency));
  }
  if (report.reconnects > 0) text += fmt::format("reconnects {}\n", report.reconnects);
  if (report.verified_blocks > 0) {
    text += fmt::format("verified   {} blocks, {} faults{}{}\n", report.verified_blocks, report.faults,
                        report.faults > 0 ? "; the first: " : "", report.first_fault);
  }
  return text;
}

std::string HistogramText(const LatencyHistogram& latency) {
  std::string text = "# latency_ns count cumulative\n";
  uint64_t below = 0;
  for (size_t i = 0; i < LatencyHistogram::kBuckets; ++i) {
    const uint64_t count = latency.count(i);
    if (count == 0) continue;
    below += count;
    text += fmt::format("{} {} {:.9f}\n", LatencyHistogram::UpperNs(i), count,
                        static_cast<double>(below) / static_cast<double>(latency.total()));
  }
  return text;
}

Status WriteText(const std::string& path, const std::string& text) {
  if (path == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
      return ErrnoError(errno, "standard output");
    }
    return Ok{};
  }
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "we"), &std::fclose);
  if (file == nullptr) return ErrnoError(errno, path);
  if (std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() || std::fflush(file.get()) != 0) {
    return ErrnoError(errno, path);
  }
  return Ok{};
}

}  // namespace cleat::perf
