// SPDX-License-Identifier: Apache-2.0
#include "control/state/moves/engine_removal.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/state/moves/engine_process.h"

namespace cleat::control {
namespace {

Error RefuseThere(const std::string& engine, const std::string& why) {
  return RefuseFor(EngineName(engine), v1::REASON_ENGINE_THERE,
                   fmt::format("{} can't be forgotten: {}", EngineName(engine), why));
}

}  // namespace

EngineRemoval::EngineRemoval(StateCore& core, Disks& disks, Controllers& controllers,
                             Attachments& attachments)
    : core_(core),
      disks_(disks),
      controllers_(controllers),
      attachments_(attachments),
      find_process_(FindEngineProcess) {}

Result<v1::ForgetEngineResponse> EngineRemoval::Forget(const v1::ForgetEngineRequest& request) {
  CLEAT_ASSIGN(const auto engine, ParseEngineName(request.name()));
  CLEAT_TRY(Check(engine, request.force()));
  v1::ForgetEngineResponse response;
  CLEAT_ASSIGN(const auto deleted, EndDeletions(engine));
  for (const std::string& id : deleted) response.add_deleted(ControllerName(id));
  CLEAT_TRY(ReleaseMemory(engine));
  CLEAT_ASSIGN(const auto placed, controllers_.PlaceAnew(engine));
  for (const std::string& id : placed) response.add_placed_anew(ControllerName(id));
  for (const std::string& id : controllers_.On(engine)) response.add_waiting(ControllerName(id));
  CLEAT_TRY(Erase(engine));
  spdlog::warn("{}: forgotten: {} controllers deleted, {} placed anew, {} wait for an engine of that name",
               request.name(), response.deleted_size(), response.placed_anew_size(), response.waiting_size());
  return response;
}

Status EngineRemoval::Check(const std::string& engine, bool force) {
  const std::optional<pid_t> process = force ? std::nullopt : find_process_(engine);
  const StateLock lock(core_.mutex);
  const EngineEntry* const entry = core_.tables.engines.Find(engine);
  if (entry == nullptr) return NotFound(EngineName(engine));
  CLEAT_TRY(CheckEntry(*entry, force));
  if (!process) return Ok{};
  return RefuseThere(
      engine, fmt::format("process {} is an engine of that name: end it, or repeat with --force", *process));
}

Status EngineRemoval::CheckEntry(const EngineEntry& entry, bool force) const {
  const auto& upgrade = core_.tables.upgrade;
  const bool moving = (upgrade && (upgrade->from == entry.id || upgrade->to == entry.id)) ||
                      entry.interrupted ||
                      (entry.upgrade && entry.upgrade->state() == v1::UPGRADE_STATE_RUNNING);
  if (moving)
    return RefuseFor(
        EngineName(entry.id), v1::REASON_UPGRADE_RUNNING,
        fmt::format("{}: its controllers are being moved: wait for the end (cleatctl engine get {})",
                    EngineName(entry.id), entry.id));
  if (entry.status.connected()) return RefuseThere(entry.id, "it is connected: end its process first");
  // An engine that was named since cleatd started, and has not come, has nothing: it has no incarnation.
  const bool lost = entry.status.incarnation() != 0 && entry.status.state() != v1::ENGINE_STATE_ENDED;
  if (force || !(lost || entry.unseen)) return Ok{};
  return RefuseThere(
      entry.id, fmt::format("{}: it may serve. End it, or, if it is certain to have ended or never to have "
                            "been there, repeat with --force",
                            lost ? "its connection was lost and its process was not seen to end"
                                 : "it has not connected since cleatd started, and was not seen to end"));
}

Result<std::vector<std::string>> EngineRemoval::EndDeletions(const std::string& engine) {
  std::vector<std::string> gone;
  for (const std::string& id : controllers_.On(engine)) {
    const ControllerIntent intent = controllers_.IntentOf(id);
    for (const AttachmentIntent& attachment : intent.attachments) {
      if (attachment.row.deleting) CLEAT_TRY(attachments_.Forget(id, attachment.row.id));
    }
    if (!intent.exists || !intent.row.deleting) continue;
    CLEAT_TRY(controllers_.Forget(id));
    gone.push_back(id);
  }
  return gone;
}

Status EngineRemoval::ReleaseMemory(const std::string& engine) {
  for (const std::string& disk : disks_.InMemory()) {
    CLEAT_TRY(disks_.RecordKept(disk, engine, false));
    const StateLock lock(core_.mutex);
    core_.publisher.DiskChanged(disk);
  }
  return Ok{};
}

Status EngineRemoval::Erase(const std::string& engine) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {EngineName(engine)}};
  core_.writes.Await(names);
  CLEAT_TRY(core_.writes.Write(names, {EraseUpgradeRow{engine}}));
  EngineEntry* const entry = core_.tables.engines.Find(engine);
  if (entry == nullptr || entry->status.connected()) return Ok{};  // it has come after all
  entry->upgrade.reset();
  if (entry->status.controllers() > 0) {
    core_.publisher.Publish(*entry);
    return Ok{};
  }
  core_.publisher.EngineForgotten(engine, entry->status.incarnation());
  core_.tables.engines.Erase(engine);
  core_.publisher.PublishGone(EngineName(engine));
  return Ok{};
}

}  // namespace cleat::control
