// SPDX-License-Identifier: Apache-2.0
// A session whose disks are somebody else's for now: no ring starts before they are its own, and they are handed off when
// the last ring was stopped in a migration, and then only.
#include "vhost/ownership.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host.h"
#include "perf/wire/virtio_blk.h"
#include "perf/wire/virtqueue.h"
#include "ring_guest.h"
#include "vhost/session.h"

namespace cleat::vhost::test::ownership_test {
namespace {

constexpr uint64_t kFeatures = kFeatureProtocolFeatures | perf::wire::kFeatureVersion1;
constexpr uint64_t kLogBytes = 1 << 18;

// Keeps what it was told, in order; on control.
class FakeOwnership final : public Ownership {
 public:
  bool owned() const override { return owned_; }
  void Learn(const DriverMemory& memory) override { learnt = memory; }
  void AcquireAsync(std::function<void()> on_owned) override {
    calls += "acquire ";
    on_owned_ = std::move(on_owned);
  }
  void CancelAcquire() override {
    calls += "cancel ";
    on_owned_ = {};
  }
  void HandOff() override {
    calls += "hand off ";
    on_owned_ = {};
    owned_ = false;
  }
  std::string pending_reason() const override { return "another host has it"; }

  void Own() {
    owned_ = true;
    if (on_owned_) on_owned_();
  }
  void Hold() { owned_ = true; }

  std::string calls;
  DriverMemory learnt;

 private:
  bool owned_ = false;
  std::function<void()> on_owned_;
};

class OwnershipTest : public testing::Test {
 protected:
  static constexpr uint32_t kRings = 3;
  static constexpr DiskIdentity kDisk = DiskIdentity::Of(1, 7);

  OwnershipTest() : guest(kRings) { Begin(kDisk); }
  void Begin(DiskIdentity disk) {
    host.control_thread().Call([&] {
      Session::Options options;
      options.name = "controllers/c";
      options.io_reactors = host.io_reactors();
      options.ownership = &ownership;
      session =
          std::make_unique<Session>(options, host.control(), host.pool(), host.AddModel(kRings, disk), [] {});
      session->OnOwned([this] { ++woken; });
    });
  }
  ~OwnershipTest() override { EndSession(); }

  template <typename F>
  auto Do(F make) {
    using T = decltype(make().operator co_await().await_resume());
    return host.control_thread().Await<T>(make);
  }
  void SetUp() override {
    EXPECT_TRUE(Do([&] { return session->SetFeatures(kFeatures); }).ok());
    std::vector<MemoryTableRegion> regions;
    std::vector<UniqueFd> files;
    for (const auto& region : guest.memory->Table()) {
      regions.push_back({region.gpa, region.size_bytes, region.user_addr, region.mmap_offset_bytes});
    }
    for (const int fd : guest.memory->Fds()) files.emplace_back(dup(fd));
    EXPECT_TRUE(Do([&] { return session->MapMemory(regions, files); }).ok());
  }

  void EndSession() {
    if (session == nullptr) return;
    host.control_thread().Await<void>([&] { return session->End(); });
    host.control_thread().Call([&] { session.reset(); });
  }
  void Own() {
    host.control_thread().Call([&] { ownership.Own(); });
  }
  uint32_t Up() {
    uint32_t up = 0;
    host.control_thread().Call([&] { up = session->rings_up(); });
    return up;
  }
  bool Waits() {
    bool waits = false;
    host.control_thread().Call([&] { waits = session->waits(); });
    return waits;
  }
  void StartRing(uint32_t i, uint32_t base = 0) {
    const perf::DriverRing& ring = *guest.rings[i];
    const VringAddresses addresses{i,
                                   0,
                                   guest.memory->UserAddress(ring.desc_gpa()),
                                   guest.memory->UserAddress(ring.used_gpa()),
                                   guest.memory->UserAddress(ring.avail_gpa()),
                                   0};
    EXPECT_TRUE(Do([&] { return session->SetRingSize(i, ring.size()); }).ok());
    EXPECT_TRUE(Do([&] { return session->SetRingBase(i, base); }).ok());
    EXPECT_TRUE(Do([&] { return session->SetRingAddresses(addresses); }).ok());
    EXPECT_TRUE(Do([&] { return session->SetRingCall(i, UniqueFd(dup(ring.call_fd()))); }).ok());
    EXPECT_TRUE(Do([&] { return session->SetRingKick(i, UniqueFd(dup(ring.kick_fd()))); }).ok());
    EXPECT_TRUE(Do([&] { return session->EnableRing(i, true); }).ok());
  }
  uint32_t StopRing(uint32_t i) {
    const auto base = Do([&] { return session->StopRing(i); });
    EXPECT_TRUE(base.ok());
    return base.ok() ? *base : 0;
  }
  void BeginLog() {
    UniqueFd file(memfd_create("log", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(file.get(), kLogBytes), 0);
    LogDescription log{};
    log.size_bytes = kLogBytes;
    ASSERT_TRUE(Do([&] { return session->SetLog(log, file); }).ok());
    ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures | kFeatureLogAll); }).ok());
  }

  Host host{2};
  Guest guest;
  FakeOwnership ownership;
  std::unique_ptr<Session> session;
  int woken = 0;
};

