// SPDX-License-Identifier: Apache-2.0
// Adapters that go, and hosts that do not answer any more: the queues end, and all of their memory comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "nvmf_target/rdma/rdma_link.h"
#include "tests/unit/nvmf_target/rdma/rdma_host.h"
#include "tests/unit/nvmf_target/rdma/rdma_rig.h"

namespace cleat::nvmf_target::lost_over_rdma_test {
namespace {

using test::RdmaAssociation;
using test::RdmaHostQueue;
using test::RdmaRig;
using test::RdmaSilence;

// Where both reactors have a queue, each has its slots.
constexpr uint32_t kAllSlots = 2 * RdmaRig::kSlots;
constexpr uint32_t kKatoMs = 1000;
constexpr uint64_t kKatoNs = kKatoMs * kNsPerMs;

uint32_t DevicesOf(const RdmaRig& rig, uint32_t adapter) {
  return rig.fabric.devices(RdmaRig::AdapterName(adapter));
}

// ---- Adapters

TEST(LostOverRdmaTest, AnAdapterThatIsRemovedCostsItsHostsAloneAndComesBack) {
  RdmaRig rig(2);
  RdmaAssociation lost(rig, *rig.machines[0]);
  RdmaAssociation other(rig, *rig.machines[1], {.to = RdmaRig::AddressOf(1)}, 5000, 1);
  rig.storage->holds = true;
  for (int i = 0; i < 8; ++i) lost.queue->SendWrite(static_cast<uint64_t>(i) * 8, 8, 1);
  ASSERT_TRUE(rig.Until([&] { return rig.storage->held.size() == 8; }));
  rig.fabric.RemoveAdapter(RdmaRig::AdapterName(0));
  ASSERT_TRUE(rig.Until([&] { return lost.queue->ended() && lost.admin.ended(); }));
  // What the storage has keeps its memory, and with it the adapter's.
  rig.Settle();
  EXPECT_EQ(rig.status().controllers, 2U);
  rig.storage->LetGo();
  ASSERT_TRUE(rig.Until([&] { return rig.status().controllers == 1 && DevicesOf(rig, 0) == 0; }));
  EXPECT_TRUE(other.queue->Write(0, 8, 2));
  {
    RdmaHostQueue nobody(rig, *rig.machines[0], {});
    EXPECT_FALSE(nobody.WaitUntilConnected());
    EXPECT_EQ(nobody.end(), rdma::EndKind::kUnreachable);
  }
  rig.AddTargetAdapter(0);
  rig.Pass(2 * RdmaListeners::kRetryNs);
  RdmaAssociation back(rig, *rig.machines[0]);
  EXPECT_TRUE(back.queue->ReadIs(0, 8, 2));
  EXPECT_EQ(rig.receives_posted(0), kAllSlots);
  EXPECT_FALSE(other.queue->broken());
}

TEST(LostOverRdmaTest, AnAdapterThatIsRemovedWhileDataIsAwaitedGivesItBack) {
  RdmaRig rig;
  {
    RdmaAssociation host(rig, *rig.machines[0]);
    rig.fabric.Hold(host.queue->target_pair());
    for (int i = 0; i < 20; ++i) host.queue->SendWrite(0, 8, 1);
    ASSERT_TRUE(rig.Until([&] { return rig.fabric.waiting(host.queue->target_pair()) > 0; }));
    rig.fabric.RemoveAdapter(RdmaRig::AdapterName(0));
    ASSERT_TRUE(rig.Until([&] { return rig.status().controllers == 0 && DevicesOf(rig, 0) == 0; }));
    EXPECT_EQ(rig.storage->content[0], 0);
  }
  rig.AddTargetAdapter(0);
  rig.Pass(2 * RdmaListeners::kRetryNs);
  RdmaAssociation back(rig, *rig.machines[0]);
  EXPECT_TRUE(back.queue->Write(0, 8, 2));
}

// Its connections are told nothing.
TEST(LostOverRdmaTest, AnAdapterThatFailsEndsItsQueues) {
  RdmaRig rig(2);
  RdmaAssociation lost(rig, *rig.machines[0]);
  RdmaAssociation other(rig, *rig.machines[1], {.to = RdmaRig::AddressOf(1)}, 5000, 1);
  rig.fabric.FailAdapter(RdmaRig::AdapterName(0));
  ASSERT_TRUE(rig.Until([&] { return rig.status().controllers == 1 && DevicesOf(rig, 0) == 0; }));
  EXPECT_TRUE(other.queue->Write(0, 8, 2));
  rig.AddTargetAdapter(0);
  RdmaAssociation back(rig, *rig.machines[0]);
  EXPECT_TRUE(back.queue->ReadIs(0, 8, 2));
}

TEST(LostOverRdmaTest, AnAdapterThatIsRemovedWhileHostsConnectLeavesNothing) {
  for (int turns = 0; turns < 12; ++turns) {
    RdmaRig rig;
    std::vector<std::unique_ptr<RdmaHostQueue>> hosts;
    for (int i = 0; i < 12; ++i)
      hosts.push_back(std::make_unique<RdmaHostQueue>(rig, *rig.machines[0],
                                                      test::RdmaQueueOptions{.queue_id = 0, .entries = 4}));
    for (int turn = 0; turn < turns; ++turn) rig.Turn();
    rig.fabric.RemoveAdapter(RdmaRig::AdapterName(0));
    ASSERT_TRUE(rig.Until([&] {
      return std::ranges::all_of(hosts, [](const auto& host) { return host->ended(); }) &&
             DevicesOf(rig, 0) == 0;
    })) << turns;
    rig.AddTargetAdapter(0);
    rig.Pass(2 * RdmaListeners::kRetryNs);
    RdmaAssociation back(rig, *rig.machines[1]);
    EXPECT_TRUE(back.queue->Write(0, 8, 1));
  }
}

// Its reactor stands still with what it was asked for a request, and the control reactor hears of the adapter's end meanwhile.
TEST(LostOverRdmaTest, AnAdapterThatIsRemovedWhileARequestWaitsForItsReactorIsNotUsedAnyMore) {
  for (int turns = 0; turns < 6; ++turns) {
    RdmaRig rig;
    RdmaHostQueue host(rig, *rig.machines[0], {});
    for (int turn = 0; turn < turns; ++turn) rig.Turn();
    for (int turn = 0; turn < 4; ++turn) rig.TurnControl();
    rig.fabric.RemoveAdapter(RdmaRig::AdapterName(0));
    for (int turn = 0; turn < 8; ++turn) rig.TurnControl();
    ASSERT_TRUE(rig.Until([&] { return host.ended() && DevicesOf(rig, 0) == 0; })) << turns;
    rig.AddTargetAdapter(0);
    rig.Pass(2 * RdmaListeners::kRetryNs);
    RdmaAssociation back(rig, *rig.machines[1]);
    EXPECT_TRUE(back.queue->Write(0, 8, 1));
  }
}

TEST(LostOverRdmaTest, AnAdapterWithTooLittleRoomRejectsItsHosts) {
  RdmaRig rig(2);
  rig.fabric.RemoveAdapter(RdmaRig::AdapterName(0));
  rdma::DeviceLimits small = test::RdmaFabric::UsualLimits();
  small.receive_entries = 100;
  rig.fabric.AddAdapter(RdmaRig::AdapterName(0), {RdmaRig::AddressOf(0)}, small);
  rig.Pass(2 * RdmaListeners::kRetryNs);
  for (int i = 0; i < 3; ++i) {
    RdmaHostQueue host(rig, *rig.machines[0], {});
    EXPECT_FALSE(host.WaitUntilConnected());
    EXPECT_EQ(host.reject_status(), static_cast<uint16_t>(nvme::rdma::RejectStatus::kNoResources));
  }
  RdmaAssociation other(rig, *rig.machines[1], {.to = RdmaRig::AddressOf(1)}, 5000, 1);
  EXPECT_TRUE(other.queue->Write(0, 8, 1));
  rig.fabric.RemoveAdapter(RdmaRig::AdapterName(0));
  rig.AddTargetAdapter(0);
  rig.Pass(2 * RdmaListeners::kRetryNs);
  RdmaAssociation back(rig, *rig.machines[0]);
  EXPECT_TRUE(back.queue->ReadIs(0, 8, 1));
}

// ---- Hosts that are silent

TEST(LostOverRdmaTest, WhatASilentHostsAdapterKeepsComesBackWithTheQueuePair) {
  RdmaRig rig;
  RdmaAssociation good(rig, *rig.machines[1], {}, 600'000, 1);
  for (int round = 0; round < 5; ++round) {
    RdmaAssociation silent(rig, *rig.machines[0], {}, kKatoMs);
    ASSERT_EQ(rig.queue_pairs(), 4U);
    rig.storage->holds = true;
    for (int i = 0; i < 4; ++i) {
      silent.queue->Send(nvme::fabrics::EntryOf(nvme::OnBlocks(nvme::Opcode::kRead, 1, 0, 8, 0)),
                         test::RdmaData::kToHost, 4096);
      silent.queue->SendWrite(100, 8, 1);
    }
    ASSERT_TRUE(rig.Until([&] { return rig.storage->held.size() == 8; }));
    const uint32_t pair = silent.queue->target_pair();
    rig.fabric.SetSilence(silent.queue->pair(), RdmaSilence::kUntilDestroyed);
    rig.fabric.SetSilence(silent.admin.pair(), RdmaSilence::kUntilDestroyed);
    rig.storage->LetGo();
    // The answers are with the adapter until then, and so is the data of the reads.
    ASSERT_TRUE(rig.Until([&] { return rig.fabric.waiting(pair) > 8; }));
    // Its keep alive timeout ends the queues, and some time later they are waited for no longer.
    rig.Pass(kKatoNs + RdmaLink::kFlushNs / 2);
    EXPECT_GE(rig.queue_pairs(), 3U);
    EXPECT_EQ(rig.status().controllers, 2U);
    EXPECT_TRUE(good.queue->Write(8, 8, 7));
    rig.Pass(RdmaLink::kFlushNs);
    EXPECT_EQ(rig.queue_pairs(), 2U);
    EXPECT_EQ(rig.status().controllers, 1U);
    EXPECT_EQ(rig.receives_posted(), kAllSlots);
  }
  EXPECT_TRUE(good.queue->ReadIs(8, 8, 7));
}

TEST(LostOverRdmaTest, ATargetThatEndsWaitsForASilentHostNoLongerThanThat) {
  RdmaRig rig;
  RdmaAssociation silent(rig, *rig.machines[0]);
  const uint32_t pair = silent.queue->target_pair();
  rig.fabric.SetSilence(silent.admin.pair(), RdmaSilence::kUntilDestroyed);
  rig.fabric.Hold(pair);
  silent.queue->SendWrite(0, 8, 1);
  ASSERT_TRUE(rig.Until([&] { return rig.fabric.waiting(pair) == 1; }));
  rig.fabric.SetSilence(silent.queue->pair(), RdmaSilence::kUntilDestroyed);
  const uint64_t begin_ns = rig.clock.NowNs();
  rig.Close();
  EXPECT_GE(rig.clock.NowNs() - begin_ns, RdmaLink::kFlushNs);
  EXPECT_LT(rig.clock.NowNs() - begin_ns, 2 * RdmaLink::kFlushNs);
  EXPECT_EQ(rig.storage->content[0], 0);
}

TEST(LostOverRdmaTest, ASilentHostWhoseWorksAreFlushedIsWaitedForNoLonger) {
  RdmaRig rig;
  RdmaAssociation silent(rig, *rig.machines[0], {}, kKatoMs);
  rig.fabric.SetSilence(silent.queue->pair(), RdmaSilence::kUntilBreak);
  rig.fabric.SetSilence(silent.admin.pair(), RdmaSilence::kUntilBreak);
  rig.Pass(kKatoNs + RdmaLink::kFlushNs / 2);
  EXPECT_EQ(rig.queue_pairs(), 0U);
  EXPECT_EQ(rig.status().controllers, 0U);
  EXPECT_EQ(rig.receives_posted(), kAllSlots);
}

// What a queue pair has received and nobody has polled is lost with it.
TEST(LostOverRdmaTest, CapsulesThatComeAsTheirQueueEndsAreNotLost) {
  RdmaRig rig;
  for (int turns = 0; turns < 12; ++turns) {
    RdmaAssociation host(rig, *rig.machines[0]);
    host.admin.Vanish();
    for (int turn = 0; turn < turns; ++turn) {
      rig.Turn();
      if (!host.queue->broken() && host.queue->unanswered() < 20)
        for (int i = 0; i < 4; ++i) host.queue->SendWrite(0, 8, 1, test::RdmaData::kInCapsule);
    }
    ASSERT_TRUE(rig.Until([&] { return rig.queue_pairs() == 0; }));
    EXPECT_EQ(rig.receives_posted(), kAllSlots) << turns;
  }
}

// More of them than its port polls at a time, by the time at which the end is looked at.
TEST(LostOverRdmaTest, CapsulesBehindManyOthersAreNotLostWithTheirQueue) {
  constexpr uint16_t kQueues = 7;
  constexpr uint32_t kEntries = 64;
  static_assert(kQueues * kEntries > 3 * RdmaPort::kPollMax);
  RdmaRig rig;
  std::vector<std::unique_ptr<RdmaHostQueue>> admins, queues;
  for (uint8_t host = 0; host < 2; ++host) {
    admins.push_back(std::make_unique<RdmaHostQueue>(rig, *rig.machines[host], test::RdmaQueueOptions{}));
    const uint16_t controller = admins.back()->BecomeAdmin(600'000, RdmaRig::Host(host));
    for (uint16_t id = 1; id <= kQueues; ++id) {
      queues.push_back(std::make_unique<RdmaHostQueue>(
          rig, *rig.machines[host], test::RdmaQueueOptions{.queue_id = id, .entries = kEntries}));
      ASSERT_TRUE(queues.back()->WaitUntilConnected());
      const auto connected = queues.back()->Answer(
          queues.back()->SendConnect({.queue_id = id, .entries = kEntries}, controller, RdmaRig::Host(host)));
      ASSERT_TRUE(connected && connected->status().ok());
    }
  }
  rig.Settle();
  ASSERT_EQ(rig.receives_posted(), kAllSlots);
  for (const auto& queue : queues) {
    for (uint32_t i = 0; i + 1 < kEntries; ++i) queue->SendWrite(i, 1, 1, test::RdmaData::kInCapsule);
  }
  queues.back()->Vanish();
  rig.machines[1]->Pump();
  // The control reactor hears of it, then the I/O reactors; and these stand still until it is time to look.
  for (int turn = 0; turn < 3; ++turn) rig.TurnControl();
  rig.TurnIo();
  rig.clock.AdvanceBy(10 * kNsPerMs);
  rig.TurnIo();
  for (int turn = 0; turn < 3; ++turn) rig.TurnControl();
  const auto all_answered = [](const auto& queue) { return queue->unanswered() == 0; };
  ASSERT_TRUE(rig.Until([&] { return std::all_of(queues.begin(), queues.end() - 1, all_answered); }));
  ASSERT_TRUE(rig.Until([&] { return rig.queue_pairs() == 2 + 2 * kQueues - 1; }));
  EXPECT_EQ(rig.receives_posted(), kAllSlots);
}

}  // namespace
}  // namespace cleat::nvmf_target::lost_over_rdma_test
