// SPDX-License-Identifier: Apache-2.0
// Hosts that shut each other out of a namespace, over real sockets: what is refused, what is waited for, and what the next engine knows of it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "nvme/host/reservation/reservation_commands.h"
#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"
#include "tests/unit/nvmf_target/two_engines.h"

namespace cleat::nvmf_target::reservations_test {
namespace {

using nvme::Opcode;
using nvme::fabrics::CompletionEntry;
using nvme::host::AcquireAction;
using nvme::host::ExistingKey;
using nvme::host::PowerLoss;
using nvme::host::RegisterAction;
using nvme::host::ReleaseAction;
using nvme::host::ReservationType;
using test::Association;
using test::BlocksEntry;
using test::RawHost;
using test::TargetRig;
using test::TwoEngines;

using Bytes = std::vector<uint8_t>;

constexpr uint64_t kKey = 0xa;       // of the host that shuts others out
constexpr uint64_t kOtherKey = 0xb;  // of the other host
constexpr uint32_t kBlocks = 8;
constexpr size_t kBytes = kBlocks * 512;
constexpr uint16_t kConflict = 0x4083;
constexpr uint16_t kInaccessible = 0x302;  // Asymmetric Access Inaccessible

template <typename Data>
Bytes BytesOf(const Data& data) {
  const auto* const at = reinterpret_cast<const uint8_t*>(&data);
  return {at, at + sizeof(data)};
}

// How a command has ended: its status, or that its connection has.
constexpr uint16_t kNoAnswer = 0xffff;
uint16_t StatusOf(const std::optional<CompletionEntry>& answer) {
  return answer ? answer->status().field() : kNoAnswer;
}

uint16_t Register(RawHost& queue, uint64_t key) {
  return StatusOf(queue.Do(nvme::fabrics::EntryOf(nvme::host::ReservationRegister(
                               1, RegisterAction::kRegister, ExistingKey::kHasToFit, PowerLoss::kPersist)),
                           BytesOf(nvme::host::RegisterData{.new_key = key})));
}
void SendAcquire(RawHost& queue, ReservationType type, AcquireAction action = AcquireAction::kAcquire,
                 uint64_t preempted = 0) {
  queue.Send(nvme::fabrics::EntryOf(nvme::host::ReservationAcquire(1, action, type)),
             BytesOf(nvme::host::AcquireData{.current_key = kKey, .preempted_key = preempted}));
}
uint16_t Acquire(RawHost& queue, ReservationType type, AcquireAction action = AcquireAction::kAcquire,
                 uint64_t preempted = 0) {
  SendAcquire(queue, type, action, preempted);
  return StatusOf(queue.Answer());
}
uint16_t Release(RawHost& queue, ReservationType type) {
  return StatusOf(
      queue.Do(nvme::fabrics::EntryOf(nvme::host::ReservationRelease(1, ReleaseAction::kRelease, type)),
               BytesOf(nvme::host::ReleaseData{.current_key = kKey})));
}
Result<nvme::host::ReservationReport> Report(RawHost& queue) {
  auto entry = nvme::fabrics::EntryOf(nvme::host::ReservationReportOf(1, nvme::host::kReportBytes));
  entry.data.length_bytes = nvme::host::kReportBytes;
  const uint16_t status = StatusOf(queue.Do(entry));
  if (status != 0) return Error(ErrorCode::kUnavailable, std::to_string(status));
  return nvme::host::ParseReservationReport(queue.data(), "the target");
}
void SendWrite(RawHost& queue, uint64_t block, uint8_t value) {
  queue.Send(BlocksEntry(Opcode::kWrite, block, kBlocks, true), Bytes(kBytes, value));
}
uint16_t Write(RawHost& queue, uint64_t block, uint8_t value) {
  SendWrite(queue, block, value);
  return StatusOf(queue.Answer());
}
uint16_t Read(RawHost& queue, uint64_t block) {
  return StatusOf(queue.Do(BlocksEntry(Opcode::kRead, block, kBlocks, false)));
}

// A host that is registered, and another one.
struct TwoHosts {
  TwoHosts() : one(rig), other(rig, TargetRig::OtherHost()) { CLEAT_CHECK(Register(one.queue, kKey) == 0); }
  ~TwoHosts() {
    rig.reservations.fails = false;
    rig.reservations.LetGo();
    rig.storage->LetGo();
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
  uint8_t at(uint64_t block) const { return rig.storage->content[block * 512]; }

  TargetRig rig;
  Association one;
  Association other;
};

TEST(ReservationsTest, AHostKeepsOthersFromWritingUntilItReleases) {
  TwoHosts hosts;
  EXPECT_EQ(Write(hosts.other.queue, 0, 'B'), 0);
  ASSERT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusive), 0);
  EXPECT_EQ(Write(hosts.other.queue, 0, 'C'), kConflict);
  EXPECT_EQ(StatusOf(hosts.other.queue.Do(nvme::fabrics::EntryOf(nvme::Flush(1)))), kConflict);
  EXPECT_EQ(Read(hosts.other.queue, 0), 0) << "it may read";
  EXPECT_EQ(hosts.at(0), 'B');
  EXPECT_EQ(Write(hosts.one.queue, 0, 'A'), 0);
  EXPECT_EQ(hosts.at(0), 'A');
  EXPECT_EQ(hosts.rig.service->StatusOf(TargetRig::kNqn).reserved, 1U);
  ASSERT_EQ(Release(hosts.one.queue, ReservationType::kWriteExclusive), 0);
  EXPECT_EQ(Write(hosts.other.queue, 0, 'D'), 0);
  EXPECT_EQ(hosts.rig.service->StatusOf(TargetRig::kNqn).reserved, 0U);
}

TEST(ReservationsTest, ExclusiveAccessKeepsOthersFromReadingToo) {
  TwoHosts hosts;
  ASSERT_EQ(Acquire(hosts.one.queue, ReservationType::kExclusiveAccess), 0);
  EXPECT_EQ(Read(hosts.other.queue, 0), kConflict);
  EXPECT_EQ(Read(hosts.one.queue, 0), 0);
  // Each path of the host is the host; and each on a reactor of its own.
  Association second(hosts.rig);
  EXPECT_EQ(Read(second.queue, 0), 0);
  Association third(hosts.rig, TargetRig::OtherHost());
  EXPECT_EQ(Read(third.queue, 0), kConflict);
}

TEST(ReservationsTest, AReportNamesTheRegistrantsByTheirPaths) {
  TwoHosts hosts;
  Association second(hosts.rig);
  ASSERT_EQ(Register(hosts.other.queue, kOtherKey), 0);
  ASSERT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusiveRegistrants), 0);
  const auto report = Report(hosts.other.queue);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->type, ReservationType::kWriteExclusiveRegistrants);
  EXPECT_TRUE(report->persistent);
  ASSERT_EQ(report->registrants.size(), 2U);
  const auto* const one = report->Find(TargetRig::Host().id);
  ASSERT_NE(one, nullptr);
  EXPECT_EQ(one->key, kKey);
  EXPECT_TRUE(one->holder);
}

