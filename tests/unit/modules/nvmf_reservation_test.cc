// SPDX-License-Identifier: Apache-2.0
// A disk that takes part in its namespace's reservation: other hosts are kept out, and what a dead path left in doubt is proved over by the
// target, without a person's word.
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "modules/nvmf/disk/nvmf_disk.h"
#include "tests/unit/modules/nvmf_log_file.h"
#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::modules::nvmf_reservation_test {
namespace {

using block::IoStatus;
using block::Op;
using nvme::host::LifeId;
using nvme::host::LifeOf;
using nvme::host::reservation_test::ReservationTarget;
using test::LogFile;
using test::NvmfRig;
using test::NvmfTarget;
using test::OneWrite;
using test::TestDisk;

constexpr uint64_t kFamily = 0x1111'2222'3333'4444;
constexpr uint64_t kOtherFamily = 0x5555'6666'7777'8888;

NvmfTarget::Options WithReservations() {
  NvmfTarget::Options options;
  options.reservations = true;
  return options;
}

class NvmfReservation : public testing::Test {
 protected:
  NvmfReservation() { rig_.subsystem.proofs.preempted = true; }

  NvmfOptions Options(uint64_t family = kFamily) {
    NvmfOptions options = rig_.Options();
    options.reservation_family = family;
    return options;
  }
  void Open(uint64_t family = kFamily) {
    rig_.Open(Options(family));
    ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  }
  NvmfOptions OptionsWith(const LogFile& log) {
    NvmfOptions options = Options();
    options.doubt_log = log.Duplicate();
    return options;
  }
  void OpenWith(const LogFile& log) {
    rig_.Open(OptionsWith(log));
    ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  }
  // Another engine, or another host, that opens the disk and takes it.
  std::unique_ptr<block::Pipeline> OpenOther(NvmfOptions options) {
    auto opened = rig_.TryOpen(std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite).value();
  }
  Status TryTake(NvmfOptions options) {
    const auto other = OpenOther(std::move(options));
    Status acquired = rig_.Await(other->Acquire());
    EXPECT_TRUE(rig_.Await(other->Close()).ok());
    return acquired;
  }
  void Write(block::Pipeline& pipeline, uint8_t seed) {
    TestDisk disk(pipeline, *rig_.io[0], [this] { rig_.Turn(); });
    OneWrite write(0, 4096, seed);
    write.Start(disk);
    EXPECT_EQ(disk.Wait(write.io), IoStatus::kOk);
  }
  // As an engine does that is told to detach the disk, or ends while it has it.
  void Part(block::Device::Parting parting) {
    rig_.device->SetParting(parting);
    ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
    rig_.Close();
  }
  void HandOver() {
    rig_.device->SetParting(block::Device::Parting::kToOtherHost);
    ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
    rig_.device->SetParting(block::Device::Parting::kToNextEngine);
  }
  void Detach() { Part(block::Device::Parting::kDetached); }
  // The hosts that are registered, of the family.
  size_t Registered(uint64_t family = kFamily) {
    size_t count = 0;
    rig_.target.Reservations([&](const ReservationTarget& reservations) {
      count = static_cast<size_t>(
          std::count_if(reservations.registrants.begin(), reservations.registrants.end(),
                        [&](const auto& host) { return LifeOf(host.host_id, family).has_value(); }));
    });
    return count;
  }
  // Those of the family that are registered.
  std::vector<LifeId> Lives() {
    std::vector<LifeId> lives;
    rig_.target.Reservations([&](const ReservationTarget& reservations) {
      for (const auto& host : reservations.registrants) {
        if (const auto life = LifeOf(host.host_id, kFamily)) lives.push_back(*life);
      }
    });
    return lives;
  }
  // A write that the target has, and does not answer, as its path breaks.
  void LeaveInDoubt(TestDisk& disk, OneWrite& write) {
    rig_.target.faults.mute_writes = true;
    const uint32_t before = rig_.target.counts.muted;
    write.Start(disk);
    rig_.Until([&] { return rig_.target.counts.muted > before; });
    rig_.target.faults.mute_writes = false;
    rig_.target.CutAll();
  }

