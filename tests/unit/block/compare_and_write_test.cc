// SPDX-License-Identifier: Apache-2.0
#include "block/compare_and_write.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "base/random.h"
#include "block/pipeline.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::block::compare_and_write_test {
namespace {

constexpr uint64_t kBytes = 64 * 1024;
constexpr uint32_t kBlock = 512;

// A disk in memory whose requests take effect, and are completed, when the test says so or after a random
// time.
class SlowDevice final : public Device {
 public:
  explicit SlowDevice(uint64_t delay_ns_max) : Device("disks/a", Shape()), delay_ns_max_(delay_ns_max) {}

  static Geometry Shape() {
    Geometry geometry;
    geometry.size_bytes = kBytes;
    geometry.logical_block_bytes = geometry.physical_block_bytes = kBlock;
    return geometry;
  }

  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<Channel>> OpenChannel(Reactor& reactor) override {
    return std::unique_ptr<Channel>(std::make_unique<SlowChannel>(*this, reactor));
  }
  Task<Status> Resize(uint64_t size_bytes) override {
    if (size_bytes > 2 * kBytes) co_return Error(ErrorCode::kFailedPrecondition, "no room");
    SetSize(size_bytes);
    co_return Ok{};
  }

  void Finish(Request& request) {
    uint8_t* at = content.data() + request.offset_bytes;
    for (const Segment& segment : request.segments) {
      if (request.op == Op::kRead) std::memcpy(segment.data(), at, segment.length_bytes);
      if (request.op == Op::kWrite) std::memcpy(at, segment.data(), segment.length_bytes);
      at += segment.length_bytes;
    }
    request.Complete(fail ? IoStatus::kIoError : IoStatus::kOk);
  }

  std::vector<uint8_t> content = std::vector<uint8_t>(2 * kBytes);
  std::vector<Request*> held;  // while `hold`
  bool hold = false;
  bool fail = false;

 private:
  class SlowChannel final : public Channel {
   public:
    SlowChannel(SlowDevice& device, Reactor& reactor) : device_(device), reactor_(reactor) {}
    void Submit(Request& request) override {
      if (device_.hold) {
        device_.held.push_back(&request);
      } else if (device_.delay_ns_max_ == 0) {
        device_.Finish(request);
      } else {
        Spawn(Later(request));
      }
    }

   private:
    Task<void> Later(Request& request) {
      co_await reactor_.SleepFor(1 + device_.random_.Below(device_.delay_ns_max_));
      device_.Finish(request);
    }
    SlowDevice& device_;
    Reactor& reactor_;
  };

  const uint64_t delay_ns_max_;
  Random random_{7};
};

struct Io {
  Io(Op op, uint64_t offset, std::vector<uint8_t> bytes) : memory(std::move(bytes)) {
    region = MemoryRegion::Borrow(memory.data(), memory.size());
    // Two pieces, so that a block of data lies across their border.
    const auto first = static_cast<uint32_t>(memory.size() / 3);
    segments = {{region.get(), 0, first},
                {region.get(), first, static_cast<uint32_t>(memory.size()) - first}};
    request.op = op;
    request.offset_bytes = offset;
    request.length_bytes = op == Op::kCompareAndWrite ? memory.size() / 2 : memory.size();
    request.segments = segments;
  }
  std::vector<uint8_t> memory;
  std::shared_ptr<MemoryRegion> region;
  std::vector<Segment> segments;
  Request request;
  bool done = false;
  std::function<void()> on_done;
};

std::vector<uint8_t> Filled(size_t bytes, uint8_t value) {
  return std::vector<uint8_t>(bytes, value);
}
std::vector<uint8_t> Pair(uint8_t compare, uint8_t write, size_t bytes = kBlock) {
  std::vector<uint8_t> both(bytes, compare);
  both.resize(2 * bytes, write);
  return both;
}

class CompareAndWriteTest : public testing::Test {
 protected:
  explicit CompareAndWriteTest(uint64_t delay_ns_max = 0) {
    auto owned = std::make_unique<SlowDevice>(delay_ns_max);
    device_ = owned.get();
    pipeline_ = std::move(Pipeline::Make(std::move(owned), AccessMode::kReadWrite)).value();
    for (int i = 0; i < 2; ++i) channels_.push_back(std::move(pipeline_->OpenChannel(reactors_[i])).value());
  }