TEST(ReservationsTest, DataThatIsAskedForIsTakenAsWell) {
  TwoHosts hosts;
  auto entry = nvme::fabrics::EntryOf(nvme::host::ReservationRegister(
      1, RegisterAction::kRegister, ExistingKey::kHasToFit, PowerLoss::kAsItIs));
  entry.data.type = nvme::fabrics::kSglByTransport;
  const Bytes data = BytesOf(nvme::host::RegisterData{.new_key = kOtherKey});
  entry.data.length_bytes = static_cast<uint32_t>(data.size());
  hosts.other.queue.Send(entry);
  nvme::tcp::H2cData h2c;
  h2c.header = {nvme::tcp::PduType::kH2cData, nvme::tcp::kFlagLast, sizeof(h2c), sizeof(h2c),
                static_cast<uint32_t>(sizeof(h2c) + data.size())};
  h2c.cid = hosts.other.queue.last_cid();
  h2c.ttag = hosts.other.queue.AskedTag();
  h2c.data_bytes = static_cast<uint32_t>(data.size());
  hosts.other.queue.SendPdu(h2c, data);
  EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), 0);
  EXPECT_EQ(hosts.rig.reservations.kept[TargetRig::kUuid].registrants.size(), 2U);
}

TEST(ReservationsTest, DataOfNoSizeThatTheyHaveIsRefused) {
  TwoHosts hosts;
  const auto entry = nvme::fabrics::EntryOf(
      nvme::host::ReservationAcquire(1, AcquireAction::kAcquire, ReservationType::kWriteExclusive));
  for (const size_t bytes : {size_t{1}, size_t{15}, size_t{kReservationDataMaxBytes} + 4}) {
    const uint16_t status = StatusOf(hosts.one.queue.Do(entry, Bytes(bytes, 0)));
    EXPECT_NE(status & 0x7ff, 0) << bytes;
    EXPECT_NE(status, kNoAnswer) << bytes;
  }
  EXPECT_NE(StatusOf(hosts.one.queue.Do(entry)) & 0x7ff, 0);
}

