// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/socket/zero_copy_sends.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cleat::nvmf_target {
namespace {

struct Notification {
  bool is_of_sends = false;  // false: it is something else, which nobody has asked for
  // The sends with these numbers are over, both included.
  uint32_t first = 0;
  uint32_t last = 0;
  bool copied = false;
};

// False: there is none now.
bool NextNotification(int socket, Notification& notification) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in6))];
  msghdr message{};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = 0;
  do {
    received = recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return false;
  notification = {};
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    const bool is_error = (part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR) ||
                          (part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR);
    if (!is_error) continue;
    sock_extended_err error;
    std::memcpy(&error, CMSG_DATA(part), sizeof(error));
    if (error.ee_errno != 0 || error.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
    notification = {.is_of_sends = true,
                    .first = error.ee_info,
                    .last = error.ee_data,
                    .copied = (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0};
  }
  return true;
}

}  // namespace

ZeroCopySends::ZeroCopySends(int socket, ZeroCopy which, uint32_t next)
    : socket_(socket), all_(which == ZeroCopy::kAll), sent_(next) {
  const int on = 1;
  can_ = which != ZeroCopy::kNone && setsockopt(socket, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
}

size_t ZeroCopySends::Send(std::span<iovec> pieces, uint64_t now_ns) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const ssize_t sent = sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_ZEROCOPY);
  if (sent < 0 && errno == ENOBUFS) choice_.Refused(now_ns);
  if (sent <= 0) return 0;
  sent_.Sent(static_cast<uint32_t>(sent));
  return static_cast<size_t>(sent);
}

bool ZeroCopySends::Collect(const Give& give) {
  Notification one;
  uint32_t count = 0;
  for (; count < kNotificationsMax && NextNotification(socket_, one); ++count) {
    if (!one.is_of_sends) continue;
    const uint32_t before = sent_.sends();
    heard_bytes_ +=
        sent_.Over(one.first, one.last, [&give](const block::Segment& piece) { give(piece, false); });
    const uint32_t over = before - sent_.sends();
    heard_sends_ += over;
    heard_copies_ += one.copied ? over : 0;
  }
  return count > 0;
}

uint64_t ZeroCopySends::Heard(uint64_t cost_ns, uint64_t now_ns) {
  if (heard_sends_ > 0) choice_.Notified(heard_sends_, heard_copies_, cost_ns, now_ns);
  heard_sends_ = heard_copies_ = 0;
  return std::exchange(heard_bytes_, 0);
}

}  // namespace cleat::nvmf_target
