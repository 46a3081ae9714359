// SPDX-License-Identifier: Apache-2.0
// A map that is known is not read again, and is never another one than the drive's: each answer is compared with that of who reads it whole.
#include "pool/map_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "memory_drive.h"
#include "pool/pool_drive.h"

namespace cleat::pool::map_cache_test {
namespace {

using test::MemoryDrive;

constexpr uint32_t kExtents = 8;
constexpr uint64_t kDriveBytes = kDataOffset + kExtents * kExtentBytesMin;
constexpr DriveId kDrive{.device = 5, .file = 0};

Label ALabel(uint8_t pool = 1, uint32_t extents = kExtents) {
  Label label;
  label.pool.fill(pool);
  label.extent_bytes = kExtentBytesMin;
  label.extents = extents;
  label.name = "nvme" + std::to_string(pool);
  return label;
}

// A map of several blocks; whose the extents are differs for each `content`.
Map AMap(uint64_t content, uint64_t generation = 0, const Label& label = ALabel()) {
  Map map;
  map.pool = label.pool;
  map.generation = generation;
  for (uint32_t i = 0; i < 8; ++i) {
    const auto extent = static_cast<uint32_t>((i + content) % 8);
    map.disks.push_back(
        {.identity = 20 - i,
         .deleted = i % 4 == 3,
         .extents = {{extent, 1}},
         .description = std::string(kDescriptionBytesMax, static_cast<char>('a' + content % 26))});
  }
  return map;
}

void MakePool(MemoryDrive& drive, const Label& label = ALabel()) {
  PoolDrive pool(drive, 1);
  ASSERT_TRUE(pool.Format(label).ok());
  ASSERT_TRUE(pool.WriteMap(AMap(1, 0, label)).ok());
  ASSERT_TRUE(pool.WriteMap(AMap(2, 0, label)).ok());
}

void PutMap(MemoryDrive& drive, size_t slot, const Map& map) {
  const auto bytes = Encode(map).value();
  for (size_t at = 0; at < bytes.size(); at += kBlockBytes) {
    MemoryDrive::Block block;
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(at), kBlockBytes, block.begin());
    drive.Put(kMapOffsets[slot] + at, block);
  }
}

// What the index and the map say of any disk that either may have.
std::string Differ(const MapIndex* index, const std::optional<Map>& map) {
  if ((index == nullptr) != !map) return map ? "no map" : "a map";
  if (!map) return "";
  if (index->generation() != map->generation) return "generation " + std::to_string(index->generation());
  for (const MapDisk& disk : map->disks) {
    for (const MapDisk& other : map->disks) {
      const bool has = &disk == &other && !disk.deleted;
      if (index->Has(DiskIdentity(disk.identity), other.extents) != has)
        return "disk " + std::to_string(disk.identity) + " with the extents of " +
               std::to_string(other.identity);
    }
    if (index->Has(DiskIdentity(), disk.extents) == disk.deleted) return "extents of nobody";
  }
  return "";
}

// "" where the cache says what ReadMap does.
std::string Compare(MapCache& maps, MemoryDrive& drive, const Label& label = ALabel()) {
  const auto known = maps.Read(kDrive, drive, label);
  const auto whole = ReadMap(drive, label);
  if (known.ok() != whole.ok()) return known.ok() ? whole.error().message : known.error().message;
  if (!known.ok()) return known.error().code == whole.error().code ? "" : "another error";
  return Differ(known.value().get(), whole.value());
}

// How many blocks behind the first one of a slot were read.
size_t BodiesRead(const MemoryDrive& drive, size_t from = 0) {
  return static_cast<size_t>(std::count_if(
      drive.reads().begin() + static_cast<ptrdiff_t>(from), drive.reads().end(), [](uint64_t offset) {
        return offset > kMapOffsets[0] && offset != kMapOffsets[1] && offset < kDataOffset;
      }));
}

class MapCacheTest : public testing::Test {
 protected:
  void SetUp() override { MakePool(drive_); }
  // How many bodies are read for an answer.
  size_t BodiesFor(const DriveId& id = kDrive, const Label& label = ALabel()) {
    const size_t before = drive_.reads().size();
    EXPECT_TRUE(maps_.Read(id, drive_, label).ok());
    return BodiesRead(drive_, before);
  }