TEST(ReservationsTest, AReportOfAnySizeIsAnsweredOrRefused) {
  TwoHosts hosts;
  for (const uint32_t bytes : {4U, 64U, 1U << 20, (1U << 20) + 4, UINT32_MAX}) {
    auto entry = nvme::fabrics::EntryOf(nvme::host::ReservationReportOf(1, 4));
    entry.data.length_bytes = bytes;
    const uint16_t status = StatusOf(hosts.one.queue.Do(entry));
    EXPECT_EQ((status & 0x7ff) == 0, bytes <= 1U << 20) << bytes;
    EXPECT_NE(status, kNoAnswer) << bytes;
  }
}

// ---- What is under way

TEST(ReservationsTest, AHostIsNotToldThatAnotherIsShutOutWhileAWriteOfThatOneMayStillLand) {
  TwoHosts hosts;
  hosts.rig.storage->holds = true;
  SendWrite(hosts.other.queue, 0, 'B');
  hosts.rig.Until([&] { return hosts.rig.storage->held.size() == 1; });
  SendAcquire(hosts.one.queue, ReservationType::kWriteExclusive);
  EXPECT_TRUE(hosts.one.queue.IsQuiet());
  EXPECT_EQ(hosts.at(0), 0);
  hosts.rig.storage->LetGo();
  EXPECT_EQ(StatusOf(hosts.one.queue.Answer()), 0);
  EXPECT_EQ(hosts.at(0), 'B') << "it was in the storage already";
  EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), 0);
  EXPECT_EQ(Write(hosts.other.queue, 0, 'C'), kConflict);
}

TEST(ReservationsTest, WhatTheReservationAllowsIsNotWaitedFor) {
  TwoHosts hosts;
  hosts.rig.storage->holds = true;
  hosts.other.queue.Send(BlocksEntry(Opcode::kRead, 0, kBlocks, false));
  SendWrite(hosts.one.queue, 0, 'A');
  hosts.rig.Until([&] { return hosts.rig.storage->held.size() == 2; });
  Association second(hosts.rig);
  EXPECT_EQ(Acquire(second.queue, ReservationType::kWriteExclusive), 0);
  hosts.rig.storage->LetGo();
  EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), 0);
  EXPECT_EQ(StatusOf(hosts.one.queue.Answer()), 0);
}

// Reads that the reservation allows, too.
TEST(ReservationsTest, PreemptAndAbortWaitsForAllOfTheHostThatIsPreempted) {
  TwoHosts hosts;
  ASSERT_EQ(Register(hosts.other.queue, kOtherKey), 0);
  ASSERT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusive), 0);
  for (const auto action : {AcquireAction::kPreempt, AcquireAction::kPreemptAndAbort}) {
    hosts.rig.storage->holds = true;
    hosts.other.queue.Send(BlocksEntry(Opcode::kRead, 0, kBlocks, false));
    hosts.rig.Until([&] { return hosts.rig.storage->held.size() == 1; });
    SendAcquire(hosts.one.queue, ReservationType::kWriteExclusive, action, kOtherKey);
    EXPECT_EQ(hosts.one.queue.IsQuiet(), action == AcquireAction::kPreemptAndAbort);
    hosts.rig.storage->LetGo();
    EXPECT_EQ(StatusOf(hosts.one.queue.Answer()), 0);
    EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), 0);
    ASSERT_EQ(Register(hosts.other.queue, kOtherKey), 0);
  }
}

