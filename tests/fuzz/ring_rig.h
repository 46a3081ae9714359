// SPDX-License-Identifier: Apache-2.0
// A guest made of random bytes against a virtio-blk queue on a null pipeline, over a split or a packed ring: what the two
// fuzz targets have in common. Whatever lies in the rings and in guest memory: no step outside (the regions are heap
// blocks of exact size), no failed check, no request lost - each one that was fetched ends, and the queue drains.
//
// An input: a byte of options, a byte of queue size, then commands:
//   0x00-0x7f  poke: a region (a byte), an offset (two bytes), a length (a byte), then so many bytes
//   0x80-0x9f  a well-formed read or write whose fields are bent by the following bytes, offered to the
//              device
//   0xa0-0xbf  offer the head in the next byte; packed: the next descriptor as it is, with that buffer id
//   0xc0-0xcf  a turn of the reactor
//   0xd0-0xdf  complete what the storage holds
//   0xe0-0xef  sleep and wake up
//   0xf0-0xff  stop, drain and start again
#pragma once

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
#include "tests/unit/virtio/packed_guest_ring.h"
#include "virtio/blk_model.h"
#include "virtio/inflight_log.h"
#include "virtio/packed_inflight_log.h"

namespace cleat::virtio::fuzz {

inline constexpr uint64_t kDescriptors = 0x1000;
inline constexpr uint64_t kAvailable = 0x8000;
inline constexpr uint64_t kUsed = 0xa000;
inline constexpr uint64_t kLow = 0x10000;
inline constexpr uint64_t kRegionBytes = 0x2000;
inline constexpr uint64_t kHigh = kLow + kRegionBytes;  // next to it; behind it nothing
inline constexpr uint64_t kDiskBytes = 1 << 20;
inline constexpr uint32_t kCommandsMax = 256;

// Touches every byte of each segment, so that one that leads outside is noticed; holds requests when told to.
class NullChannel final : public block::Channel {
 public:
  void Submit(block::Request& request) override {
    CLEAT_CHECK(request.offset_bytes <= kDiskBytes &&
                request.length_bytes <= kDiskBytes - request.offset_bytes);
    uint64_t bytes = 0;
    for (const block::Segment& segment : request.segments) bytes += segment.length_bytes;
    const bool transfers = request.op == block::Op::kRead || request.op == block::Op::kWrite;
    CLEAT_CHECK(bytes == (transfers ? request.length_bytes : 0));
    if (hold) {
      held.PushBack(request);
    } else {
      Finish(request);
    }
  }
  bool CompleteAll() {
    bool any = false;
    while (block::Request* request = held.PopFront()) {
      Finish(*request);
      any = true;
    }
    return any;
  }
  bool hold = false;
  block::RequestList held;
  uint8_t sum = 0;

 private:
  void Finish(block::Request& request) {
    for (const block::Segment& segment : request.segments) {
      if (request.op == block::Op::kRead) {
        std::memset(segment.data(), 0x5a, segment.length_bytes);
      } else {
        for (uint32_t i = 0; i < segment.length_bytes; ++i)
          sum = static_cast<uint8_t>(sum + segment.data()[i]);
      }
    }
    request.Complete(block::IoStatus::kOk);
  }
};

class Rig {
 public:
  Rig(uint8_t options, uint16_t size, bool packed)
      : options_(options),
        size_(size),
        packed_(packed),
        memory_({{kLow, kRegionBytes},
                 {kHigh, kRegionBytes},
                 {kDescriptors, DescriptorBytes(size)},
                 {kAvailable, AvailableBytes(size)},
                 {kUsed, UsedBytes(size)}}),
        guest_(memory_, size, kDescriptors, kAvailable, kUsed),
        packed_guest_(memory_, size, kDescriptors, kAvailable, kUsed),
        inflight_(PackedInflightLog::Bytes(size) / 8),
        dirty_((kHigh + kRegionBytes) >> 15 | 1) {
    block::Geometry geometry;
    geometry.size_bytes = kDiskBytes;
    geometry.discard = geometry.write_zeroes = (options & 1) != 0;
    geometry.discard_max_bytes = geometry.write_zeroes_max_bytes = 1 << 16;
    auto top = std::make_unique<NullChannel>();
    storage_ = top.get();
    channel_ =
        std::make_unique<block::PipelineChannel>(geometry, block::AccessMode::kReadWrite, std::move(top));
    model_ = std::make_unique<BlkModel>(geometry, block::AccessMode::kReadWrite, "fuzz", 1,
                                        [this](Reactor&) { return channel_.get(); });
    queue_ = model_->OpenQueue(*reactor_, 0).value();
    storage_->hold = (options & 2) != 0;
    Start(packed ? kPackedStart : 0);
  }
  ~Rig() { StopAndDrain(); }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  void Command(uint8_t command, FuzzInput& input) {
    if (command < 0x80) {
      Poke(input);
    } else if (command < 0xa0) {
      OfferRequest(command, input);
    } else if (command < 0xc0) {
      OfferRaw(input.Byte());
    } else if (command < 0xd0) {
      for (const bool near : {false, true}) queue_->Hint(near);  // as among other queues
      reactor_->RunOnce();
    } else if (command < 0xe0) {
      storage_->CompleteAll();
    } else if (command < 0xf0) {
      clock_.AdvanceBy(kNsPerMs);
      reactor_->RunOnce();
      reactor_->RunOnce();
      reactor_->Activate(*queue_);
    } else {
      const uint32_t next = queue_->next_available();
      StopAndDrain();
      Start(next);
    }
  }

