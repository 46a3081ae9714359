// SPDX-License-Identifier: Apache-2.0
// What is on a drive after power was lost at any operation, checked by who reads it anew; and that these checks find drives that are no good.
#include "pool/pool_drive.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "memory_drive.h"

namespace cleat::pool::pool_drive_test {
namespace {

using test::MemoryDrive;
using Faults = MemoryDrive::Faults;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint32_t kExtents = 4;
constexpr uint64_t kDriveBytes = kDataOffset + kExtents * kExtentBytesMin;
constexpr uint64_t kSeeds = 25;

Label ALabel(uint8_t pool = 1, uint32_t extents = kExtents) {
  Label label;
  label.pool.fill(pool);
  label.host.fill(0x77);
  label.extent_bytes = kExtentBytesMin;
  label.extents = extents;
  label.name = "nvme" + std::to_string(pool);
  return label;
}

// A map of several blocks, another one for each `content`.
Map AMap(uint64_t content, const Label& label, uint64_t generation = 0) {
  Map map;
  map.pool = label.pool;
  map.generation = generation;
  for (uint32_t i = 0; i < 10; ++i) {
    ExtentRuns extents;
    if (i < 3) extents.push_back({static_cast<uint32_t>((i + content) % 3), 1});
    map.disks.push_back(
        {.identity = i + 1,
         .deleted = i % 2 == 1,
         .extents = extents,
         .description = std::string(kDescriptionBytesMax, static_cast<char>('a' + (content + i) % 26))});
  }
  return map;
}

std::string Describe(const Result<std::optional<Map>>& map) {
  if (!map.ok()) return map.error().message;
  return *map ? "generation " + std::to_string((*map)->generation) : "no map";
}

// A pool whose map is content 1, then 2.
void MakePool(MemoryDrive& drive, const Label& label) {
  PoolDrive pool(drive, 1);
  ASSERT_TRUE(pool.Format(label).ok());
  ASSERT_TRUE(pool.WriteMap(AMap(1, label)).ok());
  ASSERT_TRUE(pool.WriteMap(AMap(2, label)).ok());
  ASSERT_EQ(pool.generation(), 2U);
}

// Lets `prepare` have a drive, loses power at each operation of `act` and once after the last, with each seed, and gives the drive to
// `check`, with whether `act` said that it was done. Returns what the checks found: each kind once.
struct Plan {
  std::function<void(MemoryDrive&)> prepare;
  std::function<bool(MemoryDrive&)> act;
  std::function<std::string(MemoryDrive&, bool)> check;
};

std::set<std::string> Violations(const Plan& plan, const Faults& faults = {}) {
  MemoryDrive prepared(kDriveBytes);
  plan.prepare(prepared);
  std::set<std::string> found;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Random random(seed);
    bool cut = true;
    for (uint64_t n = 1; cut; ++n) {
      MemoryDrive drive = prepared;
      drive.faults = faults;
      drive.faults.cut_at = drive.operations() + n;
      const bool done = plan.act(drive);
      cut = drive.operations() >= drive.faults.cut_at;
      drive.LosePower(random);
      if (const std::string violation = plan.check(drive, done); !violation.empty()) found.insert(violation);
    }
  }
  return found;
}

constexpr const char* kLost = "what was reported as done is gone";

const Faults kTorn{.sector_bytes = 512};
const Faults kFlushesNothing{.flushes_nothing = true};

// ---- Format

// `old`: what was a pool on the drive.
Plan FormatPlan(const std::optional<Label>& old, const Label& label, bool torn = false) {
  Plan plan;
  plan.prepare = [old](MemoryDrive& drive) {
    if (old) MakePool(drive, *old);
  };
  plan.act = [label](MemoryDrive& drive) { return PoolDrive(drive, 1).Format(label).ok(); };
  plan.check = [old, label, torn](MemoryDrive& drive, bool done) -> std::string {
    const auto found = ReadLabel(drive);
    if (!found.ok())
      return torn && !done && found.error().code == ErrorCode::kDataLoss ? "" : found.error().message;
    if (done && *found != label) return kLost;
    if (!*found) return "";
    if (**found != label && *found != old) return "a label of nobody";
    const auto map = ReadMap(drive, **found);
    if (!map.ok()) return "no label without a map that can be read";
    if (**found == label) return *map ? "an old map under the new label" : "";
    return *map == AMap(2, *old, 2) ? "" : "the old pool with another map than its last";
  };
  return plan;
}

TEST(PoolFormat, LeavesTheOldPoolOrNoneOrTheNewOneWithoutAMap) {
  const std::set<std::string> none;
  EXPECT_EQ(Violations(FormatPlan({}, ALabel())), none);
  EXPECT_EQ(Violations(FormatPlan(ALabel(1), ALabel(2))), none);
  EXPECT_EQ(Violations(FormatPlan(ALabel(1), ALabel(1, 3))), none) << "the same pool again";
  EXPECT_EQ(Violations(FormatPlan(ALabel(1), ALabel(1, 3), true), kTorn), none) << "blocks torn in sectors";
}

TEST(PoolFormat, OnADriveWithoutFlushesDamageIsFound) {
  const auto found = Violations(FormatPlan(ALabel(1), ALabel(1, 3)), kFlushesNothing);
  EXPECT_TRUE(found.contains(kLost));
  EXPECT_TRUE(found.contains("an old map under the new label"));
  EXPECT_TRUE(found.contains("the old pool with another map than its last"));
}

// ---- The map

Plan WriteMapPlan() {
  Plan plan;
  plan.prepare = [](MemoryDrive& drive) { MakePool(drive, ALabel()); };
  plan.act = [](MemoryDrive& drive) {
    PoolDrive pool(drive, 1);
    return pool.Open(ALabel()).ok() && pool.WriteMap(AMap(3, ALabel())).ok();
  };
  plan.check = [](MemoryDrive& drive, bool done) -> std::string {
    const auto label = ReadLabel(drive);
    if (!label.ok() || *label != ALabel()) return "the label is gone";
    const auto map = ReadMap(drive, ALabel());
    if (!map.ok() || !*map) return "no map: " + Describe(map);
    const bool is_new = *map == AMap(3, ALabel(), 3);
    if (done && !is_new) return kLost;
    if (!is_new && *map != AMap(2, ALabel(), 2))
      return "neither the map of before nor the one that was written";
    // Life goes on.
    PoolDrive pool(drive, 1);
    if (!pool.Open(ALabel()).ok() || pool.generation() != (*map)->generation)
      return "not opened as it was left";
    if (!pool.WriteMap(AMap(4, ALabel())).ok()) return "the next map was not written";
    return *ReadMap(drive, ALabel()) == AMap(4, ALabel(), pool.generation()) ? ""
                                                                             : "the next map is another one";
  };
  return plan;
}

TEST(PoolMapOnDrive, IsTheOneOfBeforeOrTheOneThatWasWritten) {
  EXPECT_EQ(Violations(WriteMapPlan()), std::set<std::string>());
  EXPECT_EQ(Violations(WriteMapPlan(), kTorn), std::set<std::string>());
}

TEST(PoolMapOnDrive, OnADriveThatIsNoGoodDamageIsFound) {
  EXPECT_TRUE(Violations(WriteMapPlan(), kFlushesNothing).contains(kLost));
  // Over the map that counts: a cut in the middle leaves none.
  Plan one_slot = WriteMapPlan();
  one_slot.prepare = [](MemoryDrive& drive) {
    drive.faults.one_slot = true;
    MakePool(drive, ALabel());
  };
  EXPECT_FALSE(Violations(one_slot, {.one_slot = true}).empty());
}

// Many lives of one pool, each ended by a cut.
TEST(PoolMapOnDrive, IsNeverAnotherOneInALongHistory) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    MemoryDrive drive(kDriveBytes);
    MakePool(drive, ALabel());
    std::vector<Map> possible{AMap(2, ALabel(), 2)};  // after the next loss of power
    uint64_t content = 3;
    for (int life = 0; life < 20; ++life) {
      drive.faults.sector_bytes = random.Chance(1, 2) ? 512 : kBlockBytes;
      drive.LosePower(random);
      PoolDrive pool(drive, seed);
      ASSERT_TRUE(pool.Open(ALabel()).ok());
      const auto map = ReadMap(drive, ALabel());
      ASSERT_TRUE(map.ok() && *map) << Describe(map);
      ASSERT_TRUE(std::count(possible.begin(), possible.end(), **map) > 0) << Describe(map);
      possible = {**map};
      drive.faults.cut_at = drive.operations() + random.Between(1, 12);
      for (;; ++content) {
        Map next = AMap(content, ALabel(), pool.generation() + 1);
        if (!pool.WriteMap(next).ok()) {
          possible.push_back(std::move(next));
          break;
        }
        possible = {std::move(next)};
      }
      ++content;
    }
  }
}