  MemoryDrive drive_{kDriveBytes};
  MapCache maps_;
};

TEST_F(MapCacheTest, ReadsTwoBlocksOfAMapThatItKnows) {
  EXPECT_EQ(BodiesFor(), 2U) << "one of each slot";
  const size_t before = drive_.reads().size();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(BodiesFor(), 0U);
  EXPECT_EQ(drive_.reads().size(), before + 6);
  EXPECT_EQ(Compare(maps_, drive_), "");
}

TEST_F(MapCacheTest, SeesEachMapThatIsWritten) {
  PoolDrive pool(drive_, 1);
  ASSERT_TRUE(pool.Open(ALabel()).ok());
  for (uint64_t content = 3; content < 9; ++content) {
    EXPECT_EQ(Compare(maps_, drive_), "");
    ASSERT_TRUE(pool.WriteMap(AMap(content)).ok());
    EXPECT_EQ(BodiesFor(), 2U);
    EXPECT_EQ(BodiesFor(), 0U);
  }
}

TEST_F(MapCacheTest, FindsAMapThatWasWrittenAnewAsTheSameGeneration) {
  EXPECT_EQ(Compare(maps_, drive_), "");
  // No other byte of the first block differs: only the last disk has another extent.
  Map other = AMap(2, 2);
  std::swap(other.disks[6].extents, other.disks[7].extents);
  const auto before = drive_.At(kMapOffsets[1]);
  PutMap(drive_, 1, other);
  auto after = drive_.At(kMapOffsets[1]);
  ASSERT_NE(before, after);
  std::copy_n(before.begin() + 12, 4, after.begin() + 12);
  ASSERT_EQ(before, after) << "the checksum is what differs";
  EXPECT_EQ(Compare(maps_, drive_), "");
  EXPECT_EQ(BodiesFor(), 0U);
}

// A drive may take the blocks of a map in any order.
TEST_F(MapCacheTest, TakesTheOlderMapUntilTheNewOneIsWhole) {
  const Map next = AMap(3, 3);
  MemoryDrive written(kDriveBytes);
  PutMap(written, 0, next);
  const uint64_t blocks = Encode(next).value().size() / kBlockBytes;
  ASSERT_GE(blocks, 3U);
  for (uint64_t first = 0; first < blocks; ++first) {
    MemoryDrive drive = drive_;
    MapCache maps;
    ASSERT_EQ(Compare(maps, drive), "");
    for (uint64_t i = 0; i < blocks; ++i) {
      EXPECT_EQ(maps.Read(kDrive, drive, ALabel()).value()->generation(), 2U);
      const uint64_t block = (first + i) % blocks;
      drive.Put(kMapOffsets[0] + block * kBlockBytes, written.At(kMapOffsets[0] + block * kBlockBytes));
      EXPECT_EQ(Compare(maps, drive), "") << "first block " << first << ", then " << i;
    }
    EXPECT_EQ(maps.Read(kDrive, drive, ALabel()).value()->generation(), 3U);
  }
}

// A pool's maps, some of which are cut in the middle of their writing: each of their blocks, or sectors, is there or not.
TEST_F(MapCacheTest, AgreesWithTheDriveInALongHistory) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    MemoryDrive drive = drive_;
    MapCache maps;
    for (uint64_t content = 3; content < 100; ++content) {
      PoolDrive pool(drive, seed);
      ASSERT_TRUE(pool.Open(ALabel()).ok());
      drive.faults.sector_bytes = random.Chance(1, 2) ? 512 : kBlockBytes;
      if (random.Chance(1, 2)) drive.faults.cut_at = drive.operations() + random.Between(1, 2);
      (void)pool.WriteMap(AMap(content, pool.generation() + random.Between(1, 3)));
      drive.LosePower(random);
      ASSERT_EQ(Compare(maps, drive), "");
    }
  }
}

TEST_F(MapCacheTest, AsksTheWholeSlotsWhereTheirBeginningsDoNotSay) {
  const auto both = [&](const char* what) {
    EXPECT_EQ(Compare(maps_, drive_), "") << what;
    EXPECT_EQ(Compare(maps_, drive_), "") << what << ", again";
  };
  both("whole");
  drive_.faults.unreadable = {kMapOffsets[0]};
  both("the older one can't be read");
  drive_.faults.unreadable = {kMapOffsets[1]};
  both("the newer one can't be read");
  drive_.faults.unreadable = {kMapOffsets[0], kMapOffsets[1]};
  both("neither can be read");
  drive_.faults.unreadable = {};
  both("whole again");
  PutMap(drive_, 0, AMap(7, 2));
  both("the same generation in both");
  PutMap(drive_, 0, AMap(1, 1));
  auto newer = drive_.At(kMapOffsets[0]);
  newer[8] = 2;
  drive_.Put(kMapOffsets[0], newer);
  both("one that says that it is of another version, and is not whole");
  drive_.Put(kMapOffsets[1], 0);
  both("no map");
  PutMap(drive_, 1, AMap(2, 2));
  both("a map again");
}