TEST(ReservationsTest, AWriteThatWaitsForLimitsIsEndedAndNotWaitedFor) {
  TwoHosts hosts;
  hosts.rig.storage->queues = true;
  SendWrite(hosts.other.queue, 0, 'B');
  hosts.rig.Until([&] { return hosts.rig.storage->queued.size() == 1; });
  EXPECT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusive), 0);
  EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), kConflict);
  hosts.rig.storage->Unqueue();
  EXPECT_EQ(hosts.at(0), 0) << "it was executed all the same";
}

// Ranges of a discard go to the storage one after the other.
TEST(ReservationsTest, OfADiscardNoFurtherRangeBeginsOnceItsHostIsShutOut) {
  TwoHosts hosts;
  std::memset(hosts.rig.storage->content.data(), 'A', hosts.rig.storage->content.size());
  hosts.rig.storage->holds = true;
  nvme::DatasetRange ranges[2] = {};
  ranges[0].blocks = ranges[1].blocks = kBlocks;
  ranges[1].first_block = 1000;
  auto entry = nvme::fabrics::EntryOf(nvme::Deallocate(1));
  entry.cdw10 = 1;
  hosts.other.queue.Send(entry, BytesOf(ranges));
  hosts.rig.Until([&] { return hosts.rig.storage->held.size() == 1; });
  SendAcquire(hosts.one.queue, ReservationType::kWriteExclusive);
  EXPECT_TRUE(hosts.one.queue.IsQuiet());
  hosts.rig.storage->LetGo();
  EXPECT_EQ(StatusOf(hosts.one.queue.Answer()), 0);
  EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), kConflict);
  EXPECT_EQ(hosts.at(1000), 'A');
}

// The other host's write waits for an older one whose path has ended. When it may go on its host is shut out; and it is in nobody's way.
TEST(ReservationsTest, AWriteThatIsHeldForAnOlderOneIsRefusedWhenItMayGoOn) {
  TwoHosts hosts;
  auto cut = std::make_unique<Association>(hosts.rig);
  hosts.rig.storage->holds = true;
  SendWrite(cut->queue, 0, 'A');
  hosts.rig.Until([&] { return hosts.rig.storage->held.size() == 1; });
  cut.reset();
  for (int turn = 0; turn < 200; ++turn) hosts.rig.Turn();
  hosts.rig.storage->holds = false;
  SendWrite(hosts.other.queue, 0, 'B');
  EXPECT_TRUE(hosts.other.queue.IsQuiet());
  ASSERT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusive), 0);
  hosts.rig.storage->LetGo();
  EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), kConflict);
  EXPECT_EQ(Write(hosts.one.queue, 0, 'C'), 0) << "it waits for the one that was refused";
  EXPECT_EQ(hosts.at(0), 'C');
}

// ---- What fails

TEST(ReservationsTest, AChangeThatCannotBeStoredIsRefusedAndChangesNothing) {
  TwoHosts hosts;
  hosts.rig.reservations.stores_nothing = true;
  EXPECT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusive), 0x06);
  EXPECT_EQ(Write(hosts.other.queue, 0, 'B'), 0);
  hosts.rig.reservations.stores_nothing = false;
  EXPECT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusive), 0);
  EXPECT_EQ(Write(hosts.other.queue, 0, 'C'), kConflict);
}

TEST(ReservationsTest, ANamespaceWhoseReservationCannotBeReadIsNotServed) {
  TargetRig rig;
  rig.reservations.fails = true;
  const Status added = rig.AddNamespace(2);
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.error().code, ErrorCode::kDataLoss);
  EXPECT_NE(added.error().message.find("controllers/e, namespace 2"), std::string::npos)
      << added.error().message;
  rig.reservations.fails = false;
  EXPECT_TRUE(rig.AddNamespace(2).ok());
}

// Of a folder that could not be made durable nobody knows what the next process finds.
TEST(ReservationsTest, WhatIsStoredInSpiteOfAnErrorIsInForce) {
  TwoHosts hosts;
  hosts.rig.reservations.says_nothing = true;
  EXPECT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusive), 0x06);
  EXPECT_EQ(Write(hosts.other.queue, 0, 'B'), kConflict);
  hosts.rig.reservations.says_nothing = false;
  EXPECT_EQ(Release(hosts.one.queue, ReservationType::kWriteExclusive), 0);
  EXPECT_EQ(Write(hosts.other.queue, 0, 'B'), 0);
}

