// SPDX-License-Identifier: Apache-2.0
// A controller that goes on in another process: what its host finds there is what it had, and who may not go on is told why.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nvme/fabrics/log_pages.h"
#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::hand_over_test {
namespace {

constexpr uint32_t kEnabled = 0x00460001;
constexpr uint64_t kNamespaceEvent = 0x0004'0002;
constexpr const char* kSecret = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
constexpr const char* kKey = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

fabrics::SubmissionEntry EventRequest(uint16_t cid) {
  fabrics::SubmissionEntry entry = Plain(AsyncEventRequest());
  entry.cid = cid;
  return entry;
}

Command GetFeature(Feature feature) {
  return {.opcode = static_cast<uint8_t>(AdminOpcode::kGetFeatures), .cdw10 = static_cast<uint32_t>(feature)};
}

// Of a host that has two I/O queues, waits for events and has set what may be set.
SavedController SavedOne(Rig& rig) {
  TargetController& controller = rig.Live();
  EXPECT_TRUE(rig.Do(controller, SetFeature(Feature::kQueues, 1U << 16 | 1)).ok());
  EXPECT_TRUE(rig.Do(controller, SetFeature(Feature::kArbitration, 5)).ok());
  EXPECT_TRUE(rig.Do(controller, SetFeature(Feature::kKeepAliveTimer, 7000)).ok());
  EXPECT_EQ(rig.Do(controller, EventRequest(7)).kind, Answer::Kind::kHeld);
  EXPECT_EQ(rig.Do(controller, EventRequest(8)).kind, Answer::Kind::kHeld);
  EXPECT_TRUE(controller.may_be_saved());
  return controller.Save();
}

TEST(TargetHandOver, AControllerIsWhatItWasInTheNextProcess) {
  Rig blue;
  const SavedController saved = SavedOne(blue);
  Rig green;
  green.now_ns = blue.now_ns + kSecondNs;
  const auto restored = green.target.Restore(kSubsystem, saved, green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  TargetController& controller = **restored;
  green.live.push_back(&controller);
  EXPECT_EQ(controller.id(), saved.id);
  EXPECT_EQ(controller.host_nqn(), kHost);
  EXPECT_TRUE(controller.ready());
  EXPECT_TRUE(controller.proved());
  EXPECT_EQ(controller.local(), kLocal);
  EXPECT_EQ(controller.deadline_ns(), blue.now_ns + 7 * kSecondNs) << "the host has no more time than before";
  EXPECT_TRUE(controller.Join(1));
  EXPECT_TRUE(controller.Join(2));
  EXPECT_FALSE(controller.Join(3)) << "it was granted two";
  EXPECT_EQ(green.Do(controller, GetFeature(Feature::kArbitration)).result, 5U);
  EXPECT_EQ(green.Do(controller, GetFeature(Feature::kKeepAliveTimer)).result, 7000U);
  EXPECT_EQ(green.Do(controller, EventRequest(8)).status,
            status_field::kCommandIdConflict | status_field::kDoNotRetry);
  NamespaceShape grown = Shape();
  grown.blocks *= 2;
  ASSERT_TRUE(green.target.PutNamespace(kSubsystem, 3, grown));
  ASSERT_EQ(green.heard.completed.size(), 1U);
  EXPECT_EQ(green.heard.completed[0].first, 7) << "the oldest request is answered";
  EXPECT_EQ(green.heard.completed[0].second.result, kNamespaceEvent);
  controller.QueueEnded(1);
  controller.QueueEnded(2);
}

TEST(TargetHandOver, WhatHasHappenedAndWasNotToldIsToldByTheNextProcess) {
  Rig blue;
  TargetController& before = blue.Live();
  NamespaceShape grown = Shape();
  grown.blocks *= 2;
  ASSERT_TRUE(blue.target.PutNamespace(kSubsystem, 3, grown));
  Rig green;
  auto restored = green.target.Restore(kSubsystem, before.Save(), green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok());
  green.live.push_back(*restored);
  EXPECT_EQ(green.Do(**restored, EventRequest(1)).result, kNamespaceEvent);
  const auto changed = green.Read(**restored, GetLogPage(LogPage::kChangedNamespaces, 0, 4096), 4096);
  EXPECT_EQ(changed[0], 3);
}

TEST(TargetHandOver, AnIdentifierIsNoOthersWhoeverComes) {
  Rig blue;
  SavedController saved = SavedOne(blue);
  Rig green;
  const auto restored = green.target.Restore(kSubsystem, saved, green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok());
  green.live.push_back(*restored);
  EXPECT_NE(green.Live().id(), saved.id);
  const auto again = green.target.Restore(kSubsystem, saved, green.heard, green.now_ns);
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
}

TEST(TargetHandOver, OneThatIsResetShutDownOrNotBelievedYetIsNotSaved) {
  Rig rig;
  TargetController& controller = rig.Live();
  ASSERT_EQ(rig.ConnectQueue(controller, 1).answer.status, 0);
  ASSERT_TRUE(
      rig.Do(controller, fabrics::PropertySet(fabrics::Property::kConfiguration, kEnabled | 1U << 14)).ok());
  EXPECT_FALSE(controller.may_be_saved()) << "shutting down";
  ASSERT_TRUE(
      rig.Do(controller, fabrics::PropertySet(fabrics::Property::kConfiguration, kEnabled & ~1U)).ok());
  EXPECT_FALSE(controller.may_be_saved()) << "being reset";
  controller.QueueEnded(1);
  EXPECT_FALSE(controller.may_be_saved()) << "disabled";
  ASSERT_TRUE(rig.Do(controller, fabrics::PropertySet(fabrics::Property::kConfiguration, kEnabled)).ok());
  EXPECT_TRUE(controller.may_be_saved());
  controller.End({ErrorCode::kUnavailable, "the test's end"});
  EXPECT_FALSE(controller.may_be_saved());
}

TEST(TargetHandOver, AHostThatIsNotLetInSoIsRefusedAndOneThatHasProvedItselfIsBelieved) {
  Rig blue;
  const SavedController saved = SavedOne(blue);
  Rig green;
  const auto refuses = [&] {
    return green.target.Restore(kSubsystem, saved, green.heard, green.now_ns).error().code;
  };
  ASSERT_TRUE(green.target.SetHosts(kSubsystem, {HostAccess::Named(kOtherHost)}));
  EXPECT_EQ(refuses(), ErrorCode::kPermissionDenied);
  HostAccess secured = HostAccess::Named(kHost);
  secured.psk = std::make_shared<const tls::Psk>(tls::Psk::Parse(kKey, "the key").value());
  ASSERT_TRUE(green.target.SetHosts(kSubsystem, {secured}));
  EXPECT_EQ(refuses(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(green.target.controllers(), 0U);
  HostAccess proves = HostAccess::Named(kHost);
  proves.chap = std::make_shared<const auth::ChapSecrets>(
      auth::ChapSecrets{.host = std::move(auth::ChapSecret::Parse(kSecret, "it")).value(), .controller = {}});
  ASSERT_TRUE(green.target.SetHosts(kSubsystem, {proves}));
  const auto restored = green.target.Restore(kSubsystem, saved, green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok());
  green.live.push_back(*restored);
  EXPECT_TRUE(green.Do(**restored, fabrics::PropertyGet(fabrics::Property::kStatus)).ok());
  EXPECT_NE(green.ConnectQueue(**restored, 1).proof, nullptr) << "a new queue proves itself";
  EXPECT_EQ(
      green.target.Restore("nqn.2024-01.com.example:none", saved, green.heard, green.now_ns).error().code,
      ErrorCode::kNotFound);
}

TEST(TargetHandOver, WhatNoControllerHasIsRefused) {
  Rig blue;
  const SavedController good = SavedOne(blue);
  Rig green;
  const std::vector<std::function<void(SavedController&)>> wrongs = {
      [](SavedController& saved) { saved.id = 0; },
      [](SavedController& saved) { saved.id = fabrics::kControllerIdLast + 1; },
      [](SavedController& saved) { saved.kato_ms = 0; },
      [](SavedController& saved) { saved.kato_ms = fabrics::kKeepAliveMsMax + 1; },
      [](SavedController& saved) { saved.configuration = 0; },
      [](SavedController& saved) { saved.configuration = kEnabled | 1U << 14; },
      [](SavedController& saved) { saved.queues_granted = 9; },
      [](SavedController& saved) { saved.events_enabled = fabrics::kEventDiscovery; },
      [](SavedController& saved) { saved.changed_namespaces = {0}; },
      [](SavedController& saved) { saved.changed_namespaces = {kNamespacesMax + 1}; },
      [](SavedController& saved) { saved.event_requests.assign(2, 7); },
      [](SavedController& saved) { saved.event_requests.resize(kEventRequestsMax + 1); },
      [](SavedController& saved) {
        for (uint32_t feature = 0; feature < 1000; ++feature) saved.features[feature] = 1;
      },
  };
  for (size_t i = 0; i < wrongs.size(); ++i) {
    SavedController saved = good;
    wrongs[i](saved);
    const auto restored = green.target.Restore(kSubsystem, saved, green.heard, green.now_ns);
    EXPECT_EQ(restored.error().code, ErrorCode::kInvalidArgument) << i;
  }
  SavedController late = good;
  late.deadline_ns = green.now_ns;
  EXPECT_EQ(green.target.Restore(kSubsystem, late, green.heard, green.now_ns).error().code,
            ErrorCode::kDeadlineExceeded);
  // However far off another process says that it is, a host has its keep alive timeout at most.
  SavedController far = good;
  far.deadline_ns = UINT64_MAX;
  const auto restored = green.target.Restore(kSubsystem, far, green.heard, green.now_ns);
  ASSERT_TRUE(restored.ok());
  green.live.push_back(*restored);
  EXPECT_EQ((*restored)->deadline_ns(), green.now_ns + 7 * kSecondNs);
}

TEST(TargetHandOver, NobodyIsLetInMeanwhileAndAgainAfterwards) {
  Rig rig;
  const TargetController& controller = rig.Live();
  rig.target.LetIn(kSubsystem, false);
  EXPECT_EQ(rig.Connect(ConnectCapsule()).answer.status & status_field::kDoNotRetry, 0);
  EXPECT_FALSE(rig.Connect(ConnectCapsule()).answer.ok());
  EXPECT_FALSE(rig.ConnectQueue(controller, 1).answer.ok());
  EXPECT_FALSE(controller.HasQueue(1));
  rig.target.LetIn(kSubsystem, true);
  rig.Live();
}

}  // namespace
}  // namespace cleat::nvme::target::hand_over_test
