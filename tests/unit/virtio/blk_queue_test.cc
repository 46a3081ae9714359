// SPDX-License-Identifier: Apache-2.0
// Requests of virtio-blk, one at a time, against a disk in memory. Storage answers at once, unless said
// otherwise.
#include "virtio/blk_queue.h"

#include <gtest/gtest.h>

#include "blk_rig.h"

namespace cleat::virtio::blk_queue_test {
namespace {

using block::Op;
using Seen = MemoryChannel::Seen;

constexpr uint8_t kOk = VIRTIO_BLK_S_OK;
constexpr uint8_t kIoErr = VIRTIO_BLK_S_IOERR;
constexpr uint8_t kUnsupp = VIRTIO_BLK_S_UNSUPP;

// Over a split and a packed ring.
class BlkQueueTest : public ::testing::TestWithParam<bool> {
 protected:
  BlkQueueTest() { rig.Start(); }
  BlkRig rig{BlkRig::DefaultGeometry(), block::AccessMode::kReadWrite, nullptr, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Ring, BlkQueueTest, ::testing::Bool(),
                         [](const auto& param) { return param.param ? "Packed" : "Split"; });

TEST_P(BlkQueueTest, WriteThenRead) {
  rig.Write(0, 10, 1024, 0x5a);
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  EXPECT_EQ(rig.disk[10 * 512], 0x5a);
  EXPECT_EQ(rig.disk[12 * 512 - 1], 0x5a);
  EXPECT_EQ(rig.disk[12 * 512], 0);
  rig.Read(1, 11, 1024);
  EXPECT_EQ(rig.Answer(1, 1025), kOk);
  EXPECT_EQ(rig.memory.Get<uint8_t>(BlkRig::DataAt(1) + 511), 0x5a);
  EXPECT_EQ(rig.memory.Get<uint8_t>(BlkRig::DataAt(1) + 512), 0);
  EXPECT_EQ(rig.storage->seen, (std::vector<Seen>{{Op::kWrite, 5120, 1024, false, false},
                                                  {Op::kRead, 5632, 1024, false, false}}));
}

TEST_P(BlkQueueTest, StorageIsToldAFewRequestsAhead) {
  rig.Write(0, 0, 512, 1);
  rig.Read(1, 1, 512);
  rig.Flush(2);
  rig.Write(3, 3, 512, 3);
  rig.Read(4, 4, 512);
  rig.Read(5, 5, 512);
  rig.Read(6, BlkRig::kSectors, 512);  // beyond the disk's end
  rig.PutHeader(7, VIRTIO_BLK_T_IN, 7);
  rig.SetChain(BlkRig::HeadOf(7), {{BlkRig::HeaderAt(7), 15}, {BlkRig::StatusAt(7), 1, kDescWrite}});
  rig.OfferHead(BlkRig::HeadOf(7));
  rig.Read(8, UINT64_MAX, 512);
  rig.Read(9, 9, 512);
  rig.Turn();
  using Prefetched = MemoryChannel::Prefetched;
  // Of the batch's second to fourth at its start, then each when the fourth one before it is next. (What is beyond the
  // end or malformed is not submitted, so it does not count.)
  EXPECT_EQ(rig.storage->prefetched, (std::vector<Prefetched>{{Op::kRead, 512, 0},
                                                              {Op::kWrite, 1536, 0},
                                                              {Op::kRead, 2048, 1},
                                                              {Op::kRead, 2560, 2},
                                                              {Op::kRead, 4608, 6}}));
  EXPECT_EQ(rig.storage->seen.size(), 7U);
  EXPECT_EQ(rig.TakeAllUsed().size(), 10U);
}

TEST_P(BlkQueueTest, Flush) {
  rig.Flush(0);
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  EXPECT_EQ(rig.storage->seen, (std::vector<Seen>{{Op::kFlush, 0, 0, false, false}}));
}

TEST_P(BlkQueueTest, EveryByteOfARequestInADescriptorOfItsOwn) {
  rig.PutHeader(0, VIRTIO_BLK_T_OUT, 3);
  for (uint32_t i = 0; i < 512; ++i) rig.memory.Put<uint8_t>(BlkRig::DataAt(0) + i, static_cast<uint8_t>(i));
  std::vector<Desc> descs;
  for (uint32_t i = 0; i < 16; ++i) descs.push_back({BlkRig::HeaderAt(0) + i, 1});
  for (uint32_t i = 0; i < 512; i += 4) descs.push_back({BlkRig::DataAt(0) + i, 4});
  descs.push_back({BlkRig::StatusAt(0), 1, kDescWrite});
  rig.SetIndirectChain(0, GuestLayout::kHigh + 0x70000, descs);
  rig.OfferHead(0);
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  for (uint32_t i = 0; i < 512; ++i) ASSERT_EQ(rig.disk[3 * 512 + i], static_cast<uint8_t>(i));
}

TEST_P(BlkQueueTest, HeaderDataAndStatusInOneDescriptorEach) {
  // Written: header and data in one. Read: data and status in one, across two memory regions.
  const uint64_t out = GuestLayout::kLow + 0x10000;
  rig.memory.Put(out, virtio_blk_outhdr{VIRTIO_BLK_T_OUT, 0, 8});
  for (uint32_t i = 0; i < 512; ++i) rig.memory.Put<uint8_t>(out + 16 + i, 0x77);
  rig.SetChain(0, {{out, 16 + 512}, {BlkRig::StatusAt(0), 1, kDescWrite}});
  rig.OfferHead(0);
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  EXPECT_EQ(rig.disk[9 * 512 - 1], 0x77);

  rig.PutHeader(1, VIRTIO_BLK_T_IN, 8);
  const uint64_t in = GuestLayout::kHigh - 200;
  rig.memory.Put<uint8_t>(in + 512, 0xff);
  rig.SetChain(3, {{BlkRig::HeaderAt(1), 7}, {BlkRig::HeaderAt(1) + 7, 9}, {in, 513, kDescWrite}});
  rig.OfferHead(3);
  rig.Turn();
  EXPECT_EQ(rig.TakeAllUsed(), (std::vector<Used>{{3, 513}}));
  EXPECT_EQ(rig.memory.Get<uint8_t>(in), 0x77);
  EXPECT_EQ(rig.memory.Get<uint8_t>(in + 511), 0x77);
  EXPECT_EQ(rig.memory.Get<uint8_t>(in + 512), kOk);
}

TEST_P(BlkQueueTest, GetId) {
  rig.Offer(0, VIRTIO_BLK_T_GET_ID, 0, 20, true);
  EXPECT_EQ(rig.Answer(0, 21), kOk);
  char id[21] = {};
  rig.memory.Read(BlkRig::DataAt(0), id, 20);
  EXPECT_STREQ(id, "serial-0123456789-to");
  // A larger buffer gets no more, a smaller one a part.
  rig.memory.Put<uint8_t>(BlkRig::DataAt(1) + 20, 0xcc);
  rig.Offer(1, VIRTIO_BLK_T_GET_ID, 0, 100, true);
  EXPECT_EQ(rig.Answer(1, 101), kOk);
  EXPECT_EQ(rig.memory.Get<uint8_t>(BlkRig::DataAt(1) + 20), 0xcc);
  rig.Offer(2, VIRTIO_BLK_T_GET_ID, 0, 3, true);
  EXPECT_EQ(rig.Answer(2, 4), kOk);
  EXPECT_EQ(rig.memory.Get<uint8_t>(BlkRig::DataAt(2) + 2), 'r');
  EXPECT_EQ(rig.memory.Get<uint8_t>(BlkRig::DataAt(2) + 3), 0);
  rig.Offer(3, VIRTIO_BLK_T_GET_ID, 0, 0, true);
  EXPECT_EQ(rig.Answer(3, 1), kIoErr);
}

TEST_P(BlkQueueTest, UnknownTypesAreUnsupported) {
  for (const uint32_t type : {2U, 7U, 10U, +VIRTIO_BLK_T_SECURE_ERASE + 0U, 0x80000001U, UINT32_MAX}) {
    rig.Offer(0, type, 0, 512, true);
    EXPECT_EQ(rig.Answer(0, 513), kUnsupp) << type;
  }
  EXPECT_TRUE(rig.storage->seen.empty());
}

TEST_P(BlkQueueTest, OutOfRangeAndMisalignedAreIoErrors) {
  struct Case {
    uint64_t sector;
    uint32_t bytes;
  };
  const Case cases[] = {{BlkRig::kSectors, 512},
                        {BlkRig::kSectors - 1, 1024},
                        {UINT64_MAX, 512},
                        {uint64_t{1} << 55, 512},        // wraps to 0 in bytes
                        {(uint64_t{1} << 55) + 1, 512},  // wraps to sector 1
                        {(uint64_t{1} << 55) - 1, 512},
                        {0, 511},
                        {0, 1}};
  for (const Case& test : cases) {
    rig.Read(0, test.sector, test.bytes);
    EXPECT_EQ(rig.Answer(0, test.bytes + 1), kIoErr) << test.sector << " " << test.bytes;
    rig.Write(0, test.sector, test.bytes, 1);
    EXPECT_EQ(rig.Answer(0, 1), kIoErr) << test.sector << " " << test.bytes;
  }
  EXPECT_TRUE(rig.storage->seen.empty());
  rig.Read(0, BlkRig::kSectors - 1, 512);
  EXPECT_EQ(rig.Answer(0, 513), kOk);
}

TEST_P(BlkQueueTest, StatusOfTheStorageInVirtioWords) {
  const std::pair<block::IoStatus, uint8_t> cases[] = {
      {block::IoStatus::kOk, kOk},
      {block::IoStatus::kIoError, kIoErr},
      {block::IoStatus::kHardwareError, kIoErr},
      {block::IoStatus::kNoSpace, kIoErr},
      {block::IoStatus::kReadOnly, kIoErr},
      {block::IoStatus::kUnsupported, kUnsupp},
      {block::IoStatus::kInvalid, kIoErr},
      {block::IoStatus::kReservationConflict, kIoErr},
      {block::IoStatus::kAborted, kIoErr},
  };
  for (const auto& [result, status] : cases) {
    rig.storage->result = result;
    rig.Write(0, 0, 512, 1);
    EXPECT_EQ(rig.Answer(0, 1), status) << block::IoStatusName(result);
    rig.Read(0, 0, 512);
    EXPECT_EQ(rig.Answer(0, 513), status) << block::IoStatusName(result);
  }
}

TEST_P(BlkQueueTest, ShortHeaderIsAnIoError) {
  rig.PutHeader(0, VIRTIO_BLK_T_IN, 0);
  rig.SetChain(0, {{BlkRig::HeaderAt(0), 15}, {BlkRig::StatusAt(0), 1, kDescWrite}});
  rig.OfferHead(0);
  EXPECT_EQ(rig.Answer(0, 1), kIoErr);
  rig.SetChain(3, {{BlkRig::StatusAt(1), 1, kDescWrite}});  // no header at all
  rig.OfferHead(3);
  EXPECT_EQ(rig.Answer(1, 1), kIoErr);
  EXPECT_TRUE(rig.broken.empty());
}

TEST_P(BlkQueueTest, NoPlaceForTheStatusBreaksTheQueue) {
  rig.PutHeader(0, VIRTIO_BLK_T_OUT, 0);
  rig.SetChain(0, {{BlkRig::HeaderAt(0), 16}, {BlkRig::DataAt(0), 512}});
  rig.OfferHead(0);
  rig.Turn();
  ASSERT_EQ(rig.broken.size(), 1U);
  EXPECT_NE(rig.broken[0].find("without a status byte"), std::string::npos) << rig.broken[0];
  EXPECT_TRUE(rig.TakeAllUsed().empty());
  EXPECT_EQ(rig.queue->in_flight(), 0U);
}

// ---- Write-through

TEST(BlkQueueCacheTest, WithoutFlushEveryWriteIsDurable) {
  BlkRig rig;
  QueueSetup setup = rig.Setup();
  setup.features &= ~(uint64_t{1} << VIRTIO_BLK_F_FLUSH);
  rig.Start(setup);
  rig.Write(0, 0, 512, 1);
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  rig.Ranges(0, VIRTIO_BLK_T_WRITE_ZEROES, {{0, 1, 0}});
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  rig.Read(0, 0, 512);
  EXPECT_EQ(rig.Answer(0, 513), kOk);
  EXPECT_EQ(rig.storage->seen, (std::vector<Seen>{{Op::kWrite, 0, 512, true, false},
                                                  {Op::kWriteZeroes, 0, 512, true, false},
                                                  {Op::kRead, 0, 512, false, false}}));
}

// ---- Read-only

TEST(BlkQueueReadOnlyTest, OnlyReadsAndFlushes) {
  BlkRig rig(BlkRig::DefaultGeometry(), block::AccessMode::kReadOnly);
  rig.Start();
  rig.Write(0, 0, 512, 1);
  EXPECT_EQ(rig.Answer(0, 1), kIoErr);
  rig.Ranges(0, VIRTIO_BLK_T_DISCARD, {{0, 1, 0}});
  EXPECT_EQ(rig.Answer(0, 1), kIoErr);
  rig.Read(0, 0, 512);
  EXPECT_EQ(rig.Answer(0, 513), kOk);
  rig.Flush(0);
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  EXPECT_EQ(rig.disk[0], 0);
}

// ---- Discard, write zeroes

TEST_P(BlkQueueTest, DiscardOfSeveralRangesIsAnsweredOnce) {
  rig.Ranges(0, VIRTIO_BLK_T_DISCARD, {{0, 8, 0}, {16, 16, 0}, {2040, 8, 0}});
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  EXPECT_EQ(rig.storage->seen, (std::vector<Seen>{{Op::kDiscard, 0, 4096, false, false},
                                                  {Op::kDiscard, 8192, 8192, false, false},
                                                  {Op::kDiscard, 2040 * 512, 4096, false, false}}));
}

TEST_P(BlkQueueTest, WriteZeroesWithAndWithoutUnmap) {
  rig.Ranges(0, VIRTIO_BLK_T_WRITE_ZEROES, {{0, 8, 0}, {8, 8, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP}});
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  EXPECT_EQ(rig.storage->seen, (std::vector<Seen>{{Op::kWriteZeroes, 0, 4096, false, false},
                                                  {Op::kWriteZeroes, 4096, 4096, false, true}}));
  // The slot's next request is not touched by that.
  rig.Write(0, 0, 512, 1);
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  EXPECT_FALSE(rig.storage->seen.back().may_unmap);
}

TEST_P(BlkQueueTest, AsManyRangesAsOffered) {
  std::vector<RangeEntry> ranges;
  for (uint32_t i = 0; i < kBlkRangesMax; ++i) ranges.push_back({i, 1, 0});
  rig.Ranges(0, VIRTIO_BLK_T_WRITE_ZEROES, ranges);
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  EXPECT_EQ(rig.storage->seen.size(), kBlkRangesMax);
  ranges.push_back({0, 1, 0});
  rig.Ranges(1, VIRTIO_BLK_T_WRITE_ZEROES, ranges);
  EXPECT_EQ(rig.Answer(1, 1), kIoErr);
  EXPECT_EQ(rig.storage->seen.size(), kBlkRangesMax);
}

TEST_P(BlkQueueTest, RangesOfAsynchronousStorage) {
  rig.storage->hold = true;
  rig.Ranges(0, VIRTIO_BLK_T_DISCARD, {{0, 8, 0}, {8, 8, 0}, {16, 8, 0}});
  for (size_t done = 0; done < 3; ++done) {
    rig.Turn();
    EXPECT_EQ(rig.storage->seen.size(), done + 1);  // one after the other
    EXPECT_TRUE(rig.TakeAllUsed().empty());
    EXPECT_EQ(rig.queue->in_flight(), 1U);
    EXPECT_TRUE(rig.storage->CompleteOne());
  }
  EXPECT_EQ(rig.Answer(0, 1), kOk);
}

TEST_P(BlkQueueTest, FirstFailedRangeEndsTheRequest) {
  rig.Ranges(0, VIRTIO_BLK_T_DISCARD, {{0, 8, 0}, {BlkRig::kSectors, 8, 0}, {16, 8, 0}});
  EXPECT_EQ(rig.Answer(0, 1), kIoErr);
  EXPECT_EQ(rig.storage->seen.size(), 1U);
  rig.storage->hold = true;
  rig.storage->result = block::IoStatus::kIoError;
  rig.Ranges(1, VIRTIO_BLK_T_DISCARD, {{0, 8, 0}, {8, 8, 0}});
  rig.Turn();
  rig.storage->CompleteOne();
  EXPECT_EQ(rig.Answer(1, 1), kIoErr);
  EXPECT_EQ(rig.storage->seen.size(), 2U);
}

TEST_P(BlkQueueTest, RangesThatMakeNoSense) {
  struct Case {
    uint32_t type;
    RangeEntry range;
    uint8_t status;
  };
  const Case cases[] = {
      {VIRTIO_BLK_T_DISCARD, {0, 8, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP}, kUnsupp},  // 5.2.6.2
      {VIRTIO_BLK_T_DISCARD, {0, 8, 2}, kUnsupp},
      {VIRTIO_BLK_T_WRITE_ZEROES, {0, 8, 0x80000000}, kUnsupp},
      {VIRTIO_BLK_T_DISCARD, {0, 65, 0}, kIoErr},  // more than max_discard_sectors
      {VIRTIO_BLK_T_WRITE_ZEROES, {UINT64_MAX, 8, 0}, kIoErr},
      {VIRTIO_BLK_T_WRITE_ZEROES, {0, UINT32_MAX, 0}, kIoErr},
  };
  for (const Case& test : cases) {
    rig.Ranges(0, test.type, {test.range});
    EXPECT_EQ(rig.Answer(0, 1), test.status) << test.range.sector << " " << test.range.flags;
  }
  for (const uint32_t bytes : {0U, 8U, 17U}) {
    rig.Offer(0, VIRTIO_BLK_T_DISCARD, 0, bytes, false);
    EXPECT_EQ(rig.Answer(0, 1), kIoErr) << bytes;
  }
  EXPECT_TRUE(rig.storage->seen.empty());
}

TEST(BlkQueuePlainDiskTest, DiscardAndWriteZeroesAreUnsupported) {
  block::Geometry geometry;
  geometry.size_bytes = 1 << 20;
  BlkRig rig(geometry);
  rig.Start();
  rig.Ranges(0, VIRTIO_BLK_T_DISCARD, {{0, 8, 0}});
  EXPECT_EQ(rig.Answer(0, 1), kUnsupp);
  rig.Ranges(0, VIRTIO_BLK_T_WRITE_ZEROES, {{0, 8, 0}});
  EXPECT_EQ(rig.Answer(0, 1), kUnsupp);
}

TEST(BlkQueueBlockSizeTest, FourKiBDiskWantsWholeBlocks) {
  block::Geometry geometry = BlkRig::DefaultGeometry();
  geometry.logical_block_bytes = geometry.physical_block_bytes = 4096;
  BlkRig rig(geometry);
  rig.Start();
  rig.Write(0, 8, 4096, 0x11);
  EXPECT_EQ(rig.Answer(0, 1), kOk);
  EXPECT_EQ(rig.disk[4096], 0x11);
  rig.Write(0, 1, 4096, 0x22);
  EXPECT_EQ(rig.Answer(0, 1), kIoErr);
  rig.Write(0, 8, 512, 0x22);
  EXPECT_EQ(rig.Answer(0, 1), kIoErr);
}

}  // namespace
}  // namespace cleat::virtio::blk_queue_test
