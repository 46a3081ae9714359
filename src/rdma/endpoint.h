// SPDX-License-Identifier: Apache-2.0
// One end of a connection by its numbers, as the connection manager of RDMA has it: an IP address of a network interface whose adapter does RDMA, and a
// port, which is none of TCP's. A value; any thread.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace cleat::rdma {

struct Endpoint {
  std::string address;  // "192.0.2.1", "2001:db8::1", "fe80::1%eth0"
  uint16_t port = 0;

  std::string Text() const;  // "192.0.2.1:4420", "[2001:db8::1]:4420"; "no address"
};

// kInvalidArgument: `address` is no numeric address.
Result<sockaddr_storage> ToKernel(const Endpoint& endpoint);
// Empty where the kernel has neither an IPv4 nor an IPv6 address there.
Endpoint FromKernel(const sockaddr_storage& storage);

}  // namespace cleat::rdma
