// SPDX-License-Identifier: Apache-2.0
// What a request queue has in the log of writes in doubt, and when (docs/nvmeof.md, rule 7): at each moment an engine may be killed, and
// the next one finds whatever may still be executed.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/nvme/host/request_queue_fixture.h"

namespace cleat::nvme::host::requests_test {
namespace {

class TheLogOfRequests : public RequestQueueTest {
 protected:
  std::vector<BlockRange> Found() {
    std::vector<BlockRange> found = log_memory_.Found();
    std::sort(found.begin(), found.end(),
              [](const BlockRange& a, const BlockRange& b) { return a.first < b.first; });
    return found;
  }
  // A write to blocks 0 to 7 is lost with its path, and nobody has heard of it yet.
  void LoseAWrite() {
    Open(pair_);
    Submit(Op::kWrite, 0, 8);
    Break(pair_, Reached::kPerhapsAll);
  }
  // The report reaches the ledger, and its owner stores what is in doubt.
  void DeliverReport() {
    mail_.front()();
    mail_.pop_front();
    log_memory_.log().Store(ledger_.ranges(), DoubtLog::Number::kNew);
  }
  // Ends all that is left, on a path that holds.
  void Finish() {
    FakePair last(99);
    Open(last);
    for (const LifeId life : ledger_.lives()) EXPECT_TRUE(ledger_.Proved(life, Proof::kControllerReset).ok());
    Deliver();
    while (!last.sent.empty()) Answer(last);
    EXPECT_EQ(queue_.counts().requests, 0U);
    EXPECT_TRUE(Found().empty());
  }

