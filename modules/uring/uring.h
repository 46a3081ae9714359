// SPDX-License-Identifier: Apache-2.0
// A disk in a regular file or on a block device, through io_uring: O_DIRECT where the file system can,
// otherwise the page cache. Guest memory is read and written in place; buffers that O_DIRECT can't take go
// through bounce buffers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "block/device.h"
#include "modules/uring/placement.h"
#include "modules/uring/uring_file.h"
#include "modules/uring/uring_hub.h"
#include "reactor/blocking.h"
#include "reactor/task.h"

namespace cleat::modules {

// The most that one discard or write zeroes may cover: what a file system frees in a few milliseconds.
inline constexpr uint64_t kUringZeroBytesMax = uint64_t{256} << 20;

// Finds what is at a path, O_PATH: without any effect on it. `what` begins errors. Blocks on the file system.
using FindFile = std::function<Result<UniqueFd>(const std::string& path, const std::string& what)>;
// Wherever the path leads.
Result<UniqueFd> FindAnyFile(const std::string& path, const std::string& what);

struct UringOptions {
  UringOptions(block::DiskShape s, std::string file_path, block::AccessMode mode)
      : shape(std::move(s)), path(std::move(file_path)), access(mode) {}

  block::DiskShape shape;
  std::string path;
  block::AccessMode access;     // kReadOnly opens the file read-only
  FindFile find = FindAnyFile;  // on `blocking`
  bool direct_io = true;        // O_DIRECT where possible
  std::optional<Placement>
      placement;  // a disk of a pool, whose drive `path` names; without: all of the file is the disk's
  // How long Acquire waits for the lock: a predecessor that was killed keeps it until the kernel has ended its last I/O,
  // which was seen to take 7 s.
  uint64_t lock_wait_ns = 10 * kNsPerSecond;
};

// On the control reactor; the file is opened, examined and locked on `blocking`. `hub` and `blocking` outlive
// the device. Takes no lock: Acquire does (an OFD lock on a file, a flock on a block device, on the very open
// file that the I/O uses; the kernel keeps it until the last I/O has ended, also when this process is
// killed).
//   kNotFound            no such file
//   kPermissionDenied    may not be opened (so), or as `find` says
//   kFailedPrecondition  neither file nor block device; smaller than the disk; not the pool's drive
//   kUnavailable         the pool's drive has no map yet that has the disk: try again (PlaceOnDrive, and its other errors)
//   kUnimplemented       io_uring is forbidden on this host
// Acquire waits (lock_wait_ns) for a lock that others have.
//   kFailedPrecondition  another program, which it names, or another disk of this engine has the file
//   kUnavailable         it can't be proven yet that nobody else writes, or another engine does: try again
Task<Result<std::unique_ptr<block::Device>>> OpenUring(UringOptions options, UringHub& hub,
                                                       BlockingPool& blocking);
// The same of a file that is open (OpenUringFile), when all that may refuse it was asked. `why_io_uring`: why there is no better way to it,
// for io_path(); empty: that is what one would expect.
std::unique_ptr<block::Device> MakeUring(const UringOptions& options, UringFile file,
                                         std::string why_io_uring, UringHub& hub, BlockingPool& blocking);

}  // namespace cleat::modules
