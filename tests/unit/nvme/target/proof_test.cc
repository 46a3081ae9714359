// SPDX-License-Identifier: Apache-2.0
// Hosts that have to prove who they are: what they may do before, how many of them there may be, and what becomes of them when it changes.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nvme/fabrics/log_pages.h"
#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::proof_test {
namespace {

constexpr uint16_t kAuthenticationRequired = 0x191;
constexpr uint16_t kControllerBusy = 0x181;
constexpr uint16_t kDnr = status_field::kDoNotRetry;
constexpr uint32_t kEnabled = 0x00460001;
constexpr uint64_t kAsked = 1U << 17;

constexpr const char* kOne = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
constexpr const char* kSameTransformed = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
constexpr const char* kOther =
    "DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

// Made anew each time.
HostAccess Asked(const char* secret, const char* of_subsystem = nullptr, std::string_view host = kHost) {
  std::optional<auth::ChapSecret> own;
  if (of_subsystem != nullptr) own = std::move(auth::ChapSecret::Parse(of_subsystem, "it")).value();
  HostAccess access = HostAccess::Named(host);
  access.chap = std::make_shared<const auth::ChapSecrets>(auth::ChapSecrets{
      .host = std::move(auth::ChapSecret::Parse(secret, "it")).value(), .controller = std::move(own)});
  return access;
}

TargetController& Unproved(Rig& rig, std::string_view host = kHost) {
  const Connected connected = rig.Connect(ConnectCapsule(0, kSubsystem, host));
  EXPECT_EQ(connected.answer.status, 0);
  rig.live.push_back(connected.controller);
  return *connected.controller;
}
TargetController& Proved(Rig& rig) {
  TargetController& controller = Unproved(rig);
  EXPECT_TRUE(rig.target.Admit(controller, rig.now_ns).ok());
  EXPECT_TRUE(rig.Do(controller, fabrics::PropertySet(fabrics::Property::kConfiguration, kEnabled)).ok());
  return controller;
}

TEST(TargetProof, IsAskedForByConnectOnEachQueue) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {Asked(kOne), HostAccess::Named(kOtherHost)}));
  const Connected connected = rig.Connect(ConnectCapsule());
  ASSERT_EQ(connected.answer.status, 0);
  rig.live.push_back(connected.controller);
  EXPECT_EQ(connected.answer.result, connected.controller->id() | kAsked);
  EXPECT_EQ(connected.proof.get(), rig.target.Find(kSubsystem)->FindHost(kHost)->chap.get());
  ASSERT_TRUE(rig.target.Admit(*connected.controller, rig.now_ns).ok());
  ASSERT_TRUE(
      rig.Do(*connected.controller, fabrics::PropertySet(fabrics::Property::kConfiguration, kEnabled)).ok());
  const Connected queue = rig.ConnectQueue(*connected.controller, 1);
  EXPECT_EQ(queue.answer.result, connected.controller->id() | kAsked);
  EXPECT_NE(queue.proof, nullptr);
  // Of another host nothing is asked.
  const Connected other = rig.Connect(ConnectCapsule(0, kSubsystem, kOtherHost));
  rig.live.push_back(other.controller);
  EXPECT_EQ(other.answer.result, other.controller->id());
  EXPECT_EQ(other.proof, nullptr);
  EXPECT_TRUE(other.controller->proved());
}

TEST(TargetProof, NothingIsExecutedWithoutIt) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {Asked(kOne)}));
  TargetController& controller = Unproved(rig);
  EXPECT_FALSE(controller.proved());
  for (const Command& command :
       {fabrics::PropertySet(fabrics::Property::kConfiguration, kEnabled),
        fabrics::PropertyGet(fabrics::Property::kCapabilities), KeepAlive(), AsyncEventRequest(),
        Identify(IdentifyCns::kController, 0), GetLogPage(LogPage::kAna, 0, 64)}) {
    const Answer answer = rig.Do(controller, ToHost(command, 4096));
    EXPECT_EQ(answer.status, kAuthenticationRequired | kDnr);
    EXPECT_TRUE(answer.data.empty());
  }
  EXPECT_FALSE(controller.ready());
  EXPECT_EQ(rig.ConnectQueue(controller, 1).answer.status, status_field::kCommandSequence);
  ASSERT_TRUE(rig.target.Admit(controller, rig.now_ns).ok());
  EXPECT_EQ(rig.Csts(controller), 0U) << "what was refused has not happened";
}

TEST(TargetProof, TakesAsLongAsItsQueueIsGivenAndThenTheControllersTimeBegins) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {Asked(kOne)}));
  TargetController& controller = Unproved(rig);
  EXPECT_EQ(rig.target.deadline_ns(), UINT64_MAX);
  rig.now_ns += 10 * kIdleNs;
  rig.target.Tick(rig.now_ns);
  EXPECT_TRUE(rig.heard.ended.empty());
  ASSERT_TRUE(rig.target.Admit(controller, rig.now_ns).ok());
  EXPECT_EQ(controller.deadline_ns(), rig.now_ns + kIdleNs);
}

TEST(TargetProof, AQueueHasNoIdentifierBeforeIt) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {Asked(kOne)}));
  TargetController& controller = Proved(rig);
  // A stranger's queue keeps none from the host's.
  ASSERT_TRUE(rig.ConnectQueue(controller, 1).answer.ok());
  ASSERT_TRUE(rig.ConnectQueue(controller, 1).answer.ok());
  EXPECT_FALSE(controller.HasQueue(1));
  EXPECT_TRUE(controller.Join(1));
  EXPECT_TRUE(controller.HasQueue(1));
  EXPECT_FALSE(controller.Join(1)) << "another one has it";
  EXPECT_FALSE(controller.Join(0));
  EXPECT_FALSE(controller.Join(static_cast<uint16_t>(controller.io_queues_max() + 1)));
  EXPECT_EQ(rig.ConnectQueue(controller, 1).answer.status, status_field::kInvalidQueueId);
  controller.QueueEnded(1);
  ASSERT_TRUE(rig.Do(controller, fabrics::PropertySet(fabrics::Property::kConfiguration, 0)).ok());
  EXPECT_FALSE(controller.Join(1)) << "none may come";
}

