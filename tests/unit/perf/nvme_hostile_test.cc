// SPDX-License-Identifier: Apache-2.0
// Hostile hosts against the target that the initiators are tested with: one that checks everything stands them, and what others do wrong
// is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "perf/nvme_hostile/hostile_run.h"
#include "perf/nvme_hostile/witness.h"
#include "perf/nvme_tcp/crc32c.h"
#include "tests/unit/modules/nvmf_target.h"

namespace cleat::perf::nvme_hostile_test {
namespace {

using test::NvmfTarget;

struct NvmeHostileTest : ::testing::Test {
  void Serve(const NvmfTarget::Options& served) {
    target = std::make_unique<NvmfTarget>(served);
    options.target.address = "127.0.0.1:" + std::to_string(target->port());
    options.target.subsystem_nqn = NvmfTarget::kSubsystem;
    options.target.timeout_ns = 60 * kNsPerSecond;
    options.patience_ns = 20 * kNsPerMs;
    options.crowd = 0;
  }
  NvmeHostileReport Run() {
    Result<NvmeHostileReport> report = RunHostile(options);
    EXPECT_TRUE(report.ok()) << (report ? "" : report.error().message);
    return report ? std::move(*report) : NvmeHostileReport{};
  }

  std::unique_ptr<NvmfTarget> target;
  NvmeHostileOptions options;
};

uint64_t OutcomesOf(const NvmeHostileReport& report, NvmeOutcome outcome) {
  uint64_t sum = 0;
  for (const NvmeHostileReport::Kind& kind : report.kinds) sum += kind.outcomes[static_cast<size_t>(outcome)];
  return sum;
}

TEST_F(NvmeHostileTest, ATargetThatChecksEverythingStandsAllAbuses) {
  Serve({.strict = true});
  options.target.digests = {.header = true, .data = true};
  options.attacks = 500;
  options.crowd = 16;
  const NvmeHostileReport report = Run();
  EXPECT_TRUE(report.good()) << HostileText(report);
  EXPECT_EQ(report.attacks, 500U);
  EXPECT_EQ(report.not_begun, 0U) << report.first_problem;
  EXPECT_EQ(report.kinds.size(), NvmeAbuses().size());
  for (const NvmeHostileReport::Kind& kind : report.kinds) EXPECT_GT(kind.sent, 0U) << kind.name;
  EXPECT_GT(OutcomesOf(report, NvmeOutcome::kClosed), 0U);
  EXPECT_GT(OutcomesOf(report, NvmeOutcome::kServed), 0U);
  EXPECT_GT(OutcomesOf(report, NvmeOutcome::kLeft), 0U);
  EXPECT_GT(report.witness.verified_blocks, 0U);
  EXPECT_GT(target->counts.digest_errors, 0U) << "PDUs that are wrong have reached it";
  EXPECT_GT(target->counts.r2t_writes, 0U);
  EXPECT_GT(report.crowd_opened, 0U);
  EXPECT_LE(report.crowd_most, 16U);
}

TEST_F(NvmeHostileTest, WhatATargetServesAndMustNotIsAFindingThatCanBeHadAgain) {
  Serve({});
  options.only = {"ReadTooShort", "SglBeyondCapsule"};
  options.attacks = 10;
  const NvmeHostileReport report = Run();
  ASSERT_EQ(report.finding_count, 10U) << HostileText(report);
  EXPECT_FALSE(report.good());
  EXPECT_FALSE(report.wrong_data());
  options.first_attack = 7;
  options.attacks = 1;
  const NvmeHostileReport again = Run();
  ASSERT_EQ(again.findings.size(), 1U);
  EXPECT_NE(std::find(report.findings.begin(), report.findings.end(), again.findings[0]),
            report.findings.end())
      << again.findings[0];
}

// Each of these is so much to the target's liking that it serves it: what was sent was what its name says.
TEST_F(NvmeHostileTest, ATargetThatChecksLittleIsFoundOut) {
  Serve({});
  options.only = {"IcReqTwiceAtOnce",     "NoIcReq",          "IcReqAgain",       "IcReqOnAnIoQueue",
                  "CommandBeforeConnect", "ConnectFormat",    "ConnectNoEntries", "ConnectForeign",
                  "ConnectTwice",         "SglBeyondCapsule", "ReadTooShort",     "CapsuleTooLarge",
                  "UnknownNamespace",     "SglType"};
  options.attacks = 150;
  const NvmeHostileReport report = Run();
  EXPECT_GT(report.finding_count, 100U) << HostileText(report);
  EXPECT_EQ(report.findings.size(), kNvmeFindingsMax);
  for (const NvmeHostileReport::Kind& kind : report.kinds)
    EXPECT_GT(kind.outcomes[static_cast<size_t>(NvmeOutcome::kServed)], 0U) << kind.name;
  EXPECT_FALSE(report.wrong_data()) << "the witness's blocks are nobody's";
}

TEST_F(NvmeHostileTest, WhatIsAllowedAndNotServedIsAFinding) {
  Serve({.strict = true});
  options.only = {"WriteSplit"};
  options.attacks = 4;
  EXPECT_EQ(Run().finding_count, 0U);
  target->faults.lose_writes = true;
  options.seed = 2;  // other data than is there already
  const NvmeHostileReport report = Run();
  EXPECT_EQ(report.finding_count, 4U);
  ASSERT_FALSE(report.findings.empty());
  EXPECT_NE(report.findings[0].find("other data"), std::string::npos) << report.findings[0];
}

TEST_F(NvmeHostileTest, WrongDataOfTheWitnessIsToldApart) {
  Serve({.strict = true});
  target->faults.lose_writes = true;
  options.only = {"Termination"};
  options.attacks = 50;
  const NvmeHostileReport report = Run();
  EXPECT_TRUE(report.wrong_data()) << HostileText(report);
  EXPECT_EQ(report.finding_count, 0U);
  EXPECT_FALSE(report.good());
  EXPECT_NE(HostileText(report).find("fault      the first: " + report.witness.first_fault),
            std::string::npos);
}

TEST_F(NvmeHostileTest, ATargetThatAnswersTheWitnessNoLongerEndsTheRun) {
  Serve({.strict = true});
  target->faults.mute_io = true;
  options.target.timeout_ns = 2 * kNsPerSecond;
  options.only = {"NoIcReq"};  // and no limit of time or number that would end it
  options.attacks = UINT64_MAX;
  const NvmeHostileReport report = Run();
  EXPECT_NE(report.witness.ended.find("was not answered in 2.0 s"), std::string::npos)
      << report.witness.ended;
  EXPECT_FALSE(report.good());
}

TEST_F(NvmeHostileTest, ATargetThatDiesEndsTheRun) {
  Serve({.strict = true});
  target->faults.cut_io = true;
  options.only = {"NoIcReq"};  // so that the witness alone has I/O queues
  options.attacks = UINT64_MAX;
  const NvmeHostileReport report = Run();
  EXPECT_NE(report.witness.ended, "");
  EXPECT_FALSE(report.good());
}

TEST_F(NvmeHostileTest, WhatCouldNotBeginCountsForNothing) {
  Serve({.strict = true});
  target->faults.detached = true;  // writes fail before their data is asked for
  const auto abuses = NvmeAbuses();
  const auto data_tag = std::find_if(abuses.begin(), abuses.end(), [](const NvmeAbuseCase& abuse) {
    return std::string(abuse.name) == "DataTag";
  });
  ASSERT_NE(data_tag, abuses.end());
  NvmeVictim victim{.target = options.target,
                    .nsid = NvmfTarget::kNsid,
                    .block_bytes = NvmfTarget::kBlockBytes,
                    .disk_blocks = 1024,
                    .blocks = 1024,
                    .patience_ns = options.patience_ns};
  NvmeAttackResult result = CommitAbuse(victim, *data_tag, 1);
  EXPECT_EQ(result.outcome, NvmeOutcome::kNoStart);
  EXPECT_NE(result.problem.find("did not ask for the data"), std::string::npos) << result.problem;
  target->Stop();
  result = CommitAbuse(victim, *data_tag, 1);
  EXPECT_EQ(result.outcome, NvmeOutcome::kNoStart);
  EXPECT_EQ(result.problem.find(victim.target.address), 0U) << result.problem;
  NvmeHostileReport report;
  report.attacks = report.not_begun = 2;
  EXPECT_FALSE(report.good()) << "nothing was sent";
}

TEST_F(NvmeHostileTest, ARunThatCanNotBeIsRefused) {
  Serve({.strict = true});
  const auto why = [&] {
    const Result<NvmeHostileReport> report = RunHostile(options);
    return report ? std::string() : report.error().message;
  };
  EXPECT_NE(why().find("give one of them"), std::string::npos) << why();
  options.attacks = 1;
  options.only = {"Nonsense"};
  EXPECT_NE(why().find("no abuse is named 'Nonsense': there are Silence, Garbage"), std::string::npos)
      << why();
  options.only = {"DataDigestWrong"};
  EXPECT_NE(why().find("which the target is not asked for"), std::string::npos) << why();
  options.only.clear();
  options.attackers = kNvmeAttackersMax + 1;
  EXPECT_NE(why().find("from 1 to 64 attackers"), std::string::npos) << why();
  options.attackers = 1;
  target->faults.write_protected = true;
  EXPECT_NE(why().find("write protected"), std::string::npos) << why();
}

// A witness by itself, with the least that it does: each of its lanes writes once, where nobody writes again.
struct NvmeWitnessTest : ::testing::Test {
  NvmeWitnessTest() {
    options.address = "127.0.0.1:" + std::to_string(target.port());
    options.subsystem_nqn = NvmfTarget::kSubsystem;
    witness = std::make_unique<NvmeWitness>(options, 1);
  }
  void BeginAndWrite() {
    const Status begun = witness->Begin();
    ASSERT_TRUE(begun.ok()) << begun.error().message;
    const std::atomic<bool> stop{true};
    witness->Run(stop);
    EXPECT_EQ(witness->report().requests, NvmeWitness::kLanes);
    EXPECT_EQ(witness->report().errors, 0U);
  }