TEST(PoolMapOnDrive, AWriteThatFailsIsFollowedByAnotherNumber) {
  for (uint64_t n = 1; n <= 2; ++n) {
    MemoryDrive drive(kDriveBytes);
    MakePool(drive, ALabel());
    PoolDrive pool(drive, 1);
    ASSERT_TRUE(pool.Open(ALabel()).ok());
    drive.faults.fail_at = drive.operations() + n;
    const Status failed = pool.WriteMap(AMap(3, ALabel()));
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::kIo);
    EXPECT_EQ(pool.generation(), 2U);
    ASSERT_TRUE(pool.WriteMap(AMap(4, ALabel())).ok());
    EXPECT_EQ(*ReadMap(drive, ALabel()), AMap(4, ALabel(), 4)) << "3 may have been seen by somebody";
  }
}

TEST(PoolMapOnDrive, OneThatNoEngineWouldAcceptIsNotWritten) {
  MemoryDrive drive(kDriveBytes);
  MakePool(drive, ALabel());
  PoolDrive pool(drive, 1);
  ASSERT_TRUE(pool.Open(ALabel()).ok());
  const uint64_t before = drive.operations();
  Map two_owners = AMap(3, ALabel());
  two_owners.disks[9].extents = two_owners.disks[0].extents;
  EXPECT_EQ(pool.WriteMap(two_owners).error().code, ErrorCode::kInternal);
  Map large = AMap(3, ALabel());
  large.disks[0].description += 'x';
  EXPECT_EQ(pool.WriteMap(large).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(drive.operations(), before);
  ASSERT_TRUE(pool.WriteMap(AMap(3, ALabel())).ok());
  EXPECT_EQ(pool.generation(), 3U);
}

TEST(PoolMapOnDrive, ASlotThatIsLostLeavesTheOther) {
  MemoryDrive drive(kDriveBytes);
  MakePool(drive, ALabel());  // slot 0 has 1, slot 1 has 2
  const Map older = AMap(1, ALabel(), 1);
  const Map newer = AMap(2, ALabel(), 2);
  EXPECT_EQ(*ReadMap(drive, ALabel()), newer);
  drive.faults.unreadable = {kMapOffsets[1] + kBlockBytes};
  EXPECT_EQ(*ReadMap(drive, ALabel()), older);
  drive.faults.unreadable = {kMapOffsets[0], kMapOffsets[1]};
  EXPECT_EQ(ReadMap(drive, ALabel()).error().code, ErrorCode::kIo);
  drive.faults.unreadable = {};
  const auto whole = drive.At(kMapOffsets[1] + kBlockBytes);
  drive.Put(kMapOffsets[1] + kBlockBytes, 0);
  EXPECT_EQ(*ReadMap(drive, ALabel()), older);
  drive.faults.unreadable = {kMapOffsets[0]};
  EXPECT_EQ(ReadMap(drive, ALabel()).error().code, ErrorCode::kIo) << "the newer may be there";
  drive.faults.unreadable = {};
  drive.Put(kMapOffsets[0], 0);
  EXPECT_EQ(*ReadMap(drive, ALabel()), std::nullopt) << "neither is whole";
  drive.Put(kMapOffsets[1] + kBlockBytes, whole);
  EXPECT_EQ(*ReadMap(drive, ALabel()), newer);
  EXPECT_EQ(*ReadMap(drive, ALabel(2)), std::nullopt) << "another pool's";
}

// ---- Under another store

Label OfAnotherHost() {
  Label label = ALabel();
  label.host.fill(0x11);
  return label;
}

// The pool goes on under another store, whose revisions are lower. `damaged`: the copy of the label that is, if any.
Plan TakeOverPlan(std::optional<size_t> damaged, uint64_t generation) {
  Plan plan;
  plan.prepare = [damaged](MemoryDrive& drive) {
    MakePool(drive, ALabel());
    if (damaged) drive.Put(kLabelOffsets[*damaged], 0xff);
  };
  plan.act = [generation](MemoryDrive& drive) {
    PoolDrive pool(drive, 1);
    return pool.Open(ALabel()).ok() && pool.Relabel(OfAnotherHost()).ok() &&
           pool.ReplaceMap(AMap(3, ALabel(), generation)).ok();
  };
  plan.check = [generation](MemoryDrive& drive, bool done) -> std::string {
    const auto label = ReadLabel(drive);
    if (!label.ok() || !*label) return "the label is gone";
    if (**label != ALabel() && **label != OfAnotherHost()) return "a label of nobody";
    const auto map = ReadMap(drive, ALabel());
    if (!map.ok() || !*map) return "no map: " + Describe(map);
    const bool is_new = *map == AMap(3, ALabel(), generation);
    if (done && (!is_new || **label != OfAnotherHost())) return kLost;
    if (!is_new && *map != AMap(2, ALabel(), 2)) return "neither the map of before nor the new one";
    // The host that tries again succeeds, and goes on by its own numbers.
    PoolDrive pool(drive, 1);
    if (!pool.Open(ALabel()).ok() || !pool.Relabel(OfAnotherHost()).ok() ||
        !pool.ReplaceMap(AMap(4, ALabel(), generation)).ok() || pool.generation() != generation)
      return "not taken over by the second try";
    if (!pool.WriteMap(AMap(5, ALabel())).ok()) return "the next map was not written";
    return *ReadMap(drive, ALabel()) == AMap(5, ALabel(), generation + 1) ? ""
                                                                          : "the next map is another one";
  };
  return plan;
}

TEST(PoolUnderAnotherStore, HasALabelAndAMapAtAnyMoment) {
  const std::set<std::string> none;
  for (const uint64_t generation : {2, 7})
    EXPECT_EQ(Violations(TakeOverPlan({}, generation)), none) << generation;
  EXPECT_EQ(Violations(TakeOverPlan({}, 1), kTorn), none);
  EXPECT_EQ(Violations(TakeOverPlan(0, 1), kTorn), none) << "the first label is damaged";
  EXPECT_EQ(Violations(TakeOverPlan(1, 1), kTorn), none) << "the second one is";
}

TEST(PoolUnderAnotherStore, OnADriveWithoutFlushesDamageIsFound) {
  EXPECT_TRUE(Violations(TakeOverPlan({}, 1), kFlushesNothing).contains(kLost));
}

TEST(PoolUnderAnotherStore, ADamagedMapIsToldFromNone) {
  MemoryDrive drive(kDriveBytes);
  PoolDrive pool(drive, 1);
  ASSERT_TRUE(pool.Format(ALabel()).ok());
  EXPECT_FALSE(ReadMapSlots(drive, ALabel())->damaged);
  ASSERT_TRUE(pool.WriteMap(AMap(1, ALabel())).ok());
  EXPECT_FALSE(ReadMapSlots(drive, ALabel())->damaged);
  ASSERT_TRUE(pool.WriteMap(AMap(2, ALabel())).ok());
  // A byte of the second map; its first block; then the first map as well.
  drive.Put(kMapOffsets[1] + kBlockBytes, 0);
  EXPECT_TRUE(ReadMapSlots(drive, ALabel())->damaged);
  EXPECT_EQ(ReadMapSlots(drive, ALabel())->map, AMap(1, ALabel(), 1));
  drive.Put(kMapOffsets[1], 0xff);
  EXPECT_TRUE(ReadMapSlots(drive, ALabel())->damaged);
  drive.Put(kMapOffsets[0], 0xff);
  EXPECT_TRUE(ReadMapSlots(drive, ALabel())->damaged);
  EXPECT_EQ(ReadMapSlots(drive, ALabel())->map, std::nullopt);
  // The one that was replaced is none.
  MakePool(drive, ALabel());
  ASSERT_TRUE(pool.Open(ALabel()).ok());
  ASSERT_TRUE(pool.ReplaceMap(AMap(3, ALabel(), 1)).ok());
  EXPECT_FALSE(ReadMapSlots(drive, ALabel())->damaged);
}

// ---- The label

TEST(PoolLabelOnDrive, IsTheFirstCopyOrTheSecond) {
  for (const uint8_t tool : {0, 0xff}) {
    MemoryDrive drive(kDriveBytes);
    MakePool(drive, ALabel());
    drive.Put(kLabelOffsets[0], tool);  // whatever writes over the beginning of drives
    EXPECT_EQ(*ReadLabel(drive), ALabel());
    EXPECT_TRUE(PoolDrive(drive, 1).Open(ALabel()).ok());
    drive.Put(kLabelOffsets[1], tool);
    EXPECT_EQ(*ReadLabel(drive), std::nullopt);
  }
}

TEST(PoolLabelOnDrive, ADamagedOrUnreadableOneIsNotTakenForNone) {
  MemoryDrive drive(kDriveBytes);
  MakePool(drive, ALabel());
  auto damaged = drive.At(kLabelOffsets[0]);
  damaged[100] ^= 1;
  drive.Put(kLabelOffsets[0], damaged);
  EXPECT_EQ(*ReadLabel(drive), ALabel()) << "the other copy is good";
  drive.Put(kLabelOffsets[1], 0);
  EXPECT_EQ(ReadLabel(drive).error().code, ErrorCode::kDataLoss);
  drive.Put(kLabelOffsets[0], 0);
  drive.faults.unreadable = {kLabelOffsets[1]};
  EXPECT_EQ(ReadLabel(drive).error().code, ErrorCode::kIo);
}

TEST(PoolLabelOnDrive, ASmallerDriveHasNoRoomForIt) {
  MemoryDrive small(kDriveBytes - kBlockBytes);
  for (size_t copy = 0; copy < kLabelCopies; ++copy) small.Put(kLabelOffsets[copy], Encode(ALabel(), copy));
  EXPECT_EQ(ReadLabel(small).error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(PoolDrive(small, 1).Format(ALabel()).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(PoolDrive(small, 1).Format(ALabel(1, 0)).error().code, ErrorCode::kInvalidArgument);
  for (const uint64_t bytes : {uint64_t{0}, kBlockBytes, kMiB, 2 * kMiB, 17 * kMiB}) {
    MemoryDrive tiny(bytes);
    EXPECT_EQ(*ReadLabel(tiny), std::nullopt) << bytes;
    EXPECT_EQ(*ReadMap(tiny, ALabel()), std::nullopt) << bytes;
    EXPECT_TRUE(PoolDrive(tiny, 1).Unlabel().ok()) << bytes;
  }
}

// What begins where the second copy lies, as a drive's first partition often does.
TEST(PoolLabelOnDrive, APartOfAPoolsDriveIsNoPool) {
  MemoryDrive drive(kDriveBytes);
  MakePool(drive, ALabel());
  MemoryDrive part(kDriveBytes * 2);
  part.Put(0, drive.At(kLabelOffsets[1]));
  EXPECT_EQ(ReadLabel(part).error().code, ErrorCode::kDataLoss);
}

TEST(PoolLabelOnDrive, AnotherPoolIsNotOpenedAndBothAreNamed) {
  MemoryDrive drive(kDriveBytes);
  PoolDrive pool(drive, 1);
  Status opened = pool.Open(ALabel());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kFailedPrecondition);
  MakePool(drive, ALabel(2));
  opened = pool.Open(ALabel(1));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kFailedPrecondition);
  for (const Label& label : {ALabel(1), ALabel(2)}) {
    EXPECT_NE(opened.error().message.find(TextOf(label.pool)), std::string::npos) << opened.error().message;
  }
}

Plan UnlabelPlan() {
  Plan plan;
  plan.prepare = [](MemoryDrive& drive) { MakePool(drive, ALabel()); };
  plan.act = [](MemoryDrive& drive) { return PoolDrive(drive, 1).Unlabel().ok(); };
  plan.check = [](MemoryDrive& drive, bool done) -> std::string {
    const auto label = ReadLabel(drive);
    if (!label.ok() || (*label && *label != ALabel())) return "another label";
    if (done && (*label || drive.HasData(0, kDriveBytes))) return kLost;
    if (*label && *ReadMap(drive, ALabel()) != AMap(2, ALabel(), 2)) return "a pool without its map";
    return "";
  };
  return plan;
}

TEST(PoolUnlabel, LeavesThePoolOrNone) {
  EXPECT_EQ(Violations(UnlabelPlan()), std::set<std::string>());
  EXPECT_TRUE(Violations(UnlabelPlan(), kFlushesNothing).contains(kLost));
}

// ---- Erasing

constexpr uint64_t kExtentStart = kDataOffset + kExtentBytesMin;  // extent 1's

Status EraseAll(PoolDrive& pool, uint32_t extent) {
  uint64_t done_bytes = 0;
  while (done_bytes < kExtentBytesMin) CLEAT_TRY(pool.EraseStep(extent, done_bytes));
  return Ok{};
}

Plan ErasePlan() {
  Plan plan;
  plan.prepare = [](MemoryDrive& drive) {
    MakePool(drive, ALabel());
    Random random(5);
    // Data at both ends, somewhere in between, and beyond: the neighbours'.
    for (int i = 0; i < 8; ++i)
      drive.Put(kExtentStart + random.Below(kExtentBytesMin / kBlockBytes) * kBlockBytes, 0x11);
    for (const uint64_t end : {kExtentStart, kExtentStart + kExtentBytesMin - kBlockBytes})
      drive.Put(end, 0x11);
    for (const uint64_t other : {kExtentStart - kBlockBytes, kExtentStart + kExtentBytesMin})
      drive.Put(other, 0x22);
  };
  plan.act = [](MemoryDrive& drive) {
    PoolDrive pool(drive, 1);
    return pool.Open(ALabel()).ok() && EraseAll(pool, 1).ok();
  };
  plan.check = [](MemoryDrive& drive, bool done) -> std::string {
    if (done && drive.HasData(kExtentStart, kExtentBytesMin)) return kLost;
    for (const uint64_t other : {kExtentStart - kBlockBytes, kExtentStart + kExtentBytesMin}) {
      if (drive.At(other)[0] != 0x22) return "a neighbour's data are gone";
    }
    return *ReadMap(drive, ALabel()) == AMap(2, ALabel(), 2) ? "" : "the map has changed";
  };
  return plan;
}

TEST(PoolErase, WhatIsDoneReadsAsZeroesAfterALossOfPower) {
  EXPECT_EQ(Violations(ErasePlan()), std::set<std::string>());
  EXPECT_EQ(Violations(ErasePlan(), kTorn), std::set<std::string>());
  EXPECT_EQ(Violations(ErasePlan(), kFlushesNothing), std::set<std::string>{kLost});
}

TEST(PoolErase, GoesStepByStepAndReadsSamplesBack) {
  MemoryDrive drive(kDriveBytes);
  MakePool(drive, ALabel());
  PoolDrive pool(drive, 1);
  ASSERT_TRUE(pool.Open(ALabel()).ok());
  const size_t reads = drive.reads().size();
  uint64_t done_bytes = 0;
  for (uint64_t step = 1; step <= kExtentBytesMin / PoolDrive::kEraseStepBytes; ++step) {
    EXPECT_EQ(drive.reads().size(), reads);
    ASSERT_TRUE(pool.EraseStep(1, done_bytes).ok());
    EXPECT_EQ(done_bytes, step * PoolDrive::kEraseStepBytes);
  }
  const std::set<uint64_t> samples(drive.reads().begin() + static_cast<ptrdiff_t>(reads),
                                   drive.reads().end());
  EXPECT_GT(samples.size(), 5U);
  EXPECT_EQ(*samples.begin(), kExtentStart);
  EXPECT_EQ(*samples.rbegin(), kExtentStart + kExtentBytesMin - kBlockBytes);
}

TEST(PoolErase, ADriveThatDoesNotEraseIsFound) {
  for (const uint64_t place : {kExtentStart, kExtentStart + kExtentBytesMin - kBlockBytes}) {
    MemoryDrive drive(kDriveBytes);
    MakePool(drive, ALabel());
    PoolDrive pool(drive, 1);
    ASSERT_TRUE(pool.Open(ALabel()).ok());
    drive.Put(place, 1);
    drive.faults.zeroes_nothing = true;
    const Status erased = EraseAll(pool, 1);
    ASSERT_FALSE(erased.ok());
    EXPECT_EQ(erased.error().code, ErrorCode::kIo);
  }
}

TEST(PoolErase, BeginsAnewAfterAnyError) {
  for (uint64_t n = 1;; ++n) {
    MemoryDrive drive(kDriveBytes);
    MakePool(drive, ALabel());
    PoolDrive pool(drive, 1);
    ASSERT_TRUE(pool.Open(ALabel()).ok());
    drive.faults.fail_at = drive.operations() + n;
    uint64_t done_bytes = 0;
    Status status;
    while (status.ok() && done_bytes < kExtentBytesMin) status = pool.EraseStep(1, done_bytes);
    if (status.ok()) {
      EXPECT_GT(n, 10U);
      return;
    }
    EXPECT_EQ(done_bytes, 0U) << n;
  }
}

}  // namespace
}  // namespace cleat::pool::pool_drive_test
