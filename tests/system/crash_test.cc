// SPDX-License-Identifier: Apache-2.0
// SIGKILL of the engine under load, again and again, with guests that go on in the same rings: nothing that was
// acknowledged is lost, nothing torn, nothing answered twice, nothing left unanswered - for blk and scsi, split and
// packed rings, one queue and four, files and memory.
//
// What shows that these guests could catch an engine that gets it wrong:
//   - here: guests that keep the in-flight memory from the successor, who then can't know what was accepted, have to
//     find that requests are lost or that rings are broken;
//   - tests/unit/perf/crash_load_test.cc: the judge alone, with disks that lose, repeat, tear and forget;
//   - tests/sim: engines that write the in-flight log in the wrong order.
//
//   CLEAT_CRASH_KILLS=500 CLEAT_CRASH_JSON=crash.json system_crash_test    kills for each kind of device, at least
//   CLEAT_TEST_SEED=N                                                      the same choices once more
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "tests/environment.h"

namespace cleat::system_test::crash_test {
namespace {

using test::FromEnvironment;

constexpr uint64_t kKills = kSanitized ? 4 : 12;  // in each of two tests; a part in others
constexpr uint64_t kLateNs = 2 * kNsPerMs;
constexpr uint64_t kControlKillsMax = 10;
constexpr uint64_t kControlLostNs = 2 * kNsPerSecond;
// In the controls each kill is to meet requests in flight, however long this thread is kept from it.
constexpr uint64_t kControlLateNs = 100 * kNsPerMs;

uint64_t Kills() {
  return FromEnvironment("CLEAT_CRASH_KILLS", 2 * kKills);
}

uint64_t Seed() {
  static const uint64_t seed = FromEnvironment("CLEAT_TEST_SEED", 1);
  return seed;
}

// Of the runs so far; written after each, so that a run that is ended early leaves something.
void WriteJson(const std::string& name, const CrashRig& rig) {
  static nlohmann::json runs = nlohmann::json::array();
  static uint64_t kills = 0;
  static uint64_t findings = 0;
  kills += rig.kills();
  findings += rig.findings();
  nlohmann::json run = nlohmann::json::parse(rig.Json());
  run["name"] = name;
  runs.push_back(run);
  const char* path =
      std::getenv("CLEAT_CRASH_JSON");  // NOLINT(concurrency-mt-unsafe): nobody writes the environment
  if (path == nullptr) return;
  const nlohmann::json all = {
      {"seed", Seed()}, {"engine_kills", kills}, {"finding_count", findings}, {"runs", runs}};
  std::ofstream(path) << all.dump(2) << "\n";
}

std::vector<CrashCase> Cases(bool with_memory, uint64_t delay_ns_max) {
  std::vector<CrashCase> cases;
  for (const bool scsi : {false, true}) {
    for (const bool packed : {false, true}) {
      for (const uint16_t queues : {uint16_t{1}, uint16_t{4}}) {
        for (const bool memory : {false, true}) {
          if (memory && !with_memory) continue;
          cases.push_back({scsi, packed, queues, memory, delay_ns_max});
        }
      }
    }
  }
  return cases;
}

// So many kills of the engine, by these events in turns.
template <size_t kCount>
void KillUnderLoad(const std::string& name, const std::vector<CrashCase>& cases, uint64_t kills,
                   const std::array<CrashEvent, kCount>& events) {
  Host host({.reactors = 2});
  ASSERT_TRUE(host.ok());
  CrashRig rig(host, Seed());
  for (const CrashCase& what : cases) ASSERT_OK(rig.Add(what));
  ASSERT_OK(rig.Start());
  for (size_t i = 0; rig.kills() < kills; ++i) {
    if (!rig.Do(events[i % kCount])) break;
  }
  rig.Stop();
  fmt::print("{}: {}\n", name, rig.Summary());
  WriteJson(name, rig);
  EXPECT_EQ(rig.findings(), 0U) << rig.FindingsText();
  for (const auto& guest : rig.guests()) {
    EXPECT_GT(guest->load().counts().in_flight, 0U) << guest->id() << ": no kill met a request in flight";
  }
}

constexpr std::array kEngineEvents = {CrashEvent::kEngine, CrashEvent::kEngine, CrashEvent::kEngineAgain,
                                      CrashEvent::kCleatd};

TEST(Crash, EngineKilledUnderLoad) {
  KillUnderLoad("engine", Cases(true, 0), Kills() / 2, kEngineEvents);
}

TEST(Crash, EngineKilledWithAnswersOutOfOrder) {
  KillUnderLoad("engine_late_answers", Cases(true, kLateNs), Kills() / 2, kEngineEvents);
}

// Memory disks are lost then, and say so: see restart_test.cc.
TEST(Crash, EverythingButTheGuestsKilled) {
  std::vector<CrashCase> cases = Cases(false, 0);
  for (size_t i = 0; i < cases.size(); i += 2) cases[i].delay_ns_max = kLateNs;
  KillUnderLoad("everything", cases, Kills() / 4,
                std::array{CrashEvent::kCleatdAndEngine, CrashEvent::kEngineAndCleatd, CrashEvent::kEngine});
}

// Blocks smaller than the file system's are written by its read-modify-write, holes by allocating: one at a time, under
// its own lock. Then requests wait in the kernel's workers and not in its queue when the engine dies.
TEST(Crash, EngineKilledOverSmallBlocksAndHoles) {
  std::vector<CrashCase> cases;
  for (const bool scsi : {false, true}) {
    cases.push_back({.scsi = scsi, .packed = scsi, .queues = 4, .block_bytes = 512});
    cases.push_back({.scsi = scsi, .packed = !scsi, .sparse = true});
    cases.push_back({.scsi = scsi, .sparse = true, .block_bytes = 512});
  }
  KillUnderLoad("small_blocks_and_holes", cases, Kills() / 4,
                std::array{CrashEvent::kEngine, CrashEvent::kEngineAgain});
}

// ---- Negative controls

class CrashControlTest : public testing::TestWithParam<CrashControl> {};

TEST_P(CrashControlTest, IsFound) {
  Host host;
  ASSERT_TRUE(host.ok());
  for (const bool packed : {false, true}) {
    CrashRig rig(host, Seed() + (packed ? 1 : 0));
    const CrashCase what{.packed = packed, .memory = true, .delay_ns_max = kControlLateNs};
    ASSERT_OK(rig.Add(what, {.control = GetParam(), .load = {.lost_after_ns = kControlLostNs}}));
    ASSERT_OK(rig.Start());
    while (rig.kills() < kControlKillsMax && rig.Do(CrashEvent::kEngine)) {
    }
    rig.Stop();
    fmt::print("{}: after {} kills: {}", what.Id(), rig.kills(), rig.FindingsText());
    EXPECT_GT(rig.findings(), 0U) << what.Id() << " found nothing in " << rig.kills() << " kills";
  }
}

INSTANTIATE_TEST_SUITE_P(Crash, CrashControlTest,
                         testing::Values(CrashControl::kNoInflight, CrashControl::kFreshInflight),
                         [](const auto& what) {
                           return what.param == CrashControl::kNoInflight ? "NoInflightMemory"
                                                                          : "FreshInflightMemory";
                         });

}  // namespace
}  // namespace cleat::system_test::crash_test
