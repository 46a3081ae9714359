// SPDX-License-Identifier: Apache-2.0
// The end of a host's queue: what its owner hears of each command, and when the adapter's memory is somebody else's again.
#include <bit>
#include <vector>

#include "tests/unit/nvme/rdma_host/host_rig.h"

namespace cleat::nvme::rdma_host::host_end_test {
namespace {

using namespace host_rig;  // NOLINT(google-build-using-namespace)

class RdmaHostEndTest : public HostTest {
 protected:
  void Abort() { queue_->Abort({ErrorCode::kDeadlineExceeded, "keep alive"}); }
};

TEST_F(RdmaHostEndTest, EachCommandComesBackInOrderWithWhatTheControllerCanHaveOfIt) {
  Make(6);
  const size_t sent = Send(1, 0, 512, 0);
  Completes(sent);
  const size_t answered = Send(2, 0, 4096, 1000);  // but its send has not completed
  std::memset(DataAt(answered), 0x21, 4096);
  Answers(answered);
  const size_t open = Send(3, 0, 4096, 6000);  // whose window is to be shut by this end
  Completes(open);
  std::memset(DataAt(open), 0x22, 4096);
  Arrives(CapsuleAt(open).cid);
  const size_t failed = Send(4, 0, 4096, 12000);
  std::memset(DataAt(failed), 0x23, 4096);
  Arrives(CapsuleAt(failed).cid, std::nullopt, kInvalidField);
  Send(5, 512, 0);
  Submit(6, 512, 0);  // which finds no place
  adapter_->Post();
  Submit(7, 0, 0);
  ASSERT_TRUE(owner_.heard.empty());
  const uint8_t untouched = guest_[12000];
  Abort();
  Abort();
  ASSERT_EQ(cookies(), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(owner_.heard[0].unanswered, Reached::kPerhapsAll);
  EXPECT_FALSE(owner_.heard[1].unanswered);
  EXPECT_EQ(owner_.heard[1].data_bytes, 4096U);
  EXPECT_EQ(guest_[1000], 0x21);
  EXPECT_FALSE(owner_.heard[2].unanswered);
  EXPECT_EQ(guest_[6000 + 4095], 0x22);
  EXPECT_EQ(owner_.heard[3].status, kInvalidField);
  EXPECT_EQ(owner_.heard[3].data_bytes, 0U);
  EXPECT_EQ(guest_[12000], untouched);
  EXPECT_EQ(owner_.heard[4].unanswered, Reached::kPerhapsAll);
  EXPECT_EQ(owner_.heard[5].unanswered, Reached::kNothing);
  EXPECT_EQ(owner_.heard[6].unanswered, Reached::kNothing);
  EXPECT_EQ(owner_.ends, std::vector<std::string>{"keep alive"});
  EXPECT_EQ(pair_->breaks, 1U);
  const size_t works = pair_->posted.size();
  adapter_->Post();
  EXPECT_EQ(pair_->posted.size(), works);
}

// An owner may send the next command upon each answer, and looks at room() before.
TEST_F(RdmaHostEndTest, HasNoRoomWhileItTellsOfAnswers) {
  Make();
  const size_t answered = Send(1, 0, 4096);  // but its send has not completed
  Answers(answered);
  ASSERT_TRUE(owner_.heard.empty());
  uint32_t room = UINT32_MAX;
  bool ended = false;
  owner_.on_completed = [&] {
    room = queue_->room();
    ended = queue_->ended();
  };
  Abort();
  EXPECT_EQ(room, 0U);
  EXPECT_TRUE(ended);
}

TEST_F(RdmaHostEndTest, WhatWasPostedIsParkedUntilTheQueuePairIsDestroyed) {
  Make(4);
  const size_t flush = Send(1, 0, 0);
  const size_t read = Send(2, 0, 512);
  const size_t shut = Send(3, 0, 512);
  Answers(shut);
  Submit(4, 0, 512);
  Abort();
  EXPECT_EQ(adapter_->places_free(), 1U);
  EXPECT_EQ(data_->slabs_in_use(), 1U);
  EXPECT_FALSE(queue_->flushed());
  EXPECT_EQ(queue_->bound(), std::vector<verbs::MemoryWindow*>{At(read - 1).binding.window})
      << "what the controller has shut is not open";
  Completes(flush, WorkStatus::kFlushed);
  Completes(read - 1, WorkStatus::kFlushed);
  Completes(read, WorkStatus::kFlushed);
  EXPECT_FALSE(queue_->flushed());
  Completes(shut);
  EXPECT_TRUE(queue_->flushed());
  EXPECT_EQ(adapter_->places_free(), 1U);
  EXPECT_EQ(queue_->bound().size(), 1U);
  pair_.reset();
  Window& fresh = MakeWindow();
  std::vector<verbs::MemoryWindow*> windows{&fresh};
  queue_->Destroyed(windows);
  EXPECT_EQ(adapter_->places_free(), 4U);
  EXPECT_EQ(data_->slabs_in_use(), 0U);
  queue_.reset();
  EXPECT_EQ(owner_.heard.size(), 4U);
}

TEST_F(RdmaHostEndTest, WindowsThatHaveNoReplacementTakeTheirPlaceAlong) {
  Make(2);
  Send(1, 0, 512);
  Send(2, 0, 512);
  Abort();
  ASSERT_EQ(queue_->bound().size(), 2U);
  Window& fresh = MakeWindow();
  pair_.reset();
  std::vector<verbs::MemoryWindow*> windows{nullptr, &fresh};
  queue_->Destroyed(windows);
  EXPECT_EQ(adapter_->windows(), 1U);
  MakeQueue(4, 0);
  Submit(3, 0, 512);
  Submit(4, 0, 512);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 2U);
  EXPECT_EQ(At(0).binding.window, &fresh);
  Abort();
  pair_.reset();
  std::vector<verbs::MemoryWindow*> none{nullptr};
  queue_->Destroyed(none);
  EXPECT_TRUE(adapter_->failed()) << "other queues' commands would wait for ever";
  const cleat::Status room = adapter_->CheckRoom(4, HostAdapter::LimitsFor(4));
  ASSERT_FALSE(room.ok());
  EXPECT_EQ(room.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(room.error().message.find("no memory window left"), std::string::npos);
  queue_.reset();
}

TEST_F(RdmaHostEndTest, ItsMemoryGoesToThoseWhoWaitOnceTheQueuePairIsDestroyed) {
  Make(2);
  Send(1, 0, 512);
  Send(2, 0, 512);
  auto first_pair = std::move(pair_);
  auto first = std::move(queue_);
  pair_ = std::make_unique<Pair>(kNumber + 1, HostAdapter::LimitsFor(4));
  Owner other;
  queue_ = std::make_unique<HostQueue>(*adapter_, *pair_, HostQueueOptions{.name = "b", .entries = 4}, other);
  Submit(3, 0, 0);
  adapter_->Post();
  EXPECT_TRUE(pair_->posted.empty());
  first->Abort({ErrorCode::kCancelled, "first"});
  adapter_->Post();
  EXPECT_TRUE(pair_->posted.empty()) << "its controller may still read and write there";
  std::vector<verbs::MemoryWindow*> windows{&MakeWindow(), &MakeWindow()};
  first_pair.reset();
  first->Destroyed(windows);
  EXPECT_TRUE(adapter_->wants_to_post());
  adapter_->Post();
  EXPECT_EQ(pair_->posted.size(), 1U);
  first.reset();
  End();
}

TEST_F(RdmaHostEndTest, WorksThatTheAdapterDoesNotTakeEndTheQueue) {
  for (uint32_t takes = 0; takes < 6; ++takes) {
    SCOPED_TRACE(takes);
    Make();
    Submit(1, 0, 512);
    Submit(2, 0, 0);
    Submit(3, 0, 512);
    pair_->takes = takes;
    adapter_->Post();
    if (takes == 5) {
      EXPECT_TRUE(owner_.ends.empty());
      End();
      owner_.ends.clear();
      owner_.heard.clear();
      continue;
    }
    ASSERT_EQ(owner_.ends.size(), 1U);
    EXPECT_NE(owner_.ends[0].find("takes no more works"), std::string::npos);
    ASSERT_EQ(owner_.heard.size(), 3U);
    EXPECT_EQ(owner_.heard[0].unanswered, takes >= 2 ? Reached::kPerhapsAll : Reached::kNothing);
    EXPECT_EQ(owner_.heard[1].unanswered, takes >= 3 ? Reached::kPerhapsAll : Reached::kNothing);
    EXPECT_EQ(owner_.heard[2].unanswered, Reached::kNothing);
    EXPECT_EQ(queue_->bound().size(), takes == 0 ? 0U : takes < 4 ? 1U : 2U);
    EXPECT_EQ(queue_->flushed(), takes == 0);
    for (uint32_t work = 0; work < takes; ++work) Completes(work, WorkStatus::kFlushed);
    EXPECT_TRUE(queue_->flushed());
    Destroy();
    EXPECT_EQ(adapter_->places_free(), 16U);
    owner_.ends.clear();
    owner_.heard.clear();
  }
}

TEST_F(RdmaHostEndTest, TheOwnerMayAbortFromWithin) {
  Make();
  const size_t first = Send(1, 0, 512);
  Send(2, 0, 512);
  owner_.on_completed = [&] { Abort(); };
  owner_.on_ended = [&] { Abort(); };
  Completes(first);
  Answers(first);
  EXPECT_EQ(cookies(), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(owner_.ends.size(), 1U);
  EXPECT_EQ(queue_->bound().size(), 1U);
}

TEST_F(RdmaHostEndTest, LateCompletionsOfAQueuePairThatIsGoneAreIgnored) {
  Make();
  Send(1, 0, 512);
  const std::vector<Posted> of_first = pair_->posted;
  Abort();
  Destroy();
  MakeQueue(9, 0);
  Send(2, 0, 512);
  for (const Posted& late : of_first) {
    queues_.pending.push_back({.id = late.work.id, .queue_pair = kNumber, .status = WorkStatus::kFlushed});
  }
  adapter_->Poll(64);
  EXPECT_EQ(owner_.ends.size(), 1U) << "of the first";
  EXPECT_EQ(adapter_->ignored(), 2U);
  EXPECT_FALSE(queue_->flushed());
}

TEST_F(RdmaHostEndTest, WhatWasPolledAlreadyOfAQueuePairThatGoesIsDroppedAndItsMessagesKept) {
  Make();
  const size_t first = Send(1, 0, 512);
  const size_t second = Send(2, 0, 512);
  // In one batch: an answer that ends the queue pair, whose maker destroys it at once and has another one of its number, and what is behind it.
  Owner next_owner;
  Pair next_pair(kNumber, HostAdapter::LimitsFor(4));
  std::unique_ptr<HostQueue> next;
  owner_.on_ended = [&] {
    std::vector<verbs::MemoryWindow*> windows;
    for (size_t i = queue_->bound().size(); i > 0; --i) windows.push_back(&MakeWindow());
    queue_->Destroyed(windows);
    next = std::make_unique<HostQueue>(*adapter_, next_pair, HostQueueOptions{.name = "b", .entries = 4},
                                       next_owner);
  };
  for (const size_t work : {first, second}) {
    const verbs::ReceiveWork receive = queues_.receives.front();
    queues_.receives.pop_front();
    CompletionEntry entry;
    entry.cid = static_cast<uint16_t>(CapsuleAt(work).cid + 1000);
    std::memcpy(std::bit_cast<void*>(receive.piece.address), &entry, sizeof(entry));
    queues_.pending.push_back({.id = receive.id, .queue_pair = kNumber, .received_bytes = 16});
    queues_.pending.push_back(
        {.id = At(work).work.id, .queue_pair = kNumber, .status = WorkStatus::kFlushed});
  }
  adapter_->Poll(64);
  EXPECT_EQ(owner_.ends.size(), 1U);
  EXPECT_EQ(owner_.heard.size(), 2U);
  EXPECT_EQ(adapter_->receives_posted(), HostAdapter::ReceiveEntries(16));
  EXPECT_EQ(adapter_->places_free(), 16U);
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(next_owner.ends.empty());
  EXPECT_EQ(adapter_->ignored(), 2U + 1U);
  next->Abort({ErrorCode::kCancelled, "the test's end"});
  next->Destroyed({});
  pair_.reset();
  queue_.reset();
}

}  // namespace
}  // namespace cleat::nvme::rdma_host::host_end_test
