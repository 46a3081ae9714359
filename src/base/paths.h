// SPDX-License-Identifier: Apache-2.0
// Where Cleat's processes keep their things and meet: for root the system's folders, for others the user's.
#pragma once

#include <string>

#include "base/result.h"

namespace cleat {

// /var/lib/cleat; else $XDG_STATE_HOME/cleat; else ~/.local/state/cleat
std::string DefaultStateDir();
// /run/cleat; else $XDG_RUNTIME_DIR/cleat; else ~/.local/state/cleat
std::string DefaultRuntimeDir();

// unix sockets in the runtime folder: the API's, and the one that engines connect to.
std::string DefaultApiSocket();
std::string DefaultEngineSocket();

// Makes it (mode 0700) and the folders above it, where missing.
Status MakeDirectory(const std::string& path);

}  // namespace cleat
