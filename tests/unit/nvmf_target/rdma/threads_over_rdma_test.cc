// SPDX-License-Identifier: Apache-2.0
// Reactors on threads of their own, as an engine has them: hosts over RDMA come, read what they have written, and go, in whatever way.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/unit/nvmf_target/rdma/rdma_host.h"
#include "tests/unit/nvmf_target/rdma/rdma_rig.h"

namespace cleat::nvmf_target::threads_over_rdma_test {
namespace {

using test::RdmaAssociation;
using test::RdmaData;
using test::RdmaHostQueue;
using test::RdmaRig;

constexpr uint32_t kKatoMs = 600'000;

// An I/O queue of a host is on any reactor, so that writes of two hosts never meet in the storage at a time: it has no lock.
bool LoadIsRight(RdmaHostQueue& queue, uint8_t fill) {
  for (uint64_t i = 0; i < 8; ++i) {
    if (!queue.Write(i * 64, 64, fill)) return false;
    if (!queue.Write(1000 + i, 1, fill, RdmaData::kInCapsule)) return false;
  }
  for (uint64_t i = 0; i < 8; ++i) {
    if (!queue.ReadIs(i * 64, 64, fill) || !queue.ReadIs(1000 + i, 1, fill)) return false;
  }
  return true;
}

TEST(ThreadsOverRdmaTest, HostsComeLoadAndGo) {
  RdmaRig rig;
  rig.RunIoReactors();
  for (uint8_t round = 1; round <= 8; ++round) {
    RdmaAssociation first(rig, *rig.machines[0], {.uses_windows = round % 2 == 0}, kKatoMs);
    RdmaAssociation second(rig, *rig.machines[1], {}, kKatoMs, 1);
    EXPECT_TRUE(LoadIsRight(*first.queue, round));
    EXPECT_TRUE(LoadIsRight(*second.queue, static_cast<uint8_t>(round + 100)));
    // One goes by its admin queue first, the other one by its I/O queue.
    first.admin.Vanish();
    second.queue->Vanish();
    ASSERT_TRUE(first.queue->WaitUntilBroken());
  }
  ASSERT_TRUE(rig.Until([&] { return rig.queue_pairs() == 0; }));
  EXPECT_EQ(rig.receives_posted(), 2 * RdmaRig::kSlots);
}

TEST(ThreadsOverRdmaTest, AnAdapterGoesWhileHostsConnectAndLoad) {
  RdmaRig rig;
  rig.RunIoReactors();
  for (uint8_t round = 1; round <= 6; ++round) {
    RdmaAssociation host(rig, *rig.machines[0], {}, kKatoMs);
    EXPECT_TRUE(LoadIsRight(*host.queue, round));
    std::vector<std::unique_ptr<RdmaHostQueue>> strangers;
    for (int i = 0; i < 10; ++i)
      strangers.push_back(std::make_unique<RdmaHostQueue>(
          rig, *rig.machines[1], test::RdmaQueueOptions{.queue_id = 0, .entries = 4}));
    for (int i = 0; i < 10; ++i) host.queue->SendWrite(0, 8, 1);
    for (int turn = 0; turn < round; ++turn) rig.Turn();
    rig.fabric.RemoveAdapter(RdmaRig::AdapterName(0));
    ASSERT_TRUE(rig.Until([&] { return rig.fabric.devices(RdmaRig::AdapterName(0)) == 0; }));
    rig.AddTargetAdapter(0);
    rig.Pass(2 * RdmaListeners::kRetryNs);
  }
}

}  // namespace
}  // namespace cleat::nvmf_target::threads_over_rdma_test
