// SPDX-License-Identifier: Apache-2.0
// The model of the random operations itself: it takes what is right, and nothing else.
#include "tests/ceph/rbd_world.h"

#include <gtest/gtest.h>

namespace cleat::system_test::rbd_world_test {
namespace {

using End = World::End;

bool Take(Worlds& worlds, Act act, const std::string& answer, uint8_t mib = World::kMibNew) {
  return worlds.Take({.act = act, .mib = mib}, answer);
}

// A disk of 2 MiB on the blk controller.
Worlds Attached(uint8_t image_mib) {
  Worlds worlds;
  EXPECT_TRUE(Take(worlds, Act::kCreateCluster, "OK"));
  EXPECT_TRUE(Take(worlds, Act::kCreateDisk, "OK"));
  EXPECT_TRUE(Take(worlds, Act::kCreateController, "OK"));
  if (image_mib != 0) {
    EXPECT_TRUE(Take(worlds, Act::kCreateImage, "OK", image_mib));
  }
  EXPECT_TRUE(Take(worlds, Act::kAttach, "OK"));
  return worlds;
}

TEST(RbdWorld, WrongAnswersFitNoWorld) {
  Worlds none;
  EXPECT_FALSE(Take(none, Act::kCreateDisk, "OK")) << "without its cluster";
  Worlds attached = Attached(2);
  Worlds worlds = attached;
  EXPECT_FALSE(Take(worlds, Act::kDeleteDisk, "OK"));
  worlds = attached;
  EXPECT_FALSE(Take(worlds, Act::kDeleteController, "OK"));
  worlds = attached;
  EXPECT_FALSE(Take(worlds, Act::kDeleteCluster, "OK"));
  worlds = attached;
  EXPECT_FALSE(Take(worlds, Act::kRemoveImage, "OK"));
  worlds = attached;
  EXPECT_FALSE(worlds.Take({.act = Act::kAttach, .disk = 1}, "OK")) << "a second disk on a blk controller";
  worlds = attached;
  EXPECT_FALSE(Take(worlds, Act::kResizeDisk, "OK", 1));
  EXPECT_EQ(attached.AnswersTo({.act = Act::kDeleteDisk}), "DISK_IN_USE");
}

TEST(RbdWorld, WhatIsLeavingIsThereOrNot) {
  for (const char* answer : {"OK", "RESOURCE_BUSY"}) {
    Worlds worlds = Attached(2);
    ASSERT_TRUE(Take(worlds, Act::kDetach, "OK"));
    EXPECT_TRUE(Take(worlds, Act::kDeleteDisk, answer));
  }
  // What has been seen to be gone does not come back.
  Worlds worlds = Attached(2);
  ASSERT_TRUE(Take(worlds, Act::kDetach, "OK"));
  ASSERT_TRUE(worlds.Ended(0, End::kGone));
  EXPECT_FALSE(Take(worlds, Act::kDeleteDisk, "RESOURCE_BUSY"));
}

TEST(RbdWorld, AnEndIsThatOfTheImage) {
  Worlds ready = Attached(2);
  EXPECT_TRUE(ready.Ended(0, End::kReady));
  EXPECT_FALSE(ready.MayEnd(0, End::kGone));
  EXPECT_FALSE(ready.MayEnd(0, End::kNoImage));
  EXPECT_FALSE(ready.MayEnd(0, End::kImageTooSmall));
  EXPECT_FALSE(Attached(0).MayEnd(0, End::kReady));
  EXPECT_TRUE(Attached(0).MayEnd(0, End::kNoImage));
}

TEST(RbdWorld, AnImageGrowsToItsDiskUnlessItHadMore) {
  const auto grown_while_detached = [](uint8_t image_mib) {
    Worlds worlds = Attached(image_mib);
    EXPECT_TRUE(Take(worlds, Act::kDetach, "OK"));
    EXPECT_TRUE(worlds.Ended(0, End::kGone));
    EXPECT_TRUE(Take(worlds, Act::kResizeDisk, "OK", 6));
    return worlds;
  };
  Worlds grows = grown_while_detached(4);
  ASSERT_TRUE(Take(grows, Act::kAttach, "OK"));
  EXPECT_TRUE(grows.MayEnd(0, End::kReady));
  EXPECT_FALSE(grows.MayEnd(0, End::kImageTooSmall));
  Worlds another = grown_while_detached(4);  // in its place
  ASSERT_TRUE(Take(another, Act::kRemoveImage, "OK"));
  ASSERT_TRUE(Take(another, Act::kCreateImage, "OK", 1));
  ASSERT_TRUE(Take(another, Act::kAttach, "OK"));
  EXPECT_FALSE(another.MayEnd(0, End::kReady));
  EXPECT_TRUE(another.MayEnd(0, End::kImageTooSmall));
}

TEST(RbdWorld, AnAttachedImageGrowsWithItsDiskAndTheOtherWayRound) {
  const auto sizes = [](const Worlds& worlds) {
    std::set<std::pair<int, int>> all;
    worlds.Any([&](const World& world) {
      all.emplace(world.disks[0].mib, world.disks[0].image_mib);
      return false;
    });
    return all;
  };
  Worlds by_api = Attached(2);
  ASSERT_TRUE(Take(by_api, Act::kResizeDisk, "OK", 4));
  EXPECT_EQ(sizes(by_api), (std::set<std::pair<int, int>>{{4, 2}, {4, 3}, {4, 4}}));
  Worlds by_rbd = Attached(2);
  ASSERT_TRUE(Take(by_rbd, Act::kGrowImage, "OK", 3));
  EXPECT_EQ(sizes(by_rbd), (std::set<std::pair<int, int>>{{2, 3}, {3, 3}}));
}

}  // namespace
}  // namespace cleat::system_test::rbd_world_test
