// SPDX-License-Identifier: Apache-2.0
// A virtio-blk device (virtio 1.2, 5.2): what it offers and its configuration space, built from a disk's
// geometry. Made and asked on the control reactor; OpenQueue on the queue's own I/O reactor, several at a
// time.
//
// VIRTIO_BLK_F_CONFIG_WCE is not offered: QEMU does not repeat the guest's choice to a backend that comes
// back after a crash, so a guest that had chosen write-through would silently lose it. A driver chooses by
// taking or leaving VIRTIO_BLK_F_FLUSH instead, which is part of every negotiation; thus no field of the
// configuration is writable.
#pragma once

#include <linux/virtio_blk.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "block/device.h"
#include "block/pipeline.h"
#include "virtio/device_model.h"
#include "virtio/disk_channel_ref.h"

namespace cleat::virtio {

inline constexpr uint32_t kBlkQueuesMax = 128;

class BlkModel final : public DeviceModel {
 public:
  // The disk's channel on an I/O reactor, shared by its queues there; without a channel when there is none. Called on
  // that reactor. It outlives the queues.
  using ChannelFn = std::function<DiskChannelRef(Reactor&)>;

  // The disk has grown; the transport tells the guest. On control.
  void SetGeometry(const block::Geometry& geometry);

  // `serial`: what the guest shows as the disk's identity; the first 20 bytes are used. `queues`: 1 to
  // kBlkQueuesMax.
  BlkModel(const block::Geometry& geometry, block::AccessMode mode, std::string serial, uint32_t queues,
           ChannelFn channel_on, DiskIdentity disk = {});

  uint32_t queues() const override { return queues_; }
  uint64_t features() const override { return features_; }
  bool has_config() const override { return true; }
  void ReadConfig(uint32_t offset, std::span<uint8_t> out) const override;
  Status WriteConfig(uint32_t offset, std::span<const uint8_t> in) override;
  DiskIdentity log_disk() const override { return disk_; }
  Result<std::unique_ptr<DeviceQueue>> OpenQueue(Reactor& reactor, uint32_t index) override;

 private:
  const std::string serial_;
  const uint32_t queues_;
  const ChannelFn channel_on_;
  const DiskIdentity disk_;
  const uint64_t features_;
  virtio_blk_config config_;
};

}  // namespace cleat::virtio
