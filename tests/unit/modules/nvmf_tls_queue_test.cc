// SPDX-License-Identifier: Apache-2.0
// A queue pair over TLS against a target of the tests' own behind OpenSSL (tls_front.h). Costs about two seconds; no deadline is waited
// for.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "block/memory_guard.h"
#include "nvme/tls/psk.h"
#include "tests/unit/modules/nvmf_queue_rig.h"
#include "tests/unit/modules/nvmf_target.h"
#include "tests/unit/modules/tls_front.h"

// What the kernel answers to calls of this thread that a test wants to go otherwise. No event of the socket follows upon either.
namespace {

struct SendFaults {
  int sends_until_no_memory = -1;  // then ENOBUFS for good; negative: never
  size_t part_bytes = 0;           // the next send takes so many, of its first piece; 0: all
};
thread_local SendFaults t_send_faults;

// How far a kernel goes along that is asked to make the records; the real one may have none of it.
enum class KernelTls : uint8_t { kReal, kNoModule, kNoCipher, kSealsOnly };
thread_local KernelTls t_kernel_tls = KernelTls::kReal;

int Refuse(int error_number) {
  errno = error_number;
  return -1;
}

}  // namespace

extern "C" int setsockopt(int socket_fd, int level, int option, const void* value, socklen_t bytes) {
  constexpr int kTls = 282;
  constexpr int kReceive = 2;
  const KernelTls kernel = t_kernel_tls;
  if (kernel != KernelTls::kReal && level == IPPROTO_TCP && option == TCP_ULP)
    return kernel == KernelTls::kNoModule ? Refuse(ENOENT) : 0;
  if (kernel != KernelTls::kReal && level == kTls) {
    if (kernel == KernelTls::kNoCipher) return Refuse(ENOENT);
    return option == kReceive ? Refuse(ENOMEM) : 0;
  }
  return static_cast<int>(syscall(SYS_setsockopt, socket_fd, level, option, value, bytes));
}

extern "C" ssize_t sendmsg(int socket_fd, const msghdr* message, int flags) {
  SendFaults& faults = t_send_faults;
  if (faults.sends_until_no_memory > 0) {
    --faults.sends_until_no_memory;
  } else if (faults.sends_until_no_memory == 0) {
    errno = ENOBUFS;
    return -1;
  }
  msghdr given = *message;
  iovec first{};
  if (faults.part_bytes > 0 && given.msg_iovlen > 0) {
    first = given.msg_iov[0];
    first.iov_len = std::min(first.iov_len, std::exchange(faults.part_bytes, 0));
    given.msg_iov = &first;
    given.msg_iovlen = 1;
  }
  return syscall(SYS_sendmsg, socket_fd, &given, flags);
}

