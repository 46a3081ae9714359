// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/engines/connected_engines.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::control {

EngineView& ConnectedEngines::Add(const EngineInfo& info) {
  EngineView& engine = engines_[info.peer];
  engine.info = info;
  known_[info.id] = info;
  dead_.erase(info.id);
  return engine;
}

std::optional<EngineView> ConnectedEngines::Remove(PeerId peer) {
  auto node = engines_.extract(peer);
  if (node.empty()) return std::nullopt;
  EngineView& gone = node.mapped();
  LeftBehind& left = left_behind_[gone.info.id];
  left.incarnation = gone.info.incarnation;
  for (const auto& [controller, view] : gone.controllers) left.controllers.insert(controller);
  return std::move(gone);
}

std::set<std::string> ConnectedEngines::TakeLeftBehind(const std::string& engine, uint64_t incarnation) {
  const auto found = left_behind_.find(engine);
  if (found == left_behind_.end() || found->second.incarnation != incarnation) return {};
  return std::move(left_behind_.extract(found).mapped().controllers);
}

std::set<std::string> ConnectedEngines::Forget(const std::string& engine, uint64_t incarnation) {
  const auto known = known_.find(engine);
  if (known == known_.end() || known->second.incarnation != incarnation || FindByName(engine) != nullptr)
    return {};
  known_.erase(known);
  dead_.erase(engine);
  return TakeLeftBehind(engine, incarnation);
}

EngineView* ConnectedEngines::Find(PeerId peer) {
  const auto found = engines_.find(peer);
  return found == engines_.end() ? nullptr : &found->second;
}

const EngineView* ConnectedEngines::Find(PeerId peer) const {
  const auto found = engines_.find(peer);
  return found == engines_.end() ? nullptr : &found->second;
}

EngineView& ConnectedEngines::Get(PeerId peer) {
  EngineView* engine = Find(peer);
  CLEAT_CHECK(engine != nullptr);
  return *engine;
}

EngineView* ConnectedEngines::FindByName(const std::string& engine) {
  for (auto& [peer, view] : engines_) {
    if (view.info.id == engine) return &view;
  }
  return nullptr;
}

const EngineView* ConnectedEngines::FindByName(const std::string& engine) const {
  for (const auto& [peer, view] : engines_) {
    if (view.info.id == engine) return &view;
  }
  return nullptr;
}

bool ConnectedEngines::IsElsewhere(const EngineView& engine, const std::string& controller,
                                   std::optional<uint32_t> target) const {
  return IsOnOthers(&engine, controller, target);
}

bool ConnectedEngines::IsAnywhere(const std::string& controller, std::optional<uint32_t> target) const {
  return IsOnOthers(nullptr, controller, target);
}

bool ConnectedEngines::IsOnOthers(const EngineView* engine, const std::string& controller,
                                  std::optional<uint32_t> target) const {
  return std::any_of(engines_.begin(), engines_.end(), [&](const auto& other) {
    if (&other.second == engine || other.second.foreign) return false;
    const ControllerView* view = other.second.FindController(controller);
    if (view == nullptr) return false;
    if (!target) return view->request.busy() || view->actual.has_value();
    return view->attachments.contains(*target) || view->targets.IsBusy(*target);
  });
}

bool ConnectedEngines::NoteDeath(const std::string& engine, uint64_t incarnation) {
  const auto known = known_.find(engine);
  if (known == known_.end() || known->second.incarnation != incarnation) return false;
  dead_.insert(engine);
  return true;
}

}  // namespace cleat::control
