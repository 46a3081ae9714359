// SPDX-License-Identifier: Apache-2.0
// A virtio-blk queue with everything around it, for tests: a disk in memory that answers at once or when it
// is told to, a guest that writes requests, a reactor in virtual time.
#pragma once

#include <linux/virtio_blk.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "block/pipeline.h"
#include "guest_ring.h"
#include "packed_guest_ring.h"
#include "reactor/reactor.h"
#include "virtio/blk_model.h"

namespace cleat::virtio {

// The back end. One channel of a disk whose bytes may be shared with other channels.
class MemoryChannel final : public block::Channel {
 public:
  struct Seen {
    block::Op op;
    uint64_t offset, length;
    bool fua, may_unmap;
    bool operator==(const Seen&) const = default;
  };

  explicit MemoryChannel(std::vector<uint8_t>& bytes) : bytes_(bytes) {}

  bool wants_prefetch() const override { return true; }
  void Prefetch(block::Op op, uint64_t offset_bytes) override {
    prefetched.push_back({op, offset_bytes, seen.size()});
  }
  void Submit(block::Request& request) override {
    seen.push_back({request.op, request.offset_bytes, request.length_bytes, request.fua, request.may_unmap});
    if (hold) {
      held.PushBack(request);
    } else {
      Finish(request);
    }
  }
  // Completes the oldest held request; false when there is none.
  bool CompleteOne() {
    block::Request* request = held.PopFront();
    if (request != nullptr) Finish(*request);
    return request != nullptr;
  }
  uint32_t CompleteAll() {
    uint32_t count = 0;
    while (CompleteOne()) ++count;
    return count;
  }

  bool hold = false;
  block::IoStatus result = block::IoStatus::kOk;
  std::vector<Seen> seen;
  struct Prefetched {
    block::Op op;
    uint64_t offset;
    size_t after;  // so many requests
    bool operator==(const Prefetched&) const = default;
  };
  std::vector<Prefetched> prefetched;
  block::RequestList held;

 private:
  void Finish(block::Request& request) {
    if (result == block::IoStatus::kOk) Execute(request);
    request.Complete(result);
  }
  void Execute(const block::Request& request) {
    uint8_t* at = bytes_.data() + request.offset_bytes;
    if (request.op == block::Op::kWriteZeroes || request.op == block::Op::kDiscard) {
      std::memset(at, 0, request.length_bytes);
      return;
    }
    for (const block::Segment& segment : request.segments) {
      if (request.op == block::Op::kRead) std::memcpy(segment.data(), at, segment.length_bytes);
      if (request.op == block::Op::kWrite) std::memcpy(at, segment.data(), segment.length_bytes);
      at += segment.length_bytes;
    }
  }
  std::vector<uint8_t>& bytes_;
};

struct CountingNotifier final : Notifier {
  void Call() override { ++calls; }
  uint32_t calls = 0;
};

struct RangeEntry {  // struct virtio_blk_discard_write_zeroes
  uint64_t sector;
  uint32_t sectors;
  uint32_t flags;
};

class BlkRig {
 public:
  static constexpr uint16_t kSize = 64;
  static constexpr uint64_t kSectors = 2048;
  static constexpr uint32_t kSlots = kSize / 3;  // requests of three descriptors each

  static block::Geometry DefaultGeometry() {
    block::Geometry geometry;
    geometry.size_bytes = kSectors * 512;
    geometry.discard = geometry.write_zeroes = geometry.write_cache = true;
    geometry.discard_granularity_bytes = 4096;
    geometry.discard_max_bytes = geometry.write_zeroes_max_bytes = 64 * 512;
    return geometry;
  }

  explicit BlkRig(const block::Geometry& geometry = DefaultGeometry(),
                  block::AccessMode mode = block::AccessMode::kReadWrite,
                  std::vector<uint8_t>* shared_disk = nullptr, bool packed = false,
                  uint8_t* shared_memory = nullptr)
      : disk(shared_disk == nullptr ? own_disk_ : *shared_disk),
        memory(GuestLayout::Regions(kSize), shared_memory),
        packed_(packed) {
    if (shared_disk == nullptr) disk.resize(geometry.size_bytes);
    reactor = Reactor::Make(clock, {}).value();
    auto top = std::make_unique<MemoryChannel>(disk);
    storage = top.get();
    channel = std::make_unique<block::PipelineChannel>(geometry, mode, std::move(top));
    model = std::make_unique<BlkModel>(geometry, mode, "serial-0123456789-too-long", 1, [this](Reactor&) {
      return DiskChannelRef(channel.get(), nullptr, nullptr, identity);
    });
    queue = model->OpenQueue(*reactor, 0).value();
  }
  ~BlkRig() {
    if (running) StopAndDrain();
  }
  BlkRig(const BlkRig&) = delete;
  BlkRig& operator=(const BlkRig&) = delete;

