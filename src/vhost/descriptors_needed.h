// SPDX-License-Identifier: Apache-2.0
// The most file descriptors that an endpoint and its connection have open at a time, whatever a sane front end sends. They are
// reserved before the endpoint is there (base/descriptor_budget.h). tests/system/descriptors_test.cc compares it with what engines have open.
#pragma once

#include <cstdint>

#include "vhost/endpoint.h"
#include "vhost/protocol.h"

namespace cleat::vhost {

// Where the engine connects, a socket that does; where it listens, that and the connections that wait (ServerConnector).
inline constexpr uint32_t kClientDescriptors = 1;
inline constexpr uint32_t kServerDescriptors = 10;
// The connection, its back-end channel, the pair of sockets to the library; in-flight log and dirty log as they come, and as the
// library has them.
inline constexpr uint32_t kConnectionDescriptors = 4 + 2 * 2;
// Guest memory that comes, and the library's stand-ins of the table before. The next stand-ins are open beside them for a moment, in one
// connection after the other: of DescriptorBudget::kTransient.
inline constexpr uint32_t kMemoryDescriptors = 2 * kMemoryRegionsMax;
// Kick, call, error.
inline constexpr uint32_t kRingDescriptors = 3;

constexpr uint32_t DescriptorsNeeded(uint32_t rings, SocketMode mode) {
  return (mode == SocketMode::kClient ? kClientDescriptors : kServerDescriptors) + kConnectionDescriptors +
         kMemoryDescriptors + kRingDescriptors * rings;
}

}  // namespace cleat::vhost
