// SPDX-License-Identifier: Apache-2.0
// A queue pair over a real socket against a target of the test's own (nvmf_target.h). Costs about a second; no
// deadline is waited for.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "block/memory_guard.h"
#include "modules/nvmf/socket/tcp_queue.h"
#include "nvmf/socket/stream_socket.h"
#include "tests/unit/modules/nvmf_queue_rig.h"
#include "tests/unit/modules/nvmf_target.h"

namespace cleat::modules::nvmf_queue_test {
namespace {

using nvme::fabrics::Reached;
using test::NvmfTarget;

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

class NvmfQueue : public test::NvmfQueueRig {};

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
  struct Events final : nvmf::SocketEvents {
    void SocketReady() override { ready = true; }
    bool ready = false;
  } events;
  nvmf::StreamSocket stream(*reactor, events);
  ASSERT_TRUE(stream.Connect(test::LoopbackAddress(ntohs(address.sin_port))).ok());
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

TEST_F(NvmfQueue, WithoutWhatMakesItFastItDoesTheSame) {
  NvmfTarget target;
  tuning_ = {.batches_sends = false, .reads_without_event = false, .receive_buffer_bytes = 4096};
  MakeLive(target.port(), {.header = true, .data = true});
  WritesAndReads(target);
  EXPECT_EQ(target.counts.digest_errors, 0U);
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

TEST_F(NvmfQueue, MemoryThatIsTakenAwayIsZeroesAndEndsNoQueue) {
  ASSERT_TRUE(block::MemoryGuard::Install().ok());
  NvmfTarget target;
  MakeLive(target.port());
  TakesMemoryAway(target);
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
