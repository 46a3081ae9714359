// SPDX-License-Identifier: Apache-2.0
// A discovery service's log that is watched: it is read anew when the service tells of a change.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/random.h"
#include "nvme/host/discovery.h"
#include "tests/unit/nvme/host/discovery_scene.h"
#include "tests/unit/nvme/host/fake_target.h"

namespace cleat::nvme::host::discovery_watch_test {
namespace {

using discovery_scene::kEventRequest;
using discovery_scene::kGetLogPage;
using discovery_scene::kKatoMs;
using discovery_scene::kKeepAlive;
using discovery_scene::kLogChanged;
using discovery_scene::kRetainEvent;
using discovery_scene::kSecondNs;
using discovery_scene::kSetFeatures;
using discovery_scene::LogOf;
using discovery_scene::Scene;
using fabrics::SubmissionEntry;

// The controller says that it tells of changes.
class WatchScene final : public Scene {
 public:
  explicit WatchScene(const DiscoveryConfig& config = WatchConfig()) : Scene(config) {
    target.controller.Put<uint32_t>(92, 1U << 31);
  }
  static DiscoveryConfig WatchConfig() {
    DiscoveryConfig config = ConfigOf();
    config.kato_ms = kKatoMs;
    return config;
  }
  void Change(uint64_t generation, uint64_t records) {
    log = LogOf(generation, records);
    EXPECT_TRUE(target.Tell(kLogChanged));
  }
  // As many ticks as a reading anew may wait, and one more.
  void PassSpacing() {
    for (uint64_t at = 0; at <= Discovery::kRefreshSpacingNs; at += Discovery::kTickNs)
      Pass(Discovery::kTickNs);
  }
  void PassFor(uint64_t time_ns) {
    for (uint64_t at = 0; at < time_ns && !result; at += Discovery::kTickNs) Pass(Discovery::kTickNs);
  }
  uint64_t LogReads() const { return target.Count(kGetLogPage); }
};

TEST(DiscoveryWatch, TheLogIsReadAnewWhenTheServiceTellsOfAChange) {
  WatchScene scene;
  scene.Run();
  ASSERT_EQ(scene.logs.size(), 1U) << scene.text();
  EXPECT_EQ(scene.logs[0].records.size(), 2U);
  EXPECT_EQ(scene.target.seen.front().cdw12, kKatoMs) << "the association lives on";
  const auto feature = std::ranges::find(scene.target.seen, kSetFeatures, &SubmissionEntry::opcode);
  ASSERT_NE(feature, scene.target.seen.end());
  EXPECT_EQ(feature->cdw10 & 0xff, 0x0bU);
  EXPECT_EQ(feature->cdw11, 1U << 31);
  scene.PassSpacing();
  const uint64_t reads = scene.LogReads();
  scene.Change(2, 3);
  scene.Pass(Discovery::kTickNs);
  ASSERT_EQ(scene.logs.size(), 2U) << scene.text();
  EXPECT_EQ(scene.logs[1].records.size(), 3U);
  EXPECT_GT(scene.LogReads(), reads);
  EXPECT_EQ(scene.target.event_requests.size(), 1U) << "the next one";
  EXPECT_FALSE(scene.result) << scene.text();
}

// The request is there before the log is read, and only the last reading lets the controller tell again: so nothing is missed.
TEST(DiscoveryWatch, TheEventIsKeptUntilTheWholeLogHasBeenRead) {
  for (const uint64_t records : {0U, 2U, 9U}) {
    WatchScene scene;
    scene.log = LogOf(1, records);
    bool is_asked = false;
    scene.before_piece = [&] { is_asked |= scene.target.event_requests.empty(); };
    scene.Run();
    ASSERT_EQ(scene.logs.size(), 1U) << scene.text();
    EXPECT_FALSE(is_asked) << "the log is read without an event request";
    std::vector<SubmissionEntry> reads;
    std::ranges::copy_if(scene.target.seen, std::back_inserter(reads),
                         [](const SubmissionEntry& entry) { return entry.opcode == kGetLogPage; });
    ASSERT_GE(reads.size(), 2U);
    for (size_t i = 0; i < reads.size(); ++i)
      EXPECT_EQ((reads[i].cdw10 & kRetainEvent) != 0, i + 1 < reads.size()) << records << ", " << i;
  }
}

TEST(DiscoveryWatch, AChangeWhileTheLogIsReadIsInWhatIsSeen) {
  WatchScene scene;
  scene.Run();
  scene.PassSpacing();
  int pieces = 0;
  scene.before_piece = [&] {
    if (++pieces == 2) scene.log = LogOf(3, 5);  // of a log of generation 2
  };
  scene.Change(2, 3);
  scene.Pass(Discovery::kTickNs);
  ASSERT_EQ(scene.logs.size(), 2U) << scene.text();
  EXPECT_EQ(scene.logs[1].records.size(), 5U);
}

TEST(DiscoveryWatch, AnEventWhileTheLogIsReadHasItReadOnceMore) {
  WatchScene scene;
  scene.Run();
  scene.PassSpacing();
  scene.Change(2, 3);
  bool is_told = false;
  scene.before_piece = [&] {
    if (!std::exchange(is_told, true)) scene.target.Tell(kLogChanged);
  };
  scene.Pass(Discovery::kTickNs);
  const uint64_t reads = scene.LogReads();
  scene.log = LogOf(3, 4);
  scene.PassSpacing();
  EXPECT_GT(scene.LogReads(), reads);
  EXPECT_EQ(scene.logs.back().records.size(), 4U);
}

TEST(DiscoveryWatch, AnotherGenerationOfTheSameRecordsIsNoChange) {
  WatchScene scene;
  scene.Run();
  scene.PassSpacing();
  const uint64_t reads = scene.LogReads();
  scene.Change(2, 2);
  scene.PassSpacing();
  EXPECT_GT(scene.LogReads(), reads);
  EXPECT_EQ(scene.logs.size(), 1U);
}

TEST(DiscoveryWatch, EventsOfOtherKindsAreReadOver) {
  WatchScene scene;
  scene.Run();
  scene.PassSpacing();
  const uint64_t reads = scene.LogReads();
  for (const uint32_t event : {0x00040002U, 0x00004207U, 0x00700f02U, 0U, 0xffffffffU}) {
    EXPECT_TRUE(scene.target.Tell(event)) << event;
    scene.PassSpacing();
  }
  EXPECT_EQ(scene.LogReads(), reads);
  EXPECT_FALSE(scene.result) << scene.text();
}

TEST(DiscoveryWatch, EventsWithoutEndAreReadAtABoundedRate) {
  constexpr uint64_t kSeconds = 10;
  WatchScene scene;
  scene.Run();
  const uint64_t reads = scene.LogReads();
  const uint64_t requests = scene.target.Count(kEventRequest);
  uint64_t generation = 1;
  for (uint64_t at = 0; at < kSeconds * kSecondNs; at += Discovery::kTickNs) {
    ++generation;
    scene.log = LogOf(generation, 2 + generation % 2);
    while (scene.target.Tell(kLogChanged)) {
    }
    scene.Pass(Discovery::kTickNs);
  }
  constexpr uint64_t kReadings = kSeconds * kSecondNs / Discovery::kRefreshSpacingNs;
  constexpr uint64_t kPieces = 3;  // its header, the rest, and the counter again
  EXPECT_LE(scene.LogReads() - reads, kReadings * kPieces);
  EXPECT_GT(scene.LogReads() - reads, kReadings);
  EXPECT_LE(scene.target.Count(kEventRequest) - requests, kSeconds * kSecondNs / Discovery::kTickNs);
  EXPECT_FALSE(scene.result) << scene.text();
}

TEST(DiscoveryWatch, ALogThatNeverStandsStillEndsIt) {
  WatchScene scene;
  scene.Run();
  scene.PassSpacing();
  scene.Change(2, 3);
  uint64_t generation = 2;
  scene.before_piece = [&] { scene.log = LogOf(++generation, 9); };
  scene.Pass(Discovery::kTickNs);
  EXPECT_TRUE(scene.Fails(ErrorCode::kAborted, "in each of 5 tries")) << scene.text();
}

TEST(DiscoveryWatch, AServiceWithoutTheEventGivesItsLogAndSaysSo) {
  WatchScene scene;
  scene.target.controller.Put<uint32_t>(92, 1U << 8);
  scene.Run();
  EXPECT_EQ(scene.logs.size(), 1U);
  EXPECT_TRUE(scene.Fails(ErrorCode::kUnimplemented, "does not tell of changes: its controller has no event"))
      << scene.text();
  EXPECT_EQ(scene.target.Count(kEventRequest), 0U);
}

TEST(DiscoveryWatch, AServiceThatRefusesToTellGivesItsLogAndSaysSo) {
  for (const uint8_t opcode : {kSetFeatures, kEventRequest}) {
    WatchScene scene;
    const auto usual = scene.target.instead;
    scene.target.instead = [&](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
      if (entry.opcode == kSetFeatures && opcode == kSetFeatures)
        return FakeAnswer{.code = 2, .do_not_retry = true, .data = {}};
      if (entry.opcode == kGetLogPage && opcode == kEventRequest)
        scene.target.FailEventRequest({.type = 1, .code = 5, .data = {}});
      return usual(entry);
    };
    scene.Run();
    EXPECT_EQ(scene.logs.size(), 1U) << int{opcode};
    EXPECT_TRUE(scene.Fails(ErrorCode::kUnimplemented, opcode == kSetFeatures
                                                           ? "tell of changes: Set Features"
                                                           : "tell of changes: Asynchronous Event Request"))
        << scene.text();
  }
}

TEST(DiscoveryWatch, AnEventRequestThatFailsIsSentAgainSoManyTimes) {
  WatchScene scene;
  scene.Run();
  for (uint32_t failed = 1; failed < Discovery::kEventFailuresMax; ++failed) {
    ASSERT_TRUE(scene.target.FailEventRequest({.code = 6, .data = {}})) << failed;
    scene.Pass(Discovery::kTickNs);
    EXPECT_EQ(scene.target.event_requests.size(), 0U) << "not before its time";
    scene.PassFor(Discovery::kEventRetryNs);
    ASSERT_FALSE(scene.result) << scene.text();
  }
  scene.Change(2, 3);  // one that succeeds: the count begins anew
  scene.PassSpacing();
  EXPECT_EQ(scene.logs.size(), 2U);
  for (uint32_t failed = 0; failed < Discovery::kEventFailuresMax; ++failed) {
    ASSERT_FALSE(scene.result) << scene.text();
    ASSERT_TRUE(scene.target.FailEventRequest({.code = 6, .data = {}})) << failed;
    scene.PassFor(Discovery::kEventRetryNs);
  }
  EXPECT_TRUE(scene.Fails(ErrorCode::kUnimplemented, "Asynchronous Event Request")) << scene.text();
}

TEST(DiscoveryWatch, TheAssociationIsKeptAliveUntilTheTargetFallsSilent) {
  WatchScene scene;
  scene.Run();
  scene.PassFor(10 * kSecondNs);
  EXPECT_FALSE(scene.result) << scene.text();
  EXPECT_GE(scene.target.Count(kKeepAlive), 8U);
  EXPECT_LE(scene.target.Count(kKeepAlive), 10U);
  scene.target.mute = [](const SubmissionEntry&) { return true; };
  scene.PassFor(kKatoMs * 1'000'000ULL + Discovery::kTickNs);
  EXPECT_TRUE(scene.Fails(ErrorCode::kDeadlineExceeded, "Keep Alive in 1000 ms")) << scene.text();
}

TEST(DiscoveryWatch, AReadingAnewHasSoMuchTimeAndNoMore) {
  WatchScene scene;
  scene.Run();
  scene.PassFor(10 * kSecondNs);
  scene.Change(2, 3);
  scene.target.mute = [](const SubmissionEntry& entry) { return entry.opcode == kGetLogPage; };
  scene.PassFor(kSecondNs);
  EXPECT_FALSE(scene.result) << scene.text();
  scene.PassFor(2 * Discovery::kTickNs);
  EXPECT_TRUE(scene.Fails(ErrorCode::kDeadlineExceeded, "Get Log Page")) << scene.text();
}

TEST(DiscoveryWatch, TheTimeThatIsLeftForTheFirstReadingIsNotThatOfTheLater) {
  DiscoveryConfig config = WatchScene::WatchConfig();
  config.first_timeout_ns = 2 * Discovery::kTickNs;
  const auto mute = [](const SubmissionEntry& entry) { return entry.opcode == kGetLogPage; };
  WatchScene late(config);
  late.target.mute = mute;
  late.Run();
  late.PassFor(Discovery::kTickNs);
  EXPECT_FALSE(late.result) << late.text();
  late.PassFor(Discovery::kTickNs);
  EXPECT_TRUE(late.Fails(ErrorCode::kDeadlineExceeded, "Get Log Page")) << late.text();
  WatchScene scene(config);
  scene.Run();
  scene.PassSpacing();
  scene.target.mute = mute;
  scene.Change(2, 3);
  scene.PassFor(kSecondNs);
  EXPECT_FALSE(scene.result) << scene.text();
  scene.PassFor(2 * Discovery::kTickNs);
  EXPECT_TRUE(scene.Fails(ErrorCode::kDeadlineExceeded, "in 1000 ms")) << scene.text();
}

TEST(DiscoveryWatch, ALostConnectionAndGivingUpAreTheReason) {
  WatchScene lost;
  lost.Run();
  lost.target.Abort({ErrorCode::kUnavailable, "the service: closed"});
  EXPECT_TRUE(lost.Fails(ErrorCode::kUnavailable, "closed")) << lost.text();
  WatchScene given_up;
  given_up.Run();
  given_up.discovery.GiveUp();
  EXPECT_TRUE(given_up.Fails(ErrorCode::kCancelled, "given up")) << given_up.text();
}

TEST(DiscoveryWatch, AnyAnswersAndEventsEndOrGoOn) {
  cleat::Random random(12);
  uint64_t ends = 0;
  constexpr uint64_t kRuns = 300;
  for (uint64_t run = 0; run < kRuns; ++run) {
    WatchScene scene;
    const auto usual = scene.target.instead;
    scene.target.instead = [&](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
      auto answer = usual(entry);
      if (!random.Chance(1, 40)) return answer;
      if (!answer) answer = FakeAnswer{.result = random.Next(), .data = {}};
      if (random.Chance(1, 3)) answer->code = static_cast<uint8_t>(random.Next());
      if (random.Chance(1, 3)) answer->data.resize(random.Below(answer->data.size() + 1));
      return answer;
    };
    scene.Run();
    for (int tick = 0; tick < 200 && !scene.result; ++tick) {
      if (random.Chance(1, 4)) scene.log = LogOf(random.Below(9), random.Below(9));
      if (random.Chance(1, 4))
        scene.target.Tell(random.Chance(1, 2) ? kLogChanged : static_cast<uint32_t>(random.Next()));
      if (random.Chance(1, 40))
        scene.target.FailEventRequest({.code = static_cast<uint8_t>(random.Next()), .data = {}});
      scene.Pass(Discovery::kTickNs);
    }
    ends += scene.result ? 1 : 0;
    if (!scene.result) scene.discovery.GiveUp();
    ASSERT_TRUE(scene.result && !*scene.result) << "run " << run;
  }
  EXPECT_GT(ends, kRuns / 5);
  EXPECT_LT(ends, kRuns);
}

}  // namespace
}  // namespace cleat::nvme::host::discovery_watch_test
