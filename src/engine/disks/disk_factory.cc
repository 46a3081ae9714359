// SPDX-License-Identifier: Apache-2.0
#include "engine/disks/disk_factory.h"

#include <utility>

namespace cleat::engine {

Result<OpenDisk> MakeLimitedPipeline(std::unique_ptr<block::Device>& device, const qos::Limits& limits,
                                     std::shared_ptr<qos::Group> group, block::AccessMode mode) {
  CLEAT_ASSIGN(auto limited, qos::LimitedDevice::Make(std::move(device), limits, std::move(group)));
  OpenDisk open;
  open.limited = limited.get();
  device = std::move(limited);
  CLEAT_ASSIGN(open.pipeline, block::Pipeline::Make(std::move(device), mode));
  return open;
}

}  // namespace cleat::engine
