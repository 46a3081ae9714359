// SPDX-License-Identifier: Apache-2.0
// The holder of the lock on a file. OFD locks belong to open files, not to processes, and F_OFD_GETLK names nobody; what
// tells is /proc/PID/fdinfo (proc_pid_fdinfo(5), "lock:"), for processes that this one may look into: those of the same
// user, or all for root.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "pool/extent_map.h"

namespace cleat::modules {

struct LockHolder {
  pid_t pid = 0;              // our own: another open file of this process has the lock
  std::string command;        // its command line, cut, printable
  bool same_program = false;  // it runs the executable that we run
};

// What a pool's disk locks of its drive.
struct WantedRanges {
  std::vector<pool::DriveRange> ranges;
  bool writes = false;
};

// The process with a lock on the file, or on the block device under any of its names, that keeps `fd` from getting one.
// nullopt: no process that can be seen has it, so it is another user's, or nobody's any more - a killed process is gone
// before its last I/O has ended, and until then its locks stay. Walks all processes' open files: takes milliseconds, and
// never waits for a file system; on a BlockingPool's thread. `wanted`: what is to be locked; without, all of the file.
std::optional<LockHolder> FindLockHolder(int fd, const std::optional<WantedRanges>& wanted = std::nullopt);

}  // namespace cleat::modules
