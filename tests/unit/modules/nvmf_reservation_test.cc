// SPDX-License-Identifier: Apache-2.0
// A disk that takes part in its namespace's reservation: other hosts are kept out, and what a dead path left in doubt is proved over by the
// target, without a person's word.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/modules/nvmf_reservation_rig.h"

namespace cleat::modules::nvmf_reservation_test {
namespace {

using block::IoStatus;
using nvme::host::LifeId;
using nvme::host::reservation_test::ReservationTarget;
using test::kOtherFamily;
using test::LogFile;
using test::OneWrite;

class NvmfReservation : public test::NvmfReservationRig {};

TEST_F(NvmfReservation, ADiskIsTheOnlyOneThatWritesToItsNamespace) {
  Open();
  auto disk = rig_.Channel();
  OneWrite write(0, 4096, 1);
  write.Start(*disk);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_EQ(Registered(), 1U);
  EXPECT_EQ(rig_.target.counts.conflicts, 0U);
  rig_.target.Reservations([](const ReservationTarget& reservations) {
    EXPECT_FALSE(reservations.LetsIn({1, 2, 3})) << "any other host";
  });
  const Status other = TryTake(Options(kOtherFamily));
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(other.error().message.find("another host has the namespace"), std::string::npos)
      << other.error().message;
  EXPECT_EQ(Registered(kOtherFamily), 0U);
}

TEST_F(NvmfReservation, WhatADeadPathLeftInDoubtIsProvedOverByTheTarget) {
  Open();
  auto first = rig_.Channel(0);
  auto second = rig_.Channel(1);
  OneWrite write(8192, 4096, 1);
  LeaveInDoubt(*first, write);
  EXPECT_EQ(first->Wait(write.io), IoStatus::kOk);
  OneWrite newer(8192 + 2048, 4096, 2);
  newer.Start(*second);
  EXPECT_EQ(second->Wait(newer.io), IoStatus::kOk) << "without anybody's word";
  rig_.Until([&] { return Registered() == 1; });
  rig_.target.Reservations(
      [](const ReservationTarget& reservations) { EXPECT_GE(reservations.preemptions, 1U); });
  EXPECT_EQ(rig_.target.counts.conflicts, 0U);
}

// The reactor has said all that it left, and obeys the table, before the association is given up: nothing but that end remains to be heard of.
TEST_F(NvmfReservation, WhatAnIoQueueLeftThatBrokeAloneIsProvedOverToo) {
  Open();
  auto disk = rig_.Channel();
  rig_.target.faults.mute_writes = true;
  OneWrite write(8192, 4096, 1);
  write.Start(*disk);
  rig_.Until([&] { return rig_.target.counts.muted > 0; });
  rig_.target.faults.mute_writes = false;
  rig_.target.faults.cut_io = true;
  OneWrite other(65536, 4096, 2);
  other.Start(*disk);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  EXPECT_EQ(disk->Wait(other.io), IoStatus::kOk);
  OneWrite newer(8192 + 2048, 4096, 3);
  newer.Start(*disk);
  EXPECT_EQ(disk->Wait(newer.io), IoStatus::kOk) << "without anybody's word";
}

TEST_F(NvmfReservation, ANamespaceThatComesBackWithoutItsRegistrationsIsJoinedAnew) {
  Open();
  auto disk = rig_.Channel();
  const std::vector<LifeId> before = Lives();
  ASSERT_EQ(before.size(), 1U);
  rig_.target.faults.detached = true;
  rig_.target.NotifyNamespace();
  rig_.UntilBroken();
  rig_.target.Reservations([](ReservationTarget& reservations) { reservations = {}; });
  rig_.target.faults.detached = false;
  rig_.target.NotifyNamespace();
  rig_.Until([&] { return Registered() == 1; });
  EXPECT_NE(Lives(), before);
  OneWrite write(0, 4096, 1);
  write.Start(*disk);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
}

TEST_F(NvmfReservation, SoIsOneThatIsBackBeforeItWasMissed) {
  Open();
  const std::vector<LifeId> before = Lives();
  rig_.target.Reservations([](ReservationTarget& reservations) { reservations = {}; });
  rig_.target.NotifyNamespace();
  rig_.Until([&] { return Registered() == 1; });
  EXPECT_NE(Lives(), before);
}

TEST_F(NvmfReservation, WhereTheTargetsPromiseDoesNotCountSomebodysWordIsWaitedFor) {
  rig_.subsystem.proofs.preempted = false;
  Open();
  auto disk = rig_.Channel();
  OneWrite write(8192, 4096, 1);
  LeaveInDoubt(*disk, write);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  OneWrite newer(8192 + 2048, 4096, 2);
  newer.Start(*disk);
  rig_.Until([&] { return Registered() == 1; });
  rig_.ForSomeTurns();
  EXPECT_FALSE(newer.io.done);
  rig_.ConfirmDead();
  EXPECT_EQ(disk->Wait(newer.io), IoStatus::kOk);
}

TEST_F(NvmfReservation, ATargetThatGivesUpProvesNothing) {
  Open();
  auto disk = rig_.Channel();
  rig_.target.Reservations([](ReservationTarget& reservations) {
    reservations.refuse = [](const nvme::fabrics::SubmissionEntry& entry) -> std::optional<uint8_t> {
      const bool preempts =
          entry.opcode == static_cast<uint8_t>(nvme::Opcode::kReservationAcquire) && (entry.cdw10 & 7U) != 0;
      if (!preempts) return std::nullopt;
      return uint8_t{0x21};  // Command Interrupted
    };
  });
  OneWrite write(8192, 4096, 1);
  LeaveInDoubt(*disk, write);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  OneWrite newer(8192 + 2048, 4096, 2);
  newer.Start(*disk);
  rig_.Until([&] { return rig_.device->paths()->doubt_left_by.find("not proved: ") != std::string::npos; });
  EXPECT_FALSE(newer.io.done);
  rig_.target.Reservations([](ReservationTarget& reservations) { reservations.refuse = nullptr; });
  EXPECT_EQ(disk->Wait(newer.io), IoStatus::kOk) << "at a later try";
}

TEST_F(NvmfReservation, APathThatBreaksWhileItShutsALifeOutLeavesThatToTheNextOne) {
  Open();
  auto disk = rig_.Channel();
  std::atomic<uint32_t> preemptions{0};
  rig_.target.Reservations([&](ReservationTarget& reservations) {
    reservations.refuse = [&](const nvme::fabrics::SubmissionEntry& entry) -> std::optional<uint8_t> {
      const bool preempts =
          entry.opcode == static_cast<uint8_t>(nvme::Opcode::kReservationAcquire) && (entry.cdw10 & 7U) != 0;
      if (!preempts || ++preemptions > 1) return std::nullopt;
      rig_.target.CutAll();
      return uint8_t{0x21};  // which nobody hears; and the registrant is there as before
    };
  });
  OneWrite write(8192, 4096, 1);
  LeaveInDoubt(*disk, write);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
  OneWrite newer(8192 + 2048, 4096, 2);
  newer.Start(*disk);
  EXPECT_EQ(disk->Wait(newer.io), IoStatus::kOk);
  EXPECT_GE(preemptions, 2U);
  rig_.target.Reservations([](ReservationTarget& reservations) { reservations.refuse = nullptr; });
}

// The engine is killed by copies of its log and of what the target knows.
TEST_F(NvmfReservation, WhatAKilledEngineLeftIsProvedOverForTheNextOne) {
  const LogFile log;
  LogFile left;
  ReservationTarget known;
  {
    NvmfOptions options = Options();
    options.doubt_log = log.Duplicate();
    rig_.Open(std::move(options));
    ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
    auto disk = rig_.Channel();
    rig_.target.faults.mute_writes = true;
    const uint32_t before = rig_.target.counts.muted;
    OneWrite write(8192, 4096, 1);
    write.Start(*disk);
    rig_.Until([&] { return rig_.target.counts.muted > before; });
    left = log.Copy();
    rig_.target.Reservations([&](const ReservationTarget& reservations) { known = reservations; });
    rig_.target.faults.mute_writes = false;
    rig_.target.CutAll();
    EXPECT_EQ(disk->Wait(write.io), IoStatus::kOk);
    disk.reset();
    rig_.Close();
    rig_.pipeline.reset();
  }
  rig_.target.Reservations([&](ReservationTarget& reservations) { reservations = known; });
  ASSERT_EQ(left.Found()->size(), 1U);
  NvmfOptions options = Options();
  options.doubt_log = left.Duplicate();
  rig_.Open(std::move(options));
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  auto disk = rig_.Channel();
  OneWrite newer(8192 + 2048, 4096, 2);
  newer.Start(*disk);
  EXPECT_EQ(disk->Wait(newer.io), IoStatus::kOk);
  rig_.Until([&] { return Registered() == 1 && left.Found()->empty(); });
}

// As in an upgrade.
TEST_F(NvmfReservation, AnEngineThatStandsByIsRegisteredOnceTheDiskIsItsOwn) {
  Open();
  const auto next = OpenOther(Options());
  rig_.ForSomeTurns();
  EXPECT_EQ(Registered(), 1U) << "it takes up no room";
  Write(*rig_.pipeline, 1);
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
  ASSERT_TRUE(rig_.Await(next->Acquire()).ok());
  Write(*next, 2);
  rig_.Until([&] { return Registered() == 1; });  // the one before is shut out
  rig_.Close();
  EXPECT_EQ(Registered(), 1U);
  Write(*next, 3);
  EXPECT_EQ(rig_.target.counts.conflicts, 0U);
  EXPECT_TRUE(rig_.Await(next->Close()).ok());
}

// However long it stands still: nothing but its end, or its word, gives the disk to another one.
TEST_F(NvmfReservation, AnEngineKeepsItsDiskAsLongAsItLives) {
  const LogFile log;
  OpenWith(log);
  auto opened = rig_.TryOpen(OptionsWith(log));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  (*opened)->SetAcquireTimeout(20 * kNsPerMs);
  const auto next = block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite).value();
  const Status refused = rig_.Await(next->Acquire());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().message.find("another engine of this host has it"), std::string::npos)
      << refused.error().message;
  Write(*rig_.pipeline, 1);
  EXPECT_EQ(Registered(), 1U);
  rig_.Close();
  rig_.pipeline.reset();  // as an engine that is killed: nobody has released the disk
  ASSERT_TRUE(rig_.Await(next->Acquire()).ok());
  Write(*next, 2);
  rig_.Until([&] { return Registered() == 1; });
  EXPECT_EQ(rig_.target.counts.conflicts, 0U);
  EXPECT_TRUE(rig_.Await(next->Close()).ok());
}

