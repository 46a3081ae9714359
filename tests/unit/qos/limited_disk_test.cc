// SPDX-License-Identifier: Apache-2.0
// One disk: how exact its limits are, bursts, debts, changes, and what becomes of what waits.
#include <array>
#include <memory>
#include <vector>

#include "tests/unit/qos/rig.h"

namespace cleat::qos::test::limited_disk_test {
namespace {

using cleat::test::VirtualReactors;

constexpr uint64_t kTenSeconds = 10 * kNsPerSecond;

TEST(LimitedDisk, DeliversRequestsWithinOnePercent) {
  for (const uint64_t iops : {1, 100, 6'000, 1'000'000}) {
    VirtualReactors reactors;
    const auto disk = MakeDisk(Iops(iops));
    Guest guest(reactors[0], *disk, 128, 4096);
    RunFor(reactors, SecondsFor(iops) * kNsPerSecond);
    ExpectWithinOnePercent(guest.passed(), static_cast<double>(iops), static_cast<double>(SecondsFor(iops)));
    EXPECT_TRUE(guest.in_order());
    guest.End();
  }
}

TEST(LimitedDisk, DeliversBytesWithinOnePercent) {
  for (const uint64_t bytes :
       {uint64_t{4096}, uint64_t{1'000'000}, uint64_t{200'000'000}, uint64_t{4'000'000'000}}) {
    VirtualReactors reactors;
    const auto disk = MakeDisk(Bytes(bytes));
    Guest guest(reactors[0], *disk, 32, 4096);
    const uint64_t seconds = SecondsFor(bytes / 4096);
    RunFor(reactors, seconds * kNsPerSecond);
    ExpectWithinOnePercent(guest.passed_bytes(), static_cast<double>(bytes), static_cast<double>(seconds),
                           4096);
    guest.End();
  }
}

TEST(LimitedDisk, OnTwoReactorsHasOneLimit) {
  for (const uint64_t iops : {10, 6'000, 500'000}) {
    VirtualReactors reactors(2);
    const auto disk = MakeDisk(Iops(iops));
    Guest first(reactors[0], *disk, 64, 4096);
    Guest second(reactors[1], *disk, 64, 4096);
    RunFor(reactors, SecondsFor(iops) * kNsPerSecond);
    ExpectWithinOnePercent(first.passed() + second.passed(), static_cast<double>(iops),
                           static_cast<double>(SecondsFor(iops)));
    EXPECT_GT(Jain({static_cast<double>(first.passed()), static_cast<double>(second.passed())}), 0.99);
    for (Guest* guest : {&first, &second}) guest->End();
  }
}

TEST(LimitedDisk, CountsReadsAndWritesApart) {
  VirtualReactors reactors;
  Limits limits;
  limits[Meter::kReadIops] = {1000, 0, 0};
  limits[Meter::kWriteBytes] = {1 << 20, 0, 0};
  const auto disk = MakeDisk(limits);
  const auto disk2 = MakeDisk(limits);
  Guest reader(reactors[0], *disk, 8, 4096);
  Guest writer(reactors[0], *disk2, 8, 4096, block::Op::kWrite);
  RunFor(reactors, kTenSeconds);
  ExpectWithinOnePercent(reader.passed(), 1000, 10);
  ExpectWithinOnePercent(writer.passed(), 256, 10);
  for (Guest* guest : {&reader, &writer}) guest->End();
}

// Flushes and discards cost a request, and no bytes.
TEST(LimitedDisk, FlushesCostRequestsAndNoBytes) {
  VirtualReactors reactors;
  Limits limits;
  limits[Meter::kWriteIops] = {500, 0, 0};
  limits[Meter::kBytes] = {512, 0, 0};
  const auto disk = MakeDisk(limits);
  Guest guest(reactors[0], *disk, 8, 1 << 20, block::Op::kDiscard);
  RunFor(reactors, kTenSeconds);
  ExpectWithinOnePercent(guest.passed(), 500, 10);
  guest.End();
}

// Saved: 200 ms * (3000 - 1000) = 400 requests, in 400 ms of idling. Then 3,000 a second for 200 ms, and 1,000 a second.
TEST(LimitedDisk, BurstIsWhatWasPromised) {
  VirtualReactors reactors;
  Limits limits;
  limits[Meter::kIops] = {1000, 3000, 200};
  const auto disk = MakeDisk(limits);
  Guest guest(reactors[0], *disk, 64, 4096);
  RunFor(reactors, kNsPerSecond);
  EXPECT_NEAR(static_cast<double>(guest.passed()), 1000, 10);  // nothing is saved at first
  guest.Stop();
  RunFor(reactors, kNsPerSecond);
  const uint64_t before = guest.passed();
  guest.Start();
  RunFor(reactors, 100 * kNsPerMs);
  // With the peak's tolerance of 10 ms, and up to 2.5 ms that the reactor held.
  EXPECT_NEAR(static_cast<double>(guest.passed() - before), 300 + 30 + 4, 6);
  RunFor(reactors, 900 * kNsPerMs);
  EXPECT_NEAR(static_cast<double>(guest.passed() - before), 1000 + 400, 14);
  guest.End();
}

TEST(LimitedDisk, WithoutABurstAnIdleSecondSavesTheToleranceAlone) {
  VirtualReactors reactors;
  const auto disk = MakeDisk(Iops(10'000));
  Guest guest(reactors[0], *disk, 512, 4096);
  RunFor(reactors, kNsPerSecond);
  guest.Stop();
  RunFor(reactors, kNsPerSecond);
  const uint64_t before = guest.passed();
  guest.Start();
  RunFor(reactors, kNsPerSecond);
  const uint64_t after = guest.passed() - before;
  EXPECT_GE(after, 10'000U);
  EXPECT_LE(after, 10'000U + 100 + 25 + 1);  // 10 ms, and what a reactor may hold
  guest.End();
}

TEST(LimitedDisk, LargeRequestGoesIntoDebt) {
  VirtualReactors reactors;
  const auto disk = MakeDisk(Bytes(1 << 20));
  Guest guest(reactors[0], *disk, 2, 4 << 20);
  RunFor(reactors, kNsPerSecond);
  EXPECT_EQ(guest.passed(), 1U);
  RunFor(reactors, 100 * kNsPerSecond);
  EXPECT_NEAR(static_cast<double>(guest.passed()), 25, 1);
  guest.End();
}

TEST(LimitedDisk, LongDebtDoesNotOutliveTheLimitThatMadeIt) {
  VirtualReactors reactors;
  const auto disk = MakeDisk(Bytes(1024));
  Guest guest(reactors[0], *disk, 1, 1 << 20);
  RunFor(reactors, kNsPerSecond);
  EXPECT_EQ(guest.passed(), 1U);  // and the next one in 1023 s
  reactors[0].PostCall([&] { disk->SetLimits(Bytes(1 << 20)); });
  RunFor(reactors, kTenSeconds);
  EXPECT_NEAR(static_cast<double>(guest.passed()), 11, 1);
  guest.Stop();
  reactors[0].PostCall([&] { disk->SetLimits({}); });
  reactors.RunUntilIdle();
  EXPECT_EQ(guest.in_flight(), 0U);
}

TEST(LimitedDisk, OnlyWhatWaitedShowsThatItDid) {
  VirtualReactors reactors;
  const auto disk = MakeDisk(Iops(1000));
  RunFor(reactors, kNsPerSecond);
  {
    Guest guest(reactors[0], *disk, 1, 4096);
    reactors[0].RunOnce();
    guest.Stop();
    EXPECT_EQ(guest.passed(), 1U);
    EXPECT_EQ(guest.stamped(), 0U);
  }
  Guest guest(reactors[0], *disk, 10, 4096);
  RunFor(reactors, 5 * kNsPerMs);
  guest.Stop();
  RunFor(reactors, kNsPerSecond);
  EXPECT_GE(guest.stamped(), guest.passed() - 2);
}

TEST(LimitedDisk, RecallAbortsWhatWaitsInOrder) {
  VirtualReactors reactors;
  const auto disk = MakeDisk(Iops(1));
  Guest guest(reactors[0], *disk, 100, 4096);
  RunFor(reactors, kNsPerMs);
  guest.Stop();
  guest.channel().AbortQueued(nullptr);
  EXPECT_EQ(guest.passed(), 1U);
  EXPECT_EQ(guest.aborted(), 100U);  // that one was submitted again
  EXPECT_TRUE(guest.in_order());
  EXPECT_EQ(guest.in_flight(), 0U);
}

// Storage at which everything waits until it is aborted.
class KeepingDevice final : public block::Device {
 public:
  KeepingDevice()
      : Device("disks/keeps", block::DiskShape{"disks/keeps", uint64_t{1} << 40, 512, 512}.ToGeometry()) {}
  uint32_t frames() const override { return 0; }
  Result<std::unique_ptr<block::Channel>> OpenChannel(Reactor& /*reactor*/) override {
    return std::unique_ptr<block::Channel>(std::make_unique<Keeper>());
  }

 private:
  struct Keeper final : block::Channel {
    void Submit(block::Request& request) override { kept.PushBack(request); }
    void AbortQueued(const block::Request* /*only*/) override {
      block::RequestList aborted;
      aborted.Splice(kept);
      while (block::Request* request = aborted.PopFront()) request->Complete(block::IoStatus::kAborted);
    }
    block::RequestList kept;
  };
};

TEST(LimitedDisk, WhatComesWhileOthersAreRecalledIsNew) {
  VirtualReactors reactors;
  const auto disk = LimitedDevice::Make(std::make_unique<KeepingDevice>(), Iops(1), nullptr).value();
  RunFor(reactors, kNsPerSecond);
  struct Guest {
    std::unique_ptr<block::Channel> channel;
    std::array<block::Request, 3> requests;
    std::vector<size_t> aborted;
    void Submit(size_t i) {
      requests[i].Push(&Done, this).scratch[0] = i;
      channel->Submit(requests[i]);
    }
    static void Done(block::Request& request, const block::Frame& frame) {
      auto& guest = *static_cast<Guest*>(frame.layer);
      const size_t i = frame.scratch[0];
      EXPECT_EQ(request.status, block::IoStatus::kAborted);
      guest.aborted.push_back(i);
      if (i == 0) guest.Submit(2);
    }
  } guest;
  guest.channel = disk->OpenChannel(reactors[0]).value();
  guest.Submit(0);  // is let pass, and waits below
  guest.Submit(1);  // waits for the limit
  guest.channel->AbortQueued(nullptr);
  EXPECT_EQ(guest.aborted, (std::vector<size_t>{0, 1})) << "and not the one that was submitted within it";
  guest.channel->AbortQueued(nullptr);
  EXPECT_EQ(guest.aborted, (std::vector<size_t>{0, 1, 2}));
}

TEST(LimitedDisk, WhatIsLetPassIsPaidAfterwards) {
  VirtualReactors reactors;
  const auto disk = MakeDisk(Iops(10));
  Guest guest(reactors[0], *disk, 101, 4096);
  RunFor(reactors, kNsPerMs);
  guest.Stop();
  guest.channel().throttle()->SetBypass(true);
  guest.channel().throttle()->SetBypass(false);
  EXPECT_EQ(guest.passed(), 102U);
  EXPECT_TRUE(guest.in_order());
  guest.Start();
  RunFor(reactors, kTenSeconds - kNsPerSecond);
  EXPECT_EQ(guest.passed(), 102U);
  RunFor(reactors, kTenSeconds + kNsPerSecond);
  ExpectWithinOnePercent(guest.passed(), 10, 20);
  guest.End();
}

TEST(LimitedDisk, SaysUntilWhenItOwes) {
  VirtualReactors reactors;
  const auto disk = MakeDisk(Iops(10));
  Guest guest(reactors[0], *disk, 101, 4096);
  RunFor(reactors, kNsPerMs);
  EXPECT_EQ(guest.channel().throttle()->DebtUntilNs(), 0U);  // what waits owes nothing
  guest.Stop();
  const uint64_t now_ns = reactors.clock().NowNs();
  guest.channel().throttle()->SetBypass(true);
  guest.channel().throttle()->SetBypass(false);
  const auto owes_s = [&] {
    const uint64_t until_ns = guest.channel().throttle()->DebtUntilNs();
    return until_ns == 0 ? 0 : static_cast<double>(until_ns - now_ns) / static_cast<double>(kNsPerSecond);
  };
  EXPECT_NEAR(owes_s(), 10.2, 0.02);
  RunFor(reactors, kTenSeconds / 2);
  EXPECT_NEAR(owes_s(), 10.2, 0.02);
  // Of five seconds' debt at ten a second, one is left at fifty.
  reactors[0].PostCall([&] { disk->SetLimits(Iops(50)); });
  reactors[0].RunOnce();
  EXPECT_NEAR(owes_s(), 6.05, 0.02);
  RunFor(reactors, kNsPerSecond + 100 * kNsPerMs);
  EXPECT_EQ(owes_s(), 0);
  guest.End();
}

TEST(LimitedDisk, OwesNothingWithoutALimit) {
  VirtualReactors reactors;
  const auto disk = MakeDisk(Iops(1));
  Guest guest(reactors[0], *disk, 10, 4096);
  RunFor(reactors, kNsPerMs);
  guest.Stop();
  guest.channel().throttle()->SetBypass(true);
  guest.channel().throttle()->SetBypass(false);
  EXPECT_NE(guest.channel().throttle()->DebtUntilNs(), 0U);
  reactors[0].PostCall([&] { disk->SetLimits({}); });
  reactors[0].RunOnce();
  EXPECT_EQ(guest.channel().throttle()->DebtUntilNs(), 0U);
}

TEST(LimitedDisk, RefusesBadLimitsAndLeavesTheDiskAlone) {
  std::unique_ptr<block::Device> below = std::make_unique<SinkDevice>();
  Limits limits;
  limits[Meter::kIops] = {1000, 10, 10};
  const auto made = LimitedDevice::Make(std::move(below), limits, nullptr);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(below, nullptr);  // NOLINT(bugprone-use-after-move): that is what is tested
}

}  // namespace
}  // namespace cleat::qos::test::limited_disk_test
