// SPDX-License-Identifier: Apache-2.0
// Engines that may open few files: what they can't serve they refuse before it is served, so that the guest of every controller that
// they have can always connect; what they have open is never more than what they reserved. And one whose limit is lowered under it: its
// guests hear of the engine's shortage, and connect when it is over. Costs 3 s.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "peer.h"
#include "perf/driver/blk_driver.h"
#include "perf/vhost_user/deadline.h"
#include "perf/vhost_user/frontend.h"
#include "perf/vhost_user/guest_memory.h"
#include "vhost/descriptors_needed.h"

namespace cleat::system_test::descriptors_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{4} << 20;
constexpr uint64_t kRequests = 100;
constexpr uint64_t kFew = 560;  // an engine's own, and a few controllers
constexpr int kControllers = 8;
constexpr uint16_t kQueues = 2;
constexpr uint64_t kRegionBytes = uint64_t{4} << 20;
constexpr uint64_t kTimesTheSame = 20;
constexpr uint64_t kLogBytes = uint64_t{1} << 20;
constexpr const char* kNextStep = "raise LimitNOFILE= of its service";

class Descriptors : public testing::Test {
 protected:
  static std::string Id(int number) { return fmt::format("vm{}", number); }
  void MakeAll(Host& host) {
    for (int i = 0; i < kControllers; ++i) {
      const std::string id = Id(i);
      ASSERT_OK(host.api().CreateDisk(id, FileDisk(kDiskBytes, host.Path(id + ".img"))));
      ASSERT_OK(host.api().CreateController(id, BlkController(host.SocketPath(id), kQueues)));
      ASSERT_OK(host.api().Attach(id, id));
    }
  }
  // Until each is attached, or its controller says that the engine has no descriptors for it: how many are attached.
  std::vector<std::string> AwaitDecided(Host& host) {
    std::vector<std::string> attached;
    Model last;
    EXPECT_TRUE(host.api().WaitUntil(
        [&](const Model& model) {
          attached.clear();
          int refused = 0;
          for (int i = 0; i < kControllers; ++i) {
            const std::string id = Id(i);
            if (model.AttachmentStateOf(id, id) == v1::ATTACHMENT_STATE_READY) attached.push_back(id);
            refused += model.ControllerMessage(id).find(kNextStep) != std::string::npos ? 1 : 0;
          }
          return static_cast<int>(attached.size()) + refused == kControllers;
        },
        &last))
        << last.ToString();
    return attached;
  }
  void ExpectServed(Host& host, const std::string& id) {
    Peer::Options options;
    options.num_queues = kQueues;
    auto peer = Peer::Start(host.SocketPath(id), options);
    ASSERT_TRUE(peer.ok()) << id << ": " << peer.error().message;
    perf::StampedBlocks blocks(kDiskBytes, 512, 1, false);
    IoLoad load((*peer)->driver(), blocks, {.bytes_max = 64 * 1024});
    EXPECT_OK(load.Run(kRequests));
    peers_.push_back(std::move(*peer));
  }

  std::vector<std::unique_ptr<Peer>> peers_;  // stay connected
};

TEST_F(Descriptors, WhatCanNotBeServedIsRefusedAndEveryGuestOfTheRestConnects) {
  Host host({.engine_open_files = kFew});
  ASSERT_TRUE(host.ok());
  MakeAll(host);
  const std::vector<std::string> attached = AwaitDecided(host);
  EXPECT_GE(attached.size(), 2U);
  ASSERT_LT(attached.size(), static_cast<size_t>(kControllers));
  uint64_t before = host.engine().Stats().descriptors;
  for (const std::string& id : attached) {
    ExpectServed(host, id);
    const uint64_t now = host.engine().Stats().descriptors;
    EXPECT_LE(now, before + vhost::DescriptorsNeeded(kQueues, vhost::SocketMode::kClient))
        << "more than was reserved";
    before = now;
  }
  // What goes makes room for one of the others.
  peers_.clear();
  ASSERT_TRUE(host.Remove(attached.front()));
  EXPECT_TRUE(host.api().WaitUntil([&](const Model& model) {
    size_t ready = 0;
    for (int i = 0; i < kControllers; ++i)
      ready += model.AttachmentStateOf(Id(i), Id(i)) == v1::ATTACHMENT_STATE_READY ? 1 : 0;
    return ready == attached.size();
  }));
}

