// SPDX-License-Identifier: Apache-2.0
#include "nvmf/socket/stream_socket.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "nvmf/socket/kernel_address.h"
#include "nvmf/socket/tcp_options.h"

namespace cleat::nvmf {
namespace {

using nvme::fabrics::TransportAddress;

// Errors of this machine and its limits; the target has no part in them.
bool IsOurs(int error_number) {
  return error_number == ENOBUFS || error_number == ENOMEM || error_number == EMFILE ||
         error_number == ENFILE || error_number == EADDRNOTAVAIL;
}

constexpr size_t kTouchBytes = 4096;  // the smallest page
// How often one system call touches its memory: the owner may take more of it away right after it was touched.
constexpr int kTouchesMax = 8;

// A host allows net.core.rmem_max. A limit that was set can't be taken back, so that a socket which nobody needs is asked.
bool HostAllowsUnread(uint32_t bytes) {
  const UniqueFd asked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  int allowed = 0;  // twice what was set: the kernel counts its own needs too
  socklen_t size_bytes = sizeof(allowed);
  return SetOption(asked.get(), SOL_SOCKET, SO_RCVBUF, static_cast<int>(bytes), "SO_RCVBUF").ok() &&
         getsockopt(asked.get(), SOL_SOCKET, SO_RCVBUF, &allowed, &size_bytes) == 0 &&
         static_cast<uint32_t>(allowed) / 2 >= bytes;
}

// The owner of a guest may take memory of it away at any time. A touch has the memory guard (block/memory_guard.h) put zero pages there and mark
// that guest's memory as broken, where the kernel fails a system call with EFAULT: without it the connection would end, and so would the next
// one that tries the same request. No byte is changed.
//
// What the kernel is to write has to be written here too: a page may be gone for writing alone. A compiler may make a load of an atomic `or`
// with 0, and clang does; of a compare-and-exchange it may not.
void TouchByte(uint8_t* byte, bool writes) {
  uint8_t value = __atomic_load_n(byte, __ATOMIC_RELAXED);
  if (writes) __atomic_compare_exchange_n(byte, &value, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

void Touch(std::span<const iovec> pieces, bool writes) {
  for (const iovec& piece : pieces) {
    auto* const bytes = static_cast<uint8_t*>(piece.iov_base);
    for (size_t at = 0; at < piece.iov_len; at += kTouchBytes) TouchByte(bytes + at, writes);
    if (piece.iov_len > 0) TouchByte(bytes + piece.iov_len - 1, writes);
  }
}

}  // namespace

Error StreamSocket::Broken(int error_number, const char* doing) const {
  const std::string text =
      peer_ + ": " + doing + ": " + ErrnoError(error_number, "").message.substr(std::strlen(": "));
  return {IsOurs(error_number) ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable, text};
}

// A port is chosen with the peer (IP_BIND_ADDRESS_NO_PORT): chosen here, it would be of no use to connections with other peers meanwhile.
Status StreamSocket::BindTo(int fd, const TransportAddress& source) const {
  CLEAT_TRY(SetOption(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, "IP_BIND_ADDRESS_NO_PORT"));
  const KernelAddress from(source);
  if (bind(fd, from.get(), from.size_bytes) == 0) return Ok{};
  const int error_number = errno;
  const std::string text = nvme::fabrics::TextOfIp(source);
  if (error_number == EADDRNOTAVAIL) {
    return Error(ErrorCode::kFailedPrecondition,
                 text +
                     ", which it is to come from, is no address of this host: give the address to an "
                     "interface, or name another one");
  }
  return Error(IsOurs(error_number) ? ErrorCode::kResourceExhausted : ErrorCode::kFailedPrecondition,
               ErrnoError(error_number, "it can't come from " + text).message);
}

// All that the connection is to have, before it has a peer.
Status StreamSocket::Prepare(int fd, const StreamOptions& options) const {
  const uint32_t unread_bytes = options.unread_bytes;
  if (unread_bytes > 0 && HostAllowsUnread(unread_bytes))
    CLEAT_TRY(SetOption(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(unread_bytes), "SO_RCVBUF"));
  if (options.dscp != 0) CLEAT_TRY(SetDscp(fd, options.dscp));
  if (options.source) CLEAT_TRY(BindTo(fd, *options.source));
  const linger none{.l_onoff = 1, .l_linger = 0};
  if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none)) != 0) return ErrnoError(errno, "SO_LINGER");
  return SetTcpOptions(fd);
}

Status StreamSocket::Connect(const TransportAddress& address, const StreamOptions& options) {
  CLEAT_CHECK(!open());
  peer_ = nvme::fabrics::TextOfAddress(address);
  const KernelAddress to(address);
  UniqueFd fd(socket(to.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return Broken(errno, "no socket");
  if (const Status prepared = Prepare(fd.get(), options); !prepared.ok())
    return Error(prepared.error().code, peer_ + ": " + prepared.error().message);
  if (connect(fd.get(), to.get(), to.size_bytes) != 0 && errno != EINPROGRESS)
    return Broken(errno, "not connected");
  fd_ = std::move(fd);
  if (Status watched = watch_.Start(reactor_, fd_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP); !watched.ok()) {
    Close();
    return watched;
  }
  return Ok{};
}

Result<bool> StreamSocket::FinishConnect() {
  int error_number = 0;
  socklen_t bytes = sizeof(error_number);
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error_number, &bytes) != 0) error_number = errno;
  if (error_number != 0) return Broken(error_number, "not connected");
  sockaddr_storage peer{};
  bytes = sizeof(peer);
  if (getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&peer), &bytes) == 0) return true;
  if (errno == ENOTCONN) return false;
  return Broken(errno, "not connected");
}

Result<size_t> StreamSocket::Send(std::span<const iovec> pieces, int* error_number) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // the kernel reads it alone
  message.msg_iovlen = std::min(pieces.size(), kPiecesMax);
  int touches = 0;
  for (;;) {
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN) return size_t{0};
    if (errno == EFAULT && touches++ < kTouchesMax) {
      Touch(pieces.first(message.msg_iovlen), false);
      continue;
    }
    if (errno == EINTR) continue;
    if (error_number != nullptr) *error_number = errno;
    return Broken(errno, "connection lost while sending");
  }
}

// One piece, as nearly always, is read without a message header, which the kernel would copy and check: a queue that is polled in vain costs
// less, and an answer is found sooner.
Result<size_t> StreamSocket::Receive(std::span<const iovec> pieces, int* error_number) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // the kernel reads it alone
  message.msg_iovlen = std::min(pieces.size(), kPiecesMax);
  int touches = 0;
  for (;;) {
    const ssize_t received = message.msg_iovlen == 1
                                 ? recv(fd_.get(), pieces[0].iov_base, pieces[0].iov_len, 0)
                                 : recvmsg(fd_.get(), &message, 0);
    if (received > 0) return static_cast<size_t>(received);
    if (received == 0)
      return Error(ErrorCode::kUnavailable, peer_ + ": connection lost: the target has closed it");
    if (errno == EAGAIN) return size_t{0};
    if (errno == EFAULT && touches++ < kTouchesMax) {
      Touch(pieces.first(message.msg_iovlen), true);
      continue;
    }
    if (errno == EINTR) continue;
    if (error_number != nullptr) *error_number = errno;
    return Broken(errno, "connection lost");
  }
}

void StreamSocket::Close() {
  watch_.Stop();
  fd_.Reset();
}

}  // namespace cleat::nvmf
