// SPDX-License-Identifier: Apache-2.0
// The session without a socket: a pretend front end calls it on control, a pretend guest drives the rings
// from the test's thread.
#include "vhost/session.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "host.h"
#include "perf/ring/packed_driver_ring.h"
#include "ring_guest.h"
#include "virtio/inflight_log.h"

namespace cleat::vhost::test::session_test {
namespace {

using perf::DriverRing;

constexpr uint64_t kFeatures = kFeatureProtocolFeatures | perf::wire::kFeatureVersion1 |
                               perf::wire::kFeatureIndirectDesc | perf::wire::kFeatureEventIdx;

UniqueFd DuplicateOf(int fd) {
  return UniqueFd(dup(fd));
}

class SessionTest : public testing::Test {
 protected:
  static constexpr uint32_t kRings = 4;

  explicit SessionTest(uint16_t ring_size = 64, bool packed = false) : guest(kRings, ring_size, packed) {
    host.control_thread().Call([&] {
      Session::Options options;
      options.name = "controllers/c";
      options.io_reactors = host.io_reactors();
      session = std::make_unique<Session>(options, host.control(), host.pool(), host.AddModel(kRings),
                                          [this] { ++changes; });
    });
  }
  ~SessionTest() override {
    host.disk().LetGo();
    host.control_thread().Await<void>([&] { return session->End(); });
    host.control_thread().Call([&] { session.reset(); });
  }

  template <typename F>
  auto Do(F make) {
    using T = decltype(make().operator co_await().await_resume());
    return host.control_thread().Await<T>(make);
  }
  template <typename F>
  auto Ask(F ask) {
    decltype(ask()) result{};
    host.control_thread().Call([&] { result = ask(); });
    return result;
  }

  Status Map() {
    std::vector<MemoryTableRegion> regions;
    std::vector<UniqueFd> files;
    for (const auto& region : guest.memory->Table()) {
      regions.push_back({region.gpa, region.size_bytes, region.user_addr, region.mmap_offset_bytes});
    }
    for (const int fd : guest.memory->Fds()) files.push_back(DuplicateOf(fd));
    return Do([&] { return session->MapMemory(regions, files); });
  }
  VringAddresses AddressesOf(uint32_t index) {
    const DriverRing& ring = *guest.rings[index];
    return {index,
            0,
            guest.memory->UserAddress(ring.desc_gpa()),
            guest.memory->UserAddress(ring.used_gpa()),
            guest.memory->UserAddress(ring.avail_gpa()),
            0};
  }
  Status SetAddresses(uint32_t index) {
    return Do([&] { return session->SetRingAddresses(AddressesOf(index)); });
  }
  Status SetKick(uint32_t index) {
    return Do([&] { return session->SetRingKick(index, DuplicateOf(guest.rings[index]->kick_fd())); });
  }
  Status SetCall(uint32_t index) {
    return Do([&] { return session->SetRingCall(index, DuplicateOf(guest.rings[index]->call_fd())); });
  }
  void StartRing(uint32_t i, uint32_t base = 0) {
    EXPECT_TRUE(Do([&] { return session->SetRingSize(i, guest.rings[i]->size()); }).ok());
    EXPECT_TRUE(Do([&] { return session->SetRingBase(i, base); }).ok());
    EXPECT_TRUE(SetAddresses(i).ok());
    EXPECT_TRUE(SetCall(i).ok());
    EXPECT_TRUE(SetKick(i).ok());
    EXPECT_TRUE(Do([&] { return session->EnableRing(i, true); }).ok());
  }
  void StartAll() {
    EXPECT_TRUE(Do([&] { return session->SetFeatures(kFeatures); }).ok());
    EXPECT_TRUE(Map().ok());
    for (uint32_t i = 0; i < kRings; ++i) StartRing(i);
    EXPECT_EQ(Ask([&] { return session->rings_up(); }), kRings);
  }
  std::string Refusal(const Status& status) { return status ? "taken" : status.error().message; }

