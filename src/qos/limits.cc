// SPDX-License-Identifier: Apache-2.0
#include "qos/limits.h"

#include <fmt/format.h>

namespace cleat::qos {
namespace {

constexpr std::array<const char*, kMeters> kNames = {"iops",  "read_iops",  "write_iops",
                                                     "bytes", "read_bytes", "write_bytes"};

}  // namespace

Status CheckLimits(const Limits& limits, const std::string& object) {
  for (size_t i = 0; i < kMeters; ++i) {
    const Rate& rate = limits.rates[i];
    const auto refuse = [&](const std::string& why) {
      return Error(ErrorCode::kInvalidArgument, fmt::format("{}: limit {}: {}", object, kNames[i], why));
    };
    const bool bytes = i >= static_cast<size_t>(Meter::kBytes);
    const uint64_t least = bytes ? kBytesPerSecondMin : 1;
    const uint64_t most = bytes ? kBytesPerSecondMax : kIopsMax;
    if (rate.per_second == 0) {
      if (rate.burst_per_second != 0 || rate.burst_ms != 0) return refuse("a burst takes a rate");
      continue;
    }
    if (rate.per_second < least || rate.per_second > most) {
      return refuse(fmt::format("{} a second is not from {} to {}", rate.per_second, least, most));
    }
    if ((rate.burst_per_second == 0) != (rate.burst_ms == 0)) {
      return refuse("a burst takes both its rate and how long it may last");
    }
    if (rate.burst_per_second == 0) continue;
    if (rate.burst_per_second <= rate.per_second || rate.burst_per_second > most) {
      return refuse(fmt::format("a burst of {} a second is not above the rate of {} and at most {}",
                                rate.burst_per_second, rate.per_second, most));
    }
    if (rate.burst_ms > kBurstMsMax) {
      return refuse(fmt::format("a burst of {} ms is longer than {} ms", rate.burst_ms, kBurstMsMax));
    }
  }
  return Ok{};
}

}  // namespace cleat::qos
