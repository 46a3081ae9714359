// SPDX-License-Identifier: Apache-2.0
// Disks of a pool that grow while an engine, which is played, has them.
#include <algorithm>

#include "base/mutex.h"
#include "control/validate/backends.h"
#include "pool_rig.h"
#include "reconciler_rig.h"

namespace cleat::control::pool_rig::pool_growth_test {
namespace {

constexpr uint32_t kExtents = 12;

class PoolGrowthTest : public ReconcilerRig {
 protected:
  void SetUp() override {
    const UniqueFd file(open(drive_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(OffsetOf(kExtents))), 0);
    state_->StartPoolThreads();
    engine_.set_filter([this](const engine::v1::Envelope& envelope) {
      const MutexLock lock(mutex_);
      return filter_ ? filter_(envelope) : envelope;
    });
    ASSERT_TRUE(engine_.Connect());
    ASSERT_TRUE(state_->pools().Create(NewPool("p", drive_)).ok());
    Await("the drive is erased", [&] { return ToErase() == 0; });
    ASSERT_TRUE(state_->controllers().Create(NewController("c")).ok());
    for (const char* disk : {"a", "between"}) ASSERT_TRUE(state_->disks().Create(PoolDisk(disk, 1)).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "c")).ok());
    ASSERT_TRUE(AwaitSize(kExtentBytes));
    (void)engine_.TakeRequests();
  }
  void TearDown() override { state_->StopPoolThreads(); }

  uint64_t ToErase() {
    v1::GetPoolRequest request;
    request.set_name("pools/p");
    const v1::Pool pool = state_->pools().Get(request).value();
    return pool.status().state() == v1::POOL_STATE_READY ? pool.status().to_erase_bytes() : UINT64_MAX;
  }
  Result<v1::Disk> Grow(uint64_t bytes) {
    v1::UpdateDiskRequest request;
    request.mutable_disk()->set_name("disks/a");
    request.mutable_disk()->mutable_spec()->set_size_bytes(bytes);
    request.mutable_update_mask()->add_paths("spec.size_bytes");
    return state_->disks().Update(request);
  }
  v1::Attachment Attachment() {
    v1::GetAttachmentRequest request;
    request.set_name("controllers/c/attachments/a");
    return state_->attachments().Get(request).value();
  }
  bool AwaitSize(uint64_t bytes) {
    Await("the guest has the size", [&] {
      const v1::AttachmentStatus status = Attachment().status();
      return status.state() == v1::ATTACHMENT_STATE_READY && status.size_bytes() == bytes &&
             status.message().empty();
    });
    return !HasFatalFailure();
  }
  pool::ExtentRuns ExtentsInEngine() {
    pool::ExtentRuns runs;
    const engine::v1::Disk disk = engine_.DiskAt("controllers/c", 0);
    for (const auto& run : disk.pool().extents()) runs.push_back({run.first(), run.count()});
    return runs;
  }
  pool::ExtentRuns ExtentsInMap() {
    PlainDrive drive(drive_);
    const auto label = pool::ReadLabel(drive);
    const auto map = pool::ReadMap(drive, **label);
    CLEAT_CHECK(map.ok() && map->has_value());
    const auto disk = std::find_if((*map)->disks.begin(), (*map)->disks.end(), [](const pool::MapDisk& d) {
      v1::Disk described;
      return described.ParseFromString(d.description) && described.name() == "disks/a";
    });
    return disk == (*map)->disks.end() ? pool::ExtentRuns() : disk->extents;
  }

  // What the engine's messages go through from now on.
  void SetFilter(FakeEngine::Filter filter) {
    const MutexLock lock(mutex_);
    filter_ = std::move(filter);
  }

  Mutex mutex_;
  FakeEngine::Filter filter_ CLEAT_GUARDED_BY(mutex_);
  const std::string drive_ = dir_ / "drive";
  const pool::ExtentRuns grown_{{0, 1}, {2, 2}};
};

