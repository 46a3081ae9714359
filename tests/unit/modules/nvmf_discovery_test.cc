// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/nvmf_discovery.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::modules::nvmf_discovery_test {
namespace {

using nvme::fabrics::DiscoveredKind;
using nvme::fabrics::DiscoveryLog;
using test::NvmfRig;
using test::NvmfTarget;

NvmfDiscovery OptionsFor(const NvmfRig& rig) {
  return {.address = rig.subsystem.addresses[0], .host = rig.subsystem.host};
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
  EXPECT_EQ(log->records[0].address, rig.subsystem.addresses[0]);
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
  rig.subsystem.addresses = {*log->records[0].address};
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

}  // namespace
}  // namespace cleat::modules::nvmf_discovery_test
