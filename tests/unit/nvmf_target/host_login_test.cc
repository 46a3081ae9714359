// SPDX-License-Identifier: Apache-2.0
// Hosts that have to prove who they are, over sockets: Cleat's own, and hosts of the tests' own that try to do without.
#include "nvmf_target/login/host_login.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nvme/auth/responses.h"
#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::nvmf_target::host_login_test {
namespace {

using nvme::Opcode;
using nvme::auth::ChapSecret;
using nvme::auth::ChapSecrets;
using nvme::fabrics::CompletionEntry;
using nvme::fabrics::EntryOf;
using test::BlocksEntry;
using test::RandomLoad;
using test::RawHost;
using test::TargetRig;

using Bytes = std::vector<uint8_t>;

constexpr const char* kSecret = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
constexpr const char* kOther =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";
constexpr uint16_t kRequired = 0x191;
constexpr uint16_t kTransaction = 7;
constexpr uint16_t kRoom = 4096;

std::shared_ptr<const ChapSecrets> SecretsOf(const char* host, const char* controller = nullptr) {
  std::optional<ChapSecret> own;
  if (controller != nullptr) own = std::move(ChapSecret::Parse(controller, "it")).value();
  return std::make_shared<const ChapSecrets>(
      ChapSecrets{.host = std::move(ChapSecret::Parse(host, "it")).value(), .controller = std::move(own)});
}
nvme::target::HostAccess Access(const char* host, const char* controller = nullptr) {
  auto access = nvme::target::HostAccess::Named(TargetRig::HostNqn());
  access.chap = SecretsOf(host, controller);
  return access;
}

// ---- One queue's messages, by hand: SHA-256, no group

std::optional<CompletionEntry> SendMessage(RawHost& queue, const Bytes& message) {
  return queue.Do(EntryOf(nvme::fabrics::AuthenticationSend(static_cast<uint32_t>(message.size()))), message);
}
std::optional<CompletionEntry> Ask(RawHost& queue) {
  nvme::fabrics::SubmissionEntry entry = EntryOf(nvme::fabrics::AuthenticationReceive(kRoom));
  entry.data.type = nvme::fabrics::kSglByTransport;
  entry.data.length_bytes = kRoom;
  return queue.Do(entry);
}

template <typename Message>
Bytes BytesOf(const Message& message) {
  const auto* const at = reinterpret_cast<const uint8_t*>(&message);
  return {at, at + sizeof(message)};
}

Bytes Negotiation() {
  return BytesOf(nvme::auth::NegotiateOf(
      {.hashes = {nvme::auth::Hash::kSha256}, .groups = {nvme::auth::DhGroup::kNull}}, kTransaction));
}

// The challenge that the queue is given.
Bytes ChallengeOf(RawHost& queue) {
  const auto sent = SendMessage(queue, Negotiation());
  CLEAT_CHECK(sent && sent->status().ok());
  const auto asked = Ask(queue);
  CLEAT_CHECK(asked && asked->status().ok() && queue.data().size() == 48);
  return queue.data();
}

// What proves that somebody has the secret, to this challenge.
Bytes ReplyTo(const Bytes& challenge, const char* secret) {
  uint32_t sequence = 0;
  std::memcpy(&sequence, challenge.data() + 12, sizeof(sequence));
  const std::string nqn = TargetRig::HostNqn();
  const auto response = nvme::auth::HostResponse(
      {.hash = nvme::auth::Hash::kSha256,
       .transaction = kTransaction,
       .host_nqn = nqn,
       .subsystem_nqn = TargetRig::kNqn},
      SecretsOf(secret)->host, {.sequence = sequence, .value = std::span(challenge).subspan(16, 32)});
  CLEAT_CHECK(response.ok());
  nvme::auth::ReplyHead head;
  head.head.transaction = kTransaction;
  head.hash_bytes = 32;
  Bytes message = BytesOf(head);
  message.insert(message.end(), response->bytes().begin(), response->bytes().end());
  message.resize(message.size() + 32);
  return message;
}

// Whether the queue may be used; where not, its connection has ended.
bool Prove(RawHost& queue, const Bytes& reply) {
  const auto sent = SendMessage(queue, reply);
  CLEAT_CHECK(sent && sent->status().ok());
  const auto asked = Ask(queue);
  CLEAT_CHECK(asked && asked->status().ok() && queue.data().size() >= 8);
  if (queue.data()[1] == 0x03) return true;
  EXPECT_EQ(queue.data()[1], 0xf1);
  EXPECT_FALSE(queue.Answer());
  return false;
}
bool Prove(RawHost& queue) {
  return Prove(queue, ReplyTo(ChallengeOf(queue), kSecret));
}

// An association that is proved and enabled, and an I/O queue of it that is not.
struct Half {
  explicit Half(TargetRig& rig) : admin(rig), queue(rig) {
    CLEAT_CHECK(rig.SetHosts({Access(kSecret)}).ok());
    controller = static_cast<uint16_t>(admin.ConnectAdmin());
    CLEAT_CHECK(Prove(admin));
    admin.Enable();
    Connect(queue);
  }
  void Connect(RawHost& to) const {
    to.SendConnect(1, controller);
    const auto answer = to.Answer();
    CLEAT_CHECK(answer && answer->status().ok() && answer->result == (controller | 1U << 17));
  }
  RawHost admin;
  RawHost queue;
  uint16_t controller = 0;
};

std::optional<CompletionEntry> Write(RawHost& queue, uint8_t value) {
  return queue.Do(BlocksEntry(Opcode::kWrite, 0, 8, true), Bytes(4096, value));
}
uint16_t StatusOf(const std::optional<CompletionEntry>& answer) {
  return answer ? static_cast<uint16_t>(answer->status_field >> 1 & 0x7ff) : 0xffff;
}

// ---- Hosts that have the secret

TEST(HostLoginTest, AHostWithTheSecretReadsWhatItWrites) {
  for (const bool both_ways : {false, true}) {
    SCOPED_TRACE(both_ways);
    TargetRig rig;
    ASSERT_TRUE(rig.SetHosts({Access(kSecret, kOther)}).ok());
    rig.host_chap = SecretsOf(kSecret, both_ways ? kOther : nullptr);
    ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
    RandomLoad load(*rig.disk, 1, 0, TargetRig::kBytes);
    load.Run(100);
    EXPECT_EQ(Bytes(rig.storage->content), load.reference());
    EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).hosts.size(), 1U);
  }
}

