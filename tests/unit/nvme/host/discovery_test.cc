// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/discovery.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/unit/nvme/auth/controller.h"
#include "tests/unit/nvme/host/fake_target.h"

namespace cleat::nvme::host::discovery_test {
namespace {

using fabrics::DiscoveryLog;
using fabrics::SubmissionEntry;

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint8_t kGetLogPage = 0x02;
constexpr uint8_t kFabrics = 0x7f;
constexpr uint8_t kSetFeatures = 0x09;
constexpr uint8_t kEventRequest = 0x0c;
constexpr uint8_t kKeepAlive = 0x18;
constexpr uint32_t kRetainEvent = 1U << 15;
constexpr uint32_t kKatoMs = 2000;
constexpr uint32_t kLogChanged = 0x0070f002;  // a notice, F0h, log page 70h

std::vector<uint8_t> LogOf(uint64_t generation, uint64_t records) {
  std::vector<uint8_t> log(1024 * (records + 1));
  std::memcpy(log.data(), &generation, sizeof(generation));
  std::memcpy(log.data() + 8, &records, sizeof(records));
  for (size_t at = 1024; at < log.size(); at += 1024) {
    log[at] = 3;
    log[at + 1] = 1;
    log[at + 2] = 2;
    std::memcpy(&log[at + 32], "4420", 4);
    std::memcpy(&log[at + 256], "nqn.2024-01.com.example:a", 25);
    std::memcpy(&log[at + 512], "10.0.0.1", 8);
  }
  return log;
}

// A reading against the fake target, which has `log` if it is asked for it.
class Scene : public DiscoveryOwner {
 public:
  virtual ~Scene() = default;
  explicit Scene(const DiscoveryConfig& config = ConfigOf()) : discovery(config, *this) {
    target.owner = &discovery;
    target.instead = [this](const SubmissionEntry& entry) { return Answer(entry); };
    discovery.Start(target, now_ns);
  }
  void Run() {
    discovery.Connected();
    target.Serve();
  }
  void Pass(uint64_t time_ns) {
    now_ns += time_ns;
    discovery.Tick(now_ns);
    target.Serve();
  }
  bool Fails(ErrorCode code, std::string_view part) const {
    return result && !*result && result->error().code == code &&
           result->error().message.starts_with("the service: ") &&
           result->error().message.find(part) != std::string::npos;
  }
  std::string text() const {
    if (!result) return "no result";
    return *result ? "a log" : result->error().message;
  }

  void Seen(const DiscoveryLog& log_read) override {
    EXPECT_FALSE(result) << "told after the end";
    logs.push_back(log_read);
  }
  void Discovered(Result<DiscoveryLog> read) override {
    EXPECT_FALSE(result) << "told twice";
    result.emplace(std::move(read));
  }

  FakeTarget target;
  std::vector<uint8_t> log = LogOf(1, 2);
  std::function<void()> before_piece = [] {};
  uint64_t now_ns = 5;
  std::vector<DiscoveryLog> logs;  // that were seen
  std::optional<Result<DiscoveryLog>> result;
  Discovery discovery;

  static DiscoveryConfig ConfigOf() {
    return {
        .who = "the service", .host = fabrics::HostIdentityOfUuid({1}), .chap = {}, .timeout_ns = kSecondNs};
  }