// A store that has lost what it had, and keeps nothing, lets in nobody.
TEST(ReservationsTest, WhatTheStoreHasLostIsInForceAllTheSame) {
  TwoHosts hosts;
  ASSERT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusive), 0);
  hosts.rig.reservations.kept.clear();
  hosts.rig.reservations.stores_nothing = true;
  EXPECT_EQ(Register(hosts.other.queue, kOtherKey), 0x06);
  EXPECT_EQ(Write(hosts.other.queue, 0, 'B'), kConflict);
  EXPECT_EQ(Write(hosts.one.queue, 0, 'A'), 0);
}

// Neither stored for certain nor to be read: it is looked again until it is known.
TEST(ReservationsTest, WhatMayBeStoredIsInForceOnceItIsFound) {
  TwoHosts hosts;
  hosts.rig.reservations.says_nothing = hosts.rig.reservations.fails = true;
  EXPECT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusive), 0x06);
  EXPECT_EQ(Write(hosts.other.queue, 0, 'B'), 0);
  hosts.rig.reservations.fails = false;
  hosts.rig.Until([&] { return hosts.rig.service->StatusOf(TargetRig::kNqn).reserved == 1; });
  EXPECT_EQ(Write(hosts.other.queue, 0, 'C'), kConflict);
}

TEST(ReservationsTest, ANamespaceMayGoWhileItsReservationIsStored) {
  TwoHosts hosts;
  hosts.rig.reservations.holds = true;
  SendAcquire(hosts.one.queue, ReservationType::kWriteExclusive);
  hosts.rig.Until([&] { return hosts.rig.reservations.storing == 1; });
  bool removed = false;
  hosts.rig.Begin(
      [](TargetRig& rig) -> Task<void> { co_await rig.service->RemoveNamespace(TargetRig::kNqn, 1); },
      removed);
  for (int turn = 0; turn < 200; ++turn) hosts.rig.Turn();
  EXPECT_FALSE(removed) << "it would be stored when the namespace is forgotten";
  hosts.rig.reservations.LetGo();
  hosts.rig.Until([&] { return removed; });
  EXPECT_EQ(StatusOf(hosts.one.queue.Answer()), 0);
}

TEST(ReservationsTest, OneHostsManyCommandsKeepNoOtherFromItsOwn) {
  TwoHosts hosts;
  hosts.rig.reservations.holds = true;
  const auto register_again = nvme::fabrics::EntryOf(nvme::host::ReservationRegister(
      1, RegisterAction::kRegister, ExistingKey::kHasToFit, PowerLoss::kPersist));
  constexpr size_t kMany = 3 * ReservationKeeper::kCallsOfOneMax;
  for (size_t i = 0; i < kMany; ++i)
    hosts.other.queue.Send(register_again, BytesOf(nvme::host::RegisterData{.new_key = kOtherKey}));
  // One is under way, and some wait: the others are refused at once.
  for (size_t i = 0; i < kMany - 1 - ReservationKeeper::kCallsOfOneMax; ++i)
    EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), 0x06);
  EXPECT_TRUE(hosts.other.queue.IsQuiet());
  SendAcquire(hosts.one.queue, ReservationType::kWriteExclusive);
  EXPECT_TRUE(hosts.one.queue.IsQuiet());
  hosts.rig.reservations.LetGo();
  EXPECT_EQ(StatusOf(hosts.one.queue.Answer()), 0);
}

