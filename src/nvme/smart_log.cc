// SPDX-License-Identifier: Apache-2.0
#include "nvme/smart_log.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace cleat::nvme {
namespace {

constexpr uint32_t kPercentMax = 100;  // of the spare; more is reserved

template <typename Number>
Number At(SmartLogData data, size_t offset) {
  Number number;
  std::memcpy(&number, data.data() + offset, sizeof(number));
  return number;
}

// A number of 128 bits, little-endian; UINT64_MAX where it is larger than that.
uint64_t LargeAt(SmartLogData data, size_t offset) {
  const auto low = At<uint64_t>(data, offset);
  return At<uint64_t>(data, offset + sizeof(low)) == 0 ? low : UINT64_MAX;
}

std::optional<uint32_t> PercentAt(SmartLogData data, size_t offset) {
  const uint32_t percent = At<uint8_t>(data, offset);
  return percent > kPercentMax ? std::nullopt : std::optional(percent);
}

// In units of a thousand times 512 bytes; zero says that it is not reported.
std::optional<uint64_t> BytesWrittenAt(SmartLogData data, size_t offset) {
  constexpr uint64_t kUnitBytes = 512'000;
  const uint64_t units = LargeAt(data, offset);
  if (units == 0) return std::nullopt;
  return units > UINT64_MAX / kUnitBytes ? UINT64_MAX : units * kUnitBytes;
}

}  // namespace

std::optional<int32_t> CelsiusOf(int64_t millikelvin) {
  constexpr int64_t kZeroCelsius = 273;
  constexpr int64_t kLeast = 173, kMost = 473;  // a hundred degrees of frost, two hundred of heat
  const int64_t kelvin = millikelvin / 1000;
  if (kelvin < kLeast || kelvin > kMost) return std::nullopt;
  return static_cast<int32_t>(kelvin - kZeroCelsius);
}

SmartLog ParseSmartLog(SmartLogData data) {
  constexpr size_t kCriticalWarning = 0, kTemperature = 1, kSpare = 3, kSpareThreshold = 4, kUsed = 5,
                   kUnitsWritten = 48, kPowerOnHours = 128, kUnsafeShutdowns = 144, kMediaErrors = 160;
  SmartLog log;
  log.critical_warning = At<uint8_t>(data, kCriticalWarning);
  log.temperature_celsius = CelsiusOf(int64_t{At<uint16_t>(data, kTemperature)} * 1000);
  log.spare_percent = PercentAt(data, kSpare);
  log.spare_threshold_percent = PercentAt(data, kSpareThreshold);
  // Drives that have no spare to speak of, emulated ones for instance, fill in neither; a drive that has used its spare up has a threshold.
  const bool reported = log.spare_percent.value_or(1) != 0 || log.spare_threshold_percent.value_or(1) != 0;
  if (!reported) log.spare_percent = log.spare_threshold_percent = std::nullopt;
  log.wear_percent = At<uint8_t>(data, kUsed);
  log.written_bytes = BytesWrittenAt(data, kUnitsWritten);
  log.power_on_hours = LargeAt(data, kPowerOnHours);
  log.unsafe_shutdowns = LargeAt(data, kUnsafeShutdowns);
  log.media_errors = LargeAt(data, kMediaErrors);
  return log;
}

std::vector<std::string> WarningsOf(uint8_t critical_warning) {
  static constexpr std::array<const char*, 6> kPhrases = {
      "the spare is below its threshold",
      "the temperature is beyond a threshold",
      "the drive is not reliable any more, for errors of its media or within it",
      "the media is read-only",
      "the backup of its volatile memory has failed",
      "its persistent memory region is not reliable any more, or read-only",
  };
  std::vector<std::string> warnings;
  for (size_t bit = 0; bit < 8; ++bit) {
    if ((critical_warning >> bit & 1U) == 0) continue;
    warnings.push_back(bit < kPhrases.size() ? kPhrases[bit]
                                             : "bit " + std::to_string(bit) +
                                                   " of its critical warnings, whose meaning is not known");
  }
  return warnings;
}

}  // namespace cleat::nvme