  const std::vector<BlockRange> lost_ = {{.first = 0, .blocks = 8}};
  FakePair pair_{1};
};

TEST_F(TheLogOfRequests, HasEachCommandThatWritesBeforeTheQueuePairHasIt) {
  Open(pair_);
  std::vector<std::vector<BlockRange>> at_submission;
  pair_.on_submit = [&](const fabrics::QueuedCommand&) { at_submission.push_back(Found()); };
  Submit(Op::kWrite, 0, 8);
  Submit(Op::kWriteZeroes, 100, 4);
  Submit(Op::kDiscard, 200, 2);
  const std::vector<BlockRange> all = {
      {.first = 0, .blocks = 8}, {.first = 100, .blocks = 4}, {.first = 200, .blocks = 2}};
  ASSERT_EQ(at_submission.size(), 3U);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(at_submission[i], std::vector(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(i) + 1));
  while (!pair_.sent.empty()) Answer(pair_);
}

TEST_F(TheLogOfRequests, DoesNotHaveWhatWasAnsweredNorReadsNorFlushes) {
  Open(pair_);
  Submit(Op::kRead, 0, 8);
  Submit(Op::kFlush, 0, 0);
  EXPECT_TRUE(Found().empty());
  Submit(Op::kWrite, 0, 8);
  Submit(Op::kWrite, 8, 8);
  Answer(pair_, 2);
  EXPECT_EQ(Found(), (std::vector{BlockRange{.first = 8, .blocks = 8}}));
  Answer(pair_, 2, kOutOfRange);
  EXPECT_TRUE(Found().empty()) << "a failure is an answer, too";
  while (!pair_.sent.empty()) Answer(pair_);
}

// The guest may send its next write from within the completion: nothing of this one may be found after that.
TEST_F(TheLogOfRequests, HasForgottenAWriteWhenTheGuestHearsOfItsEnd) {
  Open(pair_);
  bool heard = false;
  Submit(Op::kWrite, 0, 8).then = [&] {
    heard = true;
    EXPECT_TRUE(Found().empty());
  };
  Answer(pair_);
  EXPECT_TRUE(heard);
}

TEST_F(TheLogOfRequests, HasOfARequestInPartsThoseThatAreSentAndNotAnswered) {
  Open(pair_, MakeFormat({.transfer_bytes_max = 4096}));
  Submit(Op::kWrite, 16, 24);
  EXPECT_EQ(Found(), (std::vector{BlockRange{.first = 16, .blocks = 8}, BlockRange{.first = 24, .blocks = 8},
                                  BlockRange{.first = 32, .blocks = 8}}));
  Answer(pair_, 1);
  EXPECT_EQ(Found(),
            (std::vector{BlockRange{.first = 16, .blocks = 8}, BlockRange{.first = 32, .blocks = 8}}));
  while (!pair_.sent.empty()) Answer(pair_);
}

TEST_F(TheLogOfRequests, ForgetsWhatTheTargetCanNotHave) {
  Open(pair_);
  Submit(Op::kWrite, 0, 8);
  Lose(pair_, Reached::kNoData);
  EXPECT_TRUE(Found().empty());
  Break(pair_, Reached::kNothing);
  Finish();
}

TEST_F(TheLogOfRequests, HasALostWriteUntilATableKnowsOfItWhichIsAfterItsGhostWasStored) {
  LoseAWrite();
  EXPECT_EQ(Found(), lost_);
  DeliverReport();
  EXPECT_EQ(Found().size(), 2U) << "the attempt, and its ghost";
  queue_.Adopt(ledger_.TableFor(0));
  EXPECT_EQ(Found(), lost_);
  Deliver();
  EXPECT_EQ(Found(), lost_);
  Finish();
}

TEST_F(TheLogOfRequests, HasALostWriteAlsoAfterATableThatWasMadeBeforeItsReport) {
  Open(pair_);
  Submit(Op::kWrite, 0, 8);
  const DoubtTable before = ledger_.TableFor(0);
  Lose(pair_, Reached::kPerhapsAll);
  queue_.Adopt(before);
  EXPECT_EQ(Found(), lost_) << "its life has not ended here";
  Break(pair_, Reached::kPerhapsAll);
  queue_.Adopt(before);
  EXPECT_EQ(Found(), lost_);
  Finish();
}

// A place in the log is its command's until the ghost is stored; what else is sent meanwhile has others.
TEST_F(TheLogOfRequests, ASlotIsNotUsedAgainAsLongAsTheLogHasItsCommand) {
  Open(pair_);
  for (uint32_t i = 0; i < RequestQueue::kCommandsMax; ++i) Submit(Op::kWrite, uint64_t{8} * i, 8);
  Break(pair_, Reached::kPerhapsAll);
  FakePair next(2);
  queue_.PathReady(2, next, MakeFormat(), PathState::kOptimized);
  Io& read = Submit(Op::kRead, 0, 8);
  EXPECT_TRUE(next.sent.empty());
  EXPECT_EQ(Found().size(), RequestQueue::kCommandsMax);
  while (!mail_.empty()) DeliverReport();
  queue_.Adopt(ledger_.TableFor(0));
  ASSERT_EQ(next.sent.size(), 1U);
  EXPECT_EQ(OpcodeOf(next.sent[0]), Opcode::kRead);
  Answer(next);
  EXPECT_TRUE(read.done);
  Deliver();
  Break(next, Reached::kNothing);
  Finish();
}

TEST_F(TheLogOfRequests, ARetryIsInItBesideTheGhostOfItsFirstAttempt) {
  LoseAWrite();
  Deliver();
  FakePair next(2);
  std::vector<BlockRange> at_submission;
  next.on_submit = [&](const fabrics::QueuedCommand&) { at_submission = Found(); };
  queue_.PathReady(2, next, MakeFormat(), PathState::kOptimized);
  ASSERT_EQ(next.sent.size(), 1U);
  EXPECT_EQ(at_submission.size(), 2U);
  Answer(next);
  EXPECT_EQ(Found(), lost_) << "the first attempt may still be executed";
  Break(next, Reached::kNothing);
  Finish();
}

}  // namespace
}  // namespace cleat::nvme::host::requests_test
