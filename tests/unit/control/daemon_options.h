// SPDX-License-Identifier: Apache-2.0
// What a test starts a cleatd with that has all its files in one folder, and lets callers name any path.
#pragma once

#include "control/daemon.h"
#include "open_paths.h"
#include "tests/support/temp_dir.h"

namespace cleat::control {

inline DaemonOptions OptionsIn(const test::TempDir& dir) {
  DaemonOptions options;
  options.state_dir = dir.path();
  options.paths_file = OpenPaths(dir / "paths.conf");
  options.api_socket = dir / "api.sock";
  options.engine_socket = dir / "engine.sock";
  return options;
}

}  // namespace cleat::control
