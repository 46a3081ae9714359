// SPDX-License-Identifier: Apache-2.0
// Every schedule of small models (doubt_model.h) and random ones of larger models. CLEAT_DOUBT_SEEDS: so many of those (some
// 19,000 take a second). CLEAT_DOUBT_SEED: from there on, also for what finds the faults.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/random.h"
#include "tests/unit/nvme/host/doubt_model.h"

namespace cleat::nvme::host::model {
namespace {

// Two different states with one hash are taken for one: with a million states, once in 10^7 runs.
struct Search {
  std::unordered_set<size_t> seen;
  std::vector<std::string> trail;  // of what went wrong, the last event first
  std::string wrong;
};

void Visit(const World& world, Search* search) {
  const std::vector<Event> events = world.Enabled();
  if (events.empty() && !world.HasEnded()) {
    search->wrong = "a request waits for ever";
  }
  for (const Event& event : events) {
    World next = world;
    next.Do(event);
    search->wrong = next.wrong();
    if (search->wrong.empty() && search->seen.insert(std::hash<std::string>()(next.Text())).second) {
      Visit(next, search);
    }
    if (!search->wrong.empty()) {
      search->trail.push_back(world.Describe(event));
      return;
    }
  }
}

std::string TextOf(const std::vector<std::string>& trail, const std::string& wrong) {
  std::string text;
  for (size_t i = trail.size(); i > 0; --i) {
    text += trail[i - 1] + "\n";
  }
  return text + "=> " + wrong;
}

// What is wrong with a schedule of the plan, or nothing.
std::string TryAll(const Plan& plan, const char* name) {
  Search search;
  Visit(World(plan), &search);
  std::cout << name << ": " << search.seen.size() << " states\n";
  return search.wrong.empty() ? "" : TextOf(search.trail, search.wrong);
}

constexpr BlockRange kBlock{.first = 0, .blocks = 1};

Plan TwoWrites() {
  return {.writes = {{.reactor = 0, .range = kBlock}, {.reactor = 1, .range = kBlock}}};
}

TEST(DoubtModel, NoScheduleOfTwoWritesIsWrong) {
  EXPECT_EQ(TryAll(TwoWrites(), "two writes"), "");
}

TEST(DoubtModel, NoScheduleWithARequestThatFailsInDoubtIsWrong) {
  Plan plan = TwoWrites();
  plan.writes[0].fails_in_doubt = true;
  EXPECT_EQ(TryAll(plan, "one fails in doubt"), "");
}

TEST(DoubtModel, NoScheduleWithACrashOfTheEngineIsWrong) {
  Plan plan = TwoWrites();
  plan.mortal_lives = 0;
  plan.may_crash = true;
  EXPECT_EQ(TryAll(plan, "two writes, a crash"), "");
}

TEST(DoubtModel, NoScheduleWithACrashThatTheLogOutlivesIsWrong) {
  Plan plan = TwoWrites();
  plan.mortal_lives = 0;
  plan.may_crash = true;
  plan.has_log = true;
  EXPECT_EQ(TryAll(plan, "two writes, a crash, a log"), "");
}

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): there is one thread
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

Plan AnyPlan(Random* random, Fault fault) {
  Plan plan{.writes = {},
            .mortal_lives = static_cast<uint32_t>(random->Between(1, 3)),
            .blocks = 2,
            .may_crash =
                fault == Fault::kForgetOverCrash || fault == Fault::kUnloggedTooEarly || random->Chance(1, 4),
            .has_log = fault == Fault::kUnloggedTooEarly || random->Chance(1, 2),
            .may_unsend = random->Chance(1, 2),
            .fault = fault};
  const uint64_t writes = random->Between(2, 4);
  for (uint64_t i = 0; i < writes; ++i) {
    const uint64_t first = random->Below(3) / 2;
    plan.writes.push_back({.reactor = static_cast<uint32_t>(random->Below(kReactors)),
                           .range = {.first = first, .blocks = first == 1 ? 1 : random->Between(1, 2)},
                           .fails_in_doubt = random->Chance(1, 4)});
  }
  return plan;
}

// What is wrong with the schedule of this seed, or nothing. Events have weights of the seed's own, so that some seeds have slow mail, some
// a slow target.
std::string Walk(uint64_t seed, Fault fault) {
  Random random(seed);
  const Plan plan = AnyPlan(&random, fault);
  std::array<uint64_t, kEventKinds> weights{};
  for (uint64_t& weight : weights) {
    weight = uint64_t{1} << random.Below(6);
  }
  World world(plan);
  std::vector<std::string> trail;
  for (std::vector<Event> events = world.Enabled(); !events.empty(); events = world.Enabled()) {
    uint64_t sum = 0;
    for (const Event& event : events) {
      sum += weights.at(static_cast<size_t>(event.kind));
    }
    uint64_t left = random.Below(sum);
    size_t chosen = 0;
    while (left >= weights.at(static_cast<size_t>(events[chosen].kind))) {
      left -= weights.at(static_cast<size_t>(events[chosen].kind));
      ++chosen;
    }
    trail.insert(trail.begin(), world.Describe(events[chosen]));
    world.Do(events[chosen]);
    if (!world.wrong().empty()) {
      return TextOf(trail, world.wrong());
    }
  }
  return world.HasEnded() ? "" : TextOf(trail, "a request waits for ever");
}

TEST(DoubtModel, NoRandomScheduleIsWrong) {
  const uint64_t first = Number("CLEAT_DOUBT_SEED", 1);
  const uint64_t seeds = Number("CLEAT_DOUBT_SEEDS", 500);
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    ASSERT_EQ(Walk(seed, Fault::kNone), "") << "again: CLEAT_DOUBT_SEED=" << seed << " CLEAT_DOUBT_SEEDS=1";
  }
}

