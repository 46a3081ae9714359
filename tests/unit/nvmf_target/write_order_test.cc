// SPDX-License-Identifier: Apache-2.0
// Hosts whose path breaks while a write of theirs is in the storage: they send it again by another path, and newer ones after it. What
// the older one finds when it lands at last must be no newer write.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::nvmf_target::write_order_test {
namespace {

using nvme::Opcode;
using test::Association;
using test::BlocksEntry;
using test::RawHost;
using test::TargetRig;

using Bytes = std::vector<uint8_t>;

constexpr uint32_t kBlocks = 8;
constexpr size_t kBytes = kBlocks * 512;

void SendWrite(RawHost& queue, uint64_t block, uint8_t value) {
  queue.Send(BlocksEntry(Opcode::kWrite, block, kBlocks, true), Bytes(kBytes, value));
}
bool Succeeds(const std::optional<nvme::fabrics::CompletionEntry>& answer) {
  return answer && answer->status().ok();
}

// Two paths of one host, on two reactors. The first one's write A to the blocks from 0 on is in the storage, which holds it.
struct TwoPaths {
  TwoPaths() : first(std::make_unique<Association>(rig)), second(std::make_unique<Association>(rig)) {
    rig.storage->holds = true;
    SendWrite(first->queue, 0, 'A');
    rig.Until([this] { return rig.storage->held.size() == 1; });
    rig.storage->holds = false;
  }
  ~TwoPaths() { rig.storage->LetGo(); }
  TwoPaths(const TwoPaths&) = delete;
  TwoPaths& operator=(const TwoPaths&) = delete;
  void CutFirst() {
    first.reset();
    // What it has in the storage keeps the association; its queues are known to have ended.
    for (int turn = 0; turn < 200; ++turn) rig.Turn();
  }
  // So long that all reactors are told of what is in the storage.
  void GrowOld() {
    const uint64_t until_ns = rig.clock.NowNs() + 3 * WriteOrder::kYoungNs;
    while (rig.clock.NowNs() < until_ns) rig.Turn();
  }
  uint8_t at(uint64_t block) const { return rig.storage->content[block * 512]; }

