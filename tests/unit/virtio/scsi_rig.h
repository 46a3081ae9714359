// SPDX-License-Identifier: Apache-2.0
// A virtio-scsi device with everything around it, for tests: two I/O reactors in virtual time, run by one thread; a
// control queue and a request queue on the first, the event queue and another request queue on the second; a guest's
// side of each; disks in memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "guest_ring.h"
#include "kill.h"
#include "scsi/bytes.h"
#include "tests/unit/scsi/test_disk.h"
#include "virtio/earlier_io.h"
#include "virtio/scsi_format.h"
#include "virtio/scsi_model.h"

namespace cleat::virtio {

using Bytes = std::vector<uint8_t>;

inline std::array<uint8_t, 8> LunOf(uint8_t target, uint8_t lun = 0) {
  return {1, target, 0x40, lun};
}

// The guest's side of one queue. A slot has four descriptors, and memory of its own.
struct ScsiSide {
  static constexpr uint16_t kSize = 256;
  static constexpr uint32_t kSlotBytes = 32 << 10;

  static uint64_t RequestAt(uint32_t slot) { return GuestLayout::kLow + uint64_t{512} * slot; }
  static uint64_t ResponseAt(uint32_t slot) { return RequestAt(slot) + 128; }
  static uint64_t DataAt(uint32_t slot) { return GuestLayout::kHigh + uint64_t{kSlotBytes} * slot; }
  static uint16_t HeadOf(uint32_t slot) { return static_cast<uint16_t>(4 * slot); }

  GuestMemory memory{GuestLayout::Regions(kSize)};
  GuestRing guest = GuestLayout::Ring(memory, kSize);
  std::unique_ptr<DeviceQueue> queue;
  std::vector<std::string> broken;
  bool running = false;
  LogMemory log{kSize};
  bool logging = false;  // from the next Start on

  void Start(uint64_t features) {
    QueueSetup setup;
    setup.features = features;
    setup.memory = memory.map();
    setup.ring = guest.memory();
    setup.next_available = queue->next_available();
    if (logging) setup.inflight = log.memory();
    setup.inflight.disk = DiskIdentity::Several();
    queue->Start(setup, [this](const std::string& reason) { broken.push_back(reason); });
    running = true;
  }

  // A command with its data; what is left to do is Kick (or nothing: an active queue looks by itself).
  void Command(uint32_t slot, const std::array<uint8_t, 8>& lun, const Bytes& cdb, const Bytes& out = {},
               uint32_t in_bytes = 0) {
    ScsiRequestHeader header{};
    std::copy(lun.begin(), lun.end(), header.lun);
    header.tag = slot;
    std::copy(cdb.begin(), cdb.end(), header.cdb);
    memory.Put(RequestAt(slot), header);
    ScsiResponse none{};
    none.response = 0xff;
    memory.Put(ResponseAt(slot), none);
    memory.Write(DataAt(slot), out.data(), out.size());
    std::vector<Desc> descs = {{RequestAt(slot), sizeof(header)}};
    if (!out.empty()) descs.push_back({DataAt(slot), static_cast<uint32_t>(out.size())});
    descs.push_back({ResponseAt(slot), sizeof(ScsiResponse), kDescWrite});
    if (in_bytes > 0) descs.push_back({DataAt(slot), in_bytes, kDescWrite});
    guest.SetChain(HeadOf(slot), descs);
    guest.Offer(HeadOf(slot));
  }
  ScsiResponse Response(uint32_t slot) { return memory.Get<ScsiResponse>(ResponseAt(slot)); }
  Bytes Data(uint32_t slot, size_t bytes) {
    Bytes data(bytes);
    memory.Read(DataAt(slot), data.data(), bytes);
    return data;
  }

  void Manage(uint32_t slot, uint32_t function, const std::array<uint8_t, 8>& lun, uint64_t tag = 0) {
    ScsiManagementRequest request{};
    request.type = VIRTIO_SCSI_T_TMF;
    request.subtype = function;
    std::copy(lun.begin(), lun.end(), request.lun);
    request.tag = tag;
    Control(slot, &request, sizeof(request), 1);
  }
  void Control(uint32_t slot, const void* request, uint32_t bytes, uint32_t response_bytes) {
    memory.Write(RequestAt(slot), request, bytes);
    memory.Put<uint8_t>(ResponseAt(slot), 0xff);
    guest.SetChain(HeadOf(slot), {{RequestAt(slot), bytes}, {ResponseAt(slot), response_bytes, kDescWrite}});
    guest.Offer(HeadOf(slot));
  }
  uint8_t Result(uint32_t slot) { return memory.Get<uint8_t>(ResponseAt(slot)); }

