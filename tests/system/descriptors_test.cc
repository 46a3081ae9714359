// SPDX-License-Identifier: Apache-2.0
// Engines that may open few files: what they can't serve they refuse before it is served, so that the guest of every controller that
// they have can always connect; what they have open is never more than what they reserved. And one whose limit is lowered under it: its
// guests hear of the engine's shortage, and connect when it is over. Costs 2 s.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "peer.h"
#include "vhost/descriptors_needed.h"

namespace cleat::system_test::descriptors_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{4} << 20;
constexpr uint64_t kRequests = 100;
constexpr uint64_t kFew = 560;  // an engine's own, and a few controllers
constexpr int kControllers = 8;
constexpr uint16_t kQueues = 2;
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
