// SPDX-License-Identifier: Apache-2.0
// What a disk's file or block device is, whatever names lead to it: hard links, symbolic links and bind mounts of a file, nodes of a
// device, a partition and the device that it is a part of, a loop device and its file. Never stored: device numbers change when a
// host starts anew. Values; any thread.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::control {

struct StorageIdentity {
  enum class Kind : uint8_t { kFile, kDevice };
  // The file, or the device with all of its partitions. Storages with different ones share nothing.
  struct Whole {
    Kind kind = Kind::kFile;
    dev_t device = 0;    // of the file's file system, or the device itself
    uint64_t inode = 0;  // of a file
    auto operator<=>(const Whole&) const = default;
  };

  Whole whole;
  // The part of it, in bytes; `end_bytes` is the first that is not in it.
  uint64_t begin_bytes = 0;
  uint64_t end_bytes = UINT64_MAX;

  bool Overlaps(const StorageIdentity& other) const {
    return whole == other.whole && begin_bytes < other.end_bytes && other.begin_bytes < end_bytes;
  }
  bool operator==(const StorageIdentity&) const = default;
};

// Identifies a regular file or a block device by what was opened, for which O_PATH is enough; kFailedPrecondition for anything else. `what`
// begins errors. `sysfs` is where the kernel tells about devices. Blocks on the file system.
Result<StorageIdentity> IdentifyStorage(const UniqueFd& opened, const std::string& what,
                                        const std::string& sysfs = "/sys");
// The device's part of its whole, as sysfs says.
StorageIdentity IdentifyDevice(dev_t device, const std::string& sysfs);

}  // namespace cleat::control
