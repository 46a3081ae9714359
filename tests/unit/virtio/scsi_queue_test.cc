// SPDX-License-Identifier: Apache-2.0
// virtio-scsi's request queue: layouts, addresses, residuals, and guests that get them wrong.
#include <gtest/gtest.h>

#include "scsi_rig.h"

namespace cleat::virtio::scsi_queue_test {
namespace {

TEST(ScsiQueueTest, WritesAndReadsOnBothReactors) {
  ScsiRig rig;
  ASSERT_EQ(rig.Add(3), "ok");
  EXPECT_EQ(rig.Run(0, LunOf(3), WriteCdb(5, 2), Bytes(1024, 7)), "good");
  EXPECT_EQ(rig.used_bytes, 108U);
  EXPECT_EQ(rig.requests(0).Response(0).resid, 0U);
  EXPECT_EQ(rig.Run(1, LunOf(3), ReadCdb(6, 1), {}, 512), "good");
  EXPECT_EQ(rig.used_bytes, 108U + 512);
  EXPECT_EQ(rig.requests(1).Data(0, 512), Bytes(512, 7));
}

TEST(ScsiQueueTest, Residuals) {
  ScsiRig rig;
  ASSERT_EQ(rig.Add(0), "ok");
  EXPECT_EQ(rig.Run(0, LunOf(0), ReadCdb(0, 1), {}, 1000), "good");
  EXPECT_EQ(rig.requests().Response(0).resid, 488U);
  EXPECT_EQ(rig.used_bytes, 108U + 512);
  EXPECT_EQ(rig.Run(0, LunOf(0), {0x12, 0, 0, 0, 200, 0}, {}, 255), "good");
  EXPECT_EQ(rig.requests().Response(0).resid, 255U - 96);
  EXPECT_EQ(rig.Run(0, LunOf(0), WriteCdb(0, 1), Bytes(700, 1)), "good");
  EXPECT_EQ(rig.requests().Response(0).resid, 188U);
  EXPECT_EQ(rig.Run(0, LunOf(0), kReadyCdb, Bytes(10, 1)), "good");
  EXPECT_EQ(rig.requests().Response(0).resid, 10U);
  EXPECT_EQ(rig.Run(0, LunOf(0), ReadCdb(0, 1), {}, 100), "response 1");  // OVERRUN
  EXPECT_EQ(rig.requests().Response(0).resid, 100U);
  EXPECT_EQ(rig.Run(0, LunOf(0), WriteCdb(0, 1), {}, 512), "response 1");
  EXPECT_EQ(rig.Run(0, LunOf(0), {0x01, 0, 0, 0, 0, 0}, Bytes(8, 1)), "5/20/00");
  EXPECT_EQ(rig.requests().Response(0).resid, 8U);
  EXPECT_EQ(rig.disks[0].storage.seen.size(), 2U);
}

TEST(ScsiQueueTest, Addresses) {
  ScsiRig rig;
  ASSERT_EQ(rig.Add(2), "ok");
  const Bytes inquiry = {0x12, 0, 0, 0, 36, 0};
  const Bytes report = {0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0};
  EXPECT_EQ(rig.Run(0, LunOf(2), kReadyCdb), "good");
  EXPECT_EQ(rig.Run(0, {1, 2, 0, 0}, kReadyCdb), "good");
  EXPECT_EQ(rig.Run(0, LunOf(1), kReadyCdb), "response 3");      // no such target
  EXPECT_EQ(rig.Run(0, LunOf(8), kReadyCdb), "response 3");      // no such number
  EXPECT_EQ(rig.Run(0, {0, 2, 0, 0}, kReadyCdb), "response 3");  // no such form
  // Another LUN of a target that is there (SAM-5 4.6.4).
  EXPECT_EQ(rig.Run(0, LunOf(2, 1), kReadyCdb), "5/25/00");
  EXPECT_EQ(rig.Run(0, LunOf(2, 1), WriteCdb(0, 1), Bytes(512, 1)), "5/25/00");
  EXPECT_EQ(rig.Run(0, LunOf(2, 1), inquiry, {}, 36), "good");
  EXPECT_EQ(rig.requests().Data(0, 1)[0], 0x7f);
  EXPECT_EQ(rig.Run(0, LunOf(2, 1), report, {}, 64), "good");
  EXPECT_EQ(rig.requests().Data(0, 4)[3], 8);
  EXPECT_EQ(rig.Run(0, LunOf(2, 1), {3, 0, 0, 0, 18, 0}, {}, 18), "good");
  EXPECT_EQ(rig.requests().Data(0, 13)[12], 0x25);
  // The REPORT LUNS units.
  EXPECT_EQ(rig.Run(0, {1, 2, 0xc1, 1}, inquiry, {}, 36), "good");
  EXPECT_EQ(rig.requests().Data(0, 1)[0], 0x1e);
  ASSERT_EQ(rig.Add(5), "ok");
  EXPECT_EQ(rig.Run(0, {0xc1, 1}, report, {}, 64), "good");
  EXPECT_EQ(rig.requests().Data(0, 24),
            (Bytes{0, 0, 0, 16, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(rig.Run(0, {0xc1, 1}, WriteCdb(0, 1), Bytes(512, 1)), "5/20/00");
  EXPECT_TRUE(rig.disks[2].storage.seen.empty());
}

// Header and response in descriptors of one byte each, data in the same descriptors as the ends of them.
TEST(ScsiQueueTest, AnyLayout) {
  ScsiRig rig;
  ASSERT_EQ(rig.Add(0), "ok");
  ScsiSide& side = rig.requests();
  std::fill_n(rig.disks[0].storage.bytes.begin(), 512, 9);
  ScsiRequestHeader header{};
  header.lun[0] = 1;
  const Bytes cdb = ReadCdb(0, 1);
  std::copy(cdb.begin(), cdb.end(), header.cdb);
  side.memory.Put(ScsiSide::RequestAt(0), header);
  std::vector<Desc> descs;
  for (uint32_t i = 0; i < sizeof(header); ++i) descs.push_back({ScsiSide::RequestAt(0) + i, 1});
  for (uint32_t i = 0; i < 60; ++i) descs.push_back({ScsiSide::ResponseAt(0) + i, 1, kDescWrite});
  descs.push_back({ScsiSide::ResponseAt(0) + 60, 148, kDescWrite});  // the rest, and 100 bytes of data
  descs.push_back({ScsiSide::ResponseAt(0) + 208, 412, kDescWrite});
  side.guest.SetIndirectChain(0, ScsiSide::DataAt(1), descs);
  side.guest.Offer(0);
  rig.Turn();
  ASSERT_EQ(side.guest.TakeAllUsed().size(), 1U);
  EXPECT_EQ(ScsiRig::Outcome(side.Response(0)), "good");
  Bytes data(512);
  side.memory.Read(ScsiSide::ResponseAt(0) + 108, data.data(), 512);
  EXPECT_EQ(data, Bytes(512, 9));
}

TEST(ScsiQueueTest, AShortHeaderAndDataBothWaysFail) {
  ScsiRig rig;
  ASSERT_EQ(rig.Add(0), "ok");
  ScsiSide& side = rig.requests();
  side.guest.SetChain(0, {{ScsiSide::RequestAt(0), 50}, {ScsiSide::ResponseAt(0), 108, kDescWrite}});
  side.guest.Offer(0);
  rig.Turn();
  EXPECT_EQ(ScsiRig::Outcome(side.Response(0)), "response 9");
  EXPECT_EQ(rig.requests().guest.TakeAllUsed().size(), 1U);
  EXPECT_EQ(rig.Run(0, LunOf(0), WriteCdb(0, 1), Bytes(512, 1), 512), "response 9");
  EXPECT_TRUE(rig.disks[0].storage.seen.empty());
  EXPECT_TRUE(side.broken.empty());
}

TEST(ScsiQueueTest, WithoutRoomForAResponseTheQueueIsBroken) {
  ScsiRig rig;
  ScsiSide& side = rig.requests();
  side.guest.SetChain(0, {{ScsiSide::RequestAt(0), 51}, {ScsiSide::ResponseAt(0), 107, kDescWrite}});
  side.guest.Offer(0);
  rig.Turn();
  ASSERT_EQ(side.broken.size(), 1U);
  EXPECT_NE(side.broken[0].find("107 of 108"), std::string::npos);
  EXPECT_EQ(rig.Run(1, LunOf(0), kReadyCdb), "response 3");  // the other queue lives
}

TEST(ScsiQueueTest, AReadErrorLeavesAllResidual) {
  ScsiRig rig;
  ASSERT_EQ(rig.Add(0), "ok");
  rig.disks[0].storage.result = block::IoStatus::kIoError;
  EXPECT_EQ(rig.Run(0, LunOf(0), ReadCdb(0, 1), {}, 512), "3/11/00");
  EXPECT_EQ(rig.requests().Response(0).resid, 512U);
  EXPECT_EQ(rig.used_bytes, 108U);
}

TEST(ScsiModelTest, OffersWhatADriverNeeds) {
  ScsiRig rig;
  EXPECT_EQ(rig.model->queues(), 4U);
  EXPECT_FALSE(rig.model->has_config());
  const uint64_t features = rig.model->features();
  EXPECT_EQ(features & 0xf, (1U << VIRTIO_SCSI_F_HOTPLUG) | (1U << VIRTIO_SCSI_F_CHANGE));
  EXPECT_NE(features >> kFeatureVersion1 & 1, 0U);
  EXPECT_TRUE(IsPacked(features));
  EXPECT_FALSE(rig.model->OpenQueue(*rig.io[0], 4));
  EXPECT_FALSE(rig.model->OpenQueue(*rig.io[0], 3));  // on the other reactor
}

}  // namespace
}  // namespace cleat::virtio::scsi_queue_test
