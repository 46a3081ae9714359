// SPDX-License-Identifier: Apache-2.0
// A thousand visitors that behave in every bad way there is, on several controllers at once: afterwards the
// engine and cleatd hold what they held before - descriptors, threads, mappings, memory, objects.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "peer.h"
#include "perf/hostile/hostile.h"

namespace cleat::system_test::hostile_visits_test {
namespace {

constexpr int kControllers = 4;
constexpr int kVisits = 1000;
constexpr int kWarmUpVisits =
    200;  // what is made with the first visitors stays: pools, arenas, DPDK's devices
constexpr uint64_t kDiskBytes = uint64_t{8} << 20;
constexpr uint64_t kGrowthMax = uint64_t{16} << 20;  // an allocator's whims; 16 KiB a visit would be a leak
constexpr uint64_t kMappingsGrowthMax = 16;
constexpr uint64_t kMappingThreadsMax =
    4;  // the engine starts these when they are first needed, then keeps them

std::string Id(int controller) {
  return fmt::format("victim{}", controller);
}

// One after the other on the same socket; each kind of visit has its turn, every abuse of its kind too.
class Visitor {
 public:
  explicit Visitor(std::string socket) : socket_(std::move(socket)) {}

  void Visit(int number) {
    const auto turn = static_cast<size_t>(number / 8);
    auto frontend = perf::Frontend::Listen(socket_);
    ASSERT_OK(frontend);
    ASSERT_OK((*frontend)->Accept());
    perf::Frontend& peer = **frontend;
    switch (number % 8) {
      case 0: {
        const auto abuses = perf::SocketAbuseCases();
        (void)perf::Apply(abuses[turn % abuses.size()].abuse, peer);
        break;
      }
      case 2: {
        const auto abuses = perf::SetupAbuseCases();
        auto memory = perf::GuestMemory::CreateWithHole(kGuestBytes);
        ASSERT_OK(memory);
        if (!peer.Open().ok() || !peer.SetMemTable(**memory).ok()) break;
        peer.set_ack(perf::AckMode::kAlways);
        (void)perf::Apply(abuses[turn % abuses.size()].abuse, peer, **memory);
        break;
      }
      case 4: {  // a QEMU that dies during its set-up
        auto memory = perf::GuestMemory::CreateWithHole(kGuestBytes);
        ASSERT_OK(memory);
        peer.DisconnectAfter(turn % 25);
        if (peer.Open().ok()) (void)perf::BlkDriver::Start(peer, **memory);
        break;
      }
      case 6:
        Guest(peer, turn, /*hostile=*/true);
        break;
      default:
        Guest(peer, turn, /*hostile=*/false);
    }
  }

 private:
  static void Guest(perf::Frontend& peer, size_t turn, bool hostile) {
    auto memory = perf::GuestMemory::CreateWithHole(kGuestBytes);
    ASSERT_OK(memory);
    ASSERT_OK(peer.Open());
    auto driver = perf::BlkDriver::Start(peer, **memory);
    ASSERT_OK(driver);
    if (!hostile) {
      EXPECT_OK((*driver)->FlushSync());
      if (turn % 2 == 0) {
        EXPECT_OK((*driver)->Stop());
      }
    } else if (turn % 4 == 0) {
      for (const int fd : (*memory)->Fds()) ASSERT_EQ(ftruncate(fd, 0), 0);
      (*driver)->ring(0).Kick();
      EXPECT_OK(peer.WaitPeerGone(kWaitTimeoutNs));
    } else {
      const auto abuses = perf::RingAbuseCases();
      const auto scratch = (*driver)->AllocateBuffer(perf::kAbuseScratchBytes);
      ASSERT_OK(scratch);
      EXPECT_OK(perf::Apply(abuses[turn % abuses.size()].abuse, (*driver)->ring(0), **memory, *scratch,
                            (*driver)->config().capacity_sectors));
    }
    peer.Disconnect();
  }

  const std::string socket_;
};

// Every controller has bad and good visitors in turn: after bad ones alone it would make them wait.
void VisitAll(const Host& host, int visits) {
  std::vector<std::thread> threads;
  for (int controller = 0; controller < kControllers; ++controller) {
    threads.emplace_back([&, controller] {
      Visitor visitor(host.SocketPath(Id(controller)));
      const int first = controller * visits / kControllers;
      const int last = (controller + 1) * visits / kControllers;
      for (int number = first; number < last && !testing::Test::HasFailure(); ++number) visitor.Visit(number);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HostileVisits, LeaveNothingBehind) {
  Host host({.reactors = 2});
  ASSERT_TRUE(host.ok());
  for (int i = 0; i < kControllers; ++i) ASSERT_TRUE(host.AttachNew(Id(i), MemoryDisk(kDiskBytes)));
  VisitAll(host, kWarmUpVisits);
  const auto nobody_there = [](const Model& model) {
    for (const auto& [name, controller] : model.controllers) {
      const auto state = controller.status().state();
      if (state != v1::CONTROLLER_STATE_CONNECTING && state != v1::CONTROLLER_STATE_BROKEN) return false;
    }
    return true;
  };
  ASSERT_TRUE(host.api().WaitUntil(nobody_there));
  const ProcessStats engine_before = host.engine().Stats();
  const ProcessStats cleatd_before = host.cleatd().Stats();

  VisitAll(host, kVisits);
  if (HasFailure()) return;
  ASSERT_TRUE(host.api().WaitUntil(nobody_there));

  ProcessStats after;
  EXPECT_TRUE(host.WaitEngineStats(
      [&](const ProcessStats& stats) {
        return stats.descriptors <= engine_before.descriptors &&
               stats.mappings <= engine_before.mappings + kMappingsGrowthMax;
      },
      &after))
      << after.descriptors << " descriptors and " << after.mappings << " mappings, before the visits "
      << engine_before.descriptors << " and " << engine_before.mappings;
  EXPECT_LE(after.threads, engine_before.threads + kMappingThreadsMax);
  ProcessStats cleatd_after;
  EXPECT_TRUE(host.WaitStats(
      host.cleatd(),
      [&](const ProcessStats& stats) { return stats.descriptors <= cleatd_before.descriptors + 2; },
      &cleatd_after))
      << cleatd_after.descriptors << " descriptors of cleatd, before the visits "
      << cleatd_before.descriptors;
  if (!kSanitized) {  // their quarantine grows
    EXPECT_LE(after.resident_bytes, engine_before.resident_bytes + kGrowthMax);
    EXPECT_LE(cleatd_after.resident_bytes, cleatd_before.resident_bytes + kGrowthMax) << "of cleatd";
  }
  fmt::print("engine: {} -> {} descriptors, {} -> {} mappings, {} -> {} KiB; cleatd: {} -> {} KiB\n",
             engine_before.descriptors, after.descriptors, engine_before.mappings, after.mappings,
             engine_before.resident_bytes / 1024, after.resident_bytes / 1024,
             cleatd_before.resident_bytes / 1024, cleatd_after.resident_bytes / 1024);
  const auto all = host.api().List();
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(all.value.controllers.size(), size_t{kControllers});
  for (int i = 0; i < kControllers; ++i) {
    auto peer = Peer::Start(host.SocketPath(Id(i)));
    ASSERT_OK(peer);
    EXPECT_OK((*peer)->driver().FlushSync());
    EXPECT_OK((*peer)->ShutDown());
    EXPECT_TRUE(host.Remove(Id(i)));
  }
}

}  // namespace
}  // namespace cleat::system_test::hostile_visits_test
