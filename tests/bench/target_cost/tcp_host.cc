// SPDX-License-Identifier: Apache-2.0
// A host over TCP. Its queues are connected over the kernel's sockets; then the target's end of the I/O queue's is played from memory: the linker has the
// target call __wrap_recv and __wrap_sendmsg in place of the system calls, which nothing else changes.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/unique_fd.h"
#include "nvme/tcp/pdu.h"
#include "tests/bench/target_cost/bench_target.h"

namespace cleat::bench {
namespace {

using nvme::fabrics::CompletionEntry;
using nvme::fabrics::SubmissionEntry;
using nvme::tcp::CapsuleCmd;
using nvme::tcp::CapsuleResp;
using nvme::tcp::CommonHeader;
using nvme::tcp::IcReq;
using nvme::tcp::IcResp;
using nvme::tcp::PduType;

// The target's end of the I/O queue's socket, once it is played.
struct PlayedSocket {
  int fd = -1;
  std::vector<uint8_t> to_target;
  size_t taken = 0;   // of it
  uint64_t skip = 0;  // bytes of a PDU that is being sent to the host
  uint32_t answers = 0;

  size_t Receive(uint8_t* to, size_t room) {
    const size_t bytes = std::min(room, to_target.size() - taken);
    std::memcpy(to, to_target.data() + taken, bytes);
    taken += bytes;
    return bytes;
  }
  size_t Send(std::span<const iovec> pieces) {
    size_t all = 0;
    for (const iovec& piece : pieces) {
      all += piece.iov_len;
      Look({static_cast<const uint8_t*>(piece.iov_base), piece.iov_len});
    }
    return all;
  }

 private:
  // A header is never in two pieces.
  void Look(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      if (skip == 0) skip = BeginPdu(bytes);
      const size_t some = std::min<size_t>(skip, bytes.size());
      skip -= some;
      bytes = bytes.subspan(some);
    }
  }
  uint64_t BeginPdu(std::span<const uint8_t> bytes) {
    CapsuleResp pdu;  // as long as C2HData
    std::memcpy(&pdu, bytes.data(), sizeof(pdu));
    const bool succeeds = (pdu.header.flags & nvme::tcp::kFlagSuccess) != 0;
    if (pdu.header.type == PduType::kCapsuleResp && !pdu.entry.status().ok()) Fail("a read has failed");
    answers += pdu.header.type == PduType::kCapsuleResp || succeeds ? 1 : 0;
    return pdu.header.pdu_bytes;
  }
};

PlayedSocket played;

// The descriptor of this process that is the other end of `fd`.
int OtherEndOf(int fd) {
  constexpr int kDescriptorsMax = 1024;
  sockaddr_in own{};
  socklen_t bytes = sizeof(own);
  getsockname(fd, reinterpret_cast<sockaddr*>(&own), &bytes);
  for (int other = 0; other < kDescriptorsMax; ++other) {
    sockaddr_in peer{};
    bytes = sizeof(peer);
    if (getpeername(other, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 && peer.sin_family == AF_INET &&
        peer.sin_port == own.sin_port)
      return other;
  }
  Fail("no other end of the I/O queue's socket");
}

class TcpHost final : public BenchHost {
 public:
  explicit TcpHost(uint16_t port) : port_(port) {}

  void SendReads(uint32_t count) override {
    played.to_target.resize(size_t{count} * sizeof(CapsuleCmd));
    played.taken = 0;
    for (uint32_t i = 0; i < count; ++i) {
      CapsuleCmd capsule = CapsuleOf(ReadEntry(i), 0);
      capsule.entry.data = {
          .address = 0, .length_bytes = kReadBytes, .reserved = {}, .type = nvme::fabrics::kSglByTransport};
      std::memcpy(played.to_target.data() + size_t{i} * sizeof(capsule), &capsule, sizeof(capsule));
    }
  }
  uint32_t TakeAnswers() override { return std::exchange(played.answers, 0); }

 private:
  static CapsuleCmd CapsuleOf(const SubmissionEntry& entry, size_t data_bytes) {
    CapsuleCmd capsule;
    capsule.header = {PduType::kCapsuleCmd, 0, sizeof(capsule),
                      static_cast<uint8_t>(data_bytes == 0 ? 0 : sizeof(capsule)),
                      static_cast<uint32_t>(sizeof(capsule) + data_bytes)};
    capsule.entry = entry;
    return capsule;
  }

  void Open(BenchTarget& target, uint16_t queue) override {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockets_[queue].Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(sockets_[queue].get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      Fail("the target does not listen");
    IcReq request;
    request.header = {PduType::kIcReq, 0, sizeof(request), 0, sizeof(request)};
    Send(queue, &request, sizeof(request));
    IcResp response;
    Receive(target, queue, &response, sizeof(response));
  }
  CompletionEntry Do(BenchTarget& target, uint16_t queue, const SubmissionEntry& entry,
                     std::span<const uint8_t> data) override {
    CapsuleCmd capsule = CapsuleOf(entry, data.size());
    capsule.entry.data.type = data.empty() ? nvme::fabrics::kSglByTransport : nvme::fabrics::kSglInCapsule;
    capsule.entry.data.length_bytes = static_cast<uint32_t>(data.size());
    Send(queue, &capsule, sizeof(capsule));
    Send(queue, data.data(), data.size());
    CapsuleResp response;
    Receive(target, queue, &response, sizeof(response));
    if (response.header.type != PduType::kCapsuleResp || !response.entry.status().ok())
      Fail("the target refuses what a host does to connect");
    return response.entry;
  }
  void Begin() override {
    played.fd = OtherEndOf(sockets_[kIo].get());
    Send(kIo, "", 1);  // which nobody reads: it wakes the target, which polls from then on
  }

  void Send(uint16_t queue, const void* data, size_t bytes) {
    if (send(sockets_[queue].get(), data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes))
      Fail("the target is gone");
  }
  void Receive(BenchTarget& target, uint16_t queue, void* to, size_t bytes) {
    size_t got = 0;
    target.Until([&] {
      const ssize_t some =
          recv(sockets_[queue].get(), static_cast<uint8_t*>(to) + got, bytes - got, MSG_DONTWAIT);
      if (some == 0 || (some < 0 && errno != EAGAIN)) Fail("the target is gone");
      got += some > 0 ? static_cast<size_t>(some) : 0;
      return got == bytes;
    });
  }

  const uint16_t port_;
  std::array<UniqueFd, 2> sockets_;
};

}  // namespace

std::unique_ptr<BenchHost> MakeTcpHost(uint16_t port) {
  return std::make_unique<TcpHost>(port);
}

}  // namespace cleat::bench

// What the target calls for recv(2) and sendmsg(2).
extern "C" {
ssize_t __real_recv(int fd, void* to, size_t room, int flags);
ssize_t __real_sendmsg(int fd, const msghdr* message, int flags);
ssize_t __wrap_recv(int fd, void* to, size_t room, int flags);
ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags);

ssize_t __wrap_recv(int fd, void* to, size_t room, int flags) {
  auto& played = cleat::bench::played;
  if (fd != played.fd) return __real_recv(fd, to, room, flags);
  const size_t bytes = played.Receive(static_cast<uint8_t*>(to), room);
  if (bytes > 0) return static_cast<ssize_t>(bytes);
  errno = EAGAIN;
  return -1;
}

ssize_t __wrap_sendmsg(int fd, const msghdr* message, int flags) {
  auto& played = cleat::bench::played;
  if (fd != played.fd) return __real_sendmsg(fd, message, flags);
  return static_cast<ssize_t>(played.Send({message->msg_iov, message->msg_iovlen}));
}
}
