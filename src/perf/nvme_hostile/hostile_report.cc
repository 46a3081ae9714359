// SPDX-License-Identifier: Apache-2.0
// What a run has seen, for people and for programs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "perf/nvme_hostile/hostile_run.h"

namespace cleat::perf {
namespace {

double Ms(uint64_t ns) {
  return static_cast<double>(ns) / kNsPerMs;
}

std::string KindText(const NvmeHostileReport::Kind& kind) {
  std::string text = fmt::format("  {:<24} {:>7}  ", kind.name, kind.sent);
  const char* between = "";
  for (size_t i = 0; i < kind.outcomes.size(); ++i) {
    if (kind.outcomes[i] == 0) continue;
    text += fmt::format("{}{} {}", between, kNvmeOutcomeNames[i], kind.outcomes[i]);
    between = ", ";
  }
  for (const auto& [reason, count] : kind.reasons)
    text += fmt::format("; FES {} ({}) {}", reason, TerminationReason(reason), count);
  for (const auto& [status, count] : kind.statuses) text += fmt::format("; status {:#x} {}", status, count);
  return text + "\n";
}

nlohmann::ordered_json KindJson(const NvmeHostileReport::Kind& kind) {
  nlohmann::ordered_json json;
  json["sent"] = kind.sent;
  for (size_t i = 0; i < kind.outcomes.size(); ++i) {
    if (kind.outcomes[i] > 0) json[kNvmeOutcomeNames[i]] = kind.outcomes[i];
  }
  for (const auto& [reason, count] : kind.reasons) json["reasons"][std::to_string(reason)] = count;
  for (const auto& [status, count] : kind.statuses) json["statuses"][fmt::format("{:#x}", status)] = count;
  return json;
}

}  // namespace

std::string HostileText(const NvmeHostileReport& report) {
  std::string text = fmt::format("seed       {}\n", report.seed);
  text += fmt::format("attacks    {} in {:.1f} s\n", report.attacks,
                      static_cast<double>(report.elapsed_ns) / kNsPerSecond);
  for (const NvmeHostileReport::Kind& kind : report.kinds) text += KindText(kind);
  if (report.not_begun > 0)
    text += fmt::format("not begun  {}, the first: {}\n", report.not_begun, report.first_problem);
  text += fmt::format("crowd      {} connections, {} at once, {} refused\n", report.crowd_opened,
                      report.crowd_most, report.crowd_refused);
  const NvmeWitnessReport& witness = report.witness;
  text += fmt::format(
      "witness    {} requests, {} errors; {} blocks verified, {} faults; p50 {:.1f} ms, p99 {:.1f} ms, "
      "longest silence {:.1f} ms\n",
      witness.requests, witness.errors, witness.verified_blocks, witness.faults,
      Ms(witness.latency.PercentileNs(0.5)), Ms(witness.latency.PercentileNs(0.99)),
      Ms(witness.longest_gap_ns));
  if (!witness.first_fault.empty()) text += fmt::format("fault      the first: {}\n", witness.first_fault);
  if (!witness.first_error.empty()) text += fmt::format("error      the first: {}\n", witness.first_error);
  if (!witness.ended.empty())
    text += fmt::format("ended      the target serves no longer: {}\n", witness.ended);
  text += fmt::format("findings   {}\n", report.finding_count);
  for (const std::string& finding : report.findings) text += fmt::format("  {}\n", finding);
  return text;
}

nlohmann::ordered_json HostileJson(const NvmeHostileReport& report) {
  nlohmann::ordered_json json;
  json["seed"] = report.seed;
  json["attacks"] = report.attacks;
  json["elapsed_ns"] = report.elapsed_ns;
  json["kinds"] = nlohmann::ordered_json::object();
  for (const NvmeHostileReport::Kind& kind : report.kinds) json["kinds"][kind.name] = KindJson(kind);
  json["not_begun"] = report.not_begun;
  json["first_problem"] = report.first_problem;
  json["crowd"] = {
      {"opened", report.crowd_opened}, {"most", report.crowd_most}, {"refused", report.crowd_refused}};
  const NvmeWitnessReport& witness = report.witness;
  json["witness"] = {{"requests", witness.requests},
                     {"errors", witness.errors},
                     {"verified_blocks", witness.verified_blocks},
                     {"faults", witness.faults},
                     {"p50_ns", witness.latency.PercentileNs(0.5)},
                     {"p99_ns", witness.latency.PercentileNs(0.99)},
                     {"longest_gap_ns", witness.longest_gap_ns},
                     {"first_fault", witness.first_fault},
                     {"first_error", witness.first_error},
                     {"ended", witness.ended}};
  json["finding_count"] = report.finding_count;
  json["findings"] = report.findings;
  json["good"] = report.good();
  return json;
}

}  // namespace cleat::perf
