// SPDX-License-Identifier: Apache-2.0
#include "base/unix_socket.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace cleat {
namespace {

// So many a message can have (SCM_MAX_FD). What finds no room the kernel closes within the call, however long that takes.
constexpr size_t kKernelFdsMax = 253;

// Room for the descriptors of one message.
template <size_t kFds>
struct alignas(cmsghdr) ControlSpace {
  std::array<uint8_t, CMSG_SPACE(kFds * sizeof(int))> bytes;
};

void PutFds(std::span<const UniqueFd> fds, ControlSpace<kMessageFdsMax>& space, msghdr& header) {
  header.msg_control = space.bytes.data();
  header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* const control = CMSG_FIRSTHDR(&header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  for (size_t i = 0; i < fds.size(); ++i) {
    const int fd = fds[i].get();
    std::memcpy(CMSG_DATA(control) + i * sizeof fd, &fd, sizeof fd);
  }
}

std::vector<UniqueFd> TakeFds(msghdr& header) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr;
       control = CMSG_NXTHDR(&header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

// The kernel has cut a message's descriptors off: this process may not have more, whoever has sent them.
Error NoDescriptorsLeft(size_t opened) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return {ErrorCode::kResourceExhausted,
          "this process could open only " + std::to_string(opened) +
              " of a message's file descriptors: of the " + std::to_string(limit.rlim_cur) +
              " that it may have none is left; raise LimitNOFILE= of its service, or serve less with it"};
}

}  // namespace

Result<size_t> SendWithFds(int socket, std::span<const iovec> parts, std::span<const UniqueFd> fds) {
  CLEAT_CHECK(fds.size() <= kMessageFdsMax);
  ControlSpace<kMessageFdsMax> space{};
  msghdr header{};
  header.msg_iov = const_cast<iovec*>(parts.data());
  header.msg_iovlen = parts.size();
  if (!fds.empty()) PutFds(fds, space, header);
  for (;;) {
    const ssize_t sent = sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return size_t{0};
    return ErrnoError(errno, "sending");
  }
}

Result<std::optional<ReceivedMessage>> ReceiveWithFds(int socket, std::span<uint8_t> buffer, size_t fds_max,
                                                      std::vector<UniqueFd>* refused) {
  CLEAT_CHECK(fds_max <= kMessageFdsMax);
  ControlSpace<kKernelFdsMax> space;
  iovec part{buffer.data(), buffer.size()};
  msghdr header{};
  ssize_t received = -1;
  do {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = space.bytes.data();
    header.msg_controllen = space.bytes.size();
    header.msg_flags = 0;
    received = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    if (errno == EAGAIN) return std::optional<ReceivedMessage>();
    return ErrnoError(errno, "receiving");
  }
  ReceivedMessage message{.bytes = static_cast<size_t>(received), .fds = TakeFds(header)};
  const bool too_many = message.fds.size() > fds_max;
  // There was room for all that a message can have.
  const bool none_left = (header.msg_flags & MSG_CTRUNC) != 0;
  const size_t opened = message.fds.size();
  if (refused != nullptr && (too_many || none_left || (header.msg_flags & MSG_TRUNC) != 0))
    *refused = std::move(message.fds);
  if (none_left) return NoDescriptorsLeft(opened);
  if (too_many) {
    return Error(ErrorCode::kInvalidArgument,
                 "a message with more than " + std::to_string(fds_max) + " file descriptors");
  }
  if ((header.msg_flags & MSG_TRUNC) != 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "a message of more than " + std::to_string(buffer.size()) + " bytes");
  }
  return std::optional<ReceivedMessage>(std::move(message));
}

}  // namespace cleat
