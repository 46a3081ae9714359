// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/nvmf_discovery.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/modules/nvmf_rig.h"
#include "tests/unit/modules/tls_front.h"

namespace cleat::modules::nvmf_discovery_test {
namespace {

using nvme::fabrics::DiscoveredKind;
using nvme::fabrics::DiscoveryLog;
using test::NvmfRig;
using test::NvmfTarget;

NvmfDiscovery OptionsFor(NvmfRig& rig) {
  NvmfDiscovery options;
  options.address = rig.subsystem.addresses[0].target;
  options.host = rig.subsystem.host;
  options.arithmetic = &rig.arithmetic;
  return options;
}

Result<DiscoveryLog> Discover(NvmfRig& rig) {
  return rig.Await(DiscoverNvmf(OptionsFor(rig)));
}

std::string TextOf(const Result<DiscoveryLog>& log) {
  return log ? "a log" : log.error().message;
}

TEST(NvmfDiscovery, TheTargetSaysWhereItsSubsystemIs) {
  NvmfRig rig;
  const auto log = Discover(rig);
  ASSERT_TRUE(log) << TextOf(log);
  ASSERT_EQ(log->records.size(), 2U);
  EXPECT_EQ(log->records[0].kind, DiscoveredKind::kSubsystem);
  EXPECT_EQ(log->records[0].subsystem_nqn, NvmfTarget::kSubsystem);
  EXPECT_EQ(log->records[0].address, rig.subsystem.addresses[0].target);
  EXPECT_EQ(log->records[0].port_id, 1);
  EXPECT_EQ(log->records[1].kind, DiscoveredKind::kReferral);
  EXPECT_EQ(rig.target.counts.discoveries, 1U) << "a referral is not followed";
  EXPECT_EQ(rig.target.counts.farewells, 1U);
  EXPECT_EQ(rig.target.counts.io_queues, 0U);
}

TEST(NvmfDiscovery, ADiskIsOpenedAtTheAddressThatWasDiscovered) {
  NvmfRig rig;
  const auto log = Discover(rig);
  ASSERT_TRUE(log) << TextOf(log);
  rig.subsystem.addresses = {{*log->records[0].address}};
  rig.subsystem.nqn = log->records[0].subsystem_nqn;
  rig.Open();
  rig.Close();
}

TEST(NvmfDiscovery, AHostThatIsNotLetInIsToldSo) {
  NvmfRig rig;
  rig.target.faults.refuse_host = true;
  const auto log = Discover(rig);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kPermissionDenied);
  EXPECT_NE(TextOf(log).find("the discovery service at 127.0.0.1:"), std::string::npos) << TextOf(log);
}

TEST(NvmfDiscovery, WhereNobodyListensIsUnavailable) {
  NvmfRig rig;
  rig.target.Stop();
  const auto log = Discover(rig);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kUnavailable) << TextOf(log);
}

TEST(NvmfDiscovery, ATargetThatFallsSilentHasSoMuchTimeAndNoMore) {
  NvmfRig rig;
  rig.target.faults.mute_log = true;
  auto options = OptionsFor(rig);
  options.timeout_ns = 300 * kNsPerMs;
  const auto log = rig.Await(DiscoverNvmf(options));
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(TextOf(log).find("Get Log Page (Discovery)"), std::string::npos) << TextOf(log);
}

TEST(NvmfDiscovery, ATargetThatNeverSpeaksHasSoMuchTimeAndNoMore) {
  NvmfRig rig;
  rig.target.faults.never_icresp = true;
  auto options = OptionsFor(rig);
  options.timeout_ns = 300 * kNsPerMs;
  const auto log = rig.Await(DiscoverNvmf(options));
  ASSERT_FALSE(log);
  EXPECT_NE(log.error().code, ErrorCode::kInternal) << TextOf(log);
}

