// SPDX-License-Identifier: Apache-2.0
// Cleat's disks over RDMA on Cleat's target: both ends in this process, over adapters in memory.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "modules/nvmf/rdma/rdma_queue.h"
#include "nvme/fabrics/names.h"
#include "tests/unit/nvmf_target/rdma/rdma_disk.h"

namespace cleat::test::disks_over_rdma {
namespace {

struct RdmaDisk : RdmaDiskTest {
  void ZeroAll() { ASSERT_EQ(rig->disk->Do(block::Op::kWriteZeroes, 0, kBytes), block::IoStatus::kOk); }
  uint32_t Optimized() { return rig->device->paths()->optimized; }
  std::string WhyNotOpened() {
    const auto opened = rig->TryOpen();
    EXPECT_FALSE(opened.ok());
    return opened.ok() ? "" : opened.error().message;
  }
};

TEST_F(RdmaDisk, AgreesWithTheReference) {
  Make();
  rig->OpenHost();
  ZeroAll();
  RandomLoad load(*rig->disk, 1, 0, kBytes, RandomLoad::Discards::kNone);
  load.Run(600);
  EXPECT_TRUE(rig->broken.empty());
}

TEST_F(RdmaDisk, GoesOnByTheOtherPathWhenAnAdapterIsGoneAndByBothWhenItIsBack) {
  Make(2);
  rig->OpenHost();
  ZeroAll();
  RandomLoad load(*rig->disk, 2, 0, kBytes, RandomLoad::Discards::kNone);
  for (const std::string end : {"host", "target"}) {
    rig->Until([&] { return Optimized() == 2; });
    load.Run(100);
    fabric.RemoveAdapter(end + "0");
    rig->Until([&] { return Optimized() == 1; });
    rig->Until([&] { return rig->device->ConfirmDead().ok(); });
    load.Run(200);
    rig->AddAdapter(fabric, end, 0);
  }
  EXPECT_TRUE(rig->broken.empty());
}

TEST_F(RdmaDisk, GoesOnOnceATargetThatWasGoneIsBack) {
  Make();
  rig->OpenHost();
  ZeroAll();
  RandomLoad load(*rig->disk, 3, 0, kBytes, RandomLoad::Discards::kNone);
  load.Run(100);
  fabric.RemoveAdapter("target0");
  rig->Until([&] { return rig->broken.size() == 1; });
  EXPECT_NE(rig->broken[0].find("rdma://10.0.0.1:4420"), std::string::npos) << rig->broken[0];
  rig->AddAdapter(fabric, "target", 0);
  rig->Until([&] { return Optimized() == 1; });
  rig->Until([&] { return rig->device->ConfirmDead().ok(); });
  load.Run(100);
}

TEST_F(RdmaDisk, SaysWhyItCannotBeOpened) {
  Make();
  fabric.RemoveAdapter("host0");
  EXPECT_NE(WhyNotOpened().find("no adapter has the address 10.0.1.1"), std::string::npos);
  rdma::DeviceLimits limits = RdmaFabric::UsualLimits();
  limits.windows_of_type_2b = false;
  fabric.AddAdapter("host0", {"10.0.1.1"}, limits);
  EXPECT_NE(WhyNotOpened().find("no memory windows of type 2B"), std::string::npos);
}

// What an adapter says that it has, others may have taken.
TEST_F(RdmaDisk, HasFewerWindowsWhereTheAdapterGivesNoMore) {
  Make();
  fabric.RemoveAdapter("host0");
  rdma::DeviceLimits limits = RdmaFabric::UsualLimits();
  limits.windows = 400;
  fabric.AddAdapter("host0", {"10.0.1.1"}, limits);
  rig->OpenHost();
  ZeroAll();
  RandomLoad load(*rig->disk, 4, 0, kBytes, RandomLoad::Discards::kNone);
  load.Run(200);
  EXPECT_TRUE(rig->broken.empty());
}

// ---- Where paths begin, and how they are marked

// Both adapters lead to the target, and the kernel's routes to it by the first alone.
TEST_F(RdmaDisk, ComesByTheAdapterThatHasItsSourceAndIsMarked) {
  Make(2);
  rig->adjust_host = [](modules::NvmfSubsystem& subsystem) {
    subsystem.addresses = {
        nvme::fabrics::ParsePathAddress("rdma://10.0.0.1,from=10.0.1.2").value(),
        nvme::fabrics::ParsePathAddress("rdma://10.0.0.1,from=10.0.1.1").value(),
    };
    subsystem.dscp = 26;
  };
  rig->OpenHost();
  rig->Until([&] { return Optimized() == 2; });
  ZeroAll();
  EXPECT_GT(fabric.queue_pairs("host0"), 0U);
  EXPECT_GT(fabric.queue_pairs("host1"), 0U);
  EXPECT_EQ(fabric.queue_pairs("target1"), 0U);
  std::map<std::string, uint32_t> by_source;
  for (const RdmaWay& way : fabric.TakeWays()) {
    EXPECT_EQ(way.to.address, "10.0.0.1");
    EXPECT_EQ(way.traffic_class, 26 << 2);
    ++by_source[way.from];
  }
  EXPECT_GE(by_source["10.0.1.1"], 2U) << "an admin queue, and an I/O queue";
  EXPECT_GE(by_source["10.0.1.2"], 2U);
  EXPECT_EQ(by_source.size(), 2U);
}

TEST_F(RdmaDisk, ComesByTheRouteAndUnmarkedWhereNothingIsAskedFor) {
  Make();
  rig->OpenHost();
  ZeroAll();
  const std::vector<RdmaWay> ways = fabric.TakeWays();
  EXPECT_GE(ways.size(), 2U);
  for (const RdmaWay& way : ways) {
    EXPECT_EQ(way.from, "10.0.1.1");
    EXPECT_EQ(way.traffic_class, 0);
  }
}

TEST_F(RdmaDisk, ASourceThatNoAdapterHasIsAnErrorOfItsPath) {
  Make();
  rig->adjust_host = [](modules::NvmfSubsystem& subsystem) {
    subsystem.addresses = {nvme::fabrics::ParsePathAddress("rdma://10.0.0.1,from=10.0.1.9").value()};
  };
  const std::string why = WhyNotOpened();
  EXPECT_NE(why.find("subsystems/s at rdma://10.0.0.1:4420,from=10.0.1.9"), std::string::npos) << why;
  EXPECT_NE(why.find("no adapter has the address 10.0.1.9"), std::string::npos) << why;
}

// ---- The queue of a reservation

struct RdmaReservation : RdmaDisk {
  RdmaReservation() {
    Make();
    rig->reservation_family = 0x1111'2222'3333'4444;
    // So that windows are shut by the host, when it has the answer.
    fabric.SendPlainly("target0");
  }
  // A disk without channels, whose only I/O queue is that of its reservation, joins. The first one breaks when so many windows were shut, and the answer
  // of the next one waits for that. False: there is no such answer.
  bool JoinsThoughItBreaksAfter(uint32_t shut) {
    const auto device = std::move(rig->TryOpen()).value();
    const uint32_t admin = fabric.LastPairOn("host0");
    bool done = false;
    Status joined;
    rig->Begin(
        [&](TargetRig&) -> Task<void> { joined = co_await device->Acquire(block::AccessMode::kReadWrite); },
        done);
    rig->Until([&] { return fabric.LastPairOn("host0") != admin; });
    const uint32_t queue = fabric.LastPairOn("host0");
    fabric.Hold(queue);
    bool broken = false;
    rig->Until([&] {
      // One work: the end of a window; two: its binding, and the capsule.
      const uint32_t works = broken ? 0 : fabric.waiting(queue);
      if (works == 1 && shut-- == 0) {
        broken = true;
        fabric.Break(queue);
      } else if (works > 0) {
        fabric.Release(queue, works);
      }
      return done;
    });
    EXPECT_TRUE(joined.ok()) << joined.error().message;
    rig->Await<bool>([&](TargetRig&) -> Task<bool> {
      (void)co_await device->Close();
      co_return true;
    });
    return broken;
  }
};

// The login's answer, and those of the reservation's commands, the next of which has no room there any more.
TEST_F(RdmaReservation, GoesOnByAnotherQueueWhereOneEndsInTheMidstOfAnAnswer) {
  uint32_t answers = 0;
  for (bool broken = true; broken; ++answers) {
    ASSERT_LT(answers, 100U);
    broken = JoinsThoughItBreaksAfter(answers);
  }
  EXPECT_GT(answers, 3U);
}

// ---- One queue

struct QueueOwner final : nvme::fabrics::QueuePairOwner {
  void Connected() override { connected = true; }
  void Completed(uint64_t /*cookie*/, const nvme::fabrics::CompletionEntry& /*entry*/,
                 uint64_t /*data_bytes*/) override {}
  void Unanswered(uint64_t /*cookie*/, nvme::fabrics::Reached /*reached*/) override {}
  void Ended(const Error& reason) override { ended = reason.message; }
  bool connected = false;
  std::string ended;
};

modules::TransportQueueOptions OptionsOf(TargetRig& rig) {
  modules::TransportQueueOptions options;
  options.transport.address = rig.addresses.at(0);
  options.transport.rdma = rig.ports.get();
  options.name = "queue";
  options.entries = 32;
  return options;
}

// Each turn of the way there is one at which its owner may have enough.
TEST_F(RdmaDisk, AQueueMayBeGivenUpAtAnyTime) {
  Make();
  bool was_connected = false;
  for (int turns = 0; !was_connected; ++turns) {
    ASSERT_LT(turns, 1000);
    QueueOwner owner;
    modules::RdmaQueue queue(OptionsOf(*rig), *rig->io[0], owner);
    queue.Start();
    for (int turn = 0; turn < turns; ++turn) rig->Turn();
    was_connected = owner.connected;
    queue.Abort({ErrorCode::kCancelled, "enough"});
    EXPECT_EQ(owner.ended, "enough");
  }
}

TEST_F(RdmaDisk, AnAdapterMayGoAtAnyTimeOfAQueuesWay) {
  Make();
  bool was_connected = false;
  for (int turns = 0; !was_connected; ++turns) {
    ASSERT_LT(turns, 1000);
    QueueOwner owner;
    modules::RdmaQueue queue(OptionsOf(*rig), *rig->io[0], owner);
    queue.Start();
    for (int turn = 0; turn < turns; ++turn) rig->Turn();
    was_connected = owner.connected;
    fabric.RemoveAdapter("host0");
    rig->Until([&] { return queue.ended(); });
    EXPECT_FALSE(owner.ended.empty());
    rig->AddAdapter(fabric, "host", 0);
  }
}

TEST_F(RdmaDisk, AQueueOnAnAdapterWithTooLittleRoomSaysSo) {
  Make();
  fabric.RemoveAdapter("host0");
  rdma::DeviceLimits limits = RdmaFabric::UsualLimits();
  limits.completion_entries = 100;
  fabric.AddAdapter("host0", {"10.0.1.1"}, limits);
  QueueOwner owner;
  modules::RdmaQueue queue(OptionsOf(*rig), *rig->io[0], owner);
  queue.Start();
  rig->Until([&] { return queue.ended(); });
  EXPECT_NE(owner.ended.find("room for 100 completions"), std::string::npos) << owner.ended;
}

// Making one blocks the control reactor, so that many queues that want it are told at once what is missing.
TEST_F(RdmaDisk, APortThatCouldNotBeMadeIsNotTriedAgainAtOnce) {
  Make();
  fabric.LeaveWindows("host0", 10);
  const auto ended = [this] {
    QueueOwner owner;
    modules::RdmaQueue queue(OptionsOf(*rig), *rig->io[0], owner);
    queue.Start();
    rig->Until([&] { return queue.ended() || owner.connected; });
    queue.Abort({ErrorCode::kCancelled, "enough"});
    return owner.connected ? "" : owner.ended;
  };
  const std::string missing = ended();
  EXPECT_NE(missing.find("gives no memory window"), std::string::npos) << missing;
  fabric.LeaveWindows("host0", 1000);
  const uint64_t again_ns = rig->clock.NowNs() + modules::RdmaPorts::kFailureNs;
  rig->virtual_time.AdvanceBy(modules::RdmaPorts::kFailureNs / 2);
  EXPECT_EQ(ended(), missing);
  rig->Until([&] { return rig->clock.NowNs() > again_ns; });
  EXPECT_EQ(ended(), "");
}

TEST_F(RdmaDisk, AQueueWithoutAnAnswerSaysSo) {
  Make();
  modules::TransportQueueOptions options = OptionsOf(*rig);
  options.transport.address.port = 4421;
  QueueOwner owner;
  modules::RdmaQueue queue(options, *rig->io[0], owner);
  queue.Start();
  rig->Until([&] { return queue.ended(); });
  EXPECT_FALSE(owner.connected);
  EXPECT_NE(owner.ended.find("queue: "), std::string::npos) << owner.ended;
  EXPECT_NE(owner.ended.find("10.0.0.1:4421"), std::string::npos) << owner.ended;
}

}  // namespace
}  // namespace cleat::test::disks_over_rdma
