// SPDX-License-Identifier: Apache-2.0
// Hosts with a path to an engine that stands by: no I/O command of theirs is executed there before it serves the subsystem. Two services over one
// storage are the two engines.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "nvme/fabrics/log_pages.h"
#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::nvmf_target::standby_path_test {
namespace {

using block::IoStatus;
using block::Op;
using nvme::Opcode;
using nvme::fabrics::AnaState;
using nvme::fabrics::SubmissionEntry;
using test::Arena;
using test::Association;
using test::BlocksEntry;
using test::Io;
using test::RandomLoad;
using test::RawHost;
using test::TargetRig;

constexpr uint16_t kInaccessible =
    0x302;                              // Asymmetric Access Inaccessible, which may be tried again elsewhere
constexpr uint16_t kNoAnswer = 0xffff;  // the connection has ended
constexpr uint32_t kAnaEvent = 0x000c0302;
constexpr uint32_t kBlocks = 8;
constexpr uint64_t kBusyNs = 20 * kNsPerMs;  // so long that a reactor has looked at all of its sockets
constexpr size_t kBytes = kBlocks * 512;

// The engine that stands by. The rig's own service is the one that serves the subsystem to begin with.
struct Standby {
  explicit Standby(TargetRig& of) : rig(of) {
    config.nqn = TargetRig::kNqn;
    config.serial = "S1";
    config.hosts = {nvme::target::HostAccess::Named(TargetRig::HostNqn())};
    config.addresses = rig.addresses;
    config.standby_addresses = {nvme::fabrics::ParseTransportAddress(TargetRig::FreeAddress()).value()};
    for (size_t i = 0; i < channels.size(); ++i)
      channels[i] = std::move(rig.backing->OpenChannel(*rig.io[i])).value();
    SubsystemParts parts;
    parts.name = "controllers/e";
    parts.config = config;
    for (const auto& reactor : rig.io) parts.reactors.push_back(reactor.get());
    CLEAT_CHECK(service.AddSubsystem(std::move(parts)).ok());
    CLEAT_CHECK(AddNamespace(1).ok());
  }
  ~Standby() {
    rig.Await<bool>([this](TargetRig&) -> Task<bool> {
      (void)co_await service.Withdraw(TargetRig::kNqn);
      for (const uint32_t nsid : {1, 2}) co_await service.RemoveNamespace(TargetRig::kNqn, nsid);
      service.RemoveSubsystem(TargetRig::kNqn);
      co_await service.Close();
      co_return true;
    });
  }
  Standby(const Standby&) = delete;
  Standby& operator=(const Standby&) = delete;

  Status AddNamespace(uint32_t nsid) {
    return rig.Await<Status>([this, nsid](TargetRig&) -> Task<Status> {
      NamespaceParts parts;
      parts.shape = rig.ShapeOf(nsid);
      parts.channel_on = [this](Reactor& reactor) {
        return NamespaceChannel{channels[&reactor == rig.io[0].get() ? 0 : 1].get()};
      };
      co_return co_await service.AddNamespace(TargetRig::kNqn, nsid, std::move(parts));
    });
  }
  Status StandBy() {
    return rig.Await<Status>(
        [this](TargetRig&) -> Task<Status> { co_return service.StandBy(TargetRig::kNqn); });
  }
  Status Serve(TargetService::Addresses addresses = TargetService::Addresses::kShared) {
    return rig.Await<Status>([this, addresses](TargetRig&) -> Task<Status> {
      co_return service.Serve(TargetRig::kNqn, addresses);
    });
  }
  Status Withdraw(TargetService& of) const {
    return rig.Await<Status>([&of](TargetRig&) { return of.Withdraw(TargetRig::kNqn); });
  }
  // Raw hosts come to this address from now on.
  void LeadHostsTo(const nvme::fabrics::TransportAddress& address) const { rig.addresses = {address}; }
  uint32_t controllers() const { return service.StatusOf(TargetRig::kNqn).controllers; }

