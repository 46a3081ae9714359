// SPDX-License-Identifier: Apache-2.0
#include "control/state/engines/engines.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/model/page.h"
#include "control/paths/engine_paths.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {

void Engines::SetUnseen() {
  v1::EngineStatus unseen;
  unseen.set_state(v1::ENGINE_STATE_NOT_CONNECTED);
  unseen.set_message("has not connected since cleatd started");
  for (auto& [id, entry] : core_.tables.engines) {
    entry.unseen = true;
    SetStatus(entry, unseen);
  }
}

Result<v1::Engine> Engines::Get(const v1::GetEngineRequest& request) {
  CLEAT_ASSIGN(auto id, ParseEngineName(request.name()));
  const StateLock lock(core_.mutex);
  const EngineEntry* const entry = core_.tables.engines.Find(id);
  if (entry == nullptr) return NotFound(request.name());
  return core_.view.Show(*entry);
}

Result<v1::ListEnginesResponse> Engines::List(const v1::ListEnginesRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListEnginesResponse response;
  const StateLock lock(core_.mutex);
  for (auto it = core_.tables.engines.After(request.page_token()); it != core_.tables.engines.end(); ++it) {
    v1::Engine engine = core_.view.Show(it->second);
    if (!page.Take(engine.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_engines() = std::move(engine);
  }
  return response;
}

// ---- For controllers

uint32_t Engines::ControllersOn(const EngineEntry& entry) const {
  const auto placing = placing_.find(entry.id);
  const size_t more = placing == placing_.end() ? 0 : placing->second;
  return entry.status.controllers() + static_cast<uint32_t>(more);
}

std::string Engines::Choose() const {
  const EngineEntry* best = nullptr;
  for (const auto& [id, engine] : core_.tables.engines) {
    const v1::EngineStatus& status = engine.status;
    const bool full = status.controllers_max() != 0 && ControllersOn(engine) >= status.controllers_max();
    const bool leaving = core_.tables.upgrade && core_.tables.upgrade->from == id;
    if (!status.connected() || IsNotAnswering(engine) || full || leaving || core_.roles.OnlyStandsBy(id))
      continue;
    if (best == nullptr || ControllersOn(engine) < ControllersOn(*best)) best = &engine;
  }
  return best == nullptr ? std::string() : best->id;
}

Status Engines::CheckChosen(const std::string& controller, const v1::ControllerSpec& spec) const {
  if (spec.engine().empty() || !core_.roles.OnlyStandsBy(*ParseEngineName(spec.engine()))) return Ok{};
  return RefuseFor(
      ControllerName(controller), v1::REASON_ENGINE_STANDS_BY,
      fmt::format(
          "{}: {} stands by for another engine, and takes controllers when that one dies or is upgraded: "
          "choose another engine, or none",
          ControllerName(controller), spec.engine()),
      {{"conflict", spec.engine()}});
}

void Engines::Count(const std::string& engine, int difference) {
  EngineEntry& entry = core_.tables.EngineOf(engine);
  entry.status.set_controllers(
      static_cast<uint32_t>(static_cast<int>(entry.status.controllers()) + difference));
  core_.publisher.Publish(entry);
}

RowUnderWay Engines::HoldPlace(const std::string& engine) {
  // Writes that have ended left a zero, and callers may name engines without end.
  std::erase_if(placing_, [](const auto& held) { return held.second == 0; });
  return RowUnderWay(placing_[engine]);
}

// ---- The reconciler's side

std::string Engines::StandbyFor(const std::string& engine) {
  const StateLock lock(core_.mutex);
  return core_.roles.StandbyOf(engine);
}

void Engines::Report(const std::string& id, const v1::EngineStatus& status) {
  const StateLock lock(core_.mutex);
  EngineEntry& entry = core_.tables.EngineOf(id);
  entry.unseen = false;
  SetStatus(entry, status);
}

void Engines::SetStatus(EngineEntry& entry, const v1::EngineStatus& status) {
  v1::EngineStatus complete = status;
  complete.set_controllers(entry.status.controllers());
  if (entry.revision != 0 && SameSpec(entry.status, complete)) return;
  const bool answered = !IsNotAnswering(entry);
  std::swap(entry.status, complete);
  core_.publisher.Publish(entry);
  cluster_faults_.OnEngine(complete, entry.status);
  if (answered == IsNotAnswering(entry)) PublishControllersOf(entry);
}

void Engines::PublishControllersOf(const EngineEntry& engine) {
  for (auto& [id, controller] : core_.tables.controllers) {
    if (controller.row.engine != engine.id) continue;
    core_.publisher.Publish(controller);
    for (auto& [name, attachment] : controller.attachments) core_.publisher.Publish(attachment);
  }
}

// ---- Lists of paths

void Engines::PathsChanged() {
  const StateLock lock(core_.mutex);
  for (auto& [id, entry] : core_.tables.engines) {
    if (entry.paths) core_.publisher.Publish(entry);
  }
  core_.publisher.PathsChanged();
}

void Engines::ReportPaths(const std::string& engine, const std::string& text) {
  std::optional<PathLists> paths;
  if (!text.empty()) {
    auto parsed = ParseEnginePaths(text);
    if (!parsed.ok())
      return spdlog::error(
          "{}: path lists of its hello can't be read: {}; restart the engine with a correct list",
          EngineName(engine), parsed.error().message);
    paths = std::move(*parsed);
  }
  const StateLock lock(core_.mutex);
  EngineEntry& entry = core_.tables.EngineOf(engine);
  if (entry.paths == paths) return;
  entry.paths = std::move(paths);
  if (entry.revision != 0) core_.publisher.Publish(entry);  // one that is new is told of by Report
}

std::string Engines::PathDifferenceOf(const std::string& engine) {
  const StateLock lock(core_.mutex);
  const EngineEntry* const found = core_.tables.engines.Find(engine);
  if (found == nullptr || !found->paths) return {};
  return PathDifference(*core_.paths->lists(), *found->paths);
}

std::string Engines::ExcludedFrom(const std::string& engine, const std::string& controller) {
  const StateLock lock(core_.mutex);
  const ControllerEntry* entry = core_.tables.controllers.Find(controller);
  if (entry == nullptr) return {};
  const std::vector<std::string> excluded = core_.roles.ExcludedOn(engine, *entry);
  return excluded.empty() ? std::string() : EngineRoles::Shown(excluded);
}

}  // namespace cleat::control
