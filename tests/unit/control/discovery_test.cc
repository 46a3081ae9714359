// SPDX-License-Identifier: Apache-2.0
// Discovery services, which an engine asks for a caller: whom it asks as, what the caller hears, and that no call waits for ever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "control/model/reasons.h"
#include "control/state/pools/host_uid.h"
#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control::discovery_test {
namespace {

using Answer = Result<v1::DiscoverSubsystemsResponse>;

constexpr char kHostNqn[] = "nqn.2014-08.org.example:host";
constexpr char kHostId[] = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11";
constexpr char kAsked[] =
    "Discover 10.0.0.1:8009 as nqn.2014-08.org.example:host 4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11 in 10000 ms";

v1::DiscoverSubsystemsRequest At(const std::string& address) {
  v1::DiscoverSubsystemsRequest request;
  request.set_address(address);
  request.set_host_nqn(kHostNqn);
  request.set_host_id(kHostId);
  return request;
}

engine::v1::Discovery One(const std::string& nqn) {
  engine::v1::Discovery discovery;
  engine::v1::DiscoveryRecord& record = *discovery.add_records();
  record.set_subtype(engine::v1::DISCOVERY_SUBTYPE_NVM);
  record.set_nqn(nqn);
  record.set_transport("tcp");
  record.set_address("10.0.0.2");
  record.set_port("4420");
  record.set_secure_channel(engine::v1::SECURE_CHANNEL_REQUIRED);
  return discovery;
}

class DiscoveryTest : public ReconcilerRig {
 protected:
  Answer Discover(const v1::DiscoverSubsystemsRequest& request = At("10.0.0.1")) {
    return state_->discoveries().Discover(request);
  }
  std::future<Answer> DiscoverMeanwhile() {
    return std::async(std::launch::async, [this] { return Discover(); });
  }
  static void ExpectRefused(const Answer& answer, v1::Reason reason, const std::string& says) {
    ASSERT_FALSE(answer.ok()) << says;
    EXPECT_EQ(ReasonOf(answer.error()), reason) << answer.error().message;
    EXPECT_NE(answer.error().message.find(says), std::string::npos) << answer.error().message;
  }
};

TEST_F(DiscoveryTest, TheCallerHearsAllPartsOfWhatTheServiceHas) {
  engine::v1::Discovery second = One("nqn.2014-08.org.example:b");
  second.mutable_records(0)->set_subtype(engine::v1::DISCOVERY_SUBTYPE_REFERRAL);
  second.set_skipped(3);
  second.set_why_skipped("record 7 has no name");
  engine_.SetDiscovery({One("nqn.2014-08.org.example:a"), second});
  ASSERT_TRUE(engine_.Connect());
  const Answer answer = Discover();
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  ASSERT_EQ(answer->records_size(), 2);
  EXPECT_EQ(answer->records(0).ShortDebugString(),
            "subtype: DISCOVERY_SUBTYPE_NVM nqn: \"nqn.2014-08.org.example:a\" transport: \"tcp\" address: "
            "\"10.0.0.2\" port: \"4420\" secure_channel: SECURE_CHANNEL_REQUIRED");
  EXPECT_EQ(answer->records(1).subtype(), v1::DISCOVERY_SUBTYPE_REFERRAL);
  EXPECT_EQ(answer->skipped(), 3U);
  EXPECT_EQ(answer->why_skipped(), "record 7 has no name");
  EXPECT_EQ(answer->host_nqn(), kHostNqn);
  EXPECT_EQ(answer->host_id(), kHostId);
  const Requests asked = engine_.TakeRequests();
  EXPECT_EQ(std::count(asked.begin(), asked.end(), kAsked), 1) << fmt::format("{}", fmt::join(asked, "\n"));
}

TEST_F(DiscoveryTest, WithoutAWordItAsksAsTheHostThatANewSubsystemHas) {
  engine_.SetDiscovery({{}});
  ASSERT_TRUE(engine_.Connect());
  v1::DiscoverSubsystemsRequest request;
  request.set_address("[fd00::1]:4420");
  const Answer answer = Discover(request);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->host_nqn(), "nqn.2014-08.org.nvmexpress:uuid:" + answer->host_id());
  const auto created = state_->subsystems().Create(NewSubsystem("array"));
  ASSERT_TRUE(created.ok());
  engine_.WaitForRequest(
      fmt::format("Discover [fd00::1]:4420 as {} {} in 10000 ms", answer->host_nqn(), answer->host_id()));
  if (HostUid() == pool::Uid{}) return;  // drawn for each
  EXPECT_EQ(answer->host_id(), created->spec().host_id());
}

