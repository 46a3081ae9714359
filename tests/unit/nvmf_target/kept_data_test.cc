// SPDX-License-Identifier: Apache-2.0
// Data of writes that stays where it was received, over real sockets: with storage that is through with it at once, and with storage that is not.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::nvmf_target::kept_data_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Arena;
using test::Io;
using test::TargetRig;

constexpr uint32_t kBytes = 4096;

// One block of each content, written at the block of that number.
class Writes {
 public:
  explicit Writes(TargetRig& rig) : rig_(rig), arena_(256 * kBytes) {
    for (uint32_t block = 0; block < 256; ++block)
      std::fill_n(arena_.region().base() + block * kBytes, kBytes, static_cast<uint8_t>(block));
  }
  void Start(uint8_t block) {
    Io& io = ios_.emplace_back();
    io.segments = {{&arena_.region(), uint64_t{block} * kBytes, kBytes}};
    rig_.disk->Start(io, Op::kWrite, uint64_t{block} * kBytes, kBytes);
  }
  void WaitAll() {
    for (Io& io : ios_) EXPECT_EQ(rig_.disk->Wait(io), IoStatus::kOk);
    ios_.clear();
  }
  bool IsThere(uint8_t block) const {
    const auto at = rig_.storage->content.begin() + ptrdiff_t{block} * kBytes;
    return std::all_of(at, at + kBytes, [block](uint8_t byte) { return byte == block; });
  }

 private:
  TargetRig& rig_;
  Arena arena_;
  std::deque<Io> ios_;
};

TEST(KeptDataTest, WhatSlowStorageStillNeedsIsNotReceivedTo) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  Writes writes(rig);
  rig.storage->holds = true;
  for (uint8_t block = 1; block <= 20; ++block) {
    writes.Start(block);
    rig.Until([&] { return rig.storage->held.size() == block; });
  }
  rig.storage->LetGo();
  writes.WaitAll();
  for (uint8_t block = 1; block <= 20; ++block) EXPECT_TRUE(writes.IsThere(block)) << int{block};
}

TEST(KeptDataTest, OfFastStorageEachCommandIsKept) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  Writes writes(rig);
  for (uint8_t block = 0; block < 200; ++block) {
    writes.Start(block);
    writes.WaitAll();
  }
  for (uint8_t block = 0; block < 200; ++block) EXPECT_TRUE(writes.IsThere(block)) << int{block};
  ASSERT_EQ(rig.storage->written_from.size(), 1U) << "one buffer, to which each is received";
  rig.storage->holds = true;
  for (uint8_t block = 0; block < 2; ++block) {
    writes.Start(block);
    rig.Until([&] { return rig.storage->held.size() == block + 1U; });
  }
  const std::set<const block::MemoryRegion*> fast = rig.storage->written_from;
  EXPECT_TRUE(fast.contains(rig.storage->held[0]->segments[0].region));
  EXPECT_FALSE(fast.contains(rig.storage->held[1]->segments[0].region)) << "copied, as the first is not over";
  rig.storage->LetGo();
  writes.WaitAll();
}

// What is kept takes a whole buffer, so that storage which is not through with it at once gets copies from then on.
TEST(KeptDataTest, OfSlowStorageOneCommandInThousandsIsKept) {
  TargetRig rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  Writes writes(rig);
  std::multiset<const block::MemoryRegion*> regions;
  const auto hold = [&](size_t count) {
    rig.storage->holds = true;
    for (size_t i = 1; i <= count; ++i) {
      writes.Start(static_cast<uint8_t>(i));
      rig.Until([&] { return rig.storage->held.size() == i; });
      regions.insert(rig.storage->held.back()->segments[0].region);
    }
    rig.storage->LetGo();
    writes.WaitAll();
  };
  hold(10);
  const block::MemoryRegion* const pool = *std::ranges::max_element(
      regions, {}, [&](const block::MemoryRegion* region) { return regions.count(region); });
  EXPECT_EQ(regions.count(pool), 9U) << "the first is kept, the others are copied";
  // After 4,096 commands, 9 of which there were, one is tried again.
  for (int i = 0; i < 4096 - 9; ++i) {
    writes.Start(static_cast<uint8_t>(i));
    if (i % 8 == 7) writes.WaitAll();
  }
  writes.WaitAll();
  regions.clear();
  hold(2);
  EXPECT_EQ(regions.count(pool), 1U);
}