  void Submit(Io& io, int channel = 0) {
    io.done = false;
    io.request.Push(
        [](Request&, const Frame& frame) {
          auto& finished = *static_cast<Io*>(frame.layer);
          finished.done = true;
          if (finished.on_done) finished.on_done();
        },
        &io);
    reactors_[channel].PostCall([this, &io, channel] { channels_[channel]->Submit(io.request); });
    reactors_.RunUntilIdle();
  }
  IoStatus Do(Io& io, int channel = 0) {
    Submit(io, channel);
    EXPECT_TRUE(reactors_.RunUntil([&] { return io.done; }));
    return io.request.status;
  }
  void FinishHeld() {
    for (Request* request : std::exchange(device_->held, {})) device_->Finish(*request);
    reactors_.RunUntilIdle();
  }

  test::VirtualReactors reactors_{2};
  SlowDevice* device_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<std::unique_ptr<PipelineChannel>> channels_;
};

TEST_F(CompareAndWriteTest, WritesOnlyWhatIsTheSame) {
  Io same(Op::kCompareAndWrite, 1024, Pair(0, 7));
  EXPECT_EQ(Do(same), IoStatus::kOk);
  EXPECT_EQ(device_->content[1024], 7);
  EXPECT_EQ(device_->content[1024 + kBlock - 1], 7);
  EXPECT_EQ(device_->content[1024 + kBlock], 0);

  device_->content[1024 + 300] = 9;
  Io different(Op::kCompareAndWrite, 1024, Pair(7, 8));
  EXPECT_EQ(Do(different, 1), IoStatus::kMiscompare);
  EXPECT_EQ(different.request.miscompare_bytes, 300U);
  EXPECT_EQ(device_->content[1024], 7) << "nothing was written";
}

TEST_F(CompareAndWriteTest, RefusesWhatItCantDo) {
  Io large(Op::kCompareAndWrite, 0, Pair(0, 1, kCompareAndWriteBytesMax + kBlock));
  EXPECT_EQ(Do(large), IoStatus::kInvalid);
  Io beyond(Op::kCompareAndWrite, kBytes - kBlock, Pair(0, 1, 2 * kBlock));
  EXPECT_EQ(Do(beyond), IoStatus::kInvalid);
  device_->fail = true;
  Io broken(Op::kCompareAndWrite, 0, Pair(0, 1));
  EXPECT_EQ(Do(broken), IoStatus::kIoError);
}

TEST_F(CompareAndWriteTest, NothingTouchesTheRangeInBetween) {
  device_->hold = true;
  Io before(Op::kWrite, 0, Filled(kBlock, 1));
  Submit(before, 1);
  ASSERT_EQ(device_->held.size(), 1U);
  Io compare(Op::kCompareAndWrite, 0, Pair(1, 2));
  Submit(compare, 0);
  EXPECT_EQ(device_->held.size(), 1U) << "a write of before is still in flight, on another reactor";
  FinishHeld();
  ASSERT_EQ(device_->held.size(), 1U);
  EXPECT_EQ(device_->held[0]->op, Op::kRead);

  Io after(Op::kWrite, 0, Filled(2 * kBlock, 3));
  Submit(after, 1);
  Io beside(Op::kWrite, kBlock, Filled(kBlock, 4));
  Submit(beside, 1);
  ASSERT_EQ(device_->held.size(), 2U) << "what is beside the range goes on, what touches it waits";
  EXPECT_EQ(device_->held[1]->offset_bytes, kBlock);
  FinishHeld();  // the read, and the write beside it
  EXPECT_TRUE(beside.done);
  EXPECT_FALSE(after.done);
  FinishHeld();  // the write of the compare and write
  EXPECT_TRUE(compare.done);
  EXPECT_EQ(compare.request.status, IoStatus::kOk);
  EXPECT_EQ(device_->content[0], 2);
  EXPECT_EQ(channels_[1]->in_flight(), 1U);
  FinishHeld();
  EXPECT_TRUE(after.done);
  EXPECT_EQ(device_->content[0], 3);
}

class ContendedCompareAndWrite : public CompareAndWriteTest {
 protected:
  ContendedCompareAndWrite() : CompareAndWriteTest(50 * kNsPerUs) {}

