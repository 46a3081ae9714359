// SPDX-License-Identifier: Apache-2.0
// What a disk or a group of disks may use: rates of requests and of bytes, each for reads, for writes and for both
// together. Plain values; what they mean in time is in token_bucket.h, what a request costs in cost.h.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace cleat::qos {

// One limit. On average not more than `per_second`; what was not used is saved for a burst, in which the disk may go at
// `burst_per_second` for `burst_ms`, at most. Saved up in burst_ms * (burst_per_second / per_second - 1) of idling.
struct Rate {
  uint64_t per_second = 0;        // requests or bytes; 0: no limit
  uint64_t burst_per_second = 0;  // above per_second; 0: no burst
  uint32_t burst_ms = 0;          // with a burst: above 0
  bool operator==(const Rate&) const = default;
};

// What is limited. A read counts in kIops, kReadIops, kBytes and kReadBytes: all limits hold at once.
enum class Meter : uint8_t { kIops, kReadIops, kWriteIops, kBytes, kReadBytes, kWriteBytes };
inline constexpr size_t kMeters = 6;

struct Limits {
  std::array<Rate, kMeters> rates{};
  Rate& operator[](Meter meter) { return rates[static_cast<size_t>(meter)]; }
  const Rate& operator[](Meter meter) const { return rates[static_cast<size_t>(meter)]; }
  bool any() const {
    return std::any_of(rates.begin(), rates.end(), [](const Rate& rate) { return rate.per_second > 0; });
  }
  bool operator==(const Limits&) const = default;
};

// Limits of limits.
inline constexpr uint64_t kIopsMax = 100'000'000;
inline constexpr uint64_t kBytesPerSecondMax = 1'000'000'000'000;
inline constexpr uint64_t kBytesPerSecondMin = 512;
inline constexpr uint32_t kBurstMsMax = 3'600'000;
inline constexpr uint32_t kGroupsMax = 1024;  // on a host: one a VM

// kInvalidArgument, which names `object` ("disks/ID") and the limit.
Status CheckLimits(const Limits& limits, const std::string& object);

}  // namespace cleat::qos
