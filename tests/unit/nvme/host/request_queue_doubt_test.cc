// SPDX-License-Identifier: Apache-2.0
// How a request queue keeps the rules of docs/nvmeof.md, "Writes in doubt".
#include <gtest/gtest.h>

#include <cerrno>

#include "tests/unit/nvme/host/request_queue_fixture.h"

namespace cleat::nvme::host::requests_test {
namespace {

constexpr Attempt kOthers{.origin = 9, .range = {.first = 4, .blocks = 8}};  // of reactor 1

class RequestsInDoubt : public RequestQueueTest {
 protected:
  // A write to blocks 0 to 7 is in doubt; the queue has another path.
  Io& PutInDoubt() {
    Open(dying_);
    Io& io = Submit(Op::kWrite, 0, 8);
    Break(dying_, Reached::kPerhapsAll);
    queue_.PathReady(2, pair_, MakeFormat(), PathState::kOptimized);
    return io;
  }
  void Prove(LifeId life) {
    const cleat::Status proved = ledger_.Proved(life, Proof::kControllerReset);
    EXPECT_TRUE(proved.ok()) << proved.error().message;
    Deliver();
  }

  FakePair dying_{1};
  FakePair pair_{2};
};

TEST_F(RequestsInDoubt, BeforeTheFirstTableNothingIsWritten) {
  queue_.PathReady(2, pair_, MakeFormat(), PathState::kOptimized);
  Io& write = Submit(Op::kWrite, 0, 8);
  Io& zeroes = Submit(Op::kWriteZeroes, 8, 8);
  Io& discard = Submit(Op::kDiscard, 16, 8);
  Io& read = Submit(Op::kRead, 0, 8);
  Io& flush = Submit(Op::kFlush, 0, 0);
  EXPECT_EQ(pair_.sent.size(), 2U);
  EXPECT_EQ(queue_.counts().for_doubt, 3U);
  Deliver();
  ASSERT_EQ(pair_.sent.size(), 5U);
  EXPECT_EQ(OpcodeOf(pair_.sent[2]), Opcode::kWrite);
  EXPECT_EQ(OpcodeOf(pair_.sent[3]), Opcode::kWriteZeroes);
  EXPECT_EQ(OpcodeOf(pair_.sent[4]), Opcode::kDatasetManagement);
  while (!pair_.sent.empty()) Answer(pair_);
  EXPECT_TRUE(write.done && zeroes.done && discard.done && read.done && flush.done);
}

TEST_F(RequestsInDoubt, AWriteThatCanNotHaveReachedTheTargetLeavesNothingInDoubt) {
  for (const Reached reached : {Reached::kNothing, Reached::kNoData}) {
    FakePair pair(10 + static_cast<LifeId>(reached));
    Open(pair);
    Io& io = Submit(Op::kWrite, 0, 8);
    log_.clear();
    Break(pair, reached);
    EXPECT_EQ(log_, std::vector<std::string>{"report 0"});
    FakePair next(20 + static_cast<LifeId>(reached));
    queue_.PathReady(next.life, next, MakeFormat(), PathState::kOptimized);
    ASSERT_EQ(next.sent.size(), 1U) << "no table is waited for";
    Answer(next);
    EXPECT_TRUE(io.done);
    Break(next, reached);
    Deliver();
    EXPECT_EQ(ledger_.ghosts(), 0U);
  }
}

TEST_F(RequestsInDoubt, ALifeWithoutAQueueHereIsReportedToo) {
  Deliver();
  queue_.PathEnded(77);
  EXPECT_EQ(log_, std::vector<std::string>{"report 0"});
  ledger_.Over(77);
  ledger_.Take(other_.EndLife(77, {}));
  Deliver();
  EXPECT_TRUE(ledger_.IsReported(77));
}

TEST_F(RequestsInDoubt, ARetryWaitsUntilEveryReactorObeysItsGhost) {
  Io& io = PutInDoubt();
  EXPECT_TRUE(pair_.sent.empty());
  EXPECT_EQ(queue_.counts().for_doubt, 1U);
  EXPECT_EQ(queue_.counts().in_doubt, 1U);
  mail_.front()();  // the report
  mail_.clear();
  queue_.Adopt(ledger_.TableFor(0));
  mail_.front()();
  mail_.clear();
  EXPECT_TRUE(pair_.sent.empty()) << "reactor 1 has no table with it yet";
  Deliver();
  ASSERT_EQ(pair_.sent.size(), 1U);
  EXPECT_EQ(RangeOf(pair_.sent[0]), "0+8");
  Answer(pair_);
  EXPECT_TRUE(io.done);
  EXPECT_EQ(queue_.counts().in_doubt, 0U);
  EXPECT_EQ(ledger_.ghosts(), 1U) << "the first attempt may still be executed";
}

TEST_F(RequestsInDoubt, ARetryWaitsForWhatAnotherReactorHasUnderWayOverIt) {
  others_under_way_ = {kOthers};
  Io& io = PutInDoubt();
  Deliver();
  EXPECT_TRUE(pair_.sent.empty());
  ASSERT_TRUE(other_.EndAttempt(kOthers.origin));
  others_under_way_.clear();
  ledger_.Take(BarrierEnded{.reactor = 1, .origin = kOthers.origin});
  Deliver();
  ASSERT_EQ(pair_.sent.size(), 1U);
  Answer(pair_);
  EXPECT_TRUE(io.done);
}

TEST_F(RequestsInDoubt, AGhostHoldsWhatWritesOverItAndNothingElse) {
  PutInDoubt();
  Deliver();
  Answer(pair_);
  Io& over = Submit(Op::kWrite, 7, 1);
  Io& zeroes = Submit(Op::kWriteZeroes, 0, 1);
  Io& discard = Submit(Op::kDiscard, 0, 100);
  EXPECT_TRUE(pair_.sent.empty());
  Io& beside = Submit(Op::kWrite, 8, 8);
  Io& read = Submit(Op::kRead, 0, 8);
  Io& flush = Submit(Op::kFlush, 0, 0);
  EXPECT_EQ(pair_.sent.size(), 3U);
  while (!pair_.sent.empty()) Answer(pair_);
  EXPECT_TRUE(beside.done && read.done && flush.done);
  EXPECT_FALSE(over.done || zeroes.done || discard.done);
  Prove(1);
  ASSERT_EQ(pair_.sent.size(), 3U);
  EXPECT_EQ(RangeOf(pair_.sent[0]), "7+1") << "in order";
  while (!pair_.sent.empty()) Answer(pair_);
  EXPECT_TRUE(over.done && zeroes.done && discard.done);
}

TEST_F(RequestsInDoubt, AWriteUnderWayOverANewGhostIsToldAndItsEndToo) {
  Open(pair_);
  Io& io = Submit(Op::kWrite, 0, 8);
  Submit(Op::kRead, 0, 8);
  ledger_.Over(1);
  ledger_.Take(other_.EndLife(1, {kOthers}));
  queue_.PathEnded(1);
  Deliver();
  ASSERT_EQ(barriers_.size(), 1U);
  EXPECT_EQ(barriers_[0].range.blocks, 8U);
  log_.clear();
  Answer(pair_);
  EXPECT_TRUE(io.done);
  EXPECT_EQ(log_, std::vector<std::string>{"barrier over"});
  Answer(pair_);
  EXPECT_EQ(log_.size(), 1U);
}

// Of a request with several commands the whole is under way until the last of them is answered; those that are not sent yet wait.
TEST_F(RequestsInDoubt, ARequestInPartsIsABarrierUntilTheLastOfThemAndGoesOnWhenTheGhostIsGone) {
  Open(pair_, MakeFormat({.transfer_bytes_max = 4096}));
  Io& io = Submit(Op::kWrite, 0, 8 * 10);
  ledger_.Over(1);
  ledger_.Take(other_.EndLife(1, {kOthers}));
  queue_.PathEnded(1);
  Deliver();
  EXPECT_EQ(barriers_.size(), 1U);
  log_.clear();
  for (uint32_t left = RequestQueue::kRequestCommandsMax; left > 0; --left) {
    EXPECT_TRUE(log_.empty());
    ASSERT_EQ(pair_.sent.size(), left) << "no new one over the ghost";
    Answer(pair_);
  }
  EXPECT_EQ(log_, std::vector<std::string>{"barrier over"});
  EXPECT_FALSE(io.done);
  Deliver();
  Prove(1);
  ASSERT_EQ(pair_.sent.size(), 2U);
  EXPECT_EQ(RangeOf(pair_.sent[0]), "64+8");
  Answer(pair_);
  Answer(pair_);
  EXPECT_TRUE(io.done);
}

TEST_F(RequestsInDoubt, TheReportOfALifeGoesBeforeTheEndsOfBarriers) {
  Open(dying_);
  Submit(Op::kWrite, 0, 8);
  ledger_.Over(33);
  ledger_.Take(other_.EndLife(33, {kOthers}));
  queue_.PathEnded(33);
  Deliver();
  ASSERT_EQ(barriers_.size(), 1U);
  log_.clear();
  Break(dying_, Reached::kPerhapsAll);
  EXPECT_EQ(log_, (std::vector<std::string>{"report 1", "barrier over"}));
  Deliver();
  EXPECT_EQ(ledger_.ghosts(), 2U);
  queue_.PathReady(2, pair_, MakeFormat(), PathState::kOptimized);
  EXPECT_TRUE(pair_.sent.empty()) << "the other's ghost holds it";
  Prove(33);
  ASSERT_EQ(pair_.sent.size(), 1U);
  Answer(pair_);
}

TEST_F(RequestsInDoubt, AWriteOfAPathThatBreaksIsUnderWayUntilItsReport) {
  Open(dying_);
  Io& io = Submit(Op::kWrite, 0, 8);
  Lose(dying_, Reached::kPerhapsAll);
  ledger_.Over(33);
  ledger_.Take(other_.EndLife(33, {kOthers}));
  queue_.PathEnded(33);
  Deliver();
  ASSERT_EQ(barriers_.size(), 1U);
  queue_.PathEnded(1);
  ledger_.Over(1);
  ledger_.Take(other_.EndLife(1, {}));
  Deliver();
  EXPECT_TRUE(barriers_.empty());
  queue_.PathReady(2, pair_, MakeFormat(), PathState::kOptimized);
  Prove(33);
  Answer(pair_);
  EXPECT_TRUE(io.done);
}

TEST_F(RequestsInDoubt, OneLostCommandOfSeveralPutsTheWholeRangeInDoubtAndBeginsItAnew) {
  Open(dying_, MakeFormat({.transfer_bytes_max = 4096}));
  Io& io = Submit(Op::kWrite, 0, 24);
  Answer(dying_);
  queue_.Unanswered(1, dying_.Take(0).cookie, Reached::kPerhapsAll);
  Break(dying_, Reached::kNothing);
  Deliver();
  ASSERT_EQ(ledger_.TableFor(0).ghosts.size(), 1U);
  EXPECT_EQ(ledger_.TableFor(0).ghosts[0].range.blocks, 24U);
  queue_.PathReady(2, pair_, MakeFormat(), PathState::kOptimized);
  ASSERT_EQ(pair_.sent.size(), 1U);
  EXPECT_EQ(RangeOf(pair_.sent[0]), "0+24");
  Answer(pair_);
  EXPECT_TRUE(io.done);
}

TEST_F(RequestsInDoubt, SeveralLostCommandsOfOneAreOneAttempt) {
  Open(dying_, MakeFormat({.transfer_bytes_max = 4096}));
  Io& io = Submit(Op::kWrite, 0, 24);
  Break(dying_, Reached::kPerhapsAll);
  EXPECT_EQ(log_, std::vector<std::string>{"report 1"});
  EXPECT_EQ(queue_.counts().in_doubt, 1U);
  Deliver();
  queue_.PathReady(2, pair_, MakeFormat(), PathState::kOptimized);
  Answer(pair_);
  EXPECT_TRUE(io.done);
}

TEST_F(RequestsInDoubt, ASecondLossOfTheSameWriteWaitsForItsOwnReport) {
  Io& io = PutInDoubt();
  Deliver();
  ASSERT_EQ(pair_.sent.size(), 1U);
  Break(pair_, Reached::kPerhapsAll);
  FakePair third(3);
  queue_.PathReady(3, third, MakeFormat(), PathState::kOptimized);
  EXPECT_TRUE(third.sent.empty());
  EXPECT_EQ(queue_.counts().in_doubt, 1U);
  Deliver();
  ASSERT_EQ(third.sent.size(), 1U);
  Answer(third);
  EXPECT_TRUE(io.done);
  EXPECT_EQ(ledger_.lives(), (std::vector<LifeId>{1, 2}));
}

// The ghost of its first attempt holds its retry's failure back until no reactor would send a newer write past it.
TEST_F(RequestsInDoubt, AFailureIsAnsweredWhenEveryReactorObeysTheGhostAndNobodyOwnsItThen) {
  Open(dying_, MakeFormat({.transfer_bytes_max = 4096}));
  Io& io = Submit(Op::kWrite, 0, 16);
  Answer(dying_, 0, kOutOfRange);
  log_.clear();
  Break(dying_, Reached::kPerhapsAll);
  EXPECT_FALSE(io.done);
  EXPECT_EQ(queue_.counts().for_doubt, 1U);
  queue_.AbortQueued(nullptr);
  EXPECT_FALSE(io.done);
  Deliver();
  EXPECT_TRUE(io.done);
  EXPECT_EQ(io.status, IoStatus::kInvalid);
  EXPECT_EQ(log_, (std::vector<std::string>{"report 1", "given up"}));
  ASSERT_EQ(ledger_.TableFor(0).ghosts.size(), 1U);
  EXPECT_EQ(ledger_.TableFor(0).ghosts[0].origin, kNobody);
}

TEST_F(RequestsInDoubt, ARetryThatFailsIsGivenUp) {
  Io& io = PutInDoubt();
  Deliver();
  log_.clear();
  Answer(pair_, 0, kOutOfRange);
  EXPECT_TRUE(io.done);
  EXPECT_EQ(io.status, IoStatus::kInvalid);
  EXPECT_EQ(log_, std::vector<std::string>{"given up"});
  EXPECT_EQ(queue_.counts().in_doubt, 0U);
}

TEST_F(RequestsInDoubt, ADiscardInDoubtOfATargetThatNoLongerHasItIsGivenUp) {
  Open(dying_);
  Io& io = Submit(Op::kDiscard, 0, 8);
  Break(dying_, Reached::kPerhapsAll);
  Deliver();
  log_.clear();
  queue_.PathReady(2, pair_, MakeFormat({.discards = false}), PathState::kOptimized);
  EXPECT_TRUE(io.done);
  EXPECT_EQ(io.status, IoStatus::kUnsupported);
  EXPECT_EQ(log_, std::vector<std::string>{"given up"});
}

TEST_F(RequestsInDoubt, WhatIsHeldIsAbortedUnlessItIsInDoubtItself) {
  others_under_way_ = {kOthers};
  Io& own = PutInDoubt();
  Deliver();
  Io& held = Submit(Op::kWrite, 0, 8);
  EXPECT_EQ(queue_.counts().for_doubt, 2U);
  queue_.AbortQueued(nullptr);
  EXPECT_EQ(held.status, IoStatus::kAborted);
  EXPECT_FALSE(own.done);
  others_under_way_.clear();
  ledger_.Take(BarrierEnded{.reactor = 1, .origin = kOthers.origin});
  Deliver();
  Answer(pair_);
  EXPECT_TRUE(own.done);
}

// ---- What waits too long, and what does not wait

constexpr uint64_t kSecond = kNsPerSecond;
constexpr block::InDoubt kFailAfterASecond{.policy = block::InDoubt::Policy::kFailAfter,
                                           .fail_after_ns = kSecond};
constexpr block::InDoubt kAccept{.policy = block::InDoubt::Policy::kAccept, .fail_after_ns = 0};

TEST_F(RequestsInDoubt, WhatWaitsIsCountedWithItsTimeAndOnlyWhileItDoes) {
  Open(pair_);
  Io& plain = Submit(Op::kWrite, 100, 8);
  EXPECT_EQ(waits_.requests, 0U);
  EXPECT_FALSE(queue_.wants_tick());
  Answer(pair_);
  EXPECT_TRUE(plain.done);
  Break(pair_, Reached::kPerhapsAll);

  FakePair next(3);
  queue_.PathReady(3, next, MakeFormat(), PathState::kOptimized);
  ledger_.Over(33);
  ledger_.Take(other_.EndLife(33, {kOthers}));
  queue_.PathEnded(33);
  Deliver();
  Submit(Op::kWrite, 4, 1);
  EXPECT_EQ(waits_.requests, 1U);
  EXPECT_EQ(waits_.since_ns, 0U) << "no time has come yet";
  ASSERT_TRUE(queue_.wants_tick());
  queue_.Tick(5 * kSecond);
  Submit(Op::kWrite, 5, 1);
  queue_.Tick(6 * kSecond);
  EXPECT_EQ(waits_.requests, 2U);
  EXPECT_EQ(waits_.since_ns, 5 * kSecond) << "the oldest";
  ledger_.Take(other_.EndLife(44, {{.origin = 10, .range = {.first = 4, .blocks = 1}}}));
  ledger_.Over(44);
  queue_.PathEnded(44);
  Deliver();
  queue_.Tick(7 * kSecond);
  EXPECT_EQ(waits_.since_ns, 5 * kSecond) << "another table begins no new wait";
  Prove(33);
  EXPECT_EQ(waits_.requests, 1U);
  queue_.Tick(8 * kSecond);
  EXPECT_EQ(waits_.since_ns, 5 * kSecond);
  Prove(44);
  EXPECT_EQ(waits_.requests, 0U);
  EXPECT_EQ(waits_.since_ns, 0U);
  EXPECT_FALSE(queue_.wants_tick());
  while (!next.sent.empty()) Answer(next);
}

TEST_F(RequestsInDoubt, AWriteThatWaitsForAnothersGhostFailsAfterItsTimeAndNotBefore) {
  PutInDoubt();
  Deliver();
  Answer(pair_);
  queue_.SetInDoubt(kFailAfterASecond);
  Io& first = Submit(Op::kWrite, 0, 8);
  queue_.Tick(kSecond);
  Io& second = Submit(Op::kWrite, 0, 8);
  queue_.Tick(kSecond + 1);
  queue_.Tick(2 * kSecond - 1);
  EXPECT_FALSE(first.done);
  queue_.Tick(2 * kSecond);
  ASSERT_TRUE(first.done);
  EXPECT_EQ(first.status, IoStatus::kIoError);
  EXPECT_EQ(first.request.error_number, ETIME);
  EXPECT_FALSE(second.done) << "each has its own time";
  EXPECT_EQ(waits_.failed, 1U);
  EXPECT_EQ(waits_.requests, 1U);
  EXPECT_EQ(waits_.since_ns, kSecond + 1);
  queue_.Tick(2 * kSecond + 1);
  EXPECT_TRUE(second.done);
  EXPECT_EQ(ledger_.ghosts(), 1U) << "what it waited for is in doubt as before";
}

// The failure of a write with a ghost of its own may be answered only when no reactor would send a newer one past that ghost.
TEST_F(RequestsInDoubt, AWriteInDoubtItselfFailsOnlyWhenEveryReactorObeysItsGhost) {
  queue_.SetInDoubt(kFailAfterASecond);
  Io& io = PutInDoubt();
  queue_.Tick(kSecond);
  log_.clear();
  queue_.Tick(3 * kSecond);
  EXPECT_FALSE(io.done) << "nobody obeys its ghost yet";
  EXPECT_EQ(waits_.requests, 1U);
  mail_.front()();  // the report
  mail_.clear();
  queue_.Adopt(ledger_.TableFor(0));
  queue_.Tick(4 * kSecond);
  EXPECT_FALSE(io.done) << "reactor 1 does not";
  mail_.front()();
  mail_.clear();
  Deliver();
  ASSERT_TRUE(io.done);
  EXPECT_EQ(io.request.error_number, ETIME);
  EXPECT_EQ(log_, std::vector<std::string>{"given up"});
  ASSERT_EQ(ledger_.TableFor(0).ghosts.size(), 1U);
  EXPECT_EQ(ledger_.TableFor(0).ghosts[0].origin, kNobody) << "it holds everybody from now on";
  EXPECT_TRUE(pair_.sent.empty());
}

TEST_F(RequestsInDoubt, NothingFailsThatWaitsForAnythingElse) {
  queue_.SetInDoubt(kFailAfterASecond);
  Io& before_table = Submit(Op::kWrite, 0, 8);  // which another engine may still have
  queue_.PathReady(2, pair_, MakeFormat(), PathState::kOptimized);
  queue_.Tick(kSecond);
  queue_.Tick(100 * kSecond);
  EXPECT_FALSE(before_table.done);
  EXPECT_EQ(waits_.failed, 0U);
  Deliver();
  ASSERT_EQ(pair_.sent.size(), 1U);
  queue_.Tick(200 * kSecond);
  EXPECT_FALSE(before_table.done) << "it is under way";
  Answer(pair_);
  queue_.SetState(2, PathState::kUnusable);
  Io& for_path = Submit(Op::kWrite, 8, 8);
  Io& read = Submit(Op::kRead, 0, 8);
  queue_.Tick(300 * kSecond);
  queue_.Tick(400 * kSecond);
  EXPECT_FALSE(for_path.done || read.done);
  queue_.SetState(2, PathState::kOptimized);
  while (!pair_.sent.empty()) Answer(pair_);
  EXPECT_TRUE(for_path.done && read.done);
}

TEST_F(RequestsInDoubt, TheTimeOfAWaitDoesNotCountTheTimeWithoutAPath) {
  queue_.SetInDoubt(kFailAfterASecond);
  PutInDoubt();
  Deliver();
  Answer(pair_);
  Io& io = Submit(Op::kWrite, 0, 8);
  queue_.Tick(kSecond);
  queue_.SetState(2, PathState::kUnusable);
  Prove(1);
  queue_.Tick(10 * kSecond);
  EXPECT_EQ(queue_.counts().for_path, 1U);
  ledger_.Over(33);
  ledger_.Take(other_.EndLife(33, {kOthers}));
  queue_.PathEnded(33);
  Deliver();
  queue_.SetState(2, PathState::kOptimized);
  EXPECT_EQ(queue_.counts().for_doubt, 1U);
  queue_.Tick(20 * kSecond);
  EXPECT_FALSE(io.done);
  queue_.Tick(21 * kSecond);
  EXPECT_TRUE(io.done);
}

TEST_F(RequestsInDoubt, NorWhileWhatItWaitsForIsInDoubtAllTheTime) {
  queue_.SetInDoubt(kFailAfterASecond);
  PutInDoubt();
  Deliver();
  Answer(pair_);
  Io& io = Submit(Op::kWrite, 0, 8);
  queue_.Tick(2 * kSecond);
  queue_.Tick(2 * kSecond + kSecond / 2);
  queue_.SetState(2, PathState::kUnusable);
  queue_.Tick(100 * kSecond);
  EXPECT_FALSE(io.done);
  EXPECT_EQ(waits_.failed, 0U);
  queue_.SetState(2, PathState::kOptimized);
  queue_.Tick(100 * kSecond + kSecond / 2 - 1);
  EXPECT_FALSE(io.done) << "half of its time had gone by before";
  queue_.Tick(100 * kSecond + kSecond / 2);
  EXPECT_TRUE(io.done);
}

TEST_F(RequestsInDoubt, NorTheTimeBeforeTheFirstTableThoughThatHasWhatItWaitsFor) {
  queue_.SetInDoubt(kFailAfterASecond);
  constexpr LifeId kBefore = 9;
  constexpr BlockRange kRange{.first = 0, .blocks = 8};
  ledger_.Doubt({&kBefore, 1}, {&kRange, 1});
  queue_.PathReady(2, pair_, MakeFormat(), PathState::kOptimized);
  Io& io = Submit(Op::kWrite, 0, 8);
  queue_.Tick(kSecond);
  queue_.Tick(100 * kSecond);
  Deliver();
  queue_.Tick(100 * kSecond + 1);
  EXPECT_FALSE(io.done);
  queue_.Tick(101 * kSecond);
  EXPECT_FALSE(io.done);
  queue_.Tick(101 * kSecond + 1);
  EXPECT_TRUE(io.done);
}

TEST_F(RequestsInDoubt, WhatIsTooLateForARuleGoesOnUnderTheNextOne) {
  queue_.SetInDoubt(kFailAfterASecond);
  Io& io = PutInDoubt();
  queue_.Tick(kSecond);
  queue_.Tick(3 * kSecond);
  EXPECT_FALSE(io.done) << "nobody obeys its ghost yet";
  queue_.SetInDoubt({});
  Deliver();
  ASSERT_FALSE(io.done);
  ASSERT_EQ(pair_.sent.size(), 1U) << "it is tried again";
  Answer(pair_);
  EXPECT_EQ(io.status, IoStatus::kOk);
}

TEST_F(RequestsInDoubt, ARuleThatHoldsAgainFailsNothingMore) {
  PutInDoubt();
  Deliver();
  Answer(pair_);
  queue_.SetInDoubt(kFailAfterASecond);
  Io& io = Submit(Op::kWrite, 0, 8);
  queue_.Tick(kSecond);
  queue_.SetInDoubt({});
  queue_.Tick(100 * kSecond);
  EXPECT_FALSE(io.done);
  Prove(1);
  Answer(pair_);
  EXPECT_TRUE(io.done);
}

TEST_F(RequestsInDoubt, WhereDoubtIsAcceptedNothingWaitsForItAndNothingIsForgotten) {
  others_under_way_ = {kOthers};
  Io& own = PutInDoubt();
  Deliver();
  Io& over = Submit(Op::kWrite, 0, 8);
  EXPECT_TRUE(pair_.sent.empty());
  queue_.SetInDoubt(kAccept);
  ASSERT_EQ(pair_.sent.size(), 2U) << "the retry, and the newer one over its ghost";
  Answer(pair_);
  Answer(pair_);
  EXPECT_TRUE(own.done && over.done);
  EXPECT_EQ(waits_.requests, 0U);
  Io& next = Submit(Op::kWriteZeroes, 4, 2);
  EXPECT_EQ(pair_.sent.size(), 1U);
  Answer(pair_);
  EXPECT_TRUE(next.done);
  EXPECT_EQ(ledger_.ghosts(), 1U);
  EXPECT_EQ(log_memory_.Found(), (std::vector<BlockRange>{{.first = 0, .blocks = 8}}));

  queue_.SetInDoubt({});
  Submit(Op::kWrite, 7, 1);
  EXPECT_TRUE(pair_.sent.empty()) << "what is in doubt holds again";
  EXPECT_EQ(waits_.requests, 1U);
  others_under_way_.clear();
  Prove(1);
  Answer(pair_);
}

TEST_F(RequestsInDoubt, BeforeTheFirstTableNothingIsWrittenWhereDoubtIsAcceptedEither) {
  queue_.SetInDoubt(kAccept);
  queue_.PathReady(2, pair_, MakeFormat(), PathState::kOptimized);
  Io& write = Submit(Op::kWrite, 0, 8);
  EXPECT_TRUE(pair_.sent.empty()) << "another engine may have the disk";
  Deliver();
  ASSERT_EQ(pair_.sent.size(), 1U);
  Answer(pair_);
  EXPECT_TRUE(write.done);
}

}  // namespace
}  // namespace cleat::nvme::host::requests_test
