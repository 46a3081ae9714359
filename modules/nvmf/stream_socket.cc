// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/stream_socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cleat::modules {
namespace {

// Errors of this machine and its limits; the target has no part in them.
bool IsOurs(int error_number) {
  return error_number == ENOBUFS || error_number == ENOMEM || error_number == EMFILE ||
         error_number == ENFILE || error_number == EADDRNOTAVAIL;
}

Status Set(int fd, int level, int option, const void* value, socklen_t bytes, const char* name) {
  if (setsockopt(fd, level, option, value, bytes) != 0) return ErrnoError(errno, name);
  return Ok{};
}

Status SetInt(int fd, int level, int option, int value, const char* name) {
  return Set(fd, level, option, &value, sizeof(value), name);
}

}  // namespace

Result<SocketAddress> SocketAddress::Parse(const std::string& host, uint16_t port) {
  const Error wrong(ErrorCode::kInvalidArgument,
                    "'" + host + "' is no address: give IPv4 or IPv6 in numbers, not a name");
  if (port == 0)
    return Error(ErrorCode::kInvalidArgument, host + ": port 0: give the one that the target listens on");
  SocketAddress address;
  auto& four = reinterpret_cast<sockaddr_in&>(address.storage_);
  if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    address.size_bytes_ = sizeof(four);
    address.text_ = host + ":" + std::to_string(port);
    return address;
  }
  auto& six = reinterpret_cast<sockaddr_in6&>(address.storage_);
  address.storage_ = {};
  const size_t zone = host.find('%');
  if (inet_pton(AF_INET6, host.substr(0, zone).c_str(), &six.sin6_addr) != 1) return wrong;
  if (zone != std::string::npos) {
    six.sin6_scope_id = if_nametoindex(host.c_str() + zone + 1);
    if (six.sin6_scope_id == 0)
      return Error(ErrorCode::kInvalidArgument,
                   host + ": no network interface '" + host.substr(zone + 1) + "' here");
  }
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  address.size_bytes_ = sizeof(six);
  address.text_ = "[" + host + "]:" + std::to_string(port);
  return address;
}

Error StreamSocket::Broken(int error_number, const char* doing) const {
  const std::string text =
      peer_ + ": " + doing + ": " + ErrnoError(error_number, "").message.substr(std::strlen(": "));
  return {IsOurs(error_number) ? ErrorCode::kResourceExhausted : ErrorCode::kUnavailable, text};
}

// All that the connection is to have, before it has a peer.
Status StreamSocket::Prepare(int fd) const {
  const linger none{.l_onoff = 1, .l_linger = 0};
  CLEAT_TRY(Set(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none), "SO_LINGER"));
  CLEAT_TRY(SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  CLEAT_TRY(SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  CLEAT_TRY(SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS, "TCP_KEEPIDLE"));
  CLEAT_TRY(SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalS, "TCP_KEEPINTVL"));
  CLEAT_TRY(SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes, "TCP_KEEPCNT"));
  return SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs, "TCP_USER_TIMEOUT");
}

Status StreamSocket::Connect(const SocketAddress& address) {
  CLEAT_CHECK(!open());
  peer_ = address.text();
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return Broken(errno, "no socket");
  if (const Status prepared = Prepare(fd.get()); !prepared.ok())
    return Error(prepared.error().code, peer_ + ": " + prepared.error().message);
  if (connect(fd.get(), address.get(), address.size_bytes()) != 0 && errno != EINPROGRESS)
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

Result<size_t> StreamSocket::Send(std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // the kernel reads it alone
  message.msg_iovlen = std::min(pieces.size(), kPiecesMax);
  for (;;) {
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN) return size_t{0};
    if (errno != EINTR) return Broken(errno, "connection lost while sending");
  }
}

Result<size_t> StreamSocket::Receive(std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());  // the kernel reads it alone
  message.msg_iovlen = std::min(pieces.size(), kPiecesMax);
  for (;;) {
    const ssize_t received = recvmsg(fd_.get(), &message, 0);
    if (received > 0) return static_cast<size_t>(received);
    if (received == 0)
      return Error(ErrorCode::kUnavailable, peer_ + ": connection lost: the target has closed it");
    if (errno == EAGAIN) return size_t{0};
    if (errno != EINTR) return Broken(errno, "connection lost");
  }
}

void StreamSocket::Close() {
  watch_.Stop();
  fd_.Reset();
}

}  // namespace cleat::modules
