// SPDX-License-Identifier: Apache-2.0
#include "vhost/message_channel.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cleat::vhost {
namespace {

union ControlBuffer {
  cmsghdr align;
  uint8_t bytes[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
};

std::vector<UniqueFd> TakeDescriptors(msghdr* header) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* control = CMSG_FIRSTHDR(header); control != nullptr; control = CMSG_NXTHDR(header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

Error Closed(bool in_message) {
  if (in_message)
    return {ErrorCode::kInvalidArgument, "the connection was closed in the middle of a message"};
  return {ErrorCode::kUnavailable, "the connection was closed"};
}

bool Gone(int error_number) {
  return error_number == ECONNRESET || error_number == EPIPE;
}

}  // namespace

Status MessageChannel::Start(Reactor& control, UniqueFd socket) {
  socket_ = std::move(socket);
  return watch_.Start(control, socket_.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

void MessageChannel::Close() {
  watch_.Stop();
  socket_.Reset();
}

void MessageChannel::Watch::OnEvent(FdWatch& watch, uint32_t /*epoll_events*/) {
  static_cast<Watch&>(watch).progress.Set();
}

Result<std::optional<Message>> MessageChannel::TryRead() {
  std::array<uint8_t, kPayloadBytesMax> bytes;
  while (framer_.wanted() > 0) {
    iovec io{bytes.data(), framer_.wanted()};
    ControlBuffer control;
    msghdr header{};
    header.msg_iov = &io;
    header.msg_iovlen = 1;
    header.msg_control = &control;
    header.msg_controllen = sizeof control;
    const ssize_t count = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return std::optional<Message>();
      if (Gone(errno)) return Closed(framer_.in_message());
      return ErrnoError(errno, "reading from the socket");
    }
    std::vector<UniqueFd> descriptors = TakeDescriptors(&header);
    if ((header.msg_flags & MSG_CTRUNC) != 0) {
      return Error(ErrorCode::kInvalidArgument, "a message with more than " +
                                                    std::to_string(kDescriptorsMax) +
                                                    " file descriptors, or more than the process may open");
    }
    if (count == 0) return Closed(framer_.in_message());
    CLEAT_TRY(framer_.Push({bytes.data(), static_cast<size_t>(count)}, std::move(descriptors)));
  }
  return framer_.Take();
}

Result<bool> MessageChannel::TryWrite(const Message& message) {
  CLEAT_CHECK(message.descriptors.size() <= kDescriptorsMax);
  iovec io[2] = {{const_cast<MessageHeader*>(&message.header), sizeof(MessageHeader)},
                 {const_cast<uint8_t*>(message.payload.data()), message.header.size_bytes}};
  ControlBuffer control{};
  msghdr header{};
  header.msg_iov = io;
  header.msg_iovlen = 2;
  if (!message.descriptors.empty()) {
    header.msg_control = &control;
    header.msg_controllen = CMSG_SPACE(message.descriptors.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(message.descriptors.size() * sizeof(int));
    for (size_t i = 0; i < message.descriptors.size(); ++i) {
      const int fd = message.descriptors[i].get();
      std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  for (;;) {
    const ssize_t count = sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      // So short a message is one buffer of the kernel's: all of it goes, or nothing.
      CLEAT_CHECK(static_cast<size_t>(count) == sizeof(MessageHeader) + message.header.size_bytes);
      return true;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return false;
    if (Gone(errno)) return Closed(false);
    return ErrnoError(errno, "writing to the socket");
  }
}

}  // namespace cleat::vhost
