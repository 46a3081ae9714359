// SPDX-License-Identifier: Apache-2.0
// A disk with reservations leaves its namespace, when it is detached or its VM migrates: to other hosts, and only once nothing of this host's
// may still be executed there.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "tests/unit/modules/nvmf_reservation_rig.h"

namespace cleat::modules::nvmf_leaving_test {
namespace {

using block::IoStatus;
using nvme::host::reservation_test::ReservationTarget;
using test::kFamily;
using test::kOtherFamily;
using test::LogFile;
using test::NvmfRig;
using test::NvmfTarget;
using test::OneWrite;
using test::WithReservations;

class NvmfLeaving : public test::NvmfReservationRig {};

// ---- It is detached

TEST_F(NvmfLeaving, ADiskThatIsDetachedLeavesItsNamespaceToOtherHosts) {
  Open();
  auto disk = rig_.Channel();
  OneWrite write(0, 4096, 1);
  write.Start(*disk);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  disk.reset();
  Detach();
  EXPECT_EQ(Registered(), 0U);
  rig_.target.Reservations([](const ReservationTarget& reservations) {
    EXPECT_TRUE(reservations.LetsIn({1, 2, 3})) << "any other host";
  });
  Open(kOtherFamily);
  EXPECT_EQ(Registered(kOtherFamily), 1U);
}

TEST_F(NvmfLeaving, EveryPathOfADiskLeaves) {
  rig_.AddPath(WithReservations());
  Open();
  rig_.Until([&] { return Registered() == 2; });
  Detach();
  EXPECT_EQ(Registered(), 0U);
}

TEST_F(NvmfLeaving, WhatIsInDoubtKeepsOtherHostsOutAfterTheDetachToo) {
  rig_.subsystem.proofs.preempted = false;
  Open();
  auto disk = rig_.Channel();
  OneWrite write(8192, 4096, 1);
  LeaveInDoubt(*disk, write);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  disk.reset();
  Detach();
  EXPECT_GE(Registered(), 1U);
  EXPECT_FALSE(TryTake(Options(kOtherFamily)).ok()) << "the write would hit what it writes";
}

TEST_F(NvmfLeaving, WhereNothingIsProvedTheDiskLeavesOnceSomebodyHasSaidThatAllIsDead) {
  rig_.subsystem.proofs.preempted = false;
  Open();
  auto disk = rig_.Channel();
  OneWrite write(8192, 4096, 1);
  LeaveInDoubt(*disk, write);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  rig_.ConfirmDead();
  rig_.Until([&] { return Registered() == 1; });
  disk.reset();
  Detach();
  EXPECT_EQ(Registered(), 0U);
}

// What the dead path sent may be on its way still: the target refuses it for as long as a registrant is there.
TEST_F(NvmfLeaving, AProofIsNotTakenBackByTheDetachThatFollows) {
  const LogFile log;
  OpenWith(log);
  auto disk = rig_.Channel();
  OneWrite write(8192, 4096, 1);
  LeaveInDoubt(*disk, write);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  rig_.Until([&] { return rig_.device->paths()->doubt_ranges == 0; });
  disk.reset();
  Detach();
  EXPECT_EQ(Registered(), 1U);
  EXPECT_FALSE(TryTake(Options(kOtherFamily)).ok());
  OpenWith(log);
  rig_.Until([&] { return Registered() == 1; });  // the next engine's, and its predecessor's no more
  Detach();
  EXPECT_EQ(Registered(), 1U) << "the time of the proof may not be over";
}

TEST_F(NvmfLeaving, OnceWhatAProofNeedsIsOverTheDetachLeaves) {
  constexpr uint64_t kNeedsNs = 100 * kNsPerMs;
  NvmfOptions options = Options();
  options.proof_needs_ns = kNeedsNs;
  rig_.Open(std::move(options));
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  auto disk = rig_.Channel();
  OneWrite write(8192, 4096, 1);
  LeaveInDoubt(*disk, write);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  rig_.Until([&] { return rig_.device->paths()->doubt_ranges == 0; });
  const uint64_t until_ns = rig_.clock.NowNs() + kNeedsNs;
  rig_.Until([&] { return rig_.clock.NowNs() > until_ns; });
  disk.reset();
  Detach();
  EXPECT_EQ(Registered(), 0U);
}

// ---- The VM migrates

TEST_F(NvmfLeaving, ADiskGoesToAnotherHostAndComesBack) {
  const LogFile log;
  OpenWith(log);
  const auto there = OpenOther(Options(kOtherFamily));
  Write(*rig_.pipeline, 1);
  EXPECT_FALSE(rig_.Await(there->Acquire()).ok()) << "too early";
  HandOver();
  EXPECT_EQ(Registered(), 0U);
  ASSERT_TRUE(rig_.Await(there->Acquire()).ok());
  Write(*there, 2);
  for (int i = 0; i < 3; ++i)
    EXPECT_FALSE(rig_.Await(rig_.pipeline->Acquire()).ok()) << "too early, however often it is tried";
  auto& device = there->device();
  device.SetParting(block::Device::Parting::kToOtherHost);
  ASSERT_TRUE(rig_.Await(there->Release()).ok());
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  Write(*rig_.pipeline, 3);
  EXPECT_EQ(Registered(), 1U);
  EXPECT_EQ(Registered(kOtherFamily), 0U);
  EXPECT_EQ(rig_.target.counts.conflicts, 0U);
  EXPECT_TRUE(rig_.Await(there->Close()).ok());
}

TEST_F(NvmfLeaving, WhatIsInDoubtKeepsADiskOnItsHost) {
  rig_.subsystem.proofs.preempted = false;
  const LogFile log;
  OpenWith(log);
  {
    auto disk = rig_.Channel();
    OneWrite write(8192, 4096, 1);
    LeaveInDoubt(*disk, write);
    EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  }
  rig_.device->SetParting(block::Device::Parting::kToOtherHost);
  const Status kept = rig_.Await(rig_.pipeline->Release());
  ASSERT_FALSE(kept.ok());
  EXPECT_EQ(kept.error().code, ErrorCode::kAborted);
  EXPECT_NE(kept.error().message.find("in doubt"), std::string::npos) << kept.error().message;
  Write(*rig_.pipeline, 2);  // the migration is given up: 0 is not in doubt
  rig_.ConfirmDead();
  rig_.Until([&] { return Registered() == 1; });
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
  EXPECT_EQ(Registered(), 0U);
}

TEST_F(NvmfLeaving, TheNextEngineKnowsThatADiskIsLeavingUntilItHasLeft) {
  constexpr uint64_t kAttachment = 5;
  const LogFile log;
  OpenWith(log);
  EXPECT_FALSE(rig_.device->IsLeaving(kAttachment));
  rig_.device->SetLeaving(kAttachment);
  Write(*rig_.pipeline, 1);
  Part(block::Device::Parting::kStaysAttached);
  OpenWith(log);
  EXPECT_TRUE(rig_.device->IsLeaving(kAttachment));
  EXPECT_FALSE(rig_.device->IsLeaving(kAttachment + 1)) << "a new one, whose VM is here";
  EXPECT_FALSE(rig_.device->IsLeaving(0));
  rig_.device->SetParting(block::Device::Parting::kToOtherHost);
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
  EXPECT_EQ(Registered(), 0U);
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  EXPECT_FALSE(rig_.device->IsLeaving(kAttachment));
}

// A target that lets one path out, and says nothing on the other one.
TEST_F(NvmfLeaving, ADiskThatIsNotGivenAwayWholeGoesOnByEachPath) {
  NvmfTarget& second = rig_.AddPath(WithReservations());
  Open();
  rig_.Until([&] { return Registered() == 2; });
  second.faults.mute_io = true;
  rig_.device->SetParting(block::Device::Parting::kToOtherHost);
  const Status kept = rig_.Await(rig_.pipeline->Release());
  ASSERT_FALSE(kept.ok());
  EXPECT_EQ(kept.error().code, ErrorCode::kAborted);
  second.faults.mute_io = false;
  Write(*rig_.pipeline, 1);
  rig_.Until([&] { return Registered() == 2; });
  EXPECT_EQ(rig_.target.counts.conflicts + second.counts.conflicts, 0U);
}

// The guest goes on where it was, with the next engine.
TEST_F(NvmfLeaving, AnEngineThatEndsKeepsOtherHostsOutForTheNextOne) {
  const LogFile log;
  OpenWith(log);
  Part(block::Device::Parting::kStaysAttached);
  EXPECT_EQ(Registered(), 1U);
  EXPECT_FALSE(TryTake(Options(kOtherFamily)).ok());
  OpenWith(log);
  rig_.Until([&] { return Registered() == 1; });
  auto disk = rig_.Channel();
  OneWrite write(0, 4096, 1);
  write.Start(*disk);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
}

// A next try of the attach follows, and a guest may have been on the disk with an engine before.
TEST_F(NvmfLeaving, AnAttachThatFailsLeavesNoMoreThanThereWas) {
  const LogFile log;
  OpenWith(log);
  Part(block::Device::Parting::kAttachFailed);
  EXPECT_EQ(Registered(), 0U);
  OpenWith(log);
  Part(block::Device::Parting::kStaysAttached);
  EXPECT_EQ(Registered(), 1U);
  OpenWith(log);
  rig_.Until([&] { return Registered() == 1; });
  Part(block::Device::Parting::kAttachFailed);
  EXPECT_EQ(Registered(), 1U);
  OpenWith(log);
  rig_.Until([&] { return Registered() == 1; });
  Detach();
  EXPECT_EQ(Registered(), 0U);
  OpenWith(log);
  Part(block::Device::Parting::kAttachFailed);
  EXPECT_EQ(Registered(), 0U) << "it was nobody's after the detach";
}

TEST_F(NvmfLeaving, ADetachTakesAlongWhatABrokenPathLeft) {
  NvmfTarget& second = rig_.AddPath(WithReservations());
  Open();
  rig_.Until([&] { return Registered() == 2; });
  second.Stop();
  rig_.Until([&] { return rig_.device->paths()->losses == 1; });
  Detach();
  EXPECT_EQ(Registered(), 0U);
}

// Its target may have registrations of an engine before.
TEST_F(NvmfLeaving, ADetachSaysWhichPathNobodyCouldAsk) {
  NvmfTarget& second = rig_.AddPath(WithReservations());
  second.Stop();
  Open();
  std::ostringstream lines;
  auto& sinks = spdlog::default_logger()->sinks();
  sinks.push_back(std::make_shared<spdlog::sinks::ostream_sink_st>(lines));
  Detach();
  sinks.pop_back();
  EXPECT_EQ(Registered(), 0U);
  EXPECT_NE(
      lines.str().find("a path that is down: subsystems/s at 127.0.0.1:" + std::to_string(second.port())),
      std::string::npos)
      << lines.str();
}

// However often one breaks, of the engine that has the disk and of one that stands by.
TEST_F(NvmfLeaving, PathsThatComeBackTakeUpNoMoreRoom) {
  NvmfTarget& second = rig_.AddPath(WithReservations());
  Open();
  const auto next = OpenOther(Options());
  for (int i = 0; i < 3; ++i) {
    rig_.Until([&] { return Registered() == 2; });
    const uint32_t before = second.counts.admin_queues;
    second.CutAll();
    rig_.Until([&] { return second.counts.admin_queues >= before + 2; });
  }
  rig_.Until([&] { return Registered() == 2; });
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
  ASSERT_TRUE(rig_.Await(next->Acquire()).ok());
  Write(*next, 1);
  rig_.Until([&] { return Registered() == 2; });
  EXPECT_EQ(rig_.target.counts.conflicts + second.counts.conflicts, 0U);
  rig_.Close();
  EXPECT_TRUE(rig_.Await(next->Close()).ok());
}

// Its log was lost with the host's memory, say.
TEST_F(NvmfLeaving, WhatIsLeftOfThisHostGoesThoughNoLogNamesIt) {
  Open();
  Part(block::Device::Parting::kStaysAttached);
  rig_.target.Reservations([](ReservationTarget& reservations) {
    reservations.registrants.push_back({.host_id = nvme::host::HostIdOf(kFamily, 77), .key = 77});
  });
  EXPECT_EQ(Registered(), 2U);
  Open();
  Detach();
  EXPECT_EQ(Registered(), 0U);
}

TEST_F(NvmfLeaving, ATargetThatDoesNotLetThisHostOutHoldsUpNoDetach) {
  Open();
  rig_.target.faults.mute_io = true;
  const uint64_t begun_ns = rig_.clock.NowNs();
  Detach();
  EXPECT_GE(rig_.clock.NowNs() - begun_ns, NvmfDisk::kLeaveNs) << "it had its time";
  EXPECT_EQ(Registered(), 1U);
}

TEST_F(NvmfLeaving, ADiskWithoutReservationsAtItsTargetIsRefusedByName) {
  NvmfRig plain;
  NvmfOptions options = plain.Options();
  options.reservation_family = kFamily;
  const auto opened = plain.TryOpen(std::move(options));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(opened.error().message.find("RESCAP"), std::string::npos) << opened.error().message;
}

}  // namespace
}  // namespace cleat::modules::nvmf_leaving_test
