// SPDX-License-Identifier: Apache-2.0
// Waits until what was asked for has come true, or has failed.
#pragma once

#include <chrono>
#include <string>

#include "ctl/client.h"

namespace cleat::ctl {

inline constexpr std::chrono::seconds kWaitTimeMax{3600};  // cleatd's own limit

struct WaitOptions {
  v1::WaitCondition condition = v1::WAIT_CONDITION_READY;
  std::chrono::seconds time{30};
  bool fail_fast = true;  // ends at the first failed attempt, and not only when trying again makes no sense
};

// kOk: it has come true, and the response has the resource as it is. kTimedOut, or kFailed: the cause has been said.
[[nodiscard]] ExitCode WaitFor(Client& client, const std::string& name, const WaitOptions& options,
                               v1::WaitResponse& response);
[[nodiscard]] ExitCode WaitUntilGone(Client& client, const std::string& name, int seconds);

}  // namespace cleat::ctl
