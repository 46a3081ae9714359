// SPDX-License-Identifier: Apache-2.0
// A queue pair over a real socket against a target of the tests' own (nvmf_target.h), on a reactor that the test turns, with memory for its
// commands, and what its owner has heard.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "block/memory.h"
#include "block/segments.h"
#include "modules/nvmf/socket/tcp_queue.h"
#include "nvme/command.h"
#include "reactor/reactor.h"
#include "tests/unit/modules/nvmf_target.h"
#include "tests/unit/modules/test_disk.h"

namespace cleat::test {

// What the queue's owner has heard.
struct QueueOwner final : nvme::fabrics::QueuePairOwner {
  void Connected() override { connected = true; }
  void Completed(uint64_t cookie, const nvme::fabrics::CompletionEntry& entry, uint64_t data_bytes) override {
    completed[cookie] = {entry, data_bytes};
    if (on_completed) on_completed(cookie);
  }
  void Unanswered(uint64_t cookie, nvme::fabrics::Reached reached) override {
    unanswered[cookie] = reached;
    if (on_unanswered) on_unanswered();
  }
  void Ended(const Error& reason) override { ended = reason; }

  bool connected = false;
  std::map<uint64_t, std::pair<nvme::fabrics::CompletionEntry, uint64_t>> completed;
  std::map<uint64_t, nvme::fabrics::Reached> unanswered;
  std::optional<Error> ended;
  std::function<void(uint64_t)> on_completed;
  std::function<void()> on_unanswered;
};

inline nvme::fabrics::TransportAddress LoopbackAddress(uint16_t port) {
  return nvme::fabrics::ParseTransportAddress("127.0.0.1:" + std::to_string(port)).value();
}

class NvmfQueueRig : public testing::Test {
 protected:
  static constexpr uint32_t kBlock = NvmfTarget::kBlockBytes;

  void Make(uint16_t port, nvme::tcp::Digests digests = {}, uint32_t in_capsule_bytes = 8192) {
    nvme::tcp::HostConnectionOptions connection;
    connection.name = "disks/a: queue 1";
    connection.depth = 32;
    connection.digests = digests;
    connection.in_capsule_bytes = in_capsule_bytes;
    modules::TcpQueueOptions options(LoopbackAddress(port), connection);
    options.tuning = tuning_;
    options.tls = tls_;
    queue_ = std::make_unique<modules::TcpQueue>(options, *reactor_, owner_);
    queue_->Start();
  }
  void TearDown() override {
    if (queue_ && !queue_->ended()) queue_->Abort({ErrorCode::kCancelled, "the test is over"});
  }

  void Until(const std::function<bool()>& done) {
    while (!done()) reactor_->RunOnce();
  }
  // Connects, as the I/O queue of a controller.
  void MakeLive(uint16_t port, nvme::tcp::Digests digests = {}, uint32_t in_capsule_bytes = 8192) {
    Make(port, digests, in_capsule_bytes);
    Until([&] { return owner_.connected || owner_.ended; });
    ASSERT_TRUE(owner_.connected) << owner_.ended->message;
    nvme::fabrics::QueuedCommand connect;
    connect.entry.opcode = 0x7f;
    connect.entry.nsid = 1;          // FCTYPE: Connect
    connect.entry.cdw10 = 1U << 16;  // QID 1
    connect.entry.cdw11 = 31;        // SQSIZE
    std::memset(arena_.data(), 0, 1024);
    arena_.data()[16] = 1;
    std::strcpy(reinterpret_cast<char*>(arena_.data()) + 256, NvmfTarget::kSubsystem);
    Submit(connect, kConnect, Piece(0, 1024), {});
    ASSERT_TRUE(Wait(kConnect));
  }

