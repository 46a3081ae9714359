// SPDX-License-Identifier: Apache-2.0
#include "virtio/blk_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "virtio/blk_queue.h"
#include "virtio/ring_format.h"

namespace cleat::virtio {
namespace {

constexpr uint64_t Bit(unsigned feature) {
  return uint64_t{1} << feature;
}

uint64_t Features(const block::Geometry& geometry, block::AccessMode mode, uint32_t queues) {
  uint64_t features = kRingFeatures | Bit(VIRTIO_BLK_F_SEG_MAX) | Bit(VIRTIO_BLK_F_BLK_SIZE) |
                      Bit(VIRTIO_BLK_F_TOPOLOGY) | Bit(VIRTIO_BLK_F_FLUSH);  // always, as 5.2.5.2 wants it
  if (queues > 1) features |= Bit(VIRTIO_BLK_F_MQ);
  if (mode == block::AccessMode::kReadOnly) return features | Bit(VIRTIO_BLK_F_RO);
  if (geometry.discard) features |= Bit(VIRTIO_BLK_F_DISCARD);
  if (geometry.write_zeroes) features |= Bit(VIRTIO_BLK_F_WRITE_ZEROES);
  return features;
}

// A limit in sectors, a multiple of the logical block, that fits the field.
uint32_t SectorLimit(uint64_t bytes, uint32_t logical_block_bytes) {
  constexpr uint64_t kFieldMax = uint64_t{std::numeric_limits<uint32_t>::max()} * kBlkSectorBytes;
  const uint64_t capped = std::min(bytes, kFieldMax);
  return static_cast<uint32_t>((capped - capped % logical_block_bytes) / kBlkSectorBytes);
}

virtio_blk_config Config(const block::Geometry& geometry, uint32_t queues) {
  const uint32_t block_bytes = geometry.logical_block_bytes;
  virtio_blk_config config{};
  config.capacity = geometry.size_bytes / kBlkSectorBytes;
  config.seg_max = kDataSegmentsMax;
  config.blk_size = block_bytes;
  // In logical blocks (5.2.4).
  const uint32_t blocks_per_physical = geometry.physical_block_bytes / block_bytes;
  config.physical_block_exp = static_cast<uint8_t>(std::countr_zero(blocks_per_physical));
  config.alignment_offset = 0;
  config.min_io_size = static_cast<uint16_t>(blocks_per_physical);
  config.opt_io_size = geometry.optimal_io_bytes / block_bytes;
  config.num_queues = static_cast<uint16_t>(queues);
  if (geometry.discard) {
    config.max_discard_sectors = SectorLimit(geometry.discard_max_bytes, block_bytes);
    config.max_discard_seg = kBlkRangesMax;
    config.discard_sector_alignment =
        std::max(geometry.discard_granularity_bytes, block_bytes) / kBlkSectorBytes;
  }
  if (geometry.write_zeroes) {
    config.max_write_zeroes_sectors = SectorLimit(geometry.write_zeroes_max_bytes, block_bytes);
    config.max_write_zeroes_seg = kBlkRangesMax;
    config.write_zeroes_may_unmap = geometry.discard ? 1 : 0;
  }
  return config;
}

}  // namespace

BlkModel::BlkModel(const block::Geometry& geometry, block::AccessMode mode, std::string serial,
                   uint32_t queues, ChannelFn channel_on, DiskIdentity disk)
    : serial_(std::move(serial)),
      queues_(queues),
      channel_on_(std::move(channel_on)),
      disk_(disk),
      features_(Features(geometry, mode, queues)),
      config_(Config(geometry, queues)) {
  CLEAT_CHECK(queues_ >= 1 && queues_ <= kBlkQueuesMax);
}

void BlkModel::SetGeometry(const block::Geometry& geometry) {
  config_ = Config(geometry, queues_);
}

void BlkModel::ReadConfig(uint32_t offset, std::span<uint8_t> out) const {
  std::ranges::fill(out, uint8_t{0});
  if (offset >= sizeof(config_)) return;
  const size_t bytes = std::min(out.size(), sizeof(config_) - offset);
  std::memcpy(out.data(), reinterpret_cast<const uint8_t*>(&config_) + offset, bytes);
}

Status BlkModel::WriteConfig(uint32_t offset, std::span<const uint8_t> in) {
  return Error(ErrorCode::kInvalidArgument, "virtio-blk disk '" + serial_ + "': the driver writes " +
                                                std::to_string(in.size()) + " bytes at offset " +
                                                std::to_string(offset) + " of a read-only configuration");
}

Result<std::unique_ptr<DeviceQueue>> BlkModel::OpenQueue(Reactor& reactor, uint32_t index) {
  const auto name = [&] { return "virtio-blk disk '" + serial_ + "', queue " + std::to_string(index); };
  if (index >= queues_) {
    return Error(ErrorCode::kInvalidArgument, name() + ": it has " + std::to_string(queues_) + " queues");
  }
  const DiskChannelRef disk = channel_on_(reactor);
  if (disk.channel == nullptr) {
    return Error(ErrorCode::kFailedPrecondition, name() + ": the disk is not open on " + reactor.name());
  }
  return std::unique_ptr<DeviceQueue>(std::make_unique<BlkQueue>(reactor, disk, serial_));
}

}  // namespace cleat::virtio
