// SPDX-License-Identifier: Apache-2.0
// Whose requests an in-flight log has, in both formats: what was recorded for one disk is never taken for another's.
#include "virtio/inflight_entry.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "blk_rig.h"
#include "kill.h"
#include "scsi_rig.h"
#include "virtio/inflight_log.h"
#include "virtio/packed_inflight_log.h"

namespace cleat::virtio::inflight_entry_test {
namespace {

constexpr uint64_t kStore = 77;
constexpr DiskIdentity kA = DiskIdentity::Of(kStore, 5);
constexpr DiskIdentity kB = DiskIdentity::Of(kStore, 6);
constexpr DiskIdentity kElsewhere =
    DiskIdentity::Of(kStore + 1, 5);  // as many changes of another store later

TEST(DiskIdentity, SaysWhichDiskOfWhichStore) {
  EXPECT_FALSE(DiskIdentity().known());
  EXPECT_EQ(DiskIdentity().tag(), 0U);
  EXPECT_EQ(kA.store(), kStore);
  EXPECT_NE(kA, kB);
  EXPECT_NE(kA.tag(), kB.tag());
  EXPECT_NE(kA.tag(), kElsewhere.tag());
  EXPECT_NE(DiskIdentity::SomeOf(kStore), kA);
  EXPECT_EQ(DiskIdentity::SomeOf(kStore).store(), kStore);
  for (uint64_t revision = 1; revision < 100'000; ++revision)
    ASSERT_NE(DiskIdentity::Of(DiskIdentity::kStoreMax, revision).tag(), 0U);
}

std::vector<uint16_t> HeadsByAge(std::vector<InflightRequest> requests) {
  SortByAge(requests);
  std::vector<uint16_t> heads;
  for (const InflightRequest& request : requests) heads.push_back(request.head);
  return heads;
}

TEST(SortByAge, GoesOnBehindTheWrapOfTheSerialNumbers) {
  using Heads = std::vector<uint16_t>;
  EXPECT_EQ(HeadsByAge({}), Heads{});
  EXPECT_EQ(HeadsByAge({{.serial = 9, .head = 3}}), Heads{3});
  EXPECT_EQ(HeadsByAge({{.serial = 9, .head = 3}, {.serial = 2, .head = 1}}), (Heads{1, 3}));
  EXPECT_EQ(
      HeadsByAge({{.serial = 0, .head = 3}, {.serial = UINT32_MAX, .head = 1}, {.serial = 1, .head = 2}}),
      (Heads{1, 3, 2}));
  // One has been in the storage for long while two thousand million others went by.
  EXPECT_EQ(HeadsByAge({{.serial = 0x10000000, .head = 1}, {.serial = 0x90000000 - 1, .head = 2}}),
            (Heads{1, 2}));
}

TEST(SortByAge, KeepsEachRequestWhateverAPeerHasWritten) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<InflightRequest> requests;
    for (uint16_t head = 0; head < 30; ++head)
      requests.push_back({.serial = static_cast<uint32_t>(random() % 7 * 0x30000000), .head = head});
    auto heads = HeadsByAge(requests);
    std::sort(heads.begin(), heads.end());
    for (uint16_t head = 0; head < 30; ++head) ASSERT_EQ(heads.at(head), head);
  }
}

TEST(CheckInflightOwner, RefusesAnotherDiskOfTheSameStoreAlone) {
  alignas(8) std::array<uint8_t, 16> log{};
  const auto takes = [&](DiskIdentity owner, DiskIdentity disk) {
    const uint64_t word = owner.value();
    std::memcpy(log.data() + kInflightOwnerAt, &word, sizeof(word));
    return CheckInflightOwner(log.data(), disk).ok();
  };
  EXPECT_TRUE(takes(kA, kA));
  EXPECT_FALSE(takes(kA, kB));
  EXPECT_TRUE(takes(kElsewhere, kA));
  EXPECT_TRUE(takes(DiskIdentity::Several(), DiskIdentity::Several()));
  // An engine wrote it that knew of no disks.
  EXPECT_TRUE(takes(DiskIdentity(), kA));
  EXPECT_TRUE(takes(DiskIdentity(), DiskIdentity::Several()));
  // The device's disk is not known, so that nothing can be said.
  EXPECT_TRUE(takes(kA, DiskIdentity()));
}

// ---- A blk ring's log, in both formats

class InflightOwnerTest : public ::testing::TestWithParam<bool> {
 protected:
  InflightOwnerTest() { Become(kA); }
  ~InflightOwnerTest() override {
    if (rig.running) rig.StopAndDrain();
  }
  void Become(DiskIdentity disk) {
    rig.identity = disk;
    rig.queue = rig.model->OpenQueue(*rig.reactor, 0).value();
    rig.storage->seen.clear();
    rig.storage->hold = true;
  }
  // `told`: whose requests the transport says the log has.
  void Start(DiskIdentity told) {
    QueueSetup setup = rig.Setup();
    setup.inflight = log.memory();
    setup.inflight.disk = told;
    if (!GetParam()) setup.next_available = rig.guest.used_index();
    rig.broken.clear();
    rig.Start(setup);
    rig.Turn();
  }
  // Two writes are under way when the process dies; the next one has the disk `disk`.
  void DieWithTwoUnderWay(DiskIdentity disk) {
    rig.Write(0, 10, 512, 1);
    rig.Write(1, 11, 512, 1);
    rig.Turn();
    Moment moment(rig.memory, log);
    rig.StopAndDrain();
    moment.Restore();
    Become(disk);
  }
  DiskIdentity owner() { return OwnerOf(log.bytes()).disk; }

