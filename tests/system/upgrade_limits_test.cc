// SPDX-License-Identifier: Apache-2.0
// A VM's limit in the middle of an upgrade: one of its two controllers is on the new engine already, the other one still on
// the old one, and both are wanted as much as they can give. In no stretch of time do they get more than the limit's rate
// and what it lets pass at once. The control: an engine that counts for itself.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "lying_link.h"
#include "perf/deadline.h"
#include "upgrade_rig.h"

namespace cleat::system_test::upgrade_limits_test {
namespace {

constexpr char kBlue[] = "blue";
constexpr char kGreen[] = "green";
constexpr char kVm[] = "vm";
constexpr uint64_t kIops = 1000;
constexpr int kOnTwoEnginesMs = 1500;
// What a limit without a burst lets pass at once (qos/token_bucket.h: 10 ms of it), what each of two reactors has taken
// ahead (2.5 ms at most), and what may have been let pass and was not taken by the guests at the stretch's begin: 8 requests
// on each of 2 queues of 2 guests.
constexpr double kAtOnce = static_cast<double>(kIops) * 0.015 + 32;

// Counts what guests were given, all the time.
class Meter {
 public:
  explicit Meter(const CrashRig& rig) : rig_(rig), thread_([this] { Run(); }) {}
  ~Meter() { Stop(); }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  // Stopped: by how many requests the limit was exceeded where it was by most; below kAtOnce if it was not. Every pair of
  // moments is looked at: of all that is above the rate's line, the most that it went up from any moment on.
  double Excess() const {
    double lowest = 0;
    double excess = 0;
    for (const Sample& sample : samples_) {
      const double paid = static_cast<double>(sample.at_ns - samples_.front().at_ns) *
                          static_cast<double>(kIops) / static_cast<double>(kNsPerSecond);
      const double above = static_cast<double>(sample.requests) - paid;
      lowest = std::min(lowest, above);
      excess = std::max(excess, above - lowest);
    }
    return excess;
  }
  uint64_t requests() const { return samples_.back().requests; }

 private:
  struct Sample {
    uint64_t at_ns;
    uint64_t requests;
  };

  uint64_t Count() const {
    uint64_t requests = 0;
    for (const auto& guest : rig_.guests()) requests += guest->load().counts().requests;
    return requests;
  }

  void Run() {
    const uint64_t before = Count();
    while (!stop_) {
      samples_.push_back({clock_.NowNs(), Count() - before});
      poll(nullptr, 0, 1);
    }
  }

  const CrashRig& rig_;
  const MonotonicClock clock_;
  std::vector<Sample> samples_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class UpgradeLimitsTest : public testing::Test {
 protected:
  // How far the two were above their limit in an upgrade that stops half way for a while.
  void Measure(bool apart, double* excess) {
    Host host({.with_engine = false});
    LyingLink link(host.Path("link.sock"), host.Path("engine.sock"));
    if (apart) link.KeepGroupsApart();
    host.AddEngine(kBlue, {}, link.path());
    ASSERT_OK(host.api().CreateGroup(kVm, Iops(kIops)));
    CrashRig rig(host, 1);
    for (const char* name : {"first", "second"}) {
      CrashCase what{.queues = 2, .storage = name, .group = kVm};
      what.spec = MemoryDisk(CrashRig::kDiskBytes);
      ASSERT_OK(rig.Add(what, {.load = {.only_reads_and_writes = true}}));
    }
    host.AddEngine(kGreen);
    UpgradeRig upgrades(host, kBlue, kGreen, 1);
    ASSERT_OK(rig.Start());
    Meter meter(rig);
    link.SetYield(LyingLink::Yield::kHeld, {}, rig.guests()[1]->id());
    ASSERT_EQ(upgrades.Begin(), "");
    const perf::Deadline deadline(UpgradeRig::kUpgradeTimeoutNs);
    while (link.held() == 0) {
      ASSERT_FALSE(deadline.passed()) << "the first one is not moved";
      poll(nullptr, 0, 1);
    }
    EXPECT_EQ(upgrades.StatusOf(kBlue).upgrade().moved(), 1U);
    poll(nullptr, 0, kOnTwoEnginesMs);
    link.Release();
    EXPECT_EQ(upgrades.WaitDone(), "");
    for (const auto& guest : rig.guests()) EXPECT_TRUE(guest->load().WaitProgress(100, kWaitTimeoutNs));
    meter.Stop();
    *excess = meter.Excess();
    fmt::print("{} requests, {:.0f} above the limit where it is most\n", meter.requests(), *excess);
    rig.Stop();
    EXPECT_EQ(rig.findings(), 0U) << rig.FindingsText();
  }
};

TEST_F(UpgradeLimitsTest, ItHoldsWhileTheControllersAreOnTwoEngines) {
  double excess = 0;
  Measure(false, &excess);
  EXPECT_LE(excess, kAtOnce);
}

TEST_F(UpgradeLimitsTest, EnginesThatCountForThemselvesAreFound) {
  double excess = 0;
  Measure(true, &excess);
  EXPECT_GT(excess, 5 * kAtOnce);
}

}  // namespace
}  // namespace cleat::system_test::upgrade_limits_test