 private:
  std::optional<FakeAnswer> Answer(const SubmissionEntry& entry) {
    if (entry.opcode != kGetLogPage) return std::nullopt;
    EXPECT_EQ(entry.cdw10 & 0xff, 0x70U);
    before_piece();
    const uint64_t bytes = ((entry.cdw10 >> 16) + 1) * 4;
    EXPECT_LE(bytes, kDiscoveryPieceBytes);
    FakeAnswer answer{.data = std::vector<uint8_t>(bytes)};
    for (size_t i = 0; i < bytes && entry.cdw12 + i < log.size(); ++i) answer.data[i] = log[entry.cdw12 + i];
    return answer;
  }
};

TEST(Discovery, TheLogIsReadAndTheControllerToldThatTheHostLeaves) {
  Scene scene;
  scene.Run();
  ASSERT_TRUE(scene.result && *scene.result) << scene.text();
  EXPECT_EQ((*scene.result)->records.size(), 2U);
  const SubmissionEntry& connect = scene.target.seen.front();
  EXPECT_EQ(connect.nsid, 1U);
  EXPECT_EQ(connect.cdw12, 0U) << "no keep alive";
  const SubmissionEntry& last = scene.target.seen.back();
  EXPECT_EQ(last.opcode, kFabrics);
  EXPECT_EQ(last.cdw12 & 0xc000, 0x4000U) << "a normal shutdown";
  EXPECT_EQ(scene.target.Count(0x06), 0U) << "nothing beside is asked";
  EXPECT_EQ(scene.target.event_requests.size(), 0U);
}

TEST(Discovery, ALogOfAsManyRecordsAsAreReadComesInPieces) {
  Scene scene;
  scene.log = LogOf(1, fabrics::kDiscoveryRecordsMax);
  scene.Run();
  ASSERT_TRUE(scene.result && *scene.result) << scene.text();
  EXPECT_EQ((*scene.result)->records.size(), fabrics::kDiscoveryRecordsMax);
}

TEST(Discovery, OneRecordMoreIsRefused) {
  Scene scene;
  scene.log = LogOf(1, fabrics::kDiscoveryRecordsMax + 1);
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kResourceExhausted, "1025 records")) << scene.text();
}

TEST(Discovery, ALogThatNeverStandsStillIsGivenUp) {
  Scene scene;
  uint64_t generation = 0;
  scene.before_piece = [&] { scene.log = LogOf(++generation, 9); };
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kAborted, "in each of 5 tries")) << scene.text();
}

TEST(Discovery, AShortPieceIsNoLog) {
  Scene scene;
  scene.target.instead = [](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (entry.opcode != kGetLogPage) return std::nullopt;
    return FakeAnswer{.data = std::vector<uint8_t>(512)};
  };
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kDataLoss, "512 bytes")) << scene.text();
}

TEST(Discovery, WhoseHostIsNotLetInReadsNothing) {
  Scene scene;
  scene.target.instead = [](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (entry.nsid != 1) return std::nullopt;
    return FakeAnswer{.type = 1, .code = 0x84, .data = {}};
  };
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kPermissionDenied, "does not let host")) << scene.text();
  EXPECT_EQ(scene.target.seen.size(), 1U);
}

TEST(Discovery, ASubsystemThatHasNoSuchLogSaysSo) {
  Scene scene;
  scene.target.instead = [](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (entry.opcode != kGetLogPage) return std::nullopt;
    return FakeAnswer{.type = 1, .code = 0x09, .do_not_retry = true, .data = {}};
  };
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kFailedPrecondition, "Get Log Page (Discovery)")) << scene.text();
}

TEST(Discovery, AControllerThatIsNotReadyYetIsAskedAgain) {
  Scene scene;
  scene.target.csts = 0;
  scene.Run();
  EXPECT_FALSE(scene.result);
  scene.target.csts = 1;
  scene.Pass(Discovery::kTickNs);
  EXPECT_TRUE(scene.result && *scene.result) << scene.text();
}

TEST(Discovery, AControllerThatNeverGetsReadyIsGivenUp) {
  Scene scene;
  scene.target.csts = 0;
  scene.Run();
  for (int tick = 0; tick < 9; ++tick) scene.Pass(Discovery::kTickNs);
  EXPECT_FALSE(scene.result);
  scene.Pass(Discovery::kTickNs);
  EXPECT_TRUE(scene.Fails(ErrorCode::kDeadlineExceeded, "CSTS")) << scene.text();
}

TEST(Discovery, AFatalStatusEndsIt) {
  Scene scene;
  scene.target.csts = 2;
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kUnavailable, "CSTS.CFS")) << scene.text();
}

TEST(Discovery, ATargetThatFallsSilentIsGivenUpWhereverItStands) {
  for (const int answered : {0, 1, 2, 3, 4}) {
    Scene scene;
    int commands = 0;
    scene.target.mute = [&](const SubmissionEntry&) { return commands++ >= answered; };
    scene.Run();
    EXPECT_FALSE(scene.result);
    scene.Pass(kSecondNs - 1);
    EXPECT_FALSE(scene.result);
    scene.Pass(1);
    EXPECT_TRUE(scene.Fails(ErrorCode::kDeadlineExceeded, "1000 ms")) << answered << ": " << scene.text();
  }
}