TEST_F(MapCacheTest, IsOfOneDriveAndPoolAndLabel) {
  EXPECT_EQ(BodiesFor(), 2U);
  EXPECT_EQ(BodiesFor({.device = 5, .file = 1}), 2U) << "another drive, with the same bytes";
  EXPECT_EQ(BodiesFor(), 0U);
  EXPECT_EQ(Compare(maps_, drive_, ALabel(2)), "") << "another pool's label";
  EXPECT_EQ(BodiesFor(), 0U);
  EXPECT_EQ(Compare(maps_, drive_, ALabel(1, kExtents - 1)), "") << "the map has more extents than the label";
  EXPECT_EQ(Compare(maps_, drive_), "");
  // The same number may be another drive's later.
  MakePool(drive_, ALabel(2));
  EXPECT_EQ(Compare(maps_, drive_, ALabel(2)), "");
  EXPECT_EQ(Compare(maps_, drive_), "");
}

// What map_cache.h says: the map is the one that was written last, where who reads it whole takes the one before.
TEST_F(MapCacheTest, StaysWithAMapThatIsDamagedBehindItsBeginning) {
  EXPECT_EQ(Compare(maps_, drive_), "");
  drive_.Put(kMapOffsets[1] + kBlockBytes, 0);
  EXPECT_EQ(Compare(maps_, drive_), "generation 2");
  EXPECT_EQ(ReadMap(drive_, ALabel()).value()->generation, 1U);
}

TEST_F(MapCacheTest, ForgetsTheDriveThatWasAskedForLongestAgo) {
  const auto id = [](uint64_t number) { return DriveId{.device = number, .file = 0}; };
  for (uint64_t i = 0; i < MapCache::kDrivesMax; ++i) EXPECT_EQ(BodiesFor(id(i)), 2U);
  EXPECT_EQ(BodiesFor(id(0)), 0U);
  EXPECT_EQ(BodiesFor(id(MapCache::kDrivesMax)), 2U);
  EXPECT_EQ(BodiesFor(id(0)), 0U);
  EXPECT_EQ(BodiesFor(id(1)), 2U) << "was forgotten";
}

// A memory drive that several threads share.
class SharedDrive final : public Drive {
 public:
  explicit SharedDrive(MemoryDrive& drive) : drive_(drive) {}
  uint64_t size_bytes() const override { return kDriveBytes; }
  Status Read(uint64_t offset_bytes, std::span<uint8_t> to) override {
    const MutexLock lock(mutex_);
    return drive_.Read(offset_bytes, to);
  }
  Status Write(uint64_t /*offset*/, std::span<const uint8_t> /*from*/) override { return Ok{}; }
  Status Zero(uint64_t /*offset*/, uint64_t /*length*/) override { return Ok{}; }
  Status Flush() override { return Ok{}; }

 private:
  Mutex mutex_;
  MemoryDrive& drive_ CLEAT_GUARDED_BY(mutex_);
};

TEST_F(MapCacheTest, IsReadOnceForSeveralWhoAskTogether) {
  SharedDrive shared(drive_);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        const auto map = maps_.Read(kDrive, shared, ALabel());
        EXPECT_TRUE(map.ok() && map.value() != nullptr && map.value()->generation() == 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(BodiesRead(drive_), 2U);
}

TEST(MapIndex, HasExtentsInTheirOrderHoweverTheyAreWrittenDown) {
  Map map;
  map.generation = 9;
  map.disks = {{.identity = 3, .deleted = false, .extents = {{4, 2}, {1, 1}}, .description = {}},
               {.identity = 2, .deleted = true, .extents = {{7, 1}}, .description = {}}};
  const MapIndex index(map);
  EXPECT_EQ(index.generation(), 9U);
  EXPECT_TRUE(index.Has(DiskIdentity(3), {{4, 1}, {5, 1}, {1, 1}}));
  EXPECT_TRUE(index.Has(DiskIdentity(), {{4, 2}, {1, 1}}));
  EXPECT_FALSE(index.Has(DiskIdentity(3), {{1, 1}, {4, 2}}));
  EXPECT_TRUE(index.Has(DiskIdentity(3), {{4, 2}})) << "it has grown since";
  EXPECT_TRUE(index.Has(DiskIdentity(3), {{4, 1}}));
  EXPECT_FALSE(index.Has(DiskIdentity(3), {{5, 1}}));
  EXPECT_FALSE(index.Has(DiskIdentity(3), {{4, 2}, {1, 2}}));
  EXPECT_FALSE(index.Has(DiskIdentity(2), {{7, 1}})) << "deleted";
  EXPECT_FALSE(index.Has(DiskIdentity(), {{7, 1}})) << "deleted";
  EXPECT_FALSE(index.Has(DiskIdentity(4), {{4, 2}, {1, 1}}));
}

}  // namespace
}  // namespace cleat::pool::map_cache_test
