// SPDX-License-Identifier: Apache-2.0
// Whatever store an engine dies before, the next one finds what it needs: nothing acknowledged is lost or runs again,
// everything accepted is answered once.
//
//   sim_crashes                                the tests
//   sim_crashes --seed N [--kill K]... [--packed 0|1] [--scsi 0|1] [--upgraded 0|1]
//               [--swapped 0|1] [--defect D] [--trace 1]    one run
//   sim_crashes --seeds COUNT [--seed FIRST]   many, for a soak
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/log.h"
#include "crash_run.h"
#include "tests/support/test_main.h"

namespace cleat::sim::crash_test {
namespace {

std::string program;

std::string Again(const CrashConfig& config) {
  std::string command = program + " --seed " + std::to_string(config.seed);
  for (const uint64_t kill : config.kills) command += " --kill " + std::to_string(kill);
  if (config.packed) command += std::string(" --packed ") + (*config.packed ? "1" : "0");
  if (config.scsi) command += std::string(" --scsi ") + (*config.scsi ? "1" : "0");
  if (config.upgraded) command += std::string(" --upgraded ") + (*config.upgraded ? "1" : "0");
  if (config.swapped) command += std::string(" --swapped ") + (*config.swapped ? "1" : "0");
  if (config.defect != Defect::kNone)
    command += " --defect " + std::to_string(static_cast<int>(config.defect));
  return command + " --trace 1";
}

// Fewer where each costs many times as much.
#if defined(CLEAT_ASAN) || defined(CLEAT_TSAN)
constexpr uint64_t kSeeds = 200;
constexpr uint64_t kStride = 11;
#else
constexpr uint64_t kSeeds = 2'000;
constexpr uint64_t kStride = 1;
#endif

// Empty, or what was violated and how to see it again.
std::string RunSeeds(uint64_t first, uint64_t count, CrashResult& sum) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    CrashConfig config;
    config.seed = seed;
    const CrashResult result = RunCrash(config);
    sum.kills += result.kills;
    sum.terminations += result.terminations;
    sum.moves += result.moves;
    sum.resumed += result.resumed;
    sum.swaps += result.swaps;
    sum.swapped_back += result.swapped_back;
    sum.answered += result.answered;
    sum.landed_late += result.landed_late;
    sum.replayed += result.replayed;
    if (!result.violated.empty()) return "again: " + Again(config) + "\n" + result.violated;
  }
  return {};
}

void PrintSum(const CrashResult& sum) {
  std::fprintf(
      stderr,
      "%llu kills, %llu terminations, %llu moves, %llu tried again, %llu disks swapped, %llu swapped back, "
      "%llu answers, %llu writes replayed, %llu blocks landed late\n",
      static_cast<unsigned long long>(sum.kills), static_cast<unsigned long long>(sum.terminations),
      static_cast<unsigned long long>(sum.moves), static_cast<unsigned long long>(sum.resumed),
      static_cast<unsigned long long>(sum.swaps), static_cast<unsigned long long>(sum.swapped_back),
      static_cast<unsigned long long>(sum.answered), static_cast<unsigned long long>(sum.replayed),
      static_cast<unsigned long long>(sum.landed_late));
}

TEST(CrashTest, AnySeed) {
  CrashResult sum;
  EXPECT_EQ(RunSeeds(1, kSeeds, sum), "");
  PrintSum(sum);
  // It was about something.
  EXPECT_GT(sum.kills, kSeeds);
  EXPECT_GT(sum.terminations, kSeeds / 10);
  EXPECT_GT(sum.moves, kSeeds / 4);
  EXPECT_GT(sum.resumed, kSeeds / 20);
  EXPECT_GT(sum.swaps, kSeeds / 4);
  EXPECT_GT(sum.swapped_back, kSeeds / 40);
  EXPECT_GT(sum.answered, kSeeds * 20);
  EXPECT_GT(sum.replayed, kSeeds / 2);
  EXPECT_GT(sum.landed_late, kSeeds);
}

TEST(CrashTest, TheSameSeedGivesTheSameRun) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CrashConfig config;
    config.seed = seed;
    EXPECT_EQ(RunCrash(config).digest, RunCrash(config).digest) << "seed " << seed;
  }
}

