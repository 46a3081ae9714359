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

#include "base/clock.h"
#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "lying_link.h"
#include "perf/vhost_user/deadline.h"
#include "upgrade_rig.h"

namespace cleat::system_test::upgrade_limits_test {
namespace {

constexpr char kBlue[] = "blue";
constexpr char kGreen[] = "green";
constexpr char kVm[] = "vm";
// Little, so that guests want more of it than they get on a busy machine as well.
constexpr uint64_t kIops = 200;
// While the controllers are on two engines. Engines that counted for themselves would be a hundred and more above by then.
constexpr uint64_t kRequests = 300;
// What a limit without a burst lets pass at once (qos/token_bucket.h: 10 ms of it), what each of two reactors has taken
// ahead (2.5 ms at most), and what may have been let pass and was not taken by the guests at the stretch's begin: 8 requests
// on each of 2 queues of 2 guests.
constexpr double kAtOnce = static_cast<double>(kIops) * 0.015 + 32;
constexpr double kFound = 4 * kAtOnce;

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

  // By how many requests the limit was exceeded where it was by most; below kAtOnce if it was not. Every pair of moments is
  // looked at: of all that is above the rate's line, the most that it went up from any moment on.
  double Excess() const { return excess_; }
  uint64_t requests() const { return requests_; }

  // Until that is the excess; false when it never is.
  bool WaitExcess(double excess) const {
    const perf::Deadline deadline(kWaitTimeoutNs);
    while (excess_ <= excess) {
      if (deadline.passed()) return false;
      poll(nullptr, 0, 1);
    }
    return true;
  }

 private:
  static double Paid(uint64_t ns) {
    return static_cast<double>(ns) * static_cast<double>(kIops) / static_cast<double>(kNsPerSecond);
  }

  uint64_t Count() const {
    uint64_t requests = 0;
    for (const auto& guest : rig_.guests()) requests += guest->load().counts().requests;
    return requests;
  }

  void Run() {
    const uint64_t begin_ns = clock_.NowNs();
    const uint64_t before = Count();
    double lowest = 0;
    while (!stop_) {
      // This thread may stand still between looking at the clock and counting: a stretch is from before the one count to
      // after the other.
      const uint64_t since_ns = clock_.NowNs() - begin_ns;
      const uint64_t requests = Count() - before;
      const uint64_t until_ns = clock_.NowNs() - begin_ns;
      requests_ = requests;
      excess_ = std::max(excess_.load(), static_cast<double>(requests) - Paid(until_ns) - lowest);
      lowest = std::min(lowest, static_cast<double>(requests) - Paid(since_ns));
      poll(nullptr, 0, 1);
    }
  }

  const CrashRig& rig_;
  const MonotonicClock clock_;
  std::atomic<double> excess_{0};
  std::atomic<uint64_t> requests_{0};
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
    if (apart) {
      EXPECT_TRUE(meter.WaitExcess(kFound));
    } else {
      for (const auto& guest : rig.guests())
        EXPECT_TRUE(guest->load().WaitProgress(kRequests / 2, kWaitTimeoutNs));
    }
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
  EXPECT_GT(excess, kFound);
}

}  // namespace
}  // namespace cleat::system_test::upgrade_limits_test
