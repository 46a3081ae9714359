// SPDX-License-Identifier: Apache-2.0
// A subsystem of an engine that stands by: all of its namespaces, whenever they come, are inaccessible until the engine serves it.
#include <gtest/gtest.h>

#include <vector>

#include "nvme/fabrics/log_pages.h"
#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::standby_test {
namespace {

using fabrics::AnaState;

constexpr uint32_t kAnaEvent = 0x000c0302;

NamespaceShape Another() {
  NamespaceShape shape = Shape();
  shape.ids = {.uuid = fabrics::Uuid{1}, .nguid = {}, .eui64 = {}};
  return shape;
}

fabrics::SubmissionEntry EventRequest(uint16_t cid) {
  fabrics::SubmissionEntry request = Plain(AsyncEventRequest());
  request.cid = cid;
  return request;
}

std::vector<AnaState> StatesOf(Rig& rig, TargetController& controller, size_t namespaces) {
  const auto bytes = static_cast<uint32_t>(16 + namespaces * 36);
  const auto log = fabrics::ParseAnaLog(
      rig.Read(controller, GetLogPage(LogPage::kAna, kAllNamespaces, bytes), bytes), "it");
  EXPECT_TRUE(log);
  EXPECT_EQ(log->groups.size(), namespaces);
  std::vector<AnaState> states;
  for (const fabrics::AnaGroup& group : log->groups) states.push_back(group.state);
  return states;
}

TEST(TargetStandby, NamespacesAreInaccessibleThoseThatComeMeanwhileToo) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, AnaState::kInaccessible));
  TargetController& controller = rig.Live();
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 5, Another()));
  EXPECT_EQ(StatesOf(rig, controller, 2), std::vector<AnaState>(2, AnaState::kInaccessible));
  ASSERT_TRUE(rig.target.RemoveNamespace(kSubsystem, 3));
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 3, Shape()));
  EXPECT_EQ(StatesOf(rig, controller, 2), std::vector<AnaState>(2, AnaState::kInaccessible));
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, AnaState::kOptimized));
  ASSERT_TRUE(rig.target.RemoveNamespace(kSubsystem, 5));
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 5, Another()));
  EXPECT_EQ(StatesOf(rig, controller, 2), std::vector<AnaState>(2, AnaState::kOptimized));
}

// The engine that serves it may listen at another address beside this one.
TEST(TargetStandby, ItIsReachedByItsStandbyAddressesAlone) {
  Rig rig;
  SubsystemConfig config = ConfigOf("nqn.2024-01.com.example:standing-by");
  fabrics::TransportAddress own = kLocal;
  own.port = 4421;
  config.standby_addresses = {own};
  ASSERT_TRUE(rig.target.Add(config));
  ASSERT_TRUE(rig.target.SetAna(config.nqn, AnaState::kInaccessible));
  const ConnectCapsule capsule(0, config.nqn);
  const Answer refused = rig.Connect(capsule).answer;
  EXPECT_EQ(refused.status, 0x182) << "Connect Invalid Parameters, and may be tried again";
  rig.local = own;
  TargetController& controller = rig.Live(config.nqn);
  rig.End(controller);
  rig.local = kLocal;
  ASSERT_TRUE(rig.target.SetAna(config.nqn, AnaState::kOptimized));
  rig.Live(config.nqn);
}

TEST(TargetStandby, TheSameNumbersOverTheOtherTransportAreAnotherAddress) {
  Rig rig;
  SubsystemConfig config = ConfigOf("nqn.2024-01.com.example:standing-by");
  fabrics::TransportAddress rdma = kLocal;
  rdma.transport = fabrics::TransportType::kRdma;
  fabrics::TransportAddress any = kLocal;
  any.address = {};
  any.port = 4421;
  config.standby_addresses = {rdma, any};
  ASSERT_TRUE(rig.target.Add(config));
  ASSERT_TRUE(rig.target.SetAna(config.nqn, AnaState::kInaccessible));
  const auto reached_at = [&](fabrics::TransportType transport, uint16_t port) {
    rig.local.transport = transport;
    rig.local.port = port;
    const Connected connected = rig.Connect(ConnectCapsule(0, config.nqn));
    if (connected.controller != nullptr) rig.target.End(*connected.controller);
    return connected.answer.ok();
  };
  EXPECT_TRUE(reached_at(fabrics::TransportType::kRdma, 4420));
  EXPECT_FALSE(reached_at(fabrics::TransportType::kTcp, 4420)) << "where another engine may listen";
  EXPECT_TRUE(reached_at(fabrics::TransportType::kTcp, 4421));
  EXPECT_FALSE(reached_at(fabrics::TransportType::kRdma, 4421))
      << "all of TCP's addresses are none of RDMA's";
}

TEST(TargetStandby, AHostIsToldOnceWhenAllBecomeOptimized) {
  Rig rig;
  ASSERT_TRUE(rig.target.PutNamespace(kSubsystem, 5, Another()));
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, AnaState::kInaccessible));
  TargetController& controller = rig.Live();
  EXPECT_EQ(rig.Do(controller, EventRequest(1)).kind, Answer::Kind::kHeld);
  EXPECT_EQ(rig.Do(controller, EventRequest(2)).kind, Answer::Kind::kHeld);
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, AnaState::kInaccessible));
  EXPECT_TRUE(rig.heard.completed.empty()) << "as it was";
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, AnaState::kOptimized));
  ASSERT_EQ(rig.heard.completed.size(), 1U);
  EXPECT_EQ(rig.heard.completed[0].second.result, kAnaEvent);
  EXPECT_EQ(StatesOf(rig, controller, 2), std::vector<AnaState>(2, AnaState::kOptimized));
  EXPECT_FALSE(rig.target.SetAna("nqn.2024-01.com.example:unknown", AnaState::kOptimized));
}

// What hosts compare of one namespace by two paths, and what else they ask before they use it, is there.
TEST(TargetStandby, NamespacesAreIdentifiedAsByTheEngineThatServesThem) {
  Rig rig;
  TargetController& controller = rig.Live();
  const auto pages = [&] {
    std::vector<std::vector<uint8_t>> read;
    for (const IdentifyCns cns : {IdentifyCns::kController, IdentifyCns::kActiveNamespaces})
      read.push_back(rig.Read(controller, Identify(cns, 0), kIdentifyBytes));
    for (const IdentifyCns cns :
         {IdentifyCns::kNamespace, IdentifyCns::kDescriptors, IdentifyCns::kIndependentNamespace})
      read.push_back(rig.Read(controller, Identify(cns, 3), kIdentifyBytes));
    return read;
  };
  const auto served = pages();
  ASSERT_TRUE(rig.target.SetAna(kSubsystem, AnaState::kInaccessible));
  EXPECT_EQ(pages(), served);
  EXPECT_TRUE(rig.ConnectQueue(controller, 1).answer.ok());
  controller.QueueEnded(1);
}

}  // namespace
}  // namespace cleat::nvme::target::standby_test
