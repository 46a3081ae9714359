// SPDX-License-Identifier: Apache-2.0
// Which engine a controller is on.
#include <utility>

#include "base/log.h"
#include "control/model/names.h"
#include "control/state/controllers/controllers.h"

namespace cleat::control {

void Controllers::Place() {
  const StateLock lock(core_.mutex);
  PlaceWaiting();
}

void Controllers::PlaceAgain() {
  const StateLock lock(core_.mutex);
  if (placing_unstored_) PlaceWaiting();
}

void Controllers::PlaceWaiting() {
  WriteNames names{.changes = {}, .needs = {kPlacing}};
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (entry.row.engine.empty()) names.changes.insert(ControllerName(id));
  }
  // What makes room calls this again.
  if (names.changes.empty() || engines_.Choose().empty()) return;
  core_.writes.Await(names);
  std::vector<ControllerRow> rows;
  std::vector<RowUnderWay> placing;
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (!entry.row.engine.empty() || !names.changes.contains(ControllerName(id))) continue;
    ControllerRow row = entry.row;
    row.engine = engines_.Choose();
    if (row.engine.empty()) break;
    placing.push_back(engines_.HoldPlace(row.engine));
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return;
  placing_unstored_ = true;
  const Status written = core_.writes.Write(names, {rows.begin(), rows.end()});
  placing_unstored_ = !written.ok();
  placing.clear();
  if (!written.ok()) {
    spdlog::error("{}: not placed on an engine: {}; see to the store's file system",
                  ControllerName(rows.front().id), written.error().message);
    return;
  }
  for (ControllerRow& row : rows) {
    groups_.MarkGroupOf(row);
    MoveTo(std::move(row));
  }
}

void Controllers::PrepareMove(const std::string& id, const std::string& engine) {
  const StateLock lock(core_.mutex);
  if (ControllerEntry* entry = core_.tables.controllers.Find(id)) entry->moving_to = engine;
}

Status Controllers::Move(const std::vector<Placement>& moves) {
  const StateLock lock(core_.mutex);
  WriteNames names;
  for (const Placement& move : moves) names.changes.insert(ControllerName(move.controller));
  core_.writes.Await(names);
  std::vector<ControllerRow> rows;
  for (const Placement& move : moves) {
    const ControllerEntry* entry = core_.tables.controllers.Find(move.controller);
    if (entry == nullptr || entry->row.engine == move.engine) continue;
    rows.push_back(entry->row);
    rows.back().engine = move.engine;
  }
  if (rows.empty()) return Ok{};
  CLEAT_TRY(core_.writes.Write(names, {rows.begin(), rows.end()}));
  for (ControllerRow& row : rows) MoveTo(std::move(row));
  return Ok{};
}

Result<std::vector<std::string>> Controllers::PlaceAnew(const std::string& engine) {
  const StateLock lock(core_.mutex);
  const auto is_placed_anew = [&](const ControllerEntry& entry) {
    return entry.row.engine == engine && !entry.row.deleting && entry.row.spec.engine() != EngineName(engine);
  };
  WriteNames names;
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (is_placed_anew(entry)) names.changes.insert(ControllerName(id));
  }
  core_.writes.Await(names);
  std::vector<ControllerRow> rows;
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (!is_placed_anew(entry) || !names.changes.contains(ControllerName(id))) continue;
    rows.push_back(entry.row);
    rows.back().engine.clear();
  }
  if (rows.empty()) return std::vector<std::string>();
  CLEAT_TRY(core_.writes.Write(names, {rows.begin(), rows.end()}));
  std::vector<std::string> placed;
  for (ControllerRow& row : rows) {
    placed.push_back(row.id);
    ForgetStatus(core_.tables.controllers.At(row.id));
    MoveTo(std::move(row));
  }
  PlaceWaiting();
  return placed;
}

// What the engine that is no more said of it.
void Controllers::ForgetStatus(ControllerEntry& entry) {
  entry.status.Clear();
  for (auto& [id, attachment] : entry.attachments) {
    attachment.status.Clear();
    core_.publisher.Publish(attachment);
    DiskEntry& disk = core_.tables.DiskOf(attachment.row);
    disk.attachments.at(AttachmentName(entry.row.id, id)).io_path.clear();
    core_.publisher.Publish(disk);
  }
}

// The row is durable.
void Controllers::MoveTo(ControllerRow row) {
  ControllerEntry& entry = core_.tables.controllers.At(row.id);
  const std::string old = std::exchange(entry.row, std::move(row)).engine;
  if (!old.empty()) engines_.Count(old, -1);
  if (!entry.row.engine.empty()) engines_.Count(entry.row.engine, 1);
  core_.publisher.Publish(entry);
  core_.publisher.ControllerChanged(entry.row.id);
}

}  // namespace cleat::control
