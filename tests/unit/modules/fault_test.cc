// SPDX-License-Identifier: Apache-2.0
#include "modules/fault/fault.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "modules/null/null.h"
#include "tests/unit/modules/test_disk.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::modules::fault_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Io;

constexpr uint64_t kBytes = 1 << 20;

std::unique_ptr<block::Device> MakeNull() {
  test::VirtualReactors reactors;
  NullOptions options(block::DiskShape("disks/f", kBytes, 512, 512));
  return std::move(reactors.Await(OpenNull(options))).value();
}

// Sees what reaches the device below.
class CountingDevice final : public block::Device {
 public:
  explicit CountingDevice(std::vector<uint64_t>& seen)
      : Device("disks/f", MakeNull()->geometry()), seen_(seen) {}
  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    struct CountingChannel final : block::Channel {
      explicit CountingChannel(std::vector<uint64_t>& s) : seen(s) {}
      void Submit(block::Request& request) override {
        seen.push_back(request.offset_bytes);
        request.Complete(IoStatus::kOk);
      }
      std::vector<uint64_t>& seen;
    };
    return std::unique_ptr<block::Channel>(std::make_unique<CountingChannel>(seen_));
  }

 private:
  std::vector<uint64_t>& seen_;
};

struct Trace {
  std::vector<uint64_t> reached;   // the device below, in order
  std::vector<uint64_t> finished;  // in order
  std::vector<uint64_t> failed;
  std::vector<uint64_t> times_ns;
  bool operator==(const Trace&) const = default;
};

Trace RunPlan(const FaultPlan& plan, int requests) {
  Trace trace;
  test::VirtualReactors reactors;
  auto made = FaultDevice::Make(std::make_unique<CountingDevice>(trace.reached), plan);
  CLEAT_CHECK(made.ok());
  EXPECT_EQ((*made)->frames(), 1U);
  test::TestDisk disk(std::move(made).value(), reactors[0], [] {});
  const uint64_t start_ns = reactors[0].now_ns();
  std::vector<std::unique_ptr<Io>> ios;
  size_t done = 0;
  for (int i = 0; i < requests; ++i) {
    ios.push_back(std::make_unique<Io>());
    Io& io = *ios.back();
    io.on_done = [&] {
      ++done;
      trace.finished.push_back(io.request.offset_bytes);
      trace.times_ns.push_back(reactors[0].now_ns() - start_ns);
      if (io.status() != IoStatus::kOk) trace.failed.push_back(io.request.offset_bytes);
    };
    disk.Start(io, Op::kDiscard, static_cast<uint64_t>(i) * 512, 512);
  }
  EXPECT_TRUE(reactors.RunUntil([&] { return done == ios.size(); }));
  EXPECT_EQ(disk.channel().in_flight(), 0U);
  return trace;
}

