// SPDX-License-Identifier: Apache-2.0
// A disk without storage: every request goes through the whole pipeline and completes at once. Reads give
// zeroes, writes go nowhere. For measuring everything but the storage.
#pragma once

#include <memory>
#include <utility>

#include "block/device.h"
#include "reactor/task.h"

namespace cleat::modules {

struct NullOptions {
  explicit NullOptions(block::DiskShape s) : shape(std::move(s)) {}

  block::DiskShape shape;
  // A read that leaves the buffer as it is hands a guest whatever stood there before; that is the guest's own
  // memory, so nothing leaks, but a disk whose blocks change with the buffer is no disk (a partition scan
  // sees ghosts). Benchmarks that want to leave the memory traffic out switch it off.
  bool zero_fill = true;
};

// On the control reactor. kInvalidArgument for an impossible shape.
Task<Result<std::unique_ptr<block::Device>>> OpenNull(NullOptions options);

}  // namespace cleat::modules