namespace cleat::modules::nvmf_tls_queue_test {
namespace {

using nvme::fabrics::Reached;
using test::NvmfTarget;
using test::TlsFront;

constexpr const char* kHostNqn = "nqn.2014-08.org.example:host";
constexpr uint64_t kLengthOfFirstRecord = 3;  // behind its type and version

class NvmfTlsQueue : public test::NvmfQueueRig {
 protected:
  // Queues that are made from now on have it.
  void GiveKey(const char* text) {
    tls_ = {.psk = std::make_shared<const nvme::tls::Psk>(nvme::tls::Psk::Parse(text, "the key").value()),
            .host_nqn = kHostNqn,
            .subsystem_nqn = NvmfTarget::kSubsystem,
            .by_kernel = true};
  }
  static TlsFront::Names NamesOf(const char* text) {
    return {.psk = text, .host_nqn = kHostNqn, .subsystem_nqn = NvmfTarget::kSubsystem};
  }
  // A queue that is made, and how it ended before it was connected.
  ErrorCode CodeOfTry(uint16_t port) {
    owner_ = {};
    Make(port);
    UntilEnded();
    return owner_.ended->code;
  }
  void ExpectConnects(uint16_t port) {
    owner_ = {};
    Make(port);
    Until([&] { return owner_.connected || owner_.ended; });
    EXPECT_TRUE(owner_.connected) << owner_.ended->message;
    if (owner_.connected) queue_->Abort({ErrorCode::kCancelled, "over"});
  }
  void UntilEnded() {
    Until([&] { return owner_.ended.has_value(); });
  }
  // Time passes while something polls, and stands still while all is waited for, however long that takes.
  void UntilInVirtualTime(const std::function<bool()>& done) {
    Until([&] {
      if (!reactor_->CanSleep()) virtual_clock_.AdvanceBy(kNsPerUs);
      return done();
    });
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

constexpr uint8_t kInternalError = 80;
constexpr uint8_t kUnknownPskIdentity = 115;

// A subsystem's admin queues would otherwise turn to an identity that their target does not know, and the whole path be refused.
TEST_F(NvmfTlsQueue, AnIoQueueThatIsRefusedTriesAgainAndChangesNothingForOthers) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  GiveKey(test::kTlsKeys[0]);
  ExpectConnects(front.port());
  for (const uint8_t alert : {kInternalError, kUnknownPskIdentity}) {
    tls_.queue = nvmf::TlsNames::Queue::kIo;
    front.faults.alert = alert;
    for (int turn = 0; turn < 4; ++turn) EXPECT_EQ(CodeOfTry(front.port()), ErrorCode::kUnavailable);
    front.faults.alert = 0;
    ExpectConnects(front.port());
    tls_.queue = nvmf::TlsNames::Queue::kAdmin;
    ExpectConnects(front.port());
  }
}

TEST_F(NvmfTlsQueue, AnAdminQueueStaysWithItsIdentityWhileTheTargetIsInTrouble) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  GiveKey(test::kTlsKeys[0]);
  ExpectConnects(front.port());
  front.faults.alert = kInternalError;
  EXPECT_EQ(CodeOfTry(front.port()), ErrorCode::kUnavailable);
  front.faults.alert = 0;
  ExpectConnects(front.port());
  // Not so where the target says that it does not know it.
  front.faults.alert = kUnknownPskIdentity;
  EXPECT_EQ(CodeOfTry(front.port()), ErrorCode::kUnavailable);
  front.faults.alert = 0;
  EXPECT_EQ(CodeOfTry(front.port()), ErrorCode::kPermissionDenied) << "by the other identity";
  ExpectConnects(front.port());
}

TEST_F(NvmfTlsQueue, NamesThatAreTooLongForVersion0AreConnectedByVersion1) {
  GiveKey(test::kTlsKeys[0]);
  tls_.host_nqn = std::string(223, 'h');
  TlsFront::Names names{.psk = test::kTlsKeys[0],
                        .host_nqn = tls_.host_nqn,
                        .subsystem_nqn = tls_.subsystem_nqn,
                        .identity = nvme::tls::IdentityVersion::kV1};
  TlsFront front(names, target_.port());
  ExpectConnects(front.port());
  EXPECT_EQ(front.counts.accepted, 1U);
  // There is no other one to be tried.
  names.psk = test::kOtherTlsKey;
  TlsFront other(names, target_.port());
  EXPECT_EQ(CodeOfTry(other.port()), ErrorCode::kPermissionDenied);
  EXPECT_EQ(CodeOfTry(other.port()), ErrorCode::kPermissionDenied);
}

// The socket's event, for which a queue that is full sleeps, would never come.
TEST_F(NvmfTlsQueue, AnErrorInTheMidstOfASendEndsTheQueueWithoutAnEvent) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  GiveKey(test::kTlsKeys[0]);
  MakeLive(front.port(), {}, 128 * 1024);
  Until([&] { return reactor_->CanSleep(); });
  t_send_faults.sends_until_no_memory = 1;
  Write(1, 0, 128 * 1024, 0);
  Until([&] { return owner_.ended || reactor_->CanSleep(); });
  EXPECT_EQ(std::exchange(t_send_faults.sends_until_no_memory, -1), 0);
  ASSERT_TRUE(owner_.ended);
  EXPECT_EQ(owner_.ended->code, ErrorCode::kResourceExhausted) << owner_.ended->message;
  EXPECT_TRUE(owner_.unanswered.contains(1));
}

TEST_F(NvmfTlsQueue, APartThatTheKernelTookIsFollowedByTheRestWithoutAnEvent) {
  for (const bool has_tls : {false, true}) {
    TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
    tls_ = {};
    if (has_tls) GiveKey(test::kTlsKeys[0]);
    owner_ = {};
    MakeLive(has_tls ? front.port() : target_.port(), {}, 128 * 1024);
    Until([&] { return reactor_->CanSleep(); });
    FillPattern(0, 4096, 9);
    t_send_faults.part_bytes = 20;
    Write(1, 0, 4096, 0);
    ASSERT_TRUE(Wait(1));
    EXPECT_EQ(t_send_faults.part_bytes, 0U);
    queue_->Abort({ErrorCode::kCancelled, "over"});
  }
}

TEST_F(NvmfTlsQueue, AKernelThatCantMakeTheRecordsChangesNothing) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  GiveKey(test::kTlsKeys[0]);
  for (const auto& [kernel, text] :
       {std::pair(KernelTls::kNoModule, "it has no module tls"), std::pair(KernelTls::kNoCipher, "cipher")}) {
    t_kernel_tls = kernel;
    owner_ = {};
    MakeLive(front.port());
    t_kernel_tls = KernelTls::kReal;
    EXPECT_NE(queue_->tls_maker().find(text), std::string::npos) << queue_->tls_maker();
    WritesAndReads(target_);
    queue_->Abort({ErrorCode::kCancelled, "over"});
  }
}

