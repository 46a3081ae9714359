// SPDX-License-Identifier: Apache-2.0
#include "control/link/seqpacket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/unix_socket.h"

namespace cleat::control {
namespace {

constexpr int kBacklog = 16;
static_assert(kDatagramFdsMax <= kMessageFdsMax);

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

}  // namespace

std::vector<UniqueFd> FdsOf(UniqueFd fd) {
  std::vector<UniqueFd> fds;
  if (fd.valid()) fds.push_back(std::move(fd));
  return fds;
}

Result<bool> SendDatagram(int socket, const Datagram& datagram) {
  std::string bytes = datagram.envelope.SerializeAsString();
  if (bytes.size() > kDatagramBytesMax || datagram.fds.size() > kDatagramFdsMax) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("a message of {} bytes can't be sent to an engine: {} at most", bytes.size(),
                             kDatagramBytesMax));
  }
  const iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
  const auto sent = SendWithFds(socket, {&part, 1}, datagram.fds);
  if (!sent.ok() && sent.error().code == ErrorCode::kResourceExhausted) return false;  // later, perhaps
  CLEAT_TRY(sent);
  return *sent > 0;
}

Result<std::optional<Datagram>> ReceiveDatagram(int socket) {
  std::vector<uint8_t> bytes(kDatagramBytesMax);
  CLEAT_ASSIGN(auto received, ReceiveWithFds(socket, bytes, kDatagramFdsMax));
  if (!received) return std::optional<Datagram>();
  ReceivedMessage& message = *received;
  // An empty datagram can't be told from the end; an envelope is never empty.
  if (message.bytes == 0) return Error(ErrorCode::kUnavailable, "the peer closed the connection");
  Datagram datagram{.envelope = {}, .fds = std::move(message.fds)};
  if (!datagram.envelope.ParseFromArray(bytes.data(), static_cast<int>(message.bytes))) {
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
