// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::connect_test {
namespace {

constexpr uint16_t kDnr = status_field::kDoNotRetry;
constexpr uint16_t kInvalidParameters = 0x182;
constexpr uint32_t kInData = 1U << 16;
constexpr size_t kHostNqnAt = offsetof(fabrics::ConnectData, host_nqn);
constexpr size_t kSubsystemNqnAt = offsetof(fabrics::ConnectData, subsystem_nqn);

TEST(TargetConnect, MakesAControllerForAHostThatIsLetIn) {
  Rig rig;
  const Connected connected = rig.Connect(ConnectCapsule());
  ASSERT_EQ(connected.answer.status, 0);
  ASSERT_NE(connected.controller, nullptr);
  EXPECT_EQ(connected.answer.result, connected.controller->id()) << "and nothing is to be authenticated";
  EXPECT_EQ(connected.queue_id, 0);
  EXPECT_EQ(connected.entries, 32U);
  EXPECT_TRUE(connected.flow_control);
  EXPECT_EQ(connected.controller->host_nqn(), kHost);
  EXPECT_EQ(rig.target.controllers(), 1U);
  rig.target.End(*connected.controller);
  EXPECT_EQ(rig.target.controllers(), 0U);
}

TEST(TargetConnect, WithoutFlowControlIsGranted) {
  Rig rig;
  ConnectCapsule capsule;
  capsule.entry.cdw11 |= 1U << 18;
  const Connected connected = rig.Connect(capsule);
  ASSERT_TRUE(connected.answer.ok());
  EXPECT_FALSE(connected.flow_control);
  rig.target.End(*connected.controller);
}

TEST(TargetConnect, IsTheFirstCommandOfAConnection) {
  Rig rig;
  for (const Command& command : {KeepAlive(), Identify(IdentifyCns::kController, 0), fabrics::Disconnect(),
                                 fabrics::PropertyGet(fabrics::Property::kStatus)}) {
    const Connected connected =
        rig.target.Connect(Plain(command), {}, kLocal, nullptr, rig.heard, rig.now_ns);
    EXPECT_EQ(connected.answer.status, status_field::kCommandSequence | kDnr);
    EXPECT_EQ(connected.controller, nullptr);
  }
  TargetController& controller = rig.Live();
  EXPECT_EQ(rig.Do(controller, ConnectCapsule().entry).status, status_field::kCommandSequence | kDnr)
      << "and no later one";
}

TEST(TargetConnect, OfAnotherHostIsRefusedAndMayBeTriedAgain) {
  Rig rig;
  const Connected connected = rig.Connect(ConnectCapsule(0, kSubsystem, kOtherHost));
  EXPECT_EQ(connected.answer.status, 0x184) << "Connect Invalid Host, without Do Not Retry";
  EXPECT_EQ(connected.controller, nullptr);
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {}));
  EXPECT_EQ(rig.Connect(ConnectCapsule()).answer.status, 0x184) << "an empty list lets nobody in";
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {HostAccess::Named(kOtherHost)}));
  EXPECT_TRUE(rig.Live(kSubsystem, kOtherHost).ready());
}

TEST(TargetConnect, AssociationsOfASubsystemThatIsRemovedAreToldOnceAndEndInTheirTime) {
  Rig rig;
  TargetController& controller = rig.Live();
  ASSERT_TRUE(rig.target.Remove(kSubsystem));
  EXPECT_EQ(rig.target.Find(kSubsystem), nullptr);
  EXPECT_EQ(rig.heard.ended.size(), 1U);
  EXPECT_EQ(rig.Connect(ConnectCapsule()).answer.status, kInvalidParameters);
  rig.target.Tick(rig.now_ns + 3600 * kSecondNs);
  EXPECT_EQ(rig.heard.ended.size(), 1U);
  EXPECT_EQ(rig.target.controllers(), 1U);
  rig.End(controller);
  EXPECT_EQ(rig.target.controllers(), 0U);
  EXPECT_FALSE(rig.target.Remove(kSubsystem));
}

TEST(TargetConnect, ToAnUnknownSubsystemNamesTheFieldAndMayBeTriedAgain) {
  Rig rig;
  const Connected connected = rig.Connect(ConnectCapsule(0, "nqn.2024-01.com.example:b"));
  EXPECT_EQ(connected.answer.status, kInvalidParameters);
  EXPECT_EQ(connected.answer.result, kInData | kSubsystemNqnAt);
}