  NvmfTarget target{{.strict = true}};
  NvmeTcpOptions options;
  std::unique_ptr<NvmeWitness> witness;
};

TEST_F(NvmeWitnessTest, ReadsBackAllThatItWrote) {
  BeginAndWrite();
  witness->Recheck();
  EXPECT_GE(witness->report().verified_blocks, NvmeWitness::kLanes);
  EXPECT_EQ(witness->report().faults, 0U) << witness->report().first_fault;
  EXPECT_EQ(witness->report().ended, "");
}

TEST_F(NvmeWitnessTest, FindsOneForgottenWrite) {
  target.faults.lose_write = true;
  BeginAndWrite();
  EXPECT_FALSE(target.faults.lose_write);
  witness->Recheck();
  EXPECT_GT(witness->report().faults, 0U);
}

TEST_F(NvmeWitnessTest, FindsAWrongByte) {
  BeginAndWrite();
  target.faults.wrong_reads = true;
  witness->Recheck();
  EXPECT_EQ(witness->report().faults, witness->report().verified_blocks);
}

TEST_F(NvmeWitnessTest, FindsThatTheTargetHasDied) {
  BeginAndWrite();
  target.Stop();
  witness->Recheck();
  EXPECT_EQ(witness->report().ended.find("a host that came afterwards: 127.0.0.1"), 0U)
      << witness->report().ended;
}

TEST(NvmeAbuses, HaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const NvmeAbuseCase& abuse : NvmeAbuses()) EXPECT_TRUE(names.insert(abuse.name).second) << abuse.name;
  EXPECT_GT(names.size(), 60U);
}

TEST(RawPduTest, HasItsDigestsAndItsPaddingWhereTheSpecificationWantsThem) {
  const std::vector<uint8_t> data(10, 7);
  const RawPdu pdu =
      RawPdu::Make(wire::PduTransfer{}, wire::kPduDataToTarget, data, {.header = true, .data = true}, 64);
  const std::vector<uint8_t> bytes = pdu.Bytes();
  ASSERT_EQ(bytes.size(), 64 + data.size() + wire::kDigestBytes);
  wire::PduTransfer sent{};
  std::memcpy(&sent, bytes.data(), sizeof sent);
  EXPECT_EQ(sent.header.header_bytes, sizeof sent);
  EXPECT_EQ(sent.header.data_at, 64);
  EXPECT_EQ(sent.header.pdu_bytes, bytes.size());
  EXPECT_EQ(sent.header.flags, wire::kPduHeaderDigest | wire::kPduDataDigest);
  uint32_t digest = 0;
  std::memcpy(&digest, &bytes[sizeof sent], sizeof digest);
  EXPECT_EQ(digest, Crc32c(bytes.data(), sizeof sent));
  std::memcpy(&digest, &bytes[64 + data.size()], sizeof digest);
  EXPECT_EQ(digest, Crc32c(data.data(), data.size()));
  RawPdu wrong = pdu;
  wrong.wrong_data_digest = true;
  EXPECT_NE(wrong.Bytes(), bytes);
}

}  // namespace
}  // namespace cleat::perf::nvme_hostile_test
