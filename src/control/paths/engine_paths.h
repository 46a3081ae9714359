// SPDX-License-Identifier: Apache-2.0
// How the paths that an engine has read as listed (base/path_lists.h) differ from cleatd's. Both read the same file, but at other moments,
// or are told to read another one. Pure functions; any thread.
#pragma once

#include <string>

#include "base/path_lists.h"
#include "base/result.h"

namespace cleat::control {

// Reads lists in the form in which an engine tells them (PathLists::Text). kInvalidArgument.
Result<PathLists> ParseEnginePaths(const std::string& text);

// For people: which lines the engine lacks and which it has besides. Empty when there are none of either.
std::string PathDifference(const PathLists& ours, const PathLists& engines);

// Whether cleatd lists the path and the engine does not. What cleatd does not list itself is served since before, by any engine.
bool ExcludesPath(const PathLists& ours, const PathLists& engines, PathKind kind, const std::string& path);

}  // namespace cleat::control