TEST(ReservationsTest, AHostThatLeavesWhileItsCommandIsUnderWayLeavesNothingBehind) {
  TwoHosts hosts;
  hosts.rig.storage->holds = true;
  SendWrite(hosts.other.queue, 0, 'B');
  hosts.rig.Until([&] { return hosts.rig.storage->held.size() == 1; });
  auto leaving = std::make_unique<Association>(hosts.rig);
  SendAcquire(leaving->queue, ReservationType::kWriteExclusive);
  SendAcquire(leaving->queue, ReservationType::kWriteExclusive);
  for (int turn = 0; turn < 200; ++turn) hosts.rig.Turn();
  leaving.reset();
  for (int turn = 0; turn < 200; ++turn) hosts.rig.Turn();
  hosts.rig.storage->LetGo();
  hosts.rig.Until([&] { return hosts.rig.service->StatusOf(TargetRig::kNqn).controllers == 2; });
  EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), 0);
  // What it has asked for is in force.
  EXPECT_EQ(Write(hosts.other.queue, 0, 'C'), kConflict);
  EXPECT_EQ(Write(hosts.one.queue, 0, 'A'), 0);
}

TEST(ReservationsTest, ANamespaceThatGoesTakesTheCommandsThatWaitAlong) {
  TwoHosts hosts;
  hosts.rig.storage->holds = true;
  SendWrite(hosts.other.queue, 0, 'B');
  hosts.rig.Until([&] { return hosts.rig.storage->held.size() == 1; });
  Association second(hosts.rig);
  SendAcquire(hosts.one.queue, ReservationType::kWriteExclusive);
  EXPECT_TRUE(hosts.one.queue.IsQuiet());
  SendAcquire(second.queue, ReservationType::kExclusiveAccess);
  EXPECT_TRUE(second.queue.IsQuiet());
  bool removed = false;
  hosts.rig.Begin(
      [](TargetRig& rig) -> Task<void> { co_await rig.service->RemoveNamespace(TargetRig::kNqn, 1); },
      removed);
  EXPECT_EQ(StatusOf(second.queue.Answer()), 0x400b);
  EXPECT_FALSE(removed);
  hosts.rig.storage->LetGo();
  hosts.rig.Until([&] { return removed; });
  EXPECT_EQ(StatusOf(hosts.one.queue.Answer()), 0);
  EXPECT_EQ(StatusOf(hosts.one.queue.Do(BlocksEntry(Opcode::kRead, 0, kBlocks, false))), 0x400b);
  // The same disk again: what was stored of it is in force.
  ASSERT_TRUE(hosts.rig.AddNamespace(1).ok());
  EXPECT_EQ(StatusOf(hosts.other.queue.Answer()), 0) << "of the write before";
  EXPECT_EQ(Write(hosts.other.queue, 0, 'C'), kConflict);
}

// ---- Notices

TEST(ReservationsTest, AHostThatIsShutOutHearsOfIt) {
  TwoHosts hosts;
  ASSERT_EQ(Register(hosts.other.queue, kOtherKey), 0);
  hosts.other.admin.Send(nvme::fabrics::EntryOf(nvme::AsyncEventRequest()));
  ASSERT_EQ(Acquire(hosts.one.queue, ReservationType::kWriteExclusiveRegistrants,
                    AcquireAction::kPreemptAndAbort, kOtherKey),
            0);
  const auto event = hosts.other.admin.Answer();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->result & 0xffffff, 0x800006U);
  auto entry = nvme::fabrics::EntryOf(nvme::GetLogPage(nvme::LogPage{0x80}, UINT32_MAX, 64));
  entry.data.length_bytes = 64;
  ASSERT_EQ(StatusOf(hosts.other.admin.Do(entry)), 0);
  const Bytes& log = hosts.other.admin.data();
  ASSERT_EQ(log.size(), 64U);
  EXPECT_EQ(log[0], 1) << "its number";
  EXPECT_EQ(log[8], 1) << "Registration Preempted";
  EXPECT_EQ(log[12], 1) << "the namespace";
}

// ---- The next engine

TEST(ReservationsTest, AReservationHoldsInTheNextEngineForHostsThatStayAndForThoseThatCome) {
  TwoEngines engines;
  Association one(engines.rig);
  Association other(engines.rig, TargetRig::OtherHost());
  ASSERT_EQ(Register(one.queue, kKey), 0);
  ASSERT_EQ(Acquire(one.queue, ReservationType::kWriteExclusive), 0);
  engines.MoveOn();
  EXPECT_EQ(engines.controllers(), 2U);
  EXPECT_EQ(Write(other.queue, 0, 'B'), kConflict);
  EXPECT_EQ(Write(one.queue, 0, 'A'), 0);
  Association third(engines.rig, TargetRig::OtherHost());
  EXPECT_EQ(Write(third.queue, 0, 'C'), kConflict);
  ASSERT_EQ(Release(one.queue, ReservationType::kWriteExclusive), 0);
  EXPECT_EQ(Write(other.queue, 0, 'B'), 0);
}

