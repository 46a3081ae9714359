// SPDX-License-Identifier: Apache-2.0
// The engines that are connected, and which of the others have died. The reconciler owns it; a view lives from its engine's hello to the
// end of that connection. On the link's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "control/link/engine_link.h"
#include "control/reconcile/engines/engine_view.h"

namespace cleat::control {

class ConnectedEngines {
 public:
  // Notes an engine that has said hello, and so is alive.
  EngineView& Add(const EngineInfo& info);
  // Takes out the engine whose connection has ended; nothing when it had not said hello.
  std::optional<EngineView> Remove(PeerId peer);
  // The controllers that this process of the engine had, or was asked about, when its connection ended; nothing when a later process of that
  // name has been connected and lost since. Other engines may wait for it to let them go, which is known when it has ended or is back.
  std::set<std::string> TakeLeftBehind(const std::string& engine, uint64_t incarnation);

  EngineView* Find(PeerId peer);
  const EngineView* Find(PeerId peer) const;
  EngineView& Get(PeerId peer);  // the engine must be connected
  EngineView* FindByName(const std::string& engine);
  const EngineView* FindByName(const std::string& engine) const;
  std::map<PeerId, EngineView>& all() { return engines_; }
  const std::map<PeerId, EngineView>& all() const { return engines_; }

  // Forgets an engine that is not connected, as if it had never been, and returns what TakeLeftBehind would; nothing when a later process
  // than that one has come since.
  std::set<std::string> Forget(const std::string& engine, uint64_t incarnation);

  // Whether another engine than this one has the controller's target, open or being opened; without a target, the controller itself.
  bool IsElsewhere(const EngineView& engine, const std::string& controller,
                   std::optional<uint32_t> target) const;

  // The same of any engine.
  bool IsAnywhere(const std::string& controller, std::optional<uint32_t> target) const;

  // Notes that the process of an engine that is not connected has ended. False, and nothing is noted, when another process of that name
  // was connected later: that one may serve.
  bool NoteDeath(const std::string& engine, uint64_t incarnation);
  bool IsDead(const std::string& engine) const { return dead_.contains(engine); }
  const std::set<std::string>& dead() const { return dead_; }  // names of those that have not come back
  const EngineInfo& LastInfo(const std::string& engine) const { return known_.at(engine); }  // of a dead one

 private:
  // Of all but this one; null: of all.
  bool IsOnOthers(const EngineView* engine, const std::string& controller,
                  std::optional<uint32_t> target) const;

  struct LeftBehind {
    uint64_t incarnation = 0;  // of the process that was lost last
    std::set<std::string> controllers;
  };

  std::map<PeerId, EngineView> engines_;
  std::map<std::string, EngineInfo> known_;  // as they last connected
  std::set<std::string> dead_;
  std::map<std::string, LeftBehind> left_behind_;  // by engine
};

}  // namespace cleat::control
