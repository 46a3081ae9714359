// SPDX-License-Identifier: Apache-2.0
// What waits at its storage is listed with its reason and what to do: from the attachment's status and, for what that has no number of,
// the engines' counters.
#include "control/observe/stuck_list.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "control/state/controllers/stuck_attachment.h"
#include "segment_rig.h"

namespace cleat::control::stuck_list_test {
namespace {

constexpr int64_t kSinceS = 1'700'000'000;

v1::Attachment AttachmentIn(v1::StorageState storage) {
  v1::Attachment attachment;
  attachment.set_name("controllers/vm/attachments/a");
  attachment.mutable_spec()->set_disk("disks/root");
  attachment.mutable_status()->set_storage_state(storage);
  attachment.mutable_status()->set_message("the whole of it");
  return attachment;
}

v1::DiskSpec OverPaths() {
  v1::DiskSpec spec;
  spec.mutable_nvme_tcp()->set_subsystem("subsystems/array");
  return spec;
}

// Of engine-0, as StuckOf leaves it.
v1::StuckAttachment Stuck(const std::string& disk, v1::StuckReason reason, int64_t since_s = 0) {
  v1::StuckAttachment stuck;
  stuck.set_disk(disk);
  stuck.set_controller("controllers/vm");
  stuck.set_engine("engines/engine-0");
  stuck.set_reason(reason);
  if (since_s != 0) stuck.mutable_since()->set_seconds(since_s);
  return stuck;
}

TEST(StuckAttachmentTest, WhatWaitsForWritesInDoubtSaysHowManySinceWhenAndHowToEndIt) {
  v1::Attachment attachment = AttachmentIn(v1::STORAGE_STATE_STUCK);
  attachment.mutable_status()->mutable_paths()->set_optimized(1);
  attachment.mutable_status()->mutable_paths()->set_waiting(4);
  attachment.mutable_status()->mutable_paths()->mutable_waiting_since()->set_seconds(kSinceS);
  const auto stuck = StuckOf(attachment, OverPaths());
  ASSERT_TRUE(stuck);
  EXPECT_EQ(stuck->attachment(), "controllers/vm/attachments/a");
  EXPECT_EQ(stuck->disk(), "disks/root");
  EXPECT_EQ(stuck->controller(), "controllers/vm");
  EXPECT_EQ(stuck->reason(), v1::STUCK_REASON_WRITES_IN_DOUBT);
  EXPECT_EQ(stuck->waiting(), 4U);
  EXPECT_EQ(stuck->since().seconds(), kSinceS);
  EXPECT_EQ(stuck->message(), "the whole of it");
  EXPECT_EQ(stuck->next_step(),
            "see that the target executes nothing of that any more, then cleatctl disk confirm-dead root");
}

TEST(StuckAttachmentTest, ADiskWithoutAPathIsToldFromStorageThatDoesNotAnswer) {
  v1::Attachment attachment = AttachmentIn(v1::STORAGE_STATE_NOT_ANSWERING);
  attachment.mutable_status()->mutable_paths()->set_unusable(2);
  attachment.mutable_status()->mutable_paths()->set_waiting(4);
  auto stuck = StuckOf(attachment, OverPaths());
  ASSERT_TRUE(stuck);
  EXPECT_EQ(stuck->reason(), v1::STUCK_REASON_NO_PATH);
  EXPECT_EQ(stuck->next_step(), "bring a path back: cleatctl subsystem get array has the addresses");
  EXPECT_EQ(stuck->waiting(), 0U) << "others wait as well: the counters say how many";

  attachment.mutable_status()->mutable_paths()->set_non_optimized(1);
  stuck = StuckOf(attachment, OverPaths());
  ASSERT_TRUE(stuck);
  EXPECT_EQ(stuck->reason(), v1::STUCK_REASON_NO_ANSWER);

  attachment.mutable_status()->clear_paths();  // another kind of disk, or one that is being opened
  stuck = StuckOf(attachment, {});
  ASSERT_TRUE(stuck);
  EXPECT_EQ(stuck->reason(), v1::STUCK_REASON_NO_ANSWER);
  EXPECT_EQ(stuck->next_step(), "see to the storage: cleatctl disk get root says where that is");
}

TEST(StuckAttachmentTest, OnlyWhereRequestsWait) {
  EXPECT_EQ(StuckOf(AttachmentIn(v1::STORAGE_STATE_NO_SPACE), {})->reason(), v1::STUCK_REASON_NO_SPACE);
  EXPECT_FALSE(StuckOf(AttachmentIn(v1::STORAGE_STATE_UNSPECIFIED), {}));
  EXPECT_FALSE(StuckOf(AttachmentIn(v1::STORAGE_STATE_OK), {}));
  EXPECT_FALSE(StuckOf(AttachmentIn(v1::STORAGE_STATE_FAILING), {})) << "it answers";
}

class StuckListTest : public testing::Test {
 protected:
  v1::ListSlowRequestsResponse List(std::vector<v1::StuckAttachment> stuck, const std::string& name = "") {
    v1::ListSlowRequestsResponse response;
    AddStuck(std::move(stuck), name, counters_, response);
    return response;
  }

