// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/association.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/unit/nvme/host/association_scene.h"

namespace cleat::nvme::host::association_test {
namespace {

using fabrics::AnaState;
using fabrics::SubmissionEntry;

constexpr uint8_t kIdentify = 0x06;
constexpr uint8_t kKeepAlive = 0x18;
constexpr uint32_t kPropertyGet = 4;  // in the entry's byte 4, where others have the namespace
constexpr uint8_t kEventRequest = 0x0c;
constexpr uint32_t kAnaEvent = 0x0c0302;
constexpr uint32_t kNamespaceEvent = 0x040002;

bool IsKeepAlive(const SubmissionEntry& entry) {
  return entry.opcode == kKeepAlive;
}

std::optional<FakeAnswer> IfOpcode(const SubmissionEntry& entry, uint8_t opcode, uint32_t cdw10,
                                   FakeAnswer answer) {
  if (entry.opcode != opcode || (entry.cdw10 & 0xff) != cdw10) return std::nullopt;
  return answer;
}

TEST(Association, ComesToLifeWithTheNamespaceThatIsLookedFor) {
  Scene scene;
  scene.Begin();
  ASSERT_TRUE(scene.news.info) << scene.lost();
  const AssociationInfo& info = *scene.news.info;
  EXPECT_EQ(info.nsid, 5U);
  EXPECT_EQ(info.ids.uuid, fabrics::kTestUuid);
  EXPECT_EQ(info.space.blocks, 1U << 21);
  EXPECT_EQ(info.controller_id, 7);
  EXPECT_EQ(info.io_queues, 2U) << "the fewer of what is granted";
  EXPECT_EQ(info.queue_entries_max, 128U);
  EXPECT_EQ(info.fabrics.in_capsule_bytes, 8192U);
  EXPECT_EQ(info.kato_ms, 5000U);
  EXPECT_EQ(info.ana, AnaState::kOptimized);
  EXPECT_EQ(scene.target.event_requests.size(), kEventRequestsMax);
  EXPECT_EQ(scene.target.seen[0].cdw12, 5000U) << "KATO in Connect";
}

TEST(Association, TheKeepAliveTimeIsAsTheControllerRoundsIt) {
  AssociationConfig config = Config();
  config.kato_ms = 2500;
  Scene scene(config);
  scene.Begin();
  EXPECT_EQ(scene.news.info->kato_ms, 3000U);
}

TEST(Association, ANamespaceByNumberHasToBeWhatElseIsConfigured) {
  AssociationConfig config = Config();
  config.wanted.nsid = 1;
  Scene scene(config);
  scene.Begin();
  EXPECT_TRUE(scene.LostFor("namespace 1 is UUID")) << scene.lost();
  config.wanted = {.nsid = 5, .ids = {}};
  Scene other(config);
  other.Begin();
  EXPECT_TRUE(other.news.info) << other.lost();
}

TEST(Association, ANamespaceThatIsNotThereIsSaidToBe) {
  Scene scene;
  scene.target.nsid = 99;
  scene.Begin();
  EXPECT_TRUE(scene.LostFor("no namespace here is UUID 01020304-0506-0708-090a-0b0c0d0e0f10 (2 looked at"))
      << scene.lost();
  AssociationConfig config = Config();
  config.wanted = {.nsid = 5, .ids = {}};
  Scene empty(config);
  empty.target.space = fabrics::NamespacePage(0);
  empty.Begin();
  EXPECT_TRUE(empty.LostFor("namespace 5 is not there")) << empty.lost();
}

TEST(Association, TheSearchForANamespaceEnds) {
  Scene scene;
  scene.target.nsid = UINT32_MAX;
  scene.target.namespaces.clear();
  for (uint32_t i = 1; i <= 5000; ++i) scene.target.namespaces.push_back(i);
  scene.Begin();
  EXPECT_TRUE(scene.LostFor("none of the first 4096")) << scene.lost();
  Scene round;
  round.target.instead = [](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (entry.opcode != 0x06 || entry.cdw10 != 2) return std::nullopt;
    FakeAnswer answer{.data = std::vector<uint8_t>(kIdentifyBytes)};
    for (uint32_t i = 0; i < 1024; ++i) {
      const uint32_t nsid = 10 + i;
      std::memcpy(&answer.data[i * 4], &nsid, sizeof(nsid));
    }
    return answer;
  };
  round.Begin();
  EXPECT_TRUE(round.LostFor("is to be in order")) << "a list that begins anew: " << round.lost();
}

TEST(Association, ATargetThatRefusesIsQuoted) {
  Scene scene;
  scene.target.connect_result = 7 | 1U << 17;
  scene.Begin();
  EXPECT_TRUE(scene.LostFor("the target asks for authentication (DH-HMAC-CHAP), and no secret is configured"))
      << scene.lost();
  Scene refused;
  refused.target.instead = [](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (entry.opcode != 0x7f || entry.nsid != 1) return std::nullopt;
    return FakeAnswer{.type = 1, .code = 0x84, .data = {}};
  };
  refused.Begin();
  EXPECT_TRUE(refused.LostFor("does not let host")) << refused.lost();
  Scene identify;
  identify.target.instead = [](const SubmissionEntry& entry) {
    return IfOpcode(entry, 0x06, 1, {.code = 6, .data = {}});
  };
  identify.Begin();
  EXPECT_TRUE(identify.LostFor("Identify Controller: Internal Error (0/06h)")) << identify.lost();
}

TEST(Association, AControllerThatIsNeverReadyIsGivenUp) {
  Scene scene;
  scene.target.csts = 0;
  scene.Begin();
  scene.Pass(kSecondNs);
  EXPECT_FALSE(scene.news.lost);
  scene.Pass(2 * kSecondNs);
  EXPECT_TRUE(scene.LostFor("not ready 2000 ms after it was enabled")) << scene.lost();
}

TEST(Association, AControllerMayTakeItsTimeToGetReady) {
  Scene scene;
  scene.target.csts = 0;
  scene.Begin();
  scene.Pass(kSecondNs);
  scene.target.csts = 1;
  scene.Pass(kSecondNs);
  EXPECT_TRUE(scene.news.info) << scene.lost();
}

TEST(Association, AFatalStatusEndsIt) {
  Scene scene;
  scene.target.csts = 3;
  scene.Begin();
  EXPECT_TRUE(scene.LostFor("CSTS.CFS")) << scene.lost();
}

TEST(Association, AControllerThatIsAnotherIsRefused) {
  Scene scene;
  scene.target.connect_result = 8;
  scene.Begin();
  EXPECT_TRUE(scene.LostFor("CNTLID")) << scene.lost();
  Scene subsystem;
  subsystem.target.controller.PutText(768, "nqn.2024-01.com.example:b");
  subsystem.Begin();
  EXPECT_TRUE(subsystem.LostFor("is of subsystem nqn.2024-01.com.example:b")) << subsystem.lost();
}

TEST(Association, AnAnswerThatIsTooShortIsDamage) {
  Scene scene;
  scene.target.instead = [](const SubmissionEntry& entry) {
    return IfOpcode(entry, 0x06, 1, {.data = std::vector<uint8_t>(100)});
  };
  scene.Begin();
  EXPECT_TRUE(scene.LostFor("100 bytes came")) << scene.lost();
}

TEST(Association, EachCommandHasADeadline) {
  Scene scene;
  scene.target.mute = [](const SubmissionEntry& entry) { return entry.opcode == 0x09; };
  scene.Begin();
  scene.Pass(9 * kSecondNs);
  EXPECT_FALSE(scene.news.lost);
  scene.Pass(2 * kSecondNs);
  EXPECT_TRUE(scene.LostFor("has not answered Set Features (Number of Queues) in 10000 ms")) << scene.lost();
  scene.target.mute = {};
  scene.target.aborted.reset();
  scene.target.Serve();
  EXPECT_FALSE(scene.news.info) << "an answer that comes late means nothing";
}

TEST(Association, ATransportThatDoesNotConnectIsGivenUp) {
  Scene scene;
  scene.association.Start(scene.target, scene.now_ns);
  scene.Pass(11 * kSecondNs);
  EXPECT_TRUE(scene.LostFor("has not connected")) << scene.lost();
}

TEST(Association, KeepAliveIsSentAtHalfItsTimeAndMissed) {
  Scene scene;
  scene.Begin();
  scene.Pass(10 * kSecondNs);
  EXPECT_EQ(scene.target.Count(kKeepAlive), 4U);
  EXPECT_EQ(scene.association.keep_alives_answered(), 4U);
  scene.target.mute = IsKeepAlive;
  scene.Pass(4900 * 1'000'000ULL);
  EXPECT_FALSE(scene.news.lost) << scene.lost();
  scene.Pass(200 * 1'000'000ULL);
  EXPECT_TRUE(scene.LostFor("Keep Alive")) << "within KATO of the last that was answered: " << scene.lost();
  EXPECT_EQ(scene.association.keep_alives_answered(), 4U);
}

// The answer lies in the socket meanwhile, which is read after the Tick.
TEST(Association, AHostThatStoodStillReadsTheAnswerBeforeItGivesUp) {
  Scene scene;
  scene.Begin();
  for (int round = 0; round < 3; ++round) {
    scene.target.mute = IsKeepAlive;
    scene.Pass(2500 * 1'000'000ULL);
    ASSERT_EQ(scene.target.Count(kKeepAlive), 1U + 2 * round);
    scene.StandStill(3600 * kSecondNs);
    ASSERT_FALSE(scene.news.lost) << scene.lost();
    scene.target.mute = {};
    scene.target.Serve();
    scene.Pass(Association::kTickNs);
    ASSERT_EQ(scene.target.Count(kKeepAlive), 2U + 2 * round) << "the target has heard nothing for an hour";
  }
  Scene setup;
  setup.target.mute = [](const SubmissionEntry& entry) { return entry.opcode == 0x09; };
  setup.Begin();
  setup.StandStill(3600 * kSecondNs);
  ASSERT_FALSE(setup.news.lost) << setup.lost();
  setup.target.mute = {};
  setup.target.Serve();
  EXPECT_TRUE(setup.news.info) << setup.lost();
}

TEST(Association, ASilentTargetIsFoundOutByAHostThatStandsStillOverAndOver) {
  Scene scene;
  scene.Begin();
  scene.target.mute = IsKeepAlive;
  int ticks = 0;
  for (; ticks < 100 && !scene.news.lost; ++ticks) scene.StandStill(60 * kSecondNs);
  EXPECT_TRUE(scene.LostFor("Keep Alive")) << scene.lost();
  EXPECT_GE(ticks, 12) << "half of the keep alive time, as its Ticks count";
}

TEST(Association, ARefusedKeepAliveEndsIt) {
  Scene scene;
  scene.Begin();
  scene.target.instead = [](const SubmissionEntry& entry) {
    return IfOpcode(entry, 0x18, 0, {.code = 0x0c, .data = {}});
  };
  scene.Pass(3 * kSecondNs);
  EXPECT_TRUE(scene.LostFor("Keep Alive: Command Sequence Error")) << scene.lost();
}

TEST(Association, AnAnaChangeIsFollowed) {
  Scene scene;
  scene.Begin();
  scene.target.ana_state = 3;
  ASSERT_TRUE(scene.target.Tell(kAnaEvent));
  scene.Pass(kSecondNs);
  EXPECT_EQ(scene.news.changed, kChangedAna);
  EXPECT_EQ(scene.news.info->ana, AnaState::kInaccessible);
  EXPECT_EQ(scene.target.event_requests.size(), kEventRequestsMax) << "the request is renewed";
}

TEST(Association, ADamagedAnaLogIsReadAgainAndThenCountsAsInaccessible) {
  Scene scene;
  scene.Begin();
  int damaged = 1;
  scene.target.instead = [&](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (damaged == 0 || entry.opcode != 0x02) return std::nullopt;
    --damaged;
    FakeAnswer answer{.data = scene.target.AnaLog()};
    answer.data[16] = 2;  // group 2 twice
    return answer;
  };
  scene.target.Tell(kAnaEvent);
  scene.Pass(2 * kSecondNs);
  EXPECT_EQ(scene.news.changes, 0U) << "once says nothing";
  damaged = 100;
  scene.target.Tell(kAnaEvent);
  scene.Pass(2 * kSecondNs);
  EXPECT_FALSE(scene.news.lost) << scene.lost();
  EXPECT_EQ(scene.news.info->ana, AnaState::kInaccessible);
  EXPECT_NE(scene.news.info->ana_problem.find("group 2 twice"), std::string::npos)
      << scene.news.info->ana_problem;
  damaged = 0;
  scene.Pass(6 * kSecondNs);
  EXPECT_EQ(scene.news.info->ana, AnaState::kOptimized) << "found out without an event";
  EXPECT_EQ(scene.news.info->ana_problem, "");
}

TEST(Association, AnEventRequestThatFailedIsSentAgainLater) {
  Scene scene;
  scene.Begin();
  ASSERT_TRUE(scene.target.FailEventRequest({.code = 0x06, .data = {}}));
  const uint64_t before = scene.target.Count(kEventRequest);
  scene.Pass(4 * kSecondNs);
  EXPECT_EQ(scene.target.Count(kEventRequest), before) << "after a pause";
  scene.Pass(2 * kSecondNs);
  EXPECT_EQ(scene.target.Count(kEventRequest), before + 1);
  EXPECT_EQ(scene.target.event_requests.size(), kEventRequestsMax);
}

TEST(Association, AnEventRequestThatTheControllerHasNoRoomForIsNot) {
  for (const FakeAnswer& answer : {FakeAnswer{.type = 1, .code = 0x05, .data = {}},
                                   FakeAnswer{.code = 0x06, .do_not_retry = true, .data = {}}}) {
    Scene scene;
    scene.Begin();
    const uint64_t identified = scene.target.Count(kIdentify);
    ASSERT_TRUE(scene.target.FailEventRequest(answer));
    scene.Pass(3600 * kSecondNs);
    EXPECT_EQ(scene.target.Count(kEventRequest), kEventRequestsMax);
    EXPECT_EQ(scene.target.Count(kIdentify), identified)
        << "the others tell: nothing is read without being told";
  }
}

TEST(Association, AControllerThatCantTellIsAskedNowAndThen) {
  Scene scene;
  scene.Begin();
  while (scene.target.FailEventRequest({.type = 1, .code = 0x05, .data = {}})) {
  }
  scene.target.space = fabrics::NamespacePage(1 << 22);
  scene.target.ana_state = 3;
  const uint64_t before = scene.target.seen.size();
  scene.Pass(31 * kSecondNs);
  EXPECT_EQ(scene.news.changed, kChangedSize | kChangedAna);
  EXPECT_EQ(scene.news.info->ana, AnaState::kInaccessible);
  scene.target.ana_state = 1;
  scene.Pass(31 * kSecondNs);
  EXPECT_EQ(scene.news.info->ana, AnaState::kOptimized);
  scene.Pass(600 * kSecondNs);
  EXPECT_LE(scene.target.seen.size() - before, 400U) << "at a bounded rate";
  EXPECT_FALSE(scene.news.lost) << scene.lost();
}

TEST(Association, AResizeAndARemovalAreToldAndTheReturn) {
  Scene scene;
  scene.Begin();
  scene.target.space = fabrics::NamespacePage(1 << 22);
  scene.target.Tell(kNamespaceEvent);
  scene.Pass(kSecondNs);
  EXPECT_EQ(std::exchange(scene.news.changed, 0), kChangedSize);
  EXPECT_EQ(scene.news.info->space.blocks, 1U << 22);
  scene.target.space = fabrics::Page();
  scene.target.descriptors = fabrics::Page();
  scene.target.Tell(kNamespaceEvent);
  scene.Pass(kSecondNs);
  EXPECT_EQ(std::exchange(scene.news.changed, 0), kChangedPresence);
  EXPECT_FALSE(scene.news.info->present);
  EXPECT_EQ(scene.news.info->space.blocks, 1U << 22);
  scene.target.space = fabrics::NamespacePage(1 << 22);
  scene.target.descriptors = fabrics::DescriptorsPage();
  scene.target.Tell(kNamespaceEvent);
  scene.Pass(kSecondNs);
  EXPECT_TRUE(scene.news.info->present);
}

// The namespace may have been gone and be back: what hosts had registered there is lost then.
TEST(Association, ANamespaceThatIsAsItWasWhenItIsReadAgainIsToldOf) {
  Scene scene;
  scene.Begin();
  scene.target.Tell(kNamespaceEvent);
  scene.Pass(kSecondNs);
  EXPECT_EQ(scene.news.readings, 1U);
  EXPECT_EQ(scene.news.changes, 0U);
}

TEST(Association, ARecheckIsToldThoughNothingHasChanged) {
  Scene scene;
  scene.Begin();
  scene.association.Recheck();
  scene.Pass(kSecondNs);
  EXPECT_EQ(std::exchange(scene.news.changed, 0), kLookedAgain);
  EXPECT_EQ(scene.news.changes, 1U);
  scene.Pass(kSecondNs);
  EXPECT_EQ(scene.news.changes, 1U);

  // One that is asked for meanwhile is not done by that which is under way.
  scene.association.Recheck();
  scene.StandStill(Association::kTickNs);
  scene.association.Recheck();
  scene.target.Serve();
  EXPECT_EQ(scene.news.changes, 2U);
  scene.Pass(kSecondNs);
  EXPECT_EQ(scene.news.changes, 3U);
}

TEST(Association, AnotherNamespaceInItsPlaceEndsIt) {
  AssociationConfig config = Config();
  config.wanted = {.nsid = 5, .ids = {}};
  Scene scene(config);
  scene.Begin();
  fabrics::Uuid other = fabrics::kTestUuid;
  other[0] = 99;
  scene.target.descriptors = fabrics::DescriptorsPage(other);
  scene.target.Tell(kNamespaceEvent);
  scene.Pass(kSecondNs);
  EXPECT_TRUE(scene.LostFor("it is another namespace")) << scene.lost();
}

TEST(Association, AnIdentifierThatIsLearnedLateOrLeftOutIsNoOtherNamespace) {
  AssociationConfig config = Config();
  config.wanted = {.nsid = 5, .ids = {}};
  Scene scene(config);
  const fabrics::Page with_uuid = scene.target.descriptors;
  scene.target.descriptors = fabrics::Page();
  scene.Begin();
  ASSERT_TRUE(scene.news.info) << scene.lost();
  ASSERT_FALSE(scene.association.info().ids.uuid);
  for (const fabrics::Page& descriptors : {with_uuid, fabrics::Page(), with_uuid}) {
    scene.target.descriptors = descriptors;
    scene.target.Tell(kNamespaceEvent);
    scene.Pass(kSecondNs);
    ASSERT_FALSE(scene.news.lost) << scene.lost();
    EXPECT_EQ(scene.association.info().ids.uuid, fabrics::kTestUuid) << "what was known stays known";
  }
  fabrics::Uuid other = fabrics::kTestUuid;
  other[0] = 99;
  scene.target.descriptors = fabrics::DescriptorsPage(other);
  scene.target.Tell(kNamespaceEvent);
  scene.Pass(kSecondNs);
  EXPECT_TRUE(scene.LostFor("it is another namespace")) << scene.lost();
}

TEST(Association, ANamespaceThatIsFormattedAnewEndsIt) {
  Scene scene;
  scene.Begin();
  scene.target.space.Put<uint32_t>(128, 12U << 16);
  scene.target.Tell(kNamespaceEvent);
  scene.Pass(kSecondNs);
  EXPECT_TRUE(scene.LostFor("formatted anew")) << scene.lost();
}

TEST(Association, AStormOfEventsCostsABoundedAmount) {
  Scene scene;
  scene.Begin();
  const uint64_t before = scene.target.seen.size();
  for (int tick = 0; tick < 100; ++tick) {
    while (scene.target.Tell(kNamespaceEvent)) {
    }
    scene.Pass(Association::kTickNs);
  }
  EXPECT_FALSE(scene.news.lost) << scene.lost();
  EXPECT_LE(scene.association.events_seen(), 11U * (16 + kEventRequestsMax));
  EXPECT_GE(scene.association.events_seen(), 100U) << "they are listened to";
  EXPECT_LE(scene.target.seen.size() - before, 1000U);
}

TEST(Association, AnOrderlyEndTellsTheController) {
  Scene scene;
  scene.Begin();
  scene.association.End(true);
  EXPECT_FALSE(scene.news.gone);
  scene.target.Serve();
  EXPECT_TRUE(scene.news.gone);
  EXPECT_FALSE(scene.news.lost);
  EXPECT_EQ(scene.target.seen[scene.target.seen.size() - 2].cdw12 & 0xc000, 0x4000U);
}

TEST(Association, AnEndDoesNotWaitForAControllerForever) {
  Scene scene;
  scene.Begin();
  scene.target.mute = [](const SubmissionEntry&) { return true; };
  scene.association.End(true);
  scene.Pass(Association::kShutdownTimeoutNs + Association::kTickNs);
  EXPECT_TRUE(scene.news.gone);
  EXPECT_FALSE(scene.news.lost);
}

TEST(Association, AnEndDoesNotWaitForAControllerThatHasFailed) {
  Scene scene;
  scene.Begin();
  scene.target.instead = [](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (entry.opcode != kFabrics || entry.nsid != kPropertyGet) return std::nullopt;
    return FakeAnswer{.result = 3, .data = {}};  // CSTS: ready and fatal
  };
  scene.association.End(true);
  scene.target.Serve();
  EXPECT_TRUE(scene.news.gone) << "at once";
  EXPECT_FALSE(scene.news.lost);
}

TEST(Association, ABrokenQueueIsLostOnce) {
  Scene scene;
  scene.Begin();
  scene.target.Abort({ErrorCode::kUnavailable, "subsystems/a at 10.0.0.1:4420: reset by peer"});
  EXPECT_TRUE(scene.LostFor("reset by peer"));
  scene.association.Break({ErrorCode::kUnavailable, "again"});
  scene.association.End(true);
  scene.Pass(kSecondNs);
}

// Whatever a target answers, the association lives on or ends with a reason.
TEST(Association, AnyAnswersAreTakenOrEndIt) {
  uint64_t alive = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    Random random(seed);
    Scene scene;
    scene.target.instead = [&](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
      if (!random.Chance(1, 12)) return std::nullopt;
      if (random.Chance(1, 3))
        return FakeAnswer{.type = static_cast<uint8_t>(random.Below(4)),
                          .code = static_cast<uint8_t>(random.Next()),
                          .data = {}};
      FakeAnswer answer{.result = random.Next(),
                        .data = std::vector<uint8_t>(random.Chance(1, 4) ? random.Below(5000) : 4096)};
      if (entry.opcode == 0x02 && random.Chance(3, 4)) answer.data = scene.target.AnaLog();
      for (int i = 0; i < 20 && !answer.data.empty(); ++i)
        answer.data[random.Below(answer.data.size())] = static_cast<uint8_t>(random.Next());
      return answer;
    };
    scene.Begin();
    for (int i = 0; i < 30; ++i) {
      if (random.Chance(1, 3))
        scene.target.Tell(static_cast<uint32_t>(random.Chance(1, 2) ? kNamespaceEvent : random.Next()));
      scene.Pass(2 * Association::kTickNs);
    }
    if (!scene.news.lost) ++alive;
    ASSERT_EQ(scene.news.lost.has_value(), scene.news.gone);
    ASSERT_TRUE(scene.news.info || scene.news.lost || scene.target.seen.size() > 2);
  }
  EXPECT_GT(alive, 0U);
}

}  // namespace
}  // namespace cleat::nvme::host::association_test
