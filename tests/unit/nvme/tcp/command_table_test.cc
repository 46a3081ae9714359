// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp_host/command_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

namespace cleat::nvme::tcp {
namespace {

// How many commands go by between two of the same CID, at the least: `held` commands stay in flight all the time, and as many as there are
// slots left are answered in the order in which they were sent.
uint64_t UsesLeast(uint32_t depth, uint32_t held) {
  constexpr uint64_t kCommands = 140'000;
  CommandTable table(depth);
  for (uint32_t i = 0; i < held; ++i) table.Take();
  std::deque<CommandSlot*> in_flight;
  std::vector<uint64_t> last(1U << 16);
  uint64_t least = UINT64_MAX;
  bool found = true;
  for (uint64_t number = 1; number <= kCommands; ++number) {
    if (table.free() == 0) {
      table.Free(*in_flight.front());
      in_flight.pop_front();
    }
    CommandSlot& slot = *in_flight.emplace_back(&table.Take());
    found = found && slot.cid != 0xffff && table.Find(slot.cid) == &slot;
    uint64_t& before = last[slot.cid];
    if (before != 0) least = std::min(least, number - before);
    before = number;
  }
  EXPECT_TRUE(found);
  return least;
}

TEST(CommandTable, ACidComesBackAfterNearlyAllOthers) {
  for (const uint32_t depth : {1U, 3U, 33U, 128U, 1023U}) {
    EXPECT_EQ(UsesLeast(depth, 0), 0xffffU) << depth;
    EXPECT_GE(UsesLeast(depth, depth - 1), 57'343U) << depth << " slots, of which one is ever free";
    EXPECT_GE(UsesLeast(depth, depth / 2), 57'343U) << depth;
  }
}

TEST(CommandTable, FindsTheCommandsThatAreInFlightAndNoOther) {
  constexpr uint32_t kDepth = 3;
  CommandTable table(kDepth);
  CommandSlot& first = table.Take();
  CommandSlot& second = table.Take();
  table.Take();
  EXPECT_EQ(table.free(), 0U);
  const uint16_t answered = second.cid;
  table.Free(second);
  EXPECT_EQ(table.Find(answered), nullptr);
  const CommandSlot& again = table.Take();
  EXPECT_EQ(&again, &second);
  EXPECT_EQ(table.Find(answered), nullptr);
  uint32_t found = 0;
  for (uint32_t cid = 0; cid <= 0xffff; ++cid)
    found += table.Find(static_cast<uint16_t>(cid)) != nullptr ? 1 : 0;
  EXPECT_EQ(found, kDepth);
  EXPECT_EQ(table.Find(first.cid), &first);
}

}  // namespace
}  // namespace cleat::nvme::tcp
