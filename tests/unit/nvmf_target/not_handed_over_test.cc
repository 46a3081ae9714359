// SPDX-License-Identifier: Apache-2.0
// What does not go from one engine's target to the next one's, over real sockets: a subsystem that is not drained in time, hosts that come
// meanwhile, and associations that can't go, or that nobody can have had. Those end alone, and all others go on.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/nvmf_target/hand_over_host.h"
#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"
#include "tests/unit/nvmf_target/two_engines.h"

namespace cleat::nvmf_target::not_handed_over_test {
namespace {

using block::IoStatus;
using block::Op;
using hand_over_host::kBlocks;
using hand_over_host::SendWrite;
using hand_over_host::Succeeds;
using nvme::Opcode;
using nvme::tcp::SavedCommand;
using test::Arena;
using test::Association;
using test::Associations;
using test::BlocksEntry;
using test::Io;
using test::RawHost;
using test::TargetRig;
using test::TwoEngines;

TEST(NotHandedOverTest, WhenTheDeadlinePassesAllGoesOnAsBefore) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  Association other(rig);
  Arena arena(4096);
  Io write;
  write.segments = {{&arena.region(), 0, 4096}};
  rig.storage->holds = true;
  rig.disk->Start(write, Op::kWrite, 0, 4096);
  rig.Until([&] { return !rig.storage->held.empty(); });
  // Waits before the storage, and is left undone.
  rig.storage->queues = rig.storage->without_limits = true;
  SendWrite(other.queue, 64, 'B');
  rig.Until([&] { return !rig.storage->queued.empty(); });
  const auto handed = engines.HandOver(20 * kNsPerMs);
  EXPECT_EQ(handed.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(rig.service->serves(TargetRig::kNqn));
  rig.storage->LetGo();
  EXPECT_EQ(rig.disk->Wait(write), IoStatus::kOk);
  EXPECT_TRUE(Succeeds(other.queue.Answer()));
  EXPECT_EQ(rig.storage->content[64 * 512], 'B');
  EXPECT_TRUE(rig.broken.empty());
  Association more(rig);
  EXPECT_EQ(rig.service->StatusOf(TargetRig::kNqn).controllers, 3U);
}

TEST(NotHandedOverTest, NobodyIsLetInMeanwhile) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  Association host(rig);
  rig.storage->holds = true;
  SendWrite(host.queue, 0, 'A');
  rig.Until([&] { return !rig.storage->held.empty(); });
  bool done = false;
  Associations associations;
  rig.Begin(
      [&](TargetRig& r) -> Task<void> {
        associations = (co_await r.service->HandOver(TargetRig::kNqn, kNoDeadline)).value();
      },
      done);
  engines.Turns(10);
  RawHost late(rig);
  const auto refused = late.Connect(TargetRig::Host());
  ASSERT_TRUE(refused);
  EXPECT_FALSE(refused->status().ok());
  EXPECT_TRUE(Succeeds(host.admin.Do(nvme::fabrics::EntryOf(nvme::KeepAlive()))))
      << "a host's word that it lives is heard";
  rig.storage->LetGo();
  rig.Until([&] { return done; });
  EXPECT_EQ(associations.size(), 1U);
}

TEST(NotHandedOverTest, OneThatIsBeingResetOrHasALostQueueIsLetGoAndOthersGoOn) {
  TwoEngines engines;
  Association good(engines.rig), lost(engines.rig), reset(engines.rig), without(engines.rig);
  lost.queue.Close();
  (void)reset.admin.Do(nvme::fabrics::EntryOf(
      nvme::fabrics::PropertySet(nvme::fabrics::Property::kConfiguration, 4U << 20 | 6U << 16)));
  without.admin.Close();
  ASSERT_NO_FATAL_FAILURE(engines.MoveOn());
  EXPECT_TRUE(Succeeds(good.queue.Do(BlocksEntry(Opcode::kRead, 0, kBlocks, false))));
  EXPECT_EQ(reset.admin.Answer(), std::nullopt);
  EXPECT_EQ(without.queue.Answer(), std::nullopt);
}

TEST(NotHandedOverTest, AHostOverTlsIsLetGo) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  const auto key =
      std::make_shared<const nvme::tls::Psk>(nvme::tls::Psk::Parse(test::kTlsKeys[0], "it").value());
  nvme::target::HostAccess secured = nvme::target::HostAccess::Named(TargetRig::HostNqn());
  secured.psk = key;
  const auto set_hosts = [&](const std::vector<nvme::target::HostAccess>& hosts) {
    ASSERT_TRUE(rig.SetHosts(hosts).ok());
    const Status set = rig.Await<Status>(
        [&](TargetRig&) -> Task<Status> { co_return engines.next->SetHosts(TargetRig::kNqn, hosts); });
    ASSERT_TRUE(set.ok());
  };
  ASSERT_NO_FATAL_FAILURE(set_hosts({secured}));
  const auto named = [&] {
    return key->KeyFor(TargetRig::HostNqn(), TargetRig::kNqn, nvme::tls::IdentityVersion::kV0).value();
  };
  Association by_tls(RawHost(rig, named()), RawHost(rig, named()));
  auto associations = engines.HandOver();
  ASSERT_TRUE(associations.ok());
  EXPECT_TRUE(associations->empty());
  EXPECT_EQ(by_tls.queue.Answer(), std::nullopt);
  EXPECT_EQ(by_tls.admin.Answer(), std::nullopt);
}

