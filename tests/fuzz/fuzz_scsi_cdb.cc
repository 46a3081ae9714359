// SPDX-License-Identifier: Apache-2.0
// A guest made of random bytes against a virtio-scsi device: any CDB, with any data, cut into any descriptors, to any
// address; task management and targets that come and go between. The ring itself is in order (fuzz_split_ring is for
// rings that are not). Whatever comes: no step outside the guest's buffers or the disk, no failed check, every chain
// answered with a response that makes sense, and the queues drain.
//
// An input: a byte of options, then commands, each a byte and what it takes:
//   0x00-0x9f  a SCSI command: data-out and data-in lengths (a word each), a byte of layout, an opcode as an index of
//              the table or as it is, then the bytes of the CDB and of the data-out
//   0xa0-0xaf  task management: function, address, tag
//   0xb0-0xbf  attach or detach the target, or change its size
//   0xc0-0xdf  a turn of the reactor        0xe0-0xef  complete what the storage holds
//   0xf0-0xff  stop, drain and start the request queue again
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "block/pipeline.h"
#include "reactor/reactor.h"
#include "tests/fuzz/input.h"
#include "tests/unit/virtio/guest_ring.h"
#include "virtio/scsi_format.h"
#include "virtio/scsi_model.h"

namespace cleat::virtio {
namespace {

constexpr uint64_t kDiskBytes = 1 << 20;
constexpr uint32_t kCommandsMax = 200;
constexpr uint16_t kSize = 64;
constexpr uint32_t kDataMax = 0x4000;
constexpr uint64_t kBuffers = 0x100000;

// A disk whose pages all read the same; touches each segment from its first to its last byte.
class FuzzDevice final : public block::Device {
 public:
  explicit FuzzDevice(const block::Geometry& geometry) : Device("disks/fuzz", geometry) {}
  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    struct FuzzChannel final : block::Channel {
      explicit FuzzChannel(FuzzDevice& d) : device(d) {}
      void Submit(block::Request& request) override { device.Take(request); }
      FuzzDevice& device;
    };
    return std::unique_ptr<block::Channel>(std::make_unique<FuzzChannel>(*this));
  }
  bool CompleteAll() {
    bool any = false;
    while (block::Request* request = held_.PopFront()) {
      Finish(*request);
      any = true;
    }
    return any;
  }
  bool hold = false;

