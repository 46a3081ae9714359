// SPDX-License-Identifier: Apache-2.0
#include "nvme/target/controller.h"

#include <gtest/gtest.h>

#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::controller_test {
namespace {

using fabrics::Property;
using fabrics::PropertyGet;
using fabrics::PropertySet;

constexpr uint16_t kDnr = status_field::kDoNotRetry;
constexpr uint32_t kEnabled = 0x00460001, kDisabled = 0x00460000;
constexpr uint32_t kNormalShutdown = kEnabled | 1U << 14, kAbruptShutdown = kEnabled | 2U << 14;
constexpr uint32_t kReady = 1, kShuttingDown = 1U << 2, kShutDown = 2U << 2;
constexpr uint64_t kMillisecondNs = 1'000'000;

Command Configure(uint32_t value) {
  return PropertySet(Property::kConfiguration, value);
}

TEST(TargetController, HasItsProperties) {
  Rig rig({.queue_entries_max = 256, .ready_timeout_ms = 7400});
  TargetController& controller = rig.Live();
  const Answer answer = rig.Do(controller, PropertyGet(Property::kCapabilities));
  const auto capabilities = fabrics::ParseCapabilities(answer.result, "it");
  ASSERT_TRUE(capabilities);
  EXPECT_EQ(capabilities->queue_entries_max, 256U);
  EXPECT_EQ(capabilities->ready_timeout_ns, 7500 * kMillisecondNs) << "rounded up to half seconds";
  EXPECT_EQ(capabilities->page_shift_min, 12);
  EXPECT_TRUE(capabilities->nvm_command_set);
  EXPECT_TRUE(capabilities->any_command_set);
  EXPECT_EQ(answer.result >> 59 & 1, 1U) << "CRMS.CRWMS, which 2.0 wants";
  EXPECT_EQ(rig.Do(controller, PropertyGet(Property::kReadyTimeouts)).result, 15U) << "in half seconds";
  EXPECT_EQ(rig.Do(controller, PropertyGet(Property::kVersion)).result, 0x00020000U);
  EXPECT_EQ(rig.Do(controller, PropertyGet(Property::kConfiguration)).result, kEnabled);
}

TEST(TargetController, OtherPropertiesAndSizesAreRefused) {
  Rig rig;
  TargetController& controller = rig.Live();
  const uint16_t refused = status_field::kInvalidField | kDnr;
  Command small = PropertyGet(Property::kCapabilities);
  small.cdw10 = 0;
  EXPECT_EQ(rig.Do(controller, small).status, refused);
  Command large = PropertyGet(Property::kStatus);
  large.cdw10 = 1;
  EXPECT_EQ(rig.Do(controller, large).status, refused);
  large.cdw10 = 2;
  EXPECT_EQ(rig.Do(controller, large).status, refused);
  Command odd = PropertyGet(Property::kStatus);
  for (const uint32_t offset : {1U, 4U, 0x20U, 0x24U, 0xffffffffU}) {
    odd.cdw11 = offset;
    EXPECT_EQ(rig.Do(controller, odd).status, refused) << offset;
  }
  for (const Property property : {Property::kCapabilities, Property::kVersion, Property::kStatus})
    EXPECT_EQ(rig.Do(controller, PropertySet(property, 1)).status, refused);
}

TEST(TargetController, IsEnabledByWhatItCanRunBy) {
  Rig rig;
  TargetController& controller = *rig.Connect(ConnectCapsule()).controller;
  rig.live.push_back(&controller);
  EXPECT_EQ(rig.Csts(controller), 0U);
  EXPECT_EQ(rig.Do(controller, ToHost(Identify(IdentifyCns::kController, 0), 4096)).status,
            status_field::kCommandSequence | kDnr)
      << "before it is enabled it has properties alone";
  for (const uint32_t wrong : {0x00450001U, 0x00360001U, 0x00460011U, 0x00460071U, 0x00460081U, 0x00460801U,
                               kNormalShutdown, 0x00000001U}) {
    EXPECT_EQ(rig.Do(controller, Configure(wrong)).status, status_field::kInvalidField | kDnr)
        << std::hex << wrong;
    EXPECT_EQ(rig.Csts(controller), 0U);
  }
  EXPECT_TRUE(rig.Do(controller, Configure(kDisabled)).ok()) << "as Linux does first";
  EXPECT_TRUE(rig.Do(controller, Configure(kEnabled | 6U << 4)).ok()) << "all command sets that there are";
  EXPECT_EQ(rig.Csts(controller), kReady);
  EXPECT_TRUE(controller.ready());
}

TEST(TargetController, AResetIsOverWhenItsQueuesHaveEnded) {
  Rig rig;
  TargetController& controller = rig.Live();
  ASSERT_TRUE(rig.ConnectQueue(controller, 1).answer.ok());
  ASSERT_TRUE(rig.ConnectQueue(controller, 2).answer.ok());
  ASSERT_EQ(rig.Do(controller, AsyncEventRequest()).kind, Answer::Kind::kHeld);
  EXPECT_TRUE(rig.Do(controller, SetFeature(Feature::kArbitration, 5)).ok());
  EXPECT_TRUE(rig.Do(controller, Configure(kDisabled)).ok());
  ASSERT_EQ(rig.heard.queues_end.size(), 1U);
  EXPECT_EQ(rig.heard.queues_end[0], QueuesEndFor::kReset);
  ASSERT_EQ(rig.heard.completed.size(), 1U) << "the event request is given back";
  EXPECT_EQ(rig.heard.completed[0].second.status, status_field::kAbortedByQueueDeletion);
  EXPECT_EQ(rig.Csts(controller), kReady) << "not yet";
  EXPECT_FALSE(controller.ready());
  EXPECT_EQ(rig.Do(controller, KeepAlive()).status, status_field::kCommandSequence | kDnr);
  EXPECT_EQ(rig.Do(controller, Configure(kEnabled)).status, status_field::kCommandSequence)
      << "not before RDY is cleared";
  controller.QueueEnded(1);
  EXPECT_EQ(rig.Csts(controller), kReady);
  controller.QueueEnded(2);
  EXPECT_EQ(rig.Csts(controller), 0U);
  EXPECT_TRUE(rig.Do(controller, Configure(kEnabled)).ok());
  EXPECT_TRUE(controller.ready());
  Command get = SetFeature(Feature::kArbitration, 0);
  get.opcode = static_cast<uint8_t>(AdminOpcode::kGetFeatures);
  EXPECT_EQ(rig.Do(controller, get).result, 0U) << "what was set is as before";
  EXPECT_TRUE(rig.heard.ended.empty());
}

TEST(TargetController, AShutdownIsCompleteWhenItsQueuesHaveEnded) {
  for (const uint32_t shutdown : {kNormalShutdown, kAbruptShutdown}) {
    Rig rig;
    TargetController& controller = rig.Live();
    ASSERT_TRUE(rig.ConnectQueue(controller, 1).answer.ok());
    EXPECT_TRUE(rig.Do(controller, Configure(shutdown)).ok());
    ASSERT_EQ(rig.heard.queues_end.size(), 1U);
    EXPECT_EQ(rig.heard.queues_end[0], QueuesEndFor::kShutdown);
    EXPECT_EQ(rig.Csts(controller), kReady | kShuttingDown);
    EXPECT_TRUE(rig.Do(controller, Configure(shutdown)).ok()) << "again";
    EXPECT_EQ(rig.heard.queues_end.size(), 1U);
    controller.QueueEnded(1);
    EXPECT_EQ(rig.Csts(controller), kReady | kShutDown);
    EXPECT_FALSE(controller.ready());
    EXPECT_TRUE(rig.Do(controller, Configure(kDisabled)).ok());
    EXPECT_EQ(rig.Csts(controller), 0U);
    EXPECT_TRUE(rig.Do(controller, Configure(kEnabled)).ok());
    EXPECT_TRUE(controller.ready());
  }
}

TEST(TargetController, AShutdownThatIsResetIsOver) {
  Rig rig;
  TargetController& controller = rig.Live();
  ASSERT_TRUE(rig.ConnectQueue(controller, 1).answer.ok());
  EXPECT_TRUE(rig.Do(controller, Configure(kNormalShutdown)).ok());
  EXPECT_TRUE(rig.Do(controller, Configure(kDisabled)).ok());
  controller.QueueEnded(1);
  EXPECT_EQ(rig.Csts(controller), 0U);
}

TEST(TargetController, WithoutQueuesItShutsDownAtOnceEvenIfItIsNotEnabled) {
  Rig rig;
  TargetController& controller = rig.Live();
  EXPECT_TRUE(rig.Do(controller, Configure(kNormalShutdown)).ok());
  EXPECT_EQ(rig.Csts(controller), kReady | kShutDown);
  EXPECT_TRUE(rig.heard.queues_end.empty());
  TargetController& idle = *rig.Connect(ConnectCapsule()).controller;
  rig.live.push_back(&idle);
  EXPECT_TRUE(rig.Do(idle, Configure(kDisabled | 1U << 14)).ok());
  EXPECT_EQ(rig.Csts(idle), kShutDown);
}

TEST(TargetController, WhatItRunsByDoesNotChangeWhileItRuns) {
  Rig rig;
  TargetController& controller = rig.Live();
  EXPECT_TRUE(rig.Do(controller, Configure(0x00ff0781)).ok());
  EXPECT_EQ(rig.Do(controller, PropertyGet(Property::kConfiguration)).result, kEnabled);
}

// ---- Time

TEST(TargetController, AHostThatIsNotHeardFromIsGivenUpAtItsKeepAliveTimeout) {
  Rig rig;
  TargetController& controller = rig.Live();
  ASSERT_TRUE(rig.ConnectQueue(controller, 1).answer.ok());
  EXPECT_EQ(controller.deadline_ns(), rig.now_ns + 5 * kSecondNs);
  EXPECT_EQ(rig.target.deadline_ns(), controller.deadline_ns());
  rig.now_ns += 4 * kSecondNs;
  EXPECT_TRUE(rig.Do(controller, KeepAlive()).ok());
  rig.now_ns += 5 * kSecondNs - 1;
  EXPECT_TRUE(rig.Do(controller, PropertyGet(Property::kStatus)).ok()) << "which is no Keep Alive";
  EXPECT_FALSE(controller.Expired(rig.now_ns));
  rig.now_ns += 1;
  EXPECT_TRUE(controller.Expired(rig.now_ns));
  rig.target.Tick(rig.now_ns);
  ASSERT_EQ(rig.heard.ended.size(), 1U);
  EXPECT_NE(rig.heard.ended[0].find("5000 ms"), std::string::npos) << rig.heard.ended[0];
  EXPECT_EQ(rig.target.deadline_ns(), UINT64_MAX);
  rig.target.Tick(rig.now_ns + kSecondNs);
  EXPECT_EQ(rig.heard.ended.size(), 1U) << "once";
  controller.QueueEnded(1);
}

TEST(TargetController, WhatComesTooLateIsNotExecuted) {
  Rig rig;
  TargetController& controller = rig.Live();
  rig.now_ns += 5 * kSecondNs;
  EXPECT_EQ(rig.Do(controller, KeepAlive()).status, status_field::kKeepAliveExpired);
  EXPECT_EQ(rig.heard.ended.size(), 1U);
  EXPECT_NE(rig.Do(controller, KeepAlive()).status, 0);
}

TEST(TargetController, TrafficCountsWhereThatIsSaid) {
  for (const bool counts : {false, true}) {
    Rig rig({.traffic_keeps_alive = counts});
    TargetController& controller = rig.Live();
    rig.now_ns += 4 * kSecondNs;
    controller.Touch(rig.now_ns);
    EXPECT_EQ(controller.deadline_ns(), rig.now_ns + (counts ? 5 : 1) * kSecondNs);
    const auto page = rig.Read(controller, Identify(IdentifyCns::kController, 0), kIdentifyBytes);
    const auto fabrics = fabrics::ParseFabrics(IdentifyData(page), "it");
    ASSERT_TRUE(fabrics);
    EXPECT_EQ(fabrics->traffic_keeps_alive, counts);
    controller.Touch(rig.now_ns + 3600 * kSecondNs);
    EXPECT_TRUE(controller.Expired(rig.now_ns + 3600 * kSecondNs)) << "what is over is over";
  }
}

TEST(TargetController, TheTimeoutIsRoundedUpAndMayBeSetAgain) {
  Rig rig;
  ConnectCapsule capsule;
  capsule.entry.cdw12 = 1001;
  TargetController& controller = *rig.Connect(capsule).controller;
  rig.live.push_back(&controller);
  EXPECT_EQ(controller.kato_ms(), 1100U);
  EXPECT_TRUE(rig.Do(controller, Configure(kEnabled)).ok());
  EXPECT_EQ(controller.deadline_ns(), rig.now_ns + 1100 * kMillisecondNs);
  EXPECT_TRUE(rig.Do(controller, SetFeature(Feature::kKeepAliveTimer, 30'000)).ok());
  EXPECT_EQ(controller.deadline_ns(), rig.now_ns + 30 * kSecondNs);
  for (const uint32_t wrong : {0U, 600'001U, UINT32_MAX}) {
    EXPECT_EQ(rig.Do(controller, SetFeature(Feature::kKeepAliveTimer, wrong)).status,
              status_field::kKeepAliveInvalid | kDnr);
  }
  EXPECT_EQ(controller.kato_ms(), 30'000U);
}

TEST(TargetController, AControllerThatNobodyUsesEnds) {
  Rig rig;
  TargetController& idle = *rig.Connect(ConnectCapsule()).controller;
  rig.live.push_back(&idle);
  EXPECT_EQ(idle.deadline_ns(), rig.now_ns + kIdleNs) << "never enabled";
  TargetController& left = rig.Live();
  EXPECT_TRUE(rig.Do(left, Configure(kNormalShutdown)).ok());
  EXPECT_EQ(left.deadline_ns(), rig.now_ns + kIdleNs) << "shut down, and still connected";
  ConnectCapsule capsule(0, fabrics::kDiscoveryNqn);
  capsule.entry.cdw12 = 0;
  TargetController& once = *rig.Connect(capsule).controller;
  rig.live.push_back(&once);
  EXPECT_TRUE(rig.Do(once, Configure(kEnabled)).ok());
  rig.now_ns += kIdleNs - 1;
  EXPECT_TRUE(rig.Do(once, PropertyGet(Property::kStatus)).ok());
  rig.now_ns += 1;
  rig.target.Tick(rig.now_ns);
  EXPECT_EQ(rig.heard.ended.size(), 2U) << "the discovery controller without a timeout was used meanwhile";
  EXPECT_FALSE(once.ending());
}

// ---- Fabrics commands, and others that there are not

TEST(TargetController, DisconnectEndsAnIoQueueAlone) {
  Rig rig;
  TargetController& controller = rig.Live();
  EXPECT_EQ(controller.ExecuteOnQueue(Plain(fabrics::Disconnect())).kind, Answer::Kind::kDisconnect);
  fabrics::SubmissionEntry wrong = Plain(fabrics::Disconnect());
  wrong.cdw10 = 1;
  EXPECT_EQ(controller.ExecuteOnQueue(wrong).status, 0x180 | kDnr);
  EXPECT_EQ(rig.Do(controller, fabrics::Disconnect()).status, 0x185 | kDnr) << "Invalid Queue Type";
  EXPECT_EQ(controller.ExecuteOnQueue(Plain(PropertyGet(Property::kStatus))).status,
            status_field::kInvalidField | kDnr);
  EXPECT_EQ(controller.ExecuteOnQueue(ConnectCapsule(1).entry).status, status_field::kCommandSequence | kDnr);
}

TEST(TargetController, WhatItDoesNotKnowIsRefused) {
  Rig rig;
  TargetController& controller = rig.Live();
  for (const uint8_t opcode : {0x00, 0x01, 0x04, 0x05, 0x0d, 0x10, 0x11, 0x14, 0x19, 0x1a, 0x80, 0x84, 0xff})
    EXPECT_EQ(rig.Do(controller, Command{.opcode = opcode}).status, status_field::kInvalidOpcode | kDnr)
        << int{opcode};
  EXPECT_EQ(rig.Do(controller, fabrics::AuthenticationSend(0)).status, status_field::kInvalidOpcode | kDnr);
  fabrics::SubmissionEntry fused = Plain(KeepAlive());
  fused.flags |= 1;
  EXPECT_EQ(rig.Do(controller, fused).status, status_field::kInvalidField | kDnr);
  fabrics::SubmissionEntry prp = Plain(KeepAlive());
  prp.flags = 0;
  EXPECT_EQ(rig.Do(controller, prp).status, status_field::kInvalidField | kDnr);
}

TEST(TargetController, AbortSaysThatNothingWasAborted) {
  Rig rig;
  TargetController& controller = rig.Live();
  const Answer answer = rig.Do(controller, Command{.opcode = static_cast<uint8_t>(AdminOpcode::kAbort)});
  EXPECT_TRUE(answer.ok());
  EXPECT_EQ(answer.result, 1U);
}

TEST(TargetController, SaysWhichWayACommandsDataGoes) {
  const auto transfer = [](Command command) { return TransferOf(ToHost(command, 12)); };
  EXPECT_EQ(transfer(Identify(IdentifyCns::kController, 0)).to_host_bytes, 12U);
  EXPECT_EQ(transfer(GetLogPage(LogPage::kAna, 0, 4)).to_host_bytes, 12U);
  EXPECT_EQ(transfer(SetFeature(Feature::kQueues, 0)).to_target_bytes, 12U);
  EXPECT_EQ(transfer(fabrics::Connect({.entries = 2})).to_target_bytes, 12U);
  for (const Command& none : {KeepAlive(), AsyncEventRequest(), PropertyGet(Property::kStatus)}) {
    EXPECT_EQ(transfer(none).to_host_bytes, 0U);
    EXPECT_EQ(transfer(none).to_target_bytes, 0U);
  }
}

// ---- Events

constexpr uint32_t kNamespaceEvent = 0x00040002, kAnaEvent = 0x000c0302;

fabrics::SubmissionEntry EventRequest(uint16_t cid) {
  fabrics::SubmissionEntry entry = Plain(AsyncEventRequest());
  entry.cid = cid;
  return entry;
}

TEST(TargetController, TellsOfNamespacesThatCameChangedAndWent) {
  Rig rig;
  TargetController& controller = rig.Live();
  EXPECT_EQ(rig.Do(controller, EventRequest(7)).kind, Answer::Kind::kHeld);
  EXPECT_EQ(rig.Do(controller, EventRequest(8)).kind, Answer::Kind::kHeld);
  NamespaceShape shape = Shape();
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 3, shape));
  EXPECT_TRUE(rig.heard.completed.empty()) << "the same shape again";
  shape.blocks *= 2;
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 3, shape));
  ASSERT_EQ(rig.heard.completed.size(), 1U);
  EXPECT_EQ(rig.heard.completed[0].first, 7);
  EXPECT_EQ(rig.heard.completed[0].second.result, kNamespaceEvent);
  shape.ids.uuid = fabrics::Uuid{5};
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 9, shape));
  ASSERT_TRUE(rig.target.RemoveNamespace(kSubsystem, 9));
  EXPECT_EQ(rig.heard.completed.size(), 1U) << "not again before the list is read";
  const auto list = rig.Read(controller, GetLogPage(LogPage::kChangedNamespaces, kAllNamespaces, 4096), 4096);
  EXPECT_EQ(list[0], 3);
  EXPECT_EQ(list[4], 9);
  EXPECT_EQ(list[8], 0);
  ASSERT_TRUE(rig.target.RemoveNamespace(kSubsystem, 3));
  ASSERT_EQ(rig.heard.completed.size(), 2U);
  EXPECT_EQ(rig.heard.completed[1].first, 8);
}

