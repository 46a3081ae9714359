// SPDX-License-Identifier: Apache-2.0
// Which writes wait for which: ranges that meet, whose they are, and who is told.
#include "nvmf_target/io/older_writes.h"

#include <gtest/gtest.h>

#include <vector>

namespace cleat::nvmf_target::older_writes_test {
namespace {

struct Told final : OlderWrites::Waiter {
  void MayGoOn() override { ++times; }
  int times = 0;
};

constexpr char kFirst = 0, kSecond = 0, kThird = 0;  // associations

// Asks for a write that came after all others, and takes it away again where it was held.
bool Holds(OlderWrites& writes, const ByteRange& range, const void* association, Told& waiter) {
  const auto place = writes.Hold({.range = range, .association = association, .came_ns = 100}, waiter);
  if (!place) return false;
  const int times = waiter.times;
  writes.Remove(*place);
  waiter.times = times;
  return true;
}

TEST(OlderWritesTest, AWriteWaitsForAnOlderOneWithWhichItSharesAByte) {
  OlderWrites writes;
  Told waiter;
  EXPECT_FALSE(writes.any());
  const auto place = writes.Add({.range = {4096, 8192}, .association = &kFirst});
  EXPECT_TRUE(writes.any());
  EXPECT_FALSE(Holds(writes, {0, 4096}, &kSecond, waiter));
  EXPECT_FALSE(Holds(writes, {8192, 8704}, &kSecond, waiter));
  EXPECT_TRUE(Holds(writes, {0, 4097}, &kSecond, waiter));
  EXPECT_TRUE(Holds(writes, {8191, 8192}, &kSecond, waiter));
  EXPECT_TRUE(Holds(writes, {5000, 6000}, &kSecond, waiter));
  EXPECT_TRUE(Holds(writes, {0, 1 << 20}, &kSecond, waiter));
  const auto held =
      writes.Hold({.range = {0, 1 << 20}, .association = &kSecond, .came_ns = 100}, waiter).value();
  EXPECT_TRUE(writes.StillHolds(held, waiter));
  EXPECT_EQ(waiter.times, 0);
  writes.Remove(place);
  EXPECT_EQ(waiter.times, 1) << "once, however often it was put down";
  EXPECT_FALSE(writes.StillHolds(held, waiter));
  EXPECT_TRUE(writes.any()) << "it goes to the storage now, and newer ones have to know";
  writes.Remove(held);
  EXPECT_FALSE(writes.any());
}

TEST(OlderWritesTest, ALongOneIsFoundBehindShortOnes) {
  OlderWrites writes;
  Told waiter;
  const auto discard = writes.Add({.range = {0, 1 << 30}});
  std::vector<OlderWrites::Writes::iterator> others;
  for (uint64_t i = 0; i < 100; ++i)
    others.push_back(writes.Add({.range = {i * 4096, i * 4096 + 512}, .association = &kSecond}));
  EXPECT_TRUE(Holds(writes, {(1 << 30) - 1, 1 << 30}, &kSecond, waiter));
  EXPECT_FALSE(Holds(writes, {1 << 30, (1 << 30) + 512}, &kSecond, waiter));
  writes.Remove(discard);
  EXPECT_FALSE(Holds(writes, {512, 4096}, &kSecond, waiter)) << "between others of its own association";
  EXPECT_TRUE(Holds(writes, {512, 4097}, &kFirst, waiter));
  for (const auto place : others) writes.Remove(place);
}

TEST(OlderWritesTest, AnAssociationWaitsForItsOwnOnlyWhenTheirConnectionHasEnded) {
  OlderWrites writes;
  Told waiter;
  const auto place = writes.Add({.range = {0, 4096}, .association = &kFirst});
  EXPECT_FALSE(Holds(writes, {0, 4096}, &kFirst, waiter));
  writes.End(place);
  EXPECT_TRUE(Holds(writes, {0, 4096}, &kFirst, waiter));
  writes.Remove(place);
}

// By three paths in turn, the first of which has ended, and of the second the target has not heard.
TEST(OlderWritesTest, HeldWritesGoInTheOrderInWhichTheyCame) {
  OlderWrites writes;
  Told second, third;
  const auto first = writes.Add({.range = {0, 4096}});
  const auto held = writes.Hold({.range = {0, 4096}, .association = &kSecond, .came_ns = 5}, second).value();
  const auto later = writes.Hold({.range = {0, 4096}, .association = &kThird, .came_ns = 5}, third).value();
  writes.Remove(first);
  EXPECT_TRUE(writes.StillHolds(later, third)) << "whichever reactor looks first";
  EXPECT_FALSE(writes.StillHolds(held, second));
  EXPECT_TRUE(writes.StillHolds(later, third)) << "the other one is in the storage now";
  writes.Remove(held);
  EXPECT_FALSE(writes.StillHolds(later, third));
  writes.Remove(later);
}

// What went to the storage before a write was held is older, also where the others are told of it later.
TEST(OlderWritesTest, AHeldWriteWaitsForWhatWasInTheStorageBefore) {
  OlderWrites writes;
  Told waiter;
  const auto first = writes.Add({.range = {0, 512}, .came_ns = 1});
  const auto held = writes.Hold({.range = {0, 4096}, .association = &kSecond, .came_ns = 5}, waiter).value();
  const auto before = writes.Add({.range = {512, 4096}, .association = &kThird, .came_ns = 4});
  const auto after = writes.Add({.range = {512, 4096}, .association = &kThird, .came_ns = 6});
  writes.Remove(first);
  EXPECT_TRUE(writes.StillHolds(held, waiter));
  writes.Remove(before);
  EXPECT_FALSE(writes.StillHolds(held, waiter));
  writes.Remove(held);
  writes.Remove(after);
}

}  // namespace
}  // namespace cleat::nvmf_target::older_writes_test
