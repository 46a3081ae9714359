// SPDX-License-Identifier: Apache-2.0
// From a disk's description to its pipeline: which modules, in which order. The simulation has a factory of
// its own, with back ends that delay, reorder and fail. Control reactor.
#pragma once

#include <functional>
#include <memory>

#include "base/result.h"
#include "block/pipeline.h"
#include "engine/protocol/spec.h"
#include "qos/group.h"
#include "qos/limited_device.h"
#include "reactor/task.h"

namespace cleat::engine {

struct OpenDisk {
  std::unique_ptr<block::Pipeline> pipeline;
  // Below the pipeline's entrance, and its own. Every disk has one: its limits may come later.
  qos::LimitedDevice* limited = nullptr;
};

// What every factory puts on top: the limits and the pipeline's entrance. Takes `device`; on an error it is still there,
// maybe with the limits on it, and its opener's to close.
Result<OpenDisk> MakeLimitedPipeline(std::unique_ptr<block::Device>& device, const qos::Limits& limits,
                                     std::shared_ptr<qos::Group> group, block::AccessMode mode);

// What a disk's storage tells of its own accord, between Open's return and the pipeline's Close. On the control reactor.
struct DiskEvents {
  // The storage has grown: by another client, or by Pipeline::Resize, perhaps before that has ended. The size is a multiple
  // of the block size.
  std::function<void(uint64_t size_bytes)> grew;
  // The storage has shut this process out: every request fails, for good. Called once.
  std::function<void(const Error& why)> fenced;
  // What block::Device::paths says is another now.
  std::function<void()> paths_changed;
};

class DiskFactory {
 public:
  virtual ~DiskFactory() = default;
  // Opened, not acquired. An error leaves nothing behind. `disk` lives until the task is over; `group` may be nullptr.
  virtual Task<Result<OpenDisk>> Open(const DiskSpec& disk, block::AccessMode mode,
                                      std::shared_ptr<qos::Group> group, DiskEvents events) = 0;
};

}  // namespace cleat::engine