TEST(Discovery, ATargetThatDoesNotAnswerTheLeaveTakingHasGivenItsLog) {
  Scene scene;
  scene.target.mute = [](const SubmissionEntry& entry) {
    return entry.opcode == kFabrics && (entry.cdw12 & 0xc000) != 0;
  };
  scene.Run();
  EXPECT_FALSE(scene.result);
  scene.Pass(Discovery::kShutdownTimeoutNs);
  EXPECT_TRUE(scene.result && *scene.result) << scene.text();
}

TEST(Discovery, AConnectionThatBreaksIsTheReason) {
  Scene scene;
  scene.target.mute = [](const SubmissionEntry& entry) { return entry.opcode == kGetLogPage; };
  scene.Run();
  scene.target.Abort({ErrorCode::kUnavailable, "the service: closed"});
  EXPECT_TRUE(scene.Fails(ErrorCode::kUnavailable, "closed")) << scene.text();
}

TEST(Discovery, AnyAnswersEndInALogOrAReason) {
  cleat::Random random(11);
  uint64_t logs = 0;
  for (int run = 0; run < 3000; ++run) {
    Scene scene;
    const auto usual = scene.target.instead;
    scene.target.instead = [&](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
      auto answer = usual(entry);
      if (!random.Chance(1, 8)) return answer;
      if (!answer) answer = FakeAnswer{.result = random.Next(), .data = {}};
      if (random.Chance(1, 3)) answer->code = static_cast<uint8_t>(random.Next());
      if (random.Chance(1, 3)) answer->data.resize(random.Below(answer->data.size() + 1));
      for (uint64_t i = random.Below(3); i > 0 && !answer->data.empty(); --i)
        answer->data[random.Below(answer->data.size())] ^= static_cast<uint8_t>(random.Next());
      return answer;
    };
    scene.Run();
    for (int tick = 0; tick < 25 && !scene.result; ++tick) scene.Pass(Discovery::kTickNs);
    ASSERT_TRUE(scene.result) << "run " << run;
    logs += *scene.result ? 1 : 0;
  }
  EXPECT_GT(logs, 500U);
  EXPECT_LT(logs, 3000U);
}

// ---- A log that is watched

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

// ---- With secrets

TEST(Discovery, HostAndServiceProveThemselvesBeforeTheLogIsRead) {
  for (const bool is_impostor : {false, true}) {
    DiscoveryConfig config = Scene::ConfigOf();
    auth::TestController controller;
    controller.host_nqn = config.host.nqn;
    controller.subsystem_nqn = std::string(fabrics::kDiscoveryNqn);
    controller.host_secret = auth::RawSecret(32);
    if (!is_impostor) controller.own_secret = auth::RawSecret(32);
    const auto secret = [] {
      return std::move(auth::ChapSecret::Parse(auth::kTestSecrets[0].text, "it")).value();
    };
    std::shared_ptr<auth::Authentication> computing;
    config.chap.secrets = std::make_shared<const auth::ChapSecrets>(
        auth::ChapSecrets{.host = secret(), .controller = secret()});
    config.chap.random = [](std::span<uint8_t> bytes) { std::ranges::fill(bytes, uint8_t{0x33}); };
    config.chap.compute = [&](const auto& authentication) { computing = authentication; };
    Scene scene(config);
    scene.target.chap = &controller;
    scene.target.connect_result |= 1U << 17;
    scene.Run();
    ASSERT_NE(computing, nullptr) << scene.text();
    EXPECT_EQ(scene.target.Count(kGetLogPage), 0U);
    computing->Compute();
    scene.discovery.Computed();
    scene.target.Serve();
    ASSERT_TRUE(scene.result);
    EXPECT_EQ(scene.result->ok(), !is_impostor) << scene.text();
    EXPECT_EQ(scene.target.Count(kGetLogPage) != 0, !is_impostor);
    EXPECT_TRUE(!is_impostor || scene.Fails(ErrorCode::kPermissionDenied, "")) << scene.text();
  }
}

}  // namespace
}  // namespace cleat::nvme::host::discovery_test
