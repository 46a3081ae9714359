// SPDX-License-Identifier: Apache-2.0
// The condition of a pool's drive: asked for, and what of it is news. An NVMe drive is asked for its SMART log by the open block device,
// which takes CAP_SYS_ADMIN (Linux' nvme_cmd_allowed lets others have no log). Without it the kernel's own reading of the temperature
// (hwmon, CONFIG_NVME_HWMON) is all that there is.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "cleat/v1/cleat.pb.h"
#include "nvme/smart_log.h"

namespace cleat::control {

struct HealthSource {
  // The NVMe status that the drive answers with, 0 for success, or minus an errno.
  using GetLog = std::function<int(std::span<uint8_t, nvme::kSmartLogBytes>)>;

  GetLog get_log;
  std::string sysfs = "/sys";
};

// `drive`: a block device or a regular file that is open. The answer has its time (`read_at`) where there is any figure, and
// `unknown_because` where one is missing for another reason than that the drive does not report it. May take as long as the drive does: belongs
// on a thread that may hang with it.
v1::DriveHealth ReadHealth(const UniqueFd& drive);
// The same of a block device by its number.
v1::DriveHealth ReadHealth(dev_t block_device, const HealthSource& source);

// How whoever looks after a drive asks for its condition, and how often.
struct HealthQuestion {
  static constexpr std::chrono::seconds kEvery{60};

  std::function<v1::DriveHealth(const UniqueFd& drive)> read = [](const UniqueFd& drive) {
    return ReadHealth(drive);
  };
  std::chrono::nanoseconds every = kEvery;
};

// What is known of a drive's condition, and what was told of it. Plain; its owner's thread, or under its owner's mutex.
class KnownHealth {
 public:
  // Watchers hear of a temperature that has changed by so much since they heard of one.
  static constexpr int32_t kTemperatureStepCelsius = 5;

  struct News {
    // Something else than the time, the bytes written, the hours and a little of the temperature is not as it was told last: these change
    // every minute, and nobody is to be woken for them.
    bool to_tell = false;
    // The warnings are not those of before; a drive that can't be asked any more has not withdrawn its own.
    bool warnings_changed = false;
  };
  // Takes what was read last.
  News Take(v1::DriveHealth read);
  // The condition as it was read last; null: it never was.
  const v1::DriveHealth* latest() const { return latest_ ? &*latest_ : nullptr; }

 private:
  std::optional<v1::DriveHealth> latest_;
  v1::DriveHealth told_;               // when something was to be told last
  std::vector<std::string> warnings_;  // when the drive was last asked with success
};

}  // namespace cleat::control
