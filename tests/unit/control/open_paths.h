// SPDX-License-Identifier: Apache-2.0
// Lists that let callers name any path, for tests about something else.
#pragma once

#include <fstream>
#include <string>

namespace cleat::control {

// For DaemonOptions::paths_file.
inline std::string OpenPaths(const std::string& file) {
  std::ofstream(file) << "files /\ndevices /\nsockets /\nkeys /\n";
  return file;
}

}  // namespace cleat::control
