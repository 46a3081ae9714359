// SPDX-License-Identifier: Apache-2.0
// Which subsystems a target offers, and where: its discovery service is read once, or watched, over NVMe/TCP or NVMe/RDMA.
//
// Source: NVM Express Base Specification 2.0, 5.16.1.23; nvme/host/discovery.h has the limits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "nvme/auth/chap_secret.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/fabrics/names.h"
#include "nvme/tls/psk.h"
#include "nvmf/login/login_line.h"
#include "reactor/cancel.h"
#include "reactor/task.h"

namespace cleat::modules {

class RdmaPorts;  // modules/nvmf/rdma/rdma_ports.h

struct NvmfDiscovery {
  nvme::fabrics::TransportAddress address;
  nvme::fabrics::HostIdentity host;  // what the service tells may depend on who asks
  // The secrets with which host and service prove themselves; nullptr: this host has none.
  std::shared_ptr<const nvme::auth::ChapSecrets> chap;
  std::shared_ptr<const nvme::tls::Psk> psk;  // nullptr: plain TCP
  nvmf::LoginLine* arithmetic = nullptr;      // as NvmfOptions'; nullptr only without `chap`
  RdmaPorts* rdma = nullptr;                  // as NvmfOptions'; nullptr only where `address` is of TCP
  // The time to read the log in, what this host computes included; of a log that is watched, each time.
  uint64_t timeout_ns = 10 * kNsPerSecond;
  // Not empty: the log is watched. Called with the log as it is, and with it again each time that it has come to be another one. May cancel.
  std::function<void(const nvme::fabrics::DiscoveryLog& log)> seen;
  uint32_t kato_ms = 30'000;      // of a log that is watched: 1000 to 600 000
  CancelToken* cancel = nullptr;  // ends the reading at once; outlives it
};

// Reads the log on the reactor that runs it. Ends within timeout_ns and nvme::host::Discovery::kShutdownTimeoutNs; a log that is watched is
// watched until an error ends that.
//   kCancelled          `cancel` was
//   kInvalidArgument    options that make no sense
//   kPermissionDenied   the target does not let this host in or does not take its pre-shared key, or one of the two has not authenticated
//                       itself to the other
//   kDeadlineExceeded, kUnavailable   nobody answers there, or not by this transport
//   kUnimplemented      the service does not tell of changes, where the log was to be watched
//   others              what the target's log has that it may not have; the error says what
Task<Result<nvme::fabrics::DiscoveryLog>> DiscoverNvmf(NvmfDiscovery options);

}  // namespace cleat::modules
