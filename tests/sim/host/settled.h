// SPDX-License-Identifier: Apache-2.0
// Whether a host that was left in peace is as it was asked to be: what cleatd shows, what each engine has, and who serves the guests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "control/state/host_state.h"
#include "engine_host.h"
#include "host_storage.h"

namespace cleat::sim {

// The first thing that is not; empty: all is. On a thread of cleatd's.
std::string WhatIsUnsettled(control::HostState& state,
                            const std::vector<std::unique_ptr<EngineHost>>& engines,
                            const HostStorage& storage);

}  // namespace cleat::sim
