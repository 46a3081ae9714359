// SPDX-License-Identifier: Apache-2.0
#include "ctl/ask.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

namespace cleat::ctl {

ExitCode Ask(const std::string& what, const std::string& question) {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDERR_FILENO) == 0) {
    return Fail(
        kUsage,
        fmt::format("{}nobody is at a terminal to be asked: give --yes if that is meant. Nothing was done",
                    what));
  }
  fmt::print(stderr, "{}{} [y/N] ", what, question);
  std::string answer;
  std::getline(std::cin, answer);
  if (answer == "y" || answer == "yes") return kOk;
  return Fail(kFailed, "nothing was done");
}

}  // namespace cleat::ctl
