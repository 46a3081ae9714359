// SPDX-License-Identifier: Apache-2.0
// The example of a back end, for who writes one (CONTRIBUTING.md, "A new back end"): an array in the engine's own memory. Its
// content is lost when its engine ends, and another engine does not have it, so no product offers it: -DCLEAT_EXAMPLE=ON does.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "block/device.h"
#include "reactor/task.h"

namespace cleat::modules {

// The array is there whole from the start, so that it never moves when the disk grows.
inline constexpr uint64_t kExampleBytesMax = uint64_t{16} << 20;

struct ExampleOptions {
  explicit ExampleOptions(block::DiskShape s) : shape(std::move(s)) {}

  block::DiskShape shape;
  uint8_t fill = 0;  // what a block reads as that was never written
};

// On the control reactor. kInvalidArgument for an impossible shape, or more than kExampleBytesMax.
Task<Result<std::unique_ptr<block::Device>>> OpenExample(ExampleOptions options);

}  // namespace cleat::modules
