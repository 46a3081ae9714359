// SPDX-License-Identifier: Apache-2.0
// Connections that another process has made, as the kernel tells who a peer is (SO_PEERCRED): the child connects, and hands the
// socket over.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/unique_fd.h"
#include "base/unix_socket.h"
#include "host.h"

namespace cleat::vhost::test {

class OtherProcess {
 public:
  explicit OtherProcess(const std::string& path) {
    int ends[2];
    CLEAT_CHECK(path.size() < sizeof(sockaddr_un::sun_path));
    CLEAT_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    pid_ = fork();
    CLEAT_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      close(ends[0]);
      ConnectWhenAsked(ends[1], address);
    }
    close(ends[1]);
    link_.Reset(ends[0]);
  }
  ~OtherProcess() {
    link_.Reset();
    waitpid(pid_, nullptr, 0);
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;

  pid_t pid() const { return pid_; }
  UniqueFd Connect() const {
    CLEAT_CHECK(send(link_.get(), "x", 1, MSG_NOSIGNAL) == 1);
    UniqueFd connected;
    CLEAT_CHECK(WaitFor([&] {
      uint8_t byte = 0;
      auto received = ReceiveWithFds(link_.get(), {&byte, 1}, 1);
      CLEAT_CHECK(received.ok());
      if (*received && (*received)->fds.size() == 1) connected = std::move((*received)->fds[0]);
      return connected.valid();
    }));
    return connected;
  }

 private:
  // After fork: system calls only.
  [[noreturn]] static void ConnectWhenAsked(int link, const sockaddr_un& address) {
    char byte = 0;
    while (recv(link, &byte, 1, 0) == 1) {
      const int connected = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(connected, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) break;
      iovec part{&byte, 1};
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &connected, sizeof connected);
      if (sendmsg(link, &message, MSG_NOSIGNAL) != 1) break;
      close(connected);
    }
    _exit(0);
  }

  pid_t pid_ = -1;
  UniqueFd link_;
};

// A process that listens on `path`, and is stopped.
class StoppedListener {
 public:
  explicit StoppedListener(const std::string& path) {
    sockaddr_un address{};
    CLEAT_CHECK(path.size() < sizeof address.sun_path);
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    pid_ = fork();
    CLEAT_CHECK(pid_ >= 0);
    if (pid_ == 0) {  // after fork: system calls only
      const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(1);
      if (listen(socket, 1) != 0) _exit(1);
      raise(SIGSTOP);
      _exit(0);
    }
    int status = 0;
    CLEAT_CHECK(waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status));
  }
  ~StoppedListener() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  StoppedListener(const StoppedListener&) = delete;
  StoppedListener& operator=(const StoppedListener&) = delete;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

}  // namespace cleat::vhost::test