TEST_F(PoolGrowthTest, TheEngineIsToldOfTheExtentsThatTheDriveHasAsTheDisks) {
  pool::ExtentRuns in_map;  // when the engine was told
  SetFilter([&](const engine::v1::Envelope& envelope) {
    if (envelope.has_resize_disk()) in_map = ExtentsInMap();
    return envelope;
  });
  const auto grown = Grow(2 * kExtentBytes + pool::kBlockBytes);
  ASSERT_TRUE(grown.ok()) << grown.error().message;
  EXPECT_EQ(ExtentsOf(grown->spec()), grown_);
  ASSERT_TRUE(AwaitSize(2 * kExtentBytes + pool::kBlockBytes));
  EXPECT_EQ(ExtentsInEngine(), grown_);
  EXPECT_EQ(in_map, grown_);
  // Within its last extent.
  ASSERT_TRUE(Grow(3 * kExtentBytes).ok());
  ASSERT_TRUE(AwaitSize(3 * kExtentBytes));
  EXPECT_EQ(ExtentsInEngine(), grown_);
  EXPECT_EQ(engine_.TakeRequests().size(), 2U);
  SetFilter(nullptr);
}

TEST_F(PoolGrowthTest, AnEngineThatCannotIsAskedAgain) {
  engine_.FailResizes(3);
  ASSERT_TRUE(Grow(2 * kExtentBytes).ok());
  Await("the attachment says so", [&] {
    const std::string message = Attachment().status().message();
    return message.find("the guest does not listen") != std::string::npos ||
           Attachment().status().size_bytes() == 2 * kExtentBytes;
  });
  ASSERT_TRUE(AwaitSize(2 * kExtentBytes));
  EXPECT_EQ(engine_.TakeRequests().size(), 4U);
}

// The engine here is one of an older version: it does not see what it does not know of a message.
TEST_F(PoolGrowthTest, AnEngineThatKnowsNoExtentsServesTheDiskAsItWas) {
  SetFilter([](const engine::v1::Envelope& envelope) {
    engine::v1::Envelope known = envelope;
    if (known.has_resize_disk()) known.mutable_resize_disk()->clear_extents();
    return known;
  });
  ASSERT_TRUE(Grow(2 * kExtentBytes).ok());
  Await("the attachment says so", [&] {
    const v1::AttachmentStatus status = Attachment().status();
    return status.message().find("its extents have") != std::string::npos &&
           status.size_bytes() == kExtentBytes;
  });
  EXPECT_EQ(ExtentsInEngine(), (pool::ExtentRuns{{0, 1}}));
  // The next version's takes its place.
  engine_.Die();
  SetFilter(nullptr);
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(AwaitSize(2 * kExtentBytes));
  EXPECT_EQ(ExtentsInEngine(), (pool::ExtentRuns{{0, 1}, {2, 1}}));
}

TEST_F(PoolGrowthTest, ACleatdThatEndsMeanwhileIsFollowedByOneThatGoesOn) {
  engine_.Hold("ResizeDisk");
  ASSERT_TRUE(Grow(2 * kExtentBytes).ok());
  engine_.WaitForRequest("ResizeDisk disks/a 134217728");
  state_->StopPoolThreads();
  Stop();
  engine_.DisconnectBeforeAnswers();
  Start();
  state_->StartPoolThreads();
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(AwaitSize(2 * kExtentBytes));
  EXPECT_EQ(ExtentsInEngine(), (pool::ExtentRuns{{0, 1}, {2, 1}}));
}

TEST_F(PoolGrowthTest, WhatThePoolHasNotIsRefusedAndTheDiskServesOn) {
  const auto refused = Grow((kExtents + 1) * kExtentBytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_POOL_FULL);
  ASSERT_TRUE(AwaitSize(kExtentBytes));
  EXPECT_TRUE(engine_.TakeRequests().empty());
}

}  // namespace
}  // namespace cleat::control::pool_rig::pool_growth_test