  BlkRig rig{BlkRig::DefaultGeometry(), block::AccessMode::kReadWrite, nullptr, GetParam()};
  LogMemory log{BlkRig::kSize};
};

TEST_P(InflightOwnerTest, TheSameDiskRunsThemAgain) {
  EXPECT_FALSE(OwnerOf(log.bytes()).used);
  Start(kA);
  EXPECT_EQ(owner(), kA);
  DieWithTwoUnderWay(kA);
  Start(kA);
  EXPECT_EQ(rig.storage->seen.size(), 2U);
  EXPECT_TRUE(rig.broken.empty());
}

TEST_P(InflightOwnerTest, AnotherDiskOfTheHostDoesNotTakeTheLog) {
  Start(kA);
  DieWithTwoUnderWay(kB);
  Start(kB);
  EXPECT_TRUE(rig.storage->seen.empty());
  ASSERT_EQ(rig.broken.size(), 1U);
  EXPECT_NE(rig.broken.front().find("requests to another disk"), std::string::npos);
  EXPECT_EQ(owner(), kA);
}

// ... and if whoever starts the ring were wrong about the log, each request says it once more.
TEST_P(InflightOwnerTest, ARequestThatWasSubmittedToAnotherDiskFailsAndRunsOnNone) {
  Start(kA);
  DieWithTwoUnderWay(kB);
  Start(kA);
  EXPECT_TRUE(rig.storage->seen.empty());
  EXPECT_EQ(rig.TakeAllUsed().size(), 2U);
  EXPECT_EQ(rig.StatusOf(0), VIRTIO_BLK_S_IOERR);
  EXPECT_EQ(rig.StatusOf(1), VIRTIO_BLK_S_IOERR);
  EXPECT_TRUE(rig.broken.empty());
}

// Of an engine that knew of no disks, or a cleatd whose store was lost: what it says of disks means nothing here.
TEST_P(InflightOwnerTest, ALogOfAnotherStoreOrOfNoDiskIsTakenOver) {
  for (const DiskIdentity before : {kElsewhere, DiskIdentity()}) {
    Become(before);
    Start(before);
    DieWithTwoUnderWay(kA);
    Start(kA);
    EXPECT_EQ(rig.storage->seen.size(), 2U);
    EXPECT_EQ(owner(), kA);
    // They are under way still, and it dies as well.
    Moment moment(rig.memory, log);
    rig.StopAndDrain();
    moment.Restore();
    Become(kA);
    Start(kA);
    EXPECT_EQ(rig.storage->seen.size(), 2U);
    rig.StopAndDrain();
    rig.TakeAllUsed();
    std::memset(log.bytes(), 0, log.memory().size_bytes);
    if (GetParam()) return;  // its ring can't begin anew here
  }
}

TEST_P(InflightOwnerTest, AStopForgetsTheRequestsAndNotWhoseTheyWere) {
  Start(kA);
  rig.StopAndDrain();
  ForgetInflight(log.memory());
  EXPECT_EQ(owner(), kA);
  EXPECT_TRUE(OwnerOf(log.bytes()).used);
}

INSTANTIATE_TEST_SUITE_P(Rings, InflightOwnerTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Packed" : "Split"; });

// ---- virtio-scsi: each request names its disk

class ScsiOwnerTest : public ::testing::Test {
 protected:
  ScsiOwnerTest() {
    for (uint32_t i = 0; i < rig.sides.size(); ++i) rig.Stop(i);
    rig.Turn();
    for (ScsiSide& side : rig.sides) side.logging = true;
    StartAll();
    rig.clock.AdvanceBy(kNsPerSecond);
    for (const uint32_t target : {0, 1}) {
      rig.disks[target].identity = target == 0 ? kA : kB;
      rig.Add(target);
      EXPECT_EQ(rig.Run(0, LunOf(static_cast<uint8_t>(target)), kReadyCdb), "good");
      rig.disks[target].storage.hold = true;
    }
  }
  void StartAll() {
    for (uint32_t i = 0; i < rig.sides.size(); ++i) rig.Start(i);
    rig.Turn();
  }
  void DieWithAWriteToEach() {
    ScsiSide& side = rig.requests();
    side.Command(0, LunOf(0), WriteCdb(1, 1), Bytes(512, 1));
    side.Command(1, LunOf(1), WriteCdb(2, 1), Bytes(512, 1));
    rig.io[0]->Activate(*side.queue);
    rig.Turn();
    ASSERT_EQ(rig.disks[0].storage.seen.size(), 1U);
    ASSERT_EQ(rig.disks[1].storage.seen.size(), 1U);
    rig.Die();
  }
  // Of the two targets, the first has requests of before that are for a disk which is gone.
  void ResetBothWhileReadsLand() {
    rig.earlier.under_way = true;
    StartAll();
    rig.Settle();
    rig.ReleaseAll();
    for (const uint32_t target : {0, 1})
      rig.management().Manage(target, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET,
                              LunOf(static_cast<uint8_t>(target)), 0);
    rig.io[0]->Activate(*rig.management().queue);
    rig.Turn();
    rig.Settle();
    EXPECT_EQ(rig.management().guest.TakeAllUsed().size(), 1U) << "its neighbour's waits for nothing";
    EXPECT_EQ(rig.management().Result(1), kScsiFunctionComplete);
    EXPECT_EQ(rig.requests().guest.TakeAllUsed().size(), 1U);
    rig.earlier.under_way = false;
    rig.Turn();
    rig.Settle();
    rig.Turn();
    EXPECT_EQ(rig.requests().guest.TakeAllUsed().size(), 1U);
    EXPECT_EQ(rig.management().guest.TakeAllUsed().size(), 1U);
  }

  // What an engine of before writes: zeroes in the header's word, and plain numbers in the entries' counters.
  static void ForgetDisks(ScsiSide& side) {
    constexpr uint64_t kHeaderBytes = 16;
    constexpr uint64_t kEntryBytes = 16;
    constexpr uint64_t kCounterAt = 8;
    uint8_t* const base = side.log.bytes();
    std::memset(base + kInflightOwnerAt, 0, sizeof(uint64_t));
    for (uint64_t head = 0; head < ScsiSide::kSize; ++head) {
      std::memset(base + kHeaderBytes + head * kEntryBytes + kCounterAt + kCounterTagAt, 0, sizeof(uint32_t));
    }
  }

  ScsiRig rig;
};

TEST_F(ScsiOwnerTest, ATargetThatHasAnotherDiskNowGetsNothingOfTheFirst) {
  DieWithAWriteToEach();
  rig.Remove(0);
  rig.disks[0].identity = DiskIdentity::Of(kStore, 9);
  rig.Add(0);
  StartAll();
  rig.ReleaseAll();
  rig.Turn();
  EXPECT_TRUE(rig.disks[0].storage.seen.empty());
  EXPECT_EQ(rig.disks[1].storage.seen.size(), 1U) << "its neighbour's runs again";
  EXPECT_EQ(rig.requests().guest.TakeAllUsed().size(), 2U);
  EXPECT_EQ(ScsiRig::Outcome(rig.requests().Response(0)), "response 3");  // BAD_TARGET
  EXPECT_EQ(ScsiRig::Outcome(rig.requests().Response(1)), "good");
}

// With the answer the guest takes the memory back, to which the dead engine may still be reading.
TEST_F(ScsiOwnerTest, WhatIsForADiskThatIsGoneIsAnsweredWhenNothingLandsAnyMore) {
  DieWithAWriteToEach();
  rig.Remove(0);
  rig.earlier.under_way = true;
  StartAll();
  rig.ReleaseAll();
  rig.Turn();
  EXPECT_EQ(rig.requests().guest.TakeAllUsed().size(), 1U) << "its neighbour's waits for nothing";
  EXPECT_EQ(ScsiRig::Outcome(rig.requests().Response(1)), "good");
  EXPECT_EQ(rig.Run(0, LunOf(0), kReadyCdb), "response 3") << "what is new left nothing in the kernel";
  rig.Stop(2);
  rig.Turn();
  const uint32_t drained = rig.drained;
  rig.earlier.under_way = false;
  rig.Turn();
  EXPECT_EQ(rig.drained, drained + 1);
  EXPECT_EQ(rig.requests().guest.TakeAllUsed().size(), 1U);
  EXPECT_EQ(ScsiRig::Outcome(rig.requests().Response(0)), "response 3");
}

// Task management that is answered gives the memory back as well.
TEST_F(ScsiOwnerTest, AResetOfATargetThatIsGoneIsAnsweredAfterThat) {
  DieWithAWriteToEach();
  rig.Remove(0);
  ResetBothWhileReadsLand();
  EXPECT_EQ(rig.management().Result(0), VIRTIO_SCSI_S_BAD_TARGET);
}

TEST_F(ScsiOwnerTest, AndSoIsOneOfATargetThatHasAnotherDiskNow) {
  DieWithAWriteToEach();
  rig.Remove(0);
  rig.disks[0].identity = DiskIdentity::Of(kStore, 9);
  rig.Add(0);
  ResetBothWhileReadsLand();
  EXPECT_EQ(rig.management().Result(0), kScsiFunctionComplete);
}

// Neither the log nor its entries say whose requests these are: they run again where their addresses say, as that engine would have it.
TEST_F(ScsiOwnerTest, ALogOfAnEngineThatKnewOfNoDisksIsTakenOver) {
  DieWithAWriteToEach();
  for (ScsiSide& side : rig.sides) ForgetDisks(side);
  StartAll();
  EXPECT_EQ(OwnerOf(rig.requests().log.bytes()).disk, DiskIdentity::Several());
  for (const ScsiSide& side : rig.sides) EXPECT_TRUE(side.broken.empty()) << side.broken.front();
  for (const uint32_t target : {0, 1}) EXPECT_EQ(rig.disks[target].storage.seen.size(), 1U) << target;
  rig.ReleaseAll();
  rig.Turn();
  for (const uint32_t slot : {0, 1}) EXPECT_EQ(ScsiRig::Outcome(rig.requests().Response(slot)), "good");
}

TEST_F(ScsiOwnerTest, TwoDisksThatChangedPlacesGetNothingOfEachOther) {
  DieWithAWriteToEach();
  for (const uint32_t target : {0, 1}) rig.Remove(target);
  std::swap(rig.disks[0].identity, rig.disks[1].identity);
  for (const uint32_t target : {0, 1}) rig.Add(target);
  StartAll();
  rig.ReleaseAll();
  rig.Turn();
  for (const uint32_t target : {0, 1}) EXPECT_TRUE(rig.disks[target].storage.seen.empty()) << target;
  for (const uint32_t slot : {0, 1}) EXPECT_EQ(ScsiRig::Outcome(rig.requests().Response(slot)), "response 3");
}

}  // namespace
}  // namespace cleat::virtio::inflight_entry_test
