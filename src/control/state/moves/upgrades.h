// SPDX-License-Identifier: Apache-2.0
// Upgrades of engines: asked for, cancelled, what becomes of them, and those that the end of cleatd interrupted. Any thread; what needs the
// state's mutex says so.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/model/model.h"
#include "control/state/controllers/controllers.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class Upgrades {
 public:
  // Both outlive it.
  Upgrades(StateCore& core, Controllers& controllers) : core_(core), controllers_(controllers) {}

  void Fill(std::vector<UpgradeRow> rows) CLEAT_REQUIRES(holds_state);  // from the store

  // ---- The API
  Result<v1::UpgradeEngineResponse> Begin(const v1::UpgradeEngineRequest& request);
  Result<v1::Engine> Cancel(const v1::CancelUpgradeRequest& request);

  // ---- The reconciler's questions and reports
  std::optional<UpgradeIntent> Running();
  // Of the upgrade away from that engine, or of what is taken from it since it died. kStored: durable, as far as the store
  // can be written.
  enum class Keep { kShown, kStored };
  void Report(const std::string& engine, const v1::UpgradeStatus& status, Keep keep);
  // The engine to which controllers of that one were being moved when cleatd ended; empty when none were.
  std::string InterruptedTo(const std::string& engine);
  // The controllers of engines of which that is so.
  std::vector<std::string> InterruptedFor(const std::string& to);
  // That engine has come back and said what it has, or (empty) all have had their time: it is awaited no more, also not after
  // the next restart.
  void EndRecovery(const std::string& engine);

 private:
  Result<const EngineEntry*> FindForUpgrade(const std::string& id) const CLEAT_REQUIRES(holds_state);
  Status Check(const std::string& from, const std::string& to) const CLEAT_REQUIRES(holds_state);
  // Whether controllers of that engine, which has died, are on their way to another one.
  static Status CheckTakeOver(const EngineEntry& engine) CLEAT_REQUIRES(holds_state);
  Status CheckPaths(const std::string& from, const std::string& to) const CLEAT_REQUIRES(holds_state);
  std::string ObstacleOf(const ControllerEntry& entry) const CLEAT_REQUIRES(holds_state);
  // What would be moved, and what stands in the way.
  v1::UpgradeEngineResponse Plan(const std::string& from) const CLEAT_REQUIRES(holds_state);
  void SetStatus(const std::string& engine, const v1::UpgradeStatus& status) CLEAT_REQUIRES(holds_state);
  // Lets go of the mutex meanwhile.
  void WriteRows(const WriteNames& names, const std::vector<UpgradeRow>& rows) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  Controllers& controllers_;
};

}  // namespace cleat::control
