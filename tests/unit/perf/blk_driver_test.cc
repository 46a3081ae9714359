// SPDX-License-Identifier: Apache-2.0
#include "perf/driver/blk_driver.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/random.h"
#include "fake_backend.h"

namespace cleat::perf::blk_driver_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kDiskBytes = 4 * kMiB;
constexpr uint64_t kWaitNs = 60 * kNsPerSecond;

std::vector<uint8_t> RandomBytes(Random& random, size_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
  return bytes;
}

struct BlkDriverTest : ::testing::Test {
  void Connect(const FakeBackendOptions& options = {}) {
    auto [ours, theirs] = SocketPair();
    if (frontend == nullptr) {
      frontend = Frontend::Wrap(std::move(ours));
    } else {
      frontend->Adopt(std::move(ours));
    }
    backend = std::make_unique<FakeBackend>(std::move(theirs), disk, options);
    ASSERT_TRUE(frontend->Open().ok());
  }
  void Start(const BlkOptions& options = {}) {
    auto started = BlkDriver::Start(*frontend, *memory, options);
    ASSERT_TRUE(started.ok()) << started.error().message;
    driver = std::move(*started);
  }
  void TearDown() override {
    if (driver && !frontend->PeerGone()) {
      EXPECT_TRUE(driver->Stop().ok());
    }
    backend.reset();
  }

  FakeDisk disk{kDiskBytes};
  std::unique_ptr<GuestMemory> memory = GuestMemory::CreateWithHole(64 * kMiB).value();
  std::unique_ptr<FakeBackend> backend;
  std::unique_ptr<Frontend> frontend;
  std::unique_ptr<BlkDriver> driver;
};

TEST_F(BlkDriverTest, EveryOperation) {
  Connect();
  Start();
  EXPECT_EQ(driver->capacity_bytes(), kDiskBytes);
  Random random(1);
  const std::vector<uint8_t> data = RandomBytes(random, kMiB);  // more than one chunk
  ASSERT_TRUE(driver->WriteSync(8192, data).ok());
  std::vector<uint8_t> back(kMiB);
  ASSERT_TRUE(driver->ReadSync(8192, back).ok());
  EXPECT_EQ(back, data);
  ASSERT_TRUE(driver->FlushSync().ok());
  EXPECT_EQ(driver->GetIdSync().value(), "fake-disk-0123456789");
  ASSERT_TRUE(driver->DiscardSync(8192, 4096).ok());
  ASSERT_TRUE(driver->WriteZeroesSync(8192 + 4096, 4096, true).ok());
  std::vector<uint8_t> zeroes(8192);
  ASSERT_TRUE(driver->ReadSync(8192, zeroes).ok());
  EXPECT_EQ(zeroes, std::vector<uint8_t>(8192));
  EXPECT_EQ(driver->ReadSync(kDiskBytes, zeroes).error().code, ErrorCode::kIo);
  EXPECT_EQ(driver->ExecuteRaw(0, 77, 0, {})->status, wire::kBlkUnsupported);
  EXPECT_EQ(driver->stats().used_length_mismatches, 0U);
  EXPECT_EQ(driver->stats().failed, 2U);
  EXPECT_EQ(driver->in_flight(0), 0U);
}

TEST_F(BlkDriverTest, AllLayoutsAllTransportFeatures) {
  for (const LayoutPolicy layout :
       {LayoutPolicy::kClassic, LayoutPolicy::kIndirect, LayoutPolicy::kAnyLayout}) {
    for (const uint64_t without : {uint64_t{0}, wire::kFeatureEventIdx, wire::kFeatureIndirectDesc,
                                   wire::kFeatureEventIdx | wire::kFeatureIndirectDesc}) {
      std::vector<uint8_t> model = disk.bytes();
      Connect();
      Start(
          {.queue_size = 64, .features = kDefaultBlkFeatures & ~without, .layout = layout, .layout_seed = 5});
      Random random(without + 1);
      for (int i = 0; i < 100; ++i) {
        const size_t bytes = wire::kSectorBytes * random.Between(1, 64);
        const uint64_t offset = wire::kSectorBytes * random.Below((kDiskBytes - bytes) / wire::kSectorBytes);
        const auto at = model.begin() + static_cast<ptrdiff_t>(offset);
        if (random.Chance(1, 2)) {
          const std::vector<uint8_t> data = RandomBytes(random, bytes);
          ASSERT_TRUE(driver->WriteSync(offset, data).ok());
          std::copy(data.begin(), data.end(), at);
        } else {
          std::vector<uint8_t> data(bytes);
          ASSERT_TRUE(driver->ReadSync(offset, data).ok());
          ASSERT_TRUE(std::equal(data.begin(), data.end(), at));
        }
      }
      EXPECT_EQ(driver->stats().used_length_mismatches, 0U);
      ASSERT_TRUE(driver->Stop().ok());
      backend.reset();
      EXPECT_EQ(disk.bytes(), model);
      driver.reset();
    }
  }
}

