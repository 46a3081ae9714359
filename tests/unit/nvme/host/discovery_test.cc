// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/discovery.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "tests/unit/nvme/host/fake_target.h"

namespace cleat::nvme::host::discovery_test {
namespace {

using fabrics::DiscoveryLog;
using fabrics::SubmissionEntry;

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint8_t kGetLogPage = 0x02;
constexpr uint8_t kFabrics = 0x7f;

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
class Scene final : public DiscoveryOwner {
 public:
  Scene() : discovery(ConfigOf(), *this) {
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

  void Discovered(Result<DiscoveryLog> read) override {
    EXPECT_FALSE(result) << "told twice";
    result.emplace(std::move(read));
  }

  FakeTarget target;
  std::vector<uint8_t> log = LogOf(1, 2);
  std::function<void()> before_piece = [] {};
  uint64_t now_ns = 5;
  std::optional<Result<DiscoveryLog>> result;
  Discovery discovery;

 private:
  static DiscoveryConfig ConfigOf() {
    return {.who = "the service", .host = fabrics::HostIdentityOfUuid({1}), .timeout_ns = kSecondNs};
  }
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

}  // namespace
}  // namespace cleat::nvme::host::discovery_test