TEST_F(OwnershipTest, NoRingStartsBeforeTheDisksAreOwned) {
  for (uint32_t i = 0; i < kRings; ++i) StartRing(i);
  EXPECT_EQ(Up(), 0U);
  EXPECT_TRUE(Waits());
  EXPECT_EQ(ownership.calls, "acquire ");
  const uint64_t buffer = guest.Allocate(1ULL << 32, kBlockBytes);
  guest.Submit(0, perf::wire::kBlkIn, 0, buffer);

  Own();
  EXPECT_EQ(woken, 1);
  EXPECT_TRUE(Do([&] { return session->StartWaiting(); }).ok());
  EXPECT_EQ(Up(), kRings);
  EXPECT_FALSE(Waits());
  EXPECT_EQ(guest.Complete(0), 0) << "what was offered meanwhile is served";
  EXPECT_EQ(ownership.calls, "acquire ");
}

// ---- What the connection shows of what the driver still has under way

class DriverMemoryTest : public OwnershipTest {
 protected:
  DriverMemoryTest() {
    host.control_thread().Call([&] { ownership.Hold(); });
  }
  // As QEMU: it asks for a region at the first start of the device, and hands the same one in from then on.
  void HandIn() {
    if (!area.file) {
      host.control_thread().Call([&] { area = std::move(session->MakeInflight(kRings, 64).value()); });
    }
    ASSERT_TRUE(Do([&] { return session->SetInflight(area.description, area.file); }).ok());
  }
  void Reconnect(DiskIdentity disk = kDisk) {
    EndSession();
    Begin(disk);
    OwnershipTest::SetUp();
  }
  DriverMemory Learnt() {
    DriverMemory memory;
    host.control_thread().Call([&] { memory = ownership.learnt; });
    return memory;
  }

  Session::InflightArea area;
};

TEST_F(DriverMemoryTest, AGuestThatHasJustComeUpRemembersNothing) {
  HandIn();
  StartRing(0);
  StartRing(1);
  EXPECT_EQ(Learnt(), (DriverMemory{.of_this_disk = true, .used_log = true, .new_log = true}))
      << "the first ring has begun to use the region";
  Reconnect();
  area = {};
  HandIn();
  StartRing(0);
  EXPECT_EQ(Learnt(), (DriverMemory{.new_log = true}));
  EXPECT_TRUE(Learnt().forgotten());
}

TEST_F(DriverMemoryTest, ARegionThatWasUsedSaysWhoseRequestsItHas) {
  HandIn();
  StartRing(0);
  Reconnect();
  HandIn();
  StartRing(0);
  EXPECT_TRUE(Learnt().of_this_disk && Learnt().used_log && !Learnt().of_another_disk &&
              !Learnt().forgotten());
  Reconnect(DiskIdentity::Of(1, 8));
  HandIn();
  host.control_thread().Call([&] { ownership.HandOff(); });  // it would be refused by the ring
  StartRing(0);
  EXPECT_TRUE(Learnt().of_another_disk && !Learnt().of_this_disk && !Learnt().forgotten());
  Reconnect(DiskIdentity::Of(2, 8));
  HandIn();
  StartRing(0);
  EXPECT_FALSE(Learnt().of_another_disk) << "another store's numbers say nothing";
  EXPECT_TRUE(Learnt().used_log);
}

