// SPDX-License-Identifier: Apache-2.0
#include "vhost/peer_files.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

namespace cleat::vhost {
namespace {

// An eventfd has no type of its own; its name is the kernel's.
bool IsEventfd(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  std::array<char, 64> target{};
  const ssize_t length = readlink(path.c_str(), target.data(), target.size());
  return length > 0 && std::string_view(target.data(), static_cast<size_t>(length)) == "anon_inode:[eventfd]";
}

}  // namespace

Status CheckEventfd(const UniqueFd& fd) {
  if (!IsEventfd(fd.get())) return Error(ErrorCode::kInvalidArgument, "the file descriptor is no eventfd");
  const int flags = fcntl(fd.get(), F_GETFL);
  if (flags < 0) return ErrnoError(errno, "reading the flags of an eventfd");
  if ((flags & O_NONBLOCK) == 0 && fcntl(fd.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoError(errno, "making an eventfd non-blocking");
  }
  return Ok{};
}

Status CheckUnixSocket(const UniqueFd& fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  if (getsockopt(fd.get(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX) return Ok{};
  return Error(ErrorCode::kInvalidArgument, "the file descriptor is no unix socket");
}

bool SignalEventfd(const UniqueFd& fd) {
  const uint64_t one = 1;
  return write(fd.get(), &one, sizeof one) >= 0 || errno != EINTR;
}

}  // namespace cleat::vhost