// Has all that it may: the most regions, back-end channel, error eventfds, both logs. What it has open at rest is all that is reserved, but
// what comes with messages, of which one is handled at a time. Not reached here: both logs at once as they come and as the library has them
// (it keeps neither file), the socket that connects, which has become the connection, and those that wait where the engine listens.
TEST_F(Descriptors, APeerThatTakesAllItMayHasOpenWhatIsReservedAndNoMore) {
  constexpr uint64_t kNeeded = vhost::DescriptorsNeeded(kQueues, vhost::SocketMode::kClient);
  constexpr uint64_t kRegions = perf::wire::kMemoryRegionsMax;
  constexpr uint64_t kLogs = 2 * 2;
  constexpr uint64_t kConnecting = 1;
  constexpr uint64_t kAtRest = kNeeded - kRegions - kLogs - kConnecting;
  Host host;
  ASSERT_TRUE(host.ok());
  // What the first connection of its kind makes for all of them.
  ASSERT_TRUE(host.AttachNew("first", FileDisk(kDiskBytes, host.Path("first.img")), kQueues));
  ExpectServed(host, "first");
  const auto has_open = [&host](uint64_t wanted) {
    ProcessStats now;
    EXPECT_TRUE(
        host.WaitEngineStats([&](const ProcessStats& stats) { return stats.descriptors == wanted; }, &now))
        << now.descriptors << " descriptors, expected " << wanted;
  };
  ProcessStats last;
  uint64_t before = 0;
  uint64_t times = 0;  // in a row: what goes away a little later has gone
  ASSERT_TRUE(host.WaitEngineStats(
      [&](const ProcessStats& stats) {
        times = std::exchange(before, stats.descriptors) == stats.descriptors ? times + 1 : 0;
        return times == kTimesTheSame;
      },
      &last));
  ASSERT_TRUE(host.AttachNew("vm", NullDisk(kDiskBytes), kQueues));

  std::vector<perf::RegionSpec> regions;
  for (uint64_t i = 0; i < kRegions; ++i)
    regions.push_back({.gpa = i * 2 * kRegionBytes, .size_bytes = kRegionBytes});
  const auto memory = perf::GuestMemory::Create(regions);
  ASSERT_TRUE(memory.ok());
  const auto peer = Peer::Listen(host.SocketPath("vm"));
  ASSERT_TRUE(peer.ok());
  perf::Frontend& frontend = (*peer)->frontend();
  ASSERT_OK(frontend.Accept());
  ASSERT_OK(frontend.Open());
  Peer::Options options;
  options.num_queues = kQueues;
  const auto driver = perf::BlkDriver::Start(frontend, **memory, options);
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  const UniqueFd eventfd_of_peer(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (uint32_t i = 0; i < kQueues; ++i) {
    ASSERT_OK(frontend.SetVringErr(i, eventfd_of_peer.get()));
  }
  perf::SharedArea log;
  log.fd = UniqueFd(memfd_create("dirty-log", MFD_CLOEXEC));
  log.size_bytes = kLogBytes;
  ASSERT_EQ(ftruncate(log.fd.get(), kLogBytes), 0);
  ASSERT_OK(frontend.SetLogBase(log));
  frontend.set_ack(perf::AckMode::kAlways);
  ASSERT_OK(frontend.SetMemTable(**memory));
  has_open(before + kAtRest);

  // The tables come again and again, until they have been seen beside all that is open at rest. The library's next stand-ins are of
  // DescriptorBudget::kTransient.
  std::atomic<bool> seen = false;
  uint64_t most = 0;
  std::thread observer([&] {
    const perf::Deadline deadline(kWaitTimeoutNs);
    while (most < before + kAtRest + kRegions && !deadline.passed())
      most = std::max(most, host.engine().Stats().descriptors);
    seen = true;
  });
  Status sent;
  while (!seen && sent.ok()) {
    sent = frontend.SetMemTable(**memory);
    if (sent.ok()) sent = frontend.SetLogBase(log);
  }
  observer.join();
  EXPECT_OK(sent);
  EXPECT_GE(most, before + kAtRest + kRegions);
  EXPECT_LE(most, before + kNeeded + kRegions);
  has_open(before + kAtRest);
}

TEST_F(Descriptors, AGuestThatComesInAShortageHearsOfItAndConnectsWhenItIsOver) {
  Host host;
  ASSERT_TRUE(host.ok());
  ASSERT_TRUE(host.AttachNew("vm", FileDisk(kDiskBytes, host.Path("vm.img")), kQueues));
  const pid_t engine = host.engine().pid();
  rlimit before{};
  ASSERT_EQ(prlimit(engine, RLIMIT_NOFILE, nullptr, &before), 0);
  // Enough for the connection, not for what comes over it.
  const rlimit short_of{host.engine().Stats().descriptors + 5, before.rlim_max};
  ASSERT_EQ(prlimit(engine, RLIMIT_NOFILE, &short_of, nullptr), 0);
  perf::FrontendOptions frontend;
  frontend.accept_timeout_ns = kWaitTimeoutNs;
  auto peer = Peer::Listen(host.SocketPath("vm"), frontend);
  ASSERT_TRUE(peer.ok());
  Peer::Options options;
  options.num_queues = kQueues;
  EXPECT_FALSE((*peer)->Boot(options).ok());
  Model last;
  EXPECT_TRUE(host.api().WaitUntil(
      [](const Model& model) { return model.ControllerMessage("vm").find(kNextStep) != std::string::npos; },
      &last))
      << last.ToString();
  EXPECT_NE(last.ControllerStateOf("vm"), v1::CONTROLLER_STATE_BROKEN) << "it accuses no guest";
  ASSERT_EQ(prlimit(engine, RLIMIT_NOFILE, &before, nullptr), 0);
  peer->reset();
  ExpectServed(host, "vm");
  EXPECT_TRUE(host.WaitController("vm", v1::CONTROLLER_STATE_READY));
}

}  // namespace
}  // namespace cleat::system_test::descriptors_test