struct Wrong {
  const char* what;
  void (*change)(ConnectCapsule&);
  uint16_t status;
  uint32_t result;
};
constexpr Wrong kWrong[] = {
    {"record format", [](ConnectCapsule& c) { c.entry.cdw10 |= 1; }, 0x180 | kDnr, 0},
    {"size 0", [](ConnectCapsule& c) { c.entry.cdw11 &= ~0xffffU; }, kInvalidParameters | kDnr, 44},
    {"size of 129", [](ConnectCapsule& c) { c.entry.cdw11 = 128; }, kInvalidParameters | kDnr, 44},
    {"attributes", [](ConnectCapsule& c) { c.entry.cdw11 |= 1U << 20; }, kInvalidParameters | kDnr, 46},
    {"no keep alive", [](ConnectCapsule& c) { c.entry.cdw12 = 0; }, kInvalidParameters | kDnr, 48},
    {"a keep alive of weeks", [](ConnectCapsule& c) { c.entry.cdw12 = UINT32_MAX; },
     kInvalidParameters | kDnr, 48},
    {"a static controller", [](ConnectCapsule& c) { c.data.controller_id = 1; }, kInvalidParameters | kDnr,
     kInData | 16},
    {"any static controller", [](ConnectCapsule& c) { c.data.controller_id = 0xfffe; },
     kInvalidParameters | kDnr, kInData | 16},
    {"data of another length", [](ConnectCapsule& c) { c.entry.data.length_bytes = 1020; }, 0x0f | kDnr, 0},
    {"a subsystem's name without an end",
     [](ConnectCapsule& c) { std::memset(c.data.subsystem_nqn, 'n', sizeof(c.data.subsystem_nqn)); },
     kInvalidParameters | kDnr, kInData | kSubsystemNqnAt},
    {"a host's name without an end",
     [](ConnectCapsule& c) { std::memset(c.data.host_nqn, 'n', sizeof(c.data.host_nqn)); },
     kInvalidParameters | kDnr, kInData | kHostNqnAt},
    {"no host's name", [](ConnectCapsule& c) { c.data.host_nqn[0] = 0; }, kInvalidParameters | kDnr,
     kInData | kHostNqnAt},
    {"a host's name that is no NQN", [](ConnectCapsule& c) { c.data.host_nqn[4] = '\n'; },
     kInvalidParameters | kDnr, kInData | kHostNqnAt},
};

TEST(TargetConnect, EachWrongFieldIsNamed) {
  Rig rig;
  for (const Wrong& wrong : kWrong) {
    ConnectCapsule capsule;
    wrong.change(capsule);
    const Connected connected = rig.Connect(capsule);
    EXPECT_EQ(connected.answer.status, wrong.status) << wrong.what;
    EXPECT_EQ(connected.answer.result, wrong.result) << wrong.what;
    EXPECT_EQ(connected.controller, nullptr) << wrong.what;
  }
  ConnectCapsule capsule;
  EXPECT_EQ(
      rig.target.Connect(capsule.entry, capsule.bytes().first(1023), kLocal, nullptr, rig.heard, rig.now_ns)
          .answer.status,
      0x0f | kDnr)
      << "fewer bytes came than the descriptor says";
  EXPECT_EQ(rig.target.controllers(), 0U);
}

TEST(TargetConnect, OurInitiatorReadsWhatWasRefused) {
  Rig rig;
  ConnectCapsule capsule;
  capsule.entry.cdw12 = 0;
  const Connected connected = rig.Connect(capsule);
  fabrics::CompletionEntry entry;
  entry.result = connected.answer.result;
  entry.status_field = static_cast<uint16_t>(connected.answer.status << 1);
  const auto parsed = fabrics::ParseConnect(entry, "it", kHost, kSubsystem);
  ASSERT_FALSE(parsed);
  EXPECT_NE(parsed.error().message.find("keep alive timeout (KATO)"), std::string::npos)
      << parsed.error().message;
}

TEST(TargetConnect, AnIoQueueIsOfItsController) {
  Rig rig;
  TargetController& controller = rig.Live();
  const Connected connected = rig.ConnectQueue(controller, 1);
  ASSERT_TRUE(connected.answer.ok());
  EXPECT_EQ(connected.controller, &controller);
  EXPECT_EQ(connected.queue_id, 1);
  EXPECT_EQ(connected.answer.result, controller.id());
  EXPECT_TRUE(controller.HasQueue(1));
  EXPECT_EQ(rig.ConnectQueue(controller, 1).answer.status, 0x101) << "it is there already";
  controller.QueueEnded(1);
  EXPECT_TRUE(rig.ConnectQueue(controller, 1).answer.ok());
  controller.QueueEnded(1);
}

