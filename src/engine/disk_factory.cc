// SPDX-License-Identifier: Apache-2.0
#include "engine/disk_factory.h"

#include <utility>

namespace cleat::engine {

Result<OpenDisk> MakeLimitedPipeline(std::unique_ptr<block::Device>& device, const qos::Limits& limits,
                                     std::shared_ptr<qos::Group> group, block::AccessMode mode) {
  auto limited = qos::LimitedDevice::Make(std::move(device), limits, std::move(group));
  if (!limited) return std::move(limited).error();
  OpenDisk open;
  open.limited = limited.value().get();
  device = std::move(limited).value();
  auto pipeline = block::Pipeline::Make(std::move(device), mode);
  if (!pipeline) return std::move(pipeline).error();
  open.pipeline = std::move(pipeline).value();
  return open;
}

}  // namespace cleat::engine
