// SPDX-License-Identifier: Apache-2.0
// Engines that are killed over a slow disk. What the kernel has taken from them goes on landing after their end, and a
// successor that wrote at once would have its newer blocks overwritten by older ones. The disk is real (a loop device
// behind the kernel's throttle), slow for the engine that dies and fast for its successor, so that without the lock on
// the open file the successor would win every race that it must not enter.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "tests/support/paths.h"
#include "throttled_disk.h"

namespace cleat::system_test::slow_disk_test {
namespace {

constexpr uint64_t kRounds = kSanitized ? 2 : 4;
constexpr uint64_t kControlRounds = 10;
// The guest's 16 requests are nearly all writes that wait for the disk once it has become slow. They keep landing for more
// than a second.
constexpr uint32_t kWritesPerSecond = 8;
constexpr int kSlowForMs = 300;
constexpr uint64_t kLandLimitNs = 5 * kNsPerSecond;

// Reads and writes are the kernel's once it has taken them, and a killed process ends at once. Flushes and write zeroes
// are done by threads of the process in the kernel (io-wq), and it does not end before they are done: then little is
// left to land late.
enum class Load : uint8_t { kReadsAndWrites, kEverything };

struct SlowCase {
  const char* name;
  bool scsi;
  Load load;
};

class SlowDisk : public testing::TestWithParam<SlowCase> {};

// Waits until something that the dead engine wrote has landed, so that there is a witness; false when nothing did.
bool LandsLate(const ThrottledDisk& disk) {
  const std::string at_the_end = disk.Content();
  const uint64_t until_ns = MonotonicClock().NowNs() + kLandLimitNs;
  while (MonotonicClock().NowNs() < until_ns) {
    if (disk.Content() != at_the_end) return true;
    poll(nullptr, 0, 5);
  }
  return false;
}

// So many engines that are killed over a slow disk, with writes that land after their end.
class SlowRig {
 public:
  SlowRig(Host& host, ThrottledDisk& disk, const SlowCase& what) : host_(host), disk_(disk), rig_(host, 1) {
    const bool waits = what.load == Load::kReadsAndWrites;
    const Status added =
        rig_.Add({.scsi = what.scsi, .packed = what.scsi, .queues = 2, .device = disk.path()},
                 {.load = {.only_reads_and_writes = what.load == Load::kReadsAndWrites}});
    EXPECT_OK(added);
    rig_.SetAroundKill(
        [this] {
          EXPECT_OK(disk_.Slow(host_.engine().pid(), kWritesPerSecond));
          poll(nullptr, 0, kSlowForMs);
        },
        [this, waits] { late_ += waits && LandsLate(disk_) ? 1 : 0; });
  }

  void Run(uint64_t kills) {
    ASSERT_OK(rig_.Start());
    while (rig_.kills() < kills && rig_.Do(CrashEvent::kEngine)) {
    }
    rig_.Stop();
    fmt::print("{} engines had writes that were seen to land after their end; {}\n", late_, rig_.Summary());
  }

  uint64_t late() const { return late_; }
  CrashRig& rig() { return rig_; }

 private:
  Host& host_;
  ThrottledDisk& disk_;
  CrashRig rig_;
  uint64_t late_ = 0;
};

TEST_P(SlowDisk, WritesLandAfterTheEngineIsGone) {
  auto disk = ThrottledDisk::Make(CrashRig::kDiskBytes);
  if (!disk) GTEST_SKIP() << disk.error().message << ": NOTHING was tested here";
  Host host({.reactors = 1});
  ASSERT_TRUE(host.ok());
  SlowRig slow(host, **disk, GetParam());
  slow.Run(kRounds);
  EXPECT_EQ(slow.rig().findings(), 0U) << slow.rig().FindingsText();
  EXPECT_EQ(slow.rig().kills(), kRounds);
  if (GetParam().load == Load::kReadsAndWrites) {
    EXPECT_EQ(slow.late(), kRounds) << "the disk was not slow enough to show anything";
  }
}

// Negative control: the same with engines to which every lock seems to be theirs.
TEST(SlowDiskControl, WithoutALockItIsFound) {
  if (kSanitized)
    GTEST_SKIP() << "sanitizers don't share a process with preloaded libraries: NOTHING was tested";
  setenv("LD_PRELOAD", test::BuiltForTests("libcleat_no_lock.so").c_str(),
         1);  // NOLINT(concurrency-mt-unsafe): no other thread yet
  auto disk = ThrottledDisk::Make(CrashRig::kDiskBytes);
  if (!disk) GTEST_SKIP() << disk.error().message << ": NOTHING was tested here";
  Host host({.reactors = 1});
  ASSERT_TRUE(host.ok());
  SlowRig slow(host, **disk, {"NoLock", false, Load::kReadsAndWrites});
  slow.Run(kControlRounds);
  unsetenv("LD_PRELOAD");  // NOLINT(concurrency-mt-unsafe)
  EXPECT_GT(slow.rig().findings(), 0U) << "nothing was found in " << slow.rig().kills() << " kills";
}

INSTANTIATE_TEST_SUITE_P(Crash, SlowDisk,
                         testing::Values(SlowCase{"BlkSplit", false, Load::kReadsAndWrites},
                                         SlowCase{"ScsiPacked", true, Load::kReadsAndWrites},
                                         SlowCase{"WithFlushes", false, Load::kEverything}),
                         [](const auto& what) { return what.param.name; });

}  // namespace
}  // namespace cleat::system_test::slow_disk_test
