// SPDX-License-Identifier: Apache-2.0
// Hosts' connections go from one engine's target to the next one's, over real sockets: hosts go on, whatever they have under way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/nvmf_target/hand_over_host.h"
#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"
#include "tests/unit/nvmf_target/two_engines.h"

namespace cleat::nvmf_target::hand_over_test {
namespace {

using block::IoStatus;
using block::Op;
using hand_over_host::kBlocks;
using hand_over_host::SendWrite;
using hand_over_host::Succeeds;
using nvme::Opcode;
using test::Arena;
using test::Association;
using test::Associations;
using test::BlocksEntry;
using test::Io;
using test::RandomLoad;
using test::RawHost;
using test::TargetRig;
using test::TestDisk;
using test::TwoEngines;

using Bytes = std::vector<uint8_t>;

constexpr const char* kSecret = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

TEST(HandOverTest, AHostNoticesNothingUnderLoadHoweverOftenItsConnectionsMoveOn) {
  for (const bool digests : {false, true}) {
    SCOPED_TRACE(digests);
    TwoEngines engines;
    TargetRig& rig = engines.rig;
    ASSERT_NO_FATAL_FAILURE(rig.OpenHost(digests, digests));
    bool moved = true, in_next = false;
    int moves = 0, turns = 0, not_whole = 0;
    const auto move = [&](TargetRig& r) -> Task<void> {
      TargetService& from = in_next ? *engines.next : *r.service;
      TargetService& to = in_next ? *r.service : *engines.next;
      auto associations = co_await from.HandOver(TargetRig::kNqn, r.control->now_ns() + 60 * kNsPerSecond);
      not_whole += associations.ok() && associations->size() == 1 ? 0 : 1;
      in_next = !in_next;
      ++moves;
      const Status served =
          to.Serve(TargetRig::kNqn, TargetService::Addresses::kOwn, std::move(associations).value());
      not_whole += served.ok() ? 0 : 1;
    };
    TestDisk disk(*rig.host, *rig.io[0], [&] {
      rig.Turn();
      if (!moved || ++turns % 7 != 0) return;
      moved = false;
      rig.Begin(move, moved);
    });
    RandomLoad load(disk, 11, 0, TargetRig::kBytes);
    load.Run(1500);
    rig.Until([&] { return moved; });
    EXPECT_EQ(Bytes(rig.storage->content), load.reference());
    EXPECT_TRUE(rig.broken.empty()) << rig.broken.front();
    EXPECT_EQ(not_whole, 0);
    EXPECT_GT(moves, 30);
    EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).connections, 1U) << "the host has come once";
    EXPECT_EQ(engines.next->StatusOf(TargetRig::kNqn).connections, 0U);
  }
}

// More than there is memory for, here and there.
TEST(HandOverTest, CommandsThatWaitForMemoryGoOnInTheNextEngine) {
  TwoEngines engines({.commands = 64, .data_slabs = 2, .capsule_slabs = 1});
  TargetRig& rig = engines.rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  bool moved = true, has_moved = false;
  int turns = 0;
  const auto move = [&](TargetRig& r) -> Task<void> {
    auto associations = co_await r.service->HandOver(TargetRig::kNqn, kNoDeadline);
    has_moved = true;
    (void)engines.next->Serve(TargetRig::kNqn, TargetService::Addresses::kOwn,
                              std::move(associations).value());
  };
  TestDisk disk(*rig.host, *rig.io[0], [&] {
    rig.Turn();
    if (++turns != 40) return;
    moved = false;
    rig.Begin(move, moved);
  });
  RandomLoad load(disk, 5, 0, TargetRig::kBytes);
  load.Run(400);
  EXPECT_TRUE(has_moved);
  EXPECT_EQ(Bytes(rig.storage->content), load.reference());
  EXPECT_TRUE(rig.broken.empty());
}

