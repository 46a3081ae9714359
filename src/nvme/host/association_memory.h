// SPDX-License-Identifier: Apache-2.0
// What the sources of an association share beside their header, and where the data of its commands is: one that has data is in flight at a
// time. Owned by the association, on its thread.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "block/memory.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/host/association.h"

namespace cleat::nvme::host {

// How often the namespace and the ANA log are read while the controller fails the requests to tell of changes.
inline constexpr uint64_t kUntoldRecheckNs = 30'000'000'000;

struct Association::Memory {
  Memory() : page_region(block::MemoryRegion::Borrow(page.data(), page.size())) {}

  alignas(kIdentifyBytes) std::array<uint8_t, kIdentifyBytes> page{};
  std::array<uint32_t, fabrics::kListedMax> ids{};  // the page of the list of namespaces that is gone through
  std::optional<fabrics::LogReader> ana;
  const std::shared_ptr<block::MemoryRegion> page_region;
  std::shared_ptr<block::MemoryRegion> log_region;  // of the piece of the log that is being read
  block::Segment segment;
};

}  // namespace cleat::nvme::host