TEST(TargetConnect, AnIoQueueIsRefusedWhereItDoesNotBelong) {
  Rig rig;
  TargetController& controller = rig.Live();
  const auto refused = [&](void (*change)(ConnectCapsule&), uint16_t status, uint32_t result) {
    ConnectCapsule capsule(1);
    capsule.data.controller_id = controller.id();
    change(capsule);
    const Connected connected = rig.Connect(capsule);
    EXPECT_EQ(connected.answer.status, status);
    EXPECT_EQ(connected.answer.result, result);
    EXPECT_EQ(connected.controller, nullptr);
  };
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {HostAccess::Named(kHost), HostAccess::Named(kOtherHost)}));
  refused([](ConnectCapsule& c) { c.data.controller_id += 1; }, kInvalidParameters, kInData | 16);
  refused([](ConnectCapsule& c) { c.data.host_id[5] ^= 1; }, kInvalidParameters | kDnr, kInData);
  refused([](ConnectCapsule& c) { std::memcpy(c.data.host_nqn, kOtherHost.data(), kOtherHost.size()); },
          kInvalidParameters | kDnr, kInData | kHostNqnAt);
  refused([](ConnectCapsule& c) { c.entry.cdw10 = 9U << 16; }, kInvalidParameters | kDnr, 42);
  refused([](ConnectCapsule& c) { c.entry.cdw10 = 0xffffU << 16; }, kInvalidParameters | kDnr, 42);
  refused([](ConnectCapsule& c) { c.entry.cdw11 = 128; }, kInvalidParameters | kDnr, 44);
  EXPECT_TRUE(rig.Do(controller, SetFeature(Feature::kQueues, 0x00030003)).ok());
  refused([](ConnectCapsule& c) { c.entry.cdw10 = 5U << 16; }, kInvalidParameters | kDnr, 42);
  EXPECT_TRUE(rig.ConnectQueue(controller, 4).answer.ok()) << "four were granted";
  controller.QueueEnded(4);
}

TEST(TargetConnect, AnIoQueueWaitsUntilTheControllerIsReady) {
  Rig rig;
  const Connected admin = rig.Connect(ConnectCapsule());
  ASSERT_TRUE(admin.answer.ok());
  rig.live.push_back(admin.controller);
  EXPECT_EQ(rig.ConnectQueue(*admin.controller, 1).answer.status, status_field::kCommandSequence);
  TargetController& controller = rig.Live();
  EXPECT_TRUE(rig.Do(controller, fabrics::PropertySet(fabrics::Property::kConfiguration, 0x00464001)).ok());
  EXPECT_EQ(rig.ConnectQueue(controller, 1).answer.status, status_field::kCommandSequence) << "shut down";
}

TEST(TargetConnect, ADiscoveryControllerHasNoIoQueues) {
  Rig rig;
  TargetController& controller = rig.Live(fabrics::kDiscoveryNqn);
  ConnectCapsule capsule(1, fabrics::kDiscoveryNqn);
  capsule.data.controller_id = controller.id();
  EXPECT_EQ(rig.Connect(capsule).answer.status, kInvalidParameters | kDnr);
}

TEST(TargetConnect, IdentifiersComeInTurnFromWhereTheyBegin) {
  Rig rig;
  SubsystemConfig config = ConfigOf("nqn.2024-01.com.example:b");
  config.controller_id_begin = fabrics::kControllerIdLast - 1;
  ASSERT_TRUE(rig.target.Add(config));
  const auto connect = [&] { return rig.Connect(ConnectCapsule(0, config.nqn)).controller; };
  TargetController* const first = connect();
  EXPECT_EQ(first->id(), fabrics::kControllerIdLast - 1);
  rig.target.End(*first);
  rig.live = {connect(), connect()};
  EXPECT_EQ(rig.live[0]->id(), fabrics::kControllerIdLast) << "the one that was given back is not next";
  EXPECT_EQ(rig.live[1]->id(), 1) << "behind the last one comes the first";
}

TEST(TargetConnect, ASubsystemThatComesBackGivesNoIdentifierThatAnOldControllerStillHas) {
  Rig rig;
  TargetController& old = rig.Live();
  ASSERT_TRUE(rig.target.Remove(kSubsystem));
  ASSERT_TRUE(rig.target.Add(ConfigOf()));
  TargetController& fresh = rig.Live();
  EXPECT_NE(old.id(), fresh.id());
}

TEST(TargetConnect, EndsAtTheLimitOfControllers) {
  Rig rig;
  for (uint32_t i = 0; i < kControllersMax; ++i) rig.Live();
  EXPECT_EQ(rig.Connect(ConnectCapsule()).answer.status, 0x181) << "Controller Busy, without Do Not Retry";
  rig.End(*rig.live.front());
  EXPECT_TRUE(rig.Live().ready());
  for (uint32_t i = 0; i < kDiscoveryControllersMax; ++i) rig.Live(fabrics::kDiscoveryNqn);
  EXPECT_EQ(rig.Connect(ConnectCapsule(0, fabrics::kDiscoveryNqn)).answer.status, 0x181);
}

