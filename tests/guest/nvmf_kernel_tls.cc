// SPDX-License-Identifier: Apache-2.0
// Queue pairs whose records of TLS the kernel makes, against a target of the tests' own behind OpenSSL (tls_front.h), in a guest whose kernel has
// the module `tls`. Run by test_nvmf.py; it fails where the kernel has none.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "block/memory_guard.h"
#include "nvme/tls/psk.h"
#include "tests/unit/modules/nvmf_queue_rig.h"
#include "tests/unit/modules/nvmf_target.h"
#include "tests/unit/modules/tls_front.h"

// The next send of this thread with data, not an alert's, is made and reported as failed, as where a cipher that works on its own time fails for
// the last of several records.
namespace {
thread_local bool t_send_fails = false;
}

extern "C" ssize_t sendmsg(int socket_fd, const msghdr* message, int flags) {
  const ssize_t sent = syscall(SYS_sendmsg, socket_fd, message, flags);
  if (message->msg_controllen > 0 || !std::exchange(t_send_fails, false)) return sent;
  errno = ENOBUFS;
  return -1;
}

namespace cleat::modules::nvmf_kernel_tls {
namespace {

using nvme::fabrics::Reached;
using test::NvmfTarget;
using test::TlsFront;

constexpr const char* kHostNqn = "nqn.2014-08.org.example:host";
constexpr const char* kByKernel = "the kernel";

class KernelTls : public test::NvmfQueueRig {
 protected:
  void GiveKey(const char* text) {
    tls_ = {.psk = std::make_shared<const nvme::tls::Psk>(nvme::tls::Psk::Parse(text, "the key").value()),
            .host_nqn = kHostNqn,
            .subsystem_nqn = NvmfTarget::kSubsystem,
            .by_kernel = true};
  }
  static TlsFront::Names NamesOf(const char* text) {
    return {.psk = text, .host_nqn = kHostNqn, .subsystem_nqn = NvmfTarget::kSubsystem};
  }
  // A queue of an I/O controller's, whose records the kernel makes.
  void MakeByKernel(TlsFront& front, uint32_t in_capsule_bytes = 8192) {
    GiveKey(test::kTlsKeys[0]);
    MakeLive(front.port(), {}, in_capsule_bytes);
    ASSERT_EQ(queue_->tls_maker(), kByKernel);
  }
  // Reads until the queue has ended, which is to be soon.
  void ReadsUntilEnded() {
    for (uint64_t i = 0; !owner_.ended && i < 3000; ++i) {
      Read(i, 0, kBlock, 0);
      Until([&] { return owner_.completed.contains(i) || owner_.ended; });
    }
    ASSERT_TRUE(owner_.ended);
    EXPECT_EQ(queue_->in_flight(), 0U);
  }
  bool Says(const char* text) { return owner_.ended->message.find(text) != std::string::npos; }
  // The kernel's buffers of this process' connection to the port.
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

