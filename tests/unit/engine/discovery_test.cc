// SPDX-License-Identifier: Apache-2.0
// What the engine says of a discovery service, against a target that is one: the texts that cleatd is given, and that nobody waits in vain.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "engine/discovery/discover.h"
#include "nvme/fabrics/names.h"
#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::engine::discovery_test {
namespace {

using test::NvmfRig;
using test::NvmfTarget;

class EngineDiscovery : public testing::Test {
 protected:
  DiscoverySpec Spec() {
    return {.address = nvme::fabrics::TextOfAddress(rig_.subsystem.addresses[0]),
            .host_nqn = rig_.subsystem.host.nqn,
            .host_id = nvme::fabrics::TextOfUuid(rig_.subsystem.host.id),
            .timeout_ms = 10'000};
  }
  Result<DiscoveryReport> Ask(DiscoverySpec spec) { return rig_.Await(Discover(std::move(spec), cancel_)); }

  NvmfRig rig_;
  CancelToken cancel_;
};

TEST_F(EngineDiscovery, TellsWhatTheServiceHasInTexts) {
  rig_.target.faults.log_records = 5;
  const auto report = Ask(Spec());
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->records.size(), 2U);
  const DiscoveryRecord& record = report->records[0];
  EXPECT_EQ(record.subtype, DiscoverySubtype::kNvm);
  EXPECT_EQ(record.nqn, NvmfTarget::kSubsystem);
  EXPECT_EQ(record.transport, "tcp");
  EXPECT_EQ(record.address + ":" + record.port, Spec().address);
  EXPECT_EQ(report->records[1].subtype, DiscoverySubtype::kReferral);
  EXPECT_EQ(report->skipped, 3U);
  EXPECT_NE(report->why_skipped.find("record 2 has"), std::string::npos) << report->why_skipped;
}

TEST_F(EngineDiscovery, AnErrorNamesTheServiceAndHasItsOwnCode) {
  rig_.target.faults.refuse_host = true;
  const auto refused = Ask(Spec());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
  EXPECT_NE(refused.error().message.find("the discovery service at " + Spec().address), std::string::npos)
      << refused.error().message;
}

TEST_F(EngineDiscovery, WhatCannotBeAskedIsRefused) {
  DiscoverySpec spec = Spec();
  spec.address = "nowhere";
  EXPECT_EQ(Ask(spec).error().code, ErrorCode::kInvalidArgument);
  spec = Spec();
  spec.host_id = "nobody";
  EXPECT_EQ(Ask(spec).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(EngineDiscovery, AnEngineThatEndsWaitsForNoService) {
  rig_.target.faults.mute_log = true;
  DiscoverySpec spec = Spec();
  spec.timeout_ms = kDiscoveryTimeoutMsMax;
  rig_.control->PostCall([&] {
    const auto end = [](CancelToken& cancel, NvmfRig& rig) -> Task<void> {
      while (rig.target.counts.discoveries == 0) co_await rig.control->SleepFor(kNsPerMs);
      cancel.Cancel();
    };
    Spawn(end(cancel_, rig_));
  });
  const auto ended = Ask(spec);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCancelled) << ended.error().message;
}

}  // namespace
}  // namespace cleat::engine::discovery_test
