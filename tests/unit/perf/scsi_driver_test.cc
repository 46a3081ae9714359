// SPDX-License-Identifier: Apache-2.0
#include "perf/driver/scsi_driver.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/random.h"
#include "fake_backend.h"
#include "fake_scsi.h"

namespace cleat::perf::scsi_driver_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBlocks = 8192;
constexpr uint64_t kWaitNs = 60 * kNsPerSecond;
constexpr scsi::Lun kDisk = scsi::LunOf(FakeScsi::kTarget);

struct ScsiDriverTest : ::testing::Test {
  void Start(const ScsiOptions& options = {}) {
    auto [ours, theirs] = SocketPair();
    frontend = Frontend::Wrap(std::move(ours));
    FakeBackendOptions backend_options;
    backend_options.queues = FakeBackend::kQueuesMax;
    backend_options.features = kDefaultScsiFeatures | wire::kFeatureProtocolFeatures;
    backend_options.protocol_features = kDefaultProtocolFeatures & ~wire::kProtocolConfig;
    backend = std::make_unique<FakeBackend>(std::move(theirs), device, backend_options);
    ASSERT_TRUE(frontend->Open().ok());
    auto started = ScsiDriver::Start(*frontend, *memory, options);
    ASSERT_TRUE(started.ok()) << started.error().message;
    driver = std::move(*started);
  }
  void End() {
    if (driver == nullptr) return;
    EXPECT_TRUE(driver->Health().ok());
    if (!frontend->PeerGone()) {
      EXPECT_TRUE(driver->Stop().ok());
    }
    backend.reset();
    driver.reset();
  }
  void TearDown() override { End(); }

  FakeScsi device{kBlocks};
  std::unique_ptr<GuestMemory> memory = GuestMemory::CreateWithHole(64 * kMiB).value();
  std::unique_ptr<FakeBackend> backend;
  std::unique_ptr<Frontend> frontend;
  std::unique_ptr<ScsiDriver> driver;
};

TEST_F(ScsiDriverTest, FindsTheDiskAndItsUnitAttention) {
  Start({.num_queues = 2});
  EXPECT_EQ(driver->request_queues(), 2);
  EXPECT_EQ(driver->ScanTargets().value(), std::vector<uint8_t>{FakeScsi::kTarget});
  EXPECT_EQ(driver->ClearUnitAttentions(kDisk).value(), std::vector<uint16_t>{scsi::kAscPowerOnOrReset});
  EXPECT_TRUE(driver->ClearUnitAttentions(kDisk)->empty());
  const ScsiDriver::Capacity capacity = driver->ReadCapacity(kDisk).value();
  EXPECT_EQ(capacity.blocks, kBlocks);
  EXPECT_EQ(capacity.block_bytes, FakeScsi::kBlockBytes);
}

TEST_F(ScsiDriverTest, AllLayoutsCarryTheSameData) {
  Random random(3);
  for (const LayoutPolicy layout :
       {LayoutPolicy::kClassic, LayoutPolicy::kIndirect, LayoutPolicy::kAnyLayout}) {
    Start({.queue_size = 64, .layout = layout, .layout_seed = 11});
    ASSERT_TRUE(driver->ClearUnitAttentions(kDisk).ok());
    const ScsiDriver::Capacity capacity = driver->ReadCapacity(kDisk).value();
    for (int i = 0; i < 200; ++i) {
      const uint64_t blocks = random.Between(1, 64);
      const uint64_t lba = random.Below(kBlocks - blocks);
      std::vector<uint8_t> data(blocks * FakeScsi::kBlockBytes);
      for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.Next());
      std::vector<uint8_t> back(data.size());
      ASSERT_TRUE(driver->WriteSync(kDisk, capacity, lba, data).ok());
      ASSERT_TRUE(driver->ReadSync(kDisk, capacity, lba, back).ok());
      ASSERT_EQ(back, data);
    }
    EXPECT_EQ(driver->stats().used_length_mismatches, 0U);
    End();
  }
}

TEST_F(ScsiDriverTest, AnswersAreTold) {
  Start();
  ASSERT_TRUE(driver->ClearUnitAttentions(kDisk).ok());
  const ScsiCompletion unknown = driver->Execute(kDisk, scsi::Cdb{0x77}).value();
  EXPECT_TRUE(unknown.Is(scsi::kIllegalRequest, scsi::kAscInvalidOpcode)) << unknown.ToString();
  const ScsiCompletion nobody = driver->Execute(scsi::LunOf(5), scsi::TestUnitReady()).value();
  EXPECT_EQ(nobody.response, wire::kScsiBadTarget);
  // Less data than there is room for.
  std::vector<uint8_t> data(96);
  const ScsiCompletion inquiry = driver->Execute(kDisk, scsi::Inquiry(), {}, data).value();
  EXPECT_TRUE(inquiry.good());
  EXPECT_EQ(inquiry.residual, 60U);
  EXPECT_EQ(inquiry.written_bytes, sizeof(wire::ScsiAnswer) + 36);
  EXPECT_EQ(driver->stats().failed, 3U);
}

