// SPDX-License-Identifier: Apache-2.0
#include "scsi/logical_unit.h"

#include <algorithm>
#include <string_view>

namespace cleat::scsi {

Status CheckIdentity(const Identity& identity, const std::string& name) {
  const auto check = [&name](std::string_view what, std::string_view text, size_t bytes_max) -> Status {
    if (text.size() > bytes_max) {
      return Error(ErrorCode::kInvalidArgument, name + ": SCSI " + std::string(what) + " of " +
                                                    std::to_string(text.size()) + " bytes: use at most " +
                                                    std::to_string(bytes_max));
    }
    if (!std::ranges::all_of(text, [](char c) { return c >= 0x20 && c <= 0x7e; })) {
      return Error(ErrorCode::kInvalidArgument,
                   name + ": SCSI " + std::string(what) + " has a byte that is not printable ASCII");
    }
    return Ok{};
  };
  for (const Status& status : {check("vendor", identity.vendor, Identity::kVendorBytes),
                               check("product", identity.product, Identity::kProductBytes),
                               check("revision", identity.revision, Identity::kRevisionBytes),
                               check("serial", identity.serial, Identity::kSerialBytesMax)}) {
    if (!status) return status;
  }
  return Ok{};
}

void LogicalUnit::SetMode(const ModeParameters& mode) {
  const uint32_t bits = mode.descriptor_sense ? kDescriptorSense : 0;
  uint32_t state = state_.load(std::memory_order_relaxed);
  while (!state_.compare_exchange_weak(state, (state & kAttentions) | bits, std::memory_order_relaxed)) {
  }
}

std::optional<SenseCode> LogicalUnit::TakeAttention() {
  uint32_t state = state_.load(std::memory_order_relaxed);
  while ((state & kAttentions) != 0) {
    const uint32_t lowest = state & -state;
    if (!state_.compare_exchange_weak(state, state & ~lowest, std::memory_order_relaxed)) continue;
    switch (static_cast<Attention>(lowest)) {
      case Attention::kReset:
        return SenseCode::kBusDeviceReset;
      case Attention::kNexusLoss:
        return SenseCode::kNexusLoss;
      case Attention::kCapacityChanged:
        return SenseCode::kCapacityChanged;
    }
  }
  return std::nullopt;
}

void LogicalUnit::Reset() {
  uint32_t state = state_.load(std::memory_order_relaxed);
  const auto reset = static_cast<uint32_t>(Attention::kReset);
  while (!state_.compare_exchange_weak(state, (state & kAttentions) | reset, std::memory_order_relaxed)) {
  }
}

}  // namespace cleat::scsi
