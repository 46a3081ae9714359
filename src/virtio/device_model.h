// SPDX-License-Identifier: Apache-2.0
// A virtio device as a transport sees it: features, configuration space, queues. One for each controller; the
// implementations are the virtio-blk and the virtio-scsi model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/disk_identity.h"
#include "base/result.h"
#include "reactor/reactor.h"
#include "virtio/device_queue.h"

namespace cleat::virtio {

class DeviceModel {
 public:
  virtual ~DeviceModel() = default;

  virtual uint32_t queues() const = 0;    // how many virtqueues the guest may use
  virtual uint64_t features() const = 0;  // offered: device and ring features, VIRTIO_F_VERSION_1 with them
  virtual bool has_config() const = 0;    // answers GET_CONFIG (scsi leaves that to QEMU)
  // Fills `out` from the configuration space at `offset`; zeroes behind its end. Control reactor.
  virtual void ReadConfig(uint32_t offset, std::span<uint8_t> out) const = 0;
  // Only writable fields, of which neither model has one (virtio-blk: writeback, 5.2.4, is not offered): an error.
  virtual Status WriteConfig(uint32_t offset, std::span<const uint8_t> in) = 0;

  // Whose requests the in-flight logs of the device's rings have: a disk's, or Several(). Not known: nothing is noted in them,
  // and nothing is checked.
  virtual DiskIdentity log_disk() const { return {}; }

  // On `reactor`, the I/O reactor that will run the queue. The model outlives its queues.
  virtual Result<std::unique_ptr<DeviceQueue>> OpenQueue(Reactor& reactor, uint32_t index) = 0;
};

}  // namespace cleat::virtio