TEST(TargetConnect, EndsAtTheLimitOfTheWholeEngine) {
  Rig rig;
  uint32_t made = 0;
  for (uint32_t s = 0; s < kAllControllersMax / kControllersMax; ++s) {
    const SubsystemConfig config = ConfigOf("nqn.2024-01.com.example:many" + std::to_string(s));
    ASSERT_TRUE(rig.target.Add(config));
    for (uint32_t i = 0; i < kControllersMax; ++i, ++made)
      rig.live.push_back(rig.Connect(ConnectCapsule(0, config.nqn)).controller);
  }
  EXPECT_EQ(made, kAllControllersMax);
  EXPECT_EQ(rig.Connect(ConnectCapsule()).answer.status, 0x181);
}

TEST(TargetConnect, SubsystemsAreCheckedBeforeTheyAreShown) {
  Rig rig;
  const auto refused = [&](void (*change)(SubsystemConfig&), ErrorCode code) {
    SubsystemConfig config = ConfigOf("nqn.2024-01.com.example:b");
    change(config);
    const auto added = rig.target.Add(config);
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code, code) << added.error().message;
  };
  const auto invalid = ErrorCode::kInvalidArgument;
  refused([](SubsystemConfig& c) { c.nqn = "a"; }, invalid);
  refused([](SubsystemConfig& c) { c.nqn = fabrics::kDiscoveryNqn; }, invalid);
  refused([](SubsystemConfig& c) { c.nqn = kSubsystem; }, ErrorCode::kAlreadyExists);
  refused([](SubsystemConfig& c) { c.serial = ""; }, invalid);
  refused([](SubsystemConfig& c) { c.serial = "123456789012345678901"; }, invalid);
  refused([](SubsystemConfig& c) { c.serial = "a\n"; }, invalid);
  refused([](SubsystemConfig& c) { c.model = ""; }, invalid);
  refused([](SubsystemConfig& c) { c.addresses.clear(); }, invalid);
  refused([](SubsystemConfig& c) { c.addresses.resize(kAddressesMax + 1); }, invalid);
  refused([](SubsystemConfig& c) { c.hosts.assign(kHostsMax + 1, HostAccess::Named(kHost)); }, invalid);
  refused([](SubsystemConfig& c) { c.hosts = {HostAccess::Named("host")}; }, invalid);
  refused([](SubsystemConfig& c) { c.io_queues_max = 0; }, invalid);
  refused([](SubsystemConfig& c) { c.io_queues_max = 256; }, invalid);
  refused([](SubsystemConfig& c) { c.controller_id_begin = 0; }, invalid);
  refused([](SubsystemConfig& c) { c.controller_id_begin = 0xfff0; }, invalid);
  refused([](SubsystemConfig& c) { c.standby_addresses = c.addresses; }, invalid);
  refused([](SubsystemConfig& c) { c.standby_addresses.resize(2); }, invalid);
  refused(
      [](SubsystemConfig& c) {
        for (uint16_t port = 1; port <= kAddressesMax + 1; ++port) {
          c.standby_addresses.push_back(kLocal);
          c.standby_addresses.back().port = port;
        }
      },
      invalid);
  EXPECT_EQ(rig.target.Find("nqn.2024-01.com.example:b"), nullptr);
  EXPECT_FALSE(rig.target.SetHosts(kSubsystem, {HostAccess::Named("host")}));
  EXPECT_TRUE(rig.target.Find(kSubsystem)->Admits(kHost)) << "as before";
}

TEST(TargetConnect, AHostThatIsNoLongerLetInIsToldToEnd) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {HostAccess::Named(kHost), HostAccess::Named(kOtherHost)}));
  TargetController& controller = rig.Live();
  TargetController& other = rig.Live(kSubsystem, kOtherHost);
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {HostAccess::Named(kOtherHost)}));
  ASSERT_EQ(rig.heard.ended.size(), 1U);
  EXPECT_NE(rig.heard.ended[0].find(std::string(kHost)), std::string::npos) << rig.heard.ended[0];
  EXPECT_TRUE(controller.ending());
  EXPECT_FALSE(controller.ready());
  EXPECT_NE(rig.Do(controller, KeepAlive()).status, 0) << "nothing of it is executed any more";
  EXPECT_FALSE(rig.ConnectQueue(controller, 1).answer.ok());
  EXPECT_TRUE(other.ready());
}

}  // namespace
}  // namespace cleat::nvme::target::connect_test