TEST_F(BlkDriverTest, ManyRequestsOnManyQueues) {
  Connect({.queues = 4});
  Start({.num_queues = 4, .layout = LayoutPolicy::kAnyLayout});
  const uint64_t buffer = driver->AllocateBuffer(512).value();
  std::map<uint64_t, int> seen;
  uint64_t sent = 0;
  constexpr uint64_t kRequests = 4000;
  std::vector<BlkCompletion> batch(16);
  while (seen.size() < kRequests) {
    for (uint16_t queue = 0; queue < 4; ++queue) {
      while (sent < kRequests &&
             driver->Submit(queue, {.length_bytes = 512, .data_gpa = buffer, .token = sent}))
        ++sent;
      driver->Kick(queue);
    }
    ASSERT_TRUE(driver->Wait(kWaitNs).ok());
    for (uint16_t queue = 0; queue < 4; ++queue) {
      for (size_t i = driver->Poll(queue, batch); i-- > 0;) {
        EXPECT_EQ(batch[i].status, wire::kBlkOk);
        EXPECT_EQ(++seen[batch[i].token], 1) << "completed twice";
      }
    }
  }
  EXPECT_TRUE(driver->Health().ok());
  EXPECT_GT(driver->ring(3).stats().chains, 0U);
}

TEST_F(BlkDriverTest, SynchronousHelpersKeepOthersCompletions) {
  Connect();
  Start();
  const uint64_t buffer = driver->AllocateBuffer(512).value();
  for (uint64_t token = 1; token <= 3; ++token) {
    ASSERT_TRUE(driver->Submit(0, {.length_bytes = 512, .data_gpa = buffer, .token = token}));
  }
  ASSERT_TRUE(driver->FlushSync().ok());
  ASSERT_TRUE(driver->Wait(kWaitNs).ok());
  std::vector<BlkCompletion> batch(8);
  ASSERT_EQ(driver->Poll(0, batch), 3U);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(batch[i].token, i + 1);
}

TEST_F(BlkDriverTest, StopAndResume) {
  Connect();
  Start();
  const std::vector<uint8_t> data(4096, 0x11);
  EXPECT_FALSE(driver->Resume().ok()) << "not stopped";
  ASSERT_TRUE(driver->WriteSync(0, data).ok());
  ASSERT_TRUE(driver->Stop().ok());
  ASSERT_TRUE(driver->Resume().ok());
  std::vector<uint8_t> back(4096);
  ASSERT_TRUE(driver->ReadSync(0, back).ok());
  EXPECT_EQ(back, data);
}

TEST_F(BlkDriverTest, AfterAResetTheRingsAreEmptyAndBeginAnew) {
  Connect();
  Start();
  const std::vector<uint8_t> data(4096, 0x22);
  ASSERT_TRUE(driver->WriteSync(0, data).ok());
  EXPECT_FALSE(driver->StartAnew().ok()) << "not stopped";
  const uint64_t buffer = driver->AllocateBuffer(512).value();
  ASSERT_TRUE(driver->Submit(0, {.length_bytes = 512, .data_gpa = buffer, .token = 7}));
  driver->Kick(0);
  const Deadline deadline(kWaitNs);
  while (!driver->ring(0).HasUsed() && !deadline.passed()) std::this_thread::yield();
  ASSERT_TRUE(driver->ring(0).HasUsed()) << "the request was not answered";
  ASSERT_TRUE(driver->Stop().ok());
  const Status left = driver->StartAnew();
  ASSERT_FALSE(left.ok()) << "a request is there to be polled";
  EXPECT_EQ(left.error().code, ErrorCode::kFailedPrecondition);
  std::vector<BlkCompletion> batch(8);
  ASSERT_EQ(driver->Poll(0, batch), 1U);
  ASSERT_TRUE(driver->StartAnew().ok());
  std::vector<uint8_t> back(4096);
  ASSERT_TRUE(driver->ReadSync(0, back).ok());
  EXPECT_EQ(back, data);
}