TEST_F(DiscoveryTest, WhatCannotBeAskedIsRefusedByField) {
  ASSERT_TRUE(engine_.Connect());
  const auto refused = [&](const v1::DiscoverSubsystemsRequest& request, const std::string& field) {
    const Answer answer = Discover(request);
    ExpectRefused(answer, v1::REASON_INVALID_FIELD, field);
    EXPECT_EQ(MetadataOf(answer.error(), "field"), field);
  };
  refused(At(""), "address");
  refused(At("array.example:8009"), "address");
  auto request = At("10.0.0.1");
  request.clear_host_id();
  refused(request, "host_id");
  request = At("10.0.0.1");
  request.set_host_nqn("nobody");
  refused(request, "host_nqn");
}

TEST_F(DiscoveryTest, AnErrorNamesTheServiceTheCauseAndWhatToDo) {
  ASSERT_TRUE(engine_.Connect());
  const auto failed = [&](const std::string& code, const std::string& next) {
    engine_.FailDiscoveries(code, "the discovery service at 10.0.0.1:8009: as it was");
    const Answer answer = Discover();
    ExpectRefused(answer, v1::REASON_DISCOVERY_FAILED,
                  "the discovery service at 10.0.0.1:8009 can't be read by engines/engine-0: as it was; ");
    ExpectRefused(answer, v1::REASON_DISCOVERY_FAILED, next);
  };
  failed("permission_denied", "have the service let in host nqn.2014-08.org.example:host");
  failed("unavailable", "see that a discovery service listens there");
  failed("deadline_exceeded", "see that a discovery service listens there");
  failed("data_loss", "give the subsystem's addresses without it");
}

TEST_F(DiscoveryTest, AnEngineThatIsTooOldIsNotAskedAndTheErrorNamesIt) {
  ExpectRefused(Discover(), v1::REASON_ENGINE_NOT_CONNECTED, "no engine is connected");
  engine_.set_protocol(kProtocolDiscovery - 1);
  ASSERT_TRUE(engine_.Connect());
  ExpectRefused(Discover(), v1::REASON_ENGINE_TOO_OLD,
                "engines/engine-0 (version 0.0.1, protocol 7) can't ask the discovery service at "
                "10.0.0.1:8009, which takes protocol 8: upgrade the engine (cleatctl engine upgrade)");
  const Requests asked = engine_.TakeRequests();
  EXPECT_EQ(std::count(asked.begin(), asked.end(), kAsked), 0);
  FakeEngine newer(socket_, "engine-1");
  newer.SetDiscovery({{}});
  ASSERT_TRUE(newer.Connect());
  EXPECT_TRUE(Discover().ok()) << "beside an older one";
}

TEST_F(DiscoveryTest, AnEngineThatGoesAwayEndsTheCall) {
  ASSERT_TRUE(engine_.Connect());
  engine_.Hold("Discover");
  auto answer = DiscoverMeanwhile();
  engine_.WaitForRequest(kAsked);
  engine_.Disconnect();
  ExpectRefused(answer.get(), v1::REASON_ENGINE_NOT_CONNECTED, "is not connected any more: repeat");
}

TEST_F(DiscoveryTest, AnAnswerWithoutEndEndsTheConnection) {
  engine_.SetDiscovery(std::vector<engine::v1::Discovery>(40, One(std::string(60'000, 'n'))));
  ASSERT_TRUE(engine_.Connect());
  ExpectRefused(Discover(), v1::REASON_ENGINE_NOT_CONNECTED, "is not connected any more: repeat");
}

TEST_F(DiscoveryTest, AnEngineThatSaysNothingIsNotAwaitedForEver) {
  state_->discoveries().SetPatience(std::chrono::milliseconds(50));
  ASSERT_TRUE(engine_.Connect());
  engine_.Hold("Discover");
  ExpectRefused(Discover(), v1::REASON_DISCOVERY_FAILED,
                "the discovery service at 10.0.0.1:8009: no engine has said in 0.05 s what it has");
}

TEST_F(DiscoveryTest, SoManyAtATimeAndStoppingEndsThem) {
  ASSERT_TRUE(engine_.Connect());
  engine_.Hold("Discover");
  std::vector<std::future<Answer>> answers;
  for (size_t i = 0; i < Discoveries::kWaitingMax; ++i) answers.push_back(DiscoverMeanwhile());
  size_t asked = 0;
  Await("all are asked", [&] {
    for (const std::string& request : engine_.TakeRequests()) asked += request == kAsked ? 1 : 0;
    return asked == Discoveries::kWaitingMax;
  });
  ExpectRefused(Discover(), v1::REASON_RESOURCE_BUSY, "8 discoveries are under way");
  state_->StopWatchers();
  for (auto& answer : answers) ExpectRefused(answer.get(), v1::REASON_STOPPING, "cleatd is stopping");
  ExpectRefused(Discover(), v1::REASON_STOPPING, "cleatd is stopping");
}

}  // namespace
}  // namespace cleat::control::discovery_test