TEST(HandOverTest, WhatIsInTheStorageIsWaitedForAndAnswered) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  Arena arena(4096);
  Io write;
  write.segments = {{&arena.region(), 0, 4096}};
  rig.storage->holds = true;
  rig.disk->Start(write, Op::kWrite, 0, 4096);
  rig.Until([&] { return !rig.storage->held.empty(); });
  bool done = false;
  Associations associations;
  rig.Begin(
      [&](TargetRig& r) -> Task<void> {
        associations = (co_await r.service->HandOver(TargetRig::kNqn, kNoDeadline)).value();
      },
      done);
  engines.Turns();
  EXPECT_FALSE(done);
  rig.storage->LetGo();
  rig.Until([&] { return done; });
  EXPECT_FALSE(rig.service->serves(TargetRig::kNqn));
  ASSERT_EQ(associations.size(), 1U);
  engines.Serve(std::move(associations));
  EXPECT_EQ(rig.disk->Wait(write), IoStatus::kOk);
  EXPECT_EQ(rig.disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
  EXPECT_TRUE(rig.broken.empty());
}

TEST(HandOverTest, WhatWaitsForLimitsGoesPastThem) {
  TwoEngines engines;
  Association host(engines.rig);
  engines.rig.storage->queues = true;
  SendWrite(host.queue, 0, 'A');
  engines.rig.Until([&] { return !engines.rig.storage->queued.empty(); });
  ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
  EXPECT_TRUE(Succeeds(host.queue.Answer()));
  EXPECT_EQ(engines.rig.storage->content[0], 'A');
  SendWrite(host.queue, 0, 'B');
  engines.rig.Until([&] { return !engines.rig.storage->queued.empty(); });
  EXPECT_TRUE(host.queue.IsQuiet()) << "limits hold again";
}

// By the capsule, by R2T, and without data.
TEST(HandOverTest, WhatTheStorageHasNotBegunTheNextEngineDoes) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  Association host(rig);
  rig.storage->queues = rig.storage->without_limits = true;
  SendWrite(host.queue, 0, 'A');
  host.queue.Send(BlocksEntry(Opcode::kWrite, 64, 64, false));
  const uint16_t cid = host.queue.last_cid();
  const uint16_t tag = host.queue.AskedTag();
  nvme::tcp::H2cData data;
  data.header = {nvme::tcp::PduType::kH2cData, nvme::tcp::kFlagLast, sizeof(data), sizeof(data),
                 sizeof(data) + 64 * 512};
  data.cid = cid;
  data.ttag = tag;
  data.data_bytes = 64 * 512;
  host.queue.SendPdu(data, Bytes(64 * 512, 'B'));
  host.queue.Send(nvme::fabrics::EntryOf(nvme::OnBlocks(Opcode::kWriteZeroes, 1, 256, 8, 0)));
  host.queue.Send(BlocksEntry(Opcode::kRead, 512, kBlocks, false));
  std::memset(rig.storage->content.data() + 256 * 512, 'x', 8 * 512);
  rig.Until([&] { return rig.storage->queued.size() == 4; });
  ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
  rig.Until([&] { return rig.storage->queued.size() == 4; });
  EXPECT_EQ(rig.storage->content[0], 0);
  rig.storage->Unqueue();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Succeeds(host.queue.Answer())) << i;
  EXPECT_EQ(rig.storage->content[0], 'A');
  EXPECT_EQ(rig.storage->content[64 * 512], 'B');
  EXPECT_EQ(rig.storage->content[127 * 512], 'B');
  EXPECT_EQ(rig.storage->content[256 * 512], 0);
}

TEST(HandOverTest, WhatWaitsForSpaceHoldsNothingUpAndWaitsOnInTheNextEngine) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  rig.backing->SetWaitsForSpace(true);
  Association host(rig);
  rig.storage->fails = IoStatus::kNoSpace;
  SendWrite(host.queue, 0, 'A');
  EXPECT_TRUE(host.queue.IsQuiet());
  ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
  EXPECT_TRUE(host.queue.IsQuiet());
  EXPECT_EQ(engines.controllers(), 1U);
  rig.storage->fails = IoStatus::kOk;
  EXPECT_TRUE(Succeeds(host.queue.Answer()));
  EXPECT_EQ(rig.storage->content[0], 'A');
}

