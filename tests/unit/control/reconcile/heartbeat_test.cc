// SPDX-License-Identifier: Apache-2.0
// When an engine is taken for one that does not go on, in virtual time.
#include "control/reconcile/engines/heartbeat.h"

#include <gtest/gtest.h>

#include <string>

namespace cleat::control::heartbeat_test {
namespace {

constexpr HeartbeatTimes kTimes{.interval_ns = 100, .limit_ns = 600, .look_ns = 50};

engine::v1::Reply ReplyOf(uint64_t turns, bool asleep, const std::string& name = "reactor-0") {
  engine::v1::Reply reply;
  engine::v1::ReactorProgress& progress = *reply.add_reactors();
  progress.set_name(name);
  progress.set_turns(turns);
  progress.set_asleep(asleep);
  return reply;
}

TEST(HeartbeatTest, OneQuestionAtATimeAndNotTooOften) {
  Heartbeat heartbeat;
  EXPECT_TRUE(heartbeat.IsDue(1000, kTimes));
  heartbeat.Asked(1000);
  EXPECT_FALSE(heartbeat.IsDue(5000, kTimes)) << "the first is not answered";
  heartbeat.Answered(1010, {});
  EXPECT_FALSE(heartbeat.IsDue(1099, kTimes));
  EXPECT_TRUE(heartbeat.IsDue(1100, kTimes));
}

TEST(HeartbeatTest, SilenceBeginsWithTheQuestion) {
  Heartbeat heartbeat;
  EXPECT_EQ(heartbeat.Problem(100'000, kTimes), "") << "nobody has asked";
  heartbeat.Asked(100'000);
  EXPECT_EQ(heartbeat.Problem(100'599, kTimes), "");
  EXPECT_EQ(heartbeat.SilentNs(100'599), 599U);
  EXPECT_NE(heartbeat.Problem(100'600, kTimes), "");
  heartbeat.Answered(100'700, {});
  EXPECT_EQ(heartbeat.Problem(200'000, kTimes), "");
}

TEST(HeartbeatTest, WhateverItSendsShowsThatItGoesOn) {
  Heartbeat heartbeat;
  heartbeat.Heard(900, 3);
  heartbeat.Asked(1000);
  heartbeat.Heard(1500, 4);
  EXPECT_EQ(heartbeat.SilentNs(1600), 100U) << "it reported something, and answers later";
  heartbeat.Heard(2000, 4);
  EXPECT_NE(heartbeat.Problem(2100, kTimes), "") << "nothing new has come";
}

TEST(HeartbeatTest, AReactorThatStandsStillWithWorkHangs) {
  Heartbeat heartbeat;
  for (uint64_t now = 0; now <= 700; now += 100) {
    heartbeat.Asked(now);
    heartbeat.Answered(now, ReplyOf(5, false));
    EXPECT_EQ(heartbeat.Problem(now, kTimes).empty(), now < 600) << now;
  }
  EXPECT_NE(heartbeat.Problem(700, kTimes).find("reactor-0"), std::string::npos);
  EXPECT_EQ(heartbeat.SilentNs(700), 700U);
  heartbeat.Answered(800, ReplyOf(6, false));
  EXPECT_EQ(heartbeat.Problem(800, kTimes), "") << "it has gone on";
}

// One sample in which a reactor with work got no core, and then no answer for a while.
TEST(HeartbeatTest, HowLongAReactorStoodStillIsWhatTheLastAnswerShowed) {
  Heartbeat heartbeat;
  for (const uint64_t now : {0, 100}) {
    heartbeat.Asked(now);
    heartbeat.Answered(now, ReplyOf(5, false));
  }
  heartbeat.Asked(200);
  EXPECT_EQ(heartbeat.Problem(799, kTimes), "");
  EXPECT_EQ(heartbeat.SilentNs(799), 599U) << "of the control reactor, and not of the other one since 0";
  EXPECT_NE(heartbeat.Problem(800, kTimes).find("no answer"), std::string::npos);
  EXPECT_FALSE(heartbeat.HasStillReactor(kTimes));
  heartbeat.Answered(900, ReplyOf(5, false));
  EXPECT_NE(heartbeat.Problem(900, kTimes).find("reactor-0"), std::string::npos) << "it has not gone on";
  EXPECT_TRUE(heartbeat.HasStillReactor(kTimes));
}

TEST(HeartbeatTest, AReactorThatSleepsOrTurnsDoesNotHang) {
  Heartbeat sleeps;
  Heartbeat turns;
  for (uint64_t now = 0; now <= 5000; now += 100) {
    sleeps.Answered(now, ReplyOf(5, true));
    turns.Answered(now, ReplyOf(now, false));
    EXPECT_EQ(sleeps.Problem(now, kTimes), "");
    EXPECT_EQ(turns.Problem(now, kTimes), "");
  }
  // It woke up a moment ago, for the first time in a while.
  sleeps.Answered(5100, ReplyOf(5, false));
  EXPECT_EQ(sleeps.Problem(5100, kTimes), "");
}

}  // namespace
}  // namespace cleat::control::heartbeat_test
