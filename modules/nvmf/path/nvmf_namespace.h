// SPDX-License-Identifier: Apache-2.0
// What a disk makes of a namespace as a controller describes it: whether it fits, and what the disk can do. Values of a target, checked
// before they are used. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "block/device.h"
#include "modules/nvmf/nvmf.h"
#include "nvme/fabrics/names.h"
#include "nvme/host/association.h"
#include "nvme/host/requests/command_maker.h"
#include "nvme/host/requests/request_queue.h"

namespace cleat::modules {

// The most that one discard or write zeroes of a guest may cover.
inline constexpr uint64_t kNvmfDiscardBytesMax = uint64_t{256} << 20;

// Whether the disk can begin in the namespace. `where` is the path: "subsystems/a at 10.0.0.1:4420". kFailedPrecondition.
Status CheckFirst(const NvmfOptions& options, const std::string& where,
                  const nvme::host::AssociationInfo& info);
// What a disk has promised its users, which can't be told anew.
struct Promised {
  uint64_t size_bytes = 0;
  uint32_t block_bytes = 0;
  bool write_cache = false;  // they know of one
  bool writes = false;
  uint32_t queues = 0;  // I/O queues in use
};
// Whether such a disk can go by this path too. kFailedPrecondition, kResourceExhausted.
Status CheckAgain(const Promised& promised, const std::string& where,
                  const nvme::host::AssociationInfo& info);

block::Geometry GeometryOf(const NvmfOptions& options, const nvme::host::AssociationInfo& info);
nvme::host::PathFormat FormatOf(const nvme::host::AssociationInfo& info,
                                nvme::fabrics::TransportType transport);
uint64_t NamespaceBytes(const nvme::host::AssociationInfo& info);
// The state of the path on which the controller says this.
nvme::host::PathState StateOf(const nvme::host::AssociationInfo& info);
// Why such a path is kUnusable.
Error WhyUnusable(const std::string& where, const nvme::host::AssociationInfo& info);

}  // namespace cleat::modules