TEST(HostLoginTest, AHostWithAnotherSecretOrWithoutOneOrThatDoesNotBelieveTheSubsystemIsNotLetIn) {
  const std::vector<std::shared_ptr<const ChapSecrets>> rows = {SecretsOf(kOther), nullptr,
                                                                SecretsOf(kSecret, kSecret)};
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    TargetRig rig;
    ASSERT_TRUE(rig.SetHosts({Access(kSecret, kOther)}).ok());
    rig.host_chap = rows[i];
    const auto opened = rig.TryOpen();
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).connections, 0U);
    EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).controllers, 0U);
  }
}

TEST(HostLoginTest, OtherSecretsEndWhatWasProvedByTheOldOnesAndTheSameAgainDoNot) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({Access(kSecret)}).ok());
  rig.host_chap = SecretsOf(kSecret);
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  ASSERT_TRUE(rig.SetHosts({Access(kSecret)}).ok());
  RandomLoad load(*rig.disk, 1, 0, TargetRig::kBytes);
  load.Run(50);
  EXPECT_TRUE(rig.broken.empty());
  EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).controllers, 1U);
  ASSERT_TRUE(rig.SetHosts({Access(kOther)}).ok());
  rig.Until([&] { return !rig.broken.empty() && rig.service->StatusOf(TargetRig::kNqn).controllers == 0; });
  rig.CloseHost();
  EXPECT_FALSE(rig.TryOpen().ok());
  rig.host_chap = SecretsOf(kOther);
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
}

