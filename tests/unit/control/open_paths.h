// SPDX-License-Identifier: Apache-2.0
// Lists that let callers name any path, for tests about something else.
#pragma once

#include <fstream>
#include <string>

#include "base/path_lists.h"

namespace cleat::control {

// For DaemonOptions::paths_file.
inline std::string OpenPaths(const std::string& file) {
  std::ofstream(file) << PathLists::Everything().Text();
  return file;
}

}  // namespace cleat::control