  QueueSetup Setup() {
    QueueSetup setup;
    setup.features = model->features();
    if (!packed_) setup.features &= ~(uint64_t{1} << kFeatureRingPacked);
    setup.memory = memory.map();
    setup.ring = packed_ ? packed_guest.memory() : guest.memory();
    setup.next_available = packed_ ? kPackedStart : 0;
    setup.notifier = &notifier;
    return setup;
  }
  void Start() { Start(Setup()); }
  void Start(const QueueSetup& setup) {
    queue->Start(setup, [this](const std::string& reason) { broken.push_back(reason); });
    running = true;
  }
  void Stop() {
    running = false;
    queue->Stop([this] { ++drained; });
  }
  void StopAndDrain() {
    Stop();
    storage->hold = false;
    while (queue->in_flight() > 0 && storage->CompleteAll() > 0) {
    }
    reactor->RunOnce();
  }
  // Some turns, a microsecond each.
  void Turn(int turns = 3) {
    for (int i = 0; i < turns; ++i) {
      clock.AdvanceBy(kNsPerUs);
      for (const bool near : {false, true})
        if (queue != nullptr) queue->Hint(near);  // as among other queues
      reactor->RunOnce();
    }
  }
  void SleepNow() {  // long enough for the queue to be armed
    clock.AdvanceBy(kNsPerMs);
    reactor->RunOnce();
    clock.AdvanceBy(kNsPerMs);
    reactor->RunOnce();
  }

  // ---- The guest's requests. A slot has its own descriptors, header, data and status.
  static uint64_t HeaderAt(uint32_t slot) { return GuestLayout::kLow + uint64_t{64} * slot; }
  static uint64_t StatusAt(uint32_t slot) { return HeaderAt(slot) + 32; }
  static uint64_t DataAt(uint32_t slot) { return GuestLayout::kHigh + uint64_t{16384} * slot; }
  static uint16_t HeadOf(uint32_t slot) { return static_cast<uint16_t>(3 * slot); }

  void PutHeader(uint32_t slot, uint32_t type, uint64_t sector) {
    memory.Put(HeaderAt(slot), virtio_blk_outhdr{type, 0, sector});
    memory.Put<uint8_t>(StatusAt(slot), 0xff);
  }
  void Prepare(uint32_t slot, uint32_t type, uint64_t sector, uint32_t data_bytes, bool device_writes) {
    PutHeader(slot, type, sector);
    std::vector<Desc> descs = {{HeaderAt(slot), 16}};
    const uint16_t flags = device_writes ? kDescWrite : 0;
    if (data_bytes > 0) descs.push_back({DataAt(slot), data_bytes, flags});
    descs.push_back({StatusAt(slot), 1, kDescWrite});
    SetChain(HeadOf(slot), descs);
  }
  // A chain, and making it available: in a packed ring it is written only then, with its head as the buffer id.
  void SetChain(uint16_t head, const std::vector<Desc>& descs) {
    if (packed_) {
      chains_[head] = descs;
    } else {
      guest.SetChain(head, descs);
    }
  }
  void SetIndirectChain(uint16_t head, uint64_t table, const std::vector<Desc>& descs) {
    if (packed_) {
      chains_[head] = {packed_guest.Table(table, descs)};
    } else {
      guest.SetIndirectChain(head, table, descs);
    }
  }
  void OfferHead(uint16_t head) {
    if (packed_) {
      packed_guest.Offer(chains_[head], head);
    } else {
      guest.Offer(head);
    }
  }
  std::vector<Used> TakeAllUsed() { return packed_ ? packed_guest.TakeAllUsed() : guest.TakeAllUsed(); }
  void Offer(uint32_t slot, uint32_t type, uint64_t sector, uint32_t data_bytes, bool device_writes) {
    Prepare(slot, type, sector, data_bytes, device_writes);
    OfferHead(HeadOf(slot));
  }
  void Read(uint32_t slot, uint64_t sector, uint32_t bytes) {
    Offer(slot, VIRTIO_BLK_T_IN, sector, bytes, true);
  }
  void Write(uint32_t slot, uint64_t sector, uint32_t bytes, uint8_t fill) {
    for (uint32_t i = 0; i < bytes; ++i) memory.Put<uint8_t>(DataAt(slot) + i, fill);
    Offer(slot, VIRTIO_BLK_T_OUT, sector, bytes, false);
  }
  void Flush(uint32_t slot) { Offer(slot, VIRTIO_BLK_T_FLUSH, 0, 0, false); }
  void Ranges(uint32_t slot, uint32_t type, const std::vector<RangeEntry>& ranges) {
    const auto bytes = static_cast<uint32_t>(ranges.size() * sizeof(RangeEntry));
    memory.Write(DataAt(slot), ranges.data(), bytes);
    Offer(slot, type, 0, bytes, false);
  }
  uint8_t StatusOf(uint32_t slot) { return memory.Get<uint8_t>(StatusAt(slot)); }
  // Serves what was offered; the status of `slot`, which has to be the only one answered, with that length.
  uint8_t Answer(uint32_t slot, uint32_t used_length) {
    Turn();
    const std::vector<Used> used = TakeAllUsed();
    const std::vector<Used> expected = {{HeadOf(slot), used_length}};
    if (used != expected) return 0xee;
    return StatusOf(slot);
  }

 private:
  std::vector<uint8_t> own_disk_;

 public:
  std::vector<uint8_t>& disk;
  ManualClock clock;
  std::unique_ptr<Reactor> reactor;
  GuestMemory memory;
  GuestRing guest = GuestLayout::Ring(memory, kSize);  // one of the two
  PackedGuestRing packed_guest{memory, kSize};
  CountingNotifier notifier;
  MemoryChannel* storage = nullptr;
  DiskIdentity identity;  // of queues that are opened from now on
  std::unique_ptr<block::PipelineChannel> channel;
  std::unique_ptr<BlkModel> model;
  std::unique_ptr<DeviceQueue> queue;
  std::vector<std::string> broken;
  uint32_t drained = 0;
  bool running = false;

 private:
  const bool packed_;
  std::map<uint16_t, std::vector<Desc>> chains_;  // of a packed ring, by their heads
};

}  // namespace cleat::virtio
