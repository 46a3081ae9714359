// SPDX-License-Identifier: Apache-2.0
// What limits may say.
#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include "control/model/model.h"
#include "control/model/reasons.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

constexpr int64_t kNsPerMillisecond = 1'000'000;

// Of one limit; nothing is wrong when `why` stays empty.
struct Finding {
  std::string field;  // of the limit
  std::string why;
};

// 0: not whole milliseconds, or out of range.
uint32_t MillisecondsOf(const google::protobuf::Duration& duration) {
  const bool whole = duration.nanos() >= 0 && duration.nanos() % kNsPerMillisecond == 0;
  if (!whole || duration.seconds() < 0 || duration.seconds() > kBurstMsMax / 1000) return 0;
  const int64_t ms = duration.seconds() * 1000 + duration.nanos() / kNsPerMillisecond;
  return ms > kBurstMsMax ? 0 : static_cast<uint32_t>(ms);
}

Finding Check(const v1::RateLimit& limit, uint64_t least, uint64_t most) {
  if (limit.per_second() == 0) {
    return {"per_second", "is 0 though there is a burst: a burst is saved up from what the limit leaves"};
  }
  if (limit.per_second() < least || limit.per_second() > most) {
    return {"per_second", fmt::format("is {}: it must be {} to {}", limit.per_second(), least, most)};
  }
  if (limit.burst_per_second() == 0) {
    if (!limit.has_burst_duration()) return {};
    return {"burst_per_second", "is missing: a burst takes its rate and how long it may last"};
  }
  if (limit.burst_per_second() <= limit.per_second() || limit.burst_per_second() > most) {
    return {"burst_per_second", fmt::format("is {}: it must be above per_second ({}) and at most {}",
                                            limit.burst_per_second(), limit.per_second(), most)};
  }
  if (MillisecondsOf(limit.burst_duration()) == 0) {
    return {"burst_duration",
            fmt::format("must be whole milliseconds, from 1 ms to {} s", kBurstMsMax / 1000)};
  }
  return {};
}

}  // namespace

Status CompleteLimits(std::string_view resource, v1::Limits* limits) {
  const auto& type = *v1::Limits::descriptor();
  const auto& reflection = *limits->GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const auto* field = type.field(i);
    if (!reflection.HasField(*limits, field)) continue;
    auto& limit = static_cast<v1::RateLimit&>(*reflection.MutableMessage(limits, field));
    if (limit.has_burst_duration() && limit.burst_duration().ByteSizeLong() == 0)
      limit.clear_burst_duration();
    if (limit.ByteSizeLong() == 0) {
      reflection.ClearField(limits, field);
      continue;
    }
    const bool bytes = field->name().ends_with("bytes");
    const Finding finding =
        Check(limit, bytes ? kBytesPerSecondMin : 1, bytes ? kBytesPerSecondMax : kIopsMax);
    if (finding.why.empty()) continue;
    const std::string path = fmt::format("limits.{}.{}", field->name(), finding.field);
    return RefuseFor(resource, v1::REASON_INVALID_FIELD,
                     fmt::format("{}: {} {}", resource, path, finding.why), {{"field", "spec." + path}});
  }
  return Ok{};
}

}  // namespace cleat::control