  void OfferEventBuffer(uint32_t slot, uint32_t bytes = sizeof(ScsiEvent)) {
    guest.SetChain(HeadOf(slot), {{ResponseAt(slot), bytes, kDescWrite}});
    guest.Offer(HeadOf(slot));
  }
  // "event target reason" of each used event buffer.
  std::vector<std::string> TakeEvents() {
    std::vector<std::string> events;
    while (const auto used = guest.TakeUsed()) {
      const auto event = memory.Get<ScsiEvent>(ResponseAt(used->id / 4));
      char text[64];
      std::snprintf(text, sizeof(text), "%x %u %x", event.event, event.lun[1], event.reason);
      events.emplace_back(used->length == sizeof(event) ? text : "wrong length");
    }
    return events;
  }
};

// Of an engine that was killed.
struct FakeEarlierIo : EarlierIo {
  Task<void> Ended() override {
    while (under_way) co_await Reactor::Current()->Yield();
  }
  bool under_way = false;
};

class ScsiRig {
 public:
  explicit ScsiRig(uint64_t without_features = 0) : without_features_(without_features) {
    control = Reactor::Make(clock, {}).value();
    for (auto& reactor : io) reactor = Reactor::Make(clock, {}).value();
    model = std::make_unique<ScsiModel>("controllers/test", *control,
                                        std::vector<Reactor*>{io[0].get(), io[1].get()}, 2, &earlier);
    for (uint32_t i = 0; i < sides.size(); ++i) {
      sides[i].queue = model->OpenQueue(*io[i % 2], i).value();
      Start(i);
    }
    Settle();
  }
  ~ScsiRig() {
    ReleaseAll();
    for (uint32_t target = 0; target < ScsiModel::kTargetsMax; ++target) Remove(target);
    for (uint32_t i = 0; i < sides.size(); ++i) Stop(i);
    ReleaseAll();
    Turn();
  }
  ScsiRig(const ScsiRig&) = delete;
  ScsiRig& operator=(const ScsiRig&) = delete;

  ScsiSide& events() { return sides[1]; }
  ScsiSide& management() { return sides[0]; }
  ScsiSide& requests(uint32_t index = 0) { return sides[2 + index]; }

  void Start(uint32_t side) {
    sides[side].Start(model->features() & ~without_features_ & ~(uint64_t{1} << kFeatureRingPacked));
  }
  void Stop(uint32_t side) {
    if (std::exchange(sides[side].running, false)) {
      sides[side].queue->Stop([this] { ++drained; });
    }
  }
  // So that task management has nothing to wait for.
  void Settle() {
    clock.AdvanceBy(kNsPerSecond);
    Turn(1);
    for (uint32_t i = 0; i < sides.size(); ++i) io[i % 2]->Activate(*sides[i].queue);
  }
  // Whoever serves the queues dies: nothing of what happens to their requests from now on is seen by the guest, nor by
  // who takes the queues over when they are started.
  void Die() {
    std::vector<Moment> moments;
    for (ScsiSide& side : sides) moments.emplace_back(side.memory, side.log);
    for (uint32_t i = 0; i < sides.size(); ++i) Stop(i);
    ReleaseAll();
    Turn(32);
    for (Moment& moment : moments) moment.Restore();
    for (uint32_t i = 0; i < sides.size(); ++i) {
      sides[i].queue.reset();
      sides[i].queue = model->OpenQueue(*io[i % 2], i).value();
      sides[i].logging = true;
    }
    for (Disk& disk : disks) disk.storage.seen.clear();
  }
  void Turn(int turns = 8) {
    for (int i = 0; i < turns; ++i) {
      clock.AdvanceBy(kNsPerUs);
      control->RunOnce();
      for (auto& reactor : io) reactor->RunOnce();
    }
  }
  void ReleaseAll() {
    for (Disk& disk : disks) {
      disk.storage.hold = false;
      while (disk.storage.CompleteOne()) Turn(2);
    }
  }

