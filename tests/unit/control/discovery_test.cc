// SPDX-License-Identifier: Apache-2.0
// Discovery services, which an engine asks for a caller: whom it asks as, what the caller hears, and that no call waits for ever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "control/model/reasons.h"
#include "control/state/pools/host_uid.h"
#include "keys_rig.h"
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

constexpr char kWatched[] =
    "Watch 10.0.0.1:8009 as nqn.2014-08.org.example:host 4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11 in 10000 ms";

class DiscoveryTest : public KeysRig {
 protected:
  Answer Discover(v1::DiscoverSubsystemsRequest request = At("10.0.0.1")) {
    return state_->discoveries().Discover(&request, [this] { return gone_.load(); });
  }
  std::future<Answer> DiscoverMeanwhile() {
    return std::async(std::launch::async, [this] { return Discover(); });
  }
  // Until `write` does not want more, or it ends by itself.
  std::future<Error> WatchMeanwhile(std::function<bool(const v1::DiscoverSubsystemsResponse&)> write) {
    return std::async(std::launch::async, [this, write = std::move(write)] {
      auto request = At("10.0.0.1");
      return state_->discoveries().Watch(&request, write, [this] { return gone_.load(); }).error();
    });
  }
  static void ExpectRefused(const Answer& answer, v1::Reason reason, const std::string& says) {
    ASSERT_FALSE(answer.ok()) << says;
    EXPECT_EQ(ReasonOf(answer.error()), reason) << answer.error().message;
    EXPECT_NE(answer.error().message.find(says), std::string::npos) << answer.error().message;
  }

  std::atomic<bool> gone_{false};  // whoever has called
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

TEST_F(DiscoveryTest, WhoGoesAwayLeavesItsPlaceAndTheEngineIsTold) {
  ASSERT_TRUE(engine_.Connect());
  engine_.Hold("Discover");
  std::vector<std::future<Answer>> answers;
  for (size_t i = 0; i < Discoveries::kWaitingMax; ++i) answers.push_back(DiscoverMeanwhile());
  size_t asked = 0;
  size_t stopped = 0;
  const auto count = [&] {
    for (const std::string& request : engine_.TakeRequests()) {
      asked += request == kAsked ? 1 : 0;
      stopped += request == "StopDiscover" ? 1 : 0;
    }
  };
  Await("all are asked", [&] {
    count();
    return asked == Discoveries::kWaitingMax;
  });
  gone_ = true;
  for (auto& answer : answers) EXPECT_EQ(answer.get().error().code, ErrorCode::kCancelled);
  Await("all are ended", [&] {
    count();
    return stopped == Discoveries::kWaitingMax;
  });
  gone_ = false;
  engine_.SetDiscovery({{}});
  engine_.Release();
  EXPECT_TRUE(Discover().ok());
}

// ---- Over RDMA

TEST_F(DiscoveryTest, AServiceIsAskedOverRdmaByAnEngineThatKnowsHow) {
  engine::v1::Discovery found = One("nqn.2014-08.org.example:a");
  found.mutable_records(0)->set_transport("rdma");
  engine_.SetDiscovery({found});
  engine_.set_protocol(kProtocolRdmaDisks - 1);
  ASSERT_TRUE(engine_.Connect());
  ExpectRefused(
      Discover(At("rdma://10.0.0.1")), v1::REASON_ENGINE_TOO_OLD,
      "engines/engine-0 (version 0.0.1, protocol 13) can't ask the discovery service at "
      "rdma://10.0.0.1:8009, which takes protocol 14: upgrade the engine (cleatctl engine upgrade)");
  EXPECT_TRUE(Discover().ok()) << "by TCP it can";
  FakeEngine newer(socket_, "engine-1");
  newer.SetDiscovery({found});
  ASSERT_TRUE(newer.Connect());
  const Answer answer = Discover(At("rdma://[fd00:0::1]"));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->records(0).transport(), "rdma");
  EXPECT_EQ(newer.LastDiscover().address(), "rdma://[fd00::1]:8009") << "in the form that is kept";
  ASSERT_TRUE(Discover(At("rdma://10.0.0.1:4420")).ok());
  EXPECT_EQ(newer.LastDiscover().address(), "rdma://10.0.0.1:4420");
}

