// SPDX-License-Identifier: Apache-2.0
#include "perf/vhost_user/message_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include "perf/vhost_user/deadline.h"

namespace cleat::perf {
namespace {

constexpr size_t kReceiveFdsMax = 16;
constexpr size_t kSendFdsMax = 253;  // the kernel's SCM_MAX_FD
constexpr int kBacklog = 1;
constexpr long kConnectRetryNs = kNsPerMs;

Status WaitFor(int fd, short events, const Deadline& deadline) {
  for (;;) {
    pollfd poll_fd{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&poll_fd, 1, deadline.LeftMs());
    if (ready > 0) return Ok{};
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, "poll of a vhost-user socket");
    if (ready == 0 && deadline.passed()) {
      return Error(ErrorCode::kDeadlineExceeded, "the vhost-user peer was silent for too long");
    }
  }
}

Result<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("socket path '{}' must have 1 to {} bytes", path, sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

void TakeFds(const msghdr& header, std::vector<UniqueFd>* fds) {
  for (const cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&header), const_cast<cmsghdr*>(c))) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      UniqueFd owned(fd);
      if (fds != nullptr) fds->push_back(std::move(owned));
    }
  }
}

}  // namespace

Error Message::WrongSize(size_t expected_bytes) const {
  return Error(ErrorCode::kInternal,
               fmt::format("vhost-user message {} has a payload of {} bytes, expected {}", header.request,
                           payload.size(), expected_bytes));
}

MessageSocket::MessageSocket(UniqueFd connected) : fd_(std::move(connected)) {
  const int flags = fcntl(fd_.get(), F_GETFL);
  CLEAT_CHECK(flags >= 0 && fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) == 0);
}

bool MessageSocket::PeerGone() const {
  if (!open()) return true;
  pollfd poll_fd{.fd = fd_.get(), .events = POLLRDHUP, .revents = 0};
  return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

Result<size_t> MessageSocket::TrySendBytes(std::span<const uint8_t> bytes, std::span<const int> fds) {
  CLEAT_CHECK(fds.size() <= kSendFdsMax);
  if (!open()) return Error(ErrorCode::kUnavailable, "the vhost-user connection is closed");
  iovec io{.iov_base = const_cast<uint8_t*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kSendFdsMax * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &io;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const ssize_t sent = sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno == EPIPE || errno == ECONNRESET) {
      return Error(ErrorCode::kUnavailable, "the vhost-user peer closed the connection");
    }
    return ErrnoError(errno, "send on a vhost-user socket");
  }
}

Status MessageSocket::SendBytes(std::span<const uint8_t> bytes, std::span<const int> fds,
                                uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  while (!bytes.empty()) {
    CLEAT_ASSIGN(auto sent, TrySendBytes(bytes, fds));
    if (sent == 0) {
      CLEAT_TRY(WaitFor(fd_.get(), POLLOUT, deadline));
      continue;
    }
    bytes = bytes.subspan(sent);
    fds = {};
  }
  return Ok{};
}

Status MessageSocket::Send(uint32_t request, uint32_t flags, std::span<const uint8_t> payload,
                           std::span<const int> fds, uint64_t timeout_ns) {
  const wire::Header header{
      .request = request, .flags = flags, .size = static_cast<uint32_t>(payload.size())};
  std::vector<uint8_t> bytes(sizeof header + payload.size());
  std::memcpy(bytes.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(bytes.data() + sizeof header, payload.data(), payload.size());
  return SendBytes(bytes, fds, timeout_ns);
}

Status MessageSocket::ReceiveExactly(std::span<uint8_t> bytes, std::vector<UniqueFd>* fds,
                                     uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  while (!bytes.empty()) {
    if (!open()) return Error(ErrorCode::kUnavailable, "the vhost-user connection is closed");
    iovec io{.iov_base = bytes.data(), .iov_len = bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kReceiveFdsMax * sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t got = recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got > 0) {
      TakeFds(header, fds);
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0 || errno == ECONNRESET) {
      return Error(ErrorCode::kUnavailable, "the vhost-user peer closed the connection");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      CLEAT_TRY(WaitFor(fd_.get(), POLLIN, deadline));
    } else if (errno != EINTR) {
      return ErrnoError(errno, "receive on a vhost-user socket");
    }
  }
  return Ok{};
}

Result<Message> MessageSocket::Receive(uint64_t timeout_ns) {
  Message message;
  std::span<uint8_t> header(reinterpret_cast<uint8_t*>(&message.header), sizeof message.header);
  CLEAT_TRY(ReceiveExactly(header, &message.fds, timeout_ns));
  if (message.header.size > wire::kPayloadBytesMax) {
    return Error(ErrorCode::kInternal,
                 fmt::format("vhost-user message {} announces a payload of {} bytes, more than {}",
                             message.header.request, message.header.size, wire::kPayloadBytesMax));
  }
  message.payload.resize(message.header.size);
  CLEAT_TRY(ReceiveExactly(message.payload, &message.fds, timeout_ns));
  return message;
}

Result<UniqueFd> ListenUnix(const std::string& path) {
  CLEAT_ASSIGN(auto address, Address(path));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ErrnoError(errno, "socket");
  unlink(path.c_str());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return ErrnoError(errno, fmt::format("listen at '{}'", path));
  }
  return fd;
}

Result<UniqueFd> AcceptUnix(int listener, uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  for (;;) {
    UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) return fd;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (Status ready = WaitFor(listener, POLLIN, deadline); !ready) {
        if (ready.error().code != ErrorCode::kDeadlineExceeded) return std::move(ready).error();
        return Error(ErrorCode::kDeadlineExceeded, "no back end connected in time");
      }
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return ErrnoError(errno, "accept of a back end");
    }
  }
}

Result<UniqueFd> ConnectUnix(const std::string& path, uint64_t timeout_ns) {
  CLEAT_ASSIGN(auto address, Address(path));
  const Deadline deadline(timeout_ns);
  for (;;) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return ErrnoError(errno, "socket");
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
    const int error = errno;
    const bool retry = error == ENOENT || error == ECONNREFUSED || error == EAGAIN || error == EINTR;
    if (!retry || deadline.passed()) return ErrnoError(error, fmt::format("connect to '{}'", path));
    const timespec pause{.tv_sec = 0, .tv_nsec = kConnectRetryNs};  // a path that appears gives no event here
    nanosleep(&pause, nullptr);
  }
}

}  // namespace cleat::perf
