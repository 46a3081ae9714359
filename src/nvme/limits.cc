// SPDX-License-Identifier: Apache-2.0
#include "nvme/limits.h"

#include <bit>

namespace cleat::nvme {
namespace {

// What a kernel's queue gives a command where nothing limits it: a larger piece saves nothing, and holds others up.
constexpr uint64_t kTransferBytesMax = uint64_t{1} << 20;
constexpr uint32_t kPagesMax = 256;

constexpr uint64_t LesserLimit(uint64_t a, uint64_t b) {
  return a == 0 ? b : b == 0 ? a : std::min(a, b);
}

}  // namespace

Limits::Limits(const ControllerInfo& controller, const NamespaceInfo& space,
               const CommandSetLimits& command_set, const TransportLimits& transport)
    : block_shift_(static_cast<uint32_t>(std::countr_zero(space.block_bytes))) {
  const auto whole_blocks = [&space](uint64_t bytes) {
    return std::max<uint64_t>(bytes - bytes % space.block_bytes, space.block_bytes);
  };
  const uint64_t blocks_max = uint64_t{kBlocksMax} << block_shift_;
  const uint64_t told = LesserLimit(controller.transfer_bytes_max, transport.transfer_bytes_max);
  transfer_bytes_max_ = whole_blocks(std::min(LesserLimit(told, kTransferBytesMax), blocks_max));
  data_ = {.pages = static_cast<uint32_t>(LesserLimit(transport.pages_max, kPagesMax)),
           .block_bytes = space.block_bytes,
           .memory_align = transport.memory_align};
  boundary_bytes_ = uint64_t{space.boundary_blocks} << block_shift_;
  if (controller.write_zeroes && transport.write_zeroes) {
    // Without a limit of their own MDTS is what drives were seen to keep to, though no data is transferred.
    const uint64_t own =
        LesserLimit(LesserLimit(command_set.write_zeroes_bytes_max, transport.write_zeroes_bytes_max),
                    controller.transfer_bytes_max);
    write_zeroes_bytes_max_ = whole_blocks(std::min(LesserLimit(own, blocks_max), blocks_max));
  }
  if (controller.dataset_management) {
    const uint64_t range_max =
        command_set.discard_blocks_max == 0 ? UINT32_MAX : command_set.discard_blocks_max;
    discard_bytes_max_ = range_max << block_shift_;
  }
}

}  // namespace cleat::nvme
