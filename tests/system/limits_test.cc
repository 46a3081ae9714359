// SPDX-License-Identifier: Apache-2.0
// Limits through the API, under load: never more than was promised, changes take effect while requests wait, nothing is
// lost. Only upper bounds are timed: a loaded machine is slower, never faster.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "peer.h"
#include "perf/vhost_user/deadline.h"

namespace cleat::system_test::limits_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{64} << 20;
// What may pass at once, without having been saved up: requests that came together, and a reactor that was late.
constexpr double kAtOnceSeconds = 0.1;
// Little, so that its guests want more than they get on a busy machine as well.
constexpr uint64_t kGroupIops = 400;

double SecondsSince(uint64_t start_ns) {
  return static_cast<double>(MonotonicClock().NowNs() - start_ns) / static_cast<double>(kNsPerSecond);
}

// How many requests a second there were, if `requests` took that long, with what may pass at once left out. The time is from
// before the first count until after the last: where this thread stood still in between, it is too long and never too short.
void ExpectAtMost(uint64_t per_second, uint64_t requests, double seconds) {
  EXPECT_GE(seconds + kAtOnceSeconds, static_cast<double>(requests) / static_cast<double>(per_second))
      << requests << " requests in " << seconds << " s";
}

// A guest with a disk of its own, behind a controller that may be in a group.
struct Guest {
  Guest(Host& host, const std::string& id, const std::string& group, const v1::Limits& limits,
        const std::string& engine = kEngineName) {
    v1::DiskSpec disk = MemoryDisk(kDiskBytes);
    *disk.mutable_limits() = limits;
    v1::ControllerSpec controller = BlkController(host.SocketPath(id));
    controller.set_engine(engine);
    if (!group.empty()) controller.set_group("groups/" + group);
    Prepare(host, id, disk, controller);
  }

  void Prepare(Host& host, const std::string& id, const v1::DiskSpec& disk,
               const v1::ControllerSpec& controller) {
    ASSERT_OK(host.api().CreateDisk(id, disk));
    ASSERT_OK(host.api().CreateController(id, controller));
    ASSERT_OK(host.api().Attach(id, id));
    auto started = Peer::Start(host.SocketPath(id));
    ASSERT_OK(started);
    peer = std::move(started).value();
    blocks = std::make_unique<perf::StampedBlocks>(kDiskBytes, 512, 1);
    load = std::make_unique<IoLoad>(peer->driver(), *blocks);
  }

  std::unique_ptr<Peer> peer;
  std::unique_ptr<perf::StampedBlocks> blocks;
  std::unique_ptr<IoLoad> load;
};

TEST(LimitsTest, ADiskHasNoMoreThanItsLimitAndAChangeTakesEffectWhileRequestsWait) {
  Host host;
  ASSERT_TRUE(host.ok());
  Guest guest(host, "d", "", Iops(500));
  ASSERT_NE(guest.load, nullptr);
  uint64_t start_ns = MonotonicClock().NowNs();
  ASSERT_OK(guest.load->Run(600));
  ExpectAtMost(500, 600, SecondsSince(start_ns));

  guest.load->Start();
  ASSERT_TRUE(guest.load->WaitProgress(50));
  ASSERT_OK(host.api().LimitDisk("d", Iops(20)));
  ASSERT_OK(host.api().WaitReady("disks/d"));
  start_ns = MonotonicClock().NowNs();
  const uint64_t before = guest.load->completed();
  ASSERT_TRUE(guest.load->WaitProgress(30));
  // What was let pass just before may complete after: the depth.
  const uint64_t slowly = guest.load->completed() - before;
  ExpectAtMost(20, slowly > 8 ? slowly - 8 : 0, SecondsSince(start_ns));

  // Eight requests wait, for 50 ms each. Now for nothing.
  ASSERT_OK(host.api().LimitDisk("d", v1::Limits()));
  ASSERT_TRUE(guest.load->WaitProgress(5000));
  EXPECT_OK(guest.load->Stop());
  EXPECT_OK(guest.load->Verify());
}

// Two guests of one group, each with 8 requests in flight, wherever they are: together they have the group's limit, and
// about half of it each.
void ExpectShared(Host& host, Guest& one, Guest& other, uint64_t per_second) {
  ASSERT_TRUE(one.load != nullptr && other.load != nullptr);
  ASSERT_OK(host.api().WaitReady("groups/vm"));
  one.load->Start();
  other.load->Start();
  ASSERT_TRUE(one.load->WaitProgress(50));
  const uint64_t start_ns = MonotonicClock().NowNs();
  const uint64_t one_before = one.load->completed();
  const uint64_t other_before = other.load->completed();
  // A guest that gets no processor for a while asks for nothing meanwhile: what counts is their share in the long run.
  const perf::Deadline deadline(kWaitTimeoutNs);
  for (;;) {
    ASSERT_TRUE(one.load->WaitProgress(200));
    const uint64_t one_did = one.load->completed() - one_before;
    const uint64_t other_did = other.load->completed() - other_before;
    ExpectAtMost(per_second, std::max<uint64_t>(one_did + other_did, 16) - 16, SecondsSince(start_ns));
    if (other_did > one_did / 3) break;
    ASSERT_FALSE(deadline.passed()) << "it wants as much, and got " << other_did << " when the other one got "
                                    << one_did;
  }
}