TEST(TargetController, KeepsAnEventUntilAHostAsks) {
  Rig rig;
  TargetController& controller = rig.Live();
  ASSERT_TRUE(rig.target.RemoveNamespace(kSubsystem, 3));
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 3, Shape()));
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, 3, fabrics::AnaState::kInaccessible));
  const Answer first = rig.Do(controller, EventRequest(1));
  EXPECT_EQ(first.kind, Answer::Kind::kAnswer);
  EXPECT_EQ(first.result, kNamespaceEvent);
  EXPECT_EQ(rig.Do(controller, EventRequest(2)).result, kAnaEvent);
  EXPECT_EQ(rig.Do(controller, EventRequest(3)).kind, Answer::Kind::kHeld);
  EXPECT_TRUE(rig.heard.completed.empty());
}

TEST(TargetController, AHostThatRetainsAnEventIsNotToldAgainAndKeepsItsList) {
  Rig rig;
  TargetController& controller = rig.Live();
  ASSERT_TRUE(rig.target.RemoveNamespace(kSubsystem, 3));
  EXPECT_EQ(rig.Do(controller, EventRequest(1)).result, kNamespaceEvent);
  EXPECT_EQ(rig.Do(controller, EventRequest(2)).kind, Answer::Kind::kHeld);
  Command retaining = GetLogPage(LogPage::kChangedNamespaces, kAllNamespaces, 4096);
  retaining.cdw10 |= 1U << 15;
  EXPECT_EQ(rig.Read(controller, retaining, 4096)[0], 3);
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 4, Shape()));
  EXPECT_TRUE(rig.heard.completed.empty());
  EXPECT_EQ(rig.Read(controller, retaining, 4096)[4], 4);
}

