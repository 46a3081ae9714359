// SPDX-License-Identifier: Apache-2.0
#include "rdma/endpoint.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <cstring>
#include <memory>

namespace cleat::rdma {

std::string Endpoint::Text() const {
  if (address.empty()) return "no address";
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                : fmt::format("[{}]:{}", address, port);
}

Result<sockaddr_storage> ToKernel(const Endpoint& endpoint) {
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      endpoint.address.empty()
          ? EAI_NONAME
          : getaddrinfo(endpoint.address.c_str(), fmt::format("{}", endpoint.port).c_str(), &wanted, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(error == 0 ? found : nullptr, &freeaddrinfo);
  if (error != 0)
    return Error(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is no address: give an IPv4 or IPv6 address in numbers", endpoint.address));
  sockaddr_storage storage{};
  std::memcpy(&storage, found->ai_addr, found->ai_addrlen);
  return storage;
}

Endpoint FromKernel(const sockaddr_storage& storage) {
  const auto* address = reinterpret_cast<const sockaddr*>(&storage);
  const bool v4 = storage.ss_family == AF_INET;
  if (!v4 && storage.ss_family != AF_INET6) return {};
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(address, v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6), host.data(), host.size(), nullptr,
                  0, NI_NUMERICHOST) != 0)
    return {};
  const uint16_t port = v4 ? reinterpret_cast<const sockaddr_in&>(storage).sin_port
                           : reinterpret_cast<const sockaddr_in6&>(storage).sin6_port;
  return {host.data(), ntohs(port)};
}

}  // namespace cleat::rdma
