// SPDX-License-Identifier: Apache-2.0
// A queue pair over TLS against a target of the tests' own behind OpenSSL (tls_front.h). Costs about two seconds; no deadline is waited
// for.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "block/memory_guard.h"
#include "nvme/tls/psk.h"
#include "tests/unit/modules/nvmf_queue_rig.h"
#include "tests/unit/modules/nvmf_target.h"
#include "tests/unit/modules/tls_front.h"

namespace cleat::modules::nvmf_tls_queue_test {
namespace {

using nvme::fabrics::Reached;
using test::NvmfTarget;
using test::TlsFront;

constexpr const char* kHostNqn = "nqn.2014-08.org.example:host";

class NvmfTlsQueue : public test::NvmfQueueRig {
 protected:
  // Queues that are made from now on have it.
  void GiveKey(const char* text) {
    tls_ = {.psk = std::make_shared<const nvme::tls::Psk>(nvme::tls::Psk::Parse(text, "the key").value()),
            .host_nqn = kHostNqn,
            .subsystem_nqn = NvmfTarget::kSubsystem};
  }
  static TlsFront::Names NamesOf(const char* text) {
    return {.psk = text, .host_nqn = kHostNqn, .subsystem_nqn = NvmfTarget::kSubsystem};
  }
  void UntilEnded() {
    Until([&] { return owner_.ended.has_value(); });
  }
  // The kernel's buffer of this process' connection to the port.
  static void ShrinkSendBuffer(uint16_t port) {
    for (int fd = 0; fd < 256; ++fd) {
      sockaddr_in peer{};
      socklen_t bytes = sizeof(peer);
      const int size_bytes = 16 * 1024;
      if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 && ntohs(peer.sin_port) == port) {
        EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size_bytes, sizeof(size_bytes)), 0);
      }
    }
  }
  bool Says(const char* text) { return owner_.ended->message.find(text) != std::string::npos; }

  NvmfTarget target_;
};

TEST_F(NvmfTlsQueue, WhatIsWrittenIsThereAndIsReadBackWithEachHash) {
  for (const char* const key : test::kTlsKeys) {
    TlsFront front(NamesOf(key), target_.port());
    GiveKey(key);
    owner_ = {};
    MakeLive(front.port(), {.header = true, .data = true});
    WritesAndReads(target_);
    EXPECT_EQ(target_.counts.digest_errors, 0U);
    EXPECT_EQ(front.counts.established, 1U);
    queue_->Abort({ErrorCode::kCancelled, "over"});
    Until([&] { return front.counts.goodbyes == 1; });
  }
}

TEST_F(NvmfTlsQueue, ATargetThatSendsByteByByteAndUpdatesItsKeysIsUnderstood) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  front.faults.bytewise = true;
  front.faults.updates_keys = true;
  GiveKey(test::kTlsKeys[0]);
  MakeLive(front.port());
  FillPattern(0, 4096, 3);
  Write(1, 0, 4096, 0);
  ASSERT_TRUE(Wait(1));
  Read(2, 0, 4096, 8192);
  ASSERT_TRUE(Wait(2));
  EXPECT_EQ(std::memcmp(arena_.data(), arena_.data() + 8192, 4096), 0);
}

TEST_F(NvmfTlsQueue, ReadsThatAreLargerThanAllBuffersComeWithoutFurtherEvents) {
  TlsFront front(NamesOf(test::kTlsKeys[1]), target_.port());
  GiveKey(test::kTlsKeys[1]);
  MakeLive(front.port());
  const std::vector<uint8_t> content(2 << 20, 0x6b);
  target_.Write(0, content);
  for (uint64_t i = 0; i < 16; ++i) Read(i, i * 256, 128 * 1024, i * 128 * 1024);
  for (uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(Wait(i));
  EXPECT_EQ(std::memcmp(arena_.data(), content.data(), content.size()), 0);
  Until([&] { return reactor_->CanSleep(); });
}

// What the kernel does not take stays encrypted in the session, and the reactor sleeps meanwhile: also with the command whose last bytes were
// encrypted and not taken.
TEST_F(NvmfTlsQueue, WritesThatTheTargetDoesNotReadWaitAndTakeNoTime) {
  constexpr uint32_t kBytes = 24 * 1024;
  NvmfTarget::Options options;
  options.capsule_data_bytes = kBytes;
  NvmfTarget target(options);
  TlsFront front(NamesOf(test::kTlsKeys[0]), target.port());
  GiveKey(test::kTlsKeys[0]);
  MakeLive(front.port(), {}, kBytes);
  ShrinkSendBuffer(front.port());
  front.faults.deaf = true;
  Read(100, 0, kBlock, 31 * kBytes);  // its poll ends before the front looks again
  FillPattern(0, 30 * kBytes, 7);
  for (uint64_t i = 0; i < 30; ++i) {
    Write(i, i * kBytes / kBlock, kBytes, i * kBytes);
    Until([&] { return reactor_->CanSleep(); });
  }
  EXPECT_LT(target.counts.io_commands, 31U);
  front.faults.deaf = false;
  for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(Wait(i)) << i;
  EXPECT_TRUE(TargetHas(target, 0, 0, 30 * kBytes));
}

TEST_F(NvmfTlsQueue, MemoryThatIsTakenAwayIsZeroesAndEndsNoQueue) {
  ASSERT_TRUE(block::MemoryGuard::Install().ok());
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  GiveKey(test::kTlsKeys[0]);
  MakeLive(front.port());
  TakesMemoryAway(target_);
}

TEST_F(NvmfTlsQueue, AKeyThatTheTargetDoesNotHaveIsRefusedOnceBothIdentitiesWereTried) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  GiveKey(test::kOtherTlsKey);
  Make(front.port());
  UntilEnded();
  EXPECT_EQ(owner_.ended->code, ErrorCode::kUnavailable) << owner_.ended->message;
  owner_ = {};
  Make(front.port());
  UntilEnded();
  EXPECT_EQ(owner_.ended->code, ErrorCode::kPermissionDenied);
  EXPECT_TRUE(Says("same pre-shared key")) << owner_.ended->message;
  EXPECT_EQ(target_.counts.ic_requests, 0U);
}