 private:
  void Take(block::Request& request) {
    CLEAT_CHECK(request.offset_bytes <= kDiskBytes &&
                request.length_bytes <= kDiskBytes - request.offset_bytes);
    uint64_t bytes = 0;
    for (const block::Segment& segment : request.segments) bytes += segment.length_bytes;
    const bool transfers = request.op == block::Op::kRead || request.op == block::Op::kWrite;
    if (transfers) CLEAT_CHECK(bytes == request.length_bytes);
    if (request.op == block::Op::kDiscard) CLEAT_CHECK(request.length_bytes <= geometry().discard_max_bytes);
    if (hold) {
      held_.PushBack(request);
    } else {
      Finish(request);
    }
  }
  void Finish(block::Request& request) {
    for (const block::Segment& segment : request.segments) {
      if (request.op == block::Op::kRead) {
        std::memset(segment.data(), 0, segment.length_bytes);
      } else {
        for (uint32_t i = 0; i < segment.length_bytes; i += 128) Touch(segment.data()[i]);
        if (segment.length_bytes > 0) Touch(segment.data()[segment.length_bytes - 1]);
      }
    }
    request.Complete(sum_ == 0x5a ? block::IoStatus::kIoError : block::IoStatus::kOk);
  }
  void Touch(uint8_t byte) { sum_ = static_cast<uint8_t>(sum_ + byte); }
  block::RequestList held_;
  uint8_t sum_ = 0;
};

// One queue's ring, each in memory of its own.
struct Side {
  GuestMemory memory{{{kBuffers, 0x10000},
                      {0x1000, DescriptorBytes(kSize)},
                      {0x8000, AvailableBytes(kSize)},
                      {0xa000, UsedBytes(kSize)}}};
  GuestRing ring{memory, kSize, 0x1000, 0x8000, 0xa000};
  std::unique_ptr<DeviceQueue> queue;
};

class Rig {
 public:
  explicit Rig(uint8_t options) : model_("controllers/fuzz", *reactor_, {reactor_.get()}, 1) {
    geometry_.size_bytes = kDiskBytes;
    geometry_.logical_block_bytes = (options & 1) != 0 ? 4096 : 512;
    geometry_.physical_block_bytes = 4096;
    geometry_.discard = geometry_.write_zeroes = (options & 2) != 0;
    geometry_.discard_granularity_bytes = 4096;
    geometry_.discard_max_bytes = geometry_.write_zeroes_max_bytes = 1 << 17;
    geometry_.write_cache = (options & 4) != 0;
    mode_ = (options & 8) != 0 ? block::AccessMode::kReadOnly : block::AccessMode::kReadWrite;
    auto device = std::make_unique<FuzzDevice>(geometry_);
    device_ = device.get();
    pipeline_ = block::Pipeline::Make(std::move(device), mode_).value();
    channel_ = pipeline_->OpenChannel(*reactor_).value();
    device_->hold = (options & 16) != 0;
    for (uint32_t i = 0; i < 3; ++i) {
      sides_[i].queue = model_.OpenQueue(*reactor_, i).value();
      Start(sides_[i]);
    }
    Attach();
  }
  ~Rig() {
    Detach();
    for (Side& side : sides_) StopAndDrain(side);
    CheckUsed();
    CLEAT_CHECK(channel_->in_flight() == 0);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  void Do(uint8_t what, FuzzInput& input) {
    if (what < 0xa0) {
      OfferCommand(what, input);
    } else if (what < 0xb0) {
      OfferManagement(input);
    } else if (what < 0xb6) {
      Detach();
      Attach();
    } else if (what < 0xc0) {
      Finish(model_.SetGeometry(0, geometry_));
    } else if (what < 0xe0) {
      Turn();
    } else if (what < 0xf0) {
      device_->CompleteAll();
    } else {
      StopAndDrain(sides_[2]);
      Start(sides_[2]);
    }
    CheckUsed();
  }

 private:
  static constexpr uint64_t kHeader = kBuffers;
  static constexpr uint64_t kResponse = kBuffers + 0x80;
  static constexpr uint64_t kData = kBuffers + 0x100;

  void Turn() {
    clock_.AdvanceBy(kNsPerUs);
    reactor_->RunOnce();
  }
  void Start(Side& side) {
    QueueSetup setup;
    setup.features = model_.features() & ~(uint64_t{1} << kFeatureRingPacked);
    setup.memory = side.memory.map();
    setup.ring = side.ring.memory();
    setup.next_available = side.queue->next_available();
    side.queue->Start(setup, [](const std::string& reason) { CLEAT_CHECK(!reason.empty()); });
  }
  void StopAndDrain(Side& side) {
    bool drained = false;
    side.queue->Stop([&drained] { drained = true; });
    int turns = 0;
    while (!drained) {
      CLEAT_CHECK(++turns < 100000);
      device_->CompleteAll();
      Turn();
    }
    CLEAT_CHECK(side.queue->in_flight() == 0);
  }
  void Finish(Task<void> task) {
    bool done = false;
    const auto run = [](Task<void> what, bool& over) -> Task<void> {
      co_await std::move(what);
      over = true;
    };
    Spawn(run(std::move(task), done));
    int turns = 0;
    while (!done) {
      CLEAT_CHECK(++turns < 100000);
      device_->CompleteAll();
      Turn();
    }
  }
  void Attach() {
    ScsiDisk disk;
    disk.name = "disks/fuzz";
    disk.identity.serial = "fuzz";
    disk.geometry = geometry_;
    disk.mode = mode_;
    disk.channel_on = [this](Reactor&) { return channel_.get(); };
    const auto add = [](ScsiModel& model, ScsiDisk what) -> Task<void> {
      auto task = model.Add(0, std::move(what));
      const Status added = co_await std::move(task);
      CLEAT_CHECK(added.ok());
    };
    Finish(add(model_, std::move(disk)));
  }
  void Detach() { Finish(model_.Remove(0)); }

  // One command at a time is laid out; up to eight lie in the ring, over the same data.
  void OfferCommand(uint8_t what, FuzzInput& input) {
    const uint32_t slot = what % 8;
    if (busy_[slot]) return Turn();
    Side& side = sides_[2];
    const uint32_t out_bytes = (what & 0x40) != 0 ? input.Word() % kDataMax : 0;
    const uint32_t in_bytes = (what & 0x20) != 0 ? input.Word() % kDataMax : 0;
    const uint8_t layout = input.Byte();
    ScsiRequestHeader header{};
    header.lun[0] = 1;
    header.tag = slot;
    if ((layout & 0x80) != 0) {
      for (uint32_t i = 0; i < 4; ++i) header.lun[i] = input.Byte();
    }
    const auto commands = scsi::AllCommands();
    const uint8_t opcode = input.Byte();
    header.cdb[0] = (layout & 0x40) != 0 ? opcode : commands[opcode % commands.size()].opcode;
    for (uint32_t i = 1; i < 16; ++i) header.cdb[i] = input.Byte();
    const uint64_t header_at = kHeader + 0x1000 + 0x100 * slot;
    const uint64_t response_at = header_at + 0x80;
    side.memory.Put(header_at, header);
    ScsiResponse untouched{};
    untouched.response = 0xff;
    side.memory.Put(response_at, untouched);
    for (uint32_t i = 0; i < std::min<uint32_t>(out_bytes, 64); ++i) {
      *side.memory.At(kData + 0x2000 + i) = input.Byte();
    }
    std::vector<Desc> descs = {{header_at, sizeof(header)}};
    AddData(descs, kData + 0x2000, out_bytes, layout, 0);
    descs.push_back({response_at, sizeof(ScsiResponse), kDescWrite});
    AddData(descs, kData + 0x2000, in_bytes, layout, kDescWrite);
    side.ring.SetChain(static_cast<uint16_t>(8 * slot), descs);
    side.ring.Offer(static_cast<uint16_t>(8 * slot));
    busy_[slot] = true;
    data_bytes_[slot] = out_bytes + in_bytes;
    reactor_->Activate(*side.queue);
    Turn();
  }
  static void AddData(std::vector<Desc>& descs, uint64_t at, uint32_t bytes, uint8_t layout, uint16_t flags) {
    const uint32_t pieces = 1 + layout % 3;
    for (uint32_t i = 0; i < pieces && bytes > 0; ++i) {
      const uint32_t piece = i + 1 == pieces ? bytes : std::min<uint32_t>(bytes, 1 + 37U * (layout & 0x3c));
      descs.push_back({at, piece, flags});
      at += piece;
      bytes -= piece;
    }
  }
  void OfferManagement(FuzzInput& input) {
    Side& side = sides_[0];
    while (managing_) {  // one at a time
      device_->CompleteAll();
      Turn();
      CheckUsed();
    }
    ScsiManagementRequest request{};
    request.type = input.Byte() % 3;
    request.subtype = input.Byte() % 9;
    request.lun[0] = 1;
    request.lun[1] = input.Byte() % 4 / 3;
    request.lun[3] = input.Byte() % 4 / 3;
    request.tag = input.Byte() % 8;
    side.memory.Put(kHeader, request);
    side.ring.SetChain(0, {{kHeader, sizeof(request)}, {kResponse, 5, kDescWrite}});
    side.ring.Offer(0);
    managing_ = true;
    reactor_->Activate(*side.queue);
    Turn();
  }
  // Every answer makes sense.
  void CheckUsed() {
    Side& side = sides_[2];
    while (const auto used = side.ring.TakeUsed()) {
      const uint32_t slot = used->id / 8;
      CLEAT_CHECK(used->id % 8 == 0 && slot < 8 && busy_[slot]);
      busy_[slot] = false;
      const auto response = side.memory.Get<ScsiResponse>(kHeader + 0x1000 + 0x100 * slot + 0x80);
      CLEAT_CHECK(response.response <= VIRTIO_SCSI_S_FAILURE);
      CLEAT_CHECK(response.resid <= data_bytes_[slot]);
      CLEAT_CHECK(used->length >= sizeof(response) && used->length <= sizeof(response) + data_bytes_[slot]);
      const bool check = response.response == VIRTIO_SCSI_S_OK && response.status == 2;
      CLEAT_CHECK(check ? response.sense_len >= 8 && response.sense_len <= 32 : response.sense_len == 0);
      if (check) CLEAT_CHECK((response.sense[0] & 0x70) == 0x70 && response.resid == data_bytes_[slot]);
    }
    while (sides_[0].ring.TakeUsed()) managing_ = false;
  }

  // Made once: their descriptors cost more than all the rest of a run.
  static inline ManualClock clock_;
  static inline const std::unique_ptr<Reactor> reactor_ = Reactor::Make(clock_, {}).value();
  block::Geometry geometry_;
  block::AccessMode mode_ = block::AccessMode::kReadWrite;
  FuzzDevice* device_ = nullptr;
  std::unique_ptr<block::Pipeline> pipeline_;
  std::unique_ptr<block::PipelineChannel> channel_;
  ScsiModel model_;
  Side sides_[3];
  bool busy_[8] = {};
  bool managing_ = false;
  uint32_t data_bytes_[8] = {};
};

}  // namespace
}  // namespace cleat::virtio

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cleat::FuzzInput;
  FuzzInput input(data, size);
  cleat::virtio::Rig rig(input.Byte());
  for (uint32_t i = 0; i < cleat::virtio::kCommandsMax && !input.empty(); ++i) rig.Do(input.Byte(), input);
  return 0;
}