  // Adds one to the counter in block 0, `count` times, each time from the value that it believes to be there.
  Task<void> Increment(int channel, int count) {
    Reactor& reactor = reactors_[channel];
    co_await reactor.Enter();
    uint64_t believed = 0;
    for (int done = 0; done < count;) {
      std::vector<uint8_t> both(2 * kBlock);
      const uint64_t next = believed + 1;
      std::memcpy(both.data(), &believed, sizeof(believed));
      std::memcpy(both.data() + kBlock, &next, sizeof(next));
      Io io(Op::kCompareAndWrite, 0, both);
      Event finished(reactor);
      io.on_done = [&finished] { finished.Set(); };
      Submit2(io, channel);
      co_await finished.Wait();
      if (io.request.status == IoStatus::kOk) {
        ++done;
        believed = next;
        continue;
      }
      Io read(Op::kRead, 0, Filled(kBlock, 0));
      Event seen(reactor);
      read.on_done = [&seen] { seen.Set(); };
      Submit2(read, channel);
      co_await seen.Wait();
      std::memcpy(&believed, read.memory.data(), sizeof(believed));
    }
    ++ended_;
  }
  void Submit2(Io& io, int channel) {
    io.request.Push([](Request&, const Frame& frame) { static_cast<Io*>(frame.layer)->on_done(); }, &io);
    channels_[channel]->Submit(io.request);
  }
  int ended_ = 0;
};

TEST_F(ContendedCompareAndWrite, CountsEachSuccessOnce) {
  constexpr int kEach = 100;
  for (int i = 0; i < 4; ++i) Spawn(Increment(i % 2, kEach));
  ASSERT_TRUE(reactors_.RunUntil([&] { return ended_ == 4; }));
  uint64_t counter = 0;
  std::memcpy(&counter, device_->content.data(), sizeof(counter));
  EXPECT_EQ(counter, 4U * kEach);
}

TEST_F(CompareAndWriteTest, AGrownDiskTakesRequestsUpToItsNewEnd) {
  Io behind(Op::kWrite, kBytes, Filled(kBlock, 1));
  EXPECT_EQ(Do(behind, 1), IoStatus::kInvalid);
  EXPECT_FALSE(reactors_.Await(pipeline_->Resize(kBytes - kBlock)).ok()) << "shrinking";
  EXPECT_FALSE(reactors_.Await(pipeline_->Resize(kBytes + 1)).ok()) << "part of a block";
  EXPECT_FALSE(reactors_.Await(pipeline_->Resize(4 * kBytes)).ok()) << "more than the device has";
  EXPECT_EQ(Do(behind, 1), IoStatus::kInvalid) << "nothing has changed";
  const Status grown = reactors_.Await(pipeline_->Resize(2 * kBytes));
  EXPECT_TRUE(grown.ok());
  EXPECT_EQ(Do(behind, 0), IoStatus::kOk);
  EXPECT_EQ(Do(behind, 1), IoStatus::kOk);
  EXPECT_EQ(device_->content[kBytes], 1);
}

}  // namespace
}  // namespace cleat::block::compare_and_write_test
