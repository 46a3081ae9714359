// SPDX-License-Identifier: Apache-2.0
// Which subsystems a discovery service has, by the module that speaks to such services: the product's Engine::Discover. Control reactor.
#pragma once

#include "base/result.h"
#include "engine/protocol/discovery.h"
#include "keys/keyring.h"
#include "modules/nvmf/rdma/rdma_ports.h"
#include "nvmf/login/login_line.h"
#include "reactor/blocking.h"
#include "reactor/cancel.h"
#include "reactor/task.h"

namespace cleat::engine {

// All of it outlives the task.
struct DiscoveryParts {
  keys::Keyring& keyring;
  BlockingPool& blocking;
  nvmf::LoginLine& arithmetic;
  modules::RdmaPorts& rdma;
};

// Ends within the time of `spec` and a second more, at once when it is cancelled. One that watches tells `seen` what the service has, again at each
// change, and ends with an error alone. Errors name the service, and are the module's.
Task<Result<DiscoveryReport>> Discover(DiscoverySpec spec, DiscoverySeen seen, DiscoveryParts parts,
                                       CancelToken& cancel);

}  // namespace cleat::engine
