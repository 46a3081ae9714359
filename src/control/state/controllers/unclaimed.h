// SPDX-License-Identifier: Apache-2.0
// What engines have beyond what the store knows, after it was restored from a backup: controllers that are left alone until a caller says
// what is to become of them. Any thread; what needs the state's mutex says so.
#pragma once

#include <map>
#include <string>

#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class Unclaimed {
 public:
  explicit Unclaimed(StateCore& core) : core_(core) {}  // which outlives it

  // What the engine had at its last hello.
  void ReportHeld(const std::string& engine, HeldByEngine held);
  const std::map<std::string, HeldByEngine>& held() const CLEAT_REQUIRES(holds_state) { return held_; }

  // Controllers that the engine has, that the restored store does not know, and that are left alone: all of them, by id.
  void Report(const std::string& engine, std::map<std::string, v1::ControllerSpec> unknown);
  // The engine that has such a controller; empty: none.
  std::string EngineThatServes(const std::string& controller) const CLEAT_REQUIRES(holds_state);
  // Of a controller that this engine has.
  const v1::ControllerSpec& SpecOn(const std::string& engine, const std::string& controller) const
      CLEAT_REQUIRES(holds_state) {
    return unknown_.at(engine).at(controller);
  }

 private:
  StateCore& core_;
  std::map<std::string, HeldByEngine> held_ CLEAT_GUARDED_BY(holds_state);  // by engine
  std::map<std::string, std::map<std::string, v1::ControllerSpec>> unknown_
      CLEAT_GUARDED_BY(holds_state);  // by engine
};

}  // namespace cleat::control