  ManualClock clock_{100 * kNsPerSecond};
  Counters counters_{clock_};
};

TEST_F(StuckListTest, WhatAStatusDoesNotCountIsTakenFromTheCounters) {
  SegmentRig engine(clock_);
  observe::DiskCounters& cell = engine.Add("controllers/vm", "disks/a");
  counters_.OnHello("engine-0", 1, engine.Fd());
  const uint64_t seen_ns = clock_.NowNs();
  clock_.AdvanceBy(30 * kNsPerSecond);
  engine.Look(0, &cell, seen_ns);
  const std::vector<v1::StuckAttachment> stuck = {Stuck("disks/a", v1::STUCK_REASON_NO_PATH),
                                                  Stuck("disks/a", v1::STUCK_REASON_WRITES_IN_DOUBT, kSinceS),
                                                  Stuck("disks/b", v1::STUCK_REASON_NO_ANSWER)};
  const int64_t before_s = static_cast<int64_t>(SecondsSince1970());
  const v1::ListSlowRequestsResponse list = List(stuck);
  const int64_t after_s = static_cast<int64_t>(SecondsSince1970());
  ASSERT_EQ(list.stuck_size(), 3);
  EXPECT_EQ(list.stuck(0).reason(), v1::STUCK_REASON_WRITES_IN_DOUBT) << "since before the counters' request";
  EXPECT_EQ(list.stuck(0).waiting(), 0U) << "its status counts what waits";
  EXPECT_EQ(list.stuck(1).reason(), v1::STUCK_REASON_NO_PATH);
  EXPECT_EQ(list.stuck(1).waiting(), 3U);
  EXPECT_GE(list.stuck(1).since().seconds(), before_s - 30);
  EXPECT_LE(list.stuck(1).since().seconds(), after_s - 30);
  EXPECT_EQ(list.stuck(2).disk(), "disks/b");
  EXPECT_FALSE(list.stuck(2).has_since()) << "nothing of it is in flight";

  counters_.OnGone("engine-0");
  EXPECT_EQ(List(stuck).stuck(1).waiting(), 0U) << "what a dead engine has counted says nothing of now";
}

TEST_F(StuckListTest, OnlyThoseThatANameMeans) {
  std::vector<v1::StuckAttachment> stuck = {Stuck("disks/a", v1::STUCK_REASON_NO_PATH),
                                            Stuck("disks/b", v1::STUCK_REASON_NO_PATH)};
  stuck[1].set_engine("engines/engine-1");
  stuck[1].set_controller("controllers/other");
  EXPECT_EQ(List(stuck).stuck_size(), 2);
  for (const char* name : {"disks/b", "controllers/other", "engines/engine-1"}) {
    const v1::ListSlowRequestsResponse list = List(stuck, name);
    ASSERT_EQ(list.stuck_size(), 1) << name;
    EXPECT_EQ(list.stuck(0).disk(), "disks/b");
  }
  EXPECT_EQ(List(stuck, "disks/c").stuck_size(), 0);
}

TEST_F(StuckListTest, IsBoundedAndHasThoseThatHaveWaitedLongest) {
  std::vector<v1::StuckAttachment> stuck;
  for (size_t i = 0; i < kStuckListMax + 3; ++i) {
    stuck.push_back(Stuck(fmt::format("disks/d{}", i), v1::STUCK_REASON_WRITES_IN_DOUBT,
                          kSinceS - static_cast<int64_t>(i)));
  }
  const v1::ListSlowRequestsResponse list = List(std::move(stuck));
  ASSERT_EQ(list.stuck_size(), static_cast<int>(kStuckListMax));
  EXPECT_EQ(list.stuck_left_out(), 3U);
  EXPECT_EQ(list.stuck(0).disk(), fmt::format("disks/d{}", kStuckListMax + 2));
}

}  // namespace
}  // namespace cleat::control::stuck_list_test