  Host host{2};
  Guest guest;
  std::unique_ptr<Session> session;
  int changes = 0;
};

TEST_F(SessionTest, StartsARingWhenEverythingIsThereInWhateverOrder) {
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures); }).ok());
  const std::array<std::function<Status(uint32_t)>, 6> steps{
      [&](uint32_t i) { return Do([&] { return session->SetRingSize(i, 64); }); },
      [&](uint32_t i) { return Do([&] { return session->SetRingBase(i, 0); }); },
      [&](uint32_t i) { return SetAddresses(i); },
      [&](uint32_t i) { return SetKick(i); },
      [&](uint32_t i) { return Do([&] { return session->EnableRing(i, true); }); },
      [&](uint32_t) { return Map(); },
  };
  for (uint32_t ring = 0; ring < kRings; ++ring) {
    for (size_t i = 0; i < steps.size(); ++i) {
      const uint32_t before = Ask([&] { return session->rings_up(); });
      EXPECT_EQ(before, ring) << "ring " << ring << " is up before step " << i;
      const Status step = steps[(ring + i) % steps.size()](ring);
      ASSERT_TRUE(step.ok()) << step.error().message;
      if (ring > 0 && i + 2 == steps.size() && (ring + i + 1) % steps.size() == 5) break;  // mapped already
    }
    EXPECT_EQ(Ask([&] { return session->rings_up(); }), ring + 1);
  }
}

TEST_F(SessionTest, ServesFourRingsOnTwoReactors) {
  StartAll();
  const uint64_t buffer = guest.Allocate(1ULL << 32, kBlockBytes);
  for (uint8_t round = 1; round < 50; ++round) {
    for (uint32_t ring = 0; ring < kRings; ++ring) {
      ASSERT_EQ(guest.Write(ring, ring, buffer, round), 0);
      ASSERT_EQ(guest.Read((ring + 1) % kRings, ring, buffer), 0);
      ASSERT_TRUE(guest.Holds(buffer, round));
    }
  }
}

TEST_F(SessionTest, WithoutProtocolFeaturesTheKickStartsARing) {
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures & ~kFeatureProtocolFeatures); }).ok());
  ASSERT_TRUE(Map().ok());
  ASSERT_TRUE(Do([&] { return session->SetRingSize(0, 64); }).ok());
  ASSERT_TRUE(Do([&] { return session->SetRingBase(0, 0); }).ok());
  ASSERT_TRUE(SetAddresses(0).ok());
  EXPECT_EQ(Ask([&] { return session->rings_up(); }), 0U);
  ASSERT_TRUE(SetKick(0).ok());
  EXPECT_EQ(Ask([&] { return session->rings_up(); }), 1U);
}

TEST_F(SessionTest, DrainsBeforeItAnswersGetVringBase) {
  StartAll();
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  ASSERT_EQ(guest.Write(0, 1, buffer, 7), 0);
  host.disk().Hold();
  guest.Submit(0, perf::wire::kBlkIn, 1, buffer);
  ASSERT_TRUE(WaitFor([&] { return host.disk().in_storage() == 1; }));
  std::atomic<bool> stopped{false};
  std::thread front_end([&] {
    auto base = Do([&] { return session->StopRing(0); });
    EXPECT_TRUE(base.ok());
    if (base) {
      EXPECT_EQ(*base, 2);
    }
    stopped = true;
  });
  EXPECT_TRUE(WaitFor([&] { return Ask([&] { return session->draining_requests(); }) == 1; }));
  EXPECT_FALSE(stopped);
  EXPECT_EQ(Ask([&] { return session->rings_up(); }), kRings);  // not before it is drained
  host.disk().LetGo();
  front_end.join();
  EXPECT_EQ(Ask([&] { return session->rings_up(); }), kRings - 1);
  EXPECT_EQ(Ask([&] { return session->draining_requests(); }), 0U);
  // It is in the used ring by now, without another look at anything.
  perf::UsedEntry used;
  EXPECT_EQ(guest.rings[0]->Pop(&used), perf::PopResult::kDone);
  // The ring is as good as new where it stood.
  StartRing(0, 2);
  EXPECT_EQ(guest.Read(0, 1, buffer), 0);
  EXPECT_TRUE(guest.Holds(buffer, 7));
}

TEST_F(SessionTest, YieldedRingsHaveDrained) {
  StartAll();
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  ASSERT_EQ(guest.Write(0, 1, buffer, 7), 0);
  host.disk().Hold();
  guest.Submit(0, perf::wire::kBlkIn, 1, buffer);
  ASSERT_TRUE(WaitFor([&] { return host.disk().in_storage() == 1; }));
  std::thread storage([&] {
    EXPECT_TRUE(WaitFor([&] { return Ask([&] { return session->draining_requests(); }) == 1; }));
    host.disk().LetGo();
  });
  const Status yielded = Do([&] { return session->YieldRings(host.control().now_ns() + kTestTimeoutNs); });
  storage.join();
  EXPECT_TRUE(yielded.ok()) << yielded.error().message;
  EXPECT_EQ(Ask([&] { return session->rings_up(); }), 0U);
  perf::UsedEntry used;
  EXPECT_EQ(guest.rings[0]->Pop(&used), perf::PopResult::kDone);
}

