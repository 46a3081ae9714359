// SPDX-License-Identifier: Apache-2.0
// Hosts that are let in, and then do what no host should; and moments that only a slow machine knows.
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::nvmf_target::hostile_host_test {
namespace {

using block::IoStatus;
using block::Op;
using nvme::Opcode;
using test::Arena;
using test::Association;
using test::BlocksEntry;
using test::Io;
using test::RawHost;
using test::TargetRig;

using Bytes = std::vector<uint8_t>;

TEST(HostileHostTest, AReadThatBringsDataAlongIsRefusedAndCostsNoMemory) {
  TargetRig rig({.commands = 1024, .data_slabs = 4, .capsule_slabs = 1});
  Association host(rig);
  // Far more than the pool has pieces.
  for (int i = 0; i < 600; ++i) {
    const auto answer = host.queue.Do(BlocksEntry(Opcode::kRead, 0, 8, true), Bytes(4096, 1));
    ASSERT_TRUE(answer);
    ASSERT_FALSE(answer->status().ok());
  }
  const auto answer = host.queue.Do(BlocksEntry(Opcode::kWrite, 0, 8, true), Bytes(4096, 7));
  ASSERT_TRUE(answer && answer->status().ok());
  EXPECT_EQ(rig.storage->content[4095], 7);
}

TEST(HostileHostTest, HalfOfAFusedCommandChangesNothing) {
  TargetRig rig;
  nvme::fabrics::SubmissionEntry fused = BlocksEntry(Opcode::kWrite, 0, 8, true);
  IoPlan plan;
  EXPECT_TRUE(PlanOf(fused, rig.backing->geometry(), block::AccessMode::kReadWrite, 4096, plan).ok());
  fused.flags = nvme::fabrics::kFlagsSgl | 2;
  EXPECT_FALSE(PlanOf(fused, rig.backing->geometry(), block::AccessMode::kReadWrite, 4096, plan).ok());
}

// The host's keep alive timeout is over while this process does not run: it may have sent the write by another path since, and a newer one.
TEST(HostileHostTest, WhatIsFoundInTheSocketOfAnExpiredAssociationIsNotExecuted) {
  TargetRig rig;
  Association host(rig, 1000);
  const auto first = host.queue.Do(BlocksEntry(Opcode::kWrite, 0, 8, true), Bytes(4096, 1));
  ASSERT_TRUE(first && first->status().ok());
  host.queue.Send(BlocksEntry(Opcode::kWrite, 0, 8, true), Bytes(4096, 2));
  const uint64_t over_ns = rig.clock.NowNs() + 1100 * kNsPerMs;
  while (rig.clock.NowNs() < over_ns) {
  }
  // The I/O reactor has its turns before the control reactor knows.
  for (int turn = 0; turn < 50; ++turn) {
    for (auto& reactor : rig.io) reactor->RunOnce();
  }
  EXPECT_EQ(rig.storage->content[0], 1);
  EXPECT_FALSE(host.queue.Answer());
  EXPECT_EQ(rig.storage->content[0], 1);
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 0; });
}

// A silent host is found out by its own timeout, not by the longer one of a controller that nobody has enabled.
TEST(HostileHostTest, AHostThatSendsNoKeepAlivesIsDroppedInTime) {
  TargetRig rig;
  Association host(rig, 1000);
  const uint64_t begin_ns = rig.clock.NowNs();
  rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 0; });
  EXPECT_LT(rig.clock.NowNs() - begin_ns, 30 * kNsPerSecond);
}

TEST(HostileHostTest, AnIoQueueThatConnectsWhileItsAssociationEndsIsDropped) {
  TargetRig rig;
  for (int i = 0; i < 20; ++i) {
    RawHost admin(rig);
    RawHost queue(rig);
    const uint16_t controller = admin.BecomeAdmin();
    queue.SendConnect(1, controller);
    admin.Close();  // both are found in one turn
    rig.Until([&] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 0; });
    while (const auto answer = queue.Answer()) {
    }
  }
}

TEST(HostileHostTest, ADiskIsDetachedInTheMiddleOfADiscardOfManyPieces) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  Io discard;
  rig.storage->holds = true;
  rig.disk->Start(discard, Op::kDiscard, 0, TargetRig::kBytes);
  rig.Until([&] { return !rig.storage->held.empty(); });
  bool removed = false;
  rig.Begin([](TargetRig& r) { return r.service->RemoveNamespace(TargetRig::kNqn, 1); }, removed);
  for (int turn = 0; turn < 100; ++turn) rig.Turn();
  EXPECT_FALSE(removed);
  rig.storage->LetGo();
  rig.Until([&] { return removed; });
  ASSERT_TRUE(rig.AddNamespace(1).ok());
  rig.disk->Wait(discard);
}

// What was planned for one disk must not reach the next one that is attached at its place.
TEST(HostileHostTest, AWriteWhoseDataComesLateDoesNotReachAnotherDisk) {
  TargetRig rig;
  Association host(rig);
  host.queue.Send(BlocksEntry(Opcode::kWrite, 0, 256, false));  // answered with an R2T
  for (int turn = 0; turn < 200; ++turn) rig.Turn();
  ASSERT_TRUE(rig.Await<bool>([](TargetRig& r) -> Task<bool> {
    co_await r.service->RemoveNamespace(TargetRig::kNqn, 1);
    co_return true;
  }));
  ASSERT_TRUE(rig.AddNamespace(1).ok());
  nvme::tcp::H2cData data;
  data.header = {nvme::tcp::PduType::kH2cData, nvme::tcp::kFlagLast, sizeof(data), sizeof(data),
                 static_cast<uint32_t>(sizeof(data) + 256 * 512)};
  data.cid = host.queue.last_cid();
  data.ttag = host.queue.AskedTag();
  data.data_bytes = 256 * 512;
  host.queue.SendPdu(data, Bytes(256 * 512, 9));
  const auto answer = host.queue.Answer();
  ASSERT_TRUE(answer);
  EXPECT_FALSE(answer->status().ok());
  EXPECT_EQ(rig.storage->content[0], 0);
}

// What a connection had when it broke goes to others that wait for memory.
TEST(HostileHostTest, MemoryOfAConnectionThatIsGoneGoesToWhoWaitsForIt) {
  TargetRig rig({.commands = 64, .data_slabs = 1, .capsule_slabs = 1});
  Association first(rig);
  Association second(rig);
  rig.storage->holds = true;
  first.queue.Send(BlocksEntry(Opcode::kRead, 0, 2048, false));
  rig.Until([&] { return rig.storage->held.size() == 1; });
  second.queue.Send(BlocksEntry(Opcode::kRead, 0, 2048, false));
  for (int turn = 0; turn < 200; ++turn) rig.Turn();
  first.queue.Close();
  first.admin.Close();
  for (int turn = 0; turn < 200; ++turn) rig.Turn();
  rig.storage->LetGo();
  const auto answer = second.queue.Answer();
  EXPECT_TRUE(answer && answer->status().ok());
}

}  // namespace
}  // namespace cleat::nvmf_target::hostile_host_test
