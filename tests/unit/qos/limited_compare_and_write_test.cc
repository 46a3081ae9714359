// SPDX-License-Identifier: Apache-2.0
// COMPARE AND WRITE on a disk with limits: a ring of one reactor that stops waits for no limits, neither for its own requests
// nor for what another reactor's wait for. In virtual time: a second is a second of limits.
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "block/pipeline.h"
#include "tests/unit/qos/rig.h"

namespace cleat::qos::test::limited_compare_and_write_test {
namespace {

using block::IoStatus;
using block::Op;
using cleat::test::VirtualReactors;

constexpr uint32_t kBlock = 512;

// All zeroes; requests stay while `hold`.
class ZeroDevice final : public block::Device {
 public:
  ZeroDevice()
      : Device("disks/zero", block::DiskShape{"disks/zero", uint64_t{1} << 20, kBlock, kBlock}.ToGeometry()) {
  }
  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<block::Channel>(std::make_unique<ZeroChannel>(*this));
  }
  void Finish() {
    hold = false;
    while (block::Request* request = held.PopFront()) request->Complete(IoStatus::kOk);
  }
  bool hold = false;
  uint64_t writes = 0;
  block::RequestList held;

 private:
  struct ZeroChannel final : block::Channel {
    explicit ZeroChannel(ZeroDevice& d) : device(d) {}
    void Submit(block::Request& request) override {
      if (request.op == Op::kWrite) ++device.writes;
      if (request.op == Op::kRead) {
        for (const block::Segment& segment : request.segments)
          std::memset(segment.data(), 0, segment.length_bytes);
      }
      if (device.hold) return device.held.PushBack(request);
      request.Complete(IoStatus::kOk);
    }
    ZeroDevice& device;
  };
};

struct Io {
  Io(Op op, uint64_t offset_bytes) : memory(op == Op::kCompareAndWrite ? 2 * kBlock : kBlock) {
    region = block::MemoryRegion::Borrow(memory.data(), memory.size());
    segment = {region.get(), 0, static_cast<uint32_t>(memory.size())};
    request.op = op;
    request.offset_bytes = offset_bytes;
    request.length_bytes = kBlock;
    request.segments = {&segment, 1};
  }
  std::vector<uint8_t> memory;
  std::shared_ptr<block::MemoryRegion> region;
  block::Segment segment{};
  block::Request request;
  bool done = false;
};

class LimitedCompareAndWrite : public testing::Test {
 protected:
  LimitedCompareAndWrite() {
    auto storage = std::make_unique<ZeroDevice>();
    storage_ = storage.get();
    auto limited = LimitedDevice::Make(std::move(storage), Iops(1), nullptr);
    pipeline_ = block::Pipeline::Make(std::move(*limited), block::AccessMode::kReadWrite).value();
    for (size_t i = 0; i < 2; ++i) channels_.push_back(pipeline_->OpenChannel(reactors_[i]).value());
  }
  void Submit(Io& io, size_t channel) {
    io.done = false;
    io.request.Push(
        [](block::Request&, const block::Frame& frame) { static_cast<Io*>(frame.layer)->done = true; }, &io);
    On(channel, [this, &io, channel] { channels_[channel]->Submit(io.request); });
  }
  // Runs it there; the time stands still.
  void On(size_t channel, const std::function<void()>& function) {
    reactors_[channel].PostCall(function);
    reactors_.RunUntilIdle();
  }
  void BeginStop(size_t channel) {
    On(channel, [this, channel] { channels_[channel]->BeginBypass(); });
  }
  void EndStop(size_t channel) {
    On(channel, [this, channel] { channels_[channel]->EndBypass(); });
  }
  void Abort(size_t channel, const block::Request* only) {
    On(channel, [this, channel, only] { channels_[channel]->AbortQueued(only); });
  }
  void Await(const Io& io) {
    ASSERT_TRUE(reactors_.RunUntil([&] { return io.done; }));
    EXPECT_EQ(io.request.status, IoStatus::kOk);
  }