  std::span<const block::Segment> Piece(uint64_t at, uint32_t bytes) {
    segments_.push_back(std::make_unique<block::Segment>(block::Segment{&arena_.region(), at, bytes}));
    return {segments_.back().get(), 1};
  }
  void Submit(nvme::fabrics::QueuedCommand command, uint64_t cookie, std::span<const block::Segment> out,
              std::span<const block::Segment> in) {
    command.cookie = cookie;
    command.to_target = out;
    command.from_target = in;
    queue_->Submit(command);
  }
  void Write(uint64_t cookie, uint64_t block, uint32_t bytes, uint64_t at) {
    nvme::fabrics::QueuedCommand command;
    command.entry = nvme::fabrics::EntryOf(
        nvme::OnBlocks(nvme::Opcode::kWrite, NvmfTarget::kNsid, block, bytes / kBlock, 0));
    Submit(command, cookie, Piece(at, bytes), {});
  }
  void Read(uint64_t cookie, uint64_t block, uint32_t bytes, uint64_t at) {
    nvme::fabrics::QueuedCommand command;
    command.entry = nvme::fabrics::EntryOf(
        nvme::OnBlocks(nvme::Opcode::kRead, NvmfTarget::kNsid, block, bytes / kBlock, 0));
    Submit(command, cookie, {}, Piece(at, bytes));
  }
  // Whether the command succeeded.
  bool Wait(uint64_t cookie) {
    Until([&] { return owner_.completed.contains(cookie) || owner_.ended; });
    return owner_.completed.contains(cookie) && owner_.completed[cookie].first.status().ok();
  }
  void FillPattern(uint64_t at, uint32_t bytes, uint64_t seed) {
    Random random(seed);
    for (uint32_t i = 0; i < bytes; ++i) arena_.data()[at + i] = static_cast<uint8_t>(random.Next());
  }
  bool TargetHas(NvmfTarget& target, uint64_t offset, uint64_t at, uint32_t bytes) {
    return std::memcmp(target.Read(offset, bytes).data(), arena_.data() + at, bytes) == 0;
  }
  // Writes in a capsule and by R2T, and reads both back.
  void WritesAndReads(NvmfTarget& target) {
    FillPattern(0, 4096, 1);
    FillPattern(1 << 20, 200 * 1024, 2);
    Write(1, 8, 4096, 0);
    Write(2, 1000, 200 * 1024, 1 << 20);
    Read(3, 8, 4096, 8192);
    ASSERT_TRUE(Wait(1) && Wait(2));
    EXPECT_TRUE(TargetHas(target, 8 * kBlock, 0, 4096));
    EXPECT_TRUE(TargetHas(target, 1000 * kBlock, 1 << 20, 200 * 1024));
    Read(4, 1000, 200 * 1024, 2 << 20);
    ASSERT_TRUE(Wait(4));
    EXPECT_EQ(owner_.completed[4].second, 200U * 1024);
    EXPECT_EQ(std::memcmp(arena_.data() + (1 << 20), arena_.data() + (2 << 20), 200 * 1024), 0);
  }

  // A VM's memory is a file, which whoever has made it may truncate under a request.
  void TakesMemoryAway(NvmfTarget& target) {
    constexpr uint32_t kBytes = 128 * 1024;
    constexpr uint32_t kLeft = 40 * 1024;
    for (const bool writes : {true, false}) {
      const UniqueFd file(memfd_create("guest", MFD_CLOEXEC));
      ASSERT_EQ(ftruncate(file.get(), kBytes), 0);
      const auto region = block::MemoryRegion::Map(file, 0, kBytes).value();
      std::memset(region->base(), 0x5a, kBytes);
      ASSERT_EQ(ftruncate(file.get(), kLeft), 0);
      const block::Segment whole{region.get(), 0, kBytes};
      nvme::fabrics::QueuedCommand command;
      command.entry = nvme::fabrics::EntryOf(nvme::OnBlocks(
          writes ? nvme::Opcode::kWrite : nvme::Opcode::kRead, NvmfTarget::kNsid, 0, kBytes / kBlock, 0));
      const uint64_t cookie = writes ? 101 : 102;
      if (writes) {
        Submit(command, cookie, {&whole, 1}, {});
      } else {
        Submit(command, cookie, {}, {&whole, 1});
      }
      ASSERT_TRUE(Wait(cookie)) << owner_.ended->message;
      EXPECT_TRUE(region->broken()) << "its owner is told";
      std::vector<uint8_t> expected(kBytes);
      std::fill_n(expected.begin(), kLeft, 0x5a);
      EXPECT_EQ(target.Read(0, kBytes), expected);
    }
    WritesAndReads(target);
  }

  static constexpr uint64_t kConnect = 1000;
  MonotonicClock clock_;
  ManualClock virtual_clock_;
  std::unique_ptr<Reactor> reactor_ = Reactor::Make(clock_, {}).value();
  QueueOwner owner_;
  Arena arena_{4 << 20};
  std::vector<std::unique_ptr<block::Segment>> segments_;
  modules::TcpTuning tuning_;
  nvmf::TlsNames tls_;
  std::unique_ptr<modules::TcpQueue> queue_;
};

}  // namespace cleat::test