TEST_F(SessionTest, RingsThatDoNotDrainInTimeRunOn) {
  StartAll();
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  const uint64_t other = guest.Allocate(0, kBlockBytes);
  ASSERT_EQ(guest.Write(0, 1, buffer, 7), 0);
  host.disk().Hold();
  guest.Submit(0, perf::wire::kBlkIn, 1, buffer);
  ASSERT_TRUE(WaitFor([&] { return host.disk().in_storage() == 1; }));
  for (int i = 0; i < 2; ++i) {
    const Status refused = Do([&] { return session->YieldRings(host.control().now_ns() + 20 * kNsPerMs); });
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(refused.error().message, "1 requests are still in the storage");
    EXPECT_EQ(Ask([&] { return session->rings_up(); }), kRings);
  }
  guest.Submit(1, perf::wire::kBlkIn, 1, other);  // all rings fetch again
  EXPECT_TRUE(WaitFor([&] { return host.disk().in_storage() == 2; }));
  host.disk().LetGo();
  EXPECT_EQ(guest.Complete(0), 0);
  EXPECT_EQ(guest.Complete(1), 0);
  EXPECT_TRUE(guest.Holds(buffer, 7));
  for (uint32_t ring = 0; ring < kRings; ++ring) EXPECT_EQ(guest.Read(ring, 1, buffer), 0);
  EXPECT_EQ(Ask([&] { return session->draining_requests(); }), 0U);
}

TEST_F(SessionTest, ADisabledRingGoesOnWhereItStood) {
  StartAll();
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  ASSERT_EQ(guest.Write(2, 1, buffer, 9), 0);
  ASSERT_TRUE(Do([&] { return session->EnableRing(2, false); }).ok());
  EXPECT_EQ(Ask([&] { return session->rings_up(); }), kRings - 1);
  guest.Submit(2, perf::wire::kBlkIn, 1, buffer);  // the kick finds nobody
  ASSERT_EQ(guest.Read(3, 1, buffer), 0);          // the others go on
  ASSERT_TRUE(Do([&] { return session->EnableRing(2, true); }).ok());
  EXPECT_EQ(guest.Complete(2), 0);
}

TEST_F(SessionTest, MemoryComesAndGoesUnderIo) {
  StartAll();
  constexpr uint64_t kPlugged = 2ULL << 32;
  const uint64_t buffer = guest.Allocate(1ULL << 32, kBlockBytes);
  for (uint8_t i = 1; i <= 20; ++i) {
    ASSERT_EQ(guest.Write(1, 5, buffer, i), 0);
    std::ranges::fill(guest.memory->Span(buffer, kBlockBytes), 0);
    guest.Submit(1, perf::wire::kBlkIn, 5, buffer);  // somewhere on its way while the table changes
    ASSERT_TRUE(guest.memory->AddRegion({kPlugged, kRegionBytes, 0}).ok());
    ASSERT_TRUE(Map().ok());
    EXPECT_EQ(guest.Complete(1), 0);
    EXPECT_TRUE(guest.Holds(buffer, i));
    const uint64_t plugged = guest.Allocate(kPlugged, kBlockBytes);
    ASSERT_EQ(guest.Write(0, 6, plugged, i), 0);
    ASSERT_EQ(guest.Read(0, 6, plugged), 0);
    ASSERT_TRUE(guest.Holds(plugged, i));
    // A request is still in flight to the memory that goes: it ends in it, not in nothing.
    host.disk().Hold();
    guest.Submit(0, perf::wire::kBlkIn, 6, plugged);
    ASSERT_TRUE(WaitFor([&] { return host.disk().in_storage() == 1; }));
    guest.memory->Free(plugged, kBlockBytes);
    ASSERT_TRUE(guest.memory->RemoveRegion(kPlugged).ok());
    ASSERT_TRUE(Map().ok());
    host.disk().LetGo();
    EXPECT_EQ(guest.rings[0]->WaitUsed(kTestTimeoutNs), true);
    perf::UsedEntry used;
    EXPECT_EQ(guest.rings[0]->Pop(&used), perf::PopResult::kDone);
  }
  EXPECT_EQ(Ask([&] { return session->rings_up(); }), kRings);
}

