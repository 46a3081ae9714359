// SPDX-License-Identifier: Apache-2.0
// One model, two queues on two reactors in two threads: nothing is shared but the model and the disk. For
// ThreadSanitizer above all.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "blk_rig.h"

namespace cleat::virtio::two_reactors_test {
namespace {

constexpr uint16_t kSize = 64;
constexpr uint64_t kSectors = 1024;

// One I/O thread: its reactor, its channel, its queue.
struct Side {
  const MonotonicClock clock{};
  std::unique_ptr<Reactor> reactor = Reactor::Make(clock, {}).value();
  std::unique_ptr<block::PipelineChannel> channel;
  GuestMemory memory{GuestLayout::Regions(kSize)};
  GuestRing guest = GuestLayout::Ring(memory, kSize);
  std::unique_ptr<DeviceQueue> queue;
  std::string broken;
};

// Writes a pattern to each of its sectors and reads it back, from a thread that plays the guest.
void PlayGuest(Side& side, uint64_t first_sector, uint8_t pattern) {
  const uint64_t header = GuestLayout::kLow;
  const uint64_t data = GuestLayout::kHigh;
  const uint64_t status = GuestLayout::kLow + 64;
  const auto run = [&](uint32_t type, uint64_t sector, uint16_t flags) {
    side.memory.Put(header, virtio_blk_outhdr{type, 0, sector});
    side.memory.Put<uint8_t>(status, 0xff);
    side.guest.SetChain(0, {{header, 16}, {data, 512, flags}, {status, 1, kDescWrite}});
    side.guest.Offer(0);
    side.reactor->PostCall([&side] { side.reactor->Activate(*side.queue); });  // the kick
    while (!side.guest.TakeUsed()) std::this_thread::yield();
    return side.memory.Get<uint8_t>(status);
  };
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t sector = first_sector + i;
    side.memory.Put<uint8_t>(data + 511, static_cast<uint8_t>(pattern + i));
    ASSERT_EQ(run(VIRTIO_BLK_T_OUT, sector, 0), VIRTIO_BLK_S_OK);
    side.memory.Put<uint8_t>(data + 511, 0);
    ASSERT_EQ(run(VIRTIO_BLK_T_IN, sector, kDescWrite), VIRTIO_BLK_S_OK);
    ASSERT_EQ(side.memory.Get<uint8_t>(data + 511), static_cast<uint8_t>(pattern + i));
  }
}

TEST(TwoReactorsTest, QueuesOfOneModelShareNothing) {
  std::vector<uint8_t> disk(kSectors * 512);
  block::Geometry geometry;
  geometry.size_bytes = disk.size();
  Side sides[2];
  BlkModel model(geometry, block::AccessMode::kReadWrite, "disk", 2, [&](Reactor& reactor) {
    return (&reactor == sides[0].reactor.get() ? sides[0] : sides[1]).channel.get();
  });

  std::vector<std::thread> io;
  for (uint32_t i = 0; i < 2; ++i) {
    Side& side = sides[i];
    side.reactor->PostCall([&, i] {
      side.channel = std::make_unique<block::PipelineChannel>(geometry, block::AccessMode::kReadWrite,
                                                              std::make_unique<MemoryChannel>(disk));
      side.queue = model.OpenQueue(*side.reactor, i).value();
      QueueSetup setup;
      setup.features = model.features() & ~(uint64_t{1} << kFeatureRingPacked);
      setup.memory = side.memory.map();
      setup.ring = side.guest.memory();
      side.queue->Start(setup, [&side](const std::string& reason) { side.broken = reason; });
    });
    io.emplace_back([&side] { side.reactor->Run(); });
  }
  std::thread guest0([&] { PlayGuest(sides[0], 0, 1); });
  std::thread guest1([&] { PlayGuest(sides[1], kSectors / 2, 101); });
  guest0.join();
  guest1.join();
  for (Side& side : sides) {
    side.reactor->PostCall([&side] {
      side.queue->Stop([&side] {
        side.queue.reset();
        side.channel.reset();
        side.reactor->Stop();
      });
    });
  }
  for (std::thread& thread : io) thread.join();
  EXPECT_EQ(sides[0].broken + sides[1].broken, "");
  EXPECT_EQ(disk[511], 1);
  EXPECT_EQ(disk[(kSectors / 2) * 512 + 511], 101);
}

}  // namespace
}  // namespace cleat::virtio::two_reactors_test