  VirtualReactors reactors_{2};
  ZeroDevice* storage_ = nullptr;
  std::unique_ptr<block::Pipeline> pipeline_;
  std::vector<std::unique_ptr<block::PipelineChannel>> channels_;
};

TEST_F(LimitedCompareAndWrite, GivesWayWhenItsRingStops) {
  std::array<Io, 3> others{Io(Op::kWrite, 0), Io(Op::kWrite, 0), Io(Op::kWrite, 0)};
  for (Io& other : others) Submit(other, 1);
  EXPECT_TRUE(others[0].done);
  EXPECT_FALSE(others[1].done) << "two wait for a second each";
  Io compare(Op::kCompareAndWrite, 0);
  Submit(compare, 0);
  EXPECT_FALSE(compare.done);
  BeginStop(0);
  EXPECT_TRUE(compare.done) << "its ring's stop takes as long as another reactor's limits";
  EXPECT_EQ(compare.request.status, IoStatus::kAborted);
  EXPECT_EQ(channels_[0]->in_flight(), 0U);
  EXPECT_FALSE(others[1].done) << "the others' limits hold";
  EndStop(0);
  // Afterwards all is as ever, what was left behind included.
  Io again(Op::kCompareAndWrite, 0);
  Submit(again, 0);
  EXPECT_FALSE(again.done);
  Await(again);
  EXPECT_TRUE(others[2].done) << "it came before";
}

TEST_F(LimitedCompareAndWrite, GivesWayWhenARingStopsWhoseRequestsItHoldsBack) {
  std::array<Io, 2> others{Io(Op::kWrite, 0), Io(Op::kWrite, 0)};
  for (Io& other : others) Submit(other, 1);
  Io compare(Op::kCompareAndWrite, 0);
  Submit(compare, 1);
  Io held(Op::kWrite, 0);
  Submit(held, 0);
  Io next(Op::kCompareAndWrite, kBlock);
  Submit(next, 1);  // waits for its turn
  BeginStop(0);
  EXPECT_TRUE(held.done);
  EXPECT_EQ(held.request.status, IoStatus::kOk);
  EXPECT_EQ(compare.request.status, IoStatus::kAborted);
  EXPECT_EQ(next.request.status, IoStatus::kAborted);
  Io meanwhile(Op::kCompareAndWrite, 0);
  Submit(meanwhile, 1);
  EXPECT_TRUE(meanwhile.done) << "one that comes while the ring drains holds nothing back either";
  EXPECT_EQ(meanwhile.request.status, IoStatus::kAborted);
  EndStop(0);
  Await(others[1]);
}

// Its own read, or its write, waits for the limits of its reactor: with all channels held.
TEST_F(LimitedCompareAndWrite, TakesItsOwnReadOrWriteBackWhenAnotherRingStops) {
  Io before(Op::kRead, 4 * kBlock);
  for (const bool at_the_read : {false, true}) {
    if (at_the_read) {
      Submit(before, 1);
      ASSERT_TRUE(before.done);
    }
    Io compare(Op::kCompareAndWrite, 0);
    Submit(compare, 1);
    ASSERT_FALSE(compare.done) << "a second's limits are used up";
    Io held(Op::kWrite, 0);
    Submit(held, 0);
    EXPECT_FALSE(held.done);
    BeginStop(0);
    EXPECT_TRUE(compare.done);
    EXPECT_EQ(compare.request.status, IoStatus::kAborted);
    EXPECT_TRUE(held.done) << "the stop takes as long as another reactor's limits";
    EXPECT_EQ(held.request.status, IoStatus::kOk);
    EXPECT_EQ(channels_[0]->in_flight(), 0U);
    Io meanwhile(Op::kCompareAndWrite, 0);
    Submit(meanwhile, 1);
    EXPECT_TRUE(meanwhile.done) << "nor does one that comes while the ring drains wait";
    EXPECT_EQ(meanwhile.request.status, IoStatus::kAborted);
    EndStop(0);
    RunFor(reactors_, 10 * kNsPerSecond);  // what went past the limits is paid for
  }
  EXPECT_EQ(storage_->writes, 2U) << "of those that were held back";
  Io again(Op::kCompareAndWrite, 0);
  Submit(again, 1);
  Await(again);
  EXPECT_EQ(storage_->writes, 3U);
}

// ABORT TASK and resets do as a stop does.
TEST_F(LimitedCompareAndWrite, GivesWayWhenItIsAborted) {
  std::array<Io, 2> others{Io(Op::kWrite, 0), Io(Op::kWrite, 0)};
  for (Io& other : others) Submit(other, 1);
  Io compare(Op::kCompareAndWrite, 0);
  Submit(compare, 0);
  std::array<Io, 2> next{Io(Op::kCompareAndWrite, kBlock), Io(Op::kCompareAndWrite, kBlock)};
  for (Io& waits : next) Submit(waits, 0);
  Io held(Op::kWrite, 0);
  Submit(held, 0);
  Abort(0, &others[1].request);
  EXPECT_FALSE(compare.done || next[0].done || next[1].done || held.done) << "another one is meant";
  Abort(0, &next[1].request);
  EXPECT_TRUE(next[1].done) << "it waited for its turn";
  EXPECT_EQ(next[1].request.status, IoStatus::kAborted);
  EXPECT_FALSE(compare.done || next[0].done || held.done);
  Abort(0, &held.request);
  EXPECT_TRUE(held.done) << "it was held back";
  EXPECT_EQ(held.request.status, IoStatus::kAborted);
  Abort(0, &compare.request);
  EXPECT_TRUE(compare.done) << "it waited for requests that wait for limits";
  EXPECT_EQ(compare.request.status, IoStatus::kAborted);
  EXPECT_FALSE(others[1].done) << "the others' limits hold";
  Abort(0, nullptr);
  EXPECT_TRUE(next[0].done);
  EXPECT_EQ(channels_[0]->in_flight(), 0U);
  Await(others[1]);
  Io again(Op::kCompareAndWrite, 0);
  Submit(again, 0);
  Await(again);
}

TEST_F(LimitedCompareAndWrite, WaitsForTheStorageAsEveryStopDoes) {
  storage_->hold = true;
  Io other(Op::kWrite, 0);
  Submit(other, 1);
  Io compare(Op::kCompareAndWrite, 0);
  Submit(compare, 0);
  BeginStop(0);
  EXPECT_FALSE(compare.done);
  On(1, [this] { storage_->Finish(); });
  Await(compare);
  EndStop(0);
}

}  // namespace
}  // namespace cleat::qos::test::limited_compare_and_write_test
