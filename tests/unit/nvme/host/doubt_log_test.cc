// SPDX-License-Identifier: Apache-2.0
// The log of writes in doubt: what the engine after a killed one finds. Killing is copying the memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nvme/host/doubt/doubt_log.h"

namespace cleat::nvme::host::doubt_log_test {
namespace {

constexpr DoubtLog::Shape kShape{.reactors = 2, .attempts = 3, .ghosts = 4, .lives = 2};
constexpr uint32_t kNumber = 7;
constexpr BlockRange kOld{.first = 8, .blocks = 8};
constexpr BlockRange kNew{.first = 100, .blocks = 1};

class TheDoubtLog : public testing::Test {
 protected:
  static std::vector<BlockRange> Sorted(std::vector<BlockRange> ranges) {
    std::sort(ranges.begin(), ranges.end(),
              [](const BlockRange& a, const BlockRange& b) { return a.first < b.first; });
    return ranges;
  }
  // What an engine finds that starts now.
  std::vector<BlockRange> Found() {
    auto copy = memory_;
    auto log = DoubtLog::Open(Bytes(copy), kShape, kNumber);
    EXPECT_TRUE(log.ok());
    return Sorted(log->Read());
  }
  static std::span<uint8_t> Bytes(std::vector<uint64_t>& memory) {
    return {reinterpret_cast<uint8_t*>(memory.data()), memory.size() * sizeof(uint64_t)};
  }

  void SetUp() override {
    log_.OpenRow(0);
    log_.OpenRow(1);
  }