// ---- Hosts that try to do without

TEST(HostLoginTest, NoCommandOfAnAdminQueueIsExecutedBeforeItsHostIsProved) {
  TargetRig rig;
  ASSERT_TRUE(rig.SetHosts({Access(kSecret)}).ok());
  RawHost admin(rig);
  EXPECT_NE(admin.ConnectAdmin() & 1U << 17, 0U);
  constexpr uint32_t kEnabled = 4U << 20 | 6U << 16 | 1;
  const auto enable = EntryOf(nvme::fabrics::PropertySet(nvme::fabrics::Property::kConfiguration, kEnabled));
  EXPECT_EQ(StatusOf(admin.Do(enable)), kRequired);
  EXPECT_EQ(StatusOf(admin.Do(EntryOf(nvme::KeepAlive()))), kRequired);
  EXPECT_EQ(StatusOf(admin.Do(EntryOf(nvme::fabrics::Disconnect()))), kRequired);
  EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).controllers, 0U);
  ASSERT_TRUE(Prove(admin));
  EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).controllers, 1U);
  EXPECT_EQ(StatusOf(admin.Do(enable)), 0);
  // Once is enough: another negotiation is no command that is known.
  EXPECT_NE(StatusOf(SendMessage(admin, Negotiation())), 0);
  EXPECT_EQ(StatusOf(admin.Do(EntryOf(nvme::KeepAlive()))), 0);
}

TEST(HostLoginTest, AnIoQueueOfAProvedAssociationWritesNothingBeforeItIsProvedItself) {
  TargetRig rig;
  Half host(rig);
  EXPECT_EQ(StatusOf(Write(host.queue, 1)), kRequired);
  // By the transport: no data is asked for.
  EXPECT_EQ(StatusOf(host.queue.Do(BlocksEntry(Opcode::kRead, 0, 8, false))), kRequired);
  EXPECT_TRUE(host.queue.data().empty());
  const Bytes challenge = ChallengeOf(host.queue);
  EXPECT_EQ(StatusOf(Write(host.queue, 1)), kRequired);
  EXPECT_EQ(rig.storage->content[0], 0);
  ASSERT_TRUE(Prove(host.queue, ReplyTo(challenge, kSecret)));
  EXPECT_EQ(StatusOf(Write(host.queue, 2)), 0);
  EXPECT_EQ(rig.storage->content[0], 2);
}

TEST(HostLoginTest, WhatIsSentBehindAWrongProofIsNotExecuted) {
  TargetRig rig;
  Half host(rig);
  const Bytes reply = ReplyTo(ChallengeOf(host.queue), kOther);
  host.queue.Send(EntryOf(nvme::fabrics::AuthenticationSend(static_cast<uint32_t>(reply.size()))), reply);
  const int first_write = host.queue.last_cid() + 1;
  for (int i = 0; i < 20; ++i) host.queue.Send(BlocksEntry(Opcode::kWrite, 0, 8, true), Bytes(4096, 1));
  while (const auto answer = host.queue.Answer()) {
    EXPECT_EQ(StatusOf(answer), answer->cid >= first_write ? kRequired : 0);
    if (answer->cid == host.queue.last_cid()) break;
  }
  const auto asked = Ask(host.queue);
  ASSERT_TRUE(asked);
  EXPECT_EQ(host.queue.data().at(1), 0xf1);
  EXPECT_FALSE(host.queue.Answer());
  EXPECT_EQ(rig.storage->content[0], 0);
}

TEST(HostLoginTest, AWrongProofEndsTheQueueAndTheAssociationGoesOn) {
  TargetRig rig;
  Half host(rig);
  EXPECT_FALSE(Prove(host.queue, ReplyTo(ChallengeOf(host.queue), kOther)));
  EXPECT_EQ(StatusOf(host.admin.Do(EntryOf(nvme::KeepAlive()))), 0);
  RawHost again(rig);
  host.Connect(again);
  ASSERT_TRUE(Prove(again));
  EXPECT_EQ(StatusOf(Write(again, 3)), 0);
}

