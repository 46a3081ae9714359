// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/socket/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cleat::nvmf_target {
namespace {

using nvme::fabrics::AddressFamily;
using nvme::fabrics::TextOfAddress;
using nvme::fabrics::TransportAddress;

// A host that has vanished without a word is noticed: on an idle connection, and on one with unacknowledged bytes.
constexpr int kKeepAliveIdleS = 10;
constexpr int kKeepAliveIntervalS = 5;
constexpr int kKeepAliveProbes = 4;
constexpr int kUserTimeoutMs = 30'000;

Status SetInt(int fd, int level, int option, int value, const char* name) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) != 0) return ErrnoError(errno, name);
  return Ok{};
}

// What each accepted socket inherits, but for those that Linux does not pass on.
Status SetOptions(int fd) {
  CLEAT_TRY(SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  CLEAT_TRY(SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  CLEAT_TRY(SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleS, "TCP_KEEPIDLE"));
  CLEAT_TRY(SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalS, "TCP_KEEPINTVL"));
  CLEAT_TRY(SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes, "TCP_KEEPCNT"));
  return SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs, "TCP_USER_TIMEOUT");
}

socklen_t ToKernel(const TransportAddress& address, sockaddr_storage& out) {
  out = {};
  if (address.family == AddressFamily::kIpv4) {
    auto& four = reinterpret_cast<sockaddr_in&>(out);
    four.sin_family = AF_INET;
    four.sin_port = htons(address.port);
    std::memcpy(&four.sin_addr, address.address.data(), sizeof(four.sin_addr));
    return sizeof(four);
  }
  auto& six = reinterpret_cast<sockaddr_in6&>(out);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(address.port);
  std::memcpy(&six.sin6_addr, address.address.data(), sizeof(six.sin6_addr));
  return sizeof(six);
}

TransportAddress FromKernel(const sockaddr_storage& from) {
  TransportAddress address;
  if (from.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(from);
    address.port = ntohs(four.sin_port);
    std::memcpy(address.address.data(), &four.sin_addr, sizeof(four.sin_addr));
    return address;
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(from);
  address.family = AddressFamily::kIpv6;
  address.port = ntohs(six.sin6_port);
  std::memcpy(address.address.data(), &six.sin6_addr, sizeof(six.sin6_addr));
  return address;
}

TransportAddress LocalOf(int fd) {
  sockaddr_storage local{};
  socklen_t bytes = sizeof(local);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &bytes) != 0) return {};
  return FromKernel(local);
}

}  // namespace

Listener::Listener(Reactor& reactor, std::function<void(Accepted)> on_accepted)
    : reactor_(reactor), on_accepted_(std::move(on_accepted)) {}

Listener::~Listener() {
  *gone_ = true;
  watch_.Stop();
  pause_.Cancel();
}

namespace {

// Bound, and no more. `shares`: with others that do so.
Result<UniqueFd> Bind(const TransportAddress& address, bool shares) {
  const std::string name = TextOfAddress(address);
  sockaddr_storage at;
  const socklen_t bytes = ToKernel(address, at);
  UniqueFd fd(socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return ErrnoError(errno, name + ": no socket");
  // Connections of an engine before, which are still in TIME_WAIT, do not keep the address.
  CLEAT_TRY(SetInt(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  if (shares) CLEAT_TRY(SetInt(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1, "SO_REUSEPORT"));
  if (address.family == AddressFamily::kIpv6)
    CLEAT_TRY(SetInt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY"));
  CLEAT_TRY(SetOptions(fd.get()));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), bytes) != 0)
    return ErrnoError(errno, name + ": can't listen");
  return fd;
}

}  // namespace

// Each may be shared with a later one that is told so; whoever is not finds it taken.
Status Listener::Listen(const TransportAddress& address, bool shared) {
  CLEAT_CHECK(!fd_.valid());
  if (!shared) CLEAT_TRY(Bind(address, false));
  CLEAT_ASSIGN(UniqueFd fd, Bind(address, true));
  if (listen(fd.get(), kBacklog) != 0) return ErrnoError(errno, TextOfAddress(address) + ": can't listen");
  address_ = address;
  address_.port = LocalOf(fd.get()).port;
  fd_ = std::move(fd);
  return watch_.Start(reactor_, fd_.get(), EPOLLIN);
}

void Listener::AcceptSome() {
  const std::shared_ptr<bool> gone = gone_;
  for (int accepts = 0; accepts < kAcceptsMax; ++accepts) {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof(peer);
    UniqueFd fd(accept4(fd_.get(), reinterpret_cast<sockaddr*>(&peer), &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd && errno == EAGAIN) return;
    if (!fd) {  // a connection that is gone already, or no descriptor is left
      LookAgainAfter(kPauseNs);
      return;
    }
    const TransportAddress local = LocalOf(fd.get());
    on_accepted_({std::move(fd), local, FromKernel(peer)});
    if (*gone) return;
  }
  LookAgainAfter(0);
}

void Listener::LookAgainAfter(uint64_t pause_ns) {
  if (!pause_.pending()) reactor_.AddTimer(pause_, reactor_.now_ns() + pause_ns);
}

}  // namespace cleat::nvmf_target
