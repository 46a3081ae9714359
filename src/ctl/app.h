// SPDX-License-Identifier: Apache-2.0
// The whole of cleatctl behind main().
#pragma once

#include <CLI/CLI.hpp>

#include "ctl/client.h"

namespace cleat::ctl {

// The parser with all commands; both arguments outlive what is parsed.
void BuildApp(CLI::App& app, Globals& globals);

// Parses, does, and gives the exit code. Messages have been printed.
int Run(int argc, const char* const* argv);

}  // namespace cleat::ctl