// As in an upgrade that fails after the next engine had the disk: what that one has sent to shut this one out may be on its way.
TEST_F(NvmfReservation, ADiskThatComesBackBeginsAnewAsARegistrant) {
  const LogFile log;
  OpenWith(log);
  const std::vector<LifeId> before = Lives();
  const auto next = OpenOther(OptionsWith(log));
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
  ASSERT_TRUE(rig_.Await(next->Acquire()).ok());
  ASSERT_TRUE(rig_.Await(next->Release()).ok());
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  Write(*rig_.pipeline, 2);
  rig_.Until([&] { return Registered() == 1; });
  EXPECT_EQ(rig_.target.counts.conflicts, 0U);
  const std::vector<LifeId> after = Lives();
  ASSERT_EQ(before.size(), 1U);
  ASSERT_EQ(after.size(), 1U);
  EXPECT_NE(before.front(), after.front()) << "which a late command could still shut out";
  EXPECT_TRUE(rig_.Await(next->Close()).ok());
}

// As in an upgrade that is given up before the next engine had the disk.
TEST_F(NvmfReservation, ADiskThatNobodyElseHadGoesOnAsItWas) {
  const LogFile log;
  OpenWith(log);
  const std::vector<LifeId> before = Lives();
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  Write(*rig_.pipeline, 1);
  EXPECT_EQ(Lives(), before);
  EXPECT_EQ(rig_.target.counts.admin_queues, 1U);
}

