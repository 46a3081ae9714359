// SPDX-License-Identifier: Apache-2.0
// Disks opened, owned, written, resized and closed at random, several at the same time, while the cluster's daemons stop
// and go on at random. Whatever happens in between: no I/O fails, what was written is there, everything ends, and nobody
// is left behind.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/ceph/rbd_rig.h"
#include "tests/environment.h"

namespace cleat::modules::rbd_random_test {
namespace {

using test::FromEnvironment;

constexpr uint64_t kIoBytes = 4096;
constexpr uint64_t kGrowMax = 8;

// Stops the OSD or the monitor for a moment, again and again.
class Trouble {
 public:
  Trouble(MiniCeph& ceph, uint64_t seed) : ceph_(ceph), random_(seed), thread_([this] { Run(); }) {}
  ~Trouble() {
    ended_.set_value();
    thread_.join();
  }
  Trouble(const Trouble&) = delete;
  Trouble& operator=(const Trouble&) = delete;

 private:
  bool Wait(uint64_t ms) {
    return over_.wait_for(std::chrono::milliseconds(ms)) == std::future_status::timeout;
  }
  void Run() {
    while (Wait(random_.Between(20, 300))) {
      const test::Stopped stopped(ceph_, random_.Chance(2, 3) ? "osd.0" : "mon.a");
      Wait(random_.Between(1, 400));
    }
  }
  MiniCeph& ceph_;
  Random random_;
  std::promise<void> ended_;
  std::future<void> over_ = ended_.get_future();
  std::thread thread_;
};

// One image and what is known of it. Used by one thread.
class RandomDisk {
 public:
  RandomDisk(CephHost& host, std::shared_ptr<const ClusterOptions> cluster, std::string image, uint64_t seed)
      : host_(host), cluster_(std::move(cluster)), image_(std::move(image)), random_(seed) {}

  void Step() {
    if (disk_ == nullptr) return Attach();
    const uint64_t kind = random_.Below(10);
    if (kind < 6) return Io();
    if (kind < 7) return Grow();
    disk_.reset();
  }
  void End() { disk_.reset(); }

 private:
  void Attach() {
    disk_ = host_.OpenDisk(CephHost::Options(cluster_, image_, mib_ * kMiB));
    ASSERT_NE(disk_, nullptr);
  }
  void Grow() {
    if (mib_ == kGrowMax) return;
    const Status grown = disk_->Resize(++mib_ * kMiB);
    ASSERT_TRUE(grown.ok()) << grown.error().message;
  }
  void Io() {
    const uint64_t block = random_.Below(mib_ * kMiB / kIoBytes);
    written_.resize(kGrowMax * kMiB / kIoBytes);
    if (random_.Chance(1, 2)) {
      std::memset(arena_.data(), ++written_[block], kIoBytes);
      ASSERT_EQ(disk_->Do(Op::kWrite, block * kIoBytes, kIoBytes, &arena_), IoStatus::kOk);
    } else {
      ASSERT_EQ(disk_->Do(Op::kRead, block * kIoBytes, kIoBytes, &arena_), IoStatus::kOk);
      for (uint64_t i = 0; i < kIoBytes; ++i)
        ASSERT_EQ(arena_.data()[i], written_[block]) << image_ << " " << block;
    }
  }

  CephHost& host_;
  const std::shared_ptr<const ClusterOptions> cluster_;
  const std::string image_;
  Random random_;
  uint64_t mib_ = 1;
  std::vector<uint8_t> written_;
  Arena arena_{kIoBytes};
  std::unique_ptr<test::HostDisk> disk_;
};

// CLEAT_CEPH_OPERATIONS=5000 is the long run; CLEAT_CEPH_SEED repeats one.
TEST(RbdRandom, TroubleDelaysAndSpoilsNothing) {
  constexpr uint64_t kDisks = 6;
  const uint64_t operations = FromEnvironment("CLEAT_CEPH_OPERATIONS", 300);
  const uint64_t seed = FromEnvironment("CLEAT_CEPH_SEED", std::random_device()());
  SCOPED_TRACE("CLEAT_CEPH_SEED=" + std::to_string(seed));
  MiniCeph ceph;
  const auto cluster = ceph.Cluster();
  cluster->images_per_client = 2;
  for (uint64_t i = 0; i < kDisks; ++i) ceph.CreateImage("r" + std::to_string(i), kMiB);
  CephHost host;
  {
    const Trouble trouble(ceph, seed);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kDisks; ++i) {
      threads.emplace_back([&, i] {
        RandomDisk disk(host, cluster, "r" + std::to_string(i), seed + i);
        for (uint64_t done = 0; done < operations / kDisks && !testing::Test::HasFailure(); ++done)
          disk.Step();
        disk.End();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_TRUE(host.ClientStatus().empty());
  EXPECT_EQ(ceph.BlocklistedCount(), 0U);
}

}  // namespace
}  // namespace cleat::modules::rbd_random_test