TEST(HostLoginTest, TheProofOfOneQueueIsNoneOfAnother) {
  TargetRig rig;
  Half host(rig);
  RawHost other(rig);
  host.Connect(other);
  const Bytes heard = ReplyTo(ChallengeOf(host.queue), kSecret);
  (void)ChallengeOf(other);
  EXPECT_FALSE(Prove(other, heard));
  EXPECT_TRUE(Prove(host.queue, heard));
}

// Whoever knows a controller's number keeps none of its queues from the host.
TEST(HostLoginTest, AStrangersQueueIsNotInTheWayOfTheHosts) {
  TargetRig rig;
  Half stranger(rig);
  RawHost queue(rig);
  stranger.Connect(queue);
  ASSERT_TRUE(Prove(queue));
  EXPECT_EQ(StatusOf(Write(queue, 4)), 0);
  // It comes too late, though it has the secret.
  const Bytes reply = ReplyTo(ChallengeOf(stranger.queue), kSecret);
  (void)SendMessage(stranger.queue, reply);
  EXPECT_FALSE(Ask(stranger.queue));
  EXPECT_EQ(StatusOf(Write(queue, 5)), 0);
}

TEST(HostLoginTest, AQueueThatIsBeingProvedEndsWithItsAssociationAndWithOtherSecrets) {
  TargetRig rig;
  {
    Half host(rig);
    (void)ChallengeOf(host.queue);
    constexpr uint32_t kDisabled = 0;
    EXPECT_EQ(StatusOf(host.admin.Do(
                  EntryOf(nvme::fabrics::PropertySet(nvme::fabrics::Property::kConfiguration, kDisabled)))),
              0);
    EXPECT_FALSE(host.queue.Answer());
  }
  Half host(rig);
  (void)ChallengeOf(host.queue);
  ASSERT_TRUE(rig.SetHosts({Access(kOther)}).ok());
  EXPECT_FALSE(host.queue.Answer());
  EXPECT_FALSE(host.admin.Answer());
}

