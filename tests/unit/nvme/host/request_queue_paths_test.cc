// SPDX-License-Identifier: Apache-2.0
// Which of several paths a request takes, and what becomes of it when a path refuses it or ends.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "tests/unit/nvme/host/request_queue_fixture.h"

namespace cleat::nvme::host::requests_test {
namespace {

constexpr PathState kUnusable = PathState::kUnusable;
constexpr PathState kNonOptimized = PathState::kNonOptimized;
constexpr PathState kOptimized = PathState::kOptimized;

class RequestsOnPaths : public RequestQueueTest {
 protected:
  // How often the owner was told that a path refuses.
  int64_t Refusals(LifeId life) const {
    return std::count(log_.begin(), log_.end(), "refused " + std::to_string(life));
  }
  void AnswerAll(FakePair& pair) {
    while (!pair.sent.empty()) Answer(pair);
  }
  // Each request ends.
  void Finish() {
    for (int round = 0; round < 100 && queue_.counts().requests > 0; ++round) {
      for (FakePair* pair : {&a_, &b_, &c_}) AnswerAll(*pair);
      WaitForPause();
    }
    EXPECT_EQ(queue_.counts().requests, 0U);
    for (const Io& io : ios_) EXPECT_EQ(io.status, IoStatus::kOk);
  }

