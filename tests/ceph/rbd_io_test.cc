// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "modules/rbd/rbd_channel.h"
#include "tests/ceph/rbd_rig.h"

namespace cleat::modules::rbd_io_test {
namespace {

class RbdIo : public testing::TestWithParam<uint32_t> {
 protected:
  MiniCeph& ceph_ = MiniCeph::Shared();
  CephHost host_;
};

INSTANTIATE_TEST_SUITE_P(Blocks, RbdIo, testing::Values(512U, 4096U));

// With discards of any size, as the reference has them: a discard below the granularity changes nothing by default.
TEST_P(RbdIo, AgreesWithTheReferenceAlsoAfterReopening) {
  constexpr uint64_t kBytes = 12 * kMiB;
  const std::string image = "model" + std::to_string(GetParam());
  ceph_.CreateImage(image, kBytes);
  auto cluster = ceph_.Cluster();
  cluster->settings["rbd_skip_partial_discard"] = "false";
  const auto options = CephHost::Options(cluster, image, kBytes, AccessMode::kReadWrite, GetParam());
  const MonotonicClock clock;
  std::vector<uint8_t> content;
  {
    auto reactor = std::move(Reactor::Make(clock, Reactor::Options())).value();
    auto opened = host_.Open(options);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ((*opened)->geometry().discard_granularity_bytes, GetParam());
    const auto step = [&reactor] {
      if (!reactor->RunOnce()) std::this_thread::yield();
    };
    test::TestDisk disk(std::move(opened).value(), *reactor, step);
    const Status acquired = host_.control().Await<Status>([&] { return disk.pipeline().Acquire(); });
    ASSERT_TRUE(acquired.ok()) << acquired.error().message;
    test::RandomLoad load(disk, GetParam(), 0, kBytes);
    load.Run(1500);
    EXPECT_EQ(disk.Do(Op::kFlush, 0, 0), IoStatus::kOk);
    content = load.reference();
    disk.CloseChannel();
    EXPECT_TRUE(host_.control().Await<Status>([&] { return disk.pipeline().Close(); }).ok());
  }
  const auto disk = host_.OpenDisk(options);
  ASSERT_NE(disk, nullptr);
  Arena arena(kBytes);
  ASSERT_EQ(disk->Do(Op::kRead, 0, kBytes, &arena), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), content.data(), kBytes), 0);
  EXPECT_EQ(std::memcmp(ceph_.ReadAll(image).data(), content.data(), kBytes), 0);
}

class RbdDisk : public testing::Test {
 protected:
  std::unique_ptr<test::HostDisk> Make(const std::string& image, uint64_t bytes) {
    ceph_.CreateImage(image, bytes);
    return host_.OpenDisk(CephHost::Options(ceph_.Cluster(), image, bytes));
  }
  MiniCeph& ceph_ = MiniCeph::Shared();
  CephHost host_;
};

// More at once than is ever given to librbd, in requests and in bytes.
TEST_F(RbdDisk, LosesNothingBeyondItsLimits) {
  constexpr uint64_t kRequests = 4 * RbdChannel::kInFlightMax;
  constexpr uint64_t kRequestBytes = 64 * 1024;
  static_assert(kRequests * kRequestBytes > 3 * RbdChannel::kInFlightBytesMax);
  const auto disk = Make("limits", kRequests * kRequestBytes);
  ASSERT_NE(disk, nullptr);
  Arena arena(kRequests * kRequestBytes);
  for (uint64_t i = 0; i < kRequests; ++i) std::memcpy(arena.data() + i * kRequestBytes, &i, sizeof i);
  for (const Op op : {Op::kWrite, Op::kRead}) {
    if (op == Op::kRead) std::memset(arena.data(), 0, kRequests * kRequestBytes);
    std::vector<std::unique_ptr<Io>> ios;
    std::vector<std::future<IoStatus>> done;
    for (uint64_t i = 0; i < kRequests; ++i) {
      ios.push_back(std::make_unique<Io>());
      ios.back()->segments = {{&arena.region(), i * kRequestBytes, kRequestBytes}};
      done.push_back(disk->Start(*ios.back(), op, i * kRequestBytes, kRequestBytes));
    }
    for (auto& one : done) ASSERT_EQ(one.get(), IoStatus::kOk);
  }
  for (uint64_t i = 0; i < kRequests; ++i) {
    uint64_t found = 0;
    std::memcpy(&found, arena.data() + i * kRequestBytes, sizeof found);
    ASSERT_EQ(found, i);
  }
}

// What a request waits for shows: the cluster, from when librbd has it.
TEST_F(RbdDisk, StampsWhenRequestsGoAndCome) {
  const auto disk = Make("stamps", kMiB);
  ASSERT_NE(disk, nullptr);
  Arena arena(4096);
  for (const Op op : {Op::kWrite, Op::kRead, Op::kFlush}) {
    Io io;
    io.segments = {{&arena.region(), 0, 4096}};
    ASSERT_EQ(disk->Start(io, op, 0, 4096).get(), IoStatus::kOk);
    const uint64_t submitted_ns = io.request.stamps.at_ns(RequestStage::kSubmitted);
    EXPECT_GT(submitted_ns, 0U);
    // A turn of the reactor has one time: what librbd answers within the turn is done when it was submitted.
    EXPECT_GE(io.request.stamps.at_ns(RequestStage::kDone), submitted_ns);
  }
}