 private:
  void Start(uint32_t next_available) {
    QueueSetup setup;
    setup.features = model_->features();
    if (!packed_) setup.features &= ~(uint64_t{1} << kFeatureRingPacked);
    if ((options_ & 4) != 0) setup.features &= ~(uint64_t{1} << kFeatureEventIdx);
    if ((options_ & 8) != 0) setup.features &= ~(uint64_t{1} << kFeatureIndirectDesc);
    setup.memory = memory_.map();
    setup.ring = packed_ ? packed_guest_.memory() : guest_.memory();
    setup.next_available = next_available;
    if ((options_ & 16) != 0) {
      setup.inflight = {reinterpret_cast<uint8_t*>(inflight_.data()), inflight_.size() * 8, nullptr};
    }
    if ((options_ & 32) != 0) setup.dirty_log = {dirty_.data(), dirty_.size(), nullptr};
    queue_->Start(setup, [](const std::string& reason) { CLEAT_CHECK(!reason.empty()); });
  }
  void StopAndDrain() {
    bool drained = false;
    queue_->Stop([&drained] { drained = true; });
    while (!drained) CLEAT_CHECK(storage_->CompleteAll());
    CLEAT_CHECK(queue_->in_flight() == 0 && channel_->in_flight() == 0);
  }

  void Poke(FuzzInput& input) {
    const auto entries = memory_.map()->entries();
    const block::MemoryRegion& region = *entries[input.Byte() % entries.size()].region;
    uint64_t at = input.Word();
    for (uint32_t left = input.Byte(); left > 0; --left, ++at) {
      region.base()[at % region.size_bytes()] = input.Byte();
    }
  }

  // A chain of up to four descriptors that is right but for what the input changes.
  void OfferRequest(uint8_t command, FuzzInput& input) {
    const uint32_t type = input.Byte();
    const uint64_t sector = input.Word();
    memory_.Put(kLow, virtio_blk_outhdr{type, 0, sector});
    const uint16_t data_flags = (command & 1) != 0 ? kDescWrite : 0;
    const uint32_t length = input.Word();
    const uint64_t data = kLow + 0x100 + input.Word() % (kRegionBytes * 2);
    std::vector<Desc> descs = {{kLow, 16}, {data, length, data_flags}, {kLow + 64, 1, kDescWrite}};
    if ((command & 8) != 0) descs.insert(descs.begin() + 1, Desc{data + 512, length, data_flags});
    const uint8_t bend = input.Byte();
    Desc& bent = descs[bend % descs.size()];
    if ((bend & 16) != 0) bent.flags ^= input.Byte();
    if ((bend & 32) != 0) bent.length = input.Word();
    if ((bend & 64) != 0) bent.address += input.Word();
    if ((bend & 128) != 0) bent.address = ~uint64_t{input.Byte()};
    if (packed_) return OfferPacked(command, input.Byte(), descs);
    if ((command & 2) != 0) {
      guest_.SetIndirectChain(static_cast<uint16_t>(input.Byte() % size_), kHigh - 24, descs);
    } else if (descs.size() <= size_) {
      guest_.SetChain(0, descs);
    }
    guest_.Offer(0);
  }

  void OfferPacked(uint8_t command, uint8_t id, std::vector<Desc>& descs) {
    if ((command & 2) != 0) descs = {packed_guest_.Table(kHigh - 24, descs)};
    if (descs.size() <= size_) packed_guest_.Offer(descs, static_cast<uint16_t>(id % (size_ + 1)));
  }

  void OfferRaw(uint8_t id) {
    if (!packed_) return guest_.Offer(id);
    const PackedIndex at = packed_guest_.available();
    Desc desc = memory_.Get<Desc>(kDescriptors + kDescriptorBytes * at.index);
    desc.flags =
        desc.next & static_cast<uint16_t>(~(kDescAvail | kDescUsed));  // where a packed one's flags are
    packed_guest_.Offer({desc}, id);
  }

  const uint8_t options_;
  const uint16_t size_;
  const bool packed_;
  // Made once: their descriptors cost more than all the rest of a run.
  static inline ManualClock clock_;
  static inline const std::unique_ptr<Reactor> reactor_ = Reactor::Make(clock_, {}).value();
  GuestMemory memory_;
  GuestRing guest_;  // one of the two
  PackedGuestRing packed_guest_;
  std::vector<uint64_t> inflight_;
  std::vector<uint8_t> dirty_;
  NullChannel* storage_ = nullptr;
  std::unique_ptr<block::PipelineChannel> channel_;
  std::unique_ptr<BlkModel> model_;
  std::unique_ptr<DeviceQueue> queue_;
};

// One input.
inline void Run(const uint8_t* data, size_t size, bool packed) {
  FuzzInput input(data, size);
  const uint8_t options = input.Byte();
  const uint8_t chosen = input.Byte();
  Rig rig(options, static_cast<uint16_t>(packed ? 1 + chosen % 64 : 1U << chosen % 7), packed);
  for (uint32_t i = 0; i < kCommandsMax && !input.empty(); ++i) rig.Command(input.Byte(), input);
}

}  // namespace cleat::virtio::fuzz
