// SPDX-License-Identifier: Apache-2.0
// The syncs of a simulated program: its fdatasync and fsync, which SQLite calls for each commit. Those of threads that are not simulated do
// nothing.
#pragma once

#include <functional>

namespace cleat::sim {

// Called on the simulated thread that syncs that descriptor; false: the sync fails. Empty: all succeed at once. Set while no simulated
// thread runs.
void SetSyncHook(std::function<bool(int fd)> sync);

}  // namespace cleat::sim
