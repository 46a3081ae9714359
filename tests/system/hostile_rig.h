// SPDX-License-Identifier: Apache-2.0
// What the tests of hostile guests have in common: one controller for the hostile one, and two honest guests on
// the same engine that never stop working, with every byte checked. Afterwards they have to be as they were.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "peer.h"

namespace cleat::system_test {

inline constexpr uint64_t kDiskBytes = uint64_t{32} << 20;
inline constexpr const char* kVictim = "hostile";

// The hostile one's controller, and two honest guests that never stop working.
class Hostile : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(host_.ok());
    ASSERT_TRUE(host_.AttachNew(kVictim, MemoryDisk(kDiskBytes)));
    const std::vector<std::pair<std::string, v1::DiskSpec>> honest{
        {"file", FileDisk(kDiskBytes, host_.Path("disk.img"))}, {"memory", MemoryDisk(kDiskBytes)}};
    for (const auto& [id, spec] : honest) {
      ASSERT_TRUE(host_.AttachNew(id, spec, 2));
      auto peer = Peer::Start(host_.SocketPath(id), {.num_queues = 2});
      ASSERT_OK(peer);
      blocks_.push_back(std::make_unique<perf::StampedBlocks>(kDiskBytes, 512, blocks_.size()));
      loads_.push_back(
          std::make_unique<IoLoad>((*peer)->driver(), *blocks_.back(), IoLoadOptions{.depth = 1}));
      peers_.push_back(std::move(*peer));
      loads_.back()->Start();
    }
  }

  void TearDown() override {
    for (size_t i = 0; i < loads_.size(); ++i) {
      EXPECT_TRUE(loads_[i]->WaitProgress(50)) << "an honest guest stands still";
      EXPECT_OK(loads_[i]->Stop());
      EXPECT_OK(loads_[i]->Verify());
      EXPECT_FALSE(peers_[i]->frontend().PeerGone()) << "an honest guest lost its connection";
    }
  }

  std::string Socket() const { return host_.SocketPath(kVictim); }

  // A well-behaved guest can use what the hostile one left behind.
  void ExpectServed(const std::string& after, const std::string& id = kVictim) {
    auto peer = Peer::Start(host_.SocketPath(id));
    ASSERT_TRUE(peer.ok()) << "after " << after << ": " << peer.error().message;
    const std::vector<uint8_t> data(4096, 0x5a);
    std::vector<uint8_t> read(4096);
    EXPECT_OK((*peer)->driver().WriteSync(0, data));
    EXPECT_OK((*peer)->driver().ReadSync(0, read));
    EXPECT_EQ(read, data) << "after " << after;
    EXPECT_OK((*peer)->ShutDown());
  }

  // The honest guests are at work meanwhile, not only afterwards.
  void ExpectOthersServed() {
    for (const auto& load : loads_) EXPECT_TRUE(load->WaitProgress(20)) << "an honest guest stands still";
  }

  // The controller's status comes to hold `text`.
  void ExpectMessage(const std::string& text, const std::string& id = kVictim) {
    Model last;
    EXPECT_TRUE(host_.api().WaitUntil(
        [&](const Model& model) { return model.ControllerMessage(id).find(text) != std::string::npos; },
        &last))
        << "'" << text << "' is not in the status of " << id << "; there is:\n"
        << last.ToString();
  }

  Host host_{{.reactors = 2}};
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<perf::StampedBlocks>> blocks_;
  std::vector<std::unique_ptr<IoLoad>> loads_;
};

}  // namespace cleat::system_test
