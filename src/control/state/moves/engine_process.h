// SPDX-License-Identifier: Apache-2.0
// Whether a process of an engine is there, as far as it can be seen from outside. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace cleat::control {

// A process of this host whose command line is that of the engine of that name ("--name NAME", or none for the default one). Processes that
// the system hides from cleatd's user, and those of containers with process ids of their own, are not found.
std::optional<pid_t> FindEngineProcess(const std::string& engine);

}  // namespace cleat::control
