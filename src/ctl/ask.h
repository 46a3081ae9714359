// SPDX-License-Identifier: Apache-2.0
// What can't be taken back is asked about, when somebody is at the terminal.
#pragma once

#include <string>

#include "ctl/output.h"

namespace cleat::ctl {

// Says `what` and asks `question` on standard error; kOk when the answer on standard input is y or yes. kUsage when one of the two is
// no terminal, so that nobody can answer: then it says that --yes is needed. Any other answer, or none: kFailed.
[[nodiscard]] ExitCode Ask(const std::string& what, const std::string& question);

}  // namespace cleat::ctl
