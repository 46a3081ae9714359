// SPDX-License-Identifier: Apache-2.0
// An engine with many connected disks that nobody uses takes next to no CPU: nothing polls for ever.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "peer.h"

namespace cleat::system_test::idle_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{1} << 20;
constexpr int kDisks = 64;
constexpr int kIdleMs = 2000;
// Whoever still spins or looks for a peer calms down, on a busy machine later: within so many stretches.
constexpr int kStretchesMax = 30;
constexpr int kQuietStretches =
    3;  // in a row: who polls now and then is found, and who calms down late is not
// One reactor that busy-polls takes 100 % of a core, a peer that is looked for every millisecond a few: the
// bound is far from both and from what is measured (0 or 1 tick).
constexpr uint64_t kIdlePercentMax = 10;

TEST(Idle, ConnectedDisksTakeNoCpu) {
  Host host({.reactors = 2});
  ASSERT_TRUE(host.ok());
  std::vector<std::unique_ptr<Peer>> peers;
  std::vector<pollfd> calls;
  for (int i = 0; i < kDisks; ++i) {
    const std::string id = fmt::format("vm{}", i);
    ASSERT_TRUE(
        host.AttachNew(id, i % 2 == 0 ? MemoryDisk(kDiskBytes) : FileDisk(kDiskBytes, host.Path(id)), 2));
    auto peer = Peer::Start(host.SocketPath(id), {.num_queues = 2, .queue_size = 32});
    ASSERT_OK(peer);
    EXPECT_OK((*peer)->driver().WriteSync(0, std::vector<uint8_t>(4096, 1)));
    peers.push_back(std::move(*peer));
    calls.push_back({.fd = peers.back()->driver().ring(0).err_fd(), .events = POLLIN, .revents = 0});
  }
  // One that waits for a VM that never comes.
  ASSERT_TRUE(host.AttachNew("absent", MemoryDisk(kDiskBytes)));
  // A guest that waits for interrupts, as an idle one does, and this much time without anything: nothing can
  // be waited for but the clock.
  ASSERT_EQ(poll(calls.data(), calls.size(), kIdleMs / 2), 0) << "an idle device signalled an error";
  int quiet = 0;  // stretches in a row
  for (int stretch = 0; stretch < kStretchesMax && quiet < kQuietStretches; ++stretch) {
    const uint64_t before_ns = host.engine().Stats().cpu_ns;
    ASSERT_EQ(poll(calls.data(), calls.size(), kIdleMs), 0) << "an idle device signalled an error";
    const uint64_t used_ns = host.engine().Stats().cpu_ns - before_ns;
    quiet = used_ns * 100 / (kIdleMs * kNsPerMs) < kIdlePercentMax ? quiet + 1 : 0;
    fmt::print("{} idle disks: {} ms of CPU in {} ms\n", kDisks, used_ns / kNsPerMs, kIdleMs);
  }
  EXPECT_EQ(quiet, kQuietStretches) << "it never was idle for so long";
  for (const auto& peer : peers) EXPECT_OK(peer->driver().FlushSync());  // and they wake up
}

// They poll: nobody else should have to wait for their core, nor they for who came to it.
TEST(Idle, OnlyReactorsHaveTheirCores) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "SKIPPED: one core, nowhere else to go";
  Host host({.engine_arguments = {"--cpus", "0"}});
  ASSERT_TRUE(host.ok());
  // In memory: io_uring's workers are threads of the kernel's making, on any core.
  ASSERT_TRUE(host.AttachNew("vm", MemoryDisk(kDiskBytes)));
  auto peer = Peer::Start(host.SocketPath("vm"));
  ASSERT_OK(peer);
  ASSERT_OK((*peer)->driver().FlushSync());
  EXPECT_EQ(ThreadsOnFirstCpu(host.engine().pid()), std::vector<std::string>{"reactor-0"});
}

}  // namespace
}  // namespace cleat::system_test::idle_test