TEST_F(SessionTest, RefusesATableThatLacksARunningRing) {
  StartAll();
  std::vector<MemoryTableRegion> regions;
  std::vector<UniqueFd> files;
  const auto table = guest.memory->Table();
  const auto fds = guest.memory->Fds();
  regions.push_back({table[1].gpa, table[1].size_bytes, table[1].user_addr, table[1].mmap_offset_bytes});
  files.push_back(DuplicateOf(fds[1]));
  const Status refused = Do([&] { return session->MapMemory(regions, files); });
  EXPECT_NE(Refusal(refused).find("ring 0: descriptor table: "), std::string::npos) << Refusal(refused);
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  EXPECT_EQ(guest.Write(0, 1, buffer, 1), 0);  // nothing has changed
}

TEST_F(SessionTest, ExchangesKickAndCallUnderIo) {
  StartAll();
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  std::atomic<bool> stop{false};
  std::thread front_end([&] {
    while (!stop) {
      EXPECT_TRUE(SetKick(0).ok());
      EXPECT_TRUE(SetCall(0).ok());
    }
  });
  for (int i = 0; i < 300; ++i) ASSERT_EQ(guest.Write(0, 1, buffer, static_cast<uint8_t>(i)), 0);
  stop = true;
  front_end.join();
}

TEST_F(SessionTest, ARingWithoutAKickIsPolled) {
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures); }).ok());
  ASSERT_TRUE(Map().ok());
  StartRing(0);
  ASSERT_TRUE(Do([&] { return session->SetRingKick(0, UniqueFd()); }).ok());
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(guest.Write(0, 1, buffer, static_cast<uint8_t>(i)), 0);
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1));  // long enough to be armed, which must not last
  }
}

TEST_F(SessionTest, SignalsTheCallOfARingThatStarts) {
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures); }).ok());
  ASSERT_TRUE(Map().ok());
  StartRing(0);
  pollfd call{guest.rings[0]->call_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&call, 1, 0), 1);
}