TEST_F(RbdDisk, TellsWhatDiscardsItTakes) {
  const auto disk = Make("discards", 8 * kMiB);
  ASSERT_NE(disk, nullptr);
  const block::Geometry& geometry = disk->channel().geometry();
  EXPECT_TRUE(geometry.discard);
  EXPECT_EQ(geometry.discard_granularity_bytes, 65536U);
  EXPECT_EQ(geometry.discard_max_bytes, kRbdZeroBytesMax);
  EXPECT_TRUE(geometry.write_zeroes);
  EXPECT_EQ(geometry.optimal_io_bytes, 4 * kMiB);
  EXPECT_TRUE(geometry.write_cache);
  Arena arena(4 * kMiB);
  ASSERT_EQ(disk->Do(Op::kWrite, 0, 4 * kMiB, &arena), IoStatus::kOk);
  EXPECT_EQ(disk->Do(Op::kDiscard, 0, 4096), IoStatus::kOk);  // too small: a hint that is not taken
  EXPECT_EQ(disk->Do(Op::kDiscard, 65536, 65536), IoStatus::kOk);
  EXPECT_EQ(disk->Do(Op::kWriteZeroes, 262144 + 512, 1024), IoStatus::kOk);  // whatever its size
  const std::vector<uint8_t> content = ceph_.ReadAll("discards");
  EXPECT_EQ(content[0], 0xa5);
  EXPECT_EQ(content[65535], 0xa5);
  EXPECT_EQ(content[65536], 0);
  EXPECT_EQ(content[131071], 0);
  EXPECT_EQ(content[131072], 0xa5);
  EXPECT_EQ(content[262144 + 511], 0xa5);
  EXPECT_EQ(content[262144 + 512], 0);
  EXPECT_EQ(content[262144 + 1535], 0);
  EXPECT_EQ(content[262144 + 1536], 0xa5);
}

TEST_F(RbdDisk, ComparesAndWrites) {
  const auto disk = Make("compare", 4 * kMiB);
  ASSERT_NE(disk, nullptr);
  Arena arena(8192);
  std::memset(arena.data(), 0, 4096);  // what is there, then what shall be
  Io io;
  io.segments = {{&arena.region(), 0, 8192}};
  EXPECT_EQ(disk->Start(io, Op::kCompareAndWrite, 4096, 4096).get(), IoStatus::kOk);
  Io again;
  again.segments = {{&arena.region(), 0, 8192}};
  EXPECT_EQ(disk->Start(again, Op::kCompareAndWrite, 4096, 4096).get(), IoStatus::kMiscompare);
  EXPECT_EQ(ceph_.ReadAll("compare")[4096], 0xa5);
}

TEST_F(RbdDisk, ReadsASnapshotWithoutALock) {
  Arena arena(4096);
  const auto disk = Make("original", 4 * kMiB);
  ASSERT_NE(disk, nullptr);
  ASSERT_EQ(disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
  ceph_.Snapshot("original", "then");
  std::memset(arena.data(), 0x11, 4096);
  ASSERT_EQ(disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);

  auto options = CephHost::Options(ceph_.Cluster(), "original", 4 * kMiB, AccessMode::kReadOnly);
  const auto now = host_.OpenDisk(options);
  options.snapshot = "then";
  const auto then = host_.OpenDisk(options);
  ASSERT_TRUE(now != nullptr && then != nullptr);
  ASSERT_EQ(then->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(arena.data()[0], 0xa5);
  ASSERT_EQ(now->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(arena.data()[0], 0x11);
  EXPECT_EQ(then->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kReadOnly);
  EXPECT_FALSE(then->channel().geometry().discard);
}

TEST_F(RbdDisk, LivesInANamespace) {
  ceph_.CreateNamespace("tenant");
  ceph_.CreateImage("inside", 4 * kMiB, "tenant");
  auto options = CephHost::Options(ceph_.Cluster(), "inside", 4 * kMiB);
  options.name_space = "tenant";
  const auto disk = host_.OpenDisk(options);
  ASSERT_NE(disk, nullptr);
  Arena arena(4096);
  EXPECT_EQ(disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
}

// No write without the lock, neither before it is taken nor after it was given up: librbd itself refuses.
TEST_F(RbdDisk, WritesNothingWithoutTheLock) {
  const auto disk = Make("unlocked", 4 * kMiB);
  ASSERT_NE(disk, nullptr);
  Arena arena(4096);
  EXPECT_EQ(disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
  ASSERT_TRUE(disk->Release().ok());
  EXPECT_EQ(disk->Do(Op::kWrite, 4096, 4096, &arena), IoStatus::kReservationConflict);
  EXPECT_EQ(disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  ASSERT_TRUE(disk->Acquire().ok());
  EXPECT_EQ(disk->Do(Op::kWrite, 8192, 4096, &arena), IoStatus::kOk);
  const std::vector<uint8_t> content = ceph_.ReadAll("unlocked");
  EXPECT_EQ(content[4096], 0);
  EXPECT_EQ(content[8192], 0xa5);
}

}  // namespace
}  // namespace cleat::modules::rbd_io_test
