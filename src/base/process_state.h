// SPDX-License-Identifier: Apache-2.0
// What the kernel says of a process that does not answer. Any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace cleat {

// For people, with what helps where that is known: "process 7 is stopped (SIGSTOP, or a shell's job control): `kill -CONT 7` lets it go on".
std::string ProcessState(pid_t pid);

// Why a process goes no further by itself, for people: it is stopped, held by a debugger or frozen. Nothing when it does go on.
std::optional<std::string> WhyProcessStandsStill(pid_t pid);

// Says, for people, that nobody here can tell whether a process goes on: /proc, mounted at `proc`, has no such process, and the kernel has.
// Nothing when it can be told, or the process has ended.
std::optional<std::string> WhyProcessIsHidden(pid_t pid, const std::string& proc = "/proc");

}  // namespace cleat
