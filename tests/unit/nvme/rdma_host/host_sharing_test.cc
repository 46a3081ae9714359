// SPDX-License-Identifier: Apache-2.0
// What queues share of an adapter: places and memory, the lines in which commands wait for them, memory for messages, and data that another queue left.
#include <algorithm>
#include <set>
#include <vector>

#include "tests/unit/nvme/rdma_host/host_rig.h"

namespace cleat::nvme::rdma_host::host_sharing_test {
namespace {

using namespace host_rig;  // NOLINT(google-build-using-namespace)

constexpr uint32_t kSmall = DataShares::kSmallBytesMax;
constexpr uint32_t kLarge = fabrics::kTransferBytesMax;

class RdmaHostSharingTest : public HostTest {
 protected:
  // Those that were posted so far, in their order.
  std::vector<uint64_t> Sent() const {
    std::vector<uint64_t> cookies;
    for (size_t i = 0; i < pair_->posted.size(); ++i) {
      if (OpAt(i) == SendOp::kSend) cookies.push_back(CapsuleAt(i).cdw10);
    }
    return cookies;
  }
  size_t WorkOf(uint64_t cookie) const {
    for (size_t i = 0; i < pair_->posted.size(); ++i) {
      if (OpAt(i) == SendOp::kSend && CapsuleAt(i).cdw10 == cookie) return i;
    }
    CLEAT_CHECK(false);
  }
  void Finish(uint64_t cookie) {
    const size_t work = WorkOf(cookie);
    Completes(work);
    Answers(work);
  }
};

TEST_F(RdmaHostSharingTest, CommandsWaitForAPlaceInTheirOrderAndAreServedAsOthersAreOver) {
  Make(2);
  for (uint64_t cookie = 1; cookie <= 5; ++cookie) Submit(cookie, 0, cookie == 4 ? 0 : 512);
  adapter_->Post();
  EXPECT_EQ(Sent(), (std::vector<uint64_t>{1, 2}));
  EXPECT_FALSE(adapter_->wants_to_post()) << "nothing can be done until one is over";
  Finish(2);
  EXPECT_EQ(Sent(), (std::vector<uint64_t>{1, 2, 3}));
  Finish(1);
  Finish(3);
  EXPECT_EQ(Sent(), (std::vector<uint64_t>{1, 2, 3, 4, 5}));
}

TEST_F(RdmaHostSharingTest, LargeCommandsLeaveAQuarterOfTheMemoryAndOfThePlaces) {
  Make(32, 4, 0, 33);
  for (uint64_t cookie = 1; cookie <= 5; ++cookie) Submit(cookie, 0, kLarge);
  adapter_->Post();
  EXPECT_EQ(Sent(), (std::vector<uint64_t>{1, 2, 3})) << "of four slabs";
  Submit(6, 0, kSmall);
  Submit(7, 0, 0);
  adapter_->Post();
  EXPECT_EQ(Sent(), (std::vector<uint64_t>{1, 2, 3, 6, 7})) << "small ones go on";
  EXPECT_EQ(data_->slabs_in_use(), 4U);
  Finish(1);
  EXPECT_EQ(Sent().back(), 4U);
  End();
  owner_.heard.clear();
  Make(8, 64, 0, 33);
  for (uint64_t cookie = 1; cookie <= 8; ++cookie) Submit(cookie, 0, kSmall + 1);
  adapter_->Post();
  EXPECT_EQ(Sent().size(), 6U) << "of eight places";
  for (uint64_t cookie = 11; cookie <= 13; ++cookie) Submit(cookie, 0, 512);
  adapter_->Post();
  EXPECT_EQ(Sent().size(), 8U);
  Finish(11);
  EXPECT_EQ(Sent().back(), 13U) << "large ones have all that they may have";
  Finish(1);
  EXPECT_EQ(Sent().back(), 13U) << "a place is left to other targets";
  Finish(12);
  EXPECT_EQ(Sent().back(), 7U);
}

TEST_F(RdmaHostSharingTest, NeitherLineWaitsForEverForTheOther) {
  Make(2, 8, 0, 65);
  // Small ones come without end, and have all places.
  uint64_t next = 1;
  for (; next <= 8; ++next) Submit(next, 0, 512);
  Submit(100, 0, kLarge);
  Submit(101, 0, kLarge);
  Submit(102, 0, kLarge);
  adapter_->Post();
  // The first place of all goes to a small one, the other one to a large one; and so on.
  std::multiset<uint64_t> seen;
  for (uint32_t turns = 0; turns < 40; ++turns) {
    const std::vector<uint64_t> sent = Sent();
    for (const uint64_t cookie : sent) {
      const bool is_over = std::any_of(owner_.heard.begin(), owner_.heard.end(),
                                       [&](const Heard& heard) { return heard.cookie == cookie; });
      if (is_over) continue;
      Finish(cookie);
      break;
    }
    Submit(next++, 0, 512);
    adapter_->Post();
  }
  const std::vector<uint64_t> heard = cookies();
  for (const uint64_t cookie : {100U, 101U, 102U})
    EXPECT_EQ(std::count(heard.begin(), heard.end(), cookie), 1) << cookie;
}

TEST_F(RdmaHostSharingTest, ALargeOneGetsTheMemoryThatSmallOnesGiveBackFirst) {
  Make(256, 2, 0, 257);
  Submit(1000, 0, kLarge);
  adapter_->Post();
  ASSERT_EQ(Sent().size(), 1U);
  for (uint64_t cookie = 1; cookie <= 65; ++cookie) Submit(cookie, 0, kSmall);
  Submit(1001, 0, kLarge);
  adapter_->Post();
  EXPECT_EQ(Sent().size(), 49U) << "a target's share of one slab of 64 small ones";
  Finish(1000);
  EXPECT_EQ(Sent().back(), 1001U) << "a slab is left to large ones, whatever small ones wait";
  Finish(1);
  EXPECT_EQ(Sent().back(), 49U);
}

TEST_F(RdmaHostSharingTest, TargetsThatAnswerNothingLeaveSomethingToTheNextOne) {
  Make(64, 16, 0, 65);
  std::vector<std::unique_ptr<Pair>> pairs;
  std::vector<std::unique_ptr<HostQueue>> queues;
  std::deque<Owner> owners;
  for (uint32_t target = 0; target < 5; ++target) {
    owners.emplace_back();
    pairs.push_back(std::make_unique<Pair>(kNumber + 1 + target, HostAdapter::LimitsFor(65)));
    queues.push_back(std::make_unique<HostQueue>(
        *adapter_, *pairs.back(),
        HostQueueOptions{.name = "q", .target = std::to_string(target), .entries = 65}, owners.back()));
    std::swap(queues.back(), queue_);
    for (uint64_t cookie = 1; cookie <= 32; ++cookie) Submit(cookie, 0, cookie % 2 == 0 ? kLarge : 512);
    std::swap(queues.back(), queue_);
    adapter_->Post();
    EXPECT_FALSE(pairs.back()->posted.empty()) << target;
    if (target > 0) continue;
    EXPECT_LT(pairs.back()->posted.size(), 2 * 32U) << "not all there is";
  }
  for (uint32_t target = 0; target < 5; ++target) {
    queues[target]->Abort({ErrorCode::kCancelled, "enough"});
    std::vector<verbs::MemoryWindow*> windows;
    for (size_t i = queues[target]->bound().size(); i > 0; --i) windows.push_back(&MakeWindow());
    queues[target]->Destroyed(windows);
  }
}

TEST_F(RdmaHostSharingTest, NoMoreQueuesThanMayBe) {
  queues_max_ = 1;
  Make(16);
  const cleat::Status more = adapter_->CheckRoom(2, HostAdapter::LimitsFor(2));
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, ErrorCode::kResourceExhausted);
  End();
  EXPECT_TRUE(adapter_->CheckRoom(2, HostAdapter::LimitsFor(2)).ok());
}

TEST_F(RdmaHostSharingTest, WhatIsAbortedMakesWayForWhatStandsBehindIt) {
  Make(32, 2);
  Send(1, 0, kLarge);
  auto first_pair = std::move(pair_);
  auto first = std::move(queue_);
  Owner second_owner;
  pair_ = std::make_unique<Pair>(kNumber + 1, HostAdapter::LimitsFor(4));
  queue_ = std::make_unique<HostQueue>(*adapter_, *pair_, HostQueueOptions{.name = "b", .entries = 4},
                                       second_owner);
  Submit(2, 0, kLarge);
  auto second = std::move(queue_);
  auto second_pair = std::move(pair_);
  pair_ = std::make_unique<Pair>(kNumber + 2, HostAdapter::LimitsFor(4));
  Owner third_owner;
  queue_ = std::make_unique<HostQueue>(*adapter_, *pair_, HostQueueOptions{.name = "c", .entries = 4},
                                       third_owner);
  Submit(3, kSmall + 1, 0);
  adapter_->Post();
  EXPECT_TRUE(pair_->posted.empty());
  second->Abort({ErrorCode::kCancelled, "second"});
  ASSERT_EQ(second_owner.heard.size(), 1U);
  EXPECT_EQ(second_owner.heard[0].unanswered, Reached::kNothing);
  EXPECT_TRUE(adapter_->wants_to_post());
  second->Destroyed({});
  second.reset();
  first->Abort({ErrorCode::kCancelled, "first"});
  std::vector<verbs::MemoryWindow*> windows{&MakeWindow()};
  first->Destroyed(windows);
  first.reset();
  adapter_->Post();
  EXPECT_EQ(pair_->posted.size(), 2U);
  End();
}

TEST_F(RdmaHostSharingTest, NothingOfAnotherQueuesDataIsReadWhereAControllerWritesNone) {
  Make(4, 2);
  std::fill(guest_.begin(), guest_.end(), 0x5c);
  const size_t write = Send(1, 9000, 0);
  Completes(write);
  Answers(write);
  const size_t read = Send(2, 0, 12'000, 100'000);
  EXPECT_EQ(DataAt(read)[0], 0x5c) << "its own stays, which its controller has seen";
  EXPECT_EQ(DataAt(read)[8999], 0x5c);
  EXPECT_EQ(DataAt(read)[9000], 0) << "what was behind it was nobody's";
  Completes(read);
  Answers(read);
  End();
  owner_.heard.clear();
  MakeQueue(4, 0);
  std::fill(guest_.begin(), guest_.end(), 0x33);
  const size_t part = Send(3, 100, 0, 0);
  Completes(part);
  Answers(part);
  std::fill(guest_.begin(), guest_.end(), 0x77);
  const size_t other = Send(4, 0, 12'000, 100'000);
  Completes(other);
  Answers(other);
  ASSERT_EQ(owner_.heard.back().data_bytes, 12'000U);
  const auto count = [&](uint8_t byte) { return std::count(&guest_[100'000], &guest_[112'000], byte); };
  EXPECT_EQ(count(0x5c), 0);
  EXPECT_EQ(count(0x33), 100) << "its own";
  EXPECT_EQ(count(0), 11'900);
}

TEST_F(RdmaHostSharingTest, MemoryForMessagesIsPostedAgainAndItsRefusalIsTold) {
  Make(4);
  EXPECT_EQ(adapter_->receives_posted(), 4U + HostAdapter::kSpareAnswers);
  EXPECT_EQ(queues_.receives.size(), 4U + HostAdapter::kSpareAnswers);
  std::set<uint64_t> addresses;
  for (const verbs::ReceiveWork& work : queues_.receives) {
    EXPECT_EQ(work.piece.length_bytes, 16U);
    EXPECT_EQ(work.piece.local_key, kSlotKey);
    EXPECT_TRUE(addresses.insert(work.piece.address).second);
  }
  EXPECT_EQ(*addresses.rbegin() + 16, reinterpret_cast<uint64_t>(slots_.data() + slots_.size()));
  for (uint64_t cookie = 0; cookie < 500; ++cookie) {
    const size_t work = Send(cookie, 0, 0);
    Completes(work);
    Answers(work);
  }
  EXPECT_EQ(queues_.receives.size(), 4U + HostAdapter::kSpareAnswers);
  // A message of no queue that is there.
  const CompletionEntry entry;
  ArrivesBytes(&entry, sizeof(entry), std::nullopt, kNumber + 7);
  EXPECT_EQ(adapter_->ignored(), 1U);
  EXPECT_EQ(adapter_->receives_posted(), 4U + HostAdapter::kSpareAnswers);
  EXPECT_FALSE(adapter_->failed());
  queues_.takes = 0;
  const size_t work = Send(1000, 0, 0);
  Completes(work);
  Answers(work);
  EXPECT_TRUE(adapter_->failed());
}

TEST_F(RdmaHostSharingTest, AQueuePairThatTakesNoCommandWithItsWindowIsTooSmall) {
  Make(4);
  EXPECT_TRUE(adapter_->CheckRoom(2, {.works = 2, .pieces = 1}).ok());
  const cleat::Status small = adapter_->CheckRoom(2, {.works = 1, .pieces = 1});
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().code, ErrorCode::kResourceExhausted);
  EXPECT_FALSE(adapter_->CheckRoom(2, {.works = 2, .pieces = 0}).ok());
}

// As admin queues have it, whose event requests are under way all the time.
TEST_F(RdmaHostSharingTest, CommandsWithoutDataTakeNoWindow) {
  Make(4, 8, 0, 9, 1);
  Submit(1, 0, 0);
  Submit(2, 0, 0);
  Submit(3, 0, 512);
  adapter_->Post();
  EXPECT_EQ(pair_->posted.size(), 4U);
  EXPECT_EQ(adapter_->windows_free(), 0U);
  Submit(4, 0, 512);
  adapter_->Post();
  EXPECT_EQ(pair_->posted.size(), 4U);  // it waits for the window
}

}  // namespace
}  // namespace cleat::nvme::rdma_host::host_sharing_test
