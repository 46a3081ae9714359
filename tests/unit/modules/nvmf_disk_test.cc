// SPDX-License-Identifier: Apache-2.0
// A disk in a namespace of a target of the tests' own (nvmf_target.h): I/O, what is refused at its opening, and paths that break. Costs
// about six seconds, most of it pauses between tries to connect.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::modules::nvmf_disk_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Arena;
using test::Io;
using test::NvmfRig;
using test::NvmfTarget;
using test::OneWrite;
using test::RandomLoad;
using test::TestDisk;

constexpr uint32_t kBlock = NvmfTarget::kBlockBytes;

bool TargetHas(NvmfTarget& target, uint64_t offset, const std::vector<uint8_t>& data) {
  return target.Read(offset, data.size()) == data;
}
bool TargetHas(NvmfTarget& target, OneWrite& write) {
  return std::memcmp(target.Read(write.offset_bytes, write.length_bytes).data(), write.arena.data(),
                     write.length_bytes) == 0;
}
bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// ---- I/O

TEST(NvmfDisk, AgreesWithTheReference) {
  for (const bool digests : {false, true}) {
    NvmfRig rig;
    rig.subsystem.header_digest = rig.subsystem.data_digest = digests;
    rig.Open();
    auto disk = rig.Channel();
    RandomLoad load(*disk, 11, 64 * kBlock, 3 << 20);
    load.Run(400);
    EXPECT_TRUE(TargetHas(rig.target, 64 * kBlock, load.reference()));
    EXPECT_EQ(rig.target.counts.digest_errors, 0U);
    EXPECT_GT(rig.target.counts.zeroes, 0U);
    EXPECT_GT(rig.target.counts.discards, 0U);
    EXPECT_GT(rig.target.counts.flushes, 0U);
    disk.reset();
    rig.Close();
  }
}

TEST(NvmfDisk, ALargeRequestIsCutToTheControllersTransferSize) {
  NvmfTarget::Options options;
  options.mdts = 1;  // 8 KiB
  NvmfRig rig(options);
  rig.Open();
  auto disk = rig.Channel();
  OneWrite write(8 * kBlock, 1 << 20, 0x3c);
  write.Start(*disk);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_TRUE(TargetHas(rig.target, write));
  EXPECT_EQ(rig.target.counts.longest_bytes, 8192U);
  EXPECT_EQ(rig.target.counts.writes, 128U);
}

TEST(NvmfDisk, SaysWhatTheTargetCan) {
  {
    NvmfRig rig;
    rig.Open();
    const block::Geometry& geometry = rig.device->geometry();
    EXPECT_TRUE(geometry.discard && geometry.write_zeroes && geometry.write_cache);
    EXPECT_EQ(geometry.size_bytes, NvmfRig::kBytes);
    EXPECT_EQ(rig.device->io_path(), "NVMe/TCP 127.0.0.1:" + std::to_string(rig.target.port()));
  }
  NvmfTarget::Options options;
  options.write_zeroes = options.write_cache = false;
  NvmfRig rig(options);
  rig.Open();
  EXPECT_FALSE(rig.device->geometry().write_zeroes || rig.device->geometry().write_cache);
  auto disk = rig.Channel();
  EXPECT_EQ(disk->Do(Op::kFlush, 0, 0), IoStatus::kOk);
  EXPECT_EQ(rig.target.counts.flushes, 0U);
}

TEST(NvmfDisk, ChannelsOnSeveralReactorsHaveAQueueEach) {
  NvmfRig rig;
  rig.Open();
  auto first = rig.Channel(0);
  auto second = rig.Channel(1);
  OneWrite write(0, 4096, 0x11);
  write.Start(*first);
  EXPECT_EQ(first->Wait(write.io), IoStatus::kOk);
  Arena arena(4096);
  EXPECT_EQ(second->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), write.arena.data(), 4096), 0);
  EXPECT_EQ(rig.target.counts.io_queues, 2U);
}