  TargetRig& rig;
  nvme::target::SubsystemConfig config;
  std::array<std::unique_ptr<block::PipelineChannel>, 2> channels;
  TargetService service{*rig.adapters, nullptr};
};

// A host that has come to the engine that stands by, whose storage would hold whatever it was asked for.
struct StandbyHost {
  StandbyHost() {
    EXPECT_TRUE(standby.StandBy().ok());
    standby.LeadHostsTo(standby.config.standby_addresses.front());
    rig.storage->holds = true;
    host = std::make_unique<Association>(rig);
  }
  ~StandbyHost() { rig.storage->LetGo(); }
  StandbyHost(const StandbyHost&) = delete;
  StandbyHost& operator=(const StandbyHost&) = delete;
  uint16_t StatusOf(const SubmissionEntry& entry, const std::vector<uint8_t>& data = {}) const {
    const auto answer = host->queue.Do(entry, data);
    return answer ? answer->status().field() : kNoAnswer;
  }
  AnaState Ana() const {
    SubmissionEntry read =
        nvme::fabrics::EntryOf(nvme::GetLogPage(nvme::LogPage::kAna, nvme::kAllNamespaces, 52));
    read.data.type = nvme::fabrics::kSglByTransport;
    read.data.length_bytes = 52;
    const auto answer = host->admin.Do(read);
    CLEAT_CHECK(answer && answer->status().ok());
    return nvme::fabrics::ParseAnaLog(host->admin.data(), "it").value().Find(1)->state;
  }

