// SPDX-License-Identifier: Apache-2.0
#include "perf/hostile/hostile.h"

#include <gtest/gtest.h>

#include "fake_backend.h"

namespace cleat::perf::hostile_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kDiskBytes = kMiB;

// What each case is said to do to a device is what it does to a careful one.
class RingAbuseTest : public ::testing::TestWithParam<RingAbuseCase> {};

TEST_P(RingAbuseTest, HasItsOutcome) {
  auto memory = GuestMemory::CreateWithHole(8 * kMiB).value();
  auto ring = DriverRing::Create(*memory, {.size = 16}).value();
  const uint64_t scratch = memory->Allocate(kAbuseScratchBytes, 4096).value();
  FakeDisk disk(kDiskBytes);
  FakeRing device;
  const FakeRing::Layout layout{ring->size(), memory->At(ring->desc_gpa(), 16),
                                memory->At(ring->avail_gpa(), 6), memory->At(ring->used_gpa(), 6)};
  device.Start(layout, 0, true);
  ASSERT_TRUE(Apply(GetParam().abuse, *ring, *memory, scratch, kDiskBytes / wire::kSectorBytes).ok());
  EXPECT_TRUE(ring->kick_pending());
  const size_t served =
      device.Process(disk, [&](uint64_t gpa, uint64_t size) { return memory->At(gpa, size); });
  const uint8_t status = *memory->At(scratch + kAbuseStatusOffset, 1);
  UsedEntry used;
  switch (GetParam().outcome) {
    case RingOutcome::kErrorStatus:
      EXPECT_FALSE(device.broken());
      ASSERT_EQ(ring->Pop(&used), PopResult::kDone);
      EXPECT_EQ(used.token, kAbuseToken);
      EXPECT_TRUE(status == wire::kBlkIoError || status == wire::kBlkUnsupported) << int{status};
      EXPECT_EQ(ring->free_descriptors(), ring->size()) << "the ring can be used again";
      break;
    case RingOutcome::kRingBroken:
      EXPECT_TRUE(device.broken());
      EXPECT_EQ(ring->Pop(&used), PopResult::kNone);
      break;
    case RingOutcome::kErrorOrBroken:
      EXPECT_TRUE(device.broken() || status == wire::kBlkIoError || status == wire::kBlkUnsupported);
      break;
    case RingOutcome::kTolerated:
      EXPECT_GE(served, 1U);
      break;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RingAbuseTest,
                         ::testing::ValuesIn(RingAbuseCases().begin(), RingAbuseCases().end()),
                         [](const auto& param) { return std::string(param.param.name); });

struct SocketHostility : ::testing::Test {
  void Connect() {
    auto [ours, theirs] = SocketPair();
    backend = std::make_unique<FakeBackend>(std::move(theirs), disk);
    frontend = Frontend::Wrap(std::move(ours));
    ASSERT_TRUE(frontend->Open().ok());
  }
  FakeDisk disk{kDiskBytes};
  std::unique_ptr<FakeBackend> backend;
  std::unique_ptr<Frontend> frontend;
};

TEST_F(SocketHostility, EveryCaseIsSentAndEndsWithTheConnection) {
  for (const SocketAbuseCase& abuse : SocketAbuseCases()) {
    Connect();
    const Status status = Apply(abuse.abuse, *frontend);
    EXPECT_TRUE(status.ok() || status.error().code == ErrorCode::kUnavailable ||
                status.error().code == ErrorCode::kFailedPrecondition)
        << abuse.name << ": " << status.error().message;
    frontend->Disconnect();
    backend->Join();
    // None but good messages are counted: those of Open, and what the case has of them.
    EXPECT_GE(backend->requests().size(), 6U) << abuse.name;
  }
}

TEST_F(SocketHostility, EverySetupCaseIsRefusedByACarefulBackEnd) {
  for (const SetupAbuseCase& abuse : SetupAbuseCases()) {
    Connect();
    frontend->set_ack(AckMode::kAlways);
    auto memory = GuestMemory::CreateWithHole(8 * kMiB).value();
    ASSERT_TRUE(frontend->SetMemTable(*memory).ok());
    const Status status = Apply(abuse.abuse, *frontend, *memory);
    const bool not_seen_here =
        abuse.abuse == SetupAbuse::kKickIsNoEventfd || abuse.abuse == SetupAbuse::kRegionsOverlap ||
        abuse.abuse == SetupAbuse::kRegionWraps || abuse.abuse == SetupAbuse::kTooManyRegions;
    if (!not_seen_here) {
      EXPECT_FALSE(status.ok()) << abuse.name;
    }
    backend.reset();
  }
}

}  // namespace
}  // namespace cleat::perf::hostile_test