TEST_F(DiscoveryTest, OverRdmaNobodysAddressAndAPreSharedKeyAreRefusedAndOtherSecretsAreNot) {
  engine_.SetDiscovery({{}});
  ASSERT_TRUE(engine_.Connect());
  for (const char* const address : {"rdma://0.0.0.0", "rdma://[::]:4420", "rdma://array.example"}) {
    const Answer answer = Discover(At(address));
    ExpectRefused(answer, v1::REASON_INVALID_FIELD,
                  address == std::string("rdma://array.example") ? "address is wrong: 'rdma://array.example'"
                                                                 : "which is nobody's address");
    ASSERT_FALSE(answer.ok()) << address;
    EXPECT_EQ(MetadataOf(answer.error(), "field"), "address");
  }
  auto request = At("rdma://10.0.0.1");
  request.mutable_dhchap_secret()->set_plain_key(kChapSecret);
  request.mutable_tls_psk();  // none
  ASSERT_TRUE(Discover(request).ok());
  EXPECT_TRUE(engine_.LastDiscover().has_dhchap_secret());
  request.mutable_tls_psk()->set_plain_key(kTlsPsk);
  const Answer refused = Discover(request);
  ExpectRefused(
      refused, v1::REASON_INVALID_FIELD,
      "address is rdma://10.0.0.1:8009, and a pre-shared key (tls_psk) is given: NVMe/RDMA has no TLS, "
      "but takes DH-HMAC-CHAP secrets (dhchap_secret) as NVMe/TCP does. Ask the service over TCP, or "
      "leave the key out");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message.find(kTlsPsk), std::string::npos);
  request.set_address("10.0.0.1");
  EXPECT_TRUE(Discover(request).ok());
}

TEST_F(DiscoveryTest, WhereNobodyAnswersTheTransportIsNamed) {
  ASSERT_TRUE(engine_.Connect());
  engine_.FailDiscoveries("unavailable", "as it was");
  ExpectRefused(Discover(), v1::REASON_DISCOVERY_FAILED, "listens there over NVMe/TCP, mostly at port 8009");
  ExpectRefused(Discover(At("rdma://10.0.0.1")), v1::REASON_DISCOVERY_FAILED,
                "listens there over NVMe/RDMA, mostly at port 8009");
}

// ---- Watched

TEST_F(DiscoveryTest, AWatcherHearsOfEachChangeAndWhyItEnds) {
  engine_.SetDiscovery({One("nqn.2014-08.org.example:a"), One("nqn.2014-08.org.example:b")});
  ASSERT_TRUE(engine_.Connect());
  std::vector<int> logs;
  auto ended = WatchMeanwhile([&](const v1::DiscoverSubsystemsResponse& log) {
    EXPECT_EQ(log.host_nqn(), kHostNqn);
    logs.push_back(log.records_size());
    if (logs.size() == 1) engine_.TellWatched({One("nqn.2014-08.org.example:b")});
    if (logs.size() == 2)
      engine_.EndWatched("unavailable", "the discovery service at 10.0.0.1:8009: it closed");
    return true;
  });
  const Error why = ended.get();
  EXPECT_EQ(logs, (std::vector<int>{2, 1})) << "the parts of one are one";
  EXPECT_EQ(ReasonOf(why), v1::REASON_DISCOVERY_FAILED);
  EXPECT_EQ(why.message,
            "the discovery service at 10.0.0.1:8009 is not watched by engines/engine-0 any more: it closed; "
            "see that the service is there, and watch it again");
}

