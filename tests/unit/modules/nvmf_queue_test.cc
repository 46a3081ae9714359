// SPDX-License-Identifier: Apache-2.0
// A queue pair over a real socket against a target of the test's own (nvmf_target.h). Costs about a second; no
// deadline is waited for.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "block/memory.h"
#include "block/memory_guard.h"
#include "block/segments.h"
#include "modules/nvmf/stream_socket.h"
#include "modules/nvmf/tcp_queue.h"
#include "nvme/command.h"
#include "tests/unit/modules/nvmf_target.h"
#include "tests/unit/modules/test_disk.h"

namespace cleat::modules::nvmf_queue_test {
namespace {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::QueuedCommand;
using nvme::fabrics::Reached;
using test::Arena;
using test::NvmfTarget;

constexpr uint32_t kBlock = NvmfTarget::kBlockBytes;

// What the queue's owner has heard.
struct Owner final : nvme::fabrics::QueuePairOwner {
  void Connected() override { connected = true; }
  void Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) override {
    completed[cookie] = {entry, data_bytes};
    if (on_completed) on_completed(cookie);
  }
  void Unanswered(uint64_t cookie, Reached reached) override {
    unanswered[cookie] = reached;
    if (on_unanswered) on_unanswered();
  }
  void Ended(const Error& reason) override { ended = reason; }

  bool connected = false;
  std::map<uint64_t, std::pair<CompletionEntry, uint64_t>> completed;
  std::map<uint64_t, Reached> unanswered;
  std::optional<Error> ended;
  std::function<void(uint64_t)> on_completed;
  std::function<void()> on_unanswered;
};

nvme::fabrics::TransportAddress Loopback(uint16_t port) {
  return nvme::fabrics::ParseTransportAddress("127.0.0.1:" + std::to_string(port)).value();
}

// Whether this process has a socket that is connected to the port.
bool IsConnectedTo(uint16_t port) {
  for (int fd = 0; fd < 256; ++fd) {
    sockaddr_in peer{};
    socklen_t bytes = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 && peer.sin_family == AF_INET &&
        ntohs(peer.sin_port) == port)
      return true;
  }
  return false;
}

class NvmfQueue : public testing::Test {
 protected:
  void Make(uint16_t port, nvme::tcp::Digests digests = {}, uint32_t in_capsule_bytes = 8192) {
    nvme::tcp::HostConnectionOptions connection;
    connection.name = "disks/a: queue 1";
    connection.depth = 32;
    connection.digests = digests;
    connection.in_capsule_bytes = in_capsule_bytes;
    const TcpQueueOptions options(Loopback(port), connection);
    queue_ = std::make_unique<TcpQueue>(options, *reactor_, owner_);
    queue_->Start();
  }
  void TearDown() override {
    if (queue_ && !queue_->ended()) queue_->Abort({ErrorCode::kCancelled, "the test is over"});
  }

  void Until(const std::function<bool()>& done) {
    while (!done()) reactor_->RunOnce();
  }
  // Connects, as the I/O queue of a controller.
  void MakeLive(uint16_t port, nvme::tcp::Digests digests = {}) {
    Make(port, digests);
    Until([&] { return owner_.connected || owner_.ended; });
    ASSERT_TRUE(owner_.connected) << owner_.ended->message;
    QueuedCommand connect;
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
  void Submit(QueuedCommand command, uint64_t cookie, std::span<const block::Segment> out,
              std::span<const block::Segment> in) {
    command.cookie = cookie;
    command.to_target = out;
    command.from_target = in;
    queue_->Submit(command);
  }
  void Write(uint64_t cookie, uint64_t block, uint32_t bytes, uint64_t at) {
    QueuedCommand command;
    command.entry = nvme::fabrics::EntryOf(
        nvme::OnBlocks(nvme::Opcode::kWrite, NvmfTarget::kNsid, block, bytes / kBlock, 0));
    Submit(command, cookie, Piece(at, bytes), {});
  }
  void Read(uint64_t cookie, uint64_t block, uint32_t bytes, uint64_t at) {
    QueuedCommand command;
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

  static constexpr uint64_t kConnect = 1000;
  MonotonicClock clock_;
  ManualClock virtual_clock_;
  std::unique_ptr<Reactor> reactor_ = Reactor::Make(clock_, {}).value();
  Owner owner_;
  Arena arena_{4 << 20};
  std::vector<std::unique_ptr<block::Segment>> segments_;
  std::unique_ptr<TcpQueue> queue_;
};

// The peer has an empty receive buffer to begin with, so that all that it reads before the reset is what was sent before Close.
TEST(StreamSocketTest, CloseResetsAndWhatWasSentIsACopy) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);

