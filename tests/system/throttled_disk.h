// SPDX-License-Identifier: Apache-2.0
// A block device that is as slow as one likes for the processes that it is made slow for, or stands still for them until it
// is let go on: a loop device over memory, and the kernel's own throttle in front of it (the blkio or io controller of a
// control group). Requests of a process that was killed wait there and land later, as they do on a slow disk.
//
// Takes root, /dev/loop-control and one of the two controllers; Make says which is missing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::system_test {

class ThrottledDisk {
 public:
  // kUnimplemented: this machine can't.
  static Result<std::unique_ptr<ThrottledDisk>> Make(uint64_t size_bytes);
  // After the ends of those who use it: the device goes with its last user.
  ~ThrottledDisk();

  const std::string& path() const { return path_; }
  // From now on the process, and what it starts, gets so many writes a second.
  Status Slow(pid_t process, uint32_t writes_per_second);
  // From now on nothing lands that the process, or what it starts, writes, whether it lives on or not: until Release().
  Status Hold(pid_t process) { return Stop(kWrites, process); }
  Status Release() { return LetGoOn(kWrites); }
  // The same for what they read.
  Status HoldReads(pid_t process) { return Stop(kReads, process); }
  Status ReleaseReads() { return LetGoOn(kReads); }
  // What has landed so far.
  std::string Content() const;

 private:
  ThrottledDisk(uint64_t size_bytes, UniqueFd content, std::string path, UniqueFd device)
      : size_bytes_(size_bytes),
        content_(std::move(content)),
        path_(std::move(path)),
        device_(std::move(device)) {}
  // What limits it, in either version of control groups.
  struct Direction {
    const char* file;
    const char* unified_key;
  };
  static constexpr Direction kWrites{"write_bps_device", "wbps"};
  static constexpr Direction kReads{"read_bps_device", "rbps"};

  Status MakeGroup();
  Status Stop(const Direction& direction, pid_t process);
  Status LetGoOn(const Direction& direction);
  Status Limit(const std::string& file, const std::string& unified_key, const std::string& value);

  const uint64_t size_bytes_;
  UniqueFd content_;
  const std::string path_;
  UniqueFd device_;
  std::string group_;  // folder of the control group
  bool unified_ = false;
};

}  // namespace cleat::system_test