// Storage tells of what it has lost only once: a second flush would succeed.
TEST(HandOverTest, AFlushThatHadNoSpaceIsAnsweredAndNotDoneAgain) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  Association host(rig);
  rig.storage->holds = true;
  host.queue.Send(nvme::fabrics::EntryOf(nvme::Flush(1)));
  rig.Until([&] { return !rig.storage->held.empty(); });
  bool done = false;
  Associations associations;
  rig.Begin(
      [&](TargetRig& r) -> Task<void> {
        associations = (co_await r.service->HandOver(TargetRig::kNqn, kNoDeadline)).value();
      },
      done);
  engines.Turns();
  rig.storage->fails = IoStatus::kNoSpace;
  rig.storage->LetGo();
  rig.Until([&] { return done; });
  rig.storage->fails = IoStatus::kOk;
  engines.Serve(std::move(associations));
  const auto answer = host.queue.Answer();
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->status().ok());
  EXPECT_EQ(rig.storage->flushes, 0U);
}

// The next engine begins anew with one of many pieces.
TEST(HandOverTest, OneOfManyPiecesEndsBehindThePieceThatIsInTheStorage) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  Association host(rig);
  constexpr uint32_t kZeroed = 4 * test::Storage::kPieceBytes / 512;
  std::ranges::fill(rig.storage->content, uint8_t{'x'});
  rig.storage->holds = true;
  host.queue.Send(nvme::fabrics::EntryOf(nvme::OnBlocks(Opcode::kWriteZeroes, 1, 0, kZeroed, 0)));
  rig.Until([&] { return !rig.storage->held.empty(); });
  bool done = false;
  Associations associations;
  rig.Begin(
      [&](TargetRig& r) -> Task<void> {
        associations = (co_await r.service->HandOver(TargetRig::kNqn, kNoDeadline)).value();
      },
      done);
  engines.Turns();
  rig.storage->LetGo();
  rig.Until([&] { return done; });
  EXPECT_EQ(rig.storage->content[test::Storage::kPieceBytes], 'x');
  ASSERT_EQ(associations.size(), 1U);
  engines.Serve(std::move(associations));
  EXPECT_TRUE(Succeeds(host.queue.Answer()));
  EXPECT_EQ(rig.storage->content[kZeroed * 512 - 1], 0);
}

// By when the disk behind the namespace's identifier is another one.
enum class Exchanged { kBefore, kAfter, kBeforeADeadlinePasses };

TEST(HandOverTest, AWriteWhoseDataComesLateDoesNotReachAnotherDisk) {
  for (const Exchanged when : {Exchanged::kBefore, Exchanged::kAfter, Exchanged::kBeforeADeadlinePasses}) {
    SCOPED_TRACE(static_cast<int>(when));
    TwoEngines engines;
    TargetRig& rig = engines.rig;
    Association host(rig);
    host.queue.Send(BlocksEntry(Opcode::kWrite, 0, 64, false));
    nvme::tcp::H2cData data;
    data.header = {nvme::tcp::PduType::kH2cData, nvme::tcp::kFlagLast, sizeof(data), sizeof(data),
                   sizeof(data) + 64 * 512};
    data.cid = host.queue.last_cid();
    data.ttag = host.queue.AskedTag();
    data.data_bytes = 64 * 512;
    TargetService& holder = when == Exchanged::kAfter ? *engines.next : *rig.service;
    if (when == Exchanged::kAfter) {
      ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
    }
    engines.Turns();
    ASSERT_NO_FATAL_FAILURE(engines.Exchange(holder));
    if (when == Exchanged::kBeforeADeadlinePasses) {
      Association other(rig);
      rig.storage->holds = true;
      SendWrite(other.queue, 128, 'C');
      rig.Until([&] { return !rig.storage->held.empty(); });
      const auto handed = engines.HandOver(20 * kNsPerMs);
      ASSERT_FALSE(handed.ok());
      EXPECT_EQ(handed.error().code, ErrorCode::kDeadlineExceeded);
      rig.storage->LetGo();
      ASSERT_TRUE(Succeeds(other.queue.Answer()));
    }
    if (when != Exchanged::kAfter) {
      ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
    }
    host.queue.SendPdu(data, Bytes(64 * 512, 'A'));
    const auto answer = host.queue.Answer();
    ASSERT_TRUE(answer);
    EXPECT_FALSE(answer->status().ok());
    EXPECT_EQ(rig.storage->content[0], 0);
  }
}

