// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/socket/listener.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "nvmf/socket/kernel_address.h"
#include "nvmf/socket/tcp_options.h"

namespace cleat::nvmf_target {
using nvme::fabrics::AddressFamily;
using nvme::fabrics::TextOfAddress;
using nvme::fabrics::TransportAddress;
using nvmf::SetOption;

std::string PeerOf(TransportAddress peer) {
  constexpr size_t kNetworkBytes = 8;
  peer.port = 0;
  if (peer.family == AddressFamily::kIpv6)
    std::fill(peer.address.begin() + kNetworkBytes, peer.address.end(), uint8_t{0});
  return TextOfAddress(peer);
}

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
  const nvmf::KernelAddress at(address);
  UniqueFd fd(socket(at.get()->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return ErrnoError(errno, name + ": no socket");
  // Connections of an engine before, which are still in TIME_WAIT, do not keep the address.
  CLEAT_TRY(SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  if (shares) CLEAT_TRY(SetOption(fd.get(), SOL_SOCKET, SO_REUSEPORT, 1, "SO_REUSEPORT"));
  if (address.family == AddressFamily::kIpv6)
    CLEAT_TRY(SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1, "IPV6_V6ONLY"));
  CLEAT_TRY(nvmf::SetTcpOptions(fd.get()));
  if (bind(fd.get(), at.get(), at.size_bytes) != 0) return ErrnoError(errno, name + ": can't listen");
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
  address_.port = nvmf::LocalAddressOf(fd.get()).port;
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
    const TransportAddress local = nvmf::LocalAddressOf(fd.get());
    on_accepted_({std::move(fd), local, nvmf::FromKernel(peer)});
    if (*gone) return;
  }
  LookAgainAfter(0);
}

void Listener::LookAgainAfter(uint64_t pause_ns) {
  if (!pause_.pending()) reactor_.AddTimer(pause_, reactor_.now_ns() + pause_ns);
}

}  // namespace cleat::nvmf_target