TEST(NvmfDiscovery, ALogWithoutEndIsRefusedBeforeItIsRead) {
  NvmfRig rig;
  rig.target.faults.log_records = UINT64_MAX;
  const auto log = Discover(rig);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kResourceExhausted) << TextOf(log);
}

TEST(NvmfDiscovery, ALongLogThatNeverStandsStillIsGivenUp) {
  NvmfRig rig;
  rig.target.faults.log_records = 100;
  rig.target.faults.changing_log = true;
  const auto log = Discover(rig);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kAborted) << TextOf(log);
}

TEST(NvmfDiscovery, RecordsThatAreNoneAreSkippedAndCounted) {
  NvmfRig rig;
  rig.target.faults.log_records = 100;
  const auto log = Discover(rig);
  ASSERT_TRUE(log) << TextOf(log);
  EXPECT_EQ(log->records.size(), 2U);
  EXPECT_EQ(log->skipped, 98U);
  EXPECT_NE(log->why_skipped.find("record 2 has"), std::string::npos) << log->why_skipped;
}

TEST(NvmfDiscovery, AConnectionThatIsCutIsTheReason) {
  NvmfRig rig;
  rig.target.faults.cut_in_data = true;
  const auto log = Discover(rig);
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kUnavailable) << TextOf(log);
}

TEST(NvmfDiscovery, OptionsThatMakeNoSenseAreRefused) {
  NvmfRig rig;
  auto options = OptionsFor(rig);
  options.address.port = 0;
  EXPECT_EQ(rig.Await(DiscoverNvmf(options)).error().code, ErrorCode::kInvalidArgument);
  options = OptionsFor(rig);
  options.host.nqn = "nobody";
  EXPECT_EQ(rig.Await(DiscoverNvmf(options)).error().code, ErrorCode::kInvalidArgument);
}

// ---- Watched

TEST(NvmfDiscovery, ALogThatIsWatchedIsSeenAgainWhenItChanges) {
  NvmfRig rig;
  CancelToken cancel;
  std::vector<size_t> seen;
  auto options = OptionsFor(rig);
  options.cancel = &cancel;
  options.seen = [&](const DiscoveryLog& log) {
    seen.push_back(log.records.size());
    if (seen.size() == 1) rig.target.ChangeLog(1);
    if (seen.size() == 2) cancel.Cancel();
  };
  const auto ended = rig.Await(DiscoverNvmf(options));
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCancelled) << TextOf(ended);
  EXPECT_EQ(seen, (std::vector<size_t>{2, 1}));
  EXPECT_EQ(rig.target.counts.discoveries, 1U) << "by one connection";
}

TEST(NvmfDiscovery, AWatchedServiceThatGoesAwayIsTheReason) {
  NvmfRig rig;
  auto options = OptionsFor(rig);
  options.kato_ms = 2000;
  options.seen = [&](const DiscoveryLog&) {};
  std::optional<Result<DiscoveryLog>> ended;
  const auto watch = [](NvmfDiscovery asked, std::optional<Result<DiscoveryLog>>& result) -> Task<void> {
    result.emplace(co_await DiscoverNvmf(std::move(asked)));
  };
  rig.control->PostCall([&] { Spawn(watch(options, ended)); });
  rig.Until([&] { return ended.has_value() || rig.target.counts.keep_alives > 0; });
  EXPECT_FALSE(ended);
  rig.target.CutAll();
  rig.Until([&] { return ended.has_value(); });
  EXPECT_EQ(ended->error().code, ErrorCode::kUnavailable) << TextOf(*ended);
}

// ---- With secrets

NvmfTarget::Options WithChap() {
  NvmfTarget::Options options;
  options.chap = true;
  return options;
}