TEST_F(NvmfTlsQueue, ATargetOfTheOtherIdentityIsConnectedByTheSecondTryAndAtOnceFromThenOn) {
  TlsFront::Names names = NamesOf(test::kTlsKeys[0]);
  names.identity = nvme::tls::IdentityVersion::kV1;
  TlsFront front(names, target_.port());
  GiveKey(test::kTlsKeys[0]);
  Make(front.port());
  UntilEnded();
  for (int turn = 0; turn < 2; ++turn) {
    owner_ = {};
    MakeLive(front.port());
    queue_->Abort({ErrorCode::kCancelled, "over"});
  }
  EXPECT_EQ(front.counts.accepted, 3U);
}

TEST_F(NvmfTlsQueue, ATargetWithoutTlsIsNamed) {
  GiveKey(test::kTlsKeys[0]);
  Make(target_.port());
  UntilEnded();
  EXPECT_EQ(owner_.ended->code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Says("TLS handshake")) << owner_.ended->message;
  EXPECT_TRUE(Says("pre-shared key")) << "Linux' target ends a handshake with a key that it does not know so";
  EXPECT_FALSE(owner_.connected);
}

TEST_F(NvmfTlsQueue, AHostWithoutTlsIsNotLetIn) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  Make(front.port());
  UntilEnded();
  EXPECT_FALSE(owner_.connected);
  EXPECT_EQ(front.counts.refused, 1U);
}

TEST_F(NvmfTlsQueue, ATargetThatNeverAnswersInTheHandshakeIsNamedAtTheDeadline) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  front.faults.mute = true;
  reactor_ = Reactor::Make(virtual_clock_, {}).value();
  GiveKey(test::kTlsKeys[0]);
  Make(front.port());
  Until([&] {
    virtual_clock_.AdvanceBy(kNsPerUs);
    return front.counts.accepted == 1 && reactor_->CanSleep();
  });
  EXPECT_FALSE(owner_.ended);
  virtual_clock_.AdvanceBy(10 * kNsPerSecond + kNsPerMs);
  UntilEnded();
  EXPECT_EQ(owner_.ended->code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(Says("no answer in the TLS handshake")) << owner_.ended->message;
}

// Two records go before the third one finds the connection reset. Otherwise a command that the target may have would not be in doubt.
TEST_F(NvmfTlsQueue, WhatWentBeforeTheConnectionBrokeInTheMidstOfASendHasReachedTheTarget) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  GiveKey(test::kTlsKeys[0]);
  MakeLive(front.port(), {}, 128 * 1024);
  front.CutAll();
  Write(1, 0, 4096, 0);
  Write(2, 1000, 128 * 1024, 1 << 20);
  UntilEnded();
  EXPECT_EQ(owner_.unanswered[1], Reached::kPerhapsAll);
}

// Wherever the connection ends or a byte is changed: in the handshake, in ICResp, in data.
TEST_F(NvmfTlsQueue, ABrokenConnectionEndsTheQueueAndCommandsComeBack) {
  for (const bool cuts : {true, false}) {
    for (const uint64_t at : {0U, 3U, 100U, 150U, 700U, 5000U}) {
      TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
      (cuts ? front.faults.cut_at : front.faults.change_at) = at;
      GiveKey(test::kTlsKeys[0]);
      owner_ = {};
      Make(front.port());
      Until([&] { return owner_.connected || owner_.ended; });
      // Without a Connect the target takes reads for admin commands, and refuses them.
      for (uint64_t i = 0; owner_.connected && !owner_.ended && i < 3000; ++i) {
        Read(i, 0, kBlock, 0);
        Until([&] { return owner_.completed.contains(i) || owner_.ended; });
      }
      ASSERT_TRUE(owner_.ended) << at;
      EXPECT_NE(owner_.ended->code, ErrorCode::kInternal) << owner_.ended->message;
      EXPECT_EQ(queue_->in_flight(), 0U);
    }
  }
}

}  // namespace
}  // namespace cleat::modules::nvmf_tls_queue_test