  MonotonicClock clock;
  auto reactor = Reactor::Make(clock, {}).value();
  struct Events final : SocketEvents {
    void SocketReady() override { ready = true; }
    bool ready = false;
  } events;
  StreamSocket stream(*reactor, events);
  ASSERT_TRUE(stream.Connect(Loopback(ntohs(address.sin_port))).ok());
  while (!events.ready) reactor->RunOnce();
  ASSERT_TRUE(stream.FinishConnect().value());
  const UniqueFd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));

  std::vector<uint8_t> data(1 << 20, 'a');
  uint64_t sent = 0;
  for (;;) {
    const iovec piece{data.data(), data.size()};
    const size_t more = stream.Send({&piece, 1}).value();
    if (more == 0) break;
    sent += more;
  }
  std::fill(data.begin(), data.end(), 'b');
  stream.Close();

  uint64_t received = 0;
  ssize_t got = 0;
  for (std::vector<uint8_t> part(1 << 16); (got = recv(peer.get(), part.data(), part.size(), 0)) > 0;) {
    received += static_cast<uint64_t>(got);
    EXPECT_EQ(std::count(part.begin(), part.begin() + got, 'a'), got);
  }
  EXPECT_EQ(got, -1);  // 0 would be an orderly end, after all that was sent
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_LT(received, sent);
}

TEST_F(NvmfQueue, WhatIsWrittenIsThereAndIsReadBack) {
  NvmfTarget target;
  MakeLive(target.port());
  WritesAndReads(target);
  EXPECT_EQ(target.counts.r2t_writes, 1U);
}

TEST_F(NvmfQueue, BothDigestsAreAgreedOnAndRight) {
  NvmfTarget target;
  MakeLive(target.port(), {.header = true, .data = true});
  WritesAndReads(target);
  EXPECT_EQ(target.counts.digest_errors, 0U);
}

TEST_F(NvmfQueue, ReadsMayEndWithoutACapsule) {
  NvmfTarget::Options options;
  options.success_flag = true;
  NvmfTarget target(options);
  MakeLive(target.port());
  WritesAndReads(target);
}

TEST_F(NvmfQueue, ATargetThatSendsByteByByteIsUnderstood) {
  NvmfTarget target;
  target.faults.bytewise = true;
  MakeLive(target.port(), {.header = true, .data = true});
  FillPattern(0, 4096, 3);
  Write(1, 0, 4096, 0);
  ASSERT_TRUE(Wait(1));
  Read(2, 0, 4096, 8192);
  ASSERT_TRUE(Wait(2));
  EXPECT_EQ(std::memcmp(arena_.data(), arena_.data() + 8192, 4096), 0);
}

TEST_F(NvmfQueue, ACompletionMaySubmitTheNextCommand) {
  NvmfTarget target;
  MakeLive(target.port());
  int left = 200;
  owner_.on_completed = [&](uint64_t cookie) {
    if (left-- > 0) Read(cookie + 8, cookie, kBlock, (cookie % 8) * kBlock);
  };
  for (uint64_t i = 0; i < 8; ++i) Read(i, i, kBlock, i * kBlock);
  Until([&] { return owner_.ended || queue_->in_flight() == 0; });
  EXPECT_FALSE(owner_.ended);
  EXPECT_EQ(target.counts.reads, 208U);
}

TEST_F(NvmfQueue, AnIdleQueueIsArmed) {
  NvmfTarget target;
  MakeLive(target.port());
  Until([&] { return reactor_->CanSleep(); });
  Read(1, 0, kBlock, 0);
  EXPECT_FALSE(reactor_->CanSleep());
  EXPECT_TRUE(Wait(1));
  Until([&] { return reactor_->CanSleep(); });
}

TEST_F(NvmfQueue, APortWhereNobodyListensIsNamed) {
  NvmfTarget target;
  target.Stop();
  Make(target.port());
  Until([&] { return owner_.ended.has_value(); });
  EXPECT_EQ(owner_.ended->code, ErrorCode::kUnavailable);
  const std::string address = "127.0.0.1:" + std::to_string(target.port());
  EXPECT_NE(owner_.ended->message.find(address), std::string::npos) << owner_.ended->message;
  EXPECT_NE(owner_.ended->message.find("refused"), std::string::npos) << owner_.ended->message;
  EXPECT_FALSE(owner_.connected);
}

