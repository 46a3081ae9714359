// SPDX-License-Identifier: Apache-2.0
// A disk in memory, as SPDK's "malloc" is: a memfd that somebody else keeps (cleatd, so that its content outlives
// an engine) and this module maps. Requests are copies and complete before Submit returns, but for larger ones than a piece,
// of which one piece is copied a turn of the reactor; what is discarded goes back to the host. Reading what was never written takes memory too: the kernel maps a page for it.
#pragma once

#include <memory>
#include <utility>

#include "base/unique_fd.h"
#include "block/device.h"
#include "reactor/blocking.h"
#include "reactor/task.h"

namespace cleat::modules {

// The most that one discard or write zeroes may cover. Giving back or clearing 1 MiB takes about 100 us on
// the reactor, which is what a large write takes too.
inline constexpr uint64_t kRamZeroBytesMax = uint64_t{1} << 20;

// Of a read or write, in a turn: some tens of microseconds of copying. A smaller one is one piece.
inline constexpr uint64_t kRamPieceBytes = uint64_t{256} << 10;

struct RamOptions {
  RamOptions(block::DiskShape s, UniqueFd fd) : shape(std::move(s)), memfd(std::move(fd)) {}

  block::DiskShape shape;
  UniqueFd memfd;  // at least shape.size_bytes long; the device keeps it open
};

// On the control reactor. `blocking` does what may take long (unmapping a large disk) and outlives the
// device. The mapping ends with the device, in Close when that is awaited. kInvalidArgument for an impossible
// shape or a memfd that is too small.
Task<Result<std::unique_ptr<block::Device>>> OpenRam(RamOptions options, BlockingPool& blocking);

}  // namespace cleat::modules