TEST_F(DiscoveryTest, AServiceThatTellsOfNoChangesEndsItBehindItsLog) {
  engine_.SetDiscovery({One("nqn.2014-08.org.example:a")});
  ASSERT_TRUE(engine_.Connect());
  std::atomic<size_t> logs{0};
  std::promise<void> read_on;
  auto ended = WatchMeanwhile([&](const v1::DiscoverSubsystemsResponse&) {
    if (++logs == 1) read_on.get_future().wait();
    return true;
  });
  Await("it has told", [&] { return logs == 1; });
  engine_.TellWatched({One("nqn.2014-08.org.example:b")});
  engine_.TellWatched({One("nqn.2014-08.org.example:c")});
  engine_.EndWatched("unimplemented", "it does not tell of changes");
  EXPECT_TRUE(Discover().ok());  // whose answer comes behind all that
  read_on.set_value();
  const Error why = ended.get();
  EXPECT_EQ(logs, 2U) << "of those that came meanwhile the last one is heard, before the end";
  EXPECT_NE(why.message.find("does not tell of changes; discover again"), std::string::npos) << why.message;
}

TEST_F(DiscoveryTest, AWatcherThatGoesAwayEndsWhatTheEngineDoes) {
  engine_.SetDiscovery({One("nqn.2014-08.org.example:a")});
  ASSERT_TRUE(engine_.Connect());
  auto ended = WatchMeanwhile([&](const v1::DiscoverSubsystemsResponse&) {
    gone_ = true;
    return true;
  });
  EXPECT_EQ(ended.get().code, ErrorCode::kCancelled);
  engine_.WaitForRequest("StopDiscover");
  engine_.TakeRequests();
  gone_ = false;
  auto second = WatchMeanwhile([](const v1::DiscoverSubsystemsResponse&) { return false; });
  EXPECT_EQ(second.get().code, ErrorCode::kCancelled) << "whose caller could not be written to";
  engine_.WaitForRequest("StopDiscover");
}

TEST_F(DiscoveryTest, AWatcherHearsThatItsEngineHasGone) {
  engine_.SetDiscovery({One("nqn.2014-08.org.example:a")});
  ASSERT_TRUE(engine_.Connect());
  auto ended = WatchMeanwhile([&](const v1::DiscoverSubsystemsResponse&) {
    engine_.Disconnect();
    return true;
  });
  EXPECT_EQ(ReasonOf(ended.get()), v1::REASON_ENGINE_NOT_CONNECTED);
}

TEST_F(DiscoveryTest, SoManyWatchAndStoppingEndsThem) {
  engine_.SetDiscovery({One("nqn.2014-08.org.example:a")});
  ASSERT_TRUE(engine_.Connect());
  std::atomic<size_t> watching{0};
  std::vector<std::future<Error>> watches;
  for (size_t i = 0; i < Discoveries::kWaitingMax; ++i) {
    watches.push_back(WatchMeanwhile([&](const v1::DiscoverSubsystemsResponse&) {
      ++watching;
      return true;
    }));
  }
  Await("all watch", [&] { return watching == Discoveries::kWaitingMax; });
  EXPECT_EQ(ReasonOf(WatchMeanwhile([](const auto&) { return true; }).get()), v1::REASON_RESOURCE_BUSY);
  EXPECT_TRUE(Discover().ok()) << "beside them";
  state_->StopWatchers();
  for (auto& watch : watches) EXPECT_EQ(ReasonOf(watch.get()), v1::REASON_STOPPING);
}

// ---- With secrets

TEST_F(DiscoveryTest, AnEngineIsToldTheSecretsWrapped) {
  engine_.SetDiscovery({{}});
  ASSERT_TRUE(engine_.Connect());
  auto request = At("10.0.0.1");
  request.mutable_dhchap_secret()->set_plain_key(kChapSecret);
  request.mutable_tls_psk()->set_plain_key(kTlsPsk);
  ASSERT_TRUE(Discover(request).ok());
  const engine::v1::Discover told = engine_.LastDiscover();
  EXPECT_FALSE(told.has_dhchap_ctrl_secret());
  const auto text = [&](const engine::v1::WrappedSecret& secret) {
    return Unwrapped(secret.key_encryption_key(), secret.data(), "it");
  };
  EXPECT_EQ(text(told.dhchap_secret()), kChapSecret);
  EXPECT_EQ(text(told.tls_psk()), kTlsPsk);
  request = At("10.0.0.1");
  request.mutable_dhchap_secret()->set_plain_key(kChapSecret);
  request.mutable_dhchap_ctrl_secret()->set_plain_key(kOtherChapSecret);
  ASSERT_TRUE(Discover(request).ok());
  EXPECT_EQ(text(engine_.LastDiscover().dhchap_ctrl_secret()), kOtherChapSecret);
  EXPECT_FALSE(engine_.LastDiscover().has_tls_psk());
}

