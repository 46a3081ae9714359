// SPDX-License-Identifier: Apache-2.0
// By which key an adapter knows the memory that commands have: a small table, since a reactor has its data in few regions. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "block/memory.h"

namespace cleat::nvme::rdma_target {

class LocalKeys {
 public:
  static constexpr uint32_t kRegionsMax = 32;

  // The whole of `region` is registered, and stays so until Remove. kResourceExhausted: there are kRegionsMax already.
  cleat::Status Add(const block::MemoryRegion* region, uint32_t local_key) {
    if (count_ == kRegionsMax) {
      return Error(ErrorCode::kResourceExhausted,
                   "an adapter of an NVMe/RDMA target has as many memory regions as it may");
    }
    entries_[count_++] = {region, local_key};
    return {};
  }
  // No work refers to the region any more.
  void Remove(const block::MemoryRegion* region) {
    const auto end = entries_.begin() + count_;
    count_ = static_cast<uint32_t>(
        std::remove_if(entries_.begin(), end, [&](const Entry& entry) { return entry.region == region; }) -
        entries_.begin());
  }
  // nullopt: it is not registered.
  std::optional<uint32_t> Find(const block::MemoryRegion* region) const {
    for (uint32_t i = 0; i < count_; ++i) {
      if (entries_[i].region == region) return entries_[i].local_key;
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    const block::MemoryRegion* region = nullptr;
    uint32_t local_key = 0;
  };
  std::array<Entry, kRegionsMax> entries_;
  uint32_t count_ = 0;
};

}  // namespace cleat::nvme::rdma_target
