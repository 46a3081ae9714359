// SPDX-License-Identifier: Apache-2.0
#include "base/exit_status.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace cleat::exit_status_test {
namespace {

constexpr ExitStatus kAll[] = {ExitStatus::kDone,         ExitStatus::kFailed,       ExitStatus::kUsage,
                               ExitStatus::kDamaged,      ExitStatus::kBusy,         ExitStatus::kInternal,
                               ExitStatus::kSystem,       ExitStatus::kCantCreate,   ExitStatus::kIo,
                               ExitStatus::kNoPermission, ExitStatus::kConfiguration};

TEST(ExitStatusTest, WhatAnotherStartCantMendIsFinalAndTheUnitsHaveTheSame) {
  std::string final_ones;
  for (const ExitStatus status : kAll) {
    if (IsFinal(status)) final_ones += " " + std::to_string(static_cast<int>(status));
    EXPECT_NE(ExitStatusHelp().find(status == ExitStatus::kFailed ? "status"
                                                                  : std::to_string(static_cast<int>(status))),
              std::string::npos);
  }
  for (const char* unit : {"systemd/cleatd.service", "systemd/cleat-engine@.service"}) {
    std::ifstream file(test::SourceFile(unit));
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_NE(text.str().find("\nRestartPreventExitStatus=" + final_ones.substr(1) + "\n"), std::string::npos)
        << unit;
  }
}

TEST(ExitStatusTest, AnErrorHasTheStatusOfItsCause) {
  const auto status_of = [](ErrorCode code) { return ExitStatusOf(Error(code, "")); };
  for (const ErrorCode code :
       {ErrorCode::kInvalidArgument, ErrorCode::kNotFound, ErrorCode::kFailedPrecondition})
    EXPECT_EQ(status_of(code), ExitStatus::kConfiguration);
  EXPECT_EQ(status_of(ErrorCode::kPermissionDenied), ExitStatus::kNoPermission);
  EXPECT_EQ(status_of(ErrorCode::kDataLoss), ExitStatus::kDamaged);
  // What may be otherwise at the next start.
  for (const ErrorCode code : {ErrorCode::kAlreadyExists, ErrorCode::kAborted, ErrorCode::kUnavailable,
                               ErrorCode::kResourceExhausted, ErrorCode::kUnimplemented, ErrorCode::kIo,
                               ErrorCode::kDeadlineExceeded, ErrorCode::kCancelled, ErrorCode::kInternal})
    EXPECT_FALSE(IsFinal(status_of(code))) << ErrorCodeName(code);
}

TEST(RestartDelayTest, GrowsOverLivesAndBeginsAnewAfterALongOne) {
  const test::TempDir dir;
  const auto fail = [&](uint64_t lived_ms) { return RestartDelay(dir / "a.failures").NextMs(lived_ms); };
  uint64_t expected = RestartDelay::kFirstMs;
  for (int life = 0; life < 20; ++life) {
    EXPECT_EQ(fail(10), expected);
    expected = std::min(expected * 2, RestartDelay::kMaxMs);
  }
  EXPECT_EQ(fail(RestartDelay::kCalmMs), RestartDelay::kFirstMs);
  EXPECT_EQ(fail(10), 2 * RestartDelay::kFirstMs);
}

TEST(RestartDelayTest, BeginsAnewWhenTheLastFailureIsLongAgo) {
  const test::TempDir dir;
  const std::string path = dir / "a.failures";
  for (int life = 0; life < 5; ++life) (void)RestartDelay(path).NextMs(0);
  std::filesystem::last_write_time(path,
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(RestartDelay(path).NextMs(0), RestartDelay::kFirstMs);
}

TEST(RestartDelayTest, ACountThatCantBeKeptOrReadIsNoReasonToHurry) {
  const test::TempDir dir;
  EXPECT_EQ(RestartDelay(dir / "none/a.failures").NextMs(0), RestartDelay::kMaxMs);
  std::ofstream(dir / "a.failures") << "nonsense";
  EXPECT_EQ(RestartDelay(dir / "a.failures").NextMs(0), RestartDelay::kFirstMs);
  std::ofstream(dir / "b.failures") << "99999999999999999999999";
  EXPECT_LE(RestartDelay(dir / "b.failures").NextMs(0), RestartDelay::kMaxMs);
}

}  // namespace
}  // namespace cleat::exit_status_test
