// SPDX-License-Identifier: Apache-2.0
// Completion of a command line: what may come next, taken from the parser's own tables, so that it knows every command
// and option there is.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ctl/client.h"

namespace cleat::ctl {

// The ids of all resources of a kind (kDiskArgument ...), with a global option's value by its name. `parent` is the
// controller for kWhichArgument. Empty when they can't be had.
using FindIds = std::function<std::vector<std::string>(std::string_view kind, const std::string& parent)>;

// What the last of the words - it may be empty, or a part - can become: "WORD", or "WORD<tab>DESCRIPTION". ":files"
// stands for names of files, which the shell knows itself. Values of global options that stand in the other words are
// put into `globals`.
std::vector<std::string> Complete(const CLI::App& app, const std::vector<std::string>& words,
                                  Globals& globals, const FindIds& find_ids);

// Asks cleatd, quietly, and with a deadline that nobody at a keyboard minds.
std::vector<std::string> FindIdsOfCleatd(const Globals& globals, std::string_view kind,
                                         const std::string& parent);

}  // namespace cleat::ctl
