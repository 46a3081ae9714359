// SPDX-License-Identifier: Apache-2.0
// Stands between a caller and a cleatd on the loopback, as the network does: passes on what comes, until the caller's host has died. Then nothing is
// passed on any more, and neither connection ends. One connection.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/check.h"
#include "base/unique_fd.h"

namespace cleat::control {

class SilentRelay {
 public:
  explicit SilentRelay(int target_port) : target_port_(target_port), listener_(NewSocket()) {
    sockaddr_in address = Loopback(0);
    socklen_t length = sizeof(address);
    CLEAT_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    CLEAT_CHECK(listen(listener_.get(), 1) == 0);
    CLEAT_CHECK(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~SilentRelay() {
    stopping_ = true;
    thread_.join();
  }
  SilentRelay(const SilentRelay&) = delete;
  SilentRelay& operator=(const SilentRelay&) = delete;

  int port() const { return port_; }
  void FallSilent() { silent_ = true; }
  // Until so many pieces more were passed on in each direction. False: not within a minute.
  bool AwaitPieces(uint64_t more) const {
    const uint64_t to_caller = to_caller_ + more;
    const uint64_t from_caller = from_caller_ + more;
    for (int turns = 0; turns < 60'000 / kTurnMs; ++turns) {
      if (to_caller_ >= to_caller && from_caller_ >= from_caller) return true;
      poll(nullptr, 0, kTurnMs);
    }
    return false;
  }

 private:
  static constexpr int kTurnMs = 10;

  static UniqueFd NewSocket() { return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  static bool Pass(int from, int to) {
    char bytes[4096];
    const ssize_t came = recv(from, bytes, sizeof(bytes), 0);
    return came > 0 && send(to, bytes, static_cast<size_t>(came), MSG_NOSIGNAL) == came;
  }

  void Run() {
    pollfd calls{.fd = listener_.get(), .events = POLLIN, .revents = 0};
    while (!stopping_ && poll(&calls, 1, kTurnMs) == 0) {
    }
    if (stopping_) return;
    const UniqueFd caller(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const UniqueFd target = NewSocket();
    const sockaddr_in address = Loopback(target_port_);
    CLEAT_CHECK(connect(target.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    for (bool goes_on = true; goes_on && !stopping_;) {
      if (silent_) {
        poll(nullptr, 0, kTurnMs);
        continue;
      }
      pollfd ends[2] = {{caller.get(), POLLIN, 0}, {target.get(), POLLIN, 0}};
      if (poll(ends, 2, kTurnMs) <= 0) continue;
      if (ends[0].revents != 0) goes_on = Pass(caller.get(), target.get()) && ++from_caller_ > 0;
      if (goes_on && ends[1].revents != 0) goes_on = Pass(target.get(), caller.get()) && ++to_caller_ > 0;
    }
  }

  const int target_port_;
  int port_ = 0;
  UniqueFd listener_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> silent_{false};
  std::atomic<uint64_t> to_caller_{0};
  std::atomic<uint64_t> from_caller_{0};
  std::thread thread_;
};

}  // namespace cleat::control
