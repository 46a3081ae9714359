// SPDX-License-Identifier: Apache-2.0
// Engines that will not come: what waits for one of them is done without it. Any thread; what needs the state's mutex says so.
//
// An engine that lives all the same is nobody's danger: what it has is another's by then, which the disks' locks keep apart, and the
// reconciler takes from it what is not its own when it connects.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/state/controllers/attachments.h"
#include "control/state/controllers/controllers.h"
#include "control/state/disks/disks.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class EngineRemoval {
 public:
  using FindProcess = std::function<std::optional<pid_t>(const std::string& engine)>;

  // All of them outlive it.
  EngineRemoval(StateCore& core, Disks& disks, Controllers& controllers, Attachments& attachments);

  // In steps that are durable one by one: a call that fails, or that cleatd's end interrupts, is repeated.
  Result<v1::ForgetEngineResponse> Forget(const v1::ForgetEngineRequest& request);

  // For tests. Set once, before the first request.
  void SetFindProcess(FindProcess find_process) { find_process_ = std::move(find_process); }

 private:
  Status Check(const std::string& engine, bool force);
  Status CheckEntry(const EngineEntry& entry, bool force) const CLEAT_REQUIRES(holds_state);
  // Tombstones that wait for the engine. Returns the controllers that are gone.
  Result<std::vector<std::string>> EndDeletions(const std::string& engine);
  Status ReleaseMemory(const std::string& engine);
  // The engine itself, unless a controller still names it.
  Status Erase(const std::string& engine);

  StateCore& core_;
  Disks& disks_;
  Controllers& controllers_;
  Attachments& attachments_;
  FindProcess find_process_;
};

}  // namespace cleat::control