// The limit goes, and nothing was lost.
void ExpectNothingLost(Host& host, Guest& one, Guest& other) {
  ASSERT_OK(host.api().LimitGroup("vm", v1::Limits()));
  ASSERT_TRUE(one.load->WaitProgress(3000));
  ASSERT_TRUE(other.load->WaitProgress(3000));
  EXPECT_OK(one.load->Stop());
  EXPECT_OK(other.load->Stop());
  EXPECT_OK(one.load->Verify());
  EXPECT_OK(other.load->Verify());
}

TEST(LimitsTest, AGroupsControllersShareItsLimit) {
  Host host({.reactors = 2});
  ASSERT_TRUE(host.ok());
  ASSERT_OK(host.api().CreateGroup("vm", Iops(kGroupIops)));
  Guest one(host, "a", "vm", Iops(100'000));
  Guest other(host, "b", "vm", v1::Limits());
  ExpectShared(host, one, other, kGroupIops);
  if (!HasFatalFailure()) ExpectNothingLost(host, one, other);
  EXPECT_EQ(host.api().DeleteGroup("vm").error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// As while an upgrade moves a VM's controllers one by one: the engines share the group's memory, which cleatd holds.
TEST(LimitsTest, AGroupsControllersOnTwoEnginesShareItsLimit) {
  Host host;
  ASSERT_TRUE(host.ok());
  host.AddEngine("engine-1");
  ASSERT_OK(host.api().CreateGroup("vm", Iops(kGroupIops)));
  Guest one(host, "a", "vm", v1::Limits());
  Guest other(host, "b", "vm", v1::Limits(), "engines/engine-1");
  ExpectShared(host, one, other, kGroupIops);
  // A change reaches both, while they work.
  if (HasFatalFailure()) return;
  ASSERT_OK(host.api().LimitGroup("vm", Iops(100)));
  ASSERT_OK(host.api().WaitReady("groups/vm"));
  const uint64_t start_ns = MonotonicClock().NowNs();
  const uint64_t before = one.load->completed() + other.load->completed();
  ASSERT_TRUE(one.load->WaitProgress(60));
  ExpectAtMost(100, one.load->completed() + other.load->completed() - before - 16, SecondsSince(start_ns));
  ExpectNothingLost(host, one, other);
}

TEST(LimitsTest, LimitsHoldInTheNextEngineToo) {
  Host host;
  ASSERT_TRUE(host.ok());
  ASSERT_OK(host.api().CreateGroup("vm", Iops(400)));
  v1::Limits disk;
  disk.mutable_write_bytes()->set_per_second(1'000'000'000);
  Guest guest(host, "d", "vm", disk);
  ASSERT_NE(guest.load, nullptr);
  host.RestartEngine();
  ASSERT_OK(guest.peer->WaitCut());
  ASSERT_OK(guest.peer->Boot());
  IoLoad load(guest.peer->driver(), *guest.blocks);
  ASSERT_OK(host.api().WaitReady("groups/vm"));
  ASSERT_OK(host.api().WaitReady("disks/d"));
  const uint64_t start_ns = MonotonicClock().NowNs();
  ASSERT_OK(load.Run(400));
  ExpectAtMost(400, 400, SecondsSince(start_ns));
  host.RestartCleatd();
  ASSERT_OK(host.api().WaitReady("groups/vm"));
  EXPECT_OK(load.Verify());
}

// What waits for a limit keeps no disk from being detached, and no engine from ending.
TEST(LimitsTest, WhatWaitsKeepsNobodyFromGoing) {
  Host host;
  ASSERT_TRUE(host.ok());
  Guest guest(host, "d", "", Iops(1));
  ASSERT_NE(guest.load, nullptr);
  guest.load->Start();
  ASSERT_TRUE(guest.load->WaitProgress(1));
  ASSERT_OK(host.api().Detach("d", "d"));
  Model last;
  EXPECT_TRUE(host.api().WaitUntil([](const Model& model) { return model.attachments.empty(); }, &last))
      << last.ToString();
  (void)guest.load->Stop();
}

}  // namespace
}  // namespace cleat::system_test::limits_test