  static constexpr size_t kFirstPlace = DoubtLog::kHeaderBytes / sizeof(uint64_t) + kShape.lives;
  std::vector<uint64_t> memory_ = std::vector<uint64_t>(DoubtLog::BytesFor(kShape) / sizeof(uint64_t));
  DoubtLog log_ = DoubtLog::Open(Bytes(memory_), kShape, kNumber).value();
};

TEST_F(TheDoubtLog, OfANewDiskHasNothing) {
  EXPECT_TRUE(Found().empty());
}

TEST_F(TheDoubtLog, SaysWhoseLivesItIsAboutOrThatNobodyKnows) {
  const auto lives = [this] { return DoubtLog::Open(Bytes(memory_), kShape, kNumber)->ReadLives(); };
  EXPECT_TRUE(lives().empty());
  log_.StoreLives(std::vector<LifeId>{5, 6});
  EXPECT_EQ(lives(), (std::vector<LifeId>{5, 6}));
  log_.StoreLives(std::vector<LifeId>{5, 6, 7});
  EXPECT_TRUE(lives().empty());
  log_.StoreLives(std::vector<LifeId>{7});
  EXPECT_EQ(lives(), std::vector<LifeId>{7});
}

TEST_F(TheDoubtLog, IsClaimedByOneEngineAfterTheOtherAndLosesNothingByThat) {
  std::vector<uint64_t> memory(memory_.size());
  DoubtLog log = DoubtLog::View(Bytes(memory), kShape);
  const DoubtLog::Claimed first = log.Claim();
  EXPECT_TRUE(first.is_first) << "before anything else";
  log.HoldReservationUntil(77);
  EXPECT_TRUE(DoubtLog::Look(Bytes(memory), kShape).ranges.empty()) << "it is new all the same";
  ASSERT_TRUE(DoubtLog::Open(Bytes(memory), kShape, kNumber).ok());
  const DoubtLog::Claimed second = log.Claim();
  EXPECT_EQ(second.number, first.number + 1);
  EXPECT_FALSE(second.is_first);
  memory[1] = UINT64_MAX;
  ASSERT_FALSE(DoubtLog::Open(Bytes(memory), kShape, kNumber).ok());
  (void)DoubtLog::Format(Bytes(memory), kShape, std::vector{kOld}, kNumber);
  EXPECT_EQ(log.Claim().number, second.number + 1) << "apart from what was damaged";
  log.GiveUp();
  const DoubtLog::Claimed anew = log.Claim();
  EXPECT_TRUE(anew.is_first);
  EXPECT_EQ(anew.number, second.number + 2) << "nobody takes it for an earlier one";
  EXPECT_EQ(log.reservation_held_until(), 77U);
  EXPECT_EQ(log.Read(), std::vector{kOld});
}

TEST_F(TheDoubtLog, SaysToEnginesToComeWhoseDiskIsLeavingUntilItHasLeft) {
  const uint32_t number = log_.Claim().number;
  EXPECT_EQ(log_.leaving(), 0U);
  log_.SetLeaving(5);
  const DoubtLog::Claimed next = log_.Claim();
  EXPECT_EQ(log_.leaving(), 5U);
  EXPECT_EQ(next.number, number + 1);
  EXPECT_FALSE(next.is_first);
  log_.StoreLives(std::vector<LifeId>{6});
  EXPECT_EQ(log_.leaving(), 5U);
  EXPECT_EQ(log_.ReadLives(), std::vector<LifeId>{6});
  log_.SetLeaving(0);
  EXPECT_EQ(log_.leaving(), 0U) << "its guest has come back";
  log_.SetLeaving(5);
  log_.GiveUp();
  EXPECT_EQ(log_.leaving(), 0U);
  EXPECT_TRUE(log_.Claim().is_first);
  EXPECT_EQ(log_.leaving(), 0U);
}

TEST_F(TheDoubtLog, IsNotLeavingWhereAnOlderEngineHasGivenItUp) {
  constexpr size_t kClaims = 56 / sizeof(uint64_t);  // the header's word that has them in its lower half
  constexpr uint64_t kSomebodys = uint64_t{1} << 31;
  (void)log_.Claim();
  log_.SetLeaving(5);
  memory_[kClaims] &= ~kSomebodys;  // all that it knows of
  EXPECT_EQ(log_.leaving(), 0U);
  EXPECT_TRUE(log_.Claim().is_first);
  EXPECT_EQ(log_.leaving(), 0U);
}

// Its lives are one word with what is leaving.
TEST_F(TheDoubtLog, IsNotLeavingOnceAnOlderEngineHasStoredItsLives) {
  constexpr size_t kLives = 48 / sizeof(uint64_t);
  (void)log_.Claim();
  log_.StoreLives(std::vector<LifeId>{6});
  log_.SetLeaving(5);
  EXPECT_NE(memory_[kLives], 0U) << "it takes the lives for unknown";
  memory_[kLives] = 0;  // once it has stored its own
  EXPECT_EQ(log_.leaving(), 0U);
  EXPECT_EQ(log_.ReadLives(), std::vector<LifeId>{6});
}

TEST_F(TheDoubtLog, WasSomebodysIfItIsLost) {
  std::vector<uint64_t> memory(memory_.size());
  const auto header = DoubtLog::LostHeader(kNumber);
  std::memcpy(memory.data(), header.data(), header.size());
  EXPECT_FALSE(DoubtLog::View(Bytes(memory), kShape).Claim().is_first);
}

TEST_F(TheDoubtLog, HasWhatIsUnderWayAndNotWhatWasAnswered) {
  log_.Begin(0, 2, kOld);
  log_.Begin(1, 0, kNew);
  EXPECT_EQ(Found(), (std::vector{kOld, kNew}));
  log_.End(0, 2);
  EXPECT_EQ(Found(), std::vector{kNew});
}

TEST_F(TheDoubtLog, HasTheLastListOfGhostsAlone) {
  log_.Store(std::vector{kOld, kNew}, DoubtLog::Number::kNew);
  EXPECT_EQ(Found(), (std::vector{kOld, kNew}));
  log_.Store(std::vector{kNew}, DoubtLog::Number::kNew);
  EXPECT_EQ(Found(), std::vector{kNew});
  log_.Store({}, DoubtLog::Number::kNew);
  EXPECT_TRUE(Found().empty());
}

// The engine is killed while it takes over: what it found is there at each moment.
TEST_F(TheDoubtLog, LosesNothingWhileItIsTakenOver) {
  log_.Begin(0, 0, kOld);
  log_.Store(std::vector{kNew}, DoubtLog::Number::kNew);
  const std::vector<BlockRange> before = Found();
  log_.Store(log_.Read(), DoubtLog::Number::kNew);
  for (const BlockRange& range : before) {
    const auto found = Found();
    EXPECT_NE(std::find(found.begin(), found.end(), range), found.end());
  }
  log_.ForgetAttempts();
  EXPECT_EQ(Found(), before);
}

TEST_F(TheDoubtLog, ThatIsDamagedIsRefusedAndNotTakenForEmpty) {
  const auto opened_with = [this](size_t word, uint64_t value) {
    auto copy = memory_;
    copy[word] = value;
    return DoubtLog::Open(Bytes(copy), kShape, kNumber).ok();
  };
  EXPECT_TRUE(opened_with(0, memory_[0]));
  EXPECT_FALSE(opened_with(0, 1)) << "magic";
  EXPECT_FALSE(opened_with(0, 0)) << "half made: the rest of its header is there";
  EXPECT_FALSE(opened_with(1, 7)) << "another shape";
  EXPECT_FALSE(opened_with(3, kShape.ghosts + 1)) << "more ghosts than it has room for";
  EXPECT_FALSE(opened_with(3, 1)) << "a ghost without a number";
  EXPECT_FALSE(opened_with(4, kShape.reactors + 1)) << "more rows than it has room for";
}

TEST_F(TheDoubtLog, ARangeThatGoesRoundIsTakenToTheEnd) {
  memory_[kFirstPlace] = 5;
  memory_[kFirstPlace + 1] = UINT64_MAX;
  memory_[kFirstPlace + 2] = UINT64_MAX;
  memory_[kFirstPlace + 3] = 1;
  EXPECT_EQ(Found(), (std::vector{BlockRange{.first = 5, .blocks = UINT64_MAX - 5},
                                  BlockRange{.first = UINT64_MAX - 1, .blocks = 1}}));
}

TEST_F(TheDoubtLog, ThatIsMarkedAsLostIsRefusedWithAReasonThatNamesIt) {
  std::vector<uint64_t> memory(memory_.size());
  std::memcpy(memory.data(), kDoubtLogLost.data(), kDoubtLogLost.size());
  const auto opened = DoubtLog::Open(Bytes(memory), kShape, kNumber);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(opened.error().message.find("is lost"), std::string::npos) << opened.error().message;
}

TEST_F(TheDoubtLog, ThatIsMadeAnewHasItsGhostsAtOnceAndNothingOfBefore) {
  log_.Begin(1, 2, kOld);
  log_.Store(std::vector{kOld}, DoubtLog::Number::kNew);
  log_ = DoubtLog::Format(Bytes(memory_), kShape, std::vector{kNew}, kNumber);
  EXPECT_EQ(Found(), std::vector{kNew});
  log_.OpenRow(1);
  EXPECT_EQ(Found(), std::vector{kNew});
}

// Memory of a sparse file is spent by reading it, too.
TEST_F(TheDoubtLog, RowsThatWereNeverUsedAreNotRead) {
  std::vector<uint64_t> memory(memory_.size());
  auto log = DoubtLog::Open(Bytes(memory), kShape, kNumber).value();
  memory[kFirstPlace + 1] = 1;
  EXPECT_TRUE(log.Read().empty());
  log.OpenRow(0);
  log.Begin(0, 0, kOld);
  EXPECT_EQ(log.Read().size(), 1U);
}

// ---- Another process' view, and an operator's word

TEST_F(TheDoubtLog, ShowsAnotherProcessWhatIsInDoubtByANumberOfItsOwn) {
  EXPECT_TRUE(DoubtLog::Look(Bytes(memory_), kShape).ranges.empty());
  log_.Begin(0, 0, kOld);
  EXPECT_TRUE(DoubtLog::Look(Bytes(memory_), kShape).ranges.empty()) << "under way is not in doubt";
  log_.Store(std::vector{kOld}, DoubtLog::Number::kNew);
  const DoubtLog::Doubt first = DoubtLog::Look(Bytes(memory_), kShape);
  EXPECT_EQ(first.ranges, std::vector{kOld});
  EXPECT_NE(first.number, 0U);
  log_.Store(std::vector{kOld, kNew}, DoubtLog::Number::kNew);
  const DoubtLog::Doubt second = DoubtLog::Look(Bytes(memory_), kShape);
  EXPECT_EQ(second.ranges, (std::vector{kOld, kNew}));
  EXPECT_NE(second.number, first.number);
}

TEST_F(TheDoubtLog, ObeysTheWordForWhatItHasAndForNothingThatCameLater) {
  EXPECT_FALSE(log_.IsConfirmed());
  log_.Store(std::vector{kOld}, DoubtLog::Number::kNew);
  EXPECT_FALSE(log_.IsConfirmed());
  const uint32_t number = DoubtLog::Look(Bytes(memory_), kShape).number;
  DoubtLog::Confirm(Bytes(memory_), number);
  EXPECT_TRUE(log_.IsConfirmed());
  log_.Store(std::vector{kOld, kNew}, DoubtLog::Number::kNew);
  EXPECT_FALSE(log_.IsConfirmed()) << "the word was about less";
  DoubtLog::Confirm(Bytes(memory_), number);
  EXPECT_FALSE(log_.IsConfirmed());
}

TEST_F(TheDoubtLog, KeepsItsNumberWhereNothingNewIsInDoubt) {
  log_.Store(std::vector{kOld, kNew}, DoubtLog::Number::kNew);
  const uint32_t number = DoubtLog::Look(Bytes(memory_), kShape).number;
  log_.Store(std::vector{kNew}, DoubtLog::Number::kKept);
  EXPECT_EQ(DoubtLog::Look(Bytes(memory_), kShape).number, number);
  EXPECT_EQ(DoubtLog::Look(Bytes(memory_), kShape).ranges, std::vector{kNew});
}

TEST_F(TheDoubtLog, ThatIsLostTakesTheWordForTheWholeDiskByANumberOfItsOwn) {
  const auto lost = [](uint32_t number) {
    std::vector<uint64_t> memory(DoubtLog::BytesFor(kShape) / sizeof(uint64_t));
    const auto header = DoubtLog::LostHeader(number);
    std::memcpy(memory.data(), header.data(), header.size());
    return memory;
  };
  auto memory = lost(1234);
  const DoubtLog::Doubt doubt = DoubtLog::Look(Bytes(memory), kShape);
  EXPECT_EQ(doubt.number, 1234U);
  EXPECT_EQ(doubt.ranges, (std::vector{BlockRange{.first = 0, .blocks = UINT64_MAX}}));
  EXPECT_FALSE(DoubtLog::Open(Bytes(memory), kShape, kNumber).ok());
  EXPECT_FALSE(DoubtLog::IsLostAndConfirmed(Bytes(memory)));
  DoubtLog::Confirm(Bytes(memory), 1233);
  EXPECT_FALSE(DoubtLog::IsLostAndConfirmed(Bytes(memory))) << "a word for another log";
  DoubtLog::Confirm(Bytes(memory), 1234);
  EXPECT_TRUE(DoubtLog::IsLostAndConfirmed(Bytes(memory)));

  auto unconfirmed = lost(99);
  const DoubtLog made = DoubtLog::Format(Bytes(unconfirmed), kShape, doubt.ranges, kNumber);
  EXPECT_EQ(DoubtLog::Look(Bytes(unconfirmed), kShape).number, 99U)
      << "whoever looked before may say so after";
  EXPECT_FALSE(made.IsConfirmed());
  DoubtLog::Confirm(Bytes(unconfirmed), 99);
  EXPECT_TRUE(made.IsConfirmed());
}

// The header of a log that is damaged may say anything.
TEST_F(TheDoubtLog, ThatIsDamagedHasNoWord) {
  memory_[0] = 1;
  DoubtLog::Confirm(Bytes(memory_), kNumber);
  EXPECT_FALSE(DoubtLog::Format(Bytes(memory_), kShape, std::vector{kOld}, kNumber).IsConfirmed());
}

TEST_F(TheDoubtLog, RowsThatOthersHaveWrittenBringNothingDown) {
  memory_.assign(memory_.size(), 0);
  log_ = DoubtLog::Open(Bytes(memory_), kShape, kNumber).value();
  memory_[kFirstPlace + 1] = 5;
  log_.OpenRow(0);
  EXPECT_TRUE(Found().empty());
  memory_[kFirstPlace + 1] = 5;
  log_.Begin(0, 0, kOld);
  EXPECT_EQ(Found(), std::vector{kOld});
}

TEST_F(TheDoubtLog, ThatIsDamagedShowsTheWholeDiskAndCannotBeConfirmed) {
  log_.Store(std::vector{kOld}, DoubtLog::Number::kNew);
  const std::vector<std::pair<size_t, uint64_t>> damages = {
      {0, 1}, {0, 0}, {1, 9}, {3, 1}, {3, kShape.ghosts + 1}, {4, 100}};
  for (const auto& [word, value] : damages) {
    auto copy = memory_;
    copy[word] = value;
    const DoubtLog::Doubt doubt = DoubtLog::Look(Bytes(copy), kShape);
    EXPECT_EQ(doubt.ranges, (std::vector{BlockRange{0, UINT64_MAX}})) << word;
    EXPECT_EQ(doubt.number, 0U) << word;
  }
}

}  // namespace
}  // namespace cleat::nvme::host::doubt_log_test
