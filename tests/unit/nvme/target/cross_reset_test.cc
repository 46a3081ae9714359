// SPDX-License-Identifier: Apache-2.0
// A host that has lost its way to one controller has it reset by another one: whom it may mean, and that it is told of an end only when nothing of
// that controller can have an effect any more.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "base/random.h"
#include "nvme/target/cross_reset/reset_log.h"
#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::cross_reset_test {
namespace {

using fabrics::Property;
using fabrics::PropertySet;
using State = SavedReset::State;

constexpr uint16_t kDnr = status_field::kDoNotRetry;
constexpr uint16_t kNoSuch = status_field::kInvalidField | kDnr;
constexpr uint32_t kEnabled = 0x00460001, kDisabled = 0x00460000;
constexpr uint64_t kResetEvent = 0x001e'f402;
constexpr uint32_t kLogBytes = 8 + kResetsMax * 8;

template <typename Number>
Number At(const std::vector<uint8_t>& bytes, size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

fabrics::SubmissionEntry Reset(const ControllerInstance& impacted) {
  auto entry = Plain({.opcode = 0x38,
                      .cdw10 = impacted.id | uint32_t{impacted.uniquifier} << 16,
                      .cdw12 = static_cast<uint32_t>(impacted.random)});
  entry.cdw13 = static_cast<uint32_t>(impacted.random >> 32);
  return entry;
}
fabrics::SubmissionEntry EventRequest(uint16_t cid) {
  fabrics::SubmissionEntry entry = Plain(AsyncEventRequest());
  entry.cid = cid;
  return entry;
}

struct Row {
  uint16_t id = 0;
  uint8_t uniquifier = 0;
  State state = State::kInProgress;
  bool operator==(const Row&) const = default;
};
Row RowOf(const ControllerInstance& impacted, State state) {
  return {impacted.id, impacted.uniquifier, state};
}

struct Scene : Rig {
  // As a host reads it.
  ControllerInstance InstanceOf(TargetController& controller) {
    const auto page = Read(controller, Identify(IdentifyCns::kController, 0), kIdentifyBytes);
    return {.id = At<uint16_t>(page, 78), .uniquifier = page[135], .random = At<uint64_t>(page, 136)};
  }
  std::vector<Row> Log(TargetController& controller, bool removes = false, uint32_t bytes = kLogBytes) {
    Command command = GetLogPage(LogPage::kControllerResets, 0, bytes);
    if (removes) command.cdw10 |= uint32_t{kRemoveResetsThatAreOver} << 8;
    const auto log = Read(controller, command, bytes);
    std::vector<Row> rows;
    for (size_t i = 0; i < At<uint16_t>(log, 0) && 16 + i * 8 <= bytes; ++i) {
      const size_t at = 8 + i * 8;
      rows.push_back({At<uint16_t>(log, at), log[at + 2], static_cast<State>(log[at + 6])});
      EXPECT_EQ(log[at + 3], 0);
      EXPECT_EQ(At<uint16_t>(log, at + 4), 0xffff) << "no other controller is proposed";
      EXPECT_EQ(log[at + 7], 3) << "checked, and begun";
    }
    return rows;
  }
  // With that many I/O queues.
  TargetController& LiveWith(uint16_t queues, std::string_view host = kHost) {
    TargetController& controller = Live(kSubsystem, host);
    for (uint16_t queue = 1; queue <= queues; ++queue)
      EXPECT_EQ(ConnectQueue(controller, queue).answer.status, 0);
    return controller;
  }
  void EndWith(TargetController& controller) {
    for (uint16_t queue = 1; queue < 9; ++queue)
      if (controller.HasQueue(queue)) controller.QueueEnded(queue);
    End(controller);
  }
};

TEST(CrossReset, EachControllerSaysWhichInstanceItIsAndHowManyItResets) {
  Scene scene;
  TargetController& first = scene.Live();
  TargetController& second = scene.Live();
  const ControllerInstance of_first = scene.InstanceOf(first), of_second = scene.InstanceOf(second);
  EXPECT_EQ(of_first.id, first.id());
  EXPECT_NE(of_first.uniquifier, 0);
  EXPECT_NE(of_first.random, of_second.random);
  const auto page = scene.Read(first, Identify(IdentifyCns::kController, 0), kIdentifyBytes);
  EXPECT_EQ(page[1807], kResetsInProgressMax);
  for (uint8_t before = of_first.uniquifier, times = 0; times < 3; ++times) {
    ASSERT_TRUE(scene.Do(first, PropertySet(Property::kConfiguration, kDisabled)).ok());
    ASSERT_TRUE(scene.Do(first, PropertySet(Property::kConfiguration, kEnabled)).ok());
    const ControllerInstance again = scene.InstanceOf(first);
    EXPECT_EQ(again.uniquifier, before == 255 ? 1 : before + 1);
    EXPECT_NE(again.random, of_first.random);
    before = again.uniquifier;
  }
  TargetController& discovery = scene.Live(fabrics::kDiscoveryNqn);
  const auto of_discovery = scene.Read(discovery, Identify(IdentifyCns::kController, 0), kIdentifyBytes);
  EXPECT_EQ(of_discovery[135], 0);
  EXPECT_EQ(At<uint64_t>(of_discovery, 136), 0U);
  EXPECT_EQ(of_discovery[1807], 0);
  EXPECT_EQ(scene.Do(discovery, Reset(of_first)).status, status_field::kInvalidOpcode | kDnr);
}

TEST(CrossReset, OneWithoutQueuesIsOverAtOnce) {
  Scene scene;
  TargetController& asked = scene.LiveWith(1);
  TargetController& impacted = scene.Live();
  const Answer answer = scene.Do(asked, Reset(scene.InstanceOf(impacted)));
  EXPECT_EQ(answer.status, 0);
  EXPECT_EQ(answer.result, kResetIsOver);
  ASSERT_EQ(scene.heard.ended.size(), 1U);
  EXPECT_NE(scene.heard.ended[0].find("reset by controller"), std::string::npos) << scene.heard.ended[0];
  EXPECT_FALSE(scene.ConnectQueue(impacted, 1).answer.ok()) << "nothing joins it any more";
  EXPECT_TRUE(scene.Log(asked).empty());
  scene.End(impacted);
  EXPECT_EQ(scene.Do(asked, EventRequest(1)).kind, Answer::Kind::kHeld) << "there is nothing to tell";
  asked.QueueEnded(1);
}

// The negative control of all that is said here: a success while a queue is left would let the host's next write be overtaken.
TEST(CrossReset, OneThatMayStillReachTheStorageIsInProgressUntilNothingOfItIsLeft) {
  Scene scene;
  TargetController& asked = scene.Live();
  TargetController& impacted = scene.LiveWith(2);
  const ControllerInstance instance = scene.InstanceOf(impacted);
  EXPECT_EQ(scene.Do(asked, EventRequest(1)).kind, Answer::Kind::kHeld);
  const Answer answer = scene.Do(asked, Reset(instance));
  EXPECT_EQ(answer.status, 0);
  EXPECT_EQ(answer.result, 0U);
  EXPECT_EQ(scene.heard.ended.size(), 1U);
  const auto is_in_progress = [&] {
    EXPECT_EQ(scene.Log(asked, /*removes=*/true), std::vector{RowOf(instance, State::kInProgress)});
    EXPECT_TRUE(scene.heard.completed.empty());
  };
  is_in_progress();
  impacted.QueueEnded(2);
  is_in_progress();
  EXPECT_EQ(scene.Do(asked, Reset(instance)).status, status_field::kResetInProgress);
  impacted.QueueEnded(1);
  is_in_progress();
  scene.End(impacted);
  ASSERT_EQ(scene.heard.completed.size(), 1U);
  EXPECT_EQ(scene.heard.completed[0].first, 1);
  EXPECT_EQ(scene.heard.completed[0].second.result, kResetEvent);
  EXPECT_EQ(scene.Log(asked), std::vector{RowOf(instance, State::kSuccess)}) << "it stays until removed";
  EXPECT_EQ(scene.Log(asked, /*removes=*/true), std::vector{RowOf(instance, State::kSuccess)});
  EXPECT_TRUE(scene.Log(asked).empty());
  EXPECT_EQ(scene.Do(asked, Reset(instance)).status, kNoSuch) << "it is not there any more";
}

TEST(CrossReset, NobodyElsesControllerIsReset) {
  Scene scene;
  ASSERT_TRUE(scene.target.SetHosts(kSubsystem, {HostAccess::Named(kHost), HostAccess::Named(kOtherHost)}));
  constexpr std::string_view kOtherSubsystem = "nqn.2024-01.com.example:b";
  ASSERT_TRUE(scene.target.Add(ConfigOf(kOtherSubsystem)));
  TargetController& asked = scene.Live();
  const auto refused = [&](const ControllerInstance& instance) {
    const Answer answer = scene.Do(asked, Reset(instance));
    EXPECT_EQ(answer.status, kNoSuch) << instance.id;
    EXPECT_EQ(answer.result, 0U);
  };
  refused(scene.InstanceOf(asked));
  refused(scene.InstanceOf(scene.Live(kSubsystem, kOtherHost)));
  refused(scene.InstanceOf(scene.Live(kOtherSubsystem)));
  ConnectCapsule other_id;
  other_id.data.host_id[0] ^= 1;
  TargetController& of_other_id = *scene.Connect(other_id).controller;
  scene.live.push_back(&of_other_id);
  ASSERT_TRUE(scene.Do(of_other_id, PropertySet(Property::kConfiguration, kEnabled)).ok());
  refused(scene.InstanceOf(of_other_id));
  // Its own, but not exactly that one.
  TargetController& own = scene.Live();
  const ControllerInstance instance = scene.InstanceOf(own);
  refused({instance.id, static_cast<uint8_t>(instance.uniquifier ^ 1), instance.random});
  refused({instance.id, instance.uniquifier, instance.random ^ uint64_t{1} << 63});
  refused({instance.id, 0, 0});
  refused({static_cast<uint16_t>(instance.id + 100), instance.uniquifier, instance.random});
  ASSERT_TRUE(scene.Do(own, PropertySet(Property::kConfiguration, kDisabled)).ok());
  ASSERT_TRUE(scene.Do(own, PropertySet(Property::kConfiguration, kEnabled)).ok());
  refused(instance);
  // One that was never enabled has no instance.
  TargetController& idle = *scene.Connect(ConnectCapsule()).controller;
  scene.live.push_back(&idle);
  refused({idle.id(), 0, 0});
  EXPECT_TRUE(scene.heard.ended.empty());
  EXPECT_TRUE(scene.Log(asked).empty());
}

TEST(CrossReset, OneThatEndsAlreadyOrIsBeingResetByItsHostIsWaitedFor) {
  Scene scene;
  TargetController& asked = scene.Live();
  TargetController& ends = scene.LiveWith(1);
  TargetController& resets = scene.LiveWith(1);
  const ControllerInstance of_ends = scene.InstanceOf(ends), of_resets = scene.InstanceOf(resets);
  ends.End({ErrorCode::kUnavailable, "its connection has broken"});
  EXPECT_EQ(scene.Do(asked, Reset(of_ends)).result, 0U);
  EXPECT_EQ(scene.heard.ended.size(), 1U) << "its owner knows";
  ASSERT_TRUE(scene.Do(resets, PropertySet(Property::kConfiguration, kDisabled)).ok());
  EXPECT_EQ(scene.Do(asked, Reset(of_resets)).result, 0U);
  EXPECT_EQ(scene.Log(asked),
            (std::vector{RowOf(of_ends, State::kInProgress), RowOf(of_resets, State::kInProgress)}));
  scene.EndWith(resets);
  EXPECT_EQ(scene.Log(asked),
            (std::vector{RowOf(of_ends, State::kInProgress), RowOf(of_resets, State::kSuccess)}));
  scene.EndWith(ends);
  EXPECT_EQ(scene.Log(asked)[0].state, State::kSuccess);
}

TEST(CrossReset, WhoeverHasAskedIsTold) {
  Scene scene;
  TargetController& one = scene.Live();
  TargetController& other = scene.Live();
  TargetController& silent = scene.Live();
  TargetController& impacted = scene.LiveWith(1);
  const ControllerInstance instance = scene.InstanceOf(impacted);
  ASSERT_TRUE(scene.Do(silent, SetFeature(Feature::kAsyncEvents, fabrics::kEventAna)).ok());
  for (TargetController* const asked : {&one, &other, &silent}) {
    EXPECT_EQ(scene.Do(*asked, EventRequest(asked->id())).kind, Answer::Kind::kHeld);
    EXPECT_EQ(scene.Do(*asked, Reset(instance)).status, 0);
  }
  scene.EndWith(impacted);
  ASSERT_EQ(scene.heard.completed.size(), 2U) << "the third one wants no such events";
  for (TargetController* const asked : {&one, &other, &silent})
    EXPECT_EQ(scene.Log(*asked), std::vector{RowOf(instance, State::kSuccess)});
}

TEST(CrossReset, OneThatLeavesBeforeItHearsOfTheEndDoesNoHarm) {
  Scene scene;
  TargetController& asked = scene.Live();
  TargetController& impacted = scene.LiveWith(1);
  ASSERT_EQ(scene.Do(asked, Reset(scene.InstanceOf(impacted))).status, 0);
  scene.End(asked);
  scene.EndWith(impacted);
}

// Its subsystem was taken away, and is there again before the storage has let go.
TEST(CrossReset, OneOfTheSubsystemBeforeIsFound) {
  Scene scene;
  TargetController& impacted = scene.LiveWith(1);
  const ControllerInstance instance = scene.InstanceOf(impacted);
  ASSERT_TRUE(scene.target.Remove(kSubsystem));
  ASSERT_TRUE(scene.target.Add(ConfigOf()));
  TargetController& asked = scene.Live();
  EXPECT_EQ(scene.Do(asked, Reset(instance)).result, 0U);
  EXPECT_EQ(scene.Log(asked), std::vector{RowOf(instance, State::kInProgress)});
  scene.EndWith(impacted);
  EXPECT_EQ(scene.Log(asked), std::vector{RowOf(instance, State::kSuccess)});
}

TEST(CrossReset, SoManyAreInProgressAndNoneMoreIsEnded) {
  Scene scene;
  TargetController& asked = scene.Live();
  std::vector<TargetController*> others;
  for (size_t i = 0; i <= kResetsInProgressMax; ++i) others.push_back(&scene.LiveWith(1));
  for (size_t i = 0; i < kResetsInProgressMax; ++i)
    EXPECT_EQ(scene.Do(asked, Reset(scene.InstanceOf(*others[i]))).status, 0);
  const ControllerInstance last = scene.InstanceOf(*others.back());
  EXPECT_EQ(scene.Do(asked, Reset(last)).status, status_field::kResetLimitExceeded);
  EXPECT_FALSE(others.back()->ending());
  scene.EndWith(*others[0]);
  EXPECT_EQ(scene.Do(asked, Reset(last)).status, 0);
  for (size_t i = 1; i < others.size(); ++i) scene.EndWith(*others[i]);
}

TEST(CrossReset, AHostThatRemovesNothingFillsItsLogAndNoMore) {
  Scene scene;
  TargetController& asked = scene.Live();
  for (size_t i = 0; i < kResetsMax; ++i) {
    TargetController& impacted = scene.LiveWith(1);
    EXPECT_EQ(scene.Do(asked, Reset(scene.InstanceOf(impacted))).status, 0);
    scene.EndWith(impacted);
  }
  TargetController& impacted = scene.LiveWith(1);
  const ControllerInstance instance = scene.InstanceOf(impacted);
  EXPECT_EQ(scene.Do(asked, Reset(instance)).status, status_field::kResetLogFull);
  EXPECT_FALSE(impacted.ending());
  EXPECT_EQ(scene.Log(asked, /*removes=*/true, kLogBytes - 8).size(), kResetsMax - 1);
  EXPECT_EQ(scene.Log(asked).size(), kResetsMax) << "what it was not shown stays";
  EXPECT_EQ(scene.Log(asked, /*removes=*/true).size(), kResetsMax);
  EXPECT_EQ(scene.Do(asked, Reset(instance)).status, 0);
  scene.EndWith(impacted);
}

TEST(CrossReset, AnEventIsToldOnceUntilTheLogIsRead) {
  Scene scene;
  TargetController& asked = scene.Live();
  const auto reset_one = [&] {
    TargetController& impacted = scene.LiveWith(1);
    EXPECT_EQ(scene.Do(asked, Reset(scene.InstanceOf(impacted))).status, 0);
    scene.EndWith(impacted);
  };
  reset_one();
  EXPECT_EQ(scene.Do(asked, EventRequest(1)).result, kResetEvent);
  EXPECT_EQ(scene.Do(asked, EventRequest(2)).kind, Answer::Kind::kHeld);
  reset_one();
  EXPECT_TRUE(scene.heard.completed.empty());
  EXPECT_EQ(scene.Log(asked, /*removes=*/true).size(), 2U);
  reset_one();
  EXPECT_EQ(scene.heard.completed.size(), 1U);
}

TEST(CrossReset, WhatIsInProgressOutlivesAResetOfTheOneThatWasAsked) {
  Scene scene;
  TargetController& asked = scene.Live();
  TargetController& over = scene.LiveWith(1);
  TargetController& busy = scene.LiveWith(1);
  const ControllerInstance instance = scene.InstanceOf(busy);
  ASSERT_EQ(scene.Do(asked, Reset(scene.InstanceOf(over))).status, 0);
  ASSERT_EQ(scene.Do(asked, Reset(instance)).status, 0);
  scene.EndWith(over);
  ASSERT_TRUE(scene.Do(asked, PropertySet(Property::kConfiguration, kDisabled)).ok());
  ASSERT_TRUE(scene.Do(asked, PropertySet(Property::kConfiguration, kEnabled)).ok());
  EXPECT_EQ(scene.Log(asked), std::vector{RowOf(instance, State::kInProgress)});
  EXPECT_EQ(scene.Do(asked, EventRequest(1)).kind, Answer::Kind::kHeld) << "nothing is left to read";
  scene.EndWith(busy);
  EXPECT_EQ(scene.heard.completed.size(), 1U);
}

// ---- From one process to the next

TEST(CrossReset, ANextProcessGoesOnWithTheInstanceAndWhatWasNotRead) {
  Scene blue;
  TargetController& before = blue.Live();
  TargetController& impacted = blue.LiveWith(1);
  const ControllerInstance instance = blue.InstanceOf(before), of_impacted = blue.InstanceOf(impacted);
  ASSERT_EQ(blue.Do(before, Reset(of_impacted)).status, 0);
  blue.EndWith(impacted);
  const SavedController saved = before.Save();
  EXPECT_EQ(saved.events_enabled & fabrics::kEventControllerReset, 0U) << "processes of before refuse it";
  Scene green;
  const auto restored = green.target.Restore(kSubsystem, saved, green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  TargetController& after = **restored;
  green.live.push_back(&after);
  EXPECT_EQ(green.InstanceOf(after), instance);
  EXPECT_EQ(green.Do(after, EventRequest(1)).result, kResetEvent);
  EXPECT_EQ(green.Log(after, /*removes=*/true), std::vector{RowOf(of_impacted, State::kSuccess)});
  TargetController& next = green.LiveWith(1);
  EXPECT_EQ(green.Do(after, EventRequest(2)).kind, Answer::Kind::kHeld);
  EXPECT_EQ(green.Do(after, Reset(green.InstanceOf(next))).status, 0);
  green.EndWith(next);
  EXPECT_EQ(green.heard.completed.size(), 1U) << "events are still wanted";
  EXPECT_EQ(green.Do(after, SetFeature(Feature::kAsyncEvents, fabrics::kEventAna)).status, 0);
  EXPECT_FALSE(after.Save().reset_events_enabled);
}

TEST(CrossReset, WhoseEndTheNextProcessCanNotSeeHasFailed) {
  Scene blue;
  TargetController& before = blue.Live();
  TargetController& impacted = blue.LiveWith(1);
  const ControllerInstance of_impacted = blue.InstanceOf(impacted);
  EXPECT_EQ(blue.Do(before, EventRequest(1)).kind, Answer::Kind::kHeld);
  ASSERT_EQ(blue.Do(before, Reset(of_impacted)).status, 0);
  const SavedController saved = before.Save();
  ASSERT_EQ(blue.heard.completed.size(), 1U) << "told by this process";
  EXPECT_TRUE(saved.event_requests.empty());
  Scene green;
  const auto restored = green.target.Restore(kSubsystem, saved, green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  green.live.push_back(*restored);
  EXPECT_EQ(green.Log(**restored), std::vector{RowOf(of_impacted, State::kFailed)});
  blue.EndWith(impacted);
  EXPECT_EQ(blue.Log(before)[0].state, State::kFailed) << "whatever becomes of it";
}

TEST(CrossReset, OneOfAProcessWithoutInstancesGetsItsFirst) {
  Scene blue;
  SavedController saved = blue.Live().Save();
  saved.uniquifier = 0;
  saved.random = 0;
  saved.reset_events_enabled = false;
  Scene green;
  const auto restored = green.target.Restore(kSubsystem, saved, green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  green.live.push_back(*restored);
  EXPECT_NE(green.InstanceOf(**restored).uniquifier, 0);
}

TEST(CrossReset, WhatNoControllerHasIsNotRestored) {
  Scene blue;
  const SavedController good = blue.Live().Save();
  const SavedReset reset{.controller_id = 9, .uniquifier = 3, .state = State::kSuccess};
  const std::vector<std::function<void(SavedController&)>> wrongs = {
      [](SavedController& saved) { saved.events_enabled |= fabrics::kEventControllerReset; },
      [](SavedController& saved) { saved.uniquifier = 0; },
      [](SavedController& saved) { saved.reset_event.pending = true; },
      [&](SavedController& saved) { saved.resets.assign(kResetsMax + 1, reset); },
      [&](SavedController& saved) {
        saved.resets = {{.controller_id = 0, .uniquifier = 3, .state = State::kSuccess}};
      },
      [&](SavedController& saved) {
        saved.resets = {{.controller_id = 9, .uniquifier = 0, .state = State::kSuccess}};
      },
      [&](SavedController& saved) {
        saved.resets = {{.controller_id = 9, .uniquifier = 3, .state = State::kInProgress}};
      },
      [&](SavedController& saved) {
        saved.resets = {{.controller_id = 9, .uniquifier = 3, .state = static_cast<State>(3)}};
      },
      [&](SavedController& saved) {
        saved.uniquifier = 0;
        saved.random = 0;
        saved.resets = {reset};
      }};
  Scene green;
  for (size_t i = 0; i < wrongs.size(); ++i) {
    SavedController saved = good;
    wrongs[i](saved);
    const auto restored = green.target.Restore(kSubsystem, saved, green.heard, green.now_ns);
    EXPECT_EQ(restored.error().code, ErrorCode::kInvalidArgument) << i;
  }
}

// ---- Any commands in any order

// What each host was told is compared with which queues are there, and nothing grows.
TEST(CrossReset, NoOrderOfCommandsLeadsToAnEndThatIsNone) {
  Scene scene;
  Random random(23);
  std::vector<TargetController*> alive;
  std::map<uint16_t, ControllerInstance> instances;  // of those that are there, whatever becomes of them
  size_t immediate = 0, successes = 0, refused = 0;
  const auto begin = [&] {
    TargetController& controller = scene.LiveWith(static_cast<uint16_t>(random.Below(3)));
    instances[controller.id()] = scene.InstanceOf(controller);
    alive.push_back(&controller);
  };
  for (int i = 0; i < 6; ++i) begin();
  for (int step = 0; step < 20'000; ++step) {
    TargetController& one = *alive[random.Below(alive.size())];
    TargetController& other = *alive[random.Below(alive.size())];
    const uint64_t what = random.Below(10);
    if (what < 4 && !one.ending()) {
      ControllerInstance meant = instances[other.id()];
      if (random.Chance(1, 8)) meant.random ^= 1;
      const Answer answer = scene.Do(one, Reset(meant));
      refused += answer.ok() ? 0 : 1;
      if (answer.ok() && answer.result == kResetIsOver) {
        ++immediate;
        for (uint16_t queue = 1; queue < 9; ++queue) ASSERT_FALSE(other.HasQueue(queue));
      }
      ASSERT_TRUE(!answer.ok() || other.ending());
    } else if (what < 7 && !one.ending()) {
      const auto log = scene.Log(one, random.Chance(1, 2));
      ASSERT_LE(log.size(), kResetsMax);
      for (const Row& row : log) {
        const auto found = instances.find(row.id);
        const bool is_there = found != instances.end() && found->second.uniquifier == row.uniquifier;
        ASSERT_EQ(row.state, is_there ? State::kInProgress : State::kSuccess);
        successes += is_there ? 0 : 1;
      }
    } else if (one.ending()) {
      const auto queue = static_cast<uint16_t>(random.Between(1, 2));
      if (one.HasQueue(queue)) {
        one.QueueEnded(queue);
      } else if (!one.HasQueue(1) && !one.HasQueue(2)) {
        instances.erase(one.id());
        std::erase(alive, &one);
        scene.End(one);
        begin();
      }
    }
    scene.heard.ended.clear();
  }
  EXPECT_GT(immediate, 100U);
  EXPECT_GT(successes, 100U);
  EXPECT_GT(refused, 100U);
  for (TargetController* const controller : alive) {
    for (uint16_t queue = 1; queue < 3; ++queue)
      if (controller->HasQueue(queue)) controller->QueueEnded(queue);
  }
}

}  // namespace
}  // namespace cleat::nvme::target::cross_reset_test
