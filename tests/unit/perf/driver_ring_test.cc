// SPDX-License-Identifier: Apache-2.0
#include "perf/ring/driver_ring.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/random.h"
#include "fake_device.h"

namespace cleat::perf::driver_ring_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kWaitNs = 60 * kNsPerSecond;

struct RingTest : ::testing::Test {
  void Make(const RingOptions& options) {
    ring.reset();
    memory = GuestMemory::CreateWithHole(8 * kMiB).value();
    ring = DriverRing::Create(*memory, options).value();
    const uint64_t area = memory->Allocate(sizeof(wire::BlkHeader) + 1, 16).value();
    header_gpa = area;
    status_gpa = area + sizeof(wire::BlkHeader);
    memory->At<wire::BlkHeader>(header_gpa)->type = wire::kBlkTypeFlush;
    device.Start(DeviceLayout(), 0, options.event_idx);
    device.Rearm();
  }

  FakeRing::Layout DeviceLayout() const {
    return {ring->size(), memory->At(ring->desc_gpa(), 16), memory->At(ring->avail_gpa(), 6),
            memory->At(ring->used_gpa(), 6)};
  }

  bool AddFlush(uint64_t token, bool indirect = false) {
    const Segment chain[] = {{header_gpa, sizeof(wire::BlkHeader), false}, {status_gpa, 1, true}};
    return ring->Add(chain, indirect, token).has_value();
  }

  size_t Serve() {
    return device.Process(disk, [this](uint64_t gpa, uint64_t size) { return memory->At(gpa, size); });
  }

  std::unique_ptr<GuestMemory> memory;
  std::unique_ptr<DriverRing> ring;
  uint64_t header_gpa = 0;
  uint64_t status_gpa = 0;
  FakeRing device;
  FakeDisk disk{kMiB};
};

TEST_F(RingTest, FullRingRefusesAndRecovers) {
  Make({.size = 8});
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(AddFlush(i));
  EXPECT_EQ(ring->free_descriptors(), 0);
  EXPECT_FALSE(AddFlush(4));
  ring->Submit();
  EXPECT_EQ(Serve(), 4U);
  UsedEntry used;
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(ring->Pop(&used), PopResult::kDone);
    EXPECT_EQ(used.token, i);
    EXPECT_EQ(used.written_bytes, 1U);
  }
  EXPECT_EQ(ring->Pop(&used), PopResult::kNone);
  EXPECT_EQ(ring->free_descriptors(), 8);
  EXPECT_EQ(ring->in_flight(), 0);
}

TEST_F(RingTest, IndexesWrapManyTimes) {
  for (const bool event_idx : {false, true}) {
    Make({.size = 4, .event_idx = event_idx, .indirect_entries = 4});
    uint64_t sent = 0;
    uint64_t received = 0;
    Random random(event_idx ? 1 : 2);
    while (received < 140'000) {
      while (AddFlush(sent, random.Chance(1, 2))) ++sent;
      ring->Submit();
      Serve();
      device.Rearm();
      for (UsedEntry used; ring->Pop(&used) == PopResult::kDone;) ASSERT_EQ(used.token, received++);
      ASSERT_FALSE(ring->broken()) << ring->broken_reason();
    }
    EXPECT_EQ(sent, received);
  }
}

TEST_F(RingTest, CompletionsOutOfOrderFreeTheRightDescriptors) {
  Make({.size = 16});
  std::vector<uint16_t> heads;
  const Segment chain[] = {{header_gpa, sizeof(wire::BlkHeader), false}, {status_gpa, 1, true}};
  for (uint64_t i = 0; i < 8; ++i) heads.push_back(ring->Add(chain, false, 100 + i).value());
  ring->Publish();
  for (const size_t i : {5U, 0U, 7U, 2U}) device.PushUsed(heads[i], 1);
  UsedEntry used;
  for (const uint64_t token : {105U, 100U, 107U, 102U}) {
    ASSERT_EQ(ring->Pop(&used), PopResult::kDone);
    EXPECT_EQ(used.token, token);
  }
  EXPECT_EQ(ring->free_descriptors(), 8);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(AddFlush(200 + i));
  EXPECT_FALSE(AddFlush(204));
}

TEST_F(RingTest, LongIndirectChainTakesOneDescriptor) {
  Make({.size = 4, .indirect_entries = 16});
  std::vector<Segment> chain;
  for (uint32_t i = 0; i < sizeof(wire::BlkHeader); ++i) chain.push_back({header_gpa + i, 1, false});
  EXPECT_FALSE(ring->Add(chain, false, 0)) << "longer than the ring";
  std::vector<Segment> too_long = chain;
  too_long.push_back({status_gpa, 1, true});
  EXPECT_FALSE(ring->Add(too_long, true, 0)) << "longer than the table";
  chain.pop_back();
  chain.back().len = 2;
  chain.push_back({status_gpa, 1, true});
  ASSERT_TRUE(ring->Add(chain, true, 7));
  EXPECT_EQ(ring->free_descriptors(), 3);
  ring->Publish();
  EXPECT_EQ(Serve(), 1U);
  EXPECT_FALSE(device.broken());
  EXPECT_EQ(device.longest_chain(), 16U);
  EXPECT_EQ(disk.flushes(), 1U);
}