  FakePair a_{1};
  FakePair b_{2};
  FakePair c_{3};
};

// ---- Which one

TEST_F(RequestsOnPaths, TheBestStateThatThereIsIsTaken) {
  Open(a_, MakeFormat(), kUnusable);
  Open(b_, MakeFormat(), kNonOptimized);
  Submit(Op::kRead, 0, 8);
  EXPECT_EQ(b_.sent.size(), 1U);
  Open(c_, MakeFormat(), kOptimized);
  for (uint64_t i = 0; i < 5; ++i) Submit(Op::kRead, i, 1);
  EXPECT_EQ(c_.sent.size(), 5U) << "though the other has fewer under way";
  EXPECT_EQ(b_.sent.size(), 1U);
  EXPECT_TRUE(a_.sent.empty());
  Finish();
}

// Some of its commands come back later, and it has no room until then.
TEST_F(RequestsOnPaths, OneThatBreaksIsNotWaitedFor) {
  Open(a_);
  Submit(Op::kRead, 0, 8);
  a_.depth = 1;
  Submit(Op::kRead, 8, 8);
  Open(b_, MakeFormat(), kNonOptimized);
  EXPECT_TRUE(b_.sent.empty()) << "the better one has no room, and will have";
  queue_.PathBreaks(1);
  EXPECT_EQ(b_.sent.size(), 1U);
  Submit(Op::kRead, 16, 8);
  EXPECT_EQ(b_.sent.size(), 2U);
  queue_.PathBreaks(9);  // no path here
  a_.depth = 2;
  Finish();
}

TEST_F(RequestsOnPaths, AStateThatChangesUnderLoadIsForNewOnes) {
  Open(a_);
  Open(b_, MakeFormat(), kNonOptimized);
  Submit(Op::kWrite, 0, 8);
  queue_.SetState(1, kNonOptimized);
  queue_.SetState(2, kOptimized);
  Submit(Op::kWrite, 8, 8);
  EXPECT_EQ(a_.sent.size(), 1U) << "what is under way stays";
  EXPECT_EQ(b_.sent.size(), 1U);
  queue_.SetState(1, kUnusable);
  queue_.SetState(2, kUnusable);
  Submit(Op::kWrite, 16, 8);
  EXPECT_EQ(queue_.counts().for_path, 1U);
  queue_.SetState(1, kNonOptimized);
  EXPECT_EQ(a_.sent.size(), 2U) << "it waits no longer";
  queue_.SetState(9, kOptimized);  // no path here
  Finish();
}

TEST_F(RequestsOnPaths, OfEqualOnesTheOneWithTheFewestUnderWay) {
  Open(a_, MakeFormat(), kNonOptimized);
  for (uint64_t i = 0; i < 4; ++i) Submit(Op::kRead, i, 1);
  Open(b_, MakeFormat(), kNonOptimized);
  for (uint64_t i = 0; i < 6; ++i) Submit(Op::kRead, i, 1);
  EXPECT_EQ(a_.sent.size(), 5U);
  EXPECT_EQ(b_.sent.size(), 5U);
  Answer(a_);
  Answer(a_);
  Submit(Op::kRead, 0, 1);
  Submit(Op::kRead, 0, 1);
  EXPECT_EQ(a_.sent.size(), 5U);
  EXPECT_EQ(b_.sent.size(), 5U);
  Finish();
}

TEST_F(RequestsOnPaths, OneRequestAtATimeGoesRoundAllThatThereMayBe) {
  std::deque<FakePair> pairs;
  for (LifeId life = 1; life <= RequestQueue::kPathsMax; ++life) Open(pairs.emplace_back(life));
  for (uint64_t i = 0; i < 3 * RequestQueue::kPathsMax; ++i) {
    Io& io = Submit(Op::kRead, i, 1);
    FakePair& pair = pairs[i % RequestQueue::kPathsMax];
    ASSERT_EQ(pair.sent.size(), 1U) << i;
    Answer(pair);
    EXPECT_TRUE(io.done);
  }
  for (FakePair& pair : pairs) Break(pair, Reached::kNothing);
  FakePair next(20);
  Open(next);
  Submit(Op::kRead, 0, 1);
  EXPECT_EQ(next.sent.size(), 1U) << "a place that is free again";
  AnswerAll(next);
}

TEST_F(RequestsOnPaths, OfEqualOnesThatWhichIsFullIsPassedOver) {
  a_.depth = 1;
  Open(a_);
  Open(b_);
  for (uint64_t i = 0; i < 4; ++i) Submit(Op::kRead, i, 1);
  EXPECT_EQ(a_.sent.size(), 1U);
  EXPECT_EQ(b_.sent.size(), 3U) << "though it has more under way";
  Finish();
}

TEST_F(RequestsOnPaths, FullOptimizedOnesAreWaitedFor) {
  a_.depth = 2;
  c_.depth = 1;
  Open(a_);
  Open(b_, MakeFormat(), kNonOptimized);
  Open(c_);
  for (uint64_t i = 0; i < 5; ++i) Submit(Op::kRead, i, 1);
  EXPECT_EQ(a_.sent.size(), 2U);
  EXPECT_EQ(c_.sent.size(), 1U);
  EXPECT_TRUE(b_.sent.empty());
  EXPECT_EQ(queue_.counts().for_path, 2U);
  Answer(c_);
  EXPECT_EQ(RangeOf(c_.sent[0]), "3+1");
  queue_.SetState(1, kUnusable);
  queue_.SetState(3, kUnusable);
  EXPECT_EQ(b_.sent.size(), 1U) << "there are none any more";
  Finish();
}

TEST_F(RequestsOnPaths, ARequestStaysWhereItsCommandsAreThoughAnotherPathIsBetter) {
  const PathFormat format = MakeFormat({.transfer_bytes_max = 4096});
  Open(a_, format, kNonOptimized);
  Submit(Op::kWrite, 0, 8 * 10);
  Open(b_, format, kOptimized);
  Answer(a_);
  EXPECT_EQ(a_.sent.size(), RequestQueue::kRequestCommandsMax);
  EXPECT_TRUE(b_.sent.empty());
  Submit(Op::kRead, 0, 8);
  EXPECT_EQ(b_.sent.size(), 1U);
  Finish();
}

TEST_F(RequestsOnPaths, ARequestIsCutForThePathThatItGoesOnWith) {
  Open(a_, MakeFormat({.transfer_bytes_max = 4096}));
  Open(b_, MakeFormat({.transfer_bytes_max = 16384}), kNonOptimized);
  Submit(Op::kWrite, 0, 8 * 16);
  ASSERT_EQ(a_.sent.size(), RequestQueue::kRequestCommandsMax);
  queue_.SetState(1, kUnusable);
  AnswerAll(a_);
  ASSERT_EQ(b_.sent.size(), 2U);
  EXPECT_EQ(RangeOf(b_.sent[0]), "64+32");
  EXPECT_EQ(RangeOf(b_.sent[1]), "96+32");
  Finish();
}

// ---- Refusals

TEST_F(RequestsOnPaths, WhatAPathRefusesGoesToAnotherAtOnce) {
  Open(a_);
  Open(b_, MakeFormat(), kNonOptimized);
  Submit(Op::kWrite, 0, 8);
  Submit(Op::kRead, 8, 8);
  Answer(a_, 0, kInaccessible);
  ASSERT_EQ(b_.sent.size(), 1U) << "a worse one is good enough now";
  EXPECT_EQ(RangeOf(b_.sent[0]), "0+8");
  Submit(Op::kRead, 16, 8);
  EXPECT_EQ(b_.sent.size(), 2U) << "new ones avoid it as well";
  Answer(a_, 0, kInternalPath);
  EXPECT_EQ(b_.sent.size(), 3U);
  EXPECT_EQ(Refusals(1), 1) << "once for the pause, not for each command";
  EXPECT_EQ(queue_.counts().in_doubt, 0U) << "the target has answered";
  EXPECT_TRUE(log_memory_.Found().size() == 1) << "the retry alone";
  Finish();
}

TEST_F(RequestsOnPaths, APathThatRefusedGetsNothingUntilItsPauseIsOver) {
  Open(a_);
  Open(b_, MakeFormat(), kNonOptimized);
  EXPECT_FALSE(queue_.wants_tick());
  Submit(Op::kRead, 0, 8);
  Answer(a_, 0, kInaccessible);
  EXPECT_TRUE(queue_.wants_tick());
  queue_.Tick(now_ns_);
  queue_.SetState(1, kNonOptimized);
  queue_.SetState(1, kOptimized);
  queue_.Tick(now_ns_ + RequestQueue::kPauseNs - 1);
  Submit(Op::kRead, 8, 8);
  EXPECT_TRUE(a_.sent.empty());
  EXPECT_EQ(b_.sent.size(), 2U);
  queue_.Tick(now_ns_ + RequestQueue::kPauseNs);
  EXPECT_FALSE(queue_.wants_tick());
  Submit(Op::kRead, 16, 8);
  EXPECT_EQ(a_.sent.size(), 1U);
  Answer(a_, 0, kInaccessible);
  EXPECT_EQ(Refusals(1), 2) << "another pause";
  Finish();
}

TEST_F(RequestsOnPaths, WhatEachPathRefusesIsTriedOnceOnEachAndThenWaitsForTheirPauses) {
  Open(a_);
  Open(b_);
  Open(c_, MakeFormat(), kNonOptimized);
  Io& io = Submit(Op::kWrite, 0, 8);
  for (int pause = 1; pause <= 10; ++pause) {
    int tries = 0;
    for (bool is_tried = true; is_tried;) {
      is_tried = false;
      for (FakePair* pair : {&a_, &b_, &c_}) {
        if (pair->sent.empty()) continue;
        is_tried = true;
        ASSERT_LE(++tries, 3);
        Answer(*pair, 0, kInaccessible);
      }
    }
    EXPECT_EQ(tries, 3);
    for (LifeId life = 1; life <= 3; ++life) EXPECT_EQ(Refusals(life), pause);
    EXPECT_FALSE(io.done);
    EXPECT_EQ(queue_.counts().for_path, 1U);
    queue_.Tick(now_ns_);
    queue_.Tick(now_ns_ + RequestQueue::kPauseNs - 1);
    EXPECT_TRUE(a_.sent.empty() && b_.sent.empty() && c_.sent.empty());
    WaitForPause();
  }
  Finish();
}

// The refusal lasts until its association has seen that there is none: then the path is not usable, and the request waits.
TEST_F(RequestsOnPaths, ANamespaceThatIsGoneIsARefusalAndAnErrorOnlyWhereThatIsAllThatIsEverSaid) {
  Open(a_);
  Io& waits = Submit(Op::kWrite, 0, 8);
  Answer(a_, 0, kGone);
  EXPECT_EQ(Refusals(1), 1);
  queue_.SetState(1, kUnusable);
  for (uint32_t i = 0; i <= RequestQueue::kGoneTriesMax; ++i) WaitForPause();
  EXPECT_FALSE(waits.done);
  queue_.SetState(1, kOptimized);
  EXPECT_TRUE(a_.sent.empty());
  queue_.PathLooked(1);
  Answer(a_);
  EXPECT_EQ(waits.status, IoStatus::kOk);

  Io& fails = Submit(Op::kWrite, 0, 8);
  for (uint32_t tries = 0; tries < RequestQueue::kGoneTriesMax; ++tries) {
    Answer(a_, 0, kGone);
    ASSERT_FALSE(fails.done);
    WaitForPause();
    EXPECT_TRUE(a_.sent.empty()) << "the namespace that has its number now may be another one";
    queue_.PathLooked(1);
  }
  Answer(a_, 0, kGone);
  EXPECT_EQ(fails.status, IoStatus::kHardwareError);

  // Once it is there again, what may pass is tried as often as ever.
  WaitForPause();
  queue_.PathLooked(1);
  Io& goes_on = Submit(Op::kWrite, 0, 8);
  for (uint32_t tries = 0; tries <= RequestQueue::kTriesMax; ++tries) {
    Answer(a_, 0, kGone);
    queue_.PathLooked(1);
    WaitForPause();
  }
  for (uint32_t tries = 0; tries < RequestQueue::kTriesMax; ++tries) {
    Answer(a_, 0, kNotReady);
    ASSERT_FALSE(goes_on.done);
    WaitForPause();
  }
  Answer(a_);
  EXPECT_EQ(goes_on.status, IoStatus::kOk);
}

TEST_F(RequestsOnPaths, APathThatComesTakesWhatWasRefusedEverywhereAtOnce) {
  Open(a_);
  Open(b_, MakeFormat(), kUnusable);
  Submit(Op::kRead, 0, 8);
  Answer(a_, 0, kInaccessible);
  EXPECT_TRUE(b_.sent.empty());
  queue_.SetState(2, kOptimized);
  EXPECT_EQ(b_.sent.size(), 1U);
  Answer(b_, 0, kInaccessible);
  queue_.PathReady(3, c_, MakeFormat(), kNonOptimized);
  EXPECT_EQ(c_.sent.size(), 1U);
  Finish();
}

TEST_F(RequestsOnPaths, ARefusalCountsAlsoWhereItsRequestHadFailedOtherwise) {
  const PathFormat format = MakeFormat({.transfer_bytes_max = 4096});
  Open(a_, format);
  Open(b_, format, kNonOptimized);
  Submit(Op::kWrite, 0, 16);
  Answer(a_, 0, kNotReady);
  Answer(a_, 0, kInaccessible);
  EXPECT_EQ(Refusals(1), 1);
  EXPECT_EQ(queue_.counts().paused, 1U) << "the first failure decides: it may pass";
  Submit(Op::kRead, 64, 8);
  EXPECT_EQ(b_.sent.size(), 1U);
  Finish();
}

TEST_F(RequestsOnPaths, ARequestBeginsAnewElsewhereOnlyWhenNoneOfItsCommandsIsUnderWay) {
  const PathFormat format = MakeFormat({.transfer_bytes_max = 4096});
  Open(a_, format);
  Open(b_, format, kNonOptimized);
  Submit(Op::kWrite, 0, 8 * 10);
  Answer(a_, 3, kInaccessible);
  for (uint32_t left = RequestQueue::kRequestCommandsMax - 1; left > 0; --left) {
    ASSERT_EQ(a_.sent.size(), left) << "no new one";
    EXPECT_TRUE(b_.sent.empty());
    Answer(a_);
  }
  ASSERT_EQ(b_.sent.size(), RequestQueue::kRequestCommandsMax);
  EXPECT_EQ(RangeOf(b_.sent[0]), "0+8");
  Finish();
}

TEST_F(RequestsOnPaths, AnotherRequestsRefusalStopsTheNextCommandsOfOneThatIsUnderWay) {
  const PathFormat format = MakeFormat({.transfer_bytes_max = 4096});
  Open(a_, format);
  Open(b_, format, kNonOptimized);
  Submit(Op::kRead, 1000, 8);
  Submit(Op::kWrite, 0, 8 * 10);
  Answer(a_, 0, kInaccessible);
  ASSERT_EQ(b_.sent.size(), 1U);
  for (uint32_t left = RequestQueue::kRequestCommandsMax; left > 0; --left) {
    ASSERT_EQ(a_.sent.size(), left);
    Answer(a_);
  }
  ASSERT_EQ(b_.sent.size(), 3U) << "the rest of it, as what was answered stands";
  EXPECT_EQ(RangeOf(b_.sent[1]), "64+8");
  Finish();
}

TEST_F(RequestsOnPaths, WhatWasRefusedIsAbortedAsWhatElseWaits) {
  Open(a_);
  Io& io = Submit(Op::kWrite, 0, 8);
  Answer(a_, 0, kInaccessible);
  queue_.AbortQueued(&io.request);
  EXPECT_EQ(io.status, IoStatus::kAborted);
  EXPECT_TRUE(queue_.wants_tick()) << "the path's pause goes on";
  WaitForPause();
  EXPECT_FALSE(queue_.wants_tick());
}

// ---- Ends

TEST_F(RequestsOnPaths, ThePauseOfAPathEndsWithIt) {
  Open(a_);
  Submit(Op::kRead, 0, 8);
  Answer(a_, 0, kInaccessible);
  Break(a_, Reached::kNothing);
  EXPECT_FALSE(queue_.wants_tick());
  Open(b_);
  EXPECT_EQ(b_.sent.size(), 1U);
  Finish();
}

TEST_F(RequestsOnPaths, OfAPathThatEndsReadsGoToTheOtherAtOnceAndWritesWhenTheTableAllows) {
  Open(a_);
  Open(b_, MakeFormat(), kNonOptimized);
  Submit(Op::kWrite, 0, 8);
  Submit(Op::kRead, 8, 8);
  Submit(Op::kFlush, 0, 0);
  ASSERT_EQ(a_.sent.size(), 3U);
  Break(a_, Reached::kPerhapsAll);
  ASSERT_EQ(b_.sent.size(), 2U);
  EXPECT_EQ(OpcodeOf(b_.sent[0]), Opcode::kRead);
  EXPECT_EQ(OpcodeOf(b_.sent[1]), Opcode::kFlush);
  Submit(Op::kWrite, 100, 8);
  EXPECT_EQ(b_.sent.size(), 3U) << "that does not overlap it";
  Deliver();
  ASSERT_EQ(b_.sent.size(), 4U);
  EXPECT_EQ(RangeOf(b_.sent[3]), "0+8");
  Finish();
}

TEST_F(RequestsOnPaths, AWriteInDoubtThatIsRefusedElsewhereStaysInDoubtAndGoesOn) {
  Open(a_);
  Open(b_, MakeFormat(), kNonOptimized);
  Open(c_, MakeFormat(), kNonOptimized);
  Submit(Op::kWrite, 0, 8);
  Break(a_, Reached::kPerhapsAll);
  Deliver();
  ASSERT_EQ(b_.sent.size(), 1U);
  Answer(b_, 0, kInaccessible);
  ASSERT_EQ(c_.sent.size(), 1U);
  EXPECT_EQ(queue_.counts().in_doubt, 1U);
  Finish();
  EXPECT_EQ(ledger_.ghosts(), 1U);
}

TEST_F(RequestsOnPaths, AnAnswerThatOnlyAHostMayGiveEndsThePathWithItsWriteInDoubt) {
  Open(a_);
  Open(b_, MakeFormat(), kNonOptimized);
  Submit(Op::kWrite, 0, 8);
  Submit(Op::kRead, 8, 8);
  std::string why;
  a_.on_abort = [&](const Error& reason) {
    why = reason.message;
    Break(a_, Reached::kNothing);
  };
  Answer(a_, 0, kAbortedByHost);
  EXPECT_NE(why.find("Command Aborted By Host (3/71h)"), std::string::npos) << why;
  EXPECT_EQ(log_, std::vector<std::string>{"report 1"});
  EXPECT_EQ(b_.sent.size(), 1U) << "the read; the write has no table yet";
  Deliver();
  ASSERT_EQ(b_.sent.size(), 2U);
  EXPECT_EQ(ledger_.ghosts(), 1U);
  EXPECT_EQ(RangeOf(b_.sent[1]), "0+8");
  Finish();
}

TEST_F(RequestsOnPaths, SuchAnAnswerToAReadIsARefusalAsOthersAre) {
  Open(a_);
  Open(b_, MakeFormat(), kNonOptimized);
  Io& io = Submit(Op::kRead, 0, 8);
  bool is_aborted = false;
  a_.on_abort = [&](const Error&) { is_aborted = true; };
  Answer(a_, 0, 0x370);
  EXPECT_FALSE(is_aborted) << "nothing is in doubt that the path would have to end for";
  EXPECT_EQ(Refusals(1), 1);
  EXPECT_FALSE(io.done);
  ASSERT_EQ(b_.sent.size(), 1U);
  Answer(b_);
  EXPECT_EQ(io.status, IoStatus::kOk);
  Finish();
}

}  // namespace
}  // namespace cleat::nvme::host::requests_test
