// SPDX-License-Identifier: Apache-2.0
// --wait: watches until what was asked for has come true.
#pragma once

#include <string>

#include "ctl/client.h"

namespace cleat::ctl {

enum class Goal {
  kReady,  // a disk or attachment is READY; a controller is at its engine
  kGone,
};

// False, with the state that it is in on stderr, when that has not come true after `seconds`.
bool WaitFor(Client& client, const std::string& name, Goal goal, int seconds);

}  // namespace cleat::ctl
