// SPDX-License-Identifier: Apache-2.0
// What a drive says of its own condition: its SMART / Health Information log. The page comes from a device, so any bytes are read: what can't
// be, or is said not to be reported, is left out.
//
// Source: NVM Express Base Specification 2.0, 5.16.1.3. Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nvme/command.h"

namespace cleat::nvme {

using SmartLogData = std::span<const uint8_t, kSmartLogBytes>;

// Numbers of 128 bits end at the largest one of 64.
struct SmartLog {
  uint8_t critical_warning = 0;                // as WarningsOf takes it
  std::optional<int32_t> temperature_celsius;  // the composite one
  std::optional<uint32_t> spare_percent;       // of the spare blocks that it was made with
  std::optional<uint32_t> spare_threshold_percent;
  uint32_t wear_percent = 0;              // of the endurance that its maker promises; 255: that or more
  std::optional<uint64_t> written_bytes;  // by hosts, to the next 512,000
  uint64_t power_on_hours = 0;
  uint64_t unsafe_shutdowns = 0;
  uint64_t media_errors = 0;
};

SmartLog ParseSmartLog(SmartLogData data);

// The temperature in the field of that many kelvins; nullopt: not reported, or none that a drive could have while it answers.
std::optional<int32_t> CelsiusOf(int64_t millikelvin);

// The temperature is beyond a threshold, over or under.
inline constexpr uint8_t kTemperatureWarning = 1U << 1;
// A phrase for each bit that is set: "the spare is below its threshold".
std::vector<std::string> WarningsOf(uint8_t critical_warning);

}  // namespace cleat::nvme
