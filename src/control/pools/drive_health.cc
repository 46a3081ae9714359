// SPDX-License-Identifier: Apache-2.0
#include "control/pools/drive_health.h"

#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>
#include <google/protobuf/util/time_util.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "nvme/command.h"
#include "nvme/kernel_drive.h"
#include "nvme/status.h"

namespace cleat::control {
namespace {

namespace fs = std::filesystem;

// The kernel's own time for such a command (nvme_core.admin_timeout). It resets the drive's controller when it is over, with all that guests
// have under way there: asking must not bring that about any sooner.
constexpr uint32_t kTimeoutMs = 60'000;

int GetSmartLog(const UniqueFd& drive, std::span<uint8_t, nvme::kSmartLogBytes> page) {
  return nvme::RunAdmin(drive.get(),
                        nvme::GetLogPage(nvme::LogPage::kSmart, nvme::kAllNamespaces, nvme::kSmartLogBytes),
                        page, kTimeoutMs);
}

// The folders of that name and a number in a folder of sysfs, in the order of their names.
std::vector<fs::path> Numbered(const fs::path& folder, const std::string& prefix) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (nvme::IsNumbered(it->path().filename().string(), prefix)) found.push_back(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<int64_t> NumberOf(const fs::path& path) {
  std::ifstream stream(path);
  int64_t number = 0;
  if (stream >> number) return number;
  return std::nullopt;
}

// What the kernel reads of the temperature, where it does: beside the controller, or beside one of those that reach a shared namespace.
std::optional<fs::path> FindSensor(const fs::path& of_namespace) {
  const fs::path device = of_namespace / "device";
  std::vector<fs::path> controllers = Numbered(device, "nvme");
  controllers.insert(controllers.begin(), device);
  for (const fs::path& controller : controllers) {
    // Older kernels have it beside the controller's PCI device.
    for (const fs::path& folder : {controller, controller / "device/hwmon"}) {
      const auto sensors = Numbered(folder, "hwmon");
      if (!sensors.empty()) return sensors.front();
    }
  }
  return std::nullopt;
}

void ReadSensor(const fs::path& sensor, v1::DriveHealth& health) {
  constexpr int64_t kZeroCelsius = 273'150;  // as the kernel counts
  const auto millicelsius = NumberOf(sensor / "temp1_input");
  const bool plausible = millicelsius && std::abs(*millicelsius) < 1'000'000;
  const auto celsius = plausible ? nvme::CelsiusOf(*millicelsius + kZeroCelsius) : std::nullopt;
  if (celsius) health.set_temperature_celsius(*celsius);
  if (NumberOf(sensor / "temp1_alarm").value_or(0) != 0) {
    for (const std::string& warning : nvme::WarningsOf(nvme::kTemperatureWarning))
      health.add_warnings(warning);
  }
}

void Fill(const nvme::SmartLog& log, v1::DriveHealth& health) {
  health.set_wear_percent(log.wear_percent);
  if (log.temperature_celsius) health.set_temperature_celsius(*log.temperature_celsius);
  if (log.spare_percent) health.set_spare_percent(*log.spare_percent);
  if (log.spare_threshold_percent) health.set_spare_threshold_percent(*log.spare_threshold_percent);
  health.set_media_errors(log.media_errors);
  if (log.written_bytes) health.set_written_bytes(*log.written_bytes);
  health.set_power_on_hours(log.power_on_hours);
  health.set_unsafe_shutdowns(log.unsafe_shutdowns);
  for (const std::string& warning : nvme::WarningsOf(log.critical_warning)) health.add_warnings(warning);
}

// Whether the kernel has refused to ask, whatever the drive does.
bool IsRefusal(int result) {
  return result == -EACCES || result == -EPERM;
}

std::string WhyNoLog(int result) {
  if (result > 0) {
    return fmt::format("the drive does not give its SMART log: {}",
                       nvme::NameOf(nvme::Status(static_cast<uint16_t>(result))));
  }
  if (IsRefusal(result)) {
    return "cleatd may not ask the drive for its SMART log, which takes CAP_SYS_ADMIN: watch the drive by "
           "other "
           "means, or give cleatd that capability (docs/operations.md, \"The condition of the drives\", says "
           "what "
           "it costs)";
  }
  return fmt::format("the drive's SMART log can't be read: {}", strerror(-result));
}

// What is told whenever it has changed.
v1::DriveHealth Steady(v1::DriveHealth health) {
  health.clear_read_at();
  health.clear_temperature_celsius();
  health.clear_written_bytes();
  health.clear_power_on_hours();
  return health;
}

bool IsNews(const v1::DriveHealth& told, const v1::DriveHealth& read) {
  if (told.has_temperature_celsius() != read.has_temperature_celsius()) return true;
  const int32_t step = std::abs(read.temperature_celsius() - told.temperature_celsius());
  return step >= KnownHealth::kTemperatureStepCelsius ||
         !google::protobuf::util::MessageDifferencer::Equals(Steady(told), Steady(read));
}

v1::DriveHealth Unknown(std::string why) {
  v1::DriveHealth health;
  health.set_unknown_because(std::move(why));
  return health;
}

}  // namespace

v1::DriveHealth ReadHealth(const UniqueFd& drive) {
  struct stat info {};
  if (fstat(drive.get(), &info) != 0)
    return Unknown(fmt::format("the drive can't be examined: {}", strerror(errno)));
  if (!S_ISBLK(info.st_mode))
    return Unknown("the pool is a regular file, and not a drive that could be asked");
  return ReadHealth(info.st_rdev,
                    {.get_log = [&drive](const auto& page) { return GetSmartLog(drive, page); }});
}

v1::DriveHealth ReadHealth(dev_t block_device, const HealthSource& source) {
  const auto of_namespace = nvme::FindNamespaceFolder(block_device, source.sysfs);
  if (!of_namespace) {
    return Unknown(
        "the drive is no NVMe namespace in /sys, or is gone from there, and cleatd asks no others: watch "
        "them by other means "
        "(smartctl)");
  }
  v1::DriveHealth health;
  std::array<uint8_t, nvme::kSmartLogBytes> page{};
  const int result = source.get_log(page);
  if (result == 0) {
    Fill(nvme::ParseSmartLog(nvme::SmartLogData(page)), health);
  } else {
    health = Unknown(WhyNoLog(result));
  }
  if (IsRefusal(result)) {
    if (const auto sensor = FindSensor(of_namespace->path)) ReadSensor(*sensor, health);
  }
  if (result == 0 || health.has_temperature_celsius())
    *health.mutable_read_at() = google::protobuf::util::TimeUtil::GetCurrentTime();
  return health;
}

KnownHealth::News KnownHealth::Take(v1::DriveHealth read) {
  News news{.to_tell = !latest_ || IsNews(told_, read)};
  if (news.to_tell) told_ = read;
  const std::vector<std::string> warnings(read.warnings().begin(), read.warnings().end());
  if (read.has_read_at()) news.warnings_changed = std::exchange(warnings_, warnings) != warnings;
  latest_ = std::move(read);
  return news;
}

}  // namespace cleat::control