// The host has lost the path of A, and the engine has not noticed: B is the same write again. A must not land behind it.
TEST(HandOverTest, AWriteThatIsLeftUndoneWhileNewerOnesWaitForItIsDroppedWithItsPath) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  Association first(rig), second(rig);
  rig.storage->queues = rig.storage->without_limits = true;
  SendWrite(first.queue, 0, 'A');
  rig.Until([&] { return !rig.storage->queued.empty(); });
  const uint64_t until_ns = rig.clock.NowNs() + 3 * WriteOrder::kYoungNs;
  while (rig.clock.NowNs() < until_ns) rig.Turn();
  SendWrite(second.queue, 0, 'B');
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).held_writes == 1; });
  ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
  ASSERT_EQ(engines.controllers(), 1U);
  EXPECT_EQ(first.queue.Answer(), std::nullopt);
  rig.Until([&] { return !rig.storage->queued.empty(); });
  rig.storage->Unqueue();
  EXPECT_TRUE(Succeeds(second.queue.Answer()));
  engines.Turns();
  EXPECT_EQ(rig.storage->content[0], 'B');
}

// As above, but B comes only after A's move: it has to find A in the next engine, however young that is, on whichever reactor.
TEST(HandOverTest, AWriteThatIsDoneAgainIsOlderThanWhatComesByOtherPaths) {
  for (const bool swapped : {false, true}) {
    SCOPED_TRACE(swapped);
    TwoEngines engines;
    TargetRig& rig = engines.rig;
    Association one(rig), other(rig);
    Association &first = swapped ? other : one, &second = swapped ? one : other;
    rig.storage->queues = rig.storage->without_limits = true;
    SendWrite(first.queue, 0, 'A');
    rig.Until([&] { return !rig.storage->queued.empty(); });
    auto associations = engines.HandOver();
    ASSERT_TRUE(associations.ok());
    SendWrite(second.queue, 0, 'B');  // stands in the socket
    engines.Serve(std::move(*associations));
    rig.Until([&] {
      return rig.storage->queued.size() + engines.next->StatusOf(TargetRig::kNqn).held_writes == 2;
    });
    EXPECT_EQ(rig.storage->queued.size(), 1U) << "A alone";
    rig.storage->Unqueue();
    EXPECT_TRUE(Succeeds(first.queue.Answer()));
    EXPECT_TRUE(Succeeds(second.queue.Answer()));
    EXPECT_EQ(rig.storage->content[0], 'B');
  }
}

// The next engine asks others for their data, by tags of its own, which may be the same.
TEST(HandOverTest, DataThatWasAskedForComesToTheNextEngineByTheTagOfTheOneBefore) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  Association host(rig);
  const auto ask = [&](uint64_t block) {
    host.queue.Send(BlocksEntry(Opcode::kWrite, block, 64, false));
    nvme::tcp::H2cData data;
    data.header = {nvme::tcp::PduType::kH2cData, 0, sizeof(data), sizeof(data), sizeof(data) + 32 * 512};
    data.cid = host.queue.last_cid();
    data.ttag = host.queue.AskedTag();
    data.data_bytes = 32 * 512;
    return data;
  };
  nvme::tcp::H2cData first = ask(0);
  host.queue.SendPdu(first, Bytes(32 * 512, 'A'));
  engines.Turns();
  ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
  nvme::tcp::H2cData second = ask(128);
  host.queue.SendPdu(second, Bytes(32 * 512, 'C'));
  const auto finish = [&](nvme::tcp::H2cData& data, uint8_t value) {
    data.header.flags = nvme::tcp::kFlagLast;
    data.offset_bytes = data.data_bytes;
    host.queue.SendPdu(data, Bytes(32 * 512, value));
    return Succeeds(host.queue.Answer());
  };
  EXPECT_TRUE(finish(first, 'B'));
  EXPECT_TRUE(finish(second, 'D'));
  EXPECT_EQ(rig.storage->content[0], 'A');
  EXPECT_EQ(rig.storage->content[32 * 512], 'B');
  EXPECT_EQ(rig.storage->content[128 * 512], 'C');
  EXPECT_EQ(rig.storage->content[160 * 512], 'D');
}