TEST_F(SessionTest, ABrokenRingHurtsNoOther) {
  StartAll();
  const UniqueFd error(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  ASSERT_TRUE(Ask([&] { return session->SetRingError(1, error.Duplicate()).ok(); }));
  guest.rings[1]->PushRaw(999, 1, 0);
  guest.rings[1]->PublishRawIndex(1);
  guest.rings[1]->Kick();
  pollfd signalled{error.get(), POLLIN, 0};
  ASSERT_EQ(poll(&signalled, 1, 60'000), 1);
  EXPECT_NE(Ask([&] { return session->broken(); }).find("ring 1: "), std::string::npos);
  EXPECT_EQ(Ask([&] { return session->rings_up(); }), kRings - 1);
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  EXPECT_EQ(guest.Write(0, 1, buffer, 1), 0);
  EXPECT_EQ(guest.Write(3, 1, buffer, 1), 0);
  // A reset of the device makes it whole.
  ASSERT_TRUE(Do([&] { return session->StopRing(1); }).ok());
  EXPECT_EQ(Ask([&] { return session->broken(); }), "");
  perf::RingOptions options;
  options.size = 64;
  guest.rings[1] = DriverRing::Create(*guest.memory, options).value();
  StartRing(1);
  EXPECT_EQ(guest.Write(1, 1, buffer, 1), 0);
}

TEST_F(SessionTest, RefusesWhatCantBe) {
  StartAll();
  EXPECT_EQ(Refusal(Do([&] { return session->SetRingSize(4, 64); })),
            "ring 4 of a device with 4 queues: give the VM's device no more queues than the controller has");
  EXPECT_EQ(Refusal(Do([&] { return session->SetRingSize(0, 64); })),
            "ring 0: its size changed while it is running");
  EXPECT_EQ(Refusal(Do([&] { return session->SetRingBase(0, 0); })),
            "ring 0: its base changed while it is running");
  EXPECT_EQ(Refusal(Do([&] { return session->SetFeatures(kFeatures & ~perf::wire::kFeatureEventIdx); })),
            "features changed while rings are running");
  EXPECT_FALSE(Do([&] { return session->SetFeatures(kFeatures | 1ULL << 63); }).ok());
  ASSERT_TRUE(Do([&] { return session->StopRing(0); }).ok());
  for (const uint32_t size : {0U, 3U, 2048U, 65536U}) {
    EXPECT_FALSE(Do([&] { return session->SetRingSize(0, size); }).ok()) << size;
  }
  EXPECT_FALSE(Do([&] { return session->SetRingBase(0, 65536); }).ok());
  const UniqueFd file(memfd_create("no eventfd", MFD_CLOEXEC));
  EXPECT_EQ(Refusal(Do([&] { return session->SetRingKick(0, file.Duplicate()); })),
            "ring 0: kick: the file descriptor is no eventfd");
  EXPECT_EQ(Refusal(Do([&] { return session->SetRingCall(0, file.Duplicate()); })),
            "ring 0: call: the file descriptor is no eventfd");
  const UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));  // has no type either, and is as slow as what is in it
  EXPECT_EQ(Refusal(Do([&] { return session->SetRingKick(0, epoll.Duplicate()); })),
            "ring 0: kick: the file descriptor is no eventfd");
}

TEST_F(SessionTest, GivesOutAndTakesInFlightMemory) {
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures); }).ok());
  auto area = Ask([&] {
    auto made = session->MakeInflight(kRings, 64);
    return std::make_shared<Result<Session::InflightArea>>(std::move(made));
  });
  ASSERT_TRUE(area->ok());
  EXPECT_NE(ftruncate((*area)->file.get(), 0), 0);  // sealed
  InflightDescription description = (*area)->description;
  EXPECT_EQ(description.size_bytes, kRings * 1088U);
  ASSERT_TRUE(Do([&] { return session->SetInflight(description, (*area)->file); }).ok());
  StartAll();
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  host.disk().Hold();
  guest.Submit(3, perf::wire::kBlkIn, 1, buffer);
  // The log of ring 3 shows one request.
  auto* log = static_cast<uint8_t*>(
      mmap(nullptr, description.size_bytes, PROT_READ, MAP_SHARED, (*area)->file.get(), 0));
  ASSERT_NE(log, MAP_FAILED);
  EXPECT_TRUE(WaitFor([&] {
    int in_flight = 0;
    for (int entry = 0; entry < 64; ++entry) {
      in_flight += std::atomic_ref<uint8_t>(log[3 * 1088 + 16 + 16 * entry]).load() != 0 ? 1 : 0;
    }
    return in_flight == 1;
  }));
  munmap(log, description.size_bytes);
  host.disk().LetGo();
  EXPECT_EQ(guest.Complete(3), 0);
  EXPECT_FALSE(Do([&] { return session->SetInflight(description, (*area)->file); }).ok());  // running
}