  NvmfRig rig_{WithReservations()};
};

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
  rig_.ForSomeTurns();
  EXPECT_FALSE(newer.io.done);
  EXPECT_NE(rig_.device->paths()->doubt_left_by.find("not proved: "), std::string::npos)
      << rig_.device->paths()->doubt_left_by;
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

// ---- The end of the disk

TEST_F(NvmfReservation, ADiskThatIsDetachedLeavesItsNamespaceToOtherHosts) {
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

TEST_F(NvmfReservation, EveryPathOfADiskLeaves) {
  rig_.AddPath(WithReservations());
  Open();
  rig_.Until([&] { return Registered() == 2; });
  Detach();
  EXPECT_EQ(Registered(), 0U);
}

TEST_F(NvmfReservation, WhatIsInDoubtKeepsOtherHostsOutAfterTheDetachToo) {
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

TEST_F(NvmfReservation, WhereNothingIsProvedTheDiskLeavesOnceSomebodyHasSaidThatAllIsDead) {
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
TEST_F(NvmfReservation, AProofIsNotTakenBackByTheDetachThatFollows) {
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

TEST_F(NvmfReservation, OnceWhatAProofNeedsIsOverTheDetachLeaves) {
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

TEST_F(NvmfReservation, ADiskGoesToAnotherHostAndComesBack) {
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

TEST_F(NvmfReservation, WhatIsInDoubtKeepsADiskOnItsHost) {
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

TEST_F(NvmfReservation, TheNextEngineKnowsThatADiskIsLeavingUntilItHasLeft) {
  const LogFile log;
  OpenWith(log);
  EXPECT_FALSE(rig_.device->is_leaving());
  rig_.device->SetLeaving(true);
  Part(block::Device::Parting::kStaysAttached);
  OpenWith(log);
  EXPECT_TRUE(rig_.device->is_leaving());
  rig_.device->SetParting(block::Device::Parting::kToOtherHost);
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
  EXPECT_EQ(Registered(), 0U);
  ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  EXPECT_FALSE(rig_.device->is_leaving());
}

// A target that lets one path out, and says nothing on the other one.
TEST_F(NvmfReservation, ADiskThatIsNotGivenAwayWholeGoesOnByEachPath) {
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
TEST_F(NvmfReservation, AnEngineThatEndsKeepsOtherHostsOutForTheNextOne) {
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
TEST_F(NvmfReservation, AnAttachThatFailsLeavesNoMoreThanThereWas) {
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

TEST_F(NvmfReservation, ADetachTakesAlongWhatABrokenPathLeft) {
  NvmfTarget& second = rig_.AddPath(WithReservations());
  Open();
  rig_.Until([&] { return Registered() == 2; });
  second.Stop();
  rig_.Until([&] { return rig_.device->paths()->losses == 1; });
  Detach();
  EXPECT_EQ(Registered(), 0U);
}

// Its target may have registrations of an engine before.
TEST_F(NvmfReservation, ADetachSaysWhichPathNobodyCouldAsk) {
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
TEST_F(NvmfReservation, PathsThatComeBackTakeUpNoMoreRoom) {
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
TEST_F(NvmfReservation, WhatIsLeftOfThisHostGoesThoughNoLogNamesIt) {
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

TEST_F(NvmfReservation, ATargetThatDoesNotLetThisHostOutHoldsUpNoDetach) {
  Open();
  rig_.target.faults.mute_io = true;
  const uint64_t begun_ns = rig_.clock.NowNs();
  Detach();
  EXPECT_GE(rig_.clock.NowNs() - begun_ns, NvmfDisk::kLeaveNs) << "it had its time";
  EXPECT_EQ(Registered(), 1U);
}

TEST_F(NvmfReservation, ADiskWithoutReservationsAtItsTargetIsRefusedByName) {
  NvmfRig plain;
  NvmfOptions options = plain.Options();
  options.reservation_family = kFamily;
  const auto opened = plain.TryOpen(std::move(options));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(opened.error().message.find("RESCAP"), std::string::npos) << opened.error().message;
}

}  // namespace
}  // namespace cleat::modules::nvmf_reservation_test
