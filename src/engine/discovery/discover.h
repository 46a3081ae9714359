// SPDX-License-Identifier: Apache-2.0
// Which subsystems a discovery service has, by the module that speaks to such services: the product's Engine::Discover. Control reactor.
#pragma once

#include "base/result.h"
#include "engine/protocol/discovery.h"
#include "reactor/cancel.h"
#include "reactor/task.h"

namespace cleat::engine {

// Ends within the time of `spec` and a second more, at once when it is cancelled. Errors name the service, and are the module's.
Task<Result<DiscoveryReport>> Discover(DiscoverySpec spec, CancelToken& cancel);

}  // namespace cleat::engine
