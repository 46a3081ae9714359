// SPDX-License-Identifier: Apache-2.0
#include "virtio/blk_model.h"

#include <gtest/gtest.h>

#include <cstring>

#include "virtio/blk_queue.h"
#include "virtio/ring_format.h"

namespace cleat::virtio::blk_model_test {
namespace {

bool Offers(const BlkModel& model, unsigned feature) {
  return (model.features() >> feature & 1) != 0;
}

BlkModel Make(const block::Geometry& geometry, block::AccessMode mode = block::AccessMode::kReadWrite,
              uint32_t queues = 1) {
  return {geometry, mode, "disk", queues, [](Reactor&) -> block::PipelineChannel* { return nullptr; }};
}

virtio_blk_config ConfigOf(const BlkModel& model) {
  virtio_blk_config config;
  model.ReadConfig(0, {reinterpret_cast<uint8_t*>(&config), sizeof(config)});
  return config;
}

block::Geometry Full() {
  block::Geometry geometry;
  geometry.size_bytes = uint64_t{10} << 30;
  geometry.logical_block_bytes = 4096;
  geometry.physical_block_bytes = 16384;
  geometry.optimal_io_bytes = 65536;
  geometry.discard = geometry.write_zeroes = true;
  geometry.discard_granularity_bytes = 65536;
  geometry.discard_max_bytes = (uint64_t{1} << 30) + 512;
  geometry.write_zeroes_max_bytes = UINT64_MAX;
  return geometry;
}

TEST(BlkModelTest, FeaturesOfAPlainDisk) {
  block::Geometry geometry;
  geometry.size_bytes = 1 << 20;
  const BlkModel model = Make(geometry);
  for (const unsigned feature :
       {kFeatureVersion1, kFeatureIndirectDesc, kFeatureEventIdx, +VIRTIO_BLK_F_SEG_MAX + 0U,
        +VIRTIO_BLK_F_BLK_SIZE + 0U, +VIRTIO_BLK_F_TOPOLOGY + 0U, +VIRTIO_BLK_F_FLUSH + 0U}) {
    EXPECT_TRUE(Offers(model, feature)) << feature;
  }
  for (const unsigned feature :
       {VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_DISCARD,
        VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_SECURE_ERASE}) {
    EXPECT_FALSE(Offers(model, feature)) << feature;
  }
  EXPECT_EQ(model.queues(), 1U);
  EXPECT_TRUE(model.has_config());
}

TEST(BlkModelTest, FeaturesOfWhatTheDiskCan) {
  const BlkModel model = Make(Full(), block::AccessMode::kReadWrite, 4);
  EXPECT_TRUE(Offers(model, VIRTIO_BLK_F_DISCARD));
  EXPECT_TRUE(Offers(model, VIRTIO_BLK_F_WRITE_ZEROES));
  EXPECT_TRUE(Offers(model, VIRTIO_BLK_F_MQ));
  EXPECT_EQ(model.queues(), 4U);
}

TEST(BlkModelTest, ReadOnlyDiskOffersNothingThatWrites) {
  const BlkModel model = Make(Full(), block::AccessMode::kReadOnly);
  EXPECT_TRUE(Offers(model, VIRTIO_BLK_F_RO));
  EXPECT_FALSE(Offers(model, VIRTIO_BLK_F_DISCARD));
  EXPECT_FALSE(Offers(model, VIRTIO_BLK_F_WRITE_ZEROES));
}

TEST(BlkModelTest, ConfigurationFromGeometry) {
  const virtio_blk_config config = ConfigOf(Make(Full(), block::AccessMode::kReadWrite, 4));
  EXPECT_EQ(config.capacity, (uint64_t{10} << 30) / 512);  // in sectors, whatever the block size
  EXPECT_EQ(config.size_max, 0U);
  EXPECT_EQ(config.seg_max, 126U);
  EXPECT_EQ(config.blk_size, 4096U);
  EXPECT_EQ(config.physical_block_exp, 2);
  EXPECT_EQ(config.alignment_offset, 0);
  EXPECT_EQ(config.min_io_size, 4);
  EXPECT_EQ(config.opt_io_size, 16U);
  EXPECT_EQ(config.num_queues, 4);
  EXPECT_EQ(config.max_discard_sectors, (1U << 30) / 512);  // cut to whole blocks
  EXPECT_EQ(config.max_discard_seg, kBlkRangesMax);
  EXPECT_EQ(config.discard_sector_alignment, 128U);
  EXPECT_EQ(config.max_write_zeroes_sectors, 0xfffffff8U);  // the largest that fits, in whole blocks
  EXPECT_EQ(config.max_write_zeroes_seg, kBlkRangesMax);
  EXPECT_EQ(config.write_zeroes_may_unmap, 1);
}

TEST(BlkModelTest, ReadConfigInPieces) {
  const BlkModel model = Make(Full());
  const virtio_blk_config config = ConfigOf(model);
  for (uint32_t offset = 0; offset < 2 * sizeof(config); ++offset) {
    uint8_t bytes[8];
    std::memset(bytes, 0xaa, sizeof(bytes));
    model.ReadConfig(offset, bytes);
    for (uint32_t i = 0; i < sizeof(bytes); ++i) {
      const uint32_t at = offset + i;
      const uint8_t expected = at < sizeof(config) ? reinterpret_cast<const uint8_t*>(&config)[at] : 0;
      ASSERT_EQ(bytes[i], expected) << at;
    }
  }
  uint8_t last = 0xaa;
  model.ReadConfig(UINT32_MAX, {&last, 1});
  EXPECT_EQ(last, 0);
}

TEST(BlkModelTest, NothingIsWritable) {
  BlkModel model = Make(Full());
  const virtio_blk_config before = ConfigOf(model);
  const uint8_t one = 1;
  EXPECT_FALSE(model.WriteConfig(offsetof(virtio_blk_config, wce), {&one, 1}).ok());
  EXPECT_FALSE(model.WriteConfig(0, {&one, 1}).ok());
  const virtio_blk_config after = ConfigOf(model);
  EXPECT_EQ(std::memcmp(&before, &after, sizeof(before)), 0);
}

TEST(BlkModelTest, OpenQueueRefusesWithReason) {
  BlkModel model = Make(Full());
  const ManualClock clock;
  const auto reactor = Reactor::Make(clock, {.name = "io3"}).value();
  const auto beyond = model.OpenQueue(*reactor, 1);
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().message, "virtio-blk disk 'disk', queue 1: it has 1 queues");
  const auto closed = model.OpenQueue(*reactor, 0);
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().message, "virtio-blk disk 'disk', queue 0: the disk is not open on io3");
}

}  // namespace
}  // namespace cleat::virtio::blk_model_test
