// SPDX-License-Identifier: Apache-2.0
// Controllers and engines, from the API's side.
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/page.h"
#include "control/refusals.h"
#include "control/spec_rules.h"

namespace cleat::control {

Status HostState::FillControllers(std::vector<ControllerRow> rows) {
  for (ControllerRow& row : rows) {
    const std::string id = row.id;
    if (!row.engine.empty()) {
      engines_[row.engine].revision = revision_ + 1;
      CountController(row.engine, 1);
    }
    if (!row.spec.group().empty()) {
      const auto group = ParseGroupName(row.spec.group());
      if (!group.ok() || FindGroup(*group) == nullptr) {
        return Refuse(v1::REASON_STORE_DAMAGED, fmt::format("store: {} is there, but not its group {}",
                                                            ControllerName(id), row.spec.group()));
      }
      FindGroup(*group)->controllers.insert(id);
    }
    controllers_.emplace(
        id,
        ControllerEntry{.row = std::move(row), .status = {}, .attachments = {}, .revision = revision_ + 1});
  }
  return Ok{};
}

Result<v1::Controller> HostState::CreateController(const v1::CreateControllerRequest& request) {
  const std::string& id = request.controller_id();
  CLEAT_TRY(CheckId("controller_id", id));
  CLEAT_ASSIGN(auto spec, CompleteControllerSpec(id, request.controller().spec()));
  CLEAT_ASSIGN(auto labels, CheckLabels(ControllerName(id), request.controller().labels()));
  const Status path = paths_->CheckSocket(
      spec.socket_path(), fmt::format("{}: socket '{}'", ControllerName(id), spec.socket_path()));

  const MutexLock lock(mutex_);
  CLEAT_ASSIGN(auto existing, CheckNewController(id, spec));
  if (existing != nullptr) {
    if (existing->row.labels != labels) return TakenByOtherLabels(ControllerName(id));
    return Show(*existing);
  }

  CLEAT_TRY(path);
  ControllerEntry entry;
  entry.row.id = id;
  entry.row.spec = spec;
  entry.row.labels = std::move(labels);
  CLEAT_TRY(CheckChosenEngine(id, spec));
  entry.row.revision = entry.row.intent_revision = NextRevision();
  entry.row.engine = spec.engine().empty() ? EngineThatServes(id) : *ParseEngineName(spec.engine());
  if (entry.row.engine.empty()) entry.row.engine = ChooseEngine();
  CLEAT_TRY(store_.Put(entry.row));
  ControllerEntry& kept = controllers_.emplace(id, std::move(entry)).first->second;
  if (!kept.row.engine.empty()) CountController(kept.row.engine, 1);
  JoinGroup(kept.row);
  Publish(kept);
  ControllerChanged(id);
  spdlog::info("{}: created: socket '{}', engine '{}'", ControllerName(id), spec.socket_path(),
               kept.row.engine);
  return Show(kept);
}

Result<HostState::ControllerEntry*> HostState::CheckNewController(const std::string& id,
                                                                  const v1::ControllerSpec& spec) {
  const std::string name = ControllerName(id);
  if (ControllerEntry* existing = FindController(id)) {
    if (existing->row.deleting) {
      return Busy(name, name + " is still being removed");
    }
    if (SameSpec(existing->row.spec, spec)) return existing;
    return TakenByOther(name, existing->row.spec, spec);
  }
  if (controllers_.size() >= kControllersMax) {
    return RefuseFor(
        name, v1::REASON_TOO_MANY_RESOURCES,
        fmt::format("{}: there are {} controllers, which is the most: delete one", name, kControllersMax),
        {{"limit", std::to_string(kControllersMax)}});
  }
  if (!spec.group().empty() && FindGroup(*ParseGroupName(spec.group())) == nullptr) {
    return NotThere(spec.group());
  }
  for (const auto& [other_id, other] : controllers_) {
    if (other.row.spec.socket_path() != spec.socket_path()) continue;
    if (other.row.deleting) {
      return Busy(name,
                  fmt::format("{}: socket '{}' is still used by {}, which is being removed", name,
                              spec.socket_path(), ControllerName(other_id)),
                  ControllerName(other_id));
    }
    return RefuseFor(
        name, v1::REASON_SOCKET_TAKEN,
        fmt::format(
            "{}: socket '{}' is used by {}: each controller needs a socket of its own. Choose another "
            "path, or delete that controller (cleatctl controller delete {})",
            name, spec.socket_path(), ControllerName(other_id), other_id),
        {{"conflict", ControllerName(other_id)}});
  }
  return nullptr;
}

std::string HostState::ChooseEngine() const {
  const std::pair<const std::string, EngineEntry>* best = nullptr;
  for (const auto& engine : engines_) {
    const v1::EngineStatus& status = engine.second.status;
    const bool full = status.controllers_max() != 0 && status.controllers() >= status.controllers_max();
    const bool leaving = upgrade_ && upgrade_->from == engine.first;
    if (!status.connected() || full || leaving || StandsBy(engine.first)) continue;
    if (best == nullptr || status.controllers() < best->second.status.controllers()) best = &engine;
  }
  return best == nullptr ? std::string() : best->first;
}

Status HostState::CheckChosenEngine(const std::string& controller, const v1::ControllerSpec& spec) const {
  if (spec.engine().empty() || !StandsBy(*ParseEngineName(spec.engine()))) return Ok{};
  return RefuseFor(
      ControllerName(controller), v1::REASON_ENGINE_STANDS_BY,
      fmt::format("{}: {} stands by for another engine, and would not any more with a controller of its "
                  "own: choose another engine, or none",
                  ControllerName(controller), spec.engine()),
      {{"conflict", spec.engine()}});
}

void HostState::CountController(const std::string& engine, int difference) {
  EngineEntry& entry = engines_[engine];
  entry.status.set_controllers(
      static_cast<uint32_t>(static_cast<int>(entry.status.controllers()) + difference));
  // Its first controller ends that it stands by, and the end of its last one begins that.
  const bool turned = entry.status.controllers() == (difference > 0 ? 1U : 0U);
  if (const auto principal = ParseEngineName(entry.status.stands_by_for()); turned && principal.ok()) {
    for (const auto& [id, controller] : controllers_) {
      if (controller.row.engine == *principal) ControllerChanged(id);
    }
  }
  Publish(engine, entry);
}

Result<v1::Controller> HostState::GetController(const v1::GetControllerRequest& request) {
  CLEAT_ASSIGN(auto id, ParseControllerName(request.name()));
  const MutexLock lock(mutex_);
  const ControllerEntry* entry = FindController(id);
  if (entry == nullptr) return NotThere(request.name());
  return Show(*entry);
}

Result<v1::ListControllersResponse> HostState::ListControllers(const v1::ListControllersRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListControllersResponse response;
  const MutexLock lock(mutex_);
  for (auto it = controllers_.upper_bound(request.page_token()); it != controllers_.end(); ++it) {
    v1::Controller controller = Show(it->second);
    if (!page.Take(controller.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_controllers() = std::move(controller);
  }
  return response;
}

Result<v1::DeleteControllerResponse> HostState::DeleteController(const v1::DeleteControllerRequest& request) {
  CLEAT_ASSIGN(auto id, ParseControllerName(request.name()));
  const std::string& name = request.name();
  const MutexLock lock(mutex_);
  AwaitAttaching([&](const Attaching& other) { return other.row->controller == id; });
  ControllerEntry* entry = FindController(id);
  if (entry == nullptr) {
    CLEAT_TRY(DeleteLeftAlone(id));
    return v1::DeleteControllerResponse();
  }
  if (entry->row.deleting) return v1::DeleteControllerResponse();
  CLEAT_TRY(CheckEtag(name, request.etag(), entry->row.intent_revision));

  std::vector<std::string> live;
  for (const auto& [attachment_id, attachment] : entry->attachments) {
    if (!attachment.row.deleting) live.push_back(AttachmentName(id, attachment_id));
  }
  if (!live.empty()) {
    const AttachmentsShown shown = ShowAttachments(live);
    return RefuseFor(
        name, v1::REASON_CONTROLLER_IN_USE,
        fmt::format("{} has disks attached ({}): detach them first ({})", name, shown.names, shown.commands),
        {{"conflict", live.front()}});
  }
  Status status;
  if (entry->row.engine.empty()) {
    status = EraseController(*entry);
  } else {
    ControllerRow row = entry->row;
    row.deleting = true;
    row.intent_revision = NextRevision();
    status = store_.Put(row);
    if (status.ok()) {
      entry->row = std::move(row);
      Publish(*entry);
      ControllerChanged(id);
      if (!entry->row.spec.group().empty()) GroupChanged(*ParseGroupName(entry->row.spec.group()));
    }
  }
  CLEAT_TRY(status);
  spdlog::info("{}: deleted", name);
  return v1::DeleteControllerResponse();
}

Status HostState::EraseController(ControllerEntry& entry) {
  const std::string id = entry.row.id;
  const std::string engine = entry.row.engine;
  CLEAT_TRY(store_.EraseController(id));
  LeaveGroup(entry.row);
  controllers_.erase(id);
  PublishGone(ControllerName(id));
  if (engine.empty()) return Ok{};
  CountController(engine, -1);
  PlaceWaiting();
  return Ok{};
}

// ---- Engines ----

Result<v1::Engine> HostState::GetEngine(const v1::GetEngineRequest& request) {
  CLEAT_ASSIGN(auto id, ParseEngineName(request.name()));
  const MutexLock lock(mutex_);
  const auto it = engines_.find(id);
  if (it == engines_.end()) return NotThere(request.name());
  return Show(it->first, it->second);
}

Result<v1::ListEnginesResponse> HostState::ListEngines(const v1::ListEnginesRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListEnginesResponse response;
  const MutexLock lock(mutex_);
  for (auto it = engines_.upper_bound(request.page_token()); it != engines_.end(); ++it) {
    v1::Engine engine = Show(it->first, it->second);
    if (!page.Take(engine.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_engines() = std::move(engine);
  }
  return response;
}

}  // namespace cleat::control