TEST_F(ScsiDriverTest, TaskManagementAndEventsHaveTheirOwnQueues) {
  Start();
  ASSERT_TRUE(driver->ClearUnitAttentions(kDisk).ok());
  EXPECT_EQ(driver->Tmf(wire::kTmfAbortTask, kDisk, 42).value(), wire::kScsiFunctionSucceeded);
  EXPECT_EQ(driver->Tmf(wire::kTmfLunReset, scsi::LunOf(7)).value(), wire::kScsiBadTarget);
  EXPECT_EQ(driver->WaitEvent(0).error().code, ErrorCode::kDeadlineExceeded);
  // More events than there are buffers at once: each comes back to the device.
  for (int i = 0; i < 3 * ScsiDriver::kEventBuffers; ++i) {
    ASSERT_TRUE(driver->Execute(kDisk, scsi::StartStopUnit(true))->good());
    const wire::ScsiEvent event = driver->WaitEvent(kWaitNs).value();
    ASSERT_EQ(event.event, wire::kScsiParamChange);
    ASSERT_EQ(event.reason, wire::kScsiCapacityChanged);
    ASSERT_EQ(event.lun[1], FakeScsi::kTarget);
  }
  End();
  const std::vector<std::pair<uint32_t, uint64_t>> expected = {{wire::kTmfAbortTask, 42},
                                                               {wire::kTmfLunReset, 0}};
  EXPECT_EQ(device.tmfs(), expected);
}

TEST_F(ScsiDriverTest, EventsThatNobodyTakesDoNotStopCommands) {
  Start();
  ASSERT_TRUE(driver->ClearUnitAttentions(kDisk).ok());
  for (uint64_t token = 0; token < 100; ++token) {
    ASSERT_TRUE(driver->Submit(0, {.lun = kDisk, .cdb = scsi::StartStopUnit(true), .token = token}));
  }
  driver->Kick(0);
  std::map<uint64_t, int> seen;
  std::vector<ScsiCompletion> batch(16);
  while (seen.size() < 100) {
    ASSERT_TRUE(driver->Wait(kWaitNs).ok());
    for (size_t i = driver->Poll(0, batch); i-- > 0;) ++seen[batch[i].token];
  }
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(driver->WaitEvent(kWaitNs).ok()) << i;
}

TEST_F(ScsiDriverTest, CompletionsAreKeptWhileAnEventIsAwaited) {
  Start();
  ASSERT_TRUE(driver->ClearUnitAttentions(kDisk).ok());
  for (uint64_t token = 1; token <= 3; ++token) {
    ASSERT_TRUE(driver->Submit(0, {.lun = kDisk, .cdb = scsi::StartStopUnit(true), .token = token}));
  }
  driver->Kick(0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(driver->WaitEvent(kWaitNs).ok());
  ASSERT_TRUE(driver->Execute(kDisk, scsi::TestUnitReady())->good());
  std::vector<ScsiCompletion> batch(8);
  ASSERT_TRUE(driver->Wait(kWaitNs).ok());
  ASSERT_EQ(driver->Poll(0, batch), 3U);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(batch[i].token, i + 1);
}

TEST_F(ScsiDriverTest, ARequestOfAnotherShape) {
  Start({.io_timeout_ns = 50 * kNsPerMs});
  RequestShape no_room = kScsiShape;
  no_room.answer_bytes = 0;
  EXPECT_FALSE(driver->Execute({.lun = kDisk, .cdb = scsi::TestUnitReady(), .shape = no_room}).ok());
  frontend->Disconnect();
  backend->Join();
  EXPECT_TRUE(backend->any_ring_broken());
  driver.reset();
}

TEST(ScsiCdbTest, FieldsAreWhereTheStandardHasThem) {
  EXPECT_EQ(scsi::Read10(0x01020304, 0x0506, scsi::kFua), (scsi::Cdb{0x28, 8, 1, 2, 3, 4, 0, 5, 6}));
  EXPECT_EQ(scsi::Write12(0x01020304, 0x05060708), (scsi::Cdb{0xaa, 0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(scsi::Write16(0x0102030405060708, 0x090a0b0c),
            (scsi::Cdb{0x8a, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(scsi::Read6(0x1fffff, 3), (scsi::Cdb{0x08, 0x1f, 0xff, 0xff, 3}));
  EXPECT_EQ(scsi::CompareAndWrite(1, 2), (scsi::Cdb{0x89, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2}));
  EXPECT_EQ(scsi::Unmap(24), (scsi::Cdb{0x42, 0, 0, 0, 0, 0, 0, 0, 24}));
  EXPECT_EQ(scsi::InquiryVpd(0x83, 256), (scsi::Cdb{0x12, 1, 0x83, 1, 0}));
  EXPECT_EQ(scsi::LunOf(3, 0x123), (scsi::Lun{1, 3, 0x41, 0x23}));
}

}  // namespace
}  // namespace cleat::perf::scsi_driver_test
