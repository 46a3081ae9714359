// SPDX-License-Identifier: Apache-2.0
// COMPARE AND WRITE on a disk with limits: a ring of one reactor that stops waits for no limits, neither for its own requests
// nor for what another reactor's wait for. In virtual time: a second is a second of limits.
#include <array>
#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.h"
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
  std::atomic<uint64_t> writes{0};
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

// A reactor in a thread of its own, on a disk that another one has too. It keeps a few requests in flight, COMPARE AND WRITEs among
// them, aborts one or all of them now and then, and has its ring stop now and then.
class BusyReactor {
 public:
  static constexpr uint32_t kRequests = 300;
  // What all of them share: their channels open before the first request, and close after the last one.
  struct Together {
    explicit Together(uint32_t count) : opened(count), busy(count) {}
    std::latch opened;
    std::atomic<uint32_t> busy;
  };

  BusyReactor(uint32_t index, Together& together) : random_(index + 1), together_(together) {
    Reactor::Options options;
    options.index = index;
    reactor_ = Reactor::Make(clock_, options).value();
  }
  void Begin(block::Pipeline& pipeline) {
    reactor_->PostCall([this, &pipeline] { Spawn(Run(pipeline)); });
    thread_ = std::thread([this] { reactor_->Run(); });
  }
  void Join() { thread_.join(); }
  uint32_t ended() const { return ended_; }  // afterwards

 private:
  Task<void> Run(block::Pipeline& pipeline) {
    auto channel = pipeline.OpenChannel(*reactor_).value();
    together_.opened.arrive_and_wait();
    for (uint32_t submitted = 0; submitted < kRequests;) {
      const uint32_t before = submitted;
      for (auto& io : ios_) {
        if (io != nullptr && !io->done) continue;
        Count(io.get());
        io = std::make_unique<Io>(random_.Chance(1, 3) ? Op::kCompareAndWrite : Op::kWrite,
                                  random_.Below(3) * kBlock);
        io->request.Push(
            [](block::Request&, const block::Frame& frame) { static_cast<Io*>(frame.layer)->done = true; },
            io.get());
        ++submitted;
        channel->Submit(io->request);
      }
      if (submitted > before) co_await Disturb(*channel);
      co_await reactor_->Yield();
    }
    channel->BeginBypass();
    while (channel->in_flight() > 0) co_await reactor_->Yield();
    channel->EndBypass();
    --together_.busy;
    while (together_.busy > 0) co_await reactor_->Yield();
    for (auto& io : ios_) Count(io.get());
    channel.reset();
    reactor_->Stop();
  }
  Task<void> Disturb(block::PipelineChannel& channel) {
    const uint64_t what = random_.Below(256);
    Io& any = *ios_[random_.Below(ios_.size())];
    if (what == 0) channel.AbortQueued(nullptr);
    if (what < 16 && !any.done) channel.AbortQueued(&any.request);
    if (what == 255) {
      channel.BeginBypass();
      for (uint64_t turns = random_.Below(20); turns > 0; --turns) co_await reactor_->Yield();
      channel.EndBypass();
    }
  }
  void Count(const Io* io) {
    if (io == nullptr) return;
    EXPECT_TRUE(io->done);
    ++ended_;
  }

  const MonotonicClock clock_;
  Random random_;
  Together& together_;
  std::unique_ptr<Reactor> reactor_;
  std::array<std::unique_ptr<Io>, 6> ios_;
  uint32_t ended_ = 0;
  std::thread thread_;
};

TEST(LimitedCompareAndWriteThreads, EachEndsOnceWhateverIsAbortedAndStops) {
  auto limited = LimitedDevice::Make(std::make_unique<ZeroDevice>(), Iops(200'000), nullptr);
  auto pipeline = block::Pipeline::Make(std::move(*limited), block::AccessMode::kReadWrite).value();
  BusyReactor::Together together(2);
  std::array<BusyReactor, 2> reactors{BusyReactor(0, together), BusyReactor(1, together)};
  for (BusyReactor& reactor : reactors) reactor.Begin(*pipeline);
  for (BusyReactor& reactor : reactors) reactor.Join();
  for (const BusyReactor& reactor : reactors) EXPECT_GE(reactor.ended(), BusyReactor::kRequests);
}

}  // namespace
}  // namespace cleat::qos::test::limited_compare_and_write_test