// What a channel has of a queue's identifier goes on to others, also to more of them over time than the target grants at a time.
TEST(NvmfDisk, ChannelsThatCloseLeaveTheirQueuesToOthers) {
  NvmfRig rig;
  rig.target.faults.io_queues = 2;
  rig.Open();
  for (size_t round = 0; round < 6; ++round) {
    auto disk = rig.Channel(round % 2);
    Arena arena(4096);
    EXPECT_EQ(disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  }
  EXPECT_TRUE(rig.broken.empty());
}

TEST(NvmfDisk, MoreChannelsThanTheTargetGrantsQueuesAreRefused) {
  NvmfRig rig;
  rig.target.faults.io_queues = 1;
  rig.Open();
  auto disk = rig.Channel();
  const auto refused = rig.device->OpenChannel(*rig.io[1]);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_TRUE(Contains(refused.error().message, "1 I/O queues")) << refused.error().message;
}

TEST(NvmfDisk, AQueueThatTheTargetHoldsBackIsConnectedALittleLater) {
  NvmfRig rig;
  rig.Open();
  rig.target.faults.refuse_queue = true;
  auto disk = rig.Channel();
  Arena arena(4096);
  EXPECT_EQ(disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_FALSE(rig.target.faults.refuse_queue);
  EXPECT_TRUE(rig.broken.empty());
}

// ---- What is refused at the opening

TEST(NvmfDisk, OptionsWithoutSenseAreRefused) {
  const auto refused = [](const std::function<void(NvmfRig&)>& spoil) {
    NvmfRig rig;
    spoil(rig);
    const auto opened = rig.TryOpen(rig.Options());
    EXPECT_FALSE(opened.ok());
    EXPECT_EQ(rig.target.counts.accepted, 0U);
    return opened.ok() ? ErrorCode::kInternal : opened.error().code;
  };
  EXPECT_EQ(refused([](NvmfRig& rig) { rig.subsystem.addresses.clear(); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](NvmfRig& rig) { rig.subsystem.nqn = "x"; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](NvmfRig& rig) { rig.subsystem.host.id = {}; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused([](NvmfRig& rig) { rig.subsystem.kato_ms = 10; }), ErrorCode::kInvalidArgument);
}

// The options of a disk that the target does not have so, and what the refusal names.
struct Refusal {
  const char* name;
  void (*spoil)(NvmfRig& rig, NvmfOptions& options);
  ErrorCode code;
  const char* text;
};

class NvmfRefusal : public testing::TestWithParam<Refusal> {};

INSTANTIATE_TEST_SUITE_P(
    Each, NvmfRefusal,
    testing::Values(
        Refusal{"AnotherNamespace", [](NvmfRig&, NvmfOptions& options) { options.name_space[0] ^= 1; },
                ErrorCode::kNotFound, "no namespace here is"},
        Refusal{"ATooSmallNamespace",
                [](NvmfRig&, NvmfOptions& options) { options.shape.size_bytes = uint64_t{1} << 30; },
                ErrorCode::kFailedPrecondition, "make the namespace larger"},
        Refusal{"BlocksOfAnotherSize",
                [](NvmfRig&, NvmfOptions& options) { options.shape.logical_block_bytes = 4096; },
                ErrorCode::kFailedPrecondition, "blocks of 512 bytes"},
        Refusal{"WriteProtection",
                [](NvmfRig& rig, NvmfOptions&) { rig.target.faults.write_protected = true; },
                ErrorCode::kFailedPrecondition, "write-protected"},
        Refusal{"AHostThatIsNotAllowed",
                [](NvmfRig& rig, NvmfOptions&) { rig.target.faults.refuse_host = true; },
                ErrorCode::kPermissionDenied, "uuid:070707"},
        Refusal{"NobodyWhoListens",
                [](NvmfRig& rig, NvmfOptions& options) {
                  rig.target.Stop();
                  options.open_timeout_ns = 300 * kNsPerMs;
                },
                ErrorCode::kUnavailable, "refused"}),
    [](const auto& refusal) { return std::string(refusal.param.name); });

TEST_P(NvmfRefusal, IsNamedAndNothingIsLeft) {
  NvmfRig rig;
  NvmfOptions options = rig.Options();
  GetParam().spoil(rig, options);
  const auto opened = rig.TryOpen(std::move(options));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, GetParam().code) << opened.error().message;
  EXPECT_TRUE(opened.error().message.starts_with("disks/n: ")) << opened.error().message;
  EXPECT_TRUE(Contains(opened.error().message, GetParam().text)) << opened.error().message;
  EXPECT_TRUE(rig.broken.empty());
}

TEST(NvmfDisk, AWriteProtectedNamespaceIsOpenedForReading) {
  NvmfRig rig;
  rig.target.faults.write_protected = true;
  NvmfOptions options = rig.Options();
  options.access = block::AccessMode::kReadOnly;
  rig.Open(std::move(options));
  Arena arena(4096);
  EXPECT_EQ(rig.Channel()->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
}

TEST(NvmfDisk, ATargetThatComesWithinTheTimeIsFound) {
  NvmfRig rig;
  rig.target.Stop();
  NvmfOptions options = rig.Options();
  options.open_timeout_ns = 60 * kNsPerSecond;
  std::thread starter([&rig] { rig.target.Start(); });
  rig.Open(std::move(options));
  starter.join();
}

TEST(NvmfDisk, IsDestroyedWithoutHavingBeenClosed) {
  NvmfRig rig;
  rig.Open();
  auto disk = rig.Channel();
  rig.UntilConnected(0);
  disk.reset();
  rig.pipeline.reset();
}

// ---- Paths that break

TEST(NvmfDisk, RequestsWaitForATargetThatIsAway) {
  NvmfRig rig;
  rig.Open();
  auto disk = rig.Channel();
  rig.target.Stop();
  rig.UntilBroken();
  OneWrite write(0, 128 * 1024, 0x77);
  write.Start(*disk);
  rig.ForSomeTurns();
  EXPECT_FALSE(write.io.done);
  rig.target.Start();
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_TRUE(TargetHas(rig.target, write));
  rig.UntilConnected();
  EXPECT_EQ(rig.broken.size(), 1U);
}

// By the stamps an engine tells storage that does not answer from a limit that keeps a request.
TEST(NvmfDisk, WhatWaitsWithoutAPathIsTheStorages) {
  if (!block::kCountersOn) GTEST_SKIP() << "requests have no stamps";
  NvmfRig rig;
  rig.Open();
  auto disk = rig.Channel();
  rig.target.Stop();
  rig.UntilBroken();
  OneWrite write(0, 4096, 0x77);
  write.io.request.stamps.Seen(1, 1, /*batch=*/0);
  write.Start(*disk);
  rig.ForSomeTurns();
  const auto at_ns = [&](RequestStage stage) { return write.io.request.stamps.at_ns(stage); };
  EXPECT_NE(at_ns(RequestStage::kSubmitted), 0U);
  EXPECT_EQ(at_ns(RequestStage::kDone), 0U);
  const uint64_t back_ns = rig.clock.NowNs();
  rig.target.Start();
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_LT(at_ns(RequestStage::kSubmitted), back_ns);
  EXPECT_GT(at_ns(RequestStage::kDone), back_ns);
}

// The target is stopped with all of its connections, so that nothing of what it was sent is executed later: ConfirmDead is true.
TEST(NvmfDisk, ATargetThatIsStoppedUnderLoadCostsNoRequestAndNoByte) {
  NvmfRig rig;
  rig.Open();
  int stops = 0;
  TestDisk disk(*rig.pipeline, *rig.io[0], [&] {
    rig.Turn();
    if (stops < 3 && rig.target.counts.io_commands > 100U * static_cast<uint32_t>(stops + 1)) {
      rig.target.Stop();
      rig.UntilBroken(static_cast<size_t>(++stops));
      rig.ConfirmDead();
      rig.target.Start();
    }
  });
  RandomLoad load(disk, 5, 0, 2 << 20);
  load.Run(600);
  EXPECT_EQ(stops, 3);
  EXPECT_TRUE(TargetHas(rig.target, 0, load.reference()));
  rig.UntilConnected(3);
  EXPECT_EQ(rig.broken.size(), 3U);
}

TEST(NvmfDisk, AQueueThatIsCutInTheMidstOfAWriteBreaksThePathForAll) {
  NvmfRig rig;
  rig.Open();
  auto first = rig.Channel(0);
  auto second = rig.Channel(1);
  Arena arena(4096);
  EXPECT_EQ(second->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  rig.target.faults.cut_io = true;
  OneWrite write(0, 4096, 0x42);
  write.Start(*first);
  EXPECT_EQ(first->Wait(write.io), IoStatus::kOk);
  EXPECT_TRUE(TargetHas(rig.target, write));
  EXPECT_EQ(second->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), write.arena.data(), 4096), 0);
  EXPECT_EQ(rig.target.counts.admin_queues, 2U);
  EXPECT_EQ(rig.broken.size(), 1U);
}

// A write that the target has got and never answered: its own retry goes through, and whoever would write over it waits until somebody says
// that the first attempt is dead, on this reactor and on others.
TEST(NvmfDisk, AWriteInDoubtHoldsNewerOnesOverItAndNoOthers) {
  NvmfRig rig;
  rig.Open();
  auto first = rig.Channel(0);
  auto second = rig.Channel(1);
  Arena arena(4096);
  EXPECT_EQ(second->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  rig.target.faults.mute_writes = true;
  const uint32_t before = rig.target.counts.io_commands;
  OneWrite doubted(8192, 4096, 1);
  doubted.Start(*first);
  rig.Until([&] { return rig.target.counts.io_commands > before; });
  rig.target.faults.mute_writes = false;
  rig.target.CutAll();
  EXPECT_EQ(first->Wait(doubted.io), IoStatus::kOk);
  EXPECT_TRUE(TargetHas(rig.target, doubted));

  OneWrite over_here(8192 + 2048, 4096, 2);
  OneWrite over_there(8192 - 2048, 4096, 3);
  OneWrite beside(8192 + 8192, 4096, 4);
  over_here.Start(*first);
  over_there.Start(*second);
  beside.Start(*second);
  EXPECT_EQ(second->Wait(beside.io), IoStatus::kOk);
  EXPECT_EQ(second->Do(Op::kRead, 8192, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), doubted.arena.data(), 4096), 0);
  rig.ForSomeTurns();
  EXPECT_FALSE(over_here.io.done || over_there.io.done);

  rig.ConfirmDead();
  EXPECT_EQ(first->Wait(over_here.io), IoStatus::kOk);
  EXPECT_EQ(second->Wait(over_there.io), IoStatus::kOk);
}

TEST(NvmfDisk, ChannelsComeAndGoWhileThePathIsBroken) {
  NvmfRig rig;
  rig.Open();
  auto early = rig.Channel(0);
  rig.target.Stop();
  rig.UntilBroken();
  auto late = rig.Channel(1);
  early.reset();
  OneWrite write(0, 4096, 9);
  write.Start(*late);
  rig.ForSomeTurns();
  EXPECT_FALSE(write.io.done);
  auto later = rig.Channel(0);
  rig.target.Start();
  EXPECT_EQ(late->Wait(write.io), IoStatus::kOk);
  Arena arena(4096);
  EXPECT_EQ(later->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), write.arena.data(), 4096), 0);
}

// The one that goes has not heard of the life's end: whoever waits for its report must not wait for ever.
TEST(NvmfDisk, AChannelThatClosesAtTheMomentOfALossHoldsNobodyUp) {
  NvmfRig rig;
  rig.Open();
  auto stays = rig.Channel(0);
  auto goes = rig.Channel(1);
  Arena arena(4096);
  EXPECT_EQ(goes->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(stays->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  rig.target.CutAll();
  while (rig.broken.empty()) rig.control->RunOnce();
  goes.reset();
  OneWrite write(0, 4096, 9);
  write.Start(*stays);
  EXPECT_EQ(stays->Wait(write.io), IoStatus::kOk);
}

TEST(NvmfDisk, RequestsThatWaitForThePathAreAborted) {
  NvmfRig rig;
  rig.Open();
  auto disk = rig.Channel();
  rig.target.Stop();
  rig.UntilBroken();
  OneWrite write(0, 4096, 9);
  write.Start(*disk);
  disk->channel().AbortQueued(nullptr);
  EXPECT_TRUE(write.io.done);
  EXPECT_EQ(write.io.status(), IoStatus::kAborted);
  disk.reset();
  rig.Close();
}

TEST(NvmfDisk, IsClosedWhileThePathIsBroken) {
  NvmfRig rig;
  rig.Open();
  rig.target.Stop();
  rig.UntilBroken();
  rig.Close();
  rig.target.Start();
  rig.ForSomeTurns();
  EXPECT_EQ(rig.target.counts.admin_queues, 1U);
}

TEST(NvmfDisk, IsClosedByItsOwnerWhenThePathBreaks) {
  NvmfRig rig;
  bool closed = false;
  NvmfOptions options = rig.Options();
  options.events.broken = [&](const Error&) {
    const auto close = [](NvmfRig& of, bool& done) -> Task<void> {
      done = (co_await of.pipeline->Close()).ok();
    };
    Spawn(close(rig, closed));
  };
  rig.Open(std::move(options));
  rig.target.CutAll();
  rig.Until([&] { return closed; });
}

TEST(NvmfDisk, AControllerWithAWriteCacheDoesNotTakeThePlaceOfOneWithout) {
  NvmfTarget::Options options;
  options.write_cache = false;
  NvmfRig rig(options);
  rig.Open();
  auto disk = rig.Channel();
  rig.target.faults.write_cache_appears = true;
  rig.target.CutAll();
  rig.UntilBroken(2);
  EXPECT_TRUE(Contains(rig.broken[1], "write cache")) << rig.broken[1];
  rig.target.faults.write_cache_appears = false;
  rig.UntilConnected();
}

TEST(NvmfDisk, FewerQueuesThanChannelsAreNoPath) {
  NvmfRig rig;
  rig.Open();
  auto first = rig.Channel(0);
  auto second = rig.Channel(1);
  rig.target.faults.io_queues = 1;
  rig.target.CutAll();
  rig.UntilBroken(2);
  EXPECT_TRUE(Contains(rig.broken[1], "1 I/O queues are granted, 2 are in use")) << rig.broken[1];
  second.reset();
  rig.UntilConnected();
}

// ---- The namespace changes

TEST(NvmfDisk, GrowsWithItsNamespace) {
  NvmfRig rig;
  rig.Open();
  auto disk = rig.Channel();
  constexpr uint64_t kLarger = uint64_t{12} << 20;
  const Status too_large = rig.Await(rig.pipeline->Resize(kLarger));
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(too_large.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(rig.resized.empty());

  rig.target.Grow(kLarger);
  const Status resized = rig.Await(rig.pipeline->Resize(kLarger));
  ASSERT_TRUE(resized.ok()) << resized.error().message;
  EXPECT_EQ(rig.resized, std::vector<uint64_t>{kLarger});
  rig.Until([&] { return disk->channel().geometry().size_bytes == kLarger; });
  OneWrite write(kLarger - 4096, 4096, 6);
  write.Start(*disk);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
}

TEST(NvmfDisk, ItsOwnerHearsOfASizeThatTheTargetTells) {
  NvmfRig rig;
  rig.Open();
  rig.target.Grow(uint64_t{16} << 20);
  rig.target.NotifyNamespace();
  rig.Until([&] { return !rig.resized.empty(); });
  EXPECT_EQ(rig.resized, std::vector<uint64_t>{uint64_t{16} << 20});
}

TEST(NvmfDisk, RequestsWaitForANamespaceThatIsDetached) {
  NvmfRig rig;
  rig.Open();
  auto disk = rig.Channel();
  rig.target.faults.detached = true;
  rig.target.NotifyNamespace();
  rig.UntilBroken();
  EXPECT_TRUE(Contains(rig.broken[0], "detached")) << rig.broken[0];
  OneWrite write(0, 4096, 6);
  write.Start(*disk);
  rig.ForSomeTurns();
  EXPECT_FALSE(write.io.done);
  rig.target.faults.detached = false;
  rig.target.NotifyNamespace();
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_EQ(rig.connected, 1);
}

// ---- Threads

// Each reactor on a thread of its own, and a target that cuts all connections again and again.
TEST(NvmfDisk, ReactorsOnThreadsOfTheirOwnGoThroughLosses) {
  NvmfRig rig;
  rig.Open();
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < rig.io.size(); ++i) {
    threads.emplace_back([&rig, &running, i] {
      Reactor& reactor = *rig.io[i];
      {
        TestDisk disk(*rig.pipeline, reactor, [&reactor] { reactor.RunOnce(); });
        RandomLoad load(disk, 20 + i, i << 21, 2 << 20);
        load.Run(300);
      }
      --running;
      while (running > 0) reactor.RunOnce();
    });
  }
  size_t cuts = 0;
  while (running > 0) {
    rig.control->RunOnce();
    if (cuts < 4 && rig.broken.size() == cuts && rig.connected == static_cast<int>(cuts) &&
        rig.target.counts.io_commands > 60 * (cuts + 1)) {
      rig.target.Stop();
      rig.target.Start();
      ++cuts;
    }
    if (rig.broken.size() == cuts) (void)rig.device->ConfirmDead().ok();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(cuts, 0U);
}

}  // namespace
}  // namespace cleat::modules::nvmf_disk_test