TEST_F(BlkDriverTest, ANewDriverOnTheSameConnectionIsAReboot) {
  Connect();
  Start({.queue_size = 16, .layout = LayoutPolicy::kClassic});
  ASSERT_TRUE(driver->FlushSync().ok());
  ASSERT_TRUE(driver->Stop().ok());
  driver.reset();
  Start({.queue_size = 256});
  EXPECT_TRUE(driver->FlushSync().ok());
}

TEST_F(BlkDriverTest, MemoryComesAndGoesUnderTheDisk) {
  Connect();
  Start();
  constexpr uint64_t kPlugged = 8ULL << 30;
  ASSERT_TRUE(memory->AddRegion({.gpa = kPlugged, .size_bytes = kMiB}).ok());
  const uint64_t buffer = memory->AllocateIn(kPlugged, 4096, 4096).value();
  const BlkIo read{.op = BlkOp::kRead, .length_bytes = 4096, .data_gpa = buffer};
  ASSERT_TRUE(driver->UpdateMemory().ok());
  EXPECT_EQ(driver->Execute(0, read)->status, wire::kBlkOk);
  memory->Free(buffer, 4096);
  ASSERT_TRUE(memory->RemoveRegion(kPlugged).ok());
  ASSERT_TRUE(driver->UpdateMemory().ok());
  EXPECT_TRUE(driver->FlushSync().ok()) << "the rings were elsewhere";
}