TEST(HostLoginTest, AHostHasItsKeepAliveTimeoutWithinBounds) {
  EXPECT_EQ(HostLogin::TimeoutNs(0), 10 * kNsPerSecond);
  EXPECT_EQ(HostLogin::TimeoutNs(9'999), 10 * kNsPerSecond);
  EXPECT_EQ(HostLogin::TimeoutNs(30'000), 30 * kNsPerSecond);
  EXPECT_EQ(HostLogin::TimeoutNs(UINT32_MAX), 30 * kNsPerSecond);
}

// ---- Time, and the line

struct Scene final : HostLoginOwner {
  void LoginAnswers(const nvme::target::Answer& answer) override { answers.push_back(answer); }
  void LoginFails(const std::string& reason) override { failures.push_back(reason); }
  void LoginIsLate() override { late = true; }
  void Pass(uint64_t ns) {
    clock.AdvanceBy(ns);
    for (int turn = 0; turn < 3; ++turn) reactor->RunOnce();
  }
  nvme::target::Answer Negotiate(nvme::auth::DhGroup group) {
    const Bytes message = BytesOf(
        nvme::auth::NegotiateOf({.hashes = {nvme::auth::Hash::kSha256}, .groups = {group}}, kTransaction));
    nvme::fabrics::SubmissionEntry entry =
        EntryOf(nvme::fabrics::AuthenticationSend(static_cast<uint32_t>(message.size())));
    entry.data.length_bytes = static_cast<uint32_t>(message.size());
    return login.Execute(entry, message);
  }

  ManualClock clock;
  std::unique_ptr<Reactor> reactor = std::move(Reactor::Make(clock, Reactor::Options())).value();
  std::vector<std::function<void()>> posted;
  nvmf::LoginLine line{[this](std::function<void()> turn) { posted.push_back(std::move(turn)); }};
  std::vector<nvme::target::Answer> answers;
  std::vector<std::string> failures;
  bool late = false;
  HostLogin login{*reactor, line,
                  HostLogin::Config{.peer = "10.0.0.7",
                                    .host_nqn = TargetRig::HostNqn(),
                                    .subsystem_nqn = TargetRig::kNqn,
                                    .secrets = SecretsOf(kSecret),
                                    .timeout_ns = 10 * kNsPerSecond},
                  *this};
};

TEST(HostLoginTest, AHostThatSaysNothingIsDroppedAndTheReasonIsToldOnce) {
  Scene scene;
  scene.Pass(9 * kNsPerSecond);
  EXPECT_FALSE(scene.late);
  scene.Pass(2 * kNsPerSecond);
  EXPECT_TRUE(scene.late);
  ASSERT_EQ(scene.failures.size(), 1U);
  EXPECT_NE(scene.failures[0].find("has not authenticated in 10 s"), std::string::npos);
}

TEST(HostLoginTest, WhatAHostWaitsForTheArithmeticIsNotOfItsTime) {
  Scene scene;
  scene.Pass(6 * kNsPerSecond);
  EXPECT_EQ(scene.Negotiate(nvme::auth::DhGroup::kFfdhe2048).kind, nvme::target::Answer::Kind::kHeld);
  scene.Pass(1000 * kNsPerSecond);
  EXPECT_FALSE(scene.late);
  ASSERT_EQ(scene.posted.size(), 1U);
  scene.posted[0]();
  scene.Pass(1);
  ASSERT_EQ(scene.answers.size(), 1U);
  EXPECT_TRUE(scene.answers[0].ok());
  scene.Pass(3 * kNsPerSecond);
  EXPECT_FALSE(scene.late);
  scene.Pass(2 * kNsPerSecond);
  EXPECT_TRUE(scene.late);
}

TEST(HostLoginTest, AQueueThatEndsLeavesTheLine) {
  auto scene = std::make_unique<Scene>();
  (void)scene->Negotiate(nvme::auth::DhGroup::kFfdhe2048);
  scene->login.Stop();
  ASSERT_EQ(scene->posted.size(), 1U);
  scene->posted[0]();
  scene->Pass(1);
  EXPECT_TRUE(scene->answers.empty());
}

TEST(HostLoginTest, ACommandWhoseFieldsDoNotFitIsRefusedAndChangesNothing) {
  Scene scene;
  const Bytes message = Negotiation();
  const auto bytes = static_cast<uint32_t>(message.size());
  nvme::fabrics::SubmissionEntry good = EntryOf(nvme::fabrics::AuthenticationSend(bytes));
  good.data.length_bytes = bytes;
  auto protocol = good, none = good, long_one = good, other = good;
  protocol.cdw10 ^= 1U << 24;
  none.cdw11 = none.data.length_bytes = 0;
  long_one.cdw11 = long_one.data.length_bytes = 4097;
  other.cdw11 = bytes - 1;
  for (const auto& entry : {protocol, none, long_one, other})
    EXPECT_FALSE(scene.login.Execute(entry, message).ok());
  EXPECT_FALSE(scene.login.Execute(good, std::span(message).first(10)).ok());  // less came than it says
  EXPECT_TRUE(scene.login.Execute(good, message).ok());
  nvme::fabrics::SubmissionEntry receive = EntryOf(nvme::fabrics::AuthenticationReceive(kRoom));
  receive.data.length_bytes = kRoom - 1;
  EXPECT_FALSE(scene.login.Execute(receive, {}).ok());
  receive = EntryOf(nvme::fabrics::AuthenticationReceive(10));
  receive.data.length_bytes = 10;
  EXPECT_FALSE(scene.login.Execute(receive, {}).ok());  // too small for the challenge
  receive = EntryOf(nvme::fabrics::AuthenticationReceive(kRoom));
  receive.data.length_bytes = kRoom;
  EXPECT_EQ(scene.login.Execute(receive, {}).data.size(), 48U);
  EXPECT_TRUE(scene.failures.empty());
}

}  // namespace
}  // namespace cleat::nvmf_target::host_login_test
