// SPDX-License-Identifier: Apache-2.0
// What the kernel says of a process that does not answer. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace cleat {

// For people, with what helps where that is known: "process 7 is stopped (SIGSTOP, or a shell's job control): `kill -CONT 7` lets it go on".
std::string ProcessState(pid_t pid);

// Likewise, of a process that goes no further by itself: stopped, held by a debugger, frozen. Nothing of any other.
std::optional<std::string> WhyProcessStandsStill(pid_t pid);

}  // namespace cleat