TEST_F(BlkDriverTest, BackEndThatDiesIsReportedAndItsSuccessorGoesOn) {
  Connect({.dies_after_requests = 5});
  Start({.queue_size = 32, .layout = LayoutPolicy::kClassic});
  const uint64_t buffer = driver->AllocateBuffer(512).value();
  for (uint64_t token = 0; token < 10; ++token) {
    ASSERT_TRUE(
        driver->Submit(0, {.op = BlkOp::kWrite, .length_bytes = 512, .data_gpa = buffer, .token = token}));
  }
  driver->Kick(0);
  std::vector<BlkCompletion> batch(16);
  size_t done = 0;
  Status waited;
  while ((waited = driver->Wait(kWaitNs)).ok()) done += driver->Poll(0, batch);
  EXPECT_EQ(waited.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(done, 5U);
  backend->Join();
  EXPECT_TRUE(backend->inflight_was_given());

  // As Reconnect does it; the connection comes from a socket pair here.
  auto [ours, theirs] = SocketPair();
  frontend->Adopt(std::move(ours));
  FakeBackend successor(std::move(theirs), disk);
  ASSERT_TRUE(frontend->Open().ok());
  ASSERT_NE(frontend->inflight(), nullptr) << "kept over the connection's end";
}

TEST_F(BlkDriverTest, ReconnectsByItselfWhenAskedTo) {
  const std::string path =
      ::testing::TempDir() + "cleat-perf-reconnect-" + std::to_string(getpid()) + ".sock";
  frontend = Frontend::Listen(path).value();
  backend = std::make_unique<FakeBackend>(ConnectUnix(path, kWaitNs).value(), disk,
                                          FakeBackendOptions{.dies_after_requests = 3});
  Start({.layout = LayoutPolicy::kAnyLayout, .auto_reconnect = true});
  // The successor waits in the backlog, as a standby does.
  FakeBackend successor(ConnectUnix(path, kWaitNs).value(), disk);
  const std::vector<uint8_t> data(512, 0x77);
  for (uint64_t i = 0; i < 10; ++i) ASSERT_TRUE(driver->WriteSync(i * 512, data).ok()) << i;
  EXPECT_EQ(driver->stats().reconnects, 1U);
  ASSERT_TRUE(driver->Stop().ok());
  frontend->Disconnect();
  successor.Join();
  backend->Join();
  EXPECT_EQ(backend->served(), 3U);
  EXPECT_EQ(successor.served(), 7U);
  EXPECT_FALSE(successor.inflight_was_given()) << "the first one's was sent again";
  driver.reset();
}

// The guest does not learn that its front end has a new back end: what nobody calls for stays unseen, also when it lies
// in the ring.
TEST_F(BlkDriverTest, AGuestLearnsByCallsAlone) {
  for (const bool calls : {true, false}) {
    Connect({.calls = calls});
    Start();
    const uint64_t buffer = driver->AllocateBuffer(512).value();
    std::vector<BlkCompletion> batch(4);
    EXPECT_EQ(driver->WaitAsGuest(0, 1).error().code, ErrorCode::kDeadlineExceeded) << "and is asleep now";
    EXPECT_FALSE(driver->awake(0));
    ASSERT_TRUE(driver->Submit(0, {.op = BlkOp::kWrite, .length_bytes = 512, .data_gpa = buffer}));
    driver->Kick(0);
    const Deadline deadline(kWaitNs);
    while (driver->ring(0).device_used_idx() == 0 && !deadline.passed()) std::this_thread::yield();
    if (calls) {
      EXPECT_TRUE(driver->WaitAsGuest(0, kWaitNs).ok());
      EXPECT_TRUE(driver->awake(0));
      EXPECT_EQ(driver->Poll(0, batch), 1U);
    } else {
      EXPECT_EQ(driver->WaitAsGuest(0, kNsPerMs).error().code, ErrorCode::kDeadlineExceeded);
      EXPECT_FALSE(driver->awake(0));
    }
    TearDown();
    driver.reset();
  }
}

// A ring that always has something keeps no call of another one from being heard.
TEST_F(BlkDriverTest, AGuestHearsACallBesideABusyRing) {
  Connect({.queues = 2});
  Start({.num_queues = 2});
  const uint64_t buffer = driver->AllocateBuffer(512).value();
  const auto answered = [&](uint16_t queue, uint16_t index) {
    ASSERT_TRUE(driver->Submit(queue, {.op = BlkOp::kWrite, .length_bytes = 512, .data_gpa = buffer}));
    driver->Kick(queue);
    const Deadline deadline(kWaitNs);
    while (driver->ring(queue).device_used_idx() != index && !deadline.passed()) std::this_thread::yield();
  };
  EXPECT_EQ(driver->WaitAsGuest(0, 1).error().code, ErrorCode::kDeadlineExceeded) << "both are asleep";
  answered(0, 1);
  EXPECT_TRUE(driver->WaitAsGuest(0, kWaitNs).ok());
  ASSERT_TRUE(driver->awake(0));
  answered(1, 1);
  const Deadline deadline(kWaitNs);
  while (!driver->awake(1) && !deadline.passed()) EXPECT_TRUE(driver->WaitAsGuest(0, kWaitNs).ok());
  EXPECT_TRUE(driver->awake(1));
}

TEST_F(BlkDriverTest, ARingsBaseAfterADeathIsWhatQemuKnows) {
  const std::string path = ::testing::TempDir() + "cleat-perf-base-" + std::to_string(getpid()) + ".sock";
  for (const bool packed : {false, true}) {
    frontend = Frontend::Listen(path).value();
    const uint64_t features = FakeBackendOptions().features | wire::kFeatureRingPacked;
    const FakeBackendOptions silent{.features = features, .serves = false};
    FakeBackendOptions first = silent;
    if (!packed) first = {.features = features, .dies_after_requests = 3};  // it serves split rings alone
    backend = std::make_unique<FakeBackend>(ConnectUnix(path, kWaitNs).value(), disk, first);
    Start({.packed = packed, .auto_reconnect = true});
    const uint64_t buffer = driver->AllocateBuffer(512).value();
    for (uint64_t token = 0; token < 5; ++token) {
      ASSERT_TRUE(
          driver->Submit(0, {.op = BlkOp::kWrite, .length_bytes = 512, .data_gpa = buffer, .token = token}));
    }
    driver->Kick(0);
    if (packed) {
      backend.reset();
    } else {
      backend->Join();
    }
    FakeBackend successor(ConnectUnix(path, kWaitNs).value(), disk, silent);
    ASSERT_TRUE(driver->Reconnect().ok());
    frontend->Disconnect();
    successor.Join();
    const uint32_t expected = packed ? 0x80008000 : 3;
    EXPECT_EQ(successor.bases(), std::vector<uint32_t>{expected});
    EXPECT_FALSE(successor.inflight_was_given()) << "the first one's was sent again";
    driver.reset();
    frontend.reset();
  }
}

TEST_F(BlkDriverTest, RefusesWhatTheDeviceHasNot) {
  Connect({.queues = 2});
  EXPECT_EQ(BlkDriver::Start(*frontend, *memory, {.num_queues = 3}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(BlkDriver::Start(*frontend, *memory, {.num_queues = 0}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(BlkDriver::Start(*frontend, *memory, {.features = wire::kBlkFlush}).error().code,
            ErrorCode::kFailedPrecondition);
}

TEST_F(BlkDriverTest, DestructionGivesAllGuestMemoryBack) {
  const uint64_t half = memory->Table()[0].size_bytes;
  Connect();
  Start();
  ASSERT_TRUE(driver->Stop().ok());
  EXPECT_FALSE(memory->AllocateIn(0, half, 1).ok());
  driver.reset();
  EXPECT_TRUE(memory->AllocateIn(0, half, 1).ok());
}

}  // namespace
}  // namespace cleat::perf::blk_driver_test
