// SPDX-License-Identifier: Apache-2.0
#include "control/seqpacket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cleat::control {
namespace {

constexpr int kBacklog = 16;

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("socket path '{}' must have 1 to {} bytes", path, sizeof(address.sun_path) - 1));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

void TakeDescriptors(msghdr& header, std::vector<UniqueFd>& fds) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(fd));
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

Result<bool> SendDatagram(int socket, const Datagram& datagram) {
  std::string bytes = datagram.envelope.SerializeAsString();
  if (bytes.size() > kDatagramBytesMax || datagram.fds.size() > kDatagramFdsMax) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("a message of {} bytes can't be sent to an engine: {} at most", bytes.size(),
                             kDatagramBytesMax));
  }
  iovec segment{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr header{};
  header.msg_iov = &segment;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDatagramFdsMax * sizeof(int))> space{};
  if (!datagram.fds.empty()) {
    header.msg_control = space.data();
    header.msg_controllen = CMSG_SPACE(datagram.fds.size() * sizeof(int));
    cmsghdr* control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(datagram.fds.size() * sizeof(int));
    for (size_t i = 0; i < datagram.fds.size(); ++i) {
      const int fd = datagram.fds[i].get();
      std::memcpy(CMSG_DATA(control) + i * sizeof(int), &fd, sizeof(fd));
    }
  }
  if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) return false;
  return ErrnoError(errno, "send");
}

Result<std::optional<Datagram>> ReceiveDatagram(int socket) {
  std::string bytes(kDatagramBytesMax, '\0');
  iovec segment{.iov_base = bytes.data(), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kDatagramFdsMax * sizeof(int))> space{};
  msghdr header{};
  header.msg_iov = &segment;
  header.msg_iovlen = 1;
  header.msg_control = space.data();
  header.msg_controllen = space.size();
  const ssize_t size = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::optional<Datagram>();
    return ErrnoError(errno, "receive");
  }
  Datagram datagram;
  TakeDescriptors(header, datagram.fds);
  // An empty datagram can't be told from the end; an envelope is never empty.
  if (size == 0) return Error(ErrorCode::kUnavailable, "the peer closed the connection");
  if ((header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return Error(ErrorCode::kInvalidArgument, "a message is too large, or has too many descriptors");
  }
  if (!datagram.envelope.ParseFromArray(bytes.data(), static_cast<int>(size))) {
    return Error(ErrorCode::kInvalidArgument, "a message can't be parsed");
  }
  return std::optional<Datagram>(std::move(datagram));
}

Result<UniqueFd> ConnectSeqpacket(const std::string& path) {
  CLEAT_ASSIGN(auto address, AddressOf(path));
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoError(errno, "socket");
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sockaddr_un)) != 0) {
    return ErrnoError(errno, fmt::format("connect to '{}'", path));
  }
  return socket;
}

Result<UniqueFd> ListenSeqpacket(const std::string& path) {
  CLEAT_ASSIGN(auto address, AddressOf(path));
  if (ConnectSeqpacket(path).ok()) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("somebody listens on '{}' already: stop it, or choose another path", path));
  }
  struct stat info {};
  if (lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) unlink(path.c_str());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoError(errno, "socket");
  const mode_t mask = umask(0177);
  const int bound = bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sockaddr_un));
  const int bind_errno = errno;
  umask(mask);
  if (bound != 0) return ErrnoError(bind_errno, fmt::format("can't listen on '{}'", path));
  if (listen(socket.get(), kBacklog) != 0)
    return ErrnoError(errno, fmt::format("can't listen on '{}'", path));
  return socket;
}

}  // namespace cleat::control
