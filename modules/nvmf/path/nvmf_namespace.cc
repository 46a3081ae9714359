// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/path/nvmf_namespace.h"

#include <fmt/format.h>

#include <algorithm>

#include "nvme/fabrics/queues/target_queue.h"

namespace cleat::modules {
namespace {

using nvme::fabrics::AnaState;
using nvme::fabrics::TransportType;
using nvme::host::AssociationInfo;
using nvme::host::PathState;

nvme::Limits LimitsOf(const AssociationInfo& info, TransportType type) {
  nvme::TransportLimits transport;
  transport.memory_align = 1;  // both transports copy from wherever the bytes are
  // The largest piece of memory that an adapter's queues have for a command.
  if (type == TransportType::kRdma) transport.transfer_bytes_max = nvme::fabrics::kTransferBytesMax;
  return {info.controller, info.space, info.command_set, transport};
}

std::string NameOf(const std::string& where, const AssociationInfo& info) {
  return fmt::format("{}: namespace {}", where, info.nsid);
}

}  // namespace

Status CheckFirst(const NvmfOptions& options, const std::string& where, const AssociationInfo& info) {
  const std::string space = NameOf(where, info);
  const block::DiskShape& shape = options.shape;
  if (info.space.block_bytes != shape.logical_block_bytes) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("{} has blocks of {} bytes, the disk of {}: give the disk those of the namespace", space,
                    info.space.block_bytes, shape.logical_block_bytes));
  }
  if (NamespaceBytes(info) < shape.size_bytes) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("{} has {} bytes, the disk {}: make the namespace larger", space,
                             NamespaceBytes(info), shape.size_bytes));
  }
  if (info.space.write_protected && options.access == block::AccessMode::kReadWrite) {
    return Error(ErrorCode::kFailedPrecondition,
                 space + " is write-protected: lift that at the target, or use the disk read-only");
  }
  return Ok{};
}

Status CheckAgain(const Promised& promised, const std::string& where, const AssociationInfo& info) {
  const std::string space = NameOf(where, info);
  if (info.space.block_bytes != promised.block_bytes) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("{} has blocks of {} bytes, and had {}: it has been formatted anew", space,
                             info.space.block_bytes, promised.block_bytes));
  }
  if (NamespaceBytes(info) < promised.size_bytes) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("{} has {} bytes there, and guests know of {}: make that target see its whole size",
                    space, NamespaceBytes(info), promised.size_bytes));
  }
  if (info.space.write_protected && promised.writes)
    return Error(ErrorCode::kFailedPrecondition,
                 space + " is write-protected there: lift that at the target");
  if (info.controller.write_cache && !promised.write_cache) {
    return Error(ErrorCode::kFailedPrecondition,
                 space +
                     " has a volatile write cache, and guests believe that it has none: detach the disk, "
                     "then attach it again");
  }
  if (info.io_queues < promised.queues) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{}: {} I/O queues are granted, {} are in use: allow more at the target", where,
                             info.io_queues, promised.queues));
  }
  return Ok{};
}

block::Geometry GeometryOf(const NvmfOptions& options, const AssociationInfo& info) {
  constexpr uint64_t kGranularityMaxBytes = 1 << 20;
  block::Geometry geometry = options.shape.ToGeometry();
  // The limits on discards and zeroes are the same over each transport.
  const nvme::Limits limits = LimitsOf(info, TransportType::kTcp);
  const bool writes = options.access == block::AccessMode::kReadWrite;
  const uint64_t boundary = uint64_t{info.space.boundary_blocks} * limits.block_bytes();
  if (boundary <= UINT32_MAX && boundary % geometry.physical_block_bytes == 0)
    geometry.optimal_io_bytes = static_cast<uint32_t>(boundary);
  geometry.discard = writes && limits.discard_bytes_max() > 0;
  const uint64_t granularity = uint64_t{info.space.discard_granularity_blocks} * limits.block_bytes();
  geometry.discard_granularity_bytes = static_cast<uint32_t>(
      std::clamp<uint64_t>(granularity, geometry.logical_block_bytes, kGranularityMaxBytes));
  geometry.discard_max_bytes = kNvmfDiscardBytesMax;
  geometry.write_zeroes = writes && limits.write_zeroes_bytes_max() > 0;
  geometry.write_zeroes_max_bytes = kNvmfDiscardBytesMax;
  geometry.write_cache = info.controller.write_cache;
  return geometry;
}

nvme::host::PathFormat FormatOf(const AssociationInfo& info, TransportType transport) {
  nvme::host::PathFormat format;
  format.nsid = info.nsid;
  format.limits = LimitsOf(info, transport);
  format.write_zeroes_deallocates = info.space.write_zeroes_deallocates && info.space.deallocated_reads_zero;
  return format;
}

// NSZE comes from the target: a product that would overflow is as large as it can be.
uint64_t NamespaceBytes(const AssociationInfo& info) {
  const uint64_t blocks_max = UINT64_MAX / info.space.block_bytes;
  return std::min(info.space.blocks, blocks_max) * info.space.block_bytes;
}

PathState StateOf(const AssociationInfo& info) {
  if (!info.present || !info.ana_problem.empty()) return PathState::kUnusable;
  switch (info.ana) {
    case AnaState::kOptimized:
      return PathState::kOptimized;
    case AnaState::kNonOptimized:
      return PathState::kNonOptimized;
    default:
      return PathState::kUnusable;
  }
}

Error WhyUnusable(const std::string& where, const AssociationInfo& info) {
  const std::string space = NameOf(where, info);
  if (!info.present) {
    return {ErrorCode::kUnavailable, space + " was detached or deleted there: attach it to this host again"};
  }
  const std::string why = info.ana_problem.empty() ? nvme::fabrics::NameOf(info.ana) : info.ana_problem;
  return {ErrorCode::kUnavailable,
          fmt::format("{} can't be used by this path (ANA: {}): look into the target's state", space, why)};
}

}  // namespace cleat::modules