TEST(ReservationsTest, ACommandThatIsUnderWayIsWaitedForBeforeItsHostGoesToTheNextEngine) {
  TwoEngines engines;
  Association one(engines.rig);
  Association other(engines.rig, TargetRig::OtherHost());
  ASSERT_EQ(Register(one.queue, kKey), 0);
  engines.rig.storage->holds = true;
  SendWrite(other.queue, 0, 'B');
  engines.rig.Until([&] { return engines.rig.storage->held.size() == 1; });
  SendAcquire(one.queue, ReservationType::kWriteExclusive);
  engines.Turns();
  bool moved = false;
  Result<test::Associations> associations = test::Associations();
  engines.rig.Begin(
      [&associations](TargetRig& rig) -> Task<void> {
        associations = co_await rig.service->HandOver(TargetRig::kNqn, kNoDeadline);
      },
      moved);
  engines.Turns();
  EXPECT_FALSE(moved);
  engines.rig.storage->LetGo();
  engines.rig.Until([&] { return moved; });
  ASSERT_TRUE(associations.ok());
  EXPECT_EQ(associations->size(), 2U);
  engines.Serve(std::move(*associations));
  EXPECT_EQ(StatusOf(one.queue.Answer()), 0);
  EXPECT_EQ(StatusOf(other.queue.Answer()), 0);
  EXPECT_EQ(Write(other.queue, 0, 'C'), kConflict);
}

// The next engine reads them; what it can't read shuts that namespace, until it can.
TEST(ReservationsTest, OneThatCannotBeReadInTheNextEngineShutsItsNamespaceAlone) {
  TwoEngines engines;
  Association one(engines.rig);
  EXPECT_EQ(Write(one.queue, 0, 'A'), 0);
  auto associations = engines.HandOver();
  ASSERT_TRUE(associations.ok());
  engines.rig.reservations.fails = true;
  engines.Serve(std::move(*associations));
  EXPECT_EQ(engines.next->StatusOf(TargetRig::kNqn).shut, 1U);
  // A host keeps its requests then.
  EXPECT_EQ(Write(one.queue, 0, 'B'), kInaccessible);
  EXPECT_EQ(Read(one.queue, 0), kInaccessible);
  EXPECT_EQ(Register(one.queue, kKey), kInaccessible);
  engines.rig.reservations.fails = false;
  engines.rig.Until([&] { return engines.next->StatusOf(TargetRig::kNqn).shut == 0; });
  EXPECT_EQ(Write(one.queue, 0, 'B'), 0);
}

// The storage had not begun it when its host was shut out by another one, nor when the engine changed.
TEST(ReservationsTest, AWriteThatIsDoneAgainInTheNextEngineIsRefusedThere) {
  TwoEngines engines;
  Association one(engines.rig);
  Association other(engines.rig, TargetRig::OtherHost());
  ASSERT_EQ(Register(one.queue, kKey), 0);
  engines.rig.storage->queues = engines.rig.storage->without_limits = true;
  SendWrite(other.queue, 0, 'B');
  engines.rig.Until([&] { return engines.rig.storage->queued.size() == 1; });
  auto associations = engines.HandOver();
  ASSERT_TRUE(associations.ok());
  EXPECT_TRUE(engines.rig.storage->queued.empty());
  engines.rig.storage->queues = false;
  // As by a command of another path, which was answered before.
  auto& kept = engines.rig.reservations.kept[TargetRig::kUuid];
  kept.type = ReservationType::kWriteExclusive;
  kept.holder = TargetRig::Host().id;
  engines.Serve(std::move(*associations));
  EXPECT_EQ(StatusOf(other.queue.Answer()), kConflict);
  EXPECT_EQ(engines.rig.storage->content[0], 0);
  EXPECT_EQ(Write(one.queue, 0, 'A'), 0);
}

}  // namespace
}  // namespace cleat::nvmf_target::reservations_test