TEST(TargetController, WhatIsNotAskedForIsNotTold) {
  Rig rig;
  TargetController& controller = rig.Live();
  EXPECT_TRUE(rig.Do(controller, SetFeature(Feature::kAsyncEvents, fabrics::kEventAna)).ok());
  EXPECT_EQ(rig.Do(controller, EventRequest(1)).kind, Answer::Kind::kHeld);
  ASSERT_TRUE(rig.target.RemoveNamespace(kSubsystem, 3));
  EXPECT_TRUE(rig.heard.completed.empty());
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 3, Shape()));
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, 3, fabrics::AnaState::kChange));
  ASSERT_EQ(rig.heard.completed.size(), 1U);
  EXPECT_EQ(rig.heard.completed[0].second.result, kAnaEvent);
  EXPECT_EQ(rig.Do(controller, SetFeature(Feature::kAsyncEvents, fabrics::kEventDiscovery)).status,
            status_field::kInvalidField | kDnr);
}

TEST(TargetController, HoldsSoManyRequestsAndNoneTwice) {
  Rig rig;
  TargetController& controller = rig.Live();
  for (uint16_t cid = 0; cid < kEventRequestsMax; ++cid)
    EXPECT_EQ(rig.Do(controller, EventRequest(cid)).kind, Answer::Kind::kHeld);
  EXPECT_EQ(rig.Do(controller, EventRequest(3)).status, status_field::kCommandIdConflict | kDnr);
  EXPECT_EQ(rig.Do(controller, EventRequest(100)).status, status_field::kEventRequestsExceeded | kDnr);
}