  TargetRig rig;
  std::unique_ptr<Association> first;
  std::unique_ptr<Association> second;
};

TEST(WriteOrderTest, ANewerWriteIsNotAnsweredBeforeTheOneOfAPathThatHasEndedIsOver) {
  TwoPaths paths;
  paths.CutFirst();
  SendWrite(paths.second->queue, 0, 'B');
  EXPECT_TRUE(paths.second->queue.IsQuiet());
  EXPECT_EQ(paths.at(0), 0) << "it has not gone to the storage either";
  EXPECT_EQ(paths.rig.service->StatusOf(TargetRig::kNqn).held_writes, 1U);
  paths.rig.storage->LetGo();
  EXPECT_TRUE(Succeeds(paths.second->queue.Answer()));
  EXPECT_EQ(paths.at(0), 'B') << "the older write has landed after the newer one";
  EXPECT_EQ(paths.rig.service->StatusOf(TargetRig::kNqn).held_writes, 0U);
}

TEST(WriteOrderTest, WhatDoesNotOverlapItGoesOnAndSoDoReads) {
  TwoPaths paths;
  paths.CutFirst();
  SendWrite(paths.second->queue, kBlocks, 'C');
  EXPECT_TRUE(Succeeds(paths.second->queue.Answer()));
  EXPECT_TRUE(Succeeds(paths.second->queue.Do(BlocksEntry(Opcode::kRead, 0, kBlocks, false))));
  EXPECT_TRUE(Succeeds(paths.second->queue.Do(nvme::fabrics::EntryOf(nvme::Flush(1)))));
}

// The host has lost the path, and the target has not noticed: nothing tells it of a cable.
TEST(WriteOrderTest, AWriteThatTakesLongIsWaitedForThoughItsPathIsUp) {
  TwoPaths paths;
  paths.GrowOld();
  // One association's writes are the host's own to order.
  SendWrite(paths.first->queue, 0, 'D');
  EXPECT_TRUE(Succeeds(paths.first->queue.Answer()));
  EXPECT_EQ(paths.at(0), 'D');
  SendWrite(paths.second->queue, kBlocks / 2, 'B');
  EXPECT_TRUE(paths.second->queue.IsQuiet());
  paths.rig.storage->LetGo();
  EXPECT_TRUE(Succeeds(paths.second->queue.Answer()));
  EXPECT_EQ(paths.at(kBlocks / 2), 'B');
}

TEST(WriteOrderTest, ThatOfAPathWhichHasEndedWhileItWaitedIsNotExecuted) {
  TwoPaths paths;
  paths.CutFirst();
  SendWrite(paths.second->queue, 0, 'B');
  EXPECT_TRUE(paths.second->queue.IsQuiet());
  paths.second.reset();
  paths.rig.Until([&] { return paths.rig.service->StatusOf(TargetRig::kNqn).controllers == 1; });
  Association third(paths.rig);
  SendWrite(third.queue, 0, 'C');
  EXPECT_TRUE(third.queue.IsQuiet());
  paths.rig.storage->LetGo();
  EXPECT_TRUE(Succeeds(third.queue.Answer()));
  EXPECT_EQ(paths.at(0), 'C');
}

// The second path is lost, too, and the target has not noticed: what waits there is older than what comes by the third.
TEST(WriteOrderTest, WritesThatAreHeldGoInTheOrderInWhichTheyCame) {
  TwoPaths paths;
  paths.CutFirst();
  SendWrite(paths.second->queue, 0, 'B');
  EXPECT_TRUE(paths.second->queue.IsQuiet());
  Association third(paths.rig);
  SendWrite(third.queue, 0, 'C');
  EXPECT_TRUE(third.queue.IsQuiet());
  paths.rig.storage->LetGo();
  EXPECT_TRUE(Succeeds(third.queue.Answer()));
  EXPECT_TRUE(Succeeds(paths.second->queue.Answer()));
  EXPECT_EQ(paths.at(0), 'C');
}

TEST(WriteOrderTest, ZeroesAndDiscardsWaitAsWritesDo) {
  TwoPaths paths;
  paths.CutFirst();
  paths.second->queue.Send(nvme::fabrics::EntryOf(nvme::OnBlocks(Opcode::kWriteZeroes, 1, 4, 64, 0)));
  EXPECT_TRUE(paths.second->queue.IsQuiet());
  // Two ranges, of which the second one meets it.
  const std::array<nvme::DatasetRange, 2> ranges = {
      nvme::DatasetRange{.attributes = 0, .blocks = 8, .first_block = 800},
      nvme::DatasetRange{.attributes = 0, .blocks = 1, .first_block = 7}};
  const auto* const at = reinterpret_cast<const uint8_t*>(ranges.data());
  Association third(paths.rig);
  nvme::fabrics::SubmissionEntry discard = nvme::fabrics::EntryOf(nvme::Deallocate(1));
  discard.cdw10 = ranges.size() - 1;
  third.queue.Send(discard, {at, at + sizeof(ranges)});
  EXPECT_TRUE(third.queue.IsQuiet());
  paths.rig.storage->LetGo();
  EXPECT_TRUE(Succeeds(paths.second->queue.Answer()));
  EXPECT_TRUE(Succeeds(third.queue.Answer()));
  EXPECT_EQ(paths.at(0), 'A');
  EXPECT_EQ(paths.at(4), 0);
  EXPECT_EQ(paths.at(7), 0);
}

TEST(WriteOrderTest, ANamespaceGoesWhileWritesToItAreHeld) {
  TwoPaths paths;
  paths.CutFirst();
  SendWrite(paths.second->queue, 0, 'B');
  EXPECT_TRUE(paths.second->queue.IsQuiet());
  bool gone = false;
  paths.rig.Begin(
      [](TargetRig& rig) -> Task<void> { co_await rig.service->RemoveNamespace(TargetRig::kNqn, 1); }, gone);
  const auto answer = paths.second->queue.Answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status().field(), kInvalidNamespace.field());
  EXPECT_FALSE(gone) << "the older write is in the storage yet";
  paths.rig.storage->LetGo();
  paths.rig.Until([&] { return gone; });
  EXPECT_EQ(paths.at(0), 'A');
}

}  // namespace
}  // namespace cleat::nvmf_target::write_order_test