TEST_F(DiscoveryTest, SecretsThatAreNoneAreRefusedByField) {
  ASSERT_TRUE(engine_.Connect());
  auto request = At("10.0.0.1");
  request.mutable_dhchap_ctrl_secret()->set_plain_key(kChapSecret);
  Answer answer = Discover(request);
  ExpectRefused(answer, v1::REASON_KEY_INVALID, "the discovery service at 10.0.0.1:8009: dhchap_ctrl_secret");
  EXPECT_EQ(MetadataOf(answer.error(), "field"), "dhchap_ctrl_secret");
  request.mutable_dhchap_secret()->set_plain_key("nonsense");
  answer = Discover(request);
  ExpectRefused(answer, v1::REASON_KEY_INVALID, "dhchap_secret is no DH-HMAC-CHAP secret");
  EXPECT_EQ(MetadataOf(answer.error(), "field"), "dhchap_secret");
}

TEST_F(DiscoveryTest, PlainSecretsAreGoneBeforeTheFirstLogAndWhereSomethingIsRefused) {
  engine_.SetDiscovery({{}});
  ASSERT_TRUE(engine_.Connect());
  const auto with_secrets = [](const std::string& address, const char* chap_secret) {
    auto request = At(address);
    request.mutable_dhchap_secret()->set_plain_key(chap_secret);
    request.mutable_tls_psk()->set_plain_key(kTlsPsk);
    return request;
  };
  const auto stays = [] { return false; };
  auto request = with_secrets("10.0.0.1", kChapSecret);
  size_t logs = 0;
  const auto write = [&](const v1::DiscoverSubsystemsResponse&) {
    EXPECT_EQ(PlainKeyIn(request), "");
    EXPECT_TRUE(HasSecrets(request)) << "wrapped";
    return ++logs == 0;
  };
  EXPECT_FALSE(state_->discoveries().Watch(&request, write, stays).ok());
  EXPECT_EQ(logs, 1U);
  for (auto& refused : {with_secrets("array.example", kChapSecret), with_secrets("10.0.0.1", "nonsense")}) {
    request = refused;
    EXPECT_FALSE(state_->discoveries().Discover(&request, stays).ok());
    EXPECT_EQ(PlainKeyIn(request), "") << request.address();
  }
}

// It would read over them, and connect without; or end after one log.
TEST_F(DiscoveryTest, AnEngineThatKnowsOfNeitherIsNotAsked) {
  engine_.SetDiscovery({{}});
  engine_.set_protocol(kProtocolWatching - 1);
  ASSERT_TRUE(engine_.Connect());
  EXPECT_TRUE(Discover().ok());
  auto request = At("10.0.0.1");
  request.mutable_tls_psk()->set_plain_key(kTlsPsk);
  ExpectRefused(Discover(request), v1::REASON_ENGINE_TOO_OLD,
                "can't use secrets with the discovery service at 10.0.0.1:8009, which takes protocol 9");
  const Error why = WatchMeanwhile([](const auto&) { return true; }).get();
  EXPECT_EQ(ReasonOf(why), v1::REASON_ENGINE_TOO_OLD) << why.message;
  const Requests asked = engine_.TakeRequests();
  EXPECT_EQ(std::count(asked.begin(), asked.end(), kAsked), 1);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), kWatched), 0);
}

}  // namespace
}  // namespace cleat::control::discovery_test