TEST_F(SessionTest, RunsAgainWhatAPredecessorLeft) {
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures); }).ok());
  ASSERT_TRUE(Map().ok());
  auto area =
      Ask([&] { return std::make_shared<Result<Session::InflightArea>>(session->MakeInflight(kRings, 64)); });
  ASSERT_TRUE(area->ok());
  const InflightDescription description = (*area)->description;
  void* mapped =
      mmap(nullptr, description.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, (*area)->file.get(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  uint8_t* const log_of_3 = static_cast<uint8_t*>(mapped) + 3 * description.size_bytes / kRings;
  // It fetched a read from ring 3, and died.
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  std::ranges::fill(guest.memory->Span(buffer, kBlockBytes), 9);
  guest.Submit(3, perf::wire::kBlkIn, 1, buffer);
  virtio::InflightLog log;
  ASSERT_TRUE(log.Attach({log_of_3, description.size_bytes / kRings, nullptr}, 64, 0).ok());
  log.Fetched(0);
  log.Detach();
  ASSERT_TRUE(Do([&] { return session->SetInflight(description, (*area)->file); }).ok());
  // A stop before it ever ran: nothing is forgotten.
  ASSERT_TRUE(Do([&] { return session->SetRingBase(3, 0); }).ok());
  EXPECT_EQ(*Do([&] { return session->StopRing(3); }), 0U);
  StartAll();
  EXPECT_FALSE(Ask([&] { return session->untracked(); }));
  EXPECT_EQ(guest.Complete(3), 0);
  EXPECT_TRUE(guest.Holds(buffer, 0));
  EXPECT_EQ(guest.Read(3, 1, buffer), 0);  // and the next one is not taken for it
  EXPECT_EQ(*Do([&] { return session->StopRing(3); }), 2U);
  EXPECT_EQ(log_of_3[8], 0);  // the version: a log as good as new
  // The guest was reset, and its ring begins anew.
  perf::RingOptions options;
  options.size = 64;
  guest.rings[3] = DriverRing::Create(*guest.memory, options).value();
  StartRing(3);
  EXPECT_EQ(guest.Read(3, 1, buffer), 0);
  munmap(mapped, description.size_bytes);
}

TEST_F(SessionTest, RefusesInFlightMemoryThatIsTooSmall) {
  const UniqueFd file(memfd_create("log", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 4096), 0);
  InflightDescription description;
  description.queues = kRings;
  description.queue_size = 1024;
  description.size_bytes = 4096;
  EXPECT_EQ(Refusal(Do([&] { return session->SetInflight(description, file); })),
            "in-flight memory of 4096 bytes where 65792 are needed");
  description.size_bytes = 65792;  // more than the file has
  EXPECT_FALSE(Do([&] { return session->SetInflight(description, file); }).ok());
  description.queue_size = 0;
  EXPECT_FALSE(Do([&] { return session->SetInflight(description, file); }).ok());
}

TEST_F(SessionTest, MarksTheDirtyLogWhileItIsOn) {
  StartAll();
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  const UniqueFd file(memfd_create("dirty", MFD_CLOEXEC));
  const LogDescription description{((2ULL << 32) >> 12) / 8, 0};
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(description.size_bytes)), 0);
  auto dirty = [&] {
    uint8_t byte = 0;
    EXPECT_EQ(pread(file.get(), &byte, 1, static_cast<off_t>(buffer >> 12 >> 3)), 1);
    return (byte & (1U << ((buffer >> 12) & 7))) != 0;
  };
  ASSERT_TRUE(Do([&] { return session->SetLog(description, file); }).ok());
  ASSERT_EQ(guest.Read(0, 1, buffer), 0);
  EXPECT_FALSE(dirty());
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures | kFeatureLogAll); }).ok());
  ASSERT_EQ(guest.Read(0, 1, buffer), 0);
  EXPECT_TRUE(dirty());
}

// ---- Packed rings

constexpr uint64_t kPackedFeatures = kFeatures | perf::wire::kFeatureRingPacked;
constexpr uint16_t kOddSize = 50;  // no power of two
constexpr uint32_t kFresh = 0x80008000;

class PackedSessionTest : public SessionTest {
 protected:
  PackedSessionTest() : SessionTest(kOddSize, true) {}
  void StartPacked() {
    ASSERT_TRUE(Do([&] { return session->SetFeatures(kPackedFeatures); }).ok());
    ASSERT_TRUE(Map().ok());
    for (uint32_t i = 0; i < kRings; ++i) StartRing(i, kFresh);
    ASSERT_EQ(Ask([&] { return session->rings_up(); }), kRings);
  }
  // The session's own words when the ring can't start.
  std::string StartRefused(uint32_t size, uint32_t base, VringAddresses addresses) {
    for (const auto& step : std::vector<std::function<Task<Status>()>>{
             [&] { return session->SetRingSize(0, size); }, [&] { return session->SetRingBase(0, base); },
             [&] { return session->EnableRing(0, true); },
             [&] { return session->SetRingKick(0, DuplicateOf(guest.rings[0]->kick_fd())); },
             [&] { return session->SetRingAddresses(addresses); }}) {
      const Status status = Do(step);
      if (!status) return status.error().message;
    }
    return "taken";
  }
};

TEST_F(PackedSessionTest, ServesAndGoesOnWhereItStopped) {
  StartPacked();
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  uint32_t base = kFresh;
  for (uint8_t round = 1; round < 40; ++round) {
    ASSERT_EQ(guest.Write(0, round, buffer, round), 0);
    ASSERT_EQ(guest.Read(1, round, buffer), 0);
    ASSERT_TRUE(guest.Holds(buffer, round));
    const auto stopped = Do([&] { return session->StopRing(0); });
    ASSERT_TRUE(stopped.ok());
    EXPECT_NE(*stopped, base);
    EXPECT_EQ(*stopped, guest.rings[0]->base_after_crash());
    base = *stopped;
    StartRing(0, base);
  }
  EXPECT_EQ(*Do([&] { return session->StopRing(3); }), kFresh);
  EXPECT_EQ(*Do([&] { return session->StopRing(3); }), kFresh) << "and of one that never ran";
}