TEST(TargetController, IsToldOfEachStateOfEachGroupOnce) {
  Rig rig;
  TargetController& controller = rig.Live();
  EXPECT_EQ(rig.Do(controller, EventRequest(1)).kind, Answer::Kind::kHeld);
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, 3, fabrics::AnaState::kOptimized));
  EXPECT_TRUE(rig.heard.completed.empty()) << "as it was";
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, 3, fabrics::AnaState::kInaccessible));
  EXPECT_EQ(rig.heard.completed.size(), 1U);
  EXPECT_FALSE(rig.target.SetAna(kSubsystem, 4, fabrics::AnaState::kInaccessible));
  EXPECT_EQ(PathStatusOf(rig.target.Find(kSubsystem)->ana_state(3)), 0x302)
      << "Asymmetric Access Inaccessible";
  EXPECT_EQ(PathStatusOf(fabrics::AnaState::kOptimized), 0);
}

TEST(TargetController, NamespacesAreCheckedBeforeTheyAreShown) {
  Rig rig;
  const auto refused = [&](uint32_t nsid, void (*change)(NamespaceShape&), ErrorCode code) {
    NamespaceShape shape = Shape();
    change(shape);
    const auto put = rig.target.PutNamespace(kSubsystem, nsid, shape);
    ASSERT_FALSE(put);
    EXPECT_EQ(put.error().code, code) << put.error().message;
  };
  const auto invalid = ErrorCode::kInvalidArgument;
  const auto nothing = [](NamespaceShape&) {};
  refused(0, nothing, invalid);
  refused(kNamespacesMax + 1, nothing, invalid);
  refused(UINT32_MAX, nothing, invalid);
  refused(
      4, [](NamespaceShape& s) { s.blocks = 0; }, invalid);
  refused(
      4, [](NamespaceShape& s) { s.blocks = UINT64_MAX; }, invalid);
  refused(
      4, [](NamespaceShape& s) { s.block_bytes = 1024; }, invalid);
  refused(
      4, [](NamespaceShape& s) { s.physical_block_bytes = 512; }, invalid);
  refused(
      4, [](NamespaceShape& s) { s.physical_block_bytes = 12288; }, invalid);
  refused(
      4, [](NamespaceShape& s) { s.ids = {}; }, invalid);
  refused(
      4, [](NamespaceShape& s) { s.discard_bytes_max = 512; }, invalid);
  refused(
      4, [](NamespaceShape& s) { s.write_zeroes_bytes_max = 512; }, invalid);
  refused(
      3, [](NamespaceShape& s) { s.ids.uuid = fabrics::Uuid{1}; }, ErrorCode::kFailedPrecondition);
  refused(
      3, [](NamespaceShape& s) { s.block_bytes = 512; }, ErrorCode::kFailedPrecondition);
  EXPECT_FALSE(rig.target.RemoveNamespace(kSubsystem, 4));
  EXPECT_EQ(rig.target.Find(kSubsystem)->Active(0), std::vector<uint32_t>{3});
}

}  // namespace
}  // namespace cleat::nvme::target::controller_test
