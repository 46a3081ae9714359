// SPDX-License-Identifier: Apache-2.0
// What becomes of a request: order, room, what failed, paths that come and go. Writes in doubt: request_queue_doubt_test.cc.
#include <gtest/gtest.h>

#include <cerrno>

#include "nvme/status.h"
#include "tests/unit/nvme/host/request_queue_fixture.h"

namespace cleat::nvme::host::requests_test {
namespace {

using Requests = RequestQueueTest;

TEST_F(Requests, WithoutAPathTheyWaitAndThenGoInOrder) {
  Deliver();
  Io& first = Submit(Op::kRead, 0, 8);
  Io& second = Submit(Op::kWrite, 8, 8);
  Io& third = Submit(Op::kFlush, 0, 0);
  EXPECT_EQ(queue_.counts().for_path, 3U);
  FakePair pair(1);
  Open(pair);
  ASSERT_EQ(pair.sent.size(), 3U);
  EXPECT_EQ(OpcodeOf(pair.sent[0]), Opcode::kRead);
  EXPECT_EQ(RangeOf(pair.sent[1]), "8+8");
  EXPECT_EQ(OpcodeOf(pair.sent[2]), Opcode::kFlush);
  while (!pair.sent.empty()) Answer(pair);
  EXPECT_TRUE(first.done && second.done && third.done);
  EXPECT_EQ(queue_.counts().requests, 0U);
}

TEST_F(Requests, WithoutRoomTheyWaitInOrder) {
  FakePair pair(1, 2);
  Open(pair);
  for (uint64_t i = 0; i < 5; ++i) Submit(Op::kRead, i, 1);
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_LE(pair.sent.size(), 2U);
    EXPECT_EQ(RangeOf(pair.sent[0]), std::to_string(i) + "+1");
    Answer(pair);
    EXPECT_TRUE(ios_[i].done);
  }
}

TEST_F(Requests, OneThatIsSubmittedFromWithinACompletionWaitsBehindThoseThatWait) {
  FakePair pair(1, 1);
  Open(pair);
  Io& first = Submit(Op::kRead, 0, 1);
  first.then = [this] { Submit(Op::kRead, 9, 1); };
  Submit(Op::kRead, 1, 1);
  Answer(pair);
  ASSERT_EQ(pair.sent.size(), 1U);
  EXPECT_EQ(RangeOf(pair.sent[0]), "1+1");
  Answer(pair);
  EXPECT_EQ(RangeOf(pair.sent[0]), "9+1");
  Answer(pair);
}

TEST_F(Requests, ALargeOneLeavesRoomForOthers) {
  FakePair pair(1);
  Open(pair, MakeFormat({.transfer_bytes_max = 4096}));
  Io& large = Submit(Op::kRead, 0, 8 * 20);
  EXPECT_EQ(pair.sent.size(), RequestQueue::kRequestCommandsMax);
  Io& small = Submit(Op::kRead, 1000, 8);
  EXPECT_EQ(pair.sent.size(), RequestQueue::kRequestCommandsMax + 1);
  Answer(pair, RequestQueue::kRequestCommandsMax);
  EXPECT_TRUE(small.done);
  uint64_t commands = 0;
  for (; !pair.sent.empty(); ++commands) Answer(pair);
  EXPECT_EQ(commands, 20U);
  EXPECT_TRUE(large.done);
}

// Each large one has less than one command of eight at a time while others wait; all of them end.
TEST_F(Requests, ManyLargeOnesShareTheLists) {
  FakePair pair(1);
  Open(pair, MakeFormat({.transfer_bytes_max = 4096}));
  for (uint64_t i = 0; i < 10; ++i) Submit(Op::kRead, i * 100, 8 * 10);
  EXPECT_EQ(pair.sent.size(), CommandMaker::kListsMax);
  for (uint64_t commands = 0; !pair.sent.empty(); ++commands) {
    ASSERT_LT(commands, 100U);
    Answer(pair);
  }
  for (const Io& io : ios_) EXPECT_TRUE(io.done);
}

TEST_F(Requests, NoMoreCommandsThanSlots) {
  FakePair pair(1, 1000);
  Open(pair);
  for (uint64_t i = 0; i < 2 * RequestQueue::kCommandsMax; ++i) Submit(Op::kRead, i, 1);
  EXPECT_EQ(pair.sent.size(), RequestQueue::kCommandsMax);
  EXPECT_EQ(queue_.counts().for_path, RequestQueue::kCommandsMax);
  while (!pair.sent.empty()) Answer(pair);
  EXPECT_EQ(queue_.counts().requests, 0U);
}

TEST_F(Requests, AFlushGoesOnlyWhereThereIsACache) {
  FakePair pair(1);
  Open(pair);
  RequestQueue without({.reactor = 0, .first_origin = 0, .write_cache = false}, *this);
  Io io(Op::kFlush, 0, 0);
  without.Submit(io.request);
  EXPECT_TRUE(io.done);
  EXPECT_EQ(io.status, IoStatus::kOk);
}

// ---- What failed

TEST_F(Requests, AFailureThatMayPassIsTriedAFewTimesAfterPauses) {
  FakePair pair(1);
  Open(pair);
  Io& io = Submit(Op::kWrite, 0, 8);
  for (uint32_t tries = 0; tries < RequestQueue::kTriesMax; ++tries) {
    Answer(pair, 0, kNotReady);
    EXPECT_TRUE(pair.sent.empty()) << "not at once";
    EXPECT_TRUE(queue_.wants_tick());
    queue_.Tick(now_ns_);
    queue_.Tick(now_ns_ + RequestQueue::kPauseNs - 1);
    EXPECT_TRUE(pair.sent.empty());
    now_ns_ += RequestQueue::kPauseNs;
    queue_.Tick(now_ns_);
    ASSERT_EQ(pair.sent.size(), 1U);
    EXPECT_FALSE(queue_.wants_tick());
  }
  EXPECT_FALSE(io.done);
  Answer(pair, 0, kNotReady);
  EXPECT_TRUE(io.done);
  EXPECT_EQ(io.status, IoStatus::kHardwareError);
  EXPECT_EQ(io.request.error_number, ErrorNumberOf(Status(kNotReady)));
}

TEST_F(Requests, AFailureThatWillNotPassIsAnsweredAtOnce) {
  FakePair pair(1);
  Open(pair);
  Io& beyond = Submit(Op::kRead, 0, 8);
  Answer(pair, 0, kOutOfRange);
  EXPECT_EQ(beyond.status, IoStatus::kInvalid);
  Io& told = Submit(Op::kRead, 0, 8);
  Answer(pair, 0, kNotReady | kDoNotRetry);
  EXPECT_TRUE(told.done);
  EXPECT_EQ(told.status, IoStatus::kHardwareError);
}

TEST_F(Requests, AReservationOfOthersIsAnErrorThatTheOwnerHearsOfOnceALife) {
  constexpr uint16_t kConflict = 0x83;
  FakePair pair(5);
  Open(pair);
  for (int i = 0; i < 2; ++i) {
    Io& io = Submit(Op::kWrite, 0, 8);
    Answer(pair, 0, kConflict);
    EXPECT_EQ(io.status, IoStatus::kReservationConflict);
  }
  EXPECT_EQ(std::count(log_.begin(), log_.end(), "conflicted 5"), 1);
}

TEST_F(Requests, SuccessWithLessDataThanAskedForIsTriedAgainAndThenAnIoError) {
  FakePair pair(1);
  Open(pair);
  Io& io = Submit(Op::kRead, 0, 8);
  for (uint32_t tries = 0; tries <= RequestQueue::kTriesMax; ++tries) {
    ASSERT_EQ(pair.sent.size(), 1U);
    EXPECT_FALSE(io.done);
    queue_.Completed(1, pair.Take(0).cookie, EntryOfStatus(0), 8 * kBlockBytes - 1);
    WaitForPause();
  }
  EXPECT_TRUE(io.done);
  EXPECT_EQ(io.status, IoStatus::kIoError);
  EXPECT_EQ(io.request.error_number, EIO);
}

TEST_F(Requests, APathThatDoesNotLeadThereIsNamedAndTriedWithoutLimit) {
  FakePair pair(5);
  Open(pair);
  Io& io = Submit(Op::kRead, 0, 8);
  for (uint32_t tries = 0; tries < 10 * RequestQueue::kTriesMax; ++tries) {
    log_.clear();
    Answer(pair, 0, kInaccessible);
    EXPECT_EQ(log_, std::vector<std::string>{"refused 5"});
    EXPECT_TRUE(pair.sent.empty());
    WaitForPause();
    ASSERT_EQ(pair.sent.size(), 1U);
  }
  Answer(pair);
  EXPECT_TRUE(io.done);
  EXPECT_EQ(io.status, IoStatus::kOk);
}

TEST_F(Requests, AFailedCommandEndsItsRequestOnlyWhenNoOtherIsUnderWay) {
  FakePair pair(1);
  Open(pair, MakeFormat({.transfer_bytes_max = 4096}));
  Io& io = Submit(Op::kRead, 0, 8 * 20);
  Answer(pair, 3, kOutOfRange);
  for (uint32_t left = RequestQueue::kRequestCommandsMax - 1; left > 0; --left) {
    ASSERT_EQ(pair.sent.size(), left) << "no new one";
    EXPECT_FALSE(io.done);
    Answer(pair);
  }
  EXPECT_TRUE(io.done);
  EXPECT_EQ(io.status, IoStatus::kInvalid);
}

TEST_F(Requests, OneOfSeveralCommandsThatFailedMakesAllOfTheRequestGoAgain) {
  FakePair pair(1);
  Open(pair, MakeFormat({.transfer_bytes_max = 4096}));
  Io& io = Submit(Op::kWrite, 0, 16);
  Answer(pair);
  Answer(pair, 0, kNotReady);
  WaitForPause();
  ASSERT_EQ(pair.sent.size(), 2U);
  EXPECT_EQ(RangeOf(pair.sent[0]), "0+8");
  Answer(pair);
  Answer(pair);
  EXPECT_EQ(io.status, IoStatus::kOk);
  EXPECT_TRUE(io.done);
}

// ---- Paths

TEST_F(Requests, BetweenUnansweredAndTheEndOfThePathNothingIsAnsweredNorSentAgain) {
  FakePair dying(1);
  FakePair other(2);
  Open(dying);
  Io& read = Submit(Op::kRead, 0, 8);
  Io& write = Submit(Op::kWrite, 8, 8);
  queue_.PathReady(2, other, MakeFormat(), PathState::kOptimized);
  Lose(dying, Reached::kPerhapsAll);
  WaitForPause();
  Deliver();
  queue_.AbortQueued(nullptr);
  EXPECT_FALSE(read.done || write.done);
  EXPECT_TRUE(other.sent.empty());
  Io& later = Submit(Op::kRead, 16, 8);
  EXPECT_EQ(other.sent.size(), 1U) << "new ones avoid a path that breaks, though it says that it has room";
  EXPECT_TRUE(dying.sent.empty());
  queue_.PathEnded(1);
  ASSERT_EQ(other.sent.size(), 2U);
  EXPECT_EQ(OpcodeOf(other.sent[1]), Opcode::kRead);
  ledger_.Over(1);
  ledger_.Take(other_.EndLife(1, {}));
  Deliver();
  while (!other.sent.empty()) Answer(other);
  EXPECT_TRUE(read.done && write.done && later.done);
}

TEST_F(Requests, OneThatLostItsPathGoesBeforeThoseThatWait) {
  FakePair dying(1, 1);
  Open(dying);
  Submit(Op::kRead, 0, 8);
  Submit(Op::kRead, 8, 8);
  Break(dying, Reached::kPerhapsAll);
  FakePair next(2);
  queue_.PathReady(2, next, MakeFormat(), PathState::kOptimized);
  ASSERT_EQ(next.sent.size(), 2U);
  EXPECT_EQ(RangeOf(next.sent[0]), "0+8");
  Answer(next);
  Answer(next);
}

TEST_F(Requests, ACommandThatWasAnsweredWhileItsQueueEndedIsAnswered) {
  FakePair dying(1);
  Open(dying);
  Io& lost = Submit(Op::kRead, 0, 8);
  Io& answered = Submit(Op::kRead, 8, 8);
  queue_.Unanswered(1, dying.Take(0).cookie, Reached::kPerhapsAll);
  Answer(dying);
  EXPECT_TRUE(answered.done);
  queue_.PathEnded(1);
  EXPECT_FALSE(lost.done);
  queue_.AbortQueued(nullptr);
  EXPECT_EQ(lost.status, IoStatus::kAborted);
}

TEST_F(Requests, OfTwoPathsThatWhichMayNotBeUsedGetsNoNewCommands) {
  FakePair first(1);
  FakePair second(2);
  Open(first);
  queue_.PathReady(2, second, MakeFormat(), PathState::kOptimized);
  Submit(Op::kRead, 0, 8);
  queue_.SetState(1, PathState::kUnusable);
  Submit(Op::kRead, 8, 8);
  EXPECT_EQ(first.sent.size(), 1U);
  EXPECT_EQ(second.sent.size(), 1U);
  queue_.SetState(2, PathState::kUnusable);
  Io& waits = Submit(Op::kRead, 16, 8);
  EXPECT_EQ(queue_.counts().for_path, 1U);
  queue_.SetState(3, PathState::kOptimized);  // no path here
  queue_.SetState(1, PathState::kOptimized);
  EXPECT_EQ(first.sent.size(), 2U);
  while (!first.sent.empty()) Answer(first);
  while (!second.sent.empty()) Answer(second);
  EXPECT_TRUE(waits.done);
}

TEST_F(Requests, AFullPathLeavesTheRestToTheNext) {
  FakePair first(1, 1);
  FakePair second(2);
  Open(first);
  queue_.PathReady(2, second, MakeFormat(), PathState::kOptimized);
  Submit(Op::kRead, 0, 8);
  Submit(Op::kRead, 8, 8);
  EXPECT_EQ(second.sent.size(), 1U);
  Answer(first);
  Answer(second);
}

TEST_F(Requests, CommandsOfOneStayOnOnePathAtATime) {
  FakePair first(1);
  FakePair second(2);
  Open(first, MakeFormat({.transfer_bytes_max = 4096}));
  queue_.PathReady(2, second, MakeFormat({.transfer_bytes_max = 4096}), PathState::kOptimized);
  Io& io = Submit(Op::kWrite, 0, 8 * 10);
  queue_.SetState(1, PathState::kUnusable);
  for (uint32_t left = RequestQueue::kRequestCommandsMax; left > 1; --left) {
    Answer(first);
    EXPECT_TRUE(second.sent.empty());
  }
  Answer(first);
  EXPECT_EQ(second.sent.size(), 2U);
  Answer(second);
  Answer(second);
  EXPECT_TRUE(io.done);
}

TEST_F(Requests, NewLimitsHoldForTheNextCommand) {
  FakePair pair(1);
  Open(pair);
  queue_.SetFormat(1, MakeFormat({.transfer_bytes_max = 4096}));
  Submit(Op::kRead, 0, 16);
  EXPECT_EQ(pair.sent.size(), 2U);
  Answer(pair);
  Answer(pair);
}

TEST_F(Requests, ACommandOfSomebodyElseIsNoneOfTheQueues) {
  FakePair pair(1, 1);
  Open(pair);
  fabrics::QueuedCommand foreign;
  foreign.cookie = RequestQueue::kForeignCookies;
  pair.Submit(foreign);
  Io& io = Submit(Op::kRead, 0, 8);
  EXPECT_FALSE(io.done);
  pair.Take(0);
  queue_.Completed(1, foreign.cookie, EntryOfStatus(0), 0);
  ASSERT_EQ(pair.sent.size(), 1U) << "its room is used";
  queue_.Unanswered(1, foreign.cookie, Reached::kPerhapsAll);
  Answer(pair);
  EXPECT_TRUE(io.done);
}

TEST_F(Requests, RoomThatCameByItselfIsFoundByATick) {
  FakePair pair(1, 0);
  Open(pair);
  Submit(Op::kRead, 0, 8);
  pair.depth = 1;
  queue_.Tick(now_ns_);
  ASSERT_EQ(pair.sent.size(), 1U);
  Answer(pair);
}

// ---- Aborting

TEST_F(Requests, ThoseThatWaitAreAbortedAndThoseUnderWayAreNot) {
  Deliver();
  FakePair pair(1, 1);
  Open(pair);
  Io& under_way = Submit(Op::kRead, 0, 8);
  Io& waits = Submit(Op::kRead, 8, 8);
  Io& waits_too = Submit(Op::kRead, 16, 8);
  queue_.AbortQueued(&waits_too.request);
  EXPECT_EQ(waits_too.status, IoStatus::kAborted);
  EXPECT_FALSE(waits.done);
  queue_.AbortQueued(nullptr);
  EXPECT_EQ(waits.status, IoStatus::kAborted);
  EXPECT_FALSE(under_way.done);
  Answer(pair, 0, kNotReady);
  EXPECT_EQ(queue_.counts().paused, 1U);
  queue_.AbortQueued(&under_way.request);
  EXPECT_EQ(under_way.status, IoStatus::kAborted);
  EXPECT_FALSE(queue_.wants_tick());
}

}  // namespace
}  // namespace cleat::nvme::host::requests_test
