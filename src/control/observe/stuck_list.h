// SPDX-License-Identifier: Apache-2.0
// The part of ListSlowRequests' answer that says what waits at its storage now, and why. Made when it is asked for, of what cleatd knows of
// each attachment, and of the engines' counters where a status has no number: between two questions it costs nothing. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cleat/v1/cleat.pb.h"
#include "control/observe/counters.h"

namespace cleat::control {

inline constexpr size_t kStuckListMax = 256;

// Adds those of `stuck` that `name` means: a disk's, a controller's or an engine's; empty: all.
void AddStuck(std::vector<v1::StuckAttachment> stuck, const std::string& name, const Counters& counters,
              v1::ListSlowRequestsResponse& response);

}  // namespace cleat::control