TEST(KeptDataTest, AHostThatGoesLeavesWhatIsKeptToTheStorage) {
  TargetRig rig;
  rig.storage->holds = true;
  std::vector<test::Association> hosts;
  for (int i = 0; i < 3; ++i) hosts.emplace_back(rig);  // by turns on the two reactors
  const auto write = [&](size_t host, uint8_t content) {
    const size_t before = rig.storage->held.size();
    const auto entry = test::BlocksEntry(nvme::Opcode::kWrite, uint64_t{content} * 8, 8, true);
    hosts[host].queue.Send(entry, std::vector<uint8_t>(kBytes, content));
    rig.Until([&] { return rig.storage->held.size() == before + 1; });
  };
  write(0, 7);
  hosts[0].queue.Close();
  hosts[0].admin.Close();
  for (int turn = 0; turn < 1000; ++turn) rig.Turn();  // it has ended, and is not over
  for (uint8_t content = 10; content < 20; ++content) write(1 + content % 2, content);
  rig.storage->LetGo();
  const auto is_there = [&rig](uint8_t content) {
    const auto at = rig.storage->content.begin() + ptrdiff_t{content} * kBytes;
    return std::all_of(at, at + kBytes, [content](uint8_t byte) { return byte == content; });
  };
  EXPECT_TRUE(is_there(7));
  for (uint8_t content = 10; content < 20; ++content) EXPECT_TRUE(is_there(content)) << int{content};
}

TEST(KeptDataTest, OfANewNamespaceNothingIsKnownYet) {
  TargetRig rig;
  test::Association host(rig);
  const auto write = [&](uint64_t block) {
    return host.queue.Do(test::BlocksEntry(nvme::Opcode::kWrite, block, 8, true),
                         std::vector<uint8_t>(kBytes, 1));
  };
  EXPECT_FALSE(write(TargetRig::kBytes / 512)->status().ok()) << "beyond the end, and given back";
  EXPECT_TRUE(write(0)->status().ok());
  const std::set<const block::MemoryRegion*> buffer = rig.storage->written_from;
  ASSERT_EQ(buffer.size(), 1U);
  rig.storage->holds = true;
  const auto held = [&](uint64_t block) {
    const size_t before = rig.storage->held.size();
    host.queue.Send(test::BlocksEntry(nvme::Opcode::kWrite, block, 8, true), std::vector<uint8_t>(kBytes, 1));
    rig.Until([&] { return rig.storage->held.size() == before + 1; });
    return rig.storage->held.back()->segments[0].region;
  };
  EXPECT_TRUE(buffer.contains(held(8)));
  const block::MemoryRegion* const pool = held(16);
  EXPECT_FALSE(buffer.contains(pool)) << "the first was kept";
  rig.storage->LetGo();
  for (int answers = 0; answers < 2; ++answers) EXPECT_TRUE(host.queue.Answer()->status().ok());
  rig.Await<bool>([](TargetRig& r) -> Task<bool> {
    co_await r.service->RemoveNamespace(TargetRig::kNqn, 1);
    co_return true;
  });
  ASSERT_TRUE(rig.AddNamespace(1).ok());
  EXPECT_TRUE(rig.storage->written_from.contains(pool));
  rig.storage->written_from.clear();
  EXPECT_TRUE(write(0)->status().ok());
  EXPECT_FALSE(rig.storage->written_from.contains(pool)) << "kept, and not copied 4,096 times";
}

}  // namespace
}  // namespace cleat::nvmf_target::kept_data_test
