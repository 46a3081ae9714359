// SPDX-License-Identifier: Apache-2.0
#include "nvmf/rdma/adapters.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/unique_fd.h"
#include "nvmf/socket/kernel_address.h"

namespace cleat::nvmf {

using nvme::fabrics::AddressFamily;
using nvme::fabrics::TransportAddress;
using nvme::fabrics::TransportType;

// ---- One adapter

void RdmaAdapter::Watch::OnEvent(FdWatch& watch, uint32_t /*events*/) {
  RdmaAdapter& adapter = static_cast<Watch&>(watch).adapter;
  const Status status = adapter.device_->TakeEvents();
  if (!status.ok()) adapter.Fail(status.error());
}

// An adapter that fails without being removed tells its connections nothing. Users may give it back from within.
void RdmaAdapter::Fail(const Error& reason) {
  if (std::exchange(gone_, true)) return;
  watch_.Stop();
  spdlog::warn("RDMA adapter {}: {}; what goes by it loses its connections", device_->name(), reason.message);
  for (RdmaAdapterUser* const user : std::vector<RdmaAdapterUser*>(users_))
    user->AdapterIsGone(*this, reason);
}

// ---- All of them

RdmaAdapters::~RdmaAdapters() {
  for (const auto& [name, adapter] : open_) CLEAT_CHECK(adapter.expired());
}

Result<rdma::ConnectionManager*> RdmaAdapters::Manager() {
  if (manager_ == nullptr) {
    CLEAT_ASSIGN(auto manager, library_.open_manager());
    CLEAT_TRY(watch_.Start(control_, manager->descriptor(), EPOLLIN));
    manager_ = std::move(manager);
  }
  return manager_.get();
}

// Edges alone are told, and as many events are handled as the manager does at a time: the others have the next turn.
void RdmaAdapters::HandleEvents() {
  manager_->HandleEvents();
  pollfd more{.fd = manager_->descriptor(), .events = POLLIN, .revents = 0};
  if (poll(&more, 1, 0) > 0 && !more_.pending()) control_.AddTimer(more_, control_.now_ns());
}

// An address may have moved to another adapter since it was asked for last, so that the library is asked each time.
Result<std::shared_ptr<RdmaAdapter>> RdmaAdapters::Open(const std::string& local_address) {
  CLEAT_ASSIGN(const std::string name, library_.device_name_at(local_address));
  std::weak_ptr<RdmaAdapter>& known = open_[name];
  if (auto adapter = known.lock(); adapter != nullptr && !adapter->gone()) return adapter;
  CLEAT_ASSIGN(auto device, library_.open_device(local_address));
  auto adapter = std::make_shared<RdmaAdapter>(std::move(device));
  CLEAT_TRY(adapter->watch_.Start(control_, adapter->device().descriptor(), EPOLLIN));
  known = adapter;
  return adapter;
}

Result<std::shared_ptr<RdmaAdapter>> RdmaAdapters::OpenFor(const rdma::ConnectRequest& request) {
  for (const auto& [name, known] : open_) {
    auto adapter = known.lock();
    if (adapter != nullptr && !adapter->gone() && request.IsOn(adapter->device())) return adapter;
  }
  return Open(request.local().address);
}

// ---- Addresses

rdma::Endpoint EndpointOf(const TransportAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(address.family == AddressFamily::kIpv4 ? AF_INET : AF_INET6, address.address.data(), text.data(),
            text.size());
  return {text.data(), address.port};
}

TransportAddress AddressOf(const rdma::Endpoint& endpoint) {
  const bool ipv6 = endpoint.address.find(':') != std::string::npos;
  // Without a link-local address's zone.
  const std::string literal = endpoint.address.substr(0, endpoint.address.find('%'));
  auto address = nvme::fabrics::TransportAddressOf(ipv6 ? AddressFamily::kIpv6 : AddressFamily::kIpv4,
                                                   literal, std::to_string(endpoint.port));
  TransportAddress known = address.ok() ? *address : TransportAddress();
  known.transport = TransportType::kRdma;
  return known;
}

// A datagram socket that is connected sends nothing, and has the address from which its datagrams would go.
Result<std::string> LocalAddressTo(const TransportAddress& address) {
  const bool ipv4 = address.family == AddressFamily::kIpv4;
  const UniqueFd socket(::socket(ipv4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoError(errno, "a socket to ask for a route");
  const KernelAddress to(address);
  if (connect(socket.get(), to.get(), to.size_bytes) != 0)
    return Error(ErrorCode::kUnavailable,
                 fmt::format("this host has no route to {}", nvme::fabrics::TextOfAddress(address)));
  return EndpointOf(LocalAddressOf(socket.get())).address;
}

}  // namespace cleat::nvmf