  NvmfTarget target_;
  TlsFront front_{NamesOf(test::kTlsKeys[0]), target_.port()};
};

// The front's server sends a session ticket first.
TEST_F(KernelTls, WhatIsWrittenIsThereAndIsReadBackWithEachHash) {
  for (const char* const key : test::kTlsKeys) {
    TlsFront front(NamesOf(key), target_.port());
    GiveKey(key);
    owner_ = {};
    MakeLive(front.port(), {.header = true, .data = true});
    EXPECT_EQ(queue_->tls_maker(), kByKernel);
    WritesAndReads(target_);
    EXPECT_EQ(target_.counts.digest_errors, 0U);
    queue_->Abort({ErrorCode::kCancelled, "over"});
    Until([&] { return front.counts.goodbyes == 1; });
  }
}

TEST_F(KernelTls, RequestsOfAllSizesAgreeWithTheReference) {
  constexpr uint64_t kPlaces = 8;
  constexpr uint32_t kPlaceBytes = 128 * 1024;
  constexpr uint64_t kBack = kPlaces * kPlaceBytes;
  MakeByKernel(front_);
  Random random(5);
  uint64_t cookie = 0;
  for (int round = 0; round < 4; ++round) {
    for (uint64_t place = 0; place < kPlaces; ++place) {
      // All of it in the first round, so that both sides begin alike.
      const uint64_t blocks = round == 0 ? kPlaceBytes / kBlock : 1 + random.Next() % (kPlaceBytes / kBlock);
      const auto bytes = static_cast<uint32_t>(kBlock * blocks);
      FillPattern(place * kPlaceBytes, bytes, random.Next());
      Write(++cookie, place * kPlaceBytes / kBlock, bytes, place * kPlaceBytes);
    }
    for (uint64_t i = cookie - kPlaces + 1; i <= cookie; ++i) ASSERT_TRUE(Wait(i));
    for (uint64_t place = 0; place < kPlaces; ++place)
      Read(++cookie, place * kPlaceBytes / kBlock, kPlaceBytes, kBack + place * kPlaceBytes);
    for (uint64_t i = cookie - kPlaces + 1; i <= cookie; ++i) ASSERT_TRUE(Wait(i));
    ASSERT_EQ(std::memcmp(arena_.data(), arena_.data() + kBack, kBack), 0) << "round " << round;
    ASSERT_TRUE(TargetHas(target_, 0, 0, kBack));
  }
  Until([&] { return reactor_->CanSleep(); });
}

TEST_F(KernelTls, ATargetThatSendsByteByByteIsUnderstood) {
  front_.faults.bytewise = true;
  MakeByKernel(front_);
  FillPattern(0, 4096, 3);
  Write(1, 0, 4096, 0);
  ASSERT_TRUE(Wait(1));
  Read(2, 0, 4096, 8192);
  ASSERT_TRUE(Wait(2));
  EXPECT_EQ(std::memcmp(arena_.data(), arena_.data() + 8192, 4096), 0);
}

// What the kernel has taken it has a copy of, or has encrypted: whoever closes the socket may give the memory away. The first commands go, also
// where the target reads nothing, and stay in the sockets' buffers until it does.
TEST_F(KernelTls, MemoryIsNotReadAnyMoreOnceItWasSent) {
  constexpr uint32_t kBytes = 24 * 1024;
  NvmfTarget::Options options;
  options.capsule_data_bytes = kBytes;
  NvmfTarget target(options);
  TlsFront front(NamesOf(test::kTlsKeys[0]), target.port());
  MakeByKernel(front, kBytes);
  ShrinkSendBuffer(front.port());
  front.faults.deaf = true;
  Read(100, 0, kBlock, 40 * kBytes);  // its poll ends before the front looks again
  FillPattern(0, 30 * kBytes, 7);
  for (uint64_t i = 0; i < 30; ++i) {
    Write(i, i * kBytes / kBlock, kBytes, i * kBytes);
    Until([&] { return reactor_->CanSleep(); });
  }
  EXPECT_LT(target.counts.io_commands, 3U) << "the rest is in the kernel, or here";
  const std::vector<uint8_t> before(arena_.data(), arena_.data() + 30 * kBytes);
  std::memset(arena_.data(), 0xee, 2 * kBytes);
  front.faults.deaf = false;
  for (uint64_t i = 0; i < 30; ++i) ASSERT_TRUE(Wait(i)) << i;
  EXPECT_EQ(std::memcmp(target.Read(0, 30 * kBytes).data(), before.data(), before.size()), 0);
}

TEST_F(KernelTls, MemoryThatIsTakenAwayIsZeroesAndEndsNoQueue) {
  ASSERT_TRUE(block::MemoryGuard::Install().ok());
  MakeByKernel(front_);
  TakesMemoryAway(target_);
}

TEST_F(KernelTls, AChangedByteEndsTheQueueAndIsNamed) {
  front_.faults.change_at = 5000;
  MakeByKernel(front_);
  ReadsUntilEnded();
  EXPECT_EQ(owner_.ended->code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Says("changed on its way")) << owner_.ended->message;
}

TEST_F(KernelTls, TheOrderlyEndIsTold) {
  MakeByKernel(front_);
  target_.faults.cut_io = true;
  ReadsUntilEnded();
  EXPECT_TRUE(Says("TLS: connection lost: the target has closed it")) << owner_.ended->message;
}

TEST_F(KernelTls, AnEndWithoutAWordIsTold) {
  MakeByKernel(front_);
  front_.CutAll();
  ReadsUntilEnded();
  EXPECT_TRUE(Says("connection lost")) << owner_.ended->message;
}

TEST_F(KernelTls, WhatAFailedCallMayHaveSentIsInDoubt) {
  MakeByKernel(front_);
  Until([&] { return reactor_->CanSleep(); });
  t_send_fails = true;
  FillPattern(0, 4096, 3);
  Write(1, 0, 4096, 0);
  Until([&] { return owner_.ended.has_value(); });
  EXPECT_FALSE(t_send_fails);
  EXPECT_EQ(owner_.ended->code, ErrorCode::kResourceExhausted) << owner_.ended->message;
  EXPECT_EQ(owner_.unanswered.at(1), Reached::kPerhapsAll);
}

// From then on this address is spoken to without the kernel, which can follow it.
TEST_F(KernelTls, ATargetThatChangesItsKeysEndsTheQueueOnceAndIsFollowedFromThenOn) {
  MakeByKernel(front_);
  front_.faults.updates_keys = true;
  ReadsUntilEnded();
  EXPECT_TRUE(Says("has changed its key")) << owner_.ended->message;
  owner_ = {};
  MakeLive(front_.port());
  EXPECT_NE(queue_->tls_maker().find("it can't follow this target"), std::string::npos)
      << queue_->tls_maker();
  WritesAndReads(target_);
}

TEST_F(KernelTls, SwitchedOffItIsNotUsed) {
  GiveKey(test::kTlsKeys[0]);
  tls_.by_kernel = false;
  MakeLive(front_.port());
  EXPECT_NE(queue_->tls_maker().find("switched off"), std::string::npos) << queue_->tls_maker();
  WritesAndReads(target_);
}

}  // namespace
}  // namespace cleat::modules::nvmf_kernel_tls
