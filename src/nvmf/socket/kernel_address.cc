// SPDX-License-Identifier: Apache-2.0
#include "nvmf/socket/kernel_address.h"

#include <netinet/in.h>

#include <cstring>

namespace cleat::nvmf {

using nvme::fabrics::AddressFamily;
using nvme::fabrics::TransportAddress;

KernelAddress::KernelAddress(const TransportAddress& address) {
  if (address.family == AddressFamily::kIpv4) {
    auto& four = reinterpret_cast<sockaddr_in&>(storage);
    four.sin_family = AF_INET;
    four.sin_port = htons(address.port);
    std::memcpy(&four.sin_addr, address.address.data(), sizeof(four.sin_addr));
    size_bytes = sizeof(four);
    return;
  }
  auto& six = reinterpret_cast<sockaddr_in6&>(storage);
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(address.port);
  std::memcpy(&six.sin6_addr, address.address.data(), sizeof(six.sin6_addr));
  size_bytes = sizeof(six);
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

TransportAddress LocalAddressOf(int socket_fd) {
  sockaddr_storage local{};
  socklen_t bytes = sizeof(local);
  if (getsockname(socket_fd, reinterpret_cast<sockaddr*>(&local), &bytes) != 0) return {};
  return FromKernel(local);
}

}  // namespace cleat::nvmf