struct Format {
  bool packed;
  bool scsi;
  const char* name;
};
class EveryStoreTest : public testing::TestWithParam<Format> {};

// A short workload, killed before its first store, its second, ... until it has no more.
TEST_P(EveryStoreTest, MayBeTheLast) {
  uint64_t runs = 0;
  for (const uint64_t seed : {1, 2}) {
    CrashConfig config;
    config.seed = seed;
    config.packed = GetParam().packed;
    config.scsi = GetParam().scsi;
    for (uint64_t kill = 1;; kill += kStride) {
      config.kills = {kill};
      const CrashResult result = RunCrash(config);
      ASSERT_EQ(result.violated, "") << "again: " << Again(config);
      ++runs;
      if (result.stores.front() < kill) break;
    }
  }
  EXPECT_GT(runs, 200 / kStride);
}

// ... and so is its successor, in the middle of its recovery.
TEST_P(EveryStoreTest, AndThoseOfTheRecovery) {
  constexpr uint64_t kFirst = 97;
  for (uint64_t first = 23; first < 4 * kFirst; first += kFirst) {
    for (uint64_t kill = 1; kill < 120; kill += kStride) {
      CrashConfig config;
      config.seed = first;
      config.packed = GetParam().packed;
      config.scsi = GetParam().scsi;
      config.kills = {first, kill, 1 + kill / 2};
      const CrashResult result = RunCrash(config);
      ASSERT_EQ(result.violated, "") << "again: " << Again(config);
    }
  }
}

// ... and those of two processes while controllers go from one to the other.
TEST_P(EveryStoreTest, AndThoseOfAnUpgrade) {
  uint64_t moves = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    CrashConfig config;
    config.seed = seed;
    config.packed = GetParam().packed;
    config.scsi = GetParam().scsi;
    config.upgraded = true;
    for (uint64_t kill = 1;; kill += kStride) {
      config.kills = {kill};
      const CrashResult result = RunCrash(config);
      ASSERT_EQ(result.violated, "") << "again: " << Again(config);
      moves += result.moves;
      if (result.stores.front() < kill) break;
    }
  }
  EXPECT_GT(moves, 20 / kStride);
}

// ... and those of processes under which, and between which, a VM's disk is swapped for another one.
TEST_P(EveryStoreTest, AndThoseOfASwap) {
  uint64_t swaps = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    CrashConfig config;
    config.seed = seed;
    config.packed = GetParam().packed;
    config.scsi = GetParam().scsi;
    config.swapped = true;
    for (uint64_t kill = 1;; kill += kStride) {
      config.kills = {kill};
      const CrashResult result = RunCrash(config);
      ASSERT_EQ(result.violated, "") << "again: " << Again(config);
      swaps += result.swaps;
      if (result.stores.front() < kill) break;
    }
  }
  EXPECT_GT(swaps, 20 / kStride);
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryStoreTest,
                         testing::Values(Format{false, false, "Split"}, Format{true, false, "Packed"},
                                         Format{false, true, "SplitScsi"}, Format{true, true, "PackedScsi"}),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- The checks would notice

struct Control {
  Defect defect;
  const char* name;
};
class CrashControlTest : public testing::TestWithParam<Control> {};

bool IsFound(const CrashConfig& config) {
  const std::string found = RunCrash(config).violated;
  if (found.empty()) return false;
  std::fprintf(stderr, "%s: %s\n", Again(config).c_str(), found.substr(0, found.find('\n')).c_str());
  return true;
}

TEST_P(CrashControlTest, IsFound) {
  constexpr uint64_t kControlSeeds = 100;
  CrashConfig config;
  config.defect = GetParam().defect;
  for (config.seed = 1; config.seed <= kControlSeeds; ++config.seed) {
    if (IsFound(config)) return;
  }
  FAIL() << "no seed up to " << kControlSeeds << " shows '" << GetParam().name << "'";
}