// What it has taken can't be had back, so that the connection ends, and the next one is made without it.
TEST_F(NvmfTlsQueue, AKernelThatTakesTheKeysOfOneDirectionAloneIsLeftAloneFromThenOn) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  GiveKey(test::kTlsKeys[0]);
  t_kernel_tls = KernelTls::kSealsOnly;
  EXPECT_EQ(CodeOfTry(front.port()), ErrorCode::kResourceExhausted);
  EXPECT_TRUE(Says("can't open them")) << owner_.ended->message;
  owner_ = {};
  MakeLive(front.port());
  t_kernel_tls = KernelTls::kReal;
  EXPECT_NE(queue_->tls_maker().find("it can't follow"), std::string::npos) << queue_->tls_maker();
  WritesAndReads(target_);
}

TEST_F(NvmfTlsQueue, TheKernelIsNotAskedWhereThatIsSwitchedOff) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  GiveKey(test::kTlsKeys[0]);
  tls_.by_kernel = false;
  t_kernel_tls = KernelTls::kSealsOnly;
  MakeLive(front.port());
  t_kernel_tls = KernelTls::kReal;
  EXPECT_NE(queue_->tls_maker().find("switched off"), std::string::npos) << queue_->tls_maker();
  WritesAndReads(target_);
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

// A byte of its length is changed, so that the record waits for more than the target has to send before it hears of this host again.
TEST_F(NvmfTlsQueue, ARecordThatPromisesMoreThanComesIsWaitedForUntilTheDeadline) {
  TlsFront front(NamesOf(test::kTlsKeys[0]), target_.port());
  front.faults.change_at = kLengthOfFirstRecord;
  reactor_ = Reactor::Make(virtual_clock_, {}).value();
  GiveKey(test::kTlsKeys[0]);
  Make(front.port());
  UntilInVirtualTime([&] { return front.counts.sends > 0; });
  reactor_->RunOnce();  // looks at the socket
  UntilInVirtualTime([&] { return owner_.ended || reactor_->CanSleep(); });
  EXPECT_FALSE(owner_.ended || owner_.connected);
  virtual_clock_.AdvanceBy(10 * kNsPerSecond);
  Until([&] { return owner_.ended || owner_.connected; });
  ASSERT_TRUE(owner_.ended);
  EXPECT_EQ(owner_.ended->code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(Says("no answer in the TLS handshake")) << owner_.ended->message;
}

// Wherever the connection ends or a byte is changed: in the handshake, in ICResp, in data.
TEST_F(NvmfTlsQueue, ABrokenConnectionEndsTheQueueAndCommandsComeBack) {
  for (const bool cuts : {true, false}) {
    for (const uint64_t at : {0U, 3U, 100U, 150U, 700U, 5000U}) {
      if (!cuts && at == kLengthOfFirstRecord) continue;  // ends at the deadline, as above
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
