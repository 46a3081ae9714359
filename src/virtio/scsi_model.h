// SPDX-License-Identifier: Apache-2.0
// A virtio-scsi device (virtio 1.2, 5.6): one controller with up to kTargetsMax targets of one logical unit (LUN 0)
// each, which come and go while the guest runs.
//
//   queue 0   control  task management; answered when no affected command is in the storage any more
//   queue 1   event    hot-plug, unplug and resize, told to the guest
//   queue 2.. request  SCSI commands
//
// Made and changed on the control reactor; OpenQueue on the queue's own I/O reactor. What is shared between reactors
// is immutable or an atomic that is rarely written (scsi::LogicalUnit); the rest is a part of its own for each
// reactor (ScsiPort), changed only there. Lives as long as its controller: with or without disks, with or without a
// connection, and longer than its queues. Events that nobody has taken yet wait for the guest's next buffers.
//
// The model has no configuration space: for a vhost-user-scsi device the front end answers that itself (with num_queues,
// sense_size 96 and cdb_size 32, which are the sizes used here).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "block/device.h"
#include "block/pipeline.h"
#include "reactor/reactor.h"
#include "reactor/task.h"
#include "scsi/identity.h"
#include "virtio/device_model.h"
#include "virtio/disk_channel_ref.h"

namespace cleat::scsi {
class LogicalUnit;
}

namespace cleat::virtio {

class EarlierIo;
class ScsiEvents;
class ScsiPort;

// Of 128 queues that a transport has.
inline constexpr uint32_t kScsiRequestQueuesMax = 126;

// What stands behind a target.
struct ScsiDisk {
  std::string name;  // "disks/ID", for messages
  scsi::Identity identity;
  block::Geometry geometry;
  block::AccessMode mode = block::AccessMode::kReadWrite;
  // The disk's channel on an I/O reactor, asked there; without a channel when it has none. It outlives Remove.
  std::function<DiskChannelRef(Reactor&)> channel_on;
};

class ScsiModel final : public DeviceModel {
 public:
  static constexpr uint32_t kTargetsMax = 8;

  // Queue q runs on io_reactors[q % size]. `request_queues`: 1 to kScsiRequestQueuesMax. The reactors outlive it, and so does
  // `earlier` (nullptr: no engine was before this one).
  ScsiModel(std::string name, Reactor& control, std::vector<Reactor*> io_reactors, uint32_t request_queues,
            EarlierIo* earlier = nullptr);
  ~ScsiModel() override;  // no target, no queue

  // ---- Targets. On control; one call at a time for a target, for several side by side (a target whose storage
  // hangs holds up no other). The I/O of other targets goes on.
  // OK: every reactor serves the target, and the guest is told. invalid_argument: no such target, or an identity
  // that SCSI can't show; already_exists: the target is taken; failed_precondition: the disk has no channel on a
  // reactor that runs request queues. An error changes nothing.
  Task<Status> Add(uint32_t target, ScsiDisk disk);
  // When it returns no command reaches the disk any more, all that did have ended, and the guest is told; that lasts
  // as long as the storage takes. Nothing to do when there is no such target. Without `tell` no event says so: of a disk whose
  // guest has left, and would take the news of it along to the next one.
  Task<void> Remove(uint32_t target, bool tell = true);
  // The disk has grown (or has other limits): the guest is told. A target that is not there: nothing.
  Task<void> SetGeometry(uint32_t target, const block::Geometry& geometry);

  // ---- DeviceModel
  uint32_t queues() const override;
  uint64_t features() const override;
  bool has_config() const override { return false; }
  void ReadConfig(uint32_t offset, std::span<uint8_t> out) const override;
  Status WriteConfig(uint32_t offset, std::span<const uint8_t> in) override;
  DiskIdentity log_disk() const override { return DiskIdentity::Several(); }
  Result<std::unique_ptr<DeviceQueue>> OpenQueue(Reactor& reactor, uint32_t index) override;

 private:
  bool RunsRequests(size_t position) const;
  Task<void> RemoveParts(uint32_t target, size_t reactors);
  Task<void> Tell(uint32_t event, uint32_t target, uint32_t reason);

  const std::string name_;
  Reactor& control_;
  const std::vector<Reactor*> io_reactors_;
  const uint32_t request_queues_;
  std::vector<std::unique_ptr<ScsiPort>>
      ports_;                           // by position in io_reactors_; each changed on its reactor alone
  std::unique_ptr<ScsiEvents> events_;  // on the event queue's reactor
  std::array<std::shared_ptr<scsi::LogicalUnit>, kTargetsMax> units_;  // on control: what is there
};

}  // namespace cleat::virtio