INSTANTIATE_TEST_SUITE_P(Defects, CrashControlTest,
                         testing::Values(Control{Defect::kNoInflightLog, "NoInflightLog"},
                                         Control{Defect::kNoLock, "NoLock"},
                                         Control{Defect::kReplayBeforeLock, "ReplayBeforeLock"},
                                         Control{Defect::kDrainCutShort, "DrainCutShort"},
                                         Control{Defect::kFailAtStop, "FailAtStop"},
                                         Control{Defect::kBlindCompare, "BlindCompare"},
                                         Control{Defect::kTakeBeforeYield, "TakeBeforeYield"},
                                         Control{Defect::kNoIdentities, "NoIdentities"}),
                         [](const auto& test) { return std::string(test.param.name); });

// An order that is wrong for one store is found by dying before each of them.
class StoreOrderControlTest : public testing::TestWithParam<Control> {};

TEST_P(StoreOrderControlTest, IsFound) {
  constexpr uint64_t kControlSeeds = 5;
  constexpr uint64_t kKills = 400;
  CrashConfig config;
  config.defect = GetParam().defect;
  for (config.seed = 1; config.seed <= kControlSeeds; ++config.seed) {
    for (uint64_t kill = 1; kill < kKills; ++kill) {
      config.kills = {kill};
      if (IsFound(config)) return;
    }
  }
  FAIL() << "no store of " << kControlSeeds << " runs shows '" << GetParam().name << "'";
}

INSTANTIATE_TEST_SUITE_P(Defects, StoreOrderControlTest,
                         testing::Values(Control{Defect::kLogWhenUsed, "LogWhenUsed"},
                                         Control{Defect::kBatchAfterUsed, "BatchAfterUsed"},
                                         Control{Defect::kClearBeforeUsed, "ClearBeforeUsed"},
                                         Control{Defect::kClearAfterDone, "ClearAfterDone"},
                                         Control{Defect::kNoteAfterUsed, "NoteAfterUsed"},
                                         Control{Defect::kPackedClearBeforeUsed, "PackedClearBeforeUsed"},
                                         Control{Defect::kTakenBeforeNoted, "TakenBeforeNoted"}),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- The command line

[[noreturn]] void Usage() {
  std::fprintf(stderr,
               "usage: %s [--seeds COUNT] [--seed N] [--kill K]... [--packed 0|1] [--scsi 0|1] "
               "[--upgraded 0|1] [--swapped 0|1] [--defect D] [--trace 1] [googletest's options]\n",
               program.c_str());
  std::exit(2);
}

int Main(int argc, char** argv) {
  CrashConfig config;
  config.seed = 0;
  uint64_t seeds = 0;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    char* end = nullptr;
    const uint64_t value = i + 1 < argc ? std::strtoull(argv[i + 1], &end, 10) : 0;
    if (i + 1 >= argc || *end != '\0') Usage();
    if (option == "--seed") {
      config.seed = value;
    } else if (option == "--seeds") {
      seeds = value;
    } else if (option == "--kill") {
      config.kills.push_back(value);
    } else if (option == "--packed") {
      config.packed = value != 0;
    } else if (option == "--scsi") {
      config.scsi = value != 0;
    } else if (option == "--upgraded") {
      config.upgraded = value != 0;
    } else if (option == "--swapped") {
      config.swapped = value != 0;
    } else if (option == "--defect") {
      config.defect = static_cast<Defect>(value);
    } else if (option == "--trace") {
      config.trace = value != 0;
    } else {
      Usage();
    }
  }
  if (config.seed == 0 && seeds == 0) return RUN_ALL_TESTS();
  CrashResult sum;
  const uint64_t first = config.seed == 0 ? 1 : config.seed;
  const std::string violated = seeds > 0 ? RunSeeds(first, seeds, sum) : RunCrash(config).violated;
  if (seeds > 0) PrintSum(sum);
  std::printf("%s\n", violated.empty() ? "ok" : violated.c_str());
  return violated.empty() ? 0 : 1;
}

}  // namespace
}  // namespace cleat::sim::crash_test

int main(int argc, char** argv) {
  cleat::sim::crash_test::program = argv[0];
  // What the engine says about dying peers is of no interest here.
  if (!cleat::log::Init(argv[0], "critical")) std::fprintf(stderr, "no log\n");
  cleat::test::InitTestProgram(&argc, argv);
  return cleat::sim::crash_test::Main(argc, argv);
}