  TargetRig rig;
  Standby standby{rig};
  std::unique_ptr<Association> host;
};

TEST(StandbyPathTest, EachIoCommandIsAnsweredByThePathAndNoneReachesTheStorage) {
  StandbyHost scene;
  const std::vector<uint8_t> data(kBytes, 'A');
  EXPECT_EQ(scene.StatusOf(BlocksEntry(Opcode::kRead, 0, kBlocks, false)), kInaccessible);
  EXPECT_EQ(scene.StatusOf(BlocksEntry(Opcode::kWrite, 0, kBlocks, true), data), kInaccessible);
  EXPECT_EQ(scene.StatusOf(BlocksEntry(Opcode::kWrite, 0, kBlocks, false)), kInaccessible)
      << "without asking for its data";
  EXPECT_EQ(scene.StatusOf(nvme::fabrics::EntryOf(nvme::Flush(1))), kInaccessible);
  SubmissionEntry zeroes = BlocksEntry(Opcode::kWriteZeroes, 0, kBlocks, false);
  zeroes.data = {};
  EXPECT_EQ(scene.StatusOf(zeroes), kInaccessible);
  SubmissionEntry discard =
      nvme::fabrics::EntryOf(nvme::Command{.opcode = static_cast<uint8_t>(Opcode::kDatasetManagement),
                                           .nsid = 1,
                                           .cdw11 = nvme::kDatasetDeallocate});
  discard.data.type = nvme::fabrics::kSglInCapsule;
  discard.data.length_bytes = sizeof(nvme::DatasetRange);
  EXPECT_EQ(scene.StatusOf(discard, std::vector<uint8_t>(sizeof(nvme::DatasetRange), 0)), kInaccessible);
  EXPECT_TRUE(scene.rig.storage->held.empty());
  EXPECT_EQ(scene.rig.storage->content, std::vector<uint8_t>(TargetRig::kBytes, 0));
}

TEST(StandbyPathTest, AHostIsToldWhenItIsServedAndGoesOnByTheSameConnection) {
  StandbyHost scene;
  EXPECT_EQ(scene.Ana(), AnaState::kInaccessible);
  scene.host->admin.Send(nvme::fabrics::EntryOf(nvme::AsyncEventRequest()));
  EXPECT_TRUE(scene.host->admin.IsQuiet());
  ASSERT_TRUE(scene.standby.Withdraw(*scene.rig.service).ok());
  EXPECT_TRUE(scene.host->admin.IsQuiet());
  EXPECT_EQ(scene.StatusOf(BlocksEntry(Opcode::kRead, 0, kBlocks, false)), kInaccessible)
      << "that the other one has let go is not enough";
  ASSERT_TRUE(scene.standby.Serve().ok());
  const auto event = scene.host->admin.Answer();
  ASSERT_TRUE(event);
  EXPECT_EQ(event->result & UINT32_MAX, kAnaEvent);
  EXPECT_EQ(scene.Ana(), AnaState::kOptimized);
  scene.rig.storage->holds = false;
  EXPECT_EQ(scene.StatusOf(BlocksEntry(Opcode::kWrite, 0, kBlocks, true), std::vector<uint8_t>(kBytes, 'B')),
            0);
  EXPECT_EQ(scene.rig.storage->content[kBytes - 1], 'B');
  EXPECT_EQ(scene.standby.controllers(), 1U);
}

TEST(StandbyPathTest, ANamespaceThatComesMeanwhileIsInaccessible) {
  StandbyHost scene;
  ASSERT_TRUE(scene.standby.AddNamespace(2).ok());
  SubmissionEntry read = BlocksEntry(Opcode::kRead, 0, kBlocks, false);
  read.nsid = 2;
  EXPECT_EQ(scene.StatusOf(read), kInaccessible);
  EXPECT_TRUE(scene.rig.storage->held.empty());
  ASSERT_TRUE(scene.standby.Withdraw(*scene.rig.service).ok());
  ASSERT_TRUE(scene.standby.Serve().ok());
  scene.rig.storage->holds = false;
  EXPECT_EQ(scene.StatusOf(read), 0);
}

TEST(StandbyPathTest, WhatWasServedStandsByAgainOnEachReactor) {
  StandbyHost scene;
  ASSERT_TRUE(scene.standby.Withdraw(*scene.rig.service).ok());
  ASSERT_TRUE(scene.standby.Serve().ok());
  ASSERT_TRUE(scene.standby.Withdraw(scene.standby.service).ok());
  EXPECT_FALSE(scene.host->admin.Answer()) << "its hosts are let go";
  ASSERT_TRUE(scene.standby.StandBy().ok());
  const uint16_t before = scene.host->controller;
  for (int i = 0; i < 2; ++i) {
    // The next controller's first queue runs on the other reactor.
    scene.host = std::make_unique<Association>(scene.rig);
    EXPECT_NE(scene.host->controller, before);
    EXPECT_EQ(scene.Ana(), AnaState::kInaccessible);
    EXPECT_EQ(scene.StatusOf(BlocksEntry(Opcode::kRead, 0, kBlocks, false)), kInaccessible);
  }
  EXPECT_TRUE(scene.rig.storage->held.empty());
  ASSERT_TRUE(scene.standby.Serve().ok());
  scene.rig.storage->holds = false;
  EXPECT_EQ(scene.StatusOf(BlocksEntry(Opcode::kRead, 0, kBlocks, false)), 0);
}

TEST(StandbyPathTest, AHostIsLetGoByAnEngineThatStandsByNoMore) {
  StandbyHost scene;
  ASSERT_TRUE(scene.standby.Withdraw(scene.standby.service).ok());
  EXPECT_FALSE(scene.host->admin.Answer());
  EXPECT_EQ(scene.standby.controllers(), 0U);
  EXPECT_EQ(scene.rig.service->serves(TargetRig::kNqn), true);
}

TEST(StandbyPathTest, ItListensWhereItsPartSays) {
  TargetRig rig;
  Standby standby(rig);
  const auto is_free = [&rig](const nvme::fabrics::TransportAddress& address) {
    return Listener(*rig.control, [](Accepted) {}).Listen(address, false).ok();
  };
  const auto& own = standby.config.addresses.front();
  const auto& standing_by = standby.config.standby_addresses.front();
  EXPECT_TRUE(is_free(standing_by)) << "before it stands by";
  ASSERT_TRUE(standby.StandBy().ok());
  ASSERT_TRUE(standby.StandBy().ok()) << "the same again";
  EXPECT_FALSE(is_free(standing_by));
  EXPECT_TRUE(Listener(*rig.control, [](Accepted) {}).Listen(standing_by, true).ok())
      << "the next engine that stands by may listen there too";
  ASSERT_TRUE(standby.Withdraw(*rig.service).ok());
  EXPECT_TRUE(is_free(own));
  ASSERT_TRUE(standby.Serve().ok());
  EXPECT_FALSE(is_free(own));
  EXPECT_TRUE(is_free(standing_by));
}

TEST(StandbyPathTest, WithoutStandbyAddressesNobodyReachesIt) {
  TargetRig rig;
  ASSERT_TRUE(Standby(rig).Withdraw(*rig.service).ok());
  ASSERT_TRUE(
      rig.Await<Status>([](TargetRig& r) -> Task<Status> { co_return r.service->StandBy(TargetRig::kNqn); })
          .ok());
  EXPECT_TRUE(Listener(*rig.control, [](Accepted) {}).Listen(rig.addresses.front(), false).ok());
}

TEST(StandbyPathTest, AnAddressThatIsTakenLeavesItStandingBy) {
  StandbyHost scene;
  ASSERT_FALSE(scene.standby.Serve(TargetService::Addresses::kOwn).ok()) << "the other engine listens there";
  EXPECT_FALSE(scene.standby.service.serves(TargetRig::kNqn));
  EXPECT_EQ(scene.StatusOf(BlocksEntry(Opcode::kRead, 0, kBlocks, false)), kInaccessible);
  EXPECT_EQ(scene.Ana(), AnaState::kInaccessible);
}

// The host has lost the paths of A while these were handed over, and sends B by the others. Each reactor has one of either: on none is B a step ahead.
TEST(StandbyPathTest, WhatWasInFlightOnAPathThatIsHandedOverComesBeforeWhatThisOneHas) {
  TargetRig rig;
  Standby standby(rig);
  ASSERT_TRUE(standby.StandBy().ok());
  const auto send_write = [](Association& host, uint64_t block, uint8_t value) {
    host.queue.Send(BlocksEntry(Opcode::kWrite, block, kBlocks, true), std::vector<uint8_t>(kBytes, value));
  };
  std::array<Association, 2> first{Association(rig), Association(rig)};
  rig.storage->queues = rig.storage->without_limits = true;
  send_write(first[0], 0, 'A');
  send_write(first[1], kBlocks, 'A');
  rig.Until([&] { return rig.storage->queued.size() == 2; });
  standby.LeadHostsTo(standby.config.standby_addresses.front());
  std::array<Association, 2> second{Association(rig), Association(rig)};
  auto associations = rig.Await<Result<std::vector<SavedAssociation>>>(
      [](TargetRig& r) { return r.service->HandOver(TargetRig::kNqn, kNoDeadline); });
  ASSERT_TRUE(associations.ok());
  ASSERT_EQ(associations->size(), 2U);
  for (Association& host : second) {
    // Stands in the socket, and overlaps the A of the other reactor: these have queues in turn, by controllers' identifiers.
    const bool same = (host.controller + first[0].controller) % 2 == 0;
    send_write(host, same ? kBlocks : 0, 'B');
  }
  Status served;
  bool done = false;
  rig.Begin(
      [&](TargetRig&) -> Task<void> {
        served = standby.service.Serve(TargetRig::kNqn, TargetService::Addresses::kShared,
                                       std::move(*associations));
        co_return;
      },
      done);
  // One reactor is busy with other things.
  for (const uint64_t until_ns = rig.clock.NowNs() + kBusyNs; rig.clock.NowNs() < until_ns;) {
    rig.control->RunOnce();
    rig.io[0]->RunOnce();
  }
  ASSERT_TRUE(done && served.ok());
  EXPECT_EQ(rig.storage->queued.size(), 1U) << "of A, what this reactor has";
  for (int turn = 0; turn < 300; ++turn) rig.Turn();
  EXPECT_EQ(rig.storage->queued.size(), 2U) << "A alone";
  rig.storage->Unqueue();
  for (Association& host : first) {
    const auto answer = host.queue.Answer();
    EXPECT_TRUE(answer && answer->status().ok());
  }
  for (Association& host : second) EXPECT_TRUE(host.queue.Answer()) << "it has lost its connection";
}

// Our own host has both paths, and loses the first one: what it is asked for meanwhile waits, and is executed once.
TEST(StandbyPathTest, AHostWithBothPathsWaitsUntilTheSecondIsServed) {
  TargetRig rig;
  Standby standby(rig);
  ASSERT_TRUE(standby.StandBy().ok());
  rig.addresses.push_back(standby.config.standby_addresses.front());
  ASSERT_NO_FATAL_FAILURE(rig.OpenHost());
  rig.Until([&] { return standby.controllers() == 1; });
  RandomLoad load(*rig.disk, 1, 0, TargetRig::kBytes / 2);
  load.Run(200);
  ASSERT_TRUE(standby.Withdraw(*rig.service).ok());
  Arena arena(kBytes);
  Io write;
  write.segments = {{&arena.region(), 0, kBytes}};
  rig.storage->holds = true;
  rig.disk->Start(write, Op::kWrite, TargetRig::kBytes / 2, kBytes);
  for (int turn = 0; turn < 1000; ++turn) rig.Turn();
  EXPECT_TRUE(rig.storage->held.empty());
  rig.storage->holds = false;
  ASSERT_TRUE(standby.Serve().ok());
  EXPECT_EQ(rig.disk->Wait(write), IoStatus::kOk);
  load.Run(200);
  rig.CloseHost();
}

}  // namespace
}  // namespace cleat::nvmf_target::standby_path_test