// Hosts that take no answers: what they are owed is more than is handed over.
TEST(NotHandedOverTest, WhatIsBeyondTheLimitIsLetGo) {
  constexpr uint32_t kReads = 16, kReadBlocks = 2048;
  TwoEngines engines;
  std::vector<std::unique_ptr<Association>> hosts;
  for (int i = 0; i < 8; ++i) {
    Association& host = *hosts.emplace_back(std::make_unique<Association>(engines.rig));
    for (uint32_t read = 0; read < kReads; ++read)
      host.queue.Send(BlocksEntry(Opcode::kRead, 0, kReadBlocks, false));
  }
  engines.Turns();
  auto associations = engines.HandOver();
  ASSERT_TRUE(associations.ok());
  uint64_t bytes = 0;
  for (const SavedAssociation& saved : *associations) bytes += BytesOf(saved);
  EXPECT_LE(bytes, kSavedBytesMax);
  EXPECT_LT(associations->size(), hosts.size());
  EXPECT_GT(associations->size(), 0U);
  engines.Serve(std::move(*associations));
  // All answers of one, then its end; or an answer is cut short.
  uint32_t whole = 0;
  for (const auto& host : hosts) {
    uint32_t answers = 0;
    while (answers < kReads && Succeeds(host->queue.Answer())) ++answers;
    whole += answers == kReads ? 1 : 0;
  }
  EXPECT_EQ(whole, engines.controllers());
}

// What a host that is not the next engine's, or another process, makes of them ends one alone.
void EndsAlone(const std::function<void(SavedAssociation&)>& spoil) {
  TwoEngines engines;
  Association good(engines.rig), spoilt(engines.rig);
  auto associations = engines.HandOver();
  ASSERT_TRUE(associations.ok());
  ASSERT_EQ(associations->size(), 2U);
  for (SavedAssociation& saved : *associations) {
    if (saved.controller.id == spoilt.controller) spoil(saved);
  }
  engines.Serve(std::move(*associations));
  EXPECT_EQ(spoilt.admin.Answer(), std::nullopt);
  EXPECT_EQ(spoilt.queue.Answer(), std::nullopt);
  EXPECT_TRUE(Succeeds(good.queue.Do(BlocksEntry(Opcode::kRead, 0, kBlocks, false))));
  EXPECT_EQ(engines.controllers(), 1U);
}