TEST_F(RingTest, BadUsedEntriesBreakTheRingAndNothingElse) {
  struct Lie {
    const char* name;
    uint32_t id_offset;
    uint32_t id_or;
    uint32_t len;
  };
  for (const Lie& lie :
       {Lie{"id out of range", 0, 0x10000, 1}, Lie{"id not in flight", 2, 0, 1},
        Lie{"more written than writable", 0, 0, 2}, Lie{"length of 4 GiB", 0, 0, UINT32_MAX}}) {
    Make({.size = 8});
    const Segment chain[] = {{header_gpa, sizeof(wire::BlkHeader), false}, {status_gpa, 1, true}};
    const uint16_t head = ring->Add(chain, false, 1).value();
    AddFlush(2);
    ring->Publish();
    device.PushUsed((head + lie.id_offset * 2) | lie.id_or, lie.len);
    UsedEntry used;
    EXPECT_EQ(ring->Pop(&used), PopResult::kBroken) << lie.name;
    EXPECT_TRUE(ring->broken());
    EXPECT_FALSE(ring->broken_reason().empty());
    EXPECT_EQ(ring->Pop(&used), PopResult::kBroken) << "it stays broken";
  }
}

TEST_F(RingTest, SameUsedEntryTwiceBreaksTheRing) {
  Make({.size = 8});
  const Segment chain[] = {{header_gpa, sizeof(wire::BlkHeader), false}, {status_gpa, 1, true}};
  const uint16_t head = ring->Add(chain, false, 1).value();
  AddFlush(2);
  ring->Publish();
  device.PushUsed(head, 1);
  device.PushUsed(head, 1);
  UsedEntry used;
  EXPECT_EQ(ring->Pop(&used), PopResult::kDone);
  EXPECT_EQ(ring->Pop(&used), PopResult::kBroken);
}

TEST_F(RingTest, UsedIndexAheadOfWhatIsInFlightBreaksTheRing) {
  Make({.size = 8});
  AddFlush(1);
  ring->Publish();
  device.PushUsed(0, 1);
  device.PushUsed(0, 1);
  UsedEntry used;
  EXPECT_EQ(ring->Pop(&used), PopResult::kBroken);
}

TEST_F(RingTest, KicksOnlyWhenTheDeviceAsksForThem) {
  for (const bool event_idx : {false, true}) {
    Make({.size = 16, .event_idx = event_idx});
    AddFlush(1);
    EXPECT_TRUE(ring->Publish()) << "the device sleeps";
    if (!event_idx) memory->At<uint16_t>(ring->used_gpa())[0] = wire::kUsedNoNotify;
    AddFlush(2);
    EXPECT_FALSE(ring->Publish()) << "it was kicked and has not asked again";
    EXPECT_FALSE(ring->Publish()) << "nothing new";
    Serve();
    device.Rearm();
    memory->At<uint16_t>(ring->used_gpa())[0] = 0;
    AddFlush(3);
    EXPECT_TRUE(ring->Publish());
  }
}

TEST_F(RingTest, CallsOnlyWhileWaiting) {
  for (const bool event_idx : {false, true}) {
    Make({.size = 16, .event_idx = event_idx});
    AddFlush(1);
    ring->Publish();
    Serve();
    EXPECT_FALSE(device.WantsCall()) << "the driver polls";
    EXPECT_FALSE(ring->EnableCalls()) << "something is there";
    UsedEntry used;
    EXPECT_EQ(ring->Pop(&used), PopResult::kDone);
    EXPECT_TRUE(ring->EnableCalls());
    AddFlush(2);
    ring->Publish();
    Serve();
    EXPECT_TRUE(device.WantsCall());
    ring->DisableCalls();
  }
}

TEST_F(RingTest, WaitEndsAtItsTimeOut) {
  Make({.size = 8});
  EXPECT_FALSE(ring->WaitUsed(1));
}

// A device on another thread, both sides sleeping whenever they may: a lost kick or call would hang, which
// the waits' time-outs turn into a failure.
TEST_F(RingTest, NoWakeUpIsLost) {
  for (const bool event_idx : {false, true}) {
    Make({.size = 4, .event_idx = event_idx});
    constexpr uint64_t kRequests = 5'000;
    std::atomic<bool> stop = false;
    std::thread device_thread([&] {
      while (!stop) {
        Serve();
        const uint64_t one = 1;
        if (device.WantsCall()) {
          ASSERT_EQ(write(ring->call_fd(), &one, sizeof one), ssize_t{sizeof one});
        }
        if (device.Rearm()) continue;
        pollfd kick{.fd = ring->kick_fd(), .events = POLLIN, .revents = 0};
        poll(&kick, 1, -1);
        uint64_t count = 0;
        if (read(ring->kick_fd(), &count, sizeof count) < 0) continue;
      }
    });
    uint64_t done = 0;
    bool waited = true;
    for (uint64_t sent = 0; waited && done < kRequests;) {
      if (sent < kRequests && AddFlush(sent)) ++sent;
      ring->Submit();
      if (sent < kRequests && ring->free_descriptors() > 0) continue;
      waited = ring->WaitUsed(kWaitNs);
      for (UsedEntry used; ring->Pop(&used) == PopResult::kDone;) ++done;
    }
    EXPECT_EQ(done, kRequests);
    stop = true;
    ring->Kick();
    device_thread.join();
  }
}

TEST(DriverRingTest, RefusesImpossibleSizes) {
  auto memory = GuestMemory::CreateWithHole(8 * kMiB).value();
  for (const uint16_t size : {0, 3, 100, 65535}) {
    EXPECT_FALSE(DriverRing::Create(*memory, {.size = size}).ok()) << size;
  }
  EXPECT_TRUE(DriverRing::Create(*memory, {.size = DriverRing::kSizeMax}).ok());
}

}  // namespace
}  // namespace cleat::perf::driver_ring_test