// Somebody has cleared the reservation there, and has one of his own.
TEST_F(NvmfReservation, ADiskThatWasShutOutSaysSoAndWaitsUntilItIsLetIn) {
  Open();
  // Three while it joins, and a look afterwards, which must not be the one that finds out.
  rig_.Until([&] {
    uint32_t reports = 0;
    rig_.target.Reservations([&](const ReservationTarget& reservations) { reports = reservations.reports; });
    return reports == 4;
  });
  rig_.ForSomeTurns();
  auto disk = rig_.Channel();
  rig_.target.Reservations([](ReservationTarget& reservations) {
    reservations.registrants = {{.host_id = nvme::host::HostIdOf(kOtherFamily, 1), .key = 1, .holder = true}};
  });
  OneWrite write(0, 4096, 1);
  write.Start(*disk);
  EXPECT_EQ(disk->Wait(write.io), IoStatus::kReservationConflict);
  rig_.UntilBroken();
  OneWrite later(0, 4096, 2);
  later.Start(*disk);
  rig_.ForSomeTurns();
  EXPECT_FALSE(later.io.done) << "it waits, rather than that the guest has another error";
  EXPECT_EQ(rig_.target.counts.conflicts, 1U);
  rig_.target.Reservations([](ReservationTarget& reservations) { reservations.Clear(); });
  EXPECT_EQ(disk->Wait(later.io), IoStatus::kOk);
}

}  // namespace
}  // namespace cleat::modules::nvmf_reservation_test
