// SPDX-License-Identifier: Apache-2.0
// Back ends as people order and read them: backends.cc alone of cleatctl knows their kinds.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cleat/v1/cleat.pb.h"

namespace cleat::ctl {

// Adds an option for each kind, of which exactly one must be given, and those that go with it. What is given is written to `spec`,
// which lives as long as `create`.
void AddBackends(CLI::App& create, v1::DiskSpec& spec);

// In a table: "file:/var/lib/vms/root.img". "?" is none, or one that a newer cleatd knows.
std::string ShowBackend(const v1::DiskSpec& spec);

}  // namespace cleat::ctl