TEST_F(PackedSessionTest, InFlightMemoryHasTheFormatsSize) {
  const auto bytes = [&] {
    return Ask([&] { return session->MakeInflight(2, kOddSize)->description.size_bytes; });
  };
  const uint64_t packed = 2 * ((32 + 32 * kOddSize + 63) / 64 * 64);
  EXPECT_EQ(bytes(), packed) << "not yet known: the larger one";
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures); }).ok());
  EXPECT_EQ(bytes(), 2U * ((16 + 16 * kOddSize + 63) / 64 * 64));
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kPackedFeatures); }).ok());
  EXPECT_EQ(bytes(), packed);
  const auto made = Ask([&] {
    return std::make_shared<Result<Session::InflightArea>>(session->MakeInflight(kRings, kOddSize));
  });
  ASSERT_TRUE(made->ok());
  const Session::InflightArea* area = &**made;
  ASSERT_TRUE(Do([&] { return session->SetInflight(area->description, area->file); }).ok());
  StartPacked();
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  ASSERT_EQ(guest.Write(2, 1, buffer, 9), 0);
  const uint64_t bytes_each = area->description.size_bytes / kRings;
  uint16_t used_idx = 0;
  ASSERT_EQ(pread(area->file.get(), &used_idx, sizeof used_idx, static_cast<off_t>(2 * bytes_each + 16)), 2);
  EXPECT_EQ(used_idx, 3) << "a chain of three descriptors";
  // After an orderly stop the ring may begin anew, over the same log.
  EXPECT_EQ(*Do([&] { return session->StopRing(2); }), 0x80038003U);
  perf::RingOptions options;
  options.size = kOddSize;
  options.packed = true;
  guest.rings[2] = DriverRing::Create(*guest.memory, options).value();
  StartRing(2, kFresh);
  EXPECT_EQ(guest.Read(2, 1, buffer), 0);
  EXPECT_TRUE(guest.Holds(buffer, 9));
}

TEST_F(PackedSessionTest, RefusesWhatNoPackedRingCanBe) {
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kPackedFeatures); }).ok());
  ASSERT_TRUE(Map().ok());
  const VringAddresses good = AddressesOf(0);
  EXPECT_NE(StartRefused(1025, kFresh, good).find("1 up to 1024"), std::string::npos);
  EXPECT_NE(StartRefused(kOddSize, kOddSize, good).find("no position in a packed ring"), std::string::npos);
  EXPECT_NE(StartRefused(kOddSize, 0x80058003, good).find("no position in a packed ring"), std::string::npos);
  for (uint64_t VringAddresses::*part :
       {&VringAddresses::descriptors, &VringAddresses::available, &VringAddresses::used}) {
    VringAddresses bent = good;
    bent.*part += 2;
    EXPECT_NE(StartRefused(kOddSize, kFresh, bent).find("ring 0: "), std::string::npos);
    EXPECT_EQ(Ask([&] { return session->rings_up(); }), 0U);
  }
  // The same ring after the guest has chosen split ones.
  ASSERT_TRUE(Do([&] { return session->SetFeatures(kFeatures); }).ok());
  EXPECT_NE(Refusal(Do([&] { return session->SetRingAddresses(good); })).find("a power of two"),
            std::string::npos);
}

TEST_F(PackedSessionTest, BrokenRingSaysWhyAndTheOthersGoOn) {
  StartPacked();
  const perf::wire::PackedDescriptor descriptor{guest.rings[1]->desc_gpa(), 16, 777, 0};
  guest.rings[1]->AsPacked()->AddRaw({&descriptor, 1}, 777, 0);
  guest.rings[1]->Publish();
  guest.rings[1]->Kick();
  ASSERT_TRUE(WaitFor([&] { return !Ask([&] { return session->broken(); }).empty(); }));
  EXPECT_NE(Ask([&] { return session->broken(); }).find("ring 1: buffer id 777"), std::string::npos);
  const uint64_t buffer = guest.Allocate(0, kBlockBytes);
  EXPECT_EQ(guest.Write(0, 1, buffer, 1), 0);
}

}  // namespace
}  // namespace cleat::vhost::test::session_test
