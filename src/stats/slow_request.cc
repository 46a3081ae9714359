// SPDX-License-Identifier: Apache-2.0
#include "stats/slow_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "stats/disk_stats.h"

namespace cleat::stats {
namespace {

void AddStage(const std::string& name, uint64_t duration_ns, v1::SlowRequest* request) {
  v1::StageDuration& stage = *request->add_stages();
  stage.set_stage(name);
  stage.set_duration_ns(duration_ns);
}

}  // namespace

v1::SlowRequest ToApi(const observe::SegmentReader& reader, const observe::SlowSeen& slow, uint64_t now_ns,
                      int64_t now_unix_ns) {
  v1::SlowRequest request;
  const int64_t unix_ns = now_unix_ns - static_cast<int64_t>(now_ns - std::min(now_ns, slow.noticed_ns));
  constexpr auto kSecond = static_cast<int64_t>(kNsPerSecond);
  request.mutable_time()->set_seconds(unix_ns / kSecond);
  request.mutable_time()->set_nanos(static_cast<int32_t>(unix_ns % kSecond));
  request.set_engine("engines/" + reader.engine());
  request.set_controller(slow.controller);
  request.set_target(slow.target);
  request.set_disk(slow.disk);
  request.set_operation(reader.op_names()[slow.op]);
  request.set_offset_bytes(slow.offset_bytes);
  request.set_length_bytes(slow.length_bytes);
  request.set_ended(slow.ended);
  request.set_failed(slow.failed);
  const uint64_t seen_ns = slow.moments_ns.empty() ? 0 : slow.moments_ns[0];
  uint64_t last_ns = seen_ns;
  uint64_t used_ns = slow.noticed_ns;
  for (size_t i = 1; i < slow.moments_ns.size() && i < reader.stage_names().size(); ++i) {
    const uint64_t at_ns = slow.moments_ns[i];
    if (at_ns == 0) continue;
    AddStage(reader.stage_names()[i], at_ns - std::min(at_ns, last_ns), &request);
    last_ns = at_ns;
    if (IsPart(reader.stage_names()[i])) used_ns = at_ns;
  }
  if (!slow.ended) {
    AddStage("waiting", slow.noticed_ns - std::min(slow.noticed_ns, last_ns), &request);
    used_ns = slow.noticed_ns;
  }
  request.set_age_ns(used_ns - std::min(used_ns, seen_ns));
  return request;
}

std::string TimeInWords(uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < kNsPerUs) return fmt::format("{} ns", ns);
  if (ns < kNsPerMs) return fmt::format("{:.3g} us", value / static_cast<double>(kNsPerUs));
  if (ns < kNsPerSecond / 10) return fmt::format("{:.3g} ms", value / static_cast<double>(kNsPerMs));
  return fmt::format("{:.2f} s", value / static_cast<double>(kNsPerSecond));
}

std::string RequestInWords(std::string_view operation, uint64_t length_bytes, uint64_t offset_bytes) {
  if (operation == "flush") return "a flush";
  if (operation == "other") return "another request";
  return fmt::format("a {} of {} bytes at {}", operation, length_bytes, offset_bytes);
}

std::string_view WaitsFor(std::string_view stage) {
  if (stage == "seen") return "to be taken from the ring";
  if (stage == "fetched") return "for limits or the storage's queue";
  if (stage == "qos_out" || stage == "crypto_out") return "for encryption or the storage's queue";
  if (stage == "submitted") return "for the storage";
  return "to be answered";
}

std::string InWords(const v1::SlowRequest& request) {
  std::string stages;
  for (const v1::StageDuration& stage : request.stages()) {
    stages +=
        fmt::format("{}{} {}", stages.empty() ? "" : ", ", stage.stage(), TimeInWords(stage.duration_ns()));
  }
  return fmt::format("{} {} {}{} ({})",
                     RequestInWords(request.operation(), request.length_bytes(), request.offset_bytes()),
                     request.ended() ? (request.failed() ? "failed after" : "took") : "is in flight for",
                     TimeInWords(request.age_ns()), request.ended() ? "" : ", still", stages);
}

}  // namespace cleat::stats