// The negative controls: the walks that find nothing wrong above find each fault, from whatever seed on, within a stated number of them.
struct Control {
  Fault fault = Fault::kNone;
  uint64_t seeds_max = 0;
};

class DoubtModelWith : public testing::TestWithParam<Control> {};

TEST_P(DoubtModelWith, AFaultIsFound) {
  const uint64_t first = Number("CLEAT_DOUBT_SEED", 1);
  uint64_t seeds = 0;
  std::string wrong;
  while (seeds < GetParam().seeds_max && wrong.empty()) {
    wrong = Walk(first + seeds++, GetParam().fault);
  }
  ASSERT_NE(wrong, "") << "not within " << seeds << " seeds from " << first << " on";
  std::cout << "after " << seeds << " seeds " << wrong.substr(wrong.rfind("=>")) << "\n";
}

TEST(DoubtModel, AllSchedulesFindBarriersThatAreUntold) {
  Plan plan = TwoWrites();
  plan.fault = Fault::kBarriersUntold;
  EXPECT_NE(TryAll(plan, "barriers untold"), "");
}

// Each limit is some ten times what the fault takes on average, so that a fresh seed finds it too.
constexpr Control kControls[] = {{Fault::kNoWaiting, 5'000},           {Fault::kWaitsForATime, 20'000},
                                 {Fault::kRetryAsNew, 5'000},          {Fault::kBarriersUntold, 250'000},
                                 {Fault::kProofOfAnotherLife, 10'000}, {Fault::kProofTooEarly, 10'000},
                                 {Fault::kForgetOverCrash, 1'000},     {Fault::kUnloggedTooEarly, 20'000},
                                 {Fault::kAnsweredTooEarly, 60'000},   {Fault::kFailedAtOnce, 25'000}};

INSTANTIATE_TEST_SUITE_P(, DoubtModelWith, testing::ValuesIn(kControls));

}  // namespace
}  // namespace cleat::nvme::host::model
