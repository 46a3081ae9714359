// SPDX-License-Identifier: Apache-2.0
// Which subsystems a target offers, and where: its discovery service is read once, over NVMe/TCP, in plain text and without authentication.
//
// Source: NVM Express Base Specification 2.0, 5.16.1.23; nvme/host/discovery.h has the limits.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/result.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/fabrics/names.h"
#include "reactor/cancel.h"
#include "reactor/task.h"

namespace cleat::modules {

struct NvmfDiscovery {
  nvme::fabrics::TransportAddress address;
  nvme::fabrics::HostIdentity host;  // what the service tells may depend on who asks
  uint64_t timeout_ns = 10 * kNsPerSecond;
  CancelToken* cancel = nullptr;  // ends the reading at once; outlives it
};

// Reads the log on the reactor that runs it. Ends within timeout_ns and nvme::host::Discovery::kShutdownTimeoutNs.
//   kCancelled          `cancel` was
//   kInvalidArgument    options that make no sense
//   kPermissionDenied   the target does not let this host in, or asks it for authentication
//   kDeadlineExceeded, kUnavailable   nobody answers there, or not NVMe/TCP
//   others              what the target's log has that it may not have; the error says what
Task<Result<nvme::fabrics::DiscoveryLog>> DiscoverNvmf(NvmfDiscovery options);

}  // namespace cleat::modules
