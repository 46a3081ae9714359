// SPDX-License-Identifier: Apache-2.0
// Addresses of NVMe/TCP as the kernel has them. Values; any thread.
#pragma once

#include <sys/socket.h>

#include "nvme/fabrics/names.h"

namespace cleat::nvmf {

// What the kernel takes for an address: the one of its two forms that fits the family.
struct KernelAddress {
  explicit KernelAddress(const nvme::fabrics::TransportAddress& address);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }

  sockaddr_storage storage{};
  socklen_t size_bytes = 0;
};

// Of IPv4, or IPv6.
nvme::fabrics::TransportAddress FromKernel(const sockaddr_storage& from);
// Where a socket of this process is bound, or its peer has connected to. 0.0.0.0:0 where the kernel does not say.
nvme::fabrics::TransportAddress LocalAddressOf(int socket_fd);

}  // namespace cleat::nvmf
