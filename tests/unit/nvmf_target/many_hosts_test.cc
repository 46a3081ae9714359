// SPDX-License-Identifier: Apache-2.0
// Hosts in numbers: connections that come one after the other, and those that are there and do nothing.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/unit/nvmf_target/raw_host.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::nvmf_target::many_hosts_test {
namespace {

using nvme::Opcode;
using test::Association;
using test::BlocksEntry;
using test::RawHost;
using test::TargetRig;

// Sanitizers have allocators of their own, which do not count here.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsMemory = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kCountsMemory = false;
#else
constexpr bool kCountsMemory = true;
#endif
#else
constexpr bool kCountsMemory = true;
#endif

size_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Both ends of each connection are this process's.
void AllowDescriptors(rlim_t count) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(count, limit.rlim_max));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_cur, count) << "the limit of open files (ulimit -n) is too low for this test";
}

TEST(ManyHostsTest, AThousandConnectsInARowLeaveNothingBehind) {
  TargetRig rig;
  Association neighbour(rig);
  const auto connect = [&rig](int times) {
    for (int i = 0; i < times; ++i) {
      RawHost host(rig);
      (void)host.BecomeAdmin();
    }
    rig.Until([&rig] { return rig.service->StatusOf(TargetRig::kNqn).controllers == 1; });
  };
  connect(200);
  const size_t before_bytes = AllocatedBytes();
  connect(800);
  const size_t after_bytes = AllocatedBytes();
  constexpr size_t kNoiseBytes = 800 * 64;
  if (kCountsMemory) {
    EXPECT_LT(after_bytes, before_bytes + kNoiseBytes);
  }
  const auto answer = neighbour.queue.Do(BlocksEntry(Opcode::kRead, 0, 8, false));
  EXPECT_TRUE(answer && answer->status().ok());
}

TEST(ManyHostsTest, IdleConnectionsTakeLittleMemoryAndNoTurns) {
  ASSERT_NO_FATAL_FAILURE(AllowDescriptors(1400));
  constexpr uint32_t kAssociations = nvme::target::kControllersMax, kQueues = 8;
  TargetRig rig;
  std::vector<std::unique_ptr<RawHost>> hosts;
  std::vector<uint16_t> controllers;
  const auto add = [&](uint16_t queue_id, uint16_t controller) {
    hosts.push_back(std::make_unique<RawHost>(rig));
    if (queue_id == 0) return hosts.back()->BecomeAdmin(nvme::fabrics::kKeepAliveMsMax);
    hosts.back()->SendConnect(queue_id, controller);
    const auto answer = hosts.back()->Answer();
    CLEAT_CHECK(answer && answer->status().ok());
    return controller;
  };
  // The first ones make what all share.
  controllers.push_back(add(0, 0));
  (void)add(1, controllers[0]);
  (void)hosts.back()->Do(BlocksEntry(Opcode::kRead, 0, 8, false));
  const size_t before_bytes = AllocatedBytes();
  const size_t before = hosts.size();
  for (uint32_t i = 1; i < kAssociations; ++i) controllers.push_back(add(0, 0));
  for (const uint16_t controller : controllers) {
    for (uint16_t id = 1; id <= kQueues; ++id) {
      if (controller != controllers[0] || id > 1) (void)add(id, controller);
    }
  }
  const size_t bytes_each = (AllocatedBytes() - before_bytes) / (hosts.size() - before);
  RecordProperty("connections", static_cast<int>(hosts.size()));
  RecordProperty("bytes_each", static_cast<int>(bytes_each));
  if (kCountsMemory) {
    EXPECT_LE(bytes_each, size_t{64} * 1024);
  }
  const auto sleeps = [&rig] {
    return rig.control->CanSleep() && rig.io[0]->CanSleep() && rig.io[1]->CanSleep();
  };
  rig.Until(sleeps);
  for (int turn = 0; turn < 1000; ++turn) {
    rig.Turn();
    ASSERT_TRUE(sleeps()) << "nothing happens, and a reactor polls";
  }
}

}  // namespace
}  // namespace cleat::nvmf_target::many_hosts_test
