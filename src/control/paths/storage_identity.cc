// SPDX-License-Identifier: Apache-2.0
#include "control/paths/storage_identity.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/loop.h>
#include <linux/major.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <fstream>
#include <optional>

#include "base/listed_open.h"

namespace cleat::control {
namespace {

constexpr uint64_t kSectorBytes = 512;  // sysfs counts in these, whatever the device's blocks are

std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream stream(path);
  uint64_t number = 0;
  if (stream >> number) return number;
  return std::nullopt;
}

// "MAJOR:MINOR"
std::optional<dev_t> DeviceIn(const std::string& path) {
  std::ifstream stream(path);
  unsigned int numbers[2] = {};
  char colon = 0;
  if (stream >> numbers[0] >> colon >> numbers[1] && colon == ':') return makedev(numbers[0], numbers[1]);
  return std::nullopt;
}

// The file behind an opened loop device.
std::optional<StorageIdentity> FileOfLoop(const UniqueFd& opened) {
  const UniqueFd device = ReopenAs(opened, O_RDONLY | O_NONBLOCK);
  loop_info64 info{};
  if (!device || ioctl(device.get(), LOOP_GET_STATUS64, &info) != 0) return std::nullopt;
  StorageIdentity file;
  file.whole = {StorageIdentity::Kind::kFile, static_cast<dev_t>(info.lo_device), info.lo_inode};
  return file;
}

// The same by the device's number, from sysfs: what was opened may be a partition, which does not know LOOP_GET_STATUS64.
std::optional<StorageIdentity> FileOfLoop(dev_t device, const std::string& sysfs) {
  std::ifstream stream(
      fmt::format("{}/dev/block/{}:{}/loop/backing_file", sysfs, major(device), minor(device)));
  std::string path;
  struct stat info {};
  if (!std::getline(stream, path) || stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode))
    return std::nullopt;
  StorageIdentity file;
  file.whole = {StorageIdentity::Kind::kFile, info.st_dev, info.st_ino};
  return file;
}

}  // namespace

StorageIdentity IdentifyDevice(dev_t device, const std::string& sysfs) {
  StorageIdentity identity;
  identity.whole = {StorageIdentity::Kind::kDevice, device, 0};
  const std::string folder = fmt::format("{}/dev/block/{}:{}/", sysfs, major(device), minor(device));
  if (!NumberIn(folder + "partition")) return identity;
  const auto whole = DeviceIn(folder + "../dev");
  const auto begin = NumberIn(folder + "start");
  const auto size = NumberIn(folder + "size");
  if (!whole || !begin || !size) return identity;
  identity.whole.device = *whole;
  identity.begin_bytes = *begin * kSectorBytes;
  identity.end_bytes = identity.begin_bytes + *size * kSectorBytes;
  return identity;
}

Result<StorageIdentity> IdentifyStorage(const UniqueFd& opened, const std::string& what,
                                        const std::string& sysfs) {
  struct stat info {};
  if (fstat(opened.get(), &info) != 0) return ErrnoError(errno, what + " can't be examined");
  if (S_ISREG(info.st_mode)) {
    StorageIdentity identity;
    identity.whole = {StorageIdentity::Kind::kFile, info.st_dev, info.st_ino};
    return identity;
  }
  if (!S_ISBLK(info.st_mode)) {
    return Error(ErrorCode::kFailedPrecondition,
                 what + " is neither a regular file nor a block device: name one that is");
  }
  if (major(info.st_rdev) == LOOP_MAJOR) {
    if (const auto file = FileOfLoop(opened)) return *file;
  }
  const StorageIdentity identity = IdentifyDevice(info.st_rdev, sysfs);
  if (major(identity.whole.device) != LOOP_MAJOR) return identity;
  const auto file = FileOfLoop(identity.whole.device, sysfs);
  return file ? *file : identity;
}

}  // namespace cleat::control