TEST(TargetProof, HostsWithoutItKeepNoOtherHostOut) {
  Rig rig;
  std::vector<HostAccess> hosts = {Asked(kOne), HostAccess::Named(kOtherHost)};
  std::vector<std::string> nqns;
  for (int i = 0; i < 8; ++i) {
    nqns.push_back("nqn.2024-01.com.example:" + std::to_string(i));
    hosts.push_back(Asked(kOne, nullptr, nqns.back()));
  }
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, hosts));
  // Somebody who says that it is kHost.
  TargetController& first = Unproved(rig);
  for (uint32_t i = 1; i < kUnprovedOfOneHostMax; ++i) Unproved(rig);
  EXPECT_EQ(rig.Connect(ConnectCapsule()).answer.status, kControllerBusy);
  // A proof makes room for another one.
  ASSERT_TRUE(rig.target.Admit(first, rig.now_ns).ok());
  Unproved(rig);
  EXPECT_EQ(rig.Connect(ConnectCapsule()).answer.status, kControllerBusy);
  // Somebody who knows more names, which end before the subsystem's controllers do.
  uint32_t unproved = kUnprovedOfOneHostMax;
  for (const std::string& nqn : nqns) {
    for (uint32_t i = 0; i < kUnprovedOfOneHostMax && unproved < kUnprovedMax; ++i, ++unproved)
      Unproved(rig, nqn);
  }
  EXPECT_EQ(rig.Connect(ConnectCapsule(0, kSubsystem, nqns.back())).answer.status, kControllerBusy);
  for (uint32_t live = kUnprovedMax + 1; live < kControllersMax; ++live) rig.Live(kSubsystem, kOtherHost);
  EXPECT_EQ(rig.Connect(ConnectCapsule(0, kSubsystem, kOtherHost)).answer.status, kControllerBusy);
  // Those that end make room, too.
  rig.End(*rig.live.back());
  rig.End(*rig.live[1]);
  Unproved(rig);
}

TEST(TargetProof, AHostThatHasSomethingElseToProveFromNowOnComesAnew) {
  const HostAccess named = HostAccess::Named(kHost);
  struct Row {
    HostAccess before, after;
    bool ends;
  };
  const std::vector<Row> rows = {{Asked(kOne), Asked(kOne), false},
                                 {Asked(kOne, kOther), Asked(kOne, kOther), false},
                                 {named, named, false},
                                 {Asked(kOne), Asked(kOther), true},
                                 {Asked(kOne), Asked(kSameTransformed), true},
                                 {Asked(kOne), Asked(kOne, kOther), true},
                                 {Asked(kOne, kOther), Asked(kOne), true},
                                 {Asked(kOne, kOther), Asked(kOne, kOne), true},
                                 {Asked(kOne), named, true},
                                 {named, Asked(kOne), true}};
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    Rig rig;
    ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {rows[i].before}));
    TargetController& controller = rows[i].before.chap == nullptr ? rig.Live() : Proved(rig);
    ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {rows[i].after, HostAccess::Named(kOtherHost)}));
    EXPECT_EQ(controller.ending(), rows[i].ends);
    ASSERT_EQ(rig.heard.ended.size(), rows[i].ends ? 1U : 0U);
    if (!rows[i].ends) continue;
    EXPECT_NE(rig.heard.ended[0].find("other secrets to prove"), std::string::npos) << rig.heard.ended[0];
  }
}

TEST(TargetProof, OfAnEndingControllerComesTooLate) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {Asked(kOne)}));
  TargetController& controller = Unproved(rig);
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {Asked(kOther)}));
  EXPECT_FALSE(rig.target.Admit(controller, rig.now_ns).ok());
  EXPECT_FALSE(controller.proved());
}

// What a host reads of how to come is how it is let in.
TEST(TargetProof, TheDiscoveryLogSaysWhereTlsIsDue) {
  constexpr const char* kKey = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
  Rig rig;
  TargetController& discovery = rig.Live(fabrics::kDiscoveryNqn);
  const auto record = [&] {
    const uint32_t bytes = 16 * 1024;
    const auto log = fabrics::ParseDiscoveryLog(
        rig.Read(discovery, GetLogPage(LogPage::kDiscovery, 0, bytes), bytes), "it");
    EXPECT_TRUE(log.ok());
    EXPECT_EQ(log->records.size(), 2U);
    EXPECT_FALSE(log->records[0].tls);
    return std::make_pair(log->generation, log->records.at(1));
  };
  const auto [generation, plain] = record();
  EXPECT_FALSE(plain.tls);
  HostAccess with_key = HostAccess::Named(kHost);
  with_key.psk = std::make_shared<const tls::Psk>(tls::Psk::Parse(kKey, "it").value());
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {with_key}));
  const auto [later, secured] = record();
  EXPECT_GT(later, generation);
  EXPECT_TRUE(secured.tls);
  EXPECT_EQ(secured.secure_channel, fabrics::SecureChannel::kRequired);
  EXPECT_TRUE(secured.flow_control_optional);
  // A secret alone says nothing of TLS, and changes nothing in the log.
  HostAccess both = Asked(kOne);
  both.psk = with_key.psk;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {both}));
  EXPECT_EQ(record().first, later);
}

}  // namespace
}  // namespace cleat::nvme::target::proof_test