// What a guest has queued before another disk is attached is for the first disk, though nobody has fetched it.
TEST_F(DriverMemoryTest, ARegionSaysWhoseGuestItWasMadeForBeforeAnyRingIsServed) {
  HandIn();
  Reconnect(DiskIdentity::Of(1, 8));
  HandIn();
  host.control_thread().Call([&] { ownership.HandOff(); });
  StartRing(0);
  EXPECT_EQ(Learnt(), (DriverMemory{.of_another_disk = true, .new_log = true}));
}

// GET_VRING_BASE forgets the requests; the guest has not forgotten the disk.
TEST_F(DriverMemoryTest, AStoppedRingsRegionIsUsedStill) {
  HandIn();
  StartRing(0);
  StopRing(0);
  Reconnect(DiskIdentity::Of(1, 8));
  HandIn();
  host.control_thread().Call([&] { ownership.HandOff(); });
  StartRing(0);
  EXPECT_TRUE(Learnt().of_another_disk);
}

TEST_F(DriverMemoryTest, ARingThatGoesOnInTheMiddleRemembers) {
  StartRing(0);
  EXPECT_TRUE(Learnt().forgotten());
  StartRing(1, 17);
  EXPECT_FALSE(Learnt().at_start);
  EXPECT_FALSE(Learnt().forgotten());
}

TEST_F(OwnershipTest, WhatIsOwnedStartsAtOnce) {
  host.control_thread().Call([&] { ownership.Hold(); });
  StartRing(0);
  EXPECT_EQ(Up(), 1U);
  EXPECT_EQ(woken, 0);
}

TEST_F(OwnershipTest, TheLastRingOfAMigrationGivesUpAndNoneBefore) {
  host.control_thread().Call([&] { ownership.Hold(); });
  for (uint32_t i = 0; i < kRings; ++i) StartRing(i);
  BeginLog();
  for (uint32_t i = 0; i < kRings; ++i) EXPECT_TRUE(Do([&] { return session->EnableRing(i, false); }).ok());
  EXPECT_EQ(ownership.calls, "acquire ") << "a ring that is only disabled goes on";
  std::vector<uint32_t> bases;
  for (uint32_t i = 0; i < kRings; ++i) {
    EXPECT_EQ(ownership.calls, "acquire ");
    bases.push_back(StopRing(i));
  }
  EXPECT_EQ(ownership.calls, "acquire hand off ");

  // Aborted: nothing runs before it is owned again.
  for (uint32_t i = 0; i < kRings; ++i) StartRing(i, bases[i]);
  EXPECT_EQ(Up(), 0U);
  EXPECT_EQ(ownership.calls, "acquire hand off acquire ");
  Own();
  EXPECT_TRUE(Do([&] { return session->StartWaiting(); }).ok());
  EXPECT_EQ(Up(), kRings);
}

TEST_F(OwnershipTest, RingsThatStopWithoutAMigrationKeepTheDisks) {
  host.control_thread().Call([&] { ownership.Hold(); });
  StartRing(0);
  StopRing(0);
  EXPECT_EQ(ownership.calls, "acquire cancel ");
  StartRing(0);
  EXPECT_EQ(Up(), 1U);
}

TEST_F(OwnershipTest, ALostConnectionIsNoMigration) {
  host.control_thread().Call([&] { ownership.Hold(); });
  StartRing(0);
  BeginLog();
  EndSession();
  EXPECT_EQ(ownership.calls, "acquire cancel ");
}

TEST_F(OwnershipTest, WhoGoesBeforeItsTurnIsNotStarted) {
  StartRing(0);
  EXPECT_TRUE(Do([&] { return session->EnableRing(0, false); }).ok());
  EXPECT_EQ(ownership.calls, "acquire cancel ");
  EXPECT_TRUE(Do([&] { return session->EnableRing(0, true); }).ok());
  StopRing(0);
  EXPECT_EQ(ownership.calls, "acquire cancel acquire cancel ");
  Own();
  EXPECT_EQ(woken, 0);
  EXPECT_TRUE(Do([&] { return session->StartWaiting(); }).ok());
  EXPECT_EQ(Up(), 0U);
}

}  // namespace
}  // namespace cleat::vhost::test::ownership_test