TEST(NvmfDiscovery, HostAndServiceProveThemselves) {
  NvmfRig rig(WithChap());
  rig.target.faults.asks_on_admin = true;
  auto options = OptionsFor(rig);
  const auto without = rig.Await(DiscoverNvmf(options));
  ASSERT_FALSE(without);
  EXPECT_EQ(without.error().code, ErrorCode::kPermissionDenied) << TextOf(without);
  options.chap = NvmfRig::Secrets(true);
  const auto log = rig.Await(DiscoverNvmf(options));
  ASSERT_TRUE(log) << TextOf(log);
  EXPECT_EQ(rig.target.counts.accepted_hosts, 1U);
  EXPECT_EQ(rig.target.counts.proofs, 1U);
}

TEST(NvmfDiscovery, AServiceThatDoesNotProveItselfIsNotRead) {
  NvmfRig rig(WithChap());
  rig.target.faults.other_own_secret = true;
  auto options = OptionsFor(rig);
  options.chap = NvmfRig::Secrets(true);
  const auto log = rig.Await(DiscoverNvmf(options));
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kPermissionDenied) << TextOf(log);
}

// ---- Over TLS

struct TlsService {
  explicit TlsService(NvmfRig& rig, const char* key = test::kTlsKeys[0],
                      nvme::tls::IdentityVersion identity = nvme::tls::IdentityVersion::kV0)
      : front({.psk = key,
               .host_nqn = rig.subsystem.host.nqn,
               .subsystem_nqn = NvmfTarget::kDiscovery,
               .identity = identity},
              rig.target.port()),
        options(OptionsFor(rig)) {
    options.address =
        nvme::fabrics::ParseTransportAddress("127.0.0.1:" + std::to_string(front.port())).value();
    options.psk = std::make_shared<const nvme::tls::Psk>(
        nvme::tls::Psk::Parse(test::kTlsKeys[0], "the pre-shared key").value());
  }
  test::TlsFront front;
  NvmfDiscovery options;
};

TEST(NvmfDiscovery, AServiceIsReadOverTlsByEitherIdentity) {
  for (const auto identity : {nvme::tls::IdentityVersion::kV0, nvme::tls::IdentityVersion::kV1}) {
    NvmfRig rig;
    TlsService service(rig, test::kTlsKeys[0], identity);
    const auto log = rig.Await(DiscoverNvmf(service.options));
    ASSERT_TRUE(log) << TextOf(log);
    EXPECT_EQ(log->records.size(), 2U);
    EXPECT_EQ(service.front.counts.refused, identity == nvme::tls::IdentityVersion::kV0 ? 0U : 1U);
  }
}

// The first identity takes of the time of the first reading alone.
TEST(NvmfDiscovery, AServiceThatIsWatchedByTheSecondIdentityHasTheWholeTimeAtEachChange) {
  NvmfRig rig;
  TlsService service(rig, test::kTlsKeys[0], nvme::tls::IdentityVersion::kV1);
  service.options.timeout_ns = 5 * kNsPerSecond;
  size_t logs = 0;
  service.options.seen = [&](const DiscoveryLog&) {
    ++logs;
    rig.target.faults.mute_log = true;
    rig.target.ChangeLog(1);
  };
  const auto ended = rig.Await(DiscoverNvmf(service.options));
  EXPECT_EQ(logs, 1U);
  EXPECT_EQ(service.front.counts.refused, 1U);
  ASSERT_FALSE(ended);
  EXPECT_NE(TextOf(ended).find("has not been read in 5000 ms"), std::string::npos) << TextOf(ended);
}

TEST(NvmfDiscovery, AServiceWithAnotherKeyIsRefused) {
  NvmfRig rig;
  TlsService service(rig, test::kOtherTlsKey);
  const auto log = rig.Await(DiscoverNvmf(service.options));
  ASSERT_FALSE(log);
  EXPECT_EQ(log.error().code, ErrorCode::kPermissionDenied) << TextOf(log);
  EXPECT_EQ(service.front.counts.accepted, 2U) << "one try by each identity";
  EXPECT_EQ(rig.target.counts.ic_requests, 0U) << "nothing goes without the key";
}

}  // namespace
}  // namespace cleat::modules::nvmf_discovery_test
