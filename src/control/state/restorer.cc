// SPDX-License-Identifier: Apache-2.0
#include "control/state/restorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "control/backup/store_backup.h"
#include "control/backup/store_restore.h"
#include "control/model/change_recorder.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/state/writes/object_changes.h"
#include "control/validate/backends.h"

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
  for (const PoolRow& row : rows.pools) paths.emplace(PathKind::kFile, row.spec.device());
  return paths;
}

}  // namespace

Status Restorer::CheckPaths(const Rows& restored) const {
  CLEAT_ASSIGN(auto present, core_.store.Load());
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
    auto found = core_.paths->FindDisk(path, what);
    return found.ok() ? std::nullopt : std::optional(found.error());
  };
  const auto socket = [this](const std::string& path, const std::string& what) -> std::optional<Error> {
    const Status status = core_.paths->CheckSocket(path, what);
    return status.ok() ? std::nullopt : std::optional(status.error());
  };
  const auto conf = [this](const std::string& path, const std::string& what) -> std::optional<Error> {
    const Status status = core_.paths->CheckKeys(path, what);
    return status.ok() ? std::nullopt : std::optional(status.error());
  };
  Status status;
  for (const DiskRow& row : restored.disks) {
    if (status.ok()) status = check(PathKind::kFile, DiskName(row.id), FileOf(row.spec), disk);
  }
  for (const DeletedDiskRow& row : restored.deleted_disks) {
    if (status.ok()) status = check(PathKind::kFile, DiskName(row.disk.id), FileOf(row.disk.spec), disk);
  }
  for (const PoolRow& row : restored.pools) {
    if (status.ok()) status = check(PathKind::kFile, PoolName(row.id), row.spec.device(), disk);
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

Result<v1::RestoreStoreResponse> Restorer::Restore(StoreUpload& upload,
                                                   const v1::RestoreStoreOptions& options) {
  CLEAT_TRY(CheckPaths(upload.rows()));
  const StateLock lock(core_.mutex);
  core_.writes.AwaitAll();
  CLEAT_ASSIGN(auto present, core_.store.Load());
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
  auto lost = Prepare(upload, present);
  CLEAT_TRY(lost);
  const std::shared_ptr<ChangeRecorder> recorder = ChangeRecorder::Current();
  ObjectChanges changes;
  if (recorder != nullptr) {
    CLEAT_ASSIGN(const Rows restored, upload.store().Load());
    changes = ChangesBetween({present, core_.store.number()}, {restored, upload.store().number()});
    CLEAT_TRY(recorder->Announce(changes));
  }
  CLEAT_ASSIGN(auto kept, KeepBeside(core_.store));
  response.set_kept_file(kept);
  response.set_first_revision(lost->until);
  CLEAT_TRY(core_.store.Replace(upload.store()));
  if (recorder != nullptr) recorder->Made(std::move(changes));
  spdlog::warn(
      "store: restored from a backup: {} come back, {} go, {} change; revisions from {} to {} are lost; the "
      "former store is '{}'",
      response.comes_back(), response.goes(), response.changes(), lost->first, lost->until - 1, kept);
  return response;
}

// What goes live: no revision is ever given twice, and each controller is where it is now.
Result<LostRevisions> Restorer::Prepare(StoreUpload& upload, const Rows& present) {
  CLEAT_ASSIGN(const auto own, core_.store.NextRevision());
  uint64_t newest = std::max({own, upload.next_revision(), core_.publisher.newest() + 1});
  for (const auto& [engine, held] : unclaimed_.held()) newest = std::max(newest, held.newest_revision + 1);
  // Maps on drives that this store knows nothing of, since an older one was put in its place: lost from there on. A pool that failed for
  // another reason says nothing of that kind: its drive's map is merely old.
  uint64_t first = upload.next_revision();
  for (const auto& [id, pool] : core_.tables.pools) {
    newest = std::max(newest, pool.map_found + 1);
    if (pool.used_elsewhere && pool.map_found != 0) first = std::min(first, pool.map_found);
  }
  if (newest > kRestoredRevisionMax) {
    return Error(ErrorCode::kInternal,
                 fmt::format("store: revision {} was seen, and there are none left beyond {}", newest,
                             kRestoredRevisionMax));
  }
  // Of another store than this one: this one's revisions say nothing about it, and all are lost from the first one on.
  const bool same = upload.store().number() == core_.store.number();
  const uint64_t until = newest + (same ? kRevisionsSkipped : kRevisionsSkippedOfLost);
  if (!same) first = 1;
  std::map<std::pair<std::string, uint64_t>, std::string> places;
  for (const ControllerRow& row : present.controllers) places[{row.id, row.revision}] = row.engine;
  for (const auto& [engine, held] : unclaimed_.held()) {
    for (const auto& [controller, revision] : held.serves) places[{controller, revision}] = engine;
  }
  std::vector<ControllerRow> moved;
  for (ControllerRow row : upload.rows().controllers) {
    const auto place = places.find({row.id, row.revision});
    if (place == places.end() || place->second.empty() || place->second == row.engine) continue;
    row.engine = place->second;
    moved.push_back(std::move(row));
  }
  CLEAT_TRY(upload.store().Apply({moved.begin(), moved.end()}));
  CLEAT_TRY(upload.store().GoOnFrom(until, LostBy(upload.rows().lost, first, until)));
  return LostRevisions{first, until};
}

}  // namespace cleat::control