  // ---- Targets
  struct Disk {
    scsi::TestDisk storage;
    block::Geometry geometry = scsi::TestGeometry();
    DiskIdentity identity = {};
    std::unique_ptr<block::Pipeline> pipeline;
    std::array<std::unique_ptr<block::PipelineChannel>, 2> channels;
  };
  ScsiDisk DiskOf(uint32_t target, block::AccessMode mode = block::AccessMode::kReadWrite) {
    Disk& disk = disks[target];
    disk.storage.bytes.resize(disk.geometry.size_bytes);
    for (auto& channel : disk.channels) channel.reset();  // of a disk that was here before
    disk.pipeline =
        block::Pipeline::Make(std::make_unique<scsi::TestDevice>(disk.storage, disk.geometry), mode).value();
    for (uint32_t i = 0; i < 2; ++i) disk.channels[i] = disk.pipeline->OpenChannel(*io[i]).value();
    ScsiDisk made;
    made.name = "disks/" + std::to_string(target);
    made.identity.serial = "serial-" + std::to_string(target);
    made.geometry = disk.geometry;
    made.mode = mode;
    made.channel_on = [&disk, this](Reactor& reactor) {
      return DiskChannelRef(disk.channels[&reactor == io[0].get() ? 0 : 1].get(), nullptr, nullptr,
                            disk.identity);
    };
    return made;
  }
  std::string Add(uint32_t target, ScsiDisk disk) {
    std::string result = "running";
    const auto add = [](ScsiModel& scsi, uint32_t index, ScsiDisk what, std::string& out) -> Task<void> {
      auto task = scsi.Add(index, std::move(what));
      const Status status = co_await std::move(task);
      out = status.ok() ? "ok" : std::string(ErrorCodeName(status.error().code));
    };
    Spawn(add(*model, target, std::move(disk), result));
    Turn();
    return result;
  }
  std::string Add(uint32_t target) { return Add(target, DiskOf(target)); }
  void StartRemove(uint32_t target, bool& done, bool tell = true) {
    const auto remove = [](ScsiModel& scsi, uint32_t index, bool said, bool& over) -> Task<void> {
      auto task = scsi.Remove(index, said);
      co_await std::move(task);
      over = true;
    };
    Spawn(remove(*model, target, tell, done));
    Turn();
  }
  bool Remove(uint32_t target, bool tell = true) {
    bool done = false;
    StartRemove(target, done, tell);
    return done;
  }
  void SetGeometry(uint32_t target, const block::Geometry& geometry) {
    Spawn(model->SetGeometry(target, geometry));
    Turn();
  }

  // Serves one command on a request queue: "good", "5/24/00", "response N", "nothing".
  std::string Run(uint32_t index, const std::array<uint8_t, 8>& lun, const Bytes& cdb, const Bytes& out = {},
                  uint32_t in_bytes = 0) {
    ScsiSide& side = requests(index);
    side.Command(0, lun, cdb, out, in_bytes);
    io[index]->Activate(*side.queue);
    Turn();
    const auto used = side.guest.TakeUsed();
    used_bytes = used ? used->length : 0;
    return used ? Outcome(side.Response(0)) : "nothing";
  }
  static std::string Outcome(const ScsiResponse& response) {
    if (response.response != VIRTIO_SCSI_S_OK) return "response " + std::to_string(response.response);
    if (response.status == 0) return response.sense_len == 0 ? "good" : "good with sense";
    if (response.status != 2) return "status " + std::to_string(response.status);
    char text[16];
    std::snprintf(text, sizeof(text), "%x/%02x/%02x", response.sense[2], response.sense[12],
                  response.sense[13]);
    return response.sense_len == 18 && response.sense[0] == 0x70 ? text : "odd sense";
  }

  ManualClock clock;
  std::unique_ptr<Reactor> control;
  std::array<std::unique_ptr<Reactor>, 2> io;
  std::array<Disk, ScsiModel::kTargetsMax> disks;
  FakeEarlierIo earlier;
  std::unique_ptr<ScsiModel> model;
  std::array<ScsiSide, 4> sides;
  uint32_t drained = 0;
  uint32_t used_bytes = 0;

 private:
  const uint64_t without_features_;
};

inline const Bytes kReadyCdb = {0, 0, 0, 0, 0, 0};
inline Bytes ReadCdb(uint8_t lba, uint8_t blocks) {
  return {0x28, 0, 0, 0, 0, lba, 0, 0, blocks, 0};
}
inline Bytes WriteCdb(uint8_t lba, uint8_t blocks) {
  return {0x2a, 0, 0, 0, 0, lba, 0, 0, blocks, 0};
}

}  // namespace cleat::virtio