TEST(Fault, TheSameSeedGivesTheSameFaults) {
  const Trace first = RunPlan(FaultPlan(7, kNsPerMs, 200'000), 1000);
  EXPECT_EQ(first, RunPlan(FaultPlan(7, kNsPerMs, 200'000), 1000));
  EXPECT_NE(first, RunPlan(FaultPlan(8, kNsPerMs, 200'000), 1000));
}

TEST(Fault, DelaysReordersAndFailsAsPlanned) {
  const Trace trace = RunPlan(FaultPlan(1, kNsPerMs, 200'000), 2000);
  EXPECT_FALSE(std::is_sorted(trace.reached.begin(), trace.reached.end()));
  EXPECT_FALSE(std::is_sorted(trace.finished.begin(), trace.finished.end()));
  EXPECT_LE(trace.times_ns.back(), kNsPerMs + 4096) << "two timers, each late by a slot at most";
  EXPECT_GT(trace.times_ns.back(), kNsPerMs / 2);
  EXPECT_GT(trace.failed.size(), 300U);
  EXPECT_LT(trace.failed.size(), 500U);
  // About half of the failed ones got there all the same.
  const size_t never_came = 2000 - trace.reached.size();
  EXPECT_GT(never_came, trace.failed.size() / 4);
  EXPECT_LT(never_came, trace.failed.size() * 3 / 4);
}

TEST(Fault, AnEmptyPlanChangesNothing) {
  const Trace trace = RunPlan(FaultPlan(1, 0, 0), 100);
  EXPECT_TRUE(std::is_sorted(trace.finished.begin(), trace.finished.end()));
  EXPECT_EQ(trace.reached, trace.finished);
  EXPECT_EQ(trace.times_ns.back(), 0U);
  EXPECT_EQ(RunPlan(FaultPlan(1, 0, 1'000'000), 100).failed.size(), 100U);
}

TEST(Fault, RefusesPlansBeyondItsLimits) {
  EXPECT_FALSE(FaultDevice::Make(MakeNull(), FaultPlan(1, kFaultDelayNsMax + 1, 0)).ok());
  EXPECT_FALSE(FaultDevice::Make(MakeNull(), FaultPlan(1, 0, 1'000'001)).ok());
  EXPECT_TRUE(FaultDevice::Make(MakeNull(), FaultPlan(1, kFaultDelayNsMax, 1'000'000)).ok());
}

TEST(Fault, HoldsEverythingUntilItIsLetGo) {
  for (const uint64_t delay_ns : {uint64_t{0}, kNsPerMs}) {
    test::VirtualReactors reactors;
    auto made = FaultDevice::Make(MakeNull(), FaultPlan(1, delay_ns, 0));
    FaultDevice& fault = **made;
    test::TestDisk disk(std::move(made).value(), reactors[0],
                        [&] { reactors.RunUntil([] { return true; }); });
    std::vector<std::unique_ptr<Io>> ios;
    size_t done = 0;
    const auto start = [&](int count) {
      for (int i = 0; i < count; ++i) {
        ios.push_back(std::make_unique<Io>());
        ios.back()->on_done = [&] { ++done; };
        disk.Start(*ios.back(), Op::kFlush, 0, 0);
      }
    };
    start(10);
    const size_t before = done;
    EXPECT_EQ(before, delay_ns == 0 ? 10U : 0U);
    fault.Hold();
    start(10);
    EXPECT_FALSE(reactors.RunUntil([&] { return done > before; })) << "nothing moves, not even time";
    EXPECT_EQ(disk.channel().in_flight(), 20 - before);
    fault.LetGo();
    EXPECT_TRUE(reactors.RunUntil([&] { return done == 20; }));
    start(1);
    EXPECT_TRUE(reactors.RunUntil([&] { return done == 21; }));
  }
}

TEST(Fault, LetGoMayComeAfterTheChannelsAreGone) {
  test::VirtualReactors reactors;
  auto made = FaultDevice::Make(MakeNull(), FaultPlan(1, 0, 0));
  FaultDevice& fault = **made;
  test::TestDisk disk(std::move(made).value(), reactors[0], [] {});
  fault.Hold();
  fault.LetGo();        // on its way to the channel
  disk.CloseChannel();  // which goes first
  reactors.RunUntilIdle();
  fault.LetGo();
  reactors.RunUntilIdle();
}

// The channels of two reactors on two threads, held and let go from a third.
TEST(Fault, HoldsChannelsOfSeveralThreads) {
  constexpr int kRequests = 3000;
  const MonotonicClock clock;
  auto made = FaultDevice::Make(MakeNull(), FaultPlan(1, 20 * kNsPerUs, 1000));
  FaultDevice& fault = **made;
  const auto pipeline =
      std::move(block::Pipeline::Make(std::move(made).value(), block::AccessMode::kReadWrite)).value();
  std::atomic<int> running = 2;
  std::vector<std::unique_ptr<Reactor>> reactors;
  for (uint32_t i = 0; i < 2; ++i) {
    Reactor::Options options;
    options.index = i;
    reactors.push_back(std::move(Reactor::Make(clock, options)).value());
  }
  std::vector<std::thread> threads;
  for (auto& owned : reactors) {
    threads.emplace_back([&running, &pipeline, reactor = owned.get()] {
      auto channel = std::move(pipeline->OpenChannel(*reactor)).value();
      int left = kRequests;
      Io io;
      const auto start = [&] {
        io.request.op = Op::kFlush;
        io.request.Push(
            [](block::Request&, const block::Frame& frame) { static_cast<Io*>(frame.layer)->on_done(); },
            &io);
        channel->Submit(io.request);
      };
      io.on_done = [&] {
        if (--left == 0) {
          reactor->Stop();
        } else {
          reactor->PostCall(start);
        }
      };
      reactor->PostCall(start);
      reactor->Run();
      channel.reset();
      --running;
    });
  }
  while (running.load() > 0) {
    fault.Hold();
    std::this_thread::yield();
    fault.LetGo();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace cleat::modules::fault_test
