// SPDX-License-Identifier: Apache-2.0
// From a disk's description to its pipeline: which modules, in which order. The simulation has a factory of
// its own, with back ends that delay, reorder and fail. Control reactor.
#pragma once

#include <memory>

#include "base/result.h"
#include "block/pipeline.h"
#include "engine/spec.h"
#include "reactor/task.h"

namespace cleat::engine {

class DiskFactory {
 public:
  virtual ~DiskFactory() = default;
  // Opened, not acquired. An error leaves nothing behind. `disk` lives until the task is over.
  virtual Task<Result<std::unique_ptr<block::Pipeline>>> Open(const DiskSpec& disk,
                                                              block::AccessMode mode) = 0;
};

}  // namespace cleat::engine