TEST(HandOverTest, AHostHearsOfEventsOfTheNextEngine) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
  ASSERT_TRUE(rig.Await<Status>([](TargetRig& r) { return r.backing->Resize(2 * TargetRig::kBytes); }).ok());
  const Status told = rig.Await<Status>([&](TargetRig& r) -> Task<Status> {
    co_return engines.next->ChangeNamespace(TargetRig::kNqn, 1, r.ShapeOf(1));
  });
  ASSERT_TRUE(told.ok());
  rig.Until([&] { return !rig.resized.empty(); });
  EXPECT_EQ(rig.resized.front(), 2 * TargetRig::kBytes);
  EXPECT_TRUE(rig.broken.empty());
}

// Its queues, and those that it connects from then on.
TEST(HandOverTest, AnAssociationIsWholeInTheNextEngine) {
  TwoEngines engines;
  Association host(engines.rig);
  const auto before = host.queue.Do(BlocksEntry(Opcode::kRead, 0, kBlocks, false));
  ASSERT_TRUE(Succeeds(before));
  ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
  const auto after = host.queue.Do(BlocksEntry(Opcode::kRead, 0, kBlocks, false));
  ASSERT_TRUE(Succeeds(after));
  EXPECT_EQ(after->sq_head, before->sq_head + 1);
  RawHost more(engines.rig);
  more.SendConnect(1, host.controller);
  const auto taken = more.Answer();
  ASSERT_TRUE(taken);
  EXPECT_FALSE(taken->status().ok()) << "queue 1 is there";
  RawHost second(engines.rig);
  second.SendConnect(2, host.controller);
  EXPECT_TRUE(Succeeds(second.Answer()));
  EXPECT_TRUE(Succeeds(second.Do(BlocksEntry(Opcode::kRead, 0, kBlocks, false))));
  EXPECT_TRUE(Succeeds(host.admin.Do(nvme::fabrics::EntryOf(nvme::KeepAlive()))));
  // Reset: the queues end, and the admin queue stays.
  EXPECT_TRUE(Succeeds(host.admin.Do(nvme::fabrics::EntryOf(
      nvme::fabrics::PropertySet(nvme::fabrics::Property::kConfiguration, 4U << 20 | 6U << 16)))));
  EXPECT_EQ(host.queue.Answer(), std::nullopt);
  EXPECT_TRUE(Succeeds(
      host.admin.Do(nvme::fabrics::EntryOf(nvme::fabrics::PropertyGet(nvme::fabrics::Property::kStatus)))));
}

TEST(HandOverTest, AHostThatHasProvedItselfGoesOn) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  rig.host_chap = std::make_shared<const nvme::auth::ChapSecrets>(nvme::auth::ChapSecrets{
      .host = std::move(nvme::auth::ChapSecret::Parse(kSecret, "it")).value(), .controller = {}});
  nvme::target::HostAccess proves = nvme::target::HostAccess::Named(TargetRig::HostNqn());
  proves.chap = rig.host_chap;
  ASSERT_TRUE(rig.SetHosts({proves}).ok());
  const Status set = rig.Await<Status>(
      [&](TargetRig&) -> Task<Status> { co_return engines.next->SetHosts(TargetRig::kNqn, {proves}); });
  ASSERT_TRUE(set.ok());
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
  RandomLoad load(*rig.disk, 3, 0, TargetRig::kBytes);
  load.Run(100);
  EXPECT_EQ(Bytes(rig.storage->content), load.reference());
  EXPECT_TRUE(rig.broken.empty());
}

}  // namespace
}  // namespace cleat::nvmf_target::hand_over_test
