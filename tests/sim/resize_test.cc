// SPDX-License-Identifier: Apache-2.0
// Sizes that reach an engine late: a disk that has grown by itself meanwhile stays as large as it is.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <utility>

#include "engine/disks/ceph_disks.h"
#include "engine/disks/module_disk_factory.h"
#include "engine/engine.h"
#include "engine/stores/group_store.h"
#include "engine/stores/memory_store.h"
#include "keys/keyring.h"
#include "sim_endpoint.h"
#include "world.h"

namespace cleat::sim::resize_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr char kController[] = "controllers/c";
constexpr char kDisk[] = "disks/d";

class ResizeTest : public testing::Test {
 protected:
  void SetUp() override {
    engine::ControllerSpec controller;
    controller.name = kController;
    controller.socket_path = "/sim/vm0.sock";
    ASSERT_TRUE(engine_.PutController(controller));
    engine::AttachmentSpec attachment;
    attachment.controller = kController;
    attachment.disk.name = kDisk;
    attachment.disk.size_bytes = kMiB;
    ASSERT_TRUE(Do([this, attachment] { return engine_.Attach(attachment); }));
  }
  void TearDown() override {
    bool ended = false;
    Spawn(End(&ended));
    ASSERT_TRUE(world_.RunUntil([&] { return ended; }, kLimitNs, "shutting down"));
  }

  template <typename Make>
  Status Do(Make make) {
    std::optional<Status> result;
    Spawn(DoInto(std::function<Task<Status>()>(make), &result));
    EXPECT_TRUE(world_.RunUntil([&] { return result.has_value(); }, kLimitNs, "a request"));
    return *result;
  }
  Status Resize(uint64_t size_bytes) {
    return Do([this, size_bytes] {
      engine::ResizeSpec resize{kDisk, size_bytes};
      return engine_.ResizeDisk(std::move(resize));
    });
  }
  uint64_t SizeBytes() { return engine_.AttachmentByKey(kController, 0)->spec.disk.size_bytes; }

 private:
  static constexpr uint64_t kLimitNs = 10 * kNsPerSecond;
  Task<void> DoInto(std::function<Task<Status>()> make, std::optional<Status>* result) {
    co_await world_.control().Enter();
    auto task = make();
    *result = co_await std::move(task);
  }
  Task<void> End(bool* ended) {
    auto shutdown = engine_.Shutdown();
    co_await std::move(shutdown);
    *ended = true;
  }

  World world_{1, 1};
  SimNetwork network_{world_, {}};
  engine::MemoryStore memories_;
  engine::GroupStore groups_{world_.control()};
  engine::ClusterStore clusters_;
  modules::UringHub uring_;
  modules::CryptoHub crypto_;
  keys::Keyring keyring_;
  engine::PathGuard paths_;
  engine::CephDisks ceph_{{world_.control(), clusters_, keyring_, world_.blocking(), paths_}, "engine-0", {}};
  nvmf::LoginLine logins_{0};
  nvmf::RdmaAdapters adapters_{world_.control()};
  modules::RdmaPorts rdma_{adapters_};
  engine::ModuleDiskFactory disks_{memories_, uring_, crypto_, keyring_, world_.blocking(),
                                   logins_,   rdma_,  ceph_,   paths_};
  engine::Engine engine_{
      {world_.control(), world_.io_reactors(), disks_, network_, memories_, groups_, clusters_, nullptr}};
};

TEST_F(ResizeTest, ASizeThatComesLateIsNoError) {
  EXPECT_TRUE(Resize(3 * kMiB));
  EXPECT_EQ(SizeBytes(), 3 * kMiB);
  const Status late = Resize(2 * kMiB);
  EXPECT_TRUE(late) << late.error().message;
  EXPECT_EQ(SizeBytes(), 3 * kMiB);
}

}  // namespace
}  // namespace cleat::sim::resize_test
