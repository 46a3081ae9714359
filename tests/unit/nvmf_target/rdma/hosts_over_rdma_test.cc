// SPDX-License-Identifier: Apache-2.0
// Hosts over RDMA that keep the rules: their data, the reactors that their queues are on, and a target that ends under them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "base/random.h"
#include "tests/unit/nvmf_target/rdma/rdma_host.h"
#include "tests/unit/nvmf_target/rdma/rdma_rig.h"

namespace cleat::nvmf_target::hosts_over_rdma_test {
namespace {

using test::RdmaAssociation;
using test::RdmaData;
using test::RdmaHostQueue;
using test::RdmaRig;

TEST(HostsOverRdmaTest, AHostReadsWhatItHasWrittenByKeysAndByWindows) {
  RdmaRig rig;
  for (const bool uses_windows : {false, true}) {
    RdmaAssociation host(rig, *rig.machines[0], {.uses_windows = uses_windows});
    EXPECT_EQ(host.queue->commands_max(), 32U);
    ASSERT_TRUE(host.queue->Write(0, 8, 0x11));
    ASSERT_TRUE(host.queue->Write(100, 128, 0x22));
    ASSERT_TRUE(host.queue->Write(300, 8, 0x33, RdmaData::kInCapsule));
    EXPECT_TRUE(host.queue->ReadIs(0, 8, 0x11));
    EXPECT_TRUE(host.queue->ReadIs(100, 128, 0x22));
    EXPECT_TRUE(host.queue->ReadIs(300, 8, 0x33));
    EXPECT_EQ(rig.storage->content[300 * 512], 0x33);
    EXPECT_EQ(rig.storage->content[308 * 512], 0);
  }
}

// Until as many of its commands are unanswered.
bool UntilUnanswered(RdmaRig& rig, const RdmaHostQueue& queue, size_t commands) {
  return rig.Until([&] { return queue.unanswered() <= commands; });
}

TEST(HostsOverRdmaTest, HostsOnBothReactorsReadWhatTheyHaveWritten) {
  RdmaRig rig;
  RdmaAssociation first(rig, *rig.machines[0], {.uses_windows = true});
  RdmaAssociation second(rig, *rig.machines[1], {}, 5000, 1);
  // Four queues of one adapter: two on each reactor, which has memory of its own for capsules.
  EXPECT_EQ(rig.queue_pairs(), 4U);
  EXPECT_EQ(rig.receives_posted(), 2 * RdmaRig::kSlots);
  Random random(7);
  std::array<RdmaHostQueue*, 2> queues{first.queue.get(), second.queue.get()};
  // Each host has a half of the disk, and each piece of it one fill at a time.
  constexpr uint32_t kPieces = 16, kPieceBlocks = 96;
  std::array<std::array<uint8_t, kPieces>, 2> content{};
  for (int round = 0; round < 40; ++round) {
    for (uint32_t host = 0; host < 2; ++host) {
      for (uint32_t piece = 0; piece < kPieces; ++piece) {
        content[host][piece] = static_cast<uint8_t>(random.Below(256));
        queues[host]->SendWrite((host * kPieces + piece) * kPieceBlocks, kPieceBlocks, content[host][piece]);
      }
    }
    for (RdmaHostQueue* const queue : queues) ASSERT_TRUE(UntilUnanswered(rig, *queue, 0));
    const auto piece = static_cast<uint32_t>(random.Below(kPieces));
    for (uint32_t host = 0; host < 2; ++host)
      ASSERT_TRUE(
          queues[host]->ReadIs((host * kPieces + piece) * kPieceBlocks, kPieceBlocks, content[host][piece]));
  }
  EXPECT_EQ(rig.receives_posted(), 2 * RdmaRig::kSlots);
  EXPECT_EQ(rig.status().controllers, 2U);
  EXPECT_EQ(rig.status().io_queues, 2U);
}

TEST(HostsOverRdmaTest, AHostThatLeavesGivesAllBack) {
  RdmaRig rig;
  for (int i = 0; i < 30; ++i) {
    RdmaAssociation host(rig, *rig.machines[0]);
    ASSERT_TRUE(host.queue->Write(0, 8, 1));
  }
  ASSERT_TRUE(rig.Until([&] { return rig.status().controllers == 0 && rig.queue_pairs() == 0; }));
  EXPECT_EQ(rig.receives_posted(), 2 * RdmaRig::kSlots);
}

TEST(HostsOverRdmaTest, ADisconnectOfTheIoQueueEndsItAloneOnceItIsAnswered) {
  RdmaRig rig;
  RdmaAssociation host(rig, *rig.machines[0]);
  const auto answer = host.queue->Do(nvme::fabrics::EntryOf(nvme::fabrics::Disconnect()));
  ASSERT_TRUE(answer && answer->status().ok());
  EXPECT_TRUE(rig.Until([&] { return host.queue->ended(); }));
  EXPECT_FALSE(host.admin.broken());
  EXPECT_TRUE(host.admin.Do(nvme::fabrics::EntryOf(nvme::SetFeature(nvme::Feature::kQueues, 0))));
  EXPECT_EQ(rig.status().io_queues, 0U);
}

TEST(HostsOverRdmaTest, ATargetThatEndsUnderALoadLetsAllOfItGo) {
  RdmaRig rig;
  RdmaAssociation first(rig, *rig.machines[0], {.uses_windows = true});
  RdmaAssociation second(rig, *rig.machines[1], {}, 5000, 1);
  rig.storage->holds = true;
  for (int i = 0; i < 16; ++i) {
    first.queue->SendWrite(static_cast<uint64_t>(i) * 8, 8, 1);
    second.queue->SendWrite(1000 + static_cast<uint64_t>(i) * 8, 8, 2, RdmaData::kInCapsule);
  }
  ASSERT_TRUE(rig.Until([&] { return rig.storage->held.size() == 32; }));
  // Others stand somewhere between host and storage.
  for (int i = 0; i < 8; ++i) {
    first.queue->SendWrite(2000, 8, 3);
    second.queue->SendWrite(3000, 8, 3);
  }
  rig.Close();
  EXPECT_TRUE(rig.Until([&] {
    return first.queue->ended() && second.queue->ended() && first.admin.ended() && second.admin.ended();
  }));
  EXPECT_EQ(rig.queue_pairs(), 0U);
  EXPECT_EQ(rig.fabric.devices(RdmaRig::AdapterName(0)), 0U);
}

// More events wait than are handled at a time, of which the descriptor says no more than once that they are there.
TEST(HostsOverRdmaTest, EachOfManyRequestsIsAnswered) {
  RdmaRig rig;
  std::vector<std::unique_ptr<RdmaHostQueue>> hosts;
  for (uint32_t i = 0; i < 3 * rdma::kEventsMax; ++i)
    hosts.push_back(std::make_unique<RdmaHostQueue>(rig, *rig.machines[i % 2],
                                                    test::RdmaQueueOptions{.queue_id = 0, .entries = 4}));
  EXPECT_TRUE(rig.Until([&] {
    return std::ranges::all_of(hosts, [](const auto& host) { return host->established() || host->ended(); });
  }));
  hosts.clear();
  EXPECT_TRUE(rig.Until([&] { return rig.queue_pairs() == 0; }));
}

// More events wait than are handled at a time, and more requests than are answered.
TEST(HostsOverRdmaTest, ATargetThatEndsAnswersNoRequestAnyMore) {
  for (const int turns : {0, 1, 2, 3, 5, 8, 13}) {
    RdmaRig rig;
    std::vector<std::unique_ptr<RdmaHostQueue>> hosts;
    for (uint32_t i = 0; i < 3 * rdma::kEventsMax; ++i)
      hosts.push_back(std::make_unique<RdmaHostQueue>(rig, *rig.machines[i % 2],
                                                      test::RdmaQueueOptions{.queue_id = 0, .entries = 4}));
    for (int turn = 0; turn < turns; ++turn) rig.Turn();
    rig.Close();
    EXPECT_TRUE(rig.Until([&] {
      return std::ranges::all_of(hosts, [](const auto& host) { return host->ended(); });
    })) << turns;
    EXPECT_EQ(rig.queue_pairs(), 0U);
  }
}

TEST(HostsOverRdmaTest, WhereASubsystemIsWithdrawnNobodyListens) {
  RdmaRig rig;
  RdmaAssociation host(rig, *rig.machines[0]);
  rig.Await<bool>([](RdmaRig& r) -> Task<bool> {
    (void)co_await r.service->Withdraw(RdmaRig::kNqn);
    co_return true;
  });
  ASSERT_TRUE(rig.Until([&] { return host.queue->ended() && host.admin.ended(); }));
  RdmaHostQueue late(rig, *rig.machines[0], {});
  EXPECT_FALSE(late.WaitUntilConnected());
  EXPECT_EQ(late.end(), rdma::EndKind::kRejected);
  EXPECT_EQ(late.reject_status(), 0);
  ASSERT_TRUE(rig.service->Serve(RdmaRig::kNqn).ok());
  RdmaAssociation again(rig, *rig.machines[0]);
  EXPECT_TRUE(again.queue->Write(0, 8, 1));
}

}  // namespace
}  // namespace cleat::nvmf_target::hosts_over_rdma_test
