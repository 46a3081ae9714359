// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "base/unique_fd.h"

namespace cleat::test {

// An open file that no process has: as that of a killed one whose last I/O is under way, it is kept by the kernel - here
// as a message in a socket that nobody has read.
class LockOfNobody {
 public:
  explicit LockOfNobody(const std::string& file) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    for (int i = 0; i < 2; ++i) sockets_[i].Reset(ends[i]);
    const UniqueFd fd(open(file.c_str(), O_RDWR | O_CLOEXEC));
    struct flock whole {};
    whole.l_type = F_WRLCK;
    EXPECT_EQ(fcntl(fd.get(), F_OFD_SETLK, &whole), 0);
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = fd.get();
    std::memcpy(CMSG_DATA(header), &number, sizeof(number));
    EXPECT_EQ(sendmsg(ends[0], &message, 0), 1);
  }
  void End() {
    for (UniqueFd& socket : sockets_) socket.Reset();
  }

 private:
  UniqueFd sockets_[2];
};

}  // namespace cleat::test
