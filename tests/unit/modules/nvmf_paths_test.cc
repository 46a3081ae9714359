// SPDX-License-Identifier: Apache-2.0
// A disk over two paths to one namespace: which one requests go by, and what happens when one breaks. Costs about three seconds.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/unique_fd.h"
#include "modules/nvmf/channel/io_queue.h"
#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::modules::nvmf_paths_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Arena;
using test::NvmfRig;
using test::NvmfTarget;
using test::OneWrite;
using test::RandomLoad;
using test::TestDisk;

constexpr uint8_t kOptimized = 1, kNonOptimized = 2, kInaccessible = 3;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// This process may open no file while it is there.
class NoFilesLeft {
 public:
  NoFilesLeft() {
    CLEAT_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const UniqueFd lowest(dup(0));
    const rlimit none{.rlim_cur = static_cast<rlim_t>(lowest.get()), .rlim_max = before_.rlim_max};
    CLEAT_CHECK(lowest.valid() && setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~NoFilesLeft() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoFilesLeft(const NoFilesLeft&) = delete;
  NoFilesLeft& operator=(const NoFilesLeft&) = delete;

 private:
  rlimit before_{};
};

NvmfTarget::Options WithAna() {
  NvmfTarget::Options options;
  options.ana = true;
  return options;
}

class NvmfPaths : public testing::Test {
 protected:
  // On both paths each channel has its I/O queue.
  void UntilBothHaveQueues(uint32_t channels = 1) {
    rig_.Until(
        [&] { return rig_.target.counts.io_queues >= channels && second_.counts.io_queues >= channels; });
    rig_.ForSomeTurns();  // their answers come
  }
  static void Read(TestDisk& disk, int times) {
    Arena arena(4096);
    for (int i = 0; i < times; ++i) EXPECT_EQ(disk.Do(Op::kRead, 4096 * i, 4096, &arena), IoStatus::kOk);
  }
  static void Change(NvmfTarget& target, uint8_t state) {
    target.faults.ana_state = state;
    target.NotifyAna();
  }
  bool HasLeft(const NvmfTarget& target, TestDisk& disk) {
    const uint32_t before = target.counts.reads;
    Read(disk, 4);
    return target.counts.reads == before;
  }

  NvmfRig rig_{WithAna()};
  NvmfTarget& second_ = rig_.AddPath(WithAna());
};

TEST_F(NvmfPaths, AddressesThatMakeNoSenseAreRefused) {
  const auto error = [this] {
    const auto opened = rig_.TryOpen(rig_.Options());
    return opened.ok() ? "" : opened.error().message;
  };
  rig_.subsystem.addresses.push_back(rig_.subsystem.addresses.front());
  EXPECT_TRUE(Contains(error(), "twice")) << error();
  rig_.subsystem.addresses.resize(9, rig_.subsystem.addresses.front());
  EXPECT_TRUE(Contains(error(), "9 addresses")) << error();
  EXPECT_EQ(rig_.target.counts.accepted, 0U);
}

TEST_F(NvmfPaths, BothAreUsedWhereBothAreEquallyGood) {
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  Read(*disk, 16);
  EXPECT_EQ(rig_.target.counts.reads, 8U);
  EXPECT_EQ(second_.counts.reads, 8U);
  EXPECT_TRUE(Contains(rig_.device->io_path(), ", 127.0.0.1:" + std::to_string(second_.port())))
      << rig_.device->io_path();
}

TEST_F(NvmfPaths, TheOptimizedOneIsUsedAsLongAsThereIsOne) {
  second_.faults.ana_state = kNonOptimized;
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  Read(*disk, 16);
  EXPECT_EQ(rig_.target.counts.reads, 16U);
  Change(second_, kOptimized);
  Change(rig_.target, kNonOptimized);
  rig_.Until([&] { return HasLeft(rig_.target, *disk); });
  EXPECT_GT(second_.counts.reads, 0U);
  Change(second_, kInaccessible);
  rig_.Until([&] { return HasLeft(second_, *disk); });
  EXPECT_TRUE(rig_.broken.empty());
}

TEST_F(NvmfPaths, ARefusalSendsARequestToTheOtherBeforeAnybodyWasTold) {
  second_.faults.ana_state = kNonOptimized;
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  rig_.target.faults.ana_state = kInaccessible;
  OneWrite write(0, 4096, 3);
  write.Start(*disk);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_EQ(rig_.target.counts.refused, 1U);
  EXPECT_EQ(second_.counts.writes, 1U);
  rig_.Until([&] { return HasLeft(rig_.target, *disk); });
  EXPECT_TRUE(rig_.broken.empty());
}

TEST_F(NvmfPaths, RequestsWaitWhileNoneLeadsThereAndGoOnByTheFirstThatDoes) {
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  Change(rig_.target, kInaccessible);
  Change(second_, kInaccessible);
  rig_.UntilBroken();
  EXPECT_TRUE(Contains(rig_.broken.front(), "ANA: inaccessible")) << rig_.broken.front();
  OneWrite write(0, 4096, 3);
  write.Start(*disk);
  rig_.ForSomeTurns();
  EXPECT_FALSE(write.io.done);
  Change(second_, kNonOptimized);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_EQ(rig_.connected, 1);
}

TEST_F(NvmfPaths, OneThatBreaksHoldsNothingUpAndComesBack) {
  rig_.Open();
  auto first = rig_.Channel(0);
  auto second = rig_.Channel(1);
  UntilBothHaveQueues(2);
  rig_.target.Stop();
  Read(*first, 8);
  OneWrite write(0, 64 * 1024, 9);
  write.Start(*second);
  EXPECT_EQ(second->Wait(write.io), IoStatus::kOk);
  const uint32_t queues = rig_.target.counts.io_queues;
  rig_.target.Start();
  rig_.Until([&] { return rig_.target.counts.io_queues >= queues + 2; });
  const uint32_t before = rig_.target.counts.reads;
  rig_.Until([&] {
    Read(*first, 2);
    return rig_.target.counts.reads > before;
  });
  EXPECT_TRUE(rig_.broken.empty());
  EXPECT_EQ(rig_.connected, 0);
}

// Reads and writes elsewhere go on at once by the other path; the retry of the write that is in doubt too; what overlaps it waits.
TEST_F(NvmfPaths, AWriteInDoubtIsRetriedOnTheOtherAndHoldsOnlyWhatOverlapsIt) {
  second_.faults.ana_state = kNonOptimized;
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  rig_.target.faults.mute_writes = true;
  OneWrite doubted(8192, 4096, 1);
  doubted.Start(*disk);
  rig_.Until([&] { return rig_.target.counts.io_commands > 0; });
  rig_.target.Stop();
  EXPECT_EQ(disk->Wait(doubted.io), IoStatus::kOk);
  EXPECT_EQ(second_.counts.writes, 1U);
  OneWrite over(8192 + 2048, 4096, 2);
  OneWrite beside(65536, 4096, 3);
  over.Start(*disk);
  beside.Start(*disk);
  EXPECT_EQ(disk->Wait(beside.io), IoStatus::kOk);
  Read(*disk, 4);
  rig_.ForSomeTurns();
  EXPECT_FALSE(over.io.done);
  rig_.ConfirmDead();
  EXPECT_EQ(disk->Wait(over.io), IoStatus::kOk);
}

TEST_F(NvmfPaths, BothThatBreakAreAnOutageUntilOneIsBack) {
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  rig_.target.Stop();
  second_.Stop();
  rig_.UntilBroken();
  OneWrite write(0, 4096, 5);
  write.Start(*disk);
  rig_.ForSomeTurns();
  EXPECT_FALSE(write.io.done);
  second_.Start();
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  rig_.UntilConnected();
  EXPECT_EQ(rig_.broken.size(), 1U);
}

// The target has no part in it, and other reactors' queues go on.
TEST_F(NvmfPaths, AHostThatHasNoFilesLeftForItsQueuesBlamesNoPath) {
  rig_.Open();
  auto disk = rig_.Channel(0);
  UntilBothHaveQueues();
  auto late = [&] {
    const NoFilesLeft none;
    auto channel = rig_.Channel(1);
    const uint64_t until_ns = rig_.clock.NowNs() + (IoQueue::kConnectTriesMax + 2) * IoQueue::kConnectPauseNs;
    rig_.Until([&] { return rig_.clock.NowNs() >= until_ns; });
    return channel;
  }();
  OneWrite write(0, 4096, 5);
  write.Start(*late);
  EXPECT_EQ(late->Wait(write.io), IoStatus::kOk);
  EXPECT_EQ(rig_.device->paths()->losses, 0U);
}

TEST_F(NvmfPaths, ADiskIsOpenedByOneAndTheOtherIsFoundLater) {
  rig_.target.Stop();
  rig_.Open();
  auto disk = rig_.Channel();
  Read(*disk, 2);
  rig_.target.Start();
  rig_.Until([&] { return rig_.target.counts.io_queues > 0; });
  rig_.Until([&] { return !HasLeft(rig_.target, *disk); });
  EXPECT_TRUE(rig_.broken.empty());
}

TEST_F(NvmfPaths, NeitherIsThereAndBothAreNamed) {
  rig_.target.Stop();
  second_.Stop();
  NvmfOptions options = rig_.Options();
  options.open_timeout_ns = 300 * kNsPerMs;
  const auto opened = rig_.TryOpen(std::move(options));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kUnavailable);
  for (const NvmfTarget* target : {&rig_.target, &second_})
    EXPECT_TRUE(Contains(opened.error().message, std::to_string(target->port()))) << opened.error().message;
}

// A path that leads to something else is left alone, and tried again.
TEST_F(NvmfPaths, OneWithoutTheNamespaceIsNotUsed) {
  second_.faults.detached = true;
  rig_.Open();
  auto disk = rig_.Channel();
  Read(*disk, 8);
  rig_.ForSomeTurns();
  EXPECT_EQ(second_.counts.io_queues, 0U);
  second_.faults.detached = false;
  rig_.Until([&] { return second_.counts.io_queues > 0; });
  EXPECT_TRUE(rig_.broken.empty());
}

TEST_F(NvmfPaths, ChannelsAreAsManyAsEachPathGrantsQueues) {
  second_.faults.io_queues = 1;
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  const auto refused = rig_.device->OpenChannel(*rig_.io[1]);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
}

TEST_F(NvmfPaths, ThatGrewIsSeenOnceHoweverManyTellOfIt) {
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  rig_.target.Grow(uint64_t{16} << 20);
  rig_.target.NotifyNamespace();
  second_.NotifyNamespace();
  rig_.Until([&] { return !rig_.resized.empty(); });
  rig_.ForSomeTurns();
  EXPECT_EQ(rig_.resized, (std::vector<uint64_t>{uint64_t{16} << 20}));
}

// As where the other gateway has not looked at its storage again yet.
TEST_F(NvmfPaths, AllHaveToKnowOfASizeBeforeAnybodyIsTold) {
  constexpr uint64_t kBefore = uint64_t{8} << 20;
  constexpr uint64_t kAfter = uint64_t{16} << 20;
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  second_.faults.shows_bytes = kBefore;
  rig_.target.Grow(kAfter);
  rig_.target.NotifyNamespace();
  rig_.ForSomeTurns();
  EXPECT_TRUE(rig_.resized.empty());
  second_.faults.shows_bytes = 0;
  second_.NotifyNamespace();
  rig_.Until([&] { return !rig_.resized.empty(); });
  EXPECT_EQ(rig_.resized, std::vector<uint64_t>{kAfter});
}

TEST_F(NvmfPaths, OneThatIsGoneHoldsNoSizeBack) {
  constexpr uint64_t kAfter = uint64_t{16} << 20;
  rig_.Open();
  auto disk = rig_.Channel();
  UntilBothHaveQueues();
  second_.faults.shows_bytes = uint64_t{8} << 20;
  rig_.target.Grow(kAfter);
  rig_.target.NotifyNamespace();
  rig_.ForSomeTurns();
  EXPECT_TRUE(rig_.resized.empty());
  second_.Stop();
  rig_.Until([&] { return !rig_.resized.empty(); });
  EXPECT_EQ(rig_.resized, std::vector<uint64_t>{kAfter});
}

TEST_F(NvmfPaths, OneWhoseNamespaceIsSmallerThanGuestsKnowOrProtectedIsNotUsed) {
  second_.faults.shows_bytes = NvmfRig::kBytes / 2;
  rig_.Open();
  auto disk = rig_.Channel();
  rig_.Until([&] { return rig_.target.counts.io_queues >= 1 && second_.counts.admin_queues >= 2; });
  Read(*disk, 8);
  EXPECT_EQ(second_.counts.reads, 0U);
  second_.faults.shows_bytes = 0;
  rig_.Until([&] { return second_.counts.io_queues >= 1; });

  second_.faults.write_protected = true;
  const uint32_t admin_queues = second_.counts.admin_queues;
  second_.CutAll();
  rig_.Until([&] { return second_.counts.admin_queues >= admin_queues + 2; });
  const uint32_t reads = second_.counts.reads;
  Read(*disk, 8);
  EXPECT_EQ(second_.counts.reads, reads);
}

// Each path in turn, again and again, under a load that knows what it wrote. A target that is stopped has executed or dropped all it got.
TEST_F(NvmfPaths, ThatAreStoppedInTurnUnderLoadCostNoByte) {
  rig_.Open();
  uint32_t stops = 0;
  uint32_t next_at = 100;
  TestDisk disk(*rig_.pipeline, *rig_.io[0], [&] {
    rig_.Turn();
    if (stops == 8 || rig_.target.counts.io_commands + second_.counts.io_commands < next_at) return;
    NvmfTarget& target = stops++ % 2 == 0 ? rig_.target : second_;
    const uint32_t queues = target.counts.io_queues;
    target.Stop();
    target.Start();
    rig_.Until([&] { return target.counts.io_queues > queues; });
    rig_.ConfirmDead();
    next_at = rig_.target.counts.io_commands + second_.counts.io_commands + 100;
  });
  RandomLoad load(disk, 7, 0, 2 << 20);
  load.Run(1500);
  EXPECT_EQ(stops, 8U);
  EXPECT_TRUE(rig_.target.Read(0, load.reference().size()) == load.reference());
  EXPECT_GT(second_.counts.writes, 0U);
  EXPECT_TRUE(rig_.broken.empty());
}

}  // namespace
}  // namespace cleat::modules::nvmf_paths_test
