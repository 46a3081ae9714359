// SPDX-License-Identifier: Apache-2.0
// A disk as a front end has it, for the tests of back ends: requests with buffers cut in any way, and a random load
// that is checked against a copy in memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "block/pipeline.h"
#include "reactor/reactor.h"

namespace cleat::test {

struct Io {
  // On the channel's reactor. It stays until it is `done`.
  void Submit(block::PipelineChannel& channel, block::Op op, uint64_t offset, uint64_t length) {
    done = false;
    request.op = op;
    request.offset_bytes = offset;
    request.length_bytes = length;
    request.segments = segments;
    request.Push(
        [](block::Request&, const block::Frame& frame) {
          auto& finished = *static_cast<Io*>(frame.layer);
          finished.done = true;
          if (finished.on_done) finished.on_done();
        },
        this);
    channel.Submit(request);
  }
  block::IoStatus status() const { return request.status; }

  block::Request request;
  std::vector<block::Segment> segments;
  bool done = false;
  std::function<void()> on_done;
};

// Page-aligned memory that requests point into. kPinned: it may be registered.
enum class Pages : uint8_t { kAny, kPinned };
class Arena {
 public:
  explicit Arena(uint64_t bytes, Pages pages = Pages::kAny)
      : memory_(static_cast<uint8_t*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))),
        region_(block::MemoryRegion::Borrow(
            memory_, bytes,
            pages == Pages::kPinned ? std::make_unique<block::MemoryRegistration>("arena") : nullptr)) {
    std::memset(memory_, 0xa5, bytes);
  }
  ~Arena() { std::free(memory_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  uint8_t* data() { return memory_; }
  const block::MemoryRegion& region() const { return *region_; }

 private:
  uint8_t* memory_;
  std::shared_ptr<block::MemoryRegion> region_;
};

class TestDisk {
 public:
  // On `reactor`; `step` makes time pass while a request is waited for.
  TestDisk(std::unique_ptr<block::Device> device, Reactor& reactor, std::function<void()> step,
           block::AccessMode mode = block::AccessMode::kReadWrite)
      : step_(std::move(step)) {
    auto pipeline = block::Pipeline::Make(std::move(device), mode);
    CLEAT_CHECK(pipeline.ok());
    own_ = std::move(pipeline).value();
    pipeline_ = own_.get();
    OpenChannel(reactor);
  }
  // One channel of several: `pipeline` outlives it.
  TestDisk(block::Pipeline& pipeline, Reactor& reactor, std::function<void()> step)
      : step_(std::move(step)), pipeline_(&pipeline) {
    OpenChannel(reactor);
  }

  block::Pipeline& pipeline() { return *pipeline_; }
  block::PipelineChannel& channel() { return *channel_; }
  void CloseChannel() { channel_.reset(); }

  void Start(Io& io, block::Op op, uint64_t offset, uint64_t length) {
    io.Submit(*channel_, op, offset, length);
  }

  block::IoStatus Wait(Io& io) {
    while (!io.done) step_();
    return io.status();
  }

  // One request on the arena's memory, in one piece.
  block::IoStatus Do(block::Op op, uint64_t offset, uint64_t length, Arena* arena = nullptr,
                     uint64_t at = 0) {
    Io io;
    if (arena != nullptr) io.segments = {{&arena->region(), at, static_cast<uint32_t>(length)}};
    Start(io, op, offset, length);
    return Wait(io);
  }

  void Step() { step_(); }

 private:
  void OpenChannel(Reactor& reactor) {
    auto channel = pipeline_->OpenChannel(reactor);
    CLEAT_CHECK(channel.ok());
    channel_ = std::move(channel).value();
  }

  std::function<void()> step_;
  std::unique_ptr<block::Pipeline> own_;
  block::Pipeline* pipeline_ = nullptr;
  std::unique_ptr<block::PipelineChannel> channel_;
};

// Random requests on [from, from + bytes) of a disk, many at a time, none over another's range. What is read must be
// what was written last, zeroes where it was zeroed; a discarded range reads as zero on the back ends tested here. Filters
// for which it doesn't are tested without discards.
class RandomLoad {
 public:
  enum class Discards : uint8_t { kReadZero, kNone };
  RandomLoad(TestDisk& disk, uint64_t seed, uint64_t from, uint64_t bytes,
             Discards discards = Discards::kReadZero, Pages pages = Pages::kAny)
      : disk_(disk),
        random_(seed),
        from_(from),
        discards_(discards),
        reference_(bytes, 0),
        arena_(kDepth * kSlotBytes, pages) {}

  void Run(int requests) {
    std::vector<std::unique_ptr<Slot>> slots;
    for (uint64_t i = 0; i < kDepth; ++i) slots.push_back(std::make_unique<Slot>(i * kSlotBytes));
    for (int i = 0; i < requests && !testing::Test::HasFailure();) {
      Slot& slot = *slots[random_.Below(kDepth)];
      if (slot.busy && !slot.io.done) {
        disk_.Step();
        continue;
      }
      Check(slot);
      if (StartOne(slot, slots)) ++i;
    }
    for (auto& slot : slots) {
      if (!slot->busy) continue;
      disk_.Wait(slot->io);
      Check(*slot);
    }
    EXPECT_EQ(disk_.channel().in_flight(), 0U);
  }

  const std::vector<uint8_t>& reference() const { return reference_; }

 private:
  static constexpr uint64_t kDepth = 24;
  static constexpr uint64_t kSlotBytes = 1 << 20;
  static constexpr uint64_t kIoMax = 400 * 1024;

  struct Slot {
    explicit Slot(uint64_t m) : memory(m) {}
    const uint64_t memory;  // where its part of the arena begins
    Io io;
    bool busy = false;
    uint64_t offset = 0;  // in the reference
    uint64_t length = 0;
  };

  bool StartOne(Slot& slot, const std::vector<std::unique_ptr<Slot>>& slots) {
    const uint64_t block = disk_.channel().geometry().logical_block_bytes;
    // Sizes over all orders of magnitude, small ones often.
    const uint64_t blocks_max = std::min<uint64_t>(kIoMax, reference_.size()) / block;
    slot.length = block * random_.Between(1, random_.Between(1, random_.Between(1, blocks_max)));
    slot.offset = block * random_.Below((reference_.size() - slot.length) / block + 1);
    for (const auto& other : slots) {
      if (other.get() != &slot && other->busy && slot.offset < other->offset + other->length &&
          other->offset < slot.offset + slot.length) {
        return false;
      }
    }
    slot.busy = true;
    const uint64_t kind = random_.Below(20);
    block::Op op = kind < 9 ? block::Op::kRead : block::Op::kWrite;
    if (kind == 19) op = block::Op::kWriteZeroes;
    if (kind == 18) op = discards_ == Discards::kNone ? block::Op::kFlush : block::Op::kDiscard;
    if (kind == 17) op = block::Op::kFlush;
    slot.io.request.fua = kind == 16 || (op == block::Op::kWriteZeroes && random_.Chance(1, 2));
    slot.io.request.may_unmap = random_.Chance(1, 2);
    slot.io.segments.clear();
    if (op == block::Op::kFlush) slot.offset = slot.length = 0;
    if (op == block::Op::kRead || op == block::Op::kWrite) Cut(slot);
    if (op == block::Op::kWrite) {
      for (const block::Segment& segment : slot.io.segments) {
        for (uint32_t i = 0; i < segment.length_bytes; ++i)
          segment.data()[i] = static_cast<uint8_t>(random_.Next());
      }
    }
    disk_.Start(slot.io, op, op == block::Op::kFlush ? 0 : from_ + slot.offset, slot.length);
    return true;
  }

  // Buffers of a random kind: one aligned piece, blocks scattered over pages, or pieces of any length anywhere.
  void Cut(Slot& slot) {
    const uint64_t kind = random_.Below(3);
    uint64_t at = slot.memory + (kind == 2 ? random_.Below(4096) : 0);
    for (uint64_t left = slot.length; left > 0;) {
      uint64_t piece = left;
      if (kind == 1) piece = std::min<uint64_t>(left, 4096 * random_.Between(1, 16));
      if (kind == 2 && slot.io.segments.size() < 30) piece = random_.Between(1, left);
      slot.io.segments.push_back({&arena_.region(), at, static_cast<uint32_t>(piece)});
      at += piece;
      if (kind == 1) at = (at + 4095) / 4096 * 4096;
      if (kind == 2) at += random_.Below(100);
      left -= piece;
    }
  }

  void Check(Slot& slot) {
    if (!slot.busy) return;
    slot.busy = false;
    const block::Op op = slot.io.request.op;
    ASSERT_EQ(slot.io.status(), block::IoStatus::kOk) << "operation " << static_cast<int>(op);
    uint8_t* at = reference_.data() + slot.offset;
    if (op == block::Op::kDiscard || op == block::Op::kWriteZeroes) std::memset(at, 0, slot.length);
    for (const block::Segment& segment : slot.io.segments) {
      if (op == block::Op::kWrite) std::memcpy(at, segment.data(), segment.length_bytes);
      ASSERT_EQ(std::memcmp(at, segment.data(), segment.length_bytes), 0)
          << "at " << slot.offset << " of " << slot.length << " bytes";
      at += segment.length_bytes;
    }
  }

  TestDisk& disk_;
  Random random_;
  const uint64_t from_;
  const Discards discards_;
  std::vector<uint8_t> reference_;
  Arena arena_;
};

}  // namespace cleat::test
