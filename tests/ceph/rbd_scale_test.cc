// SPDX-License-Identifier: Apache-2.0
// Many images, opened, used and closed again and again: what they take, and that they give it back.
#include <dirent.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/ceph/rbd_rig.h"
#include "tests/environment.h"

namespace cleat::modules::rbd_scale_test {
namespace {

using test::FromEnvironment;

constexpr uint64_t kBytes = 4 << 20;
// Of what is in use when a round is over; single allocations that Ceph keeps are no leak.
constexpr uint64_t kHeapKibAImageMax = 1;

uint64_t Entries(const std::string& folder) {
  uint64_t count = 0;
  DIR* opened = opendir(folder.c_str());
  while (opened != nullptr && readdir(opened) != nullptr) ++count;
  if (opened != nullptr) closedir(opened);
  return count;
}

struct Usage {
  uint64_t threads = Entries("/proc/self/task");
  uint64_t descriptors = Entries("/proc/self/fd");
  uint64_t resident_mib = ResidentMib();
  uint64_t heap_kib = mallinfo2().uordblks / 1024;  // in use, in all arenas

  static uint64_t ResidentMib() {
    std::ifstream file("/proc/self/statm");
    uint64_t total = 0;
    uint64_t resident = 0;
    file >> total >> resident;
    return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) >> 20;
  }
};

// Two counts are taken one after the other, and a thread that has been told to end takes its time.
bool WaitUntil(const std::function<bool()>& there) {
  const auto deadline = std::chrono::steady_clock::now() + test::kWaitMax;
  while (!there()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

uint64_t OtherThreads() {
  return Usage().threads - CountCephThreads();
}

// CLEAT_CEPH_IMAGES=500 CLEAT_CEPH_ROUNDS=20 is the long run.
TEST(RbdScale, WhatImagesTakeTheyGiveBack) {
  MiniCeph& ceph = MiniCeph::Shared();
  CephHost host;
  const uint64_t images = FromEnvironment("CLEAT_CEPH_IMAGES", 48);
  const uint64_t rounds = FromEnvironment("CLEAT_CEPH_ROUNDS", 5);
  for (uint64_t i = 0; i < images; ++i) ceph.CreateImage("n" + std::to_string(i), kBytes);
  const auto cluster = ceph.Cluster();
  std::vector<Usage> after;
  const uint64_t others = OtherThreads();
  for (uint64_t round = 0; round < rounds; ++round) {
    const Usage before;
    const auto since = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<test::HostDisk>> disks;
    std::vector<std::future<test::OpenResult>> opening;
    for (uint64_t i = 0; i < images; ++i) {
      opening.push_back(host.BeginOpen(CephHost::Options(cluster, "n" + std::to_string(i), kBytes)));
    }
    for (auto& one : opening) {
      auto opened = one.get();
      ASSERT_TRUE(opened.ok()) << opened.error().message;
      disks.push_back(
          std::make_unique<test::HostDisk>(host, std::move(opened).value(), block::AccessMode::kReadWrite));
    }
    Arena arena(4096);
    for (auto& disk : disks) {
      const Status acquired = disk->Acquire();
      ASSERT_TRUE(acquired.ok()) << acquired.error().message;
      ASSERT_EQ(disk->Do(Op::kWrite, 0, 4096, &arena), IoStatus::kOk);
    }
    const Usage full;
    const uint64_t clients = host.ClientStatus().size();
    EXPECT_EQ(clients, (images + kImagesPerClientDefault - 1) / kImagesPerClientDefault);
    // The status counts them rightly, and they are few.
    EXPECT_TRUE(WaitUntil([&] { return OtherThreads() == others; }))
        << OtherThreads() << " threads are not counted, " << others << " were";
    EXPECT_LE(full.threads - before.threads, 16 * clients);
    disks.clear();
    const auto took = std::chrono::steady_clock::now() - since;
    ASSERT_TRUE(host.End(60 * kNsPerSecond));
    if (!after.empty()) {
      EXPECT_TRUE(WaitUntil([&] { return Usage().threads <= after.front().threads; }));
    }
    after.emplace_back();
    std::printf(
        "round %lu: %lu images on %lu clients, %.0f ms, %lu threads, %lu descriptors, %lu MiB (%lu before), "
        "heap %lu KiB (%lu after)\n",
        round, images, clients, std::chrono::duration<double, std::milli>(took).count(),
        full.threads - before.threads, full.descriptors - before.descriptors, full.resident_mib,
        before.resident_mib, full.heap_kib, after.back().heap_kib);
  }
  // The first round warms up what is made once.
  EXPECT_EQ(after.back().descriptors, after.front().descriptors);
  EXPECT_LE(after.back().threads, after.front().threads);  // one of the first's may have been ending still
  if (rounds < 2) return;
  EXPECT_LE(after.back().heap_kib, after[1].heap_kib + kHeapKibAImageMax * images * (rounds - 2));
}

}  // namespace
}  // namespace cleat::modules::rbd_scale_test
