// SPDX-License-Identifier: Apache-2.0
// Targets that come, grow and go under a running guest, and what it is told of it.
#include <gtest/gtest.h>

#include "scsi_rig.h"
#include "virtio/scsi_events.h"

namespace cleat::virtio::scsi_model_test {
namespace {

using Events = std::vector<std::string>;

TEST(ScsiHotplugTest, TheGuestIsToldOfComingGrowingAndGoing) {
  ScsiRig rig;
  for (uint32_t slot = 0; slot < 4; ++slot) rig.events().OfferEventBuffer(slot);
  rig.Turn();
  EXPECT_EQ(rig.events().queue->in_flight(), 0U);  // buffers stay the guest's until there is something to say
  ASSERT_EQ(rig.Add(6), "ok");
  EXPECT_EQ(rig.events().TakeEvents(), (Events{"1 6 1"}));
  block::Geometry geometry = rig.disks[6].geometry;
  geometry.size_bytes *= 2;
  rig.SetGeometry(6, geometry);
  EXPECT_EQ(rig.events().TakeEvents(), (Events{"3 6 92a"}));
  EXPECT_EQ(rig.Run(0, LunOf(6), kReadyCdb), "6/2a/09");
  EXPECT_EQ(rig.Run(1, LunOf(6), {0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {}, 8), "good");
  EXPECT_EQ(scsi::LoadBigExact(rig.requests(1).Data(0, 8).data(), 4), 8191U);
  EXPECT_TRUE(rig.Remove(6));
  EXPECT_EQ(rig.events().TakeEvents(), (Events{"1 6 2"}));
  EXPECT_EQ(rig.Run(0, LunOf(6), kReadyCdb), "response 3");
  EXPECT_EQ(rig.Run(1, LunOf(6), kReadyCdb), "response 3");
  EXPECT_TRUE(rig.Remove(6));  // again: nothing
  rig.SetGeometry(6, geometry);
  EXPECT_TRUE(rig.events().TakeEvents().empty());
}

TEST(ScsiHotplugTest, ADiskWhoseGuestHasLeftGoesQuietly) {
  ScsiRig rig;
  rig.Add(3);
  for (uint32_t slot = 0; slot < 3; ++slot) rig.events().OfferEventBuffer(slot);
  rig.Turn();
  EXPECT_EQ(rig.events().TakeEvents(), (Events{"1 3 1"}));
  EXPECT_TRUE(rig.Remove(3, /*tell=*/false));
  EXPECT_TRUE(rig.events().TakeEvents().empty());
  EXPECT_EQ(rig.Run(0, LunOf(3), kReadyCdb), "response 3");
  rig.Add(3);
  EXPECT_EQ(rig.events().TakeEvents(), (Events{"1 3 1"}));
}

TEST(ScsiHotplugTest, EventsWaitForBuffersInTheirOrder) {
  ScsiRig rig;
  rig.Add(1);
  rig.Remove(1);
  rig.Add(1);
  rig.Stop(1);  // the queue too may come and go
  rig.Turn();
  rig.Start(1);
  EXPECT_TRUE(rig.events().TakeEvents().empty());
  for (uint32_t slot = 0; slot < 3; ++slot) rig.events().OfferEventBuffer(slot);
  rig.io[1]->Activate(*rig.events().queue);
  rig.Turn();
  EXPECT_EQ(rig.events().TakeEvents(), (Events{"1 1 1", "1 1 2", "1 1 1"}));
}

TEST(ScsiHotplugTest, EventsWaitForAQueueToBeOpened) {
  ScsiRig rig;
  rig.Stop(1);
  rig.Turn();
  rig.events().queue.reset();
  rig.Add(1);
  rig.events().queue = rig.model->OpenQueue(*rig.io[1], 1).value();
  rig.Start(1);
  rig.events().OfferEventBuffer(0);
  rig.io[1]->Activate(*rig.events().queue);
  rig.Turn();
  EXPECT_EQ(rig.events().TakeEvents(), (Events{"1 1 1"}));
}

TEST(ScsiHotplugTest, WhatWasLostIsSaidToBeLost) {
  ScsiRig rig;
  rig.Add(1);
  for (size_t i = 0; i < ScsiEvents::kPendingMax; ++i) rig.SetGeometry(1, rig.disks[1].geometry);
  rig.events().OfferEventBuffer(0);
  rig.io[1]->Activate(*rig.events().queue);
  rig.Turn();
  EXPECT_EQ(rig.events().TakeEvents(), (Events{"80000001 1 1"}));
  rig.events().OfferEventBuffer(0);
  rig.io[1]->Activate(*rig.events().queue);
  rig.Turn();
  EXPECT_EQ(rig.events().TakeEvents(), (Events{"3 1 92a"}));
}

// QEMU agrees on CHANGE with the guest by itself; HOTPLUG it passes on.
TEST(ScsiHotplugTest, AGuestWithoutTheFeatures) {
  ScsiRig rig(uint64_t{1} << VIRTIO_SCSI_F_HOTPLUG | uint64_t{1} << VIRTIO_SCSI_F_CHANGE);
  rig.Add(1);
  rig.SetGeometry(1, rig.disks[1].geometry);
  rig.events().OfferEventBuffer(0);
  rig.events().OfferEventBuffer(1);
  rig.io[1]->Activate(*rig.events().queue);
  rig.Turn();
  const Events events = rig.events().TakeEvents();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events[0], "3 1 92a");
}

TEST(ScsiHotplugTest, AShortEventBufferBreaksTheQueue) {
  ScsiRig rig;
  rig.events().OfferEventBuffer(0, 15);
  rig.Add(1);
  EXPECT_EQ(rig.events().broken.size(), 1U);
  EXPECT_EQ(rig.Run(0, LunOf(1), kReadyCdb), "good");
}

TEST(ScsiHotplugTest, WhatCannotBeAdded) {
  ScsiRig rig;
  EXPECT_EQ(rig.Add(1), "ok");
  EXPECT_EQ(rig.Add(8, rig.DiskOf(2)), "invalid_argument");
  EXPECT_EQ(rig.Add(1, rig.DiskOf(2)), "already_exists");
  ScsiDisk bad = rig.DiskOf(2);
  bad.identity.serial = std::string(21, 'x');
  EXPECT_EQ(rig.Add(2, bad), "invalid_argument");
  ScsiDisk half = rig.DiskOf(2);
  half.channel_on = [&rig](Reactor& reactor) -> block::PipelineChannel* {
    return &reactor == rig.io[0].get() ? rig.disks[2].channels[0].get() : nullptr;
  };
  EXPECT_EQ(rig.Add(2, half), "failed_precondition");
  EXPECT_EQ(rig.Run(0, LunOf(2), kReadyCdb), "response 3");
  EXPECT_EQ(rig.Add(2), "ok");
}

TEST(ScsiHotplugTest, RemovingWaitsForWhatIsInTheStorage) {
  ScsiRig rig;
  rig.Add(0);
  rig.Add(1);
  rig.disks[0].storage.hold = true;
  for (const uint32_t index : {0U, 1U}) {
    rig.requests(index).Command(1, LunOf(0), WriteCdb(0, 1), Bytes(512, 1));
    rig.io[index]->Activate(*rig.requests(index).queue);
  }
  rig.Turn();
  bool removed = false;
  rig.StartRemove(0, removed);
  // No command gets in any more on the reactor that was visited; other targets go on.
  rig.requests(0).Command(2, LunOf(0), WriteCdb(0, 1), Bytes(512, 1));
  rig.requests(0).Command(3, LunOf(1), kReadyCdb);
  rig.Turn();
  EXPECT_EQ(ScsiRig::Outcome(rig.requests(0).Response(2)), "response 3");
  EXPECT_EQ(ScsiRig::Outcome(rig.requests(0).Response(3)), "good");
  for (int left = 2; left > 0; --left) {
    EXPECT_FALSE(removed) << left << " in the storage";
    ASSERT_TRUE(rig.disks[0].storage.CompleteOne());
    rig.Turn();
  }
  EXPECT_TRUE(removed);
  EXPECT_EQ(ScsiRig::Outcome(rig.requests(1).Response(1)), "good");
  rig.disks[0].channels = {};  // nobody uses them
}

// A long command of a target that goes takes no further step, and its guest hears that the target is gone.
TEST(ScsiHotplugTest, ALongCommandEndsWithItsTarget) {
  ScsiRig rig;
  rig.Add(0);
  rig.disks[0].storage.hold = true;
  Bytes zeroes(16);
  zeroes[0] = 0x93;
  zeroes[1] = 0x01;
  scsi::StoreBig(&zeroes[10], 4096, 4);
  rig.requests(0).Command(1, LunOf(0), zeroes);
  rig.Turn();
  bool removed = false;
  rig.StartRemove(0, removed);
  EXPECT_FALSE(removed);
  rig.disks[0].storage.CompleteOne();
  rig.Turn();
  EXPECT_TRUE(removed);
  EXPECT_EQ(rig.disks[0].storage.seen.size(), 1U);
  EXPECT_EQ(ScsiRig::Outcome(rig.requests(0).Response(1)), "response 3");
}

TEST(ScsiHotplugTest, AResetThatWaitsAndATargetThatGoes) {
  ScsiRig rig;
  rig.Add(0);
  rig.disks[0].storage.hold = true;
  rig.requests(1).Command(1, LunOf(0), WriteCdb(0, 1), Bytes(512, 1));
  rig.io[1]->Activate(*rig.requests(1).queue);
  rig.Turn();
  rig.management().Manage(0, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, LunOf(0));
  rig.Turn();
  bool removed = false;
  rig.StartRemove(0, removed);
  EXPECT_FALSE(removed);
  EXPECT_EQ(rig.management().Result(0), 0xff);
  rig.disks[0].storage.CompleteOne();
  rig.Turn();
  EXPECT_TRUE(removed);
  EXPECT_NE(rig.management().Result(0), 0xff);
}

}  // namespace
}  // namespace cleat::virtio::scsi_model_test