TEST_F(NvmfQueue, ATargetThatNeverAnswersICReqIsNamedAtTheDeadline) {
  NvmfTarget target;
  target.faults.never_icresp = true;
  reactor_ = Reactor::Make(virtual_clock_, {}).value();
  Make(target.port());
  Until([&] {
    virtual_clock_.AdvanceBy(kNsPerUs);
    return target.counts.ic_requests == 1;
  });
  EXPECT_FALSE(owner_.ended);
  virtual_clock_.AdvanceBy(10 * kNsPerSecond + kNsPerMs);
  Until([&] { return owner_.ended.has_value(); });
  EXPECT_EQ(owner_.ended->code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(owner_.ended->message.find("no answer to ICReq"), std::string::npos) << owner_.ended->message;
  EXPECT_FALSE(owner_.connected);
}

TEST_F(NvmfQueue, ATargetThatClosesInTheMidstOfDataEndsTheQueueAndCommandsComeBack) {
  NvmfTarget target;
  MakeLive(target.port());
  target.faults.cut_in_data = true;
  Read(1, 0, 65536, 0);
  Until([&] { return owner_.ended.has_value(); });
  EXPECT_EQ(owner_.ended->code, ErrorCode::kUnavailable) << owner_.ended->message;
  ASSERT_EQ(owner_.unanswered.size(), 1U);
  EXPECT_EQ(owner_.unanswered[1], Reached::kPerhapsAll);
  EXPECT_EQ(queue_->in_flight(), 0U);
  EXPECT_EQ(queue_->room(), 0U);
}

TEST_F(NvmfQueue, AWriteWhoseDataNobodyAskedForHasNotReachedTheTarget) {
  NvmfTarget target;
  MakeLive(target.port());
  target.faults.mute_r2t = true;
  Write(1, 0, 65536, 0);
  Until([&] { return target.counts.io_commands == 1; });
  Write(2, 0, kBlock, 0);  // not sent yet
  queue_->Abort({ErrorCode::kCancelled, "given up"});
  EXPECT_EQ(owner_.unanswered[1], Reached::kNoData);
  EXPECT_EQ(owner_.unanswered[2], Reached::kNothing);
  EXPECT_EQ(owner_.ended->message, "given up");
}

TEST_F(NvmfQueue, AWriteInItsCapsuleMayHaveBeenExecuted) {
  NvmfTarget target;
  MakeLive(target.port());
  target.faults.mute_io = true;
  Write(1, 0, 4096, 0);
  Until([&] { return target.counts.io_commands == 1; });
  target.CutAll();
  Until([&] { return owner_.ended.has_value(); });
  EXPECT_EQ(owner_.unanswered[1], Reached::kPerhapsAll);
}

// A VM's memory is a file, which whoever has made it may truncate under a request.
TEST_F(NvmfQueue, MemoryThatIsTakenAwayIsZeroesAndEndsNoQueue) {
  constexpr uint32_t kBytes = 128 * 1024;
  constexpr uint32_t kLeft = 40 * 1024;
  ASSERT_TRUE(block::MemoryGuard::Install().ok());
  NvmfTarget target;
  MakeLive(target.port());
  for (const bool writes : {true, false}) {
    const UniqueFd file(memfd_create("guest", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(file.get(), kBytes), 0);
    const auto region = block::MemoryRegion::Map(file, 0, kBytes).value();
    std::memset(region->base(), 0x5a, kBytes);
    ASSERT_EQ(ftruncate(file.get(), kLeft), 0);
    const block::Segment whole{region.get(), 0, kBytes};
    QueuedCommand command;
    command.entry = nvme::fabrics::EntryOf(nvme::OnBlocks(writes ? nvme::Opcode::kWrite : nvme::Opcode::kRead,
                                                          NvmfTarget::kNsid, 0, kBytes / kBlock, 0));
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

TEST_F(NvmfQueue, AHeaderDigestThatIsWrongEndsTheQueue) {
  NvmfTarget target;
  MakeLive(target.port(), {.header = true, .data = true});
  target.faults.wrong_header_digest = true;
  Read(1, 0, 4096, 0);
  Until([&] { return owner_.ended.has_value(); });
  EXPECT_EQ(owner_.ended->code, ErrorCode::kIo) << owner_.ended->message;
}

TEST_F(NvmfQueue, ADataDigestThatIsWrongFailsItsCommandAlone) {
  NvmfTarget target;
  MakeLive(target.port(), {.header = true, .data = true});
  target.faults.wrong_data_digest = true;
  Read(1, 0, 4096, 0);
  EXPECT_FALSE(Wait(1));
  target.faults.wrong_data_digest = false;
  Read(2, 0, 4096, 0);
  EXPECT_TRUE(Wait(2));
  EXPECT_FALSE(owner_.ended);
}

TEST_F(NvmfQueue, TheSocketIsClosedBeforeTheOwnerHearsOfCommands) {
  for (const bool target_ends_it : {false, true}) {
    NvmfTarget target;
    owner_ = {};
    MakeLive(target.port(), {.header = true, .data = true});
    EXPECT_TRUE(IsConnectedTo(target.port()));
    bool was_open = false;
    owner_.on_unanswered = [&] { was_open |= IsConnectedTo(target.port()); };
    target.faults.wrong_header_digest = true;
    Read(1, 0, 4096, 0);
    if (target_ends_it) {
      Until([&] { return owner_.ended.has_value(); });
    } else {
      queue_->Abort({ErrorCode::kCancelled, "over"});
    }
    EXPECT_EQ(owner_.unanswered.size(), 1U);
    EXPECT_FALSE(was_open);
    Until([&] { return reactor_->CanSleep(); });
  }
}

}  // namespace
}  // namespace cleat::modules::nvmf_queue_test
