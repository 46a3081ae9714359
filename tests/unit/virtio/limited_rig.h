// SPDX-License-Identifier: Apache-2.0
// The rigs of both kinds of queues, with limits in front of their disks.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "blk_rig.h"
#include "qos/limited_device.h"
#include "scsi_rig.h"

namespace cleat::virtio {

// A disk's limits, or those of a group that it is alone in.
struct LimitedBy {
  uint64_t iops = 1;
  bool group = false;

  qos::Limits limits() const {
    qos::Limits limits;
    limits[qos::Meter::kIops] = {iops, 0, 0};
    return limits;
  }
  std::unique_ptr<qos::LimitedDevice> Over(std::unique_ptr<block::Device> below, uint64_t now_ns) const {
    std::shared_ptr<qos::Group> vm;
    if (group) {
      vm = std::make_shared<qos::Group>(qos::GroupSpec{"groups/vm", 0, limits()},
                                        std::make_shared<qos::Accounts>(), now_ns);
    }
    const qos::Limits own = group ? qos::Limits{} : limits();
    return qos::LimitedDevice::Make(std::move(below), own, std::move(vm)).value();
  }
};

class LimitedBlk {
 public:
  explicit LimitedBlk(const LimitedBy& by) {
    rig.queue.reset();
    disk = by.Over(std::make_unique<StorageDevice>(rig), rig.clock.NowNs());
    rig.channel = std::make_unique<block::PipelineChannel>(disk->geometry(), block::AccessMode::kReadWrite,
                                                           disk->OpenChannel(*rig.reactor).value());
    rig.queue = rig.model->OpenQueue(*rig.reactor, 0).value();
    rig.Start();
  }
  ~LimitedBlk() {
    if (rig.running) rig.Stop();
    rig.queue.reset();
    rig.channel.reset();
  }
  LimitedBlk(const LimitedBlk&) = delete;
  LimitedBlk& operator=(const LimitedBlk&) = delete;

  // Goes on where it was stopped; `rig.Start()` is a device that was reset.
  void Continue() {
    QueueSetup setup = rig.Setup();
    setup.next_available = rig.queue->next_available();
    rig.Start(setup);
  }
  void SetLimits(const qos::Limits& limits) {
    rig.reactor->PostCall([this, limits] { disk->SetLimits(limits); });
    rig.Turn();
  }

  BlkRig rig;
  std::unique_ptr<qos::LimitedDevice> disk;

 private:
  class StorageDevice final : public block::Device {
   public:
    explicit StorageDevice(BlkRig& rig) : Device("disks/memory", BlkRig::DefaultGeometry()), rig_(rig) {}
    uint32_t frames() const override { return 0; }
    Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
      auto channel = std::make_unique<MemoryChannel>(rig_.disk);
      rig_.storage = channel.get();
      return std::unique_ptr<block::Channel>(std::move(channel));
    }

   private:
    BlkRig& rig_;
  };
};

// Target 0, whose unit attention has been taken, and which has saved nothing but the tolerance.
class LimitedScsi {
 public:
  explicit LimitedScsi(const LimitedBy& by) {
    ScsiDisk made = rig.DiskOf(0);
    auto& place = rig.disks[0];
    for (auto& channel : place.channels) channel.reset();
    auto below = std::make_unique<scsi::TestDevice>(place.storage, place.geometry);
    auto limited = by.Over(std::move(below), rig.clock.NowNs());
    disk = limited.get();
    place.pipeline = block::Pipeline::Make(std::move(limited), block::AccessMode::kReadWrite).value();
    for (uint32_t i = 0; i < 2; ++i) place.channels[i] = place.pipeline->OpenChannel(*rig.io[i]).value();
    EXPECT_EQ(rig.Add(0, std::move(made)), "ok");
    EXPECT_NE(rig.Run(0, LunOf(0), kReadyCdb), "nothing");
    rig.clock.AdvanceBy(kNsPerSecond);
  }

  // The request queue of the first reactor is stopped, drains at once, and is started.
  void Stop() {
    const uint32_t before = rig.drained;
    rig.Stop(2);
    EXPECT_EQ(rig.drained, before + 1);
  }
  void StopAndStart() {
    Stop();
    rig.Start(2);
  }
  void Offer(uint32_t slot, const Bytes& cdb, size_t out_bytes = 512, uint8_t fill = 1) {
    const Bytes out(out_bytes, fill);
    side().Command(slot, LunOf(0), cdb, out);
  }
  void Turn() {
    rig.io[0]->Activate(*side().queue);
    rig.Turn();
  }
  // And then a turn.
  void Wait(uint64_t ns) {
    rig.clock.AdvanceBy(ns);
    Turn();
  }
  void SetLimits(const qos::Limits& limits) {
    rig.io[0]->PostCall([this, limits] { disk->SetLimits(limits); });
    rig.Turn();
  }
  // "waiting": not answered since it was offered.
  std::string Outcome(uint32_t slot) {
    const ScsiResponse response = side().Response(slot);
    if (response.response == 0xff) return "waiting";
    return response.response == VIRTIO_SCSI_S_OK && response.status == kBusyStatus
               ? "busy"
               : ScsiRig::Outcome(response);
  }
  ScsiSide& side() { return rig.requests(0); }
  scsi::TestDisk& storage() { return rig.disks[0].storage; }

  static constexpr uint8_t kBusyStatus = 0x08;
  static constexpr uint64_t kTurnNs = 8 * kNsPerUs;

  ScsiRig rig;
  qos::LimitedDevice* disk = nullptr;
};

}  // namespace cleat::virtio