TEST(NotHandedOverTest, AnAssociationThatNoHostCanHaveEndsAlone) {
  using Next = SavedCommand::Next;
  const auto add = [](SavedQueue& queue, Next next, uint16_t cid, uint32_t length, size_t has) {
    SavedCommand& command = queue.connection.commands.emplace_back();
    command.next = next;
    command.entry.cid = cid;
    command.entry.data.length_bytes = length;
    command.data.resize(has);
  };
  const std::vector<std::function<void(SavedAssociation&)>> spoils = {
      [](SavedAssociation& saved) { saved.queues.clear(); },
      [](SavedAssociation& saved) { saved.queues[0].socket.Reset(); },
      [](SavedAssociation& saved) { saved.queues[1].socket.Reset(); },
      [](SavedAssociation& saved) { saved.queues[0].id = 1; },
      [](SavedAssociation& saved) { saved.queues[1].id = 0; },
      [](SavedAssociation& saved) { saved.queues[1].id = 300; },
      [](SavedAssociation& saved) { std::swap(saved.queues[0], saved.queues[1]); },
      [](SavedAssociation& saved) { saved.queues[1].connection.entries = 0; },
      [](SavedAssociation& saved) { saved.queues[0].connection.entries = 200; },
      [](SavedAssociation& saved) { saved.queues[1].connection.in_capsule_bytes = UINT32_MAX; },
      [&](SavedAssociation& saved) { add(saved.queues[1], Next::kHold, 1, 0, 0); },
      [&](SavedAssociation& saved) { add(saved.queues[0], Next::kHold, 1, 0, 0); },
      [&](SavedAssociation& saved) { add(saved.queues[1], Next::kRunWithData, 1, 512, 513); },
      [&](SavedAssociation& saved) { add(saved.queues[1], static_cast<Next>(77), 1, 0, 0); },
      [&](SavedAssociation& saved) {
        add(saved.queues[1], Next::kAwaitData, 1, 512, 0);
        add(saved.queues[1], Next::kAwaitData, 1, 512, 0);
      },
      [](SavedAssociation& saved) { saved.controller.event_requests = {5}; },
      [](SavedAssociation& saved) { saved.controller.configuration = 0; },
      [](SavedAssociation& saved) { saved.controller.host_nqn = "nqn.2024-01.com.example:stranger"; },
      [](SavedAssociation& saved) { saved.controller.deadline_ns = 0; },
      [](SavedAssociation& saved) { saved.queues[1].connection.unsent.resize(kSavedBytesMax + 1); },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_NO_FATAL_FAILURE(EndsAlone(spoils[i]));
  }
}

// Values that a host might have brought about: an answer, or the end, and no more.
TEST(NotHandedOverTest, CommandsThatAreNonsenseAreAnswered) {
  TwoEngines engines;
  Association host(engines.rig);
  auto associations = engines.HandOver();
  ASSERT_TRUE(associations.ok());
  nvme::tcp::SavedConnection& queue = associations->front().queues[1].connection;
  for (const uint8_t opcode : {0x01, 0x02, 0x08, 0x09, 0x77, 0x7f}) {
    SavedCommand& with_data = queue.commands.emplace_back();
    with_data.next = SavedCommand::Next::kRunWithData;
    with_data.entry.opcode = opcode;
    with_data.entry.nsid = 1;
    with_data.entry.cdw12 = 0xffff;
    with_data.entry.data.length_bytes = 13;
    with_data.data.resize(13);
    SavedCommand& without = queue.commands.emplace_back();
    without.entry.opcode = opcode;
    without.entry.nsid = 64;
    without.entry.data.length_bytes = UINT32_MAX;
  }
  const size_t commands = queue.commands.size();
  engines.Serve(std::move(*associations));
  for (size_t i = 0; i < commands; ++i) EXPECT_TRUE(host.queue.Answer()) << i;
}

TEST(NotHandedOverTest, AnIdentifierThatIsInUseIsNotTaken) {
  TwoEngines engines;
  Association first(engines.rig), second(engines.rig);
  auto associations = engines.HandOver();
  ASSERT_TRUE(associations.ok());
  (*associations)[1].controller.id = (*associations)[0].controller.id;
  engines.Serve(std::move(*associations));
  engines.Turns();
  EXPECT_EQ(engines.controllers(), 1U);
  Association third(engines.rig);
  EXPECT_EQ(engines.controllers(), 2U);
}

TEST(NotHandedOverTest, AHostThatIsNotLetInAnyMoreIsClosed) {
  TwoEngines engines;
  Association host(engines.rig);
  auto associations = engines.HandOver();
  ASSERT_TRUE(associations.ok());
  const Status set = engines.rig.Await<Status>([&](TargetRig&) -> Task<Status> {
    co_return engines.next->SetHosts(TargetRig::kNqn,
                                     {nvme::target::HostAccess::Named("nqn.2024-01.com.example:another")});
  });
  ASSERT_TRUE(set.ok());
  engines.Serve(std::move(*associations));
  EXPECT_EQ(host.admin.Answer(), std::nullopt);
  EXPECT_EQ(engines.controllers(), 0U);
}

// Whoever drops what was handed over closes it, and hosts come back.
TEST(NotHandedOverTest, AHostWhoseConnectionsAreLostOnTheWayComesBack) {
  TwoEngines engines;
  TargetRig& rig = engines.rig;
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  ASSERT_TRUE(engines.HandOver().ok());
  rig.Until([&] { return !rig.broken.empty(); });
  engines.Serve({});
  rig.Until([&] { return engines.controllers() == 1; });
  Arena arena(4096);
  EXPECT_EQ(rig.disk->Do(Op::kRead, 0, 4096, &arena), IoStatus::kOk);
}

}  // namespace
}  // namespace cleat::nvmf_target::not_handed_over_test
