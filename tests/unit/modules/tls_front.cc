// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/modules/tls_front.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::test {
namespace {

// Small, so that a host whose bytes nobody reads soon has to wait.
constexpr int kBufferBytes = 64 * 1024;
constexpr int kDeafPollMs = 5;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

void SetNoDelay(int socket_fd) {
  const int on = 1;
  CLEAT_CHECK(setsockopt(socket_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
}

bool SendAll(int socket_fd, const Bytes& data, size_t step) {
  for (size_t at = 0; at < data.size();) {
    const ssize_t sent = send(socket_fd, data.data() + at, std::min(step, data.size() - at), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

// nullopt: the end.
std::optional<Bytes> Receive(int socket_fd) {
  Bytes data(16 * 1024);
  const ssize_t got = recv(socket_fd, data.data(), data.size(), 0);
  if (got <= 0) return std::nullopt;
  data.resize(static_cast<size_t>(got));
  return data;
}

}  // namespace

struct TlsFront::Session {
  Session(TlsFront& f, int s) : front(f), host(s), server(KeyOf(f.names_)), thread([this] { Run(); }) {}

  static nvme::tls::ConnectionKey KeyOf(const Names& names) {
    const auto psk = nvme::tls::Psk::Parse(names.psk, "the key");
    return psk.value().KeyFor(names.host_nqn, names.subsystem_nqn, names.identity).value();
  }

  void Run() {
    target = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = Loopback(front.target_port_);
    if (connect(target, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      SetNoDelay(target);
      while (Turn()) {
      }
    }
    shutdown(host, SHUT_RDWR);
    shutdown(target, SHUT_RDWR);
  }

  bool Turn() {
    const bool deaf = front.faults.deaf;
    pollfd fds[2] = {{deaf ? -1 : host, POLLIN, 0}, {established ? target.load() : -1, POLLIN, 0}};
    if (poll(fds, 2, deaf ? kDeafPollMs : -1) < 0) return false;
    if (fds[0].revents != 0 && !FromHost()) return false;
    if (fds[1].revents != 0 && !FromTarget()) return false;
    return ToHost();
  }

  bool FromHost() {
    const auto bytes = Receive(host);
    if (!bytes) return false;
    const uint8_t alert = front.faults.alert;
    if (!established && alert != 0) {
      constexpr uint8_t kFatal = 2;
      (void)SendAll(host, {21, 3, 3, 0, 2, kFatal, alert}, SIZE_MAX);
      ++front.counts.alerts;
      return false;
    }
    server.Give(*bytes);
    if (!established) {
      established = server.Handshake();
      if (established) ++front.counts.established;
      if (server.failed()) {
        ++front.counts.refused;
        (void)ToHost();
        return false;
      }
    }
    if (!established) return true;
    const auto data = server.Read();
    if (server.failed()) ++front.counts.goodbyes;
    return data && SendAll(target, *data, SIZE_MAX) && !server.failed();
  }

  bool FromTarget() {
    const auto data = Receive(target);
    if (!data) {
      server.Close();
      (void)ToHost();
      return false;
    }
    if (front.faults.updates_keys) server.UpdateKey(true);
    server.Write(*data);
    return true;
  }

  bool ToHost() {
    Bytes bytes = server.Take();
    if (front.faults.mute || bytes.empty()) return true;
    const uint64_t end = sent + bytes.size();
    const uint64_t change_at = front.faults.change_at;
    if (change_at >= sent && change_at < end) bytes[change_at - sent] ^= 1;
    const uint64_t cut_at = front.faults.cut_at;
    if (cut_at < end) bytes.resize(cut_at - std::min(cut_at, sent));
    sent = end;
    const bool sent_all = SendAll(host, bytes, front.faults.bytewise ? 1 : SIZE_MAX);
    ++front.counts.sends;
    return sent_all && cut_at >= end;
  }

  TlsFront& front;
  const int host;
  std::atomic<int> target{-1};
  TlsServer server;
  bool established = false;
  uint64_t sent = 0;   // to the host
  std::thread thread;  // last: it uses all of them
};

TlsFront::TlsFront(Names names, uint16_t target_port) : names_(std::move(names)), target_port_(target_port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CLEAT_CHECK(setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &kBufferBytes, sizeof(kBufferBytes)) == 0);
  sockaddr_in address = Loopback(0);
  CLEAT_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  CLEAT_CHECK(listen(listener_, 16) == 0);
  socklen_t bytes = sizeof(address);
  CLEAT_CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

TlsFront::~TlsFront() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  close(listener_);
  for (auto& session : sessions_) {
    shutdown(session->host, SHUT_RDWR);
    shutdown(session->target, SHUT_RDWR);
    session->thread.join();
    close(session->host);
    close(session->target);
  }
}

void TlsFront::CutAll() {
  const std::lock_guard lock(mutex_);
  for (auto& session : sessions_) shutdown(session->host, SHUT_RDWR);
}

void TlsFront::Accept() {
  for (;;) {
    const int accepted = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (accepted < 0 || stopping_) {
      if (accepted >= 0) close(accepted);
      return;
    }
    ++counts.accepted;
    SetNoDelay(accepted);
    sessions_.push_back(std::make_unique<Session>(*this, accepted));
  }
}

}  // namespace cleat::test
