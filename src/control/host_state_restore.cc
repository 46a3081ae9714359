// SPDX-License-Identifier: Apache-2.0
// Restoring the store, and what is left alone afterwards.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "control/backends.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/refusals.h"
#include "control/store_restore.h"

namespace cleat::control {
namespace {

// By what they are for: a conf file is no disk because it is stored as one.
using Paths = std::set<std::pair<PathKind, std::string>>;

Paths PathsOf(const Rows& rows) {
  Paths paths;
  for (const DiskRow& row : rows.disks) paths.emplace(PathKind::kFile, FileOf(row.spec));
  for (const DeletedDiskRow& row : rows.deleted_disks) paths.emplace(PathKind::kFile, FileOf(row.disk.spec));
  for (const ControllerRow& row : rows.controllers) paths.emplace(PathKind::kSocket, row.spec.socket_path());
  for (const ClusterRow& row : rows.clusters) paths.emplace(PathKind::kKey, row.spec.conf_file());
  return paths;
}

}  // namespace

Status HostState::CheckLoads(Store& store) {
  MemoryKeeper memory;
  HostState state(store, memory, WatchHub::kQueueMax, nullptr, {});
  CLEAT_ASSIGN(auto rows, store.Load());
  const MutexLock lock(state.mutex_);
  return state.Fill(std::move(rows));
}

Status HostState::CheckRestoredPaths(const Rows& restored) const {
  CLEAT_ASSIGN(auto present, store_.Load());
  const Paths stored = PathsOf(present);
  const auto check = [&](PathKind kind, const std::string& name, const std::string& path,
                         auto look) -> Status {
    if (path.empty() || stored.contains({kind, path})) return Ok{};
    const std::optional<Error> wrong = look(path, fmt::format("{}: '{}'", name, path));
    if (!wrong || ReasonOf(*wrong) != v1::REASON_PATH_NOT_ALLOWED) return Ok{};
    return RefuseFor(
        name, v1::REASON_PATH_NOT_ALLOWED,
        fmt::format("the backup can't be restored, and nothing was changed: {}", wrong->message));
  };
  const auto disk = [this](const std::string& path, const std::string& what) -> std::optional<Error> {
    auto found = paths_->FindDisk(path, what);
    return found.ok() ? std::nullopt : std::optional(found.error());
  };
  const auto socket = [this](const std::string& path, const std::string& what) -> std::optional<Error> {
    const Status status = paths_->CheckSocket(path, what);
    return status.ok() ? std::nullopt : std::optional(status.error());
  };
  const auto conf = [this](const std::string& path, const std::string& what) -> std::optional<Error> {
    const Status status = paths_->CheckKeys(path, what);
    return status.ok() ? std::nullopt : std::optional(status.error());
  };
  Status status;
  for (const DiskRow& row : restored.disks) {
    if (status.ok()) status = check(PathKind::kFile, DiskName(row.id), FileOf(row.spec), disk);
  }
  for (const DeletedDiskRow& row : restored.deleted_disks) {
    if (status.ok()) status = check(PathKind::kFile, DiskName(row.disk.id), FileOf(row.disk.spec), disk);
  }
  for (const ControllerRow& row : restored.controllers) {
    if (status.ok())
      status = check(PathKind::kSocket, ControllerName(row.id), row.spec.socket_path(), socket);
  }
  for (const ClusterRow& row : restored.clusters) {
    if (status.ok()) status = check(PathKind::kKey, ClusterName(row.id), row.spec.conf_file(), conf);
  }
  return status;
}

Result<v1::RestoreStoreResponse> HostState::RestoreStore(StoreUpload& upload,
                                                         const v1::RestoreStoreOptions& options) {
  CLEAT_TRY(CheckRestoredPaths(upload.rows()));
  const MutexLock lock(mutex_);
  AwaitAttaching([](const Attaching&) { return true; });
  CLEAT_ASSIGN(auto present, store_.Load());
  v1::RestoreStoreResponse response = PlanRestore(present, upload.rows());
  *response.mutable_backup() = upload.Info();
  if (!options.etag().empty() && options.etag() != response.etag()) {
    return Refuse(
        v1::REASON_ETAG_MISMATCH,
        fmt::format(
            "the host was changed: its etag is '{}', not '{:.40}'. Repeat the dry run, and decide anew",
            response.etag(), options.etag()),
        {{"field", "etag"}, {"etag", response.etag()}});
  }
  if (options.dry_run()) return response;
  auto lost = PrepareRestored(upload, present);
  CLEAT_TRY(lost);
  CLEAT_ASSIGN(auto kept, KeepBeside(store_));
  response.set_kept_file(kept);
  response.set_first_revision(lost->until);
  CLEAT_TRY(store_.Replace(upload.store()));
  spdlog::warn(
      "store: restored from a backup: {} come back, {} go, {} change; revisions from {} to {} are lost; the "
      "former store is '{}'",
      response.comes_back(), response.goes(), response.changes(), lost->first, lost->until - 1, kept);
  return response;
}

// What goes live: no revision is ever given twice, and each controller is where it is now.
Result<LostRevisions> HostState::PrepareRestored(StoreUpload& upload, const Rows& present) {
  CLEAT_ASSIGN(const auto own, store_.NextRevision());
  uint64_t newest = std::max({own, upload.next_revision(), revision_ + 1});
  for (const auto& [engine, held] : held_) newest = std::max(newest, held.newest_revision + 1);
  if (newest > kRestoredRevisionMax) {
    return Error(ErrorCode::kInternal,
                 fmt::format("store: revision {} was seen, and there are none left beyond {}", newest,
                             kRestoredRevisionMax));
  }
  const uint64_t until = newest + kRevisionsSkipped;
  // Of another store than this one: what this one's revisions say nothing about is lost from the first one on.
  const uint64_t first = upload.store().number() == store_.number() ? upload.next_revision() : 1;
  std::map<std::pair<std::string, uint64_t>, std::string> places;
  for (const ControllerRow& row : present.controllers) places[{row.id, row.revision}] = row.engine;
  for (const auto& [engine, held] : held_) {
    for (const auto& [controller, revision] : held.serves) places[{controller, revision}] = engine;
  }
  std::vector<ControllerRow> moved;
  for (ControllerRow row : upload.rows().controllers) {
    const auto place = places.find({row.id, row.revision});
    if (place == places.end() || place->second.empty() || place->second == row.engine) continue;
    row.engine = place->second;
    moved.push_back(std::move(row));
  }
  std::vector<const ControllerRow*> rows;
  for (const ControllerRow& row : moved) rows.push_back(&row);
  CLEAT_TRY(upload.store().Put(std::span<const ControllerRow* const>(rows)));
  CLEAT_TRY(upload.store().GoOnFrom(until, LostBy(upload.rows().lost, first, until)));
  return LostRevisions{first, until};
}

void HostState::ReportHeld(const std::string& engine, HeldByEngine held) {
  const MutexLock lock(mutex_);
  held.newest_revision = std::max(held.newest_revision, held_[engine].newest_revision);
  held_[engine] = std::move(held);
}

// ---- What is left alone

void HostState::ReportLeftAlone(const std::string& engine,
                                std::map<std::string, v1::ControllerSpec> unknown) {
  const MutexLock lock(mutex_);
  left_alone_[engine] = std::move(unknown);
}

std::string HostState::EngineThatServes(const std::string& controller) const {
  for (const auto& [engine, unknown] : left_alone_) {
    if (unknown.contains(controller)) return engine;
  }
  return {};
}

// Of a controller that the restored store does not know: its row is there only until the engine has let it go.
Status HostState::DeleteLeftAlone(const std::string& id) {
  const std::string engine = EngineThatServes(id);
  if (engine.empty()) return Ok{};
  ControllerEntry entry;
  entry.row.id = id;
  entry.row.spec = left_alone_[engine][id];
  entry.row.engine = engine;
  entry.row.deleting = true;
  entry.row.revision = entry.row.intent_revision = NextRevision();
  CLEAT_TRY(store_.Put(entry.row));
  ControllerEntry& kept = controllers_.emplace(id, std::move(entry)).first->second;
  CountController(engine, 1);
  Publish(kept);
  ControllerChanged(id);
  spdlog::info("{}: deleted: the restored store did not know it", ControllerName(id));
  return Ok{};
}

// An attachment that goes leaves no row that would tell.
Status HostState::NoteTouched(ControllerEntry& controller) {
  if (lost_.empty() || controller.row.intent_revision >= lost_.back().until) return Ok{};
  ControllerRow row = controller.row;
  row.intent_revision = NextRevision();
  CLEAT_TRY(store_.Put(row));
  controller.row = std::move(row);
  Publish(controller);
  return Ok{};
}

Status HostState::LearnLastDisk(const std::string& controller, DiskIdentity disk, const std::string& name) {
  const MutexLock lock(mutex_);
  ControllerEntry* entry = FindController(controller);
  if (lost_.empty() || entry == nullptr || entry->row.last_disk != DiskIdentity::SomeOf(store_.number()))
    return Ok{};
  ControllerRow row = entry->row;
  row.last_disk = disk;
  row.last_disk_name = name;
  CLEAT_TRY(store_.Put(row));
  entry->row = std::move(row);
  return Ok{};
}

}  // namespace cleat::control
