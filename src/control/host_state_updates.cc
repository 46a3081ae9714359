// SPDX-License-Identifier: Apache-2.0
// Updates: labels, limits, and disks that grow.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/backends.h"
#include "control/disk_file.h"
#include "control/host_state.h"
#include "control/refusals.h"
#include "control/spec_rules.h"

namespace cleat::control {
namespace {

constexpr char kSizePath[] = "spec.size_bytes";
constexpr char kSpecPath[] = "spec";
constexpr char kLimitsPath[] = "spec.limits";
constexpr char kLabelsPath[] = "labels";

Status CheckMask(const std::string& resource, const google::protobuf::FieldMask& mask,
                 std::initializer_list<std::string_view> known) {
  const std::string list = fmt::format("{}", fmt::join(known, ", "));
  if (mask.paths().empty()) {
    return RefuseFor(resource, v1::REASON_INVALID_UPDATE_MASK,
                     fmt::format("{}: update_mask is empty: name what to change ({})", resource, list));
  }
  for (const std::string& path : mask.paths()) {
    if (std::find(known.begin(), known.end(), path) != known.end()) continue;
    return RefuseFor(resource, v1::REASON_INVALID_UPDATE_MASK,
                     fmt::format("{}: '{:.80}' can't be updated: only {} can", resource, path, list),
                     {{"field", path}});
  }
  return Ok{};
}

// With its intent_revision, which is then the limits', too.
template <typename Spec, typename Row>
void TakeLimits(const Spec& spec, Row& row) {
  row.spec.clear_limits();
  if (spec.has_limits()) *row.spec.mutable_limits() = spec.limits();
  row.limits_revision = row.intent_revision;
}

bool Names(const google::protobuf::FieldMask& mask, std::string_view path) {
  return std::find(mask.paths().begin(), mask.paths().end(), path) != mask.paths().end();
}

}  // namespace

Result<v1::Disk> HostState::UpdateDisk(const v1::UpdateDiskRequest& request) {
  const std::string& name = request.disk().name();
  CLEAT_ASSIGN(auto id, ParseDiskName(name));
  const auto& mask = request.update_mask();
  CLEAT_TRY(CheckMask(name, mask, {kSizePath, kLimitsPath, kLabelsPath}));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.disk().labels()));

  const MutexLock lock(mutex_);
  CLEAT_ASSIGN(auto found, FindForUpdate(id, request.disk().etag()));
  DiskEntry& entry = *found;
  v1::DiskSpec asked = entry.row.spec;
  if (Names(mask, kSizePath)) asked.set_size_bytes(request.disk().spec().size_bytes());
  if (Names(mask, kLimitsPath)) *asked.mutable_limits() = request.disk().spec().limits();
  CLEAT_ASSIGN(auto spec, CompleteDiskSpec(id, asked));
  if (!Names(mask, kLabelsPath)) labels = entry.row.labels;
  const bool same_storage =
      spec.size_bytes() == entry.row.spec.size_bytes() && SameSpec(spec.limits(), entry.row.spec.limits());
  if (same_storage && labels == entry.row.labels) return Show(entry);
  CLEAT_TRY(Grow(entry, spec));
  CLEAT_TRY(CommitUpdate(entry, spec, std::move(labels)));
  return Show(entry);
}

Result<HostState::DiskEntry*> HostState::FindForUpdate(const std::string& id, const std::string& etag) {
  const std::string name = DiskName(id);
  if (const auto busy = busy_.find(id); busy != busy_.end()) {
    return Busy(name, fmt::format("{} is being {} by another call", name, busy->second.doing));
  }
  DiskEntry* entry = FindDisk(id);
  if (entry == nullptr) return NotThere(name);
  if (entry->row.deleting) return Busy(name, name + " is being removed");
  CLEAT_TRY(CheckEtag(name, etag, entry->row.intent_revision));
  return entry;
}

Status HostState::Grow(const DiskEntry& entry, const v1::DiskSpec& spec) {
  const std::string id = entry.row.id;  // others may write the row meanwhile
  const uint64_t size_before = entry.row.spec.size_bytes();
  if (spec.size_bytes() == size_before) return Ok{};
  if (spec.size_bytes() < size_before) {
    const std::string name = DiskName(id);
    return RefuseFor(name, v1::REASON_DISK_CANNOT_SHRINK,
                     fmt::format("{} has {} bytes, and can't shrink to {}: disks only grow", name,
                                 size_before, spec.size_bytes()),
                     {{"field", kSizePath}});
  }
  if (entry.status.state() == v1::DISK_STATE_LOST) {
    return RefuseFor(DiskName(id), v1::REASON_DISK_LOST, entry.status.message());
  }
  busy_.emplace(id, BusyDisk{.storage = {}, .wwn = spec.wwn(), .doing = "made larger"});
  Status grown = GrowBackendUnlocked(id, spec);
  busy_.erase(id);
  return grown;
}

Status HostState::GrowBackendUnlocked(const std::string& id, const v1::DiskSpec& spec) {
  const MutexUnlock unlocked(mutex_);
  return GrowBackend(id, spec);
}

// Nobody has deleted the disk while it grew; what an engine confirmed meanwhile is in the row.
Status HostState::CommitUpdate(DiskEntry& entry, const v1::DiskSpec& spec, Labels labels) {
  DiskRow row = entry.row;
  const uint64_t size_before = row.spec.size_bytes();
  const bool grown = spec.size_bytes() != size_before;
  const bool limited = !SameSpec(spec.limits(), row.spec.limits());
  // Whoever owns it next, or does already, makes the image larger.
  if (GrowsInEngine(spec) && grown && row.image_bytes == 0) row.image_bytes = size_before;
  row.spec.set_size_bytes(spec.size_bytes());
  row.labels = std::move(labels);
  row.intent_revision = NextRevision();
  if (limited) TakeLimits(spec, row);
  CLEAT_TRY(store_.Put(row));
  entry.row = std::move(row);
  Publish(entry);
  const std::string name = DiskName(entry.row.id);
  if (limited || grown) DiskChanged(entry.row.id);
  if (limited) spdlog::info("{}: limits changed", name);
  if (grown) spdlog::info("{}: size changed: {} bytes, had {}", name, spec.size_bytes(), size_before);
  return Ok{};
}

Result<v1::Cluster> HostState::UpdateCluster(const v1::UpdateClusterRequest& request) {
  const std::string& name = request.cluster().name();
  CLEAT_ASSIGN(auto id, ParseClusterName(name));
  const auto& mask = request.update_mask();
  CLEAT_TRY(CheckMask(name, mask, {kSpecPath, kLabelsPath}));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.cluster().labels()));
  const bool respecified = Names(mask, kSpecPath);
  v1::ClusterSpec spec = request.cluster().spec();
  CLEAT_ASSIGN(const auto key, TakeKey(id, &spec));
  if (respecified) {
    CLEAT_ASSIGN(spec, CompleteClusterSpec(id, std::move(spec)));
    if (key) {
      CLEAT_TRY(PutKey(id, *key, &spec));
    }
  }
  const Status path = CheckConfFile(name, spec);

  const MutexLock lock(mutex_);
  ClusterEntry* entry = FindCluster(id);
  if (entry == nullptr) return NotThere(name);
  CLEAT_TRY(CheckEtag(name, request.cluster().etag(), entry->row.intent_revision));
  ClusterRow row = entry->row;
  if (respecified) {
    CLEAT_ASSIGN(const auto same_key, HasKey(row, key));
    if (same_key && row.spec.has_wrapped_key()) *spec.mutable_wrapped_key() = row.spec.wrapped_key();
    CLEAT_TRY(CheckClusterKey(name, spec));
    if (!path.ok() && spec.conf_file() != row.spec.conf_file()) return path.error();
  }
  const bool changed = respecified && !SameSpec(spec, row.spec);
  const bool labelled = Names(mask, kLabelsPath) && labels != row.labels;
  if (!changed && !labelled) return Show(*entry);
  row.intent_revision = NextRevision();
  if (labelled) row.labels = std::move(labels);
  if (changed) {
    row.spec = std::move(spec);
    row.spec_revision = row.intent_revision;
  }
  CLEAT_TRY(store_.Put(row));
  entry->row = std::move(row);
  Publish(*entry);
  if (changed) {
    ClusterChanged(id);
    spdlog::info("{}: settings changed; new connections use them", name);
  }
  return Show(*entry);
}

Result<v1::Group> HostState::UpdateGroup(const v1::UpdateGroupRequest& request) {
  const std::string& name = request.group().name();
  CLEAT_ASSIGN(auto id, ParseGroupName(name));
  const auto& mask = request.update_mask();
  CLEAT_TRY(CheckMask(name, mask, {kLimitsPath, kLabelsPath}));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.group().labels()));
  CLEAT_ASSIGN(auto spec, CompleteGroupSpec(id, request.group().spec()));

  const MutexLock lock(mutex_);
  GroupEntry* entry = FindGroup(id);
  if (entry == nullptr) return NotThere(name);
  CLEAT_TRY(CheckEtag(name, request.group().etag(), entry->row.intent_revision));
  const bool limited = Names(mask, kLimitsPath) && !SameSpec(spec.limits(), entry->row.spec.limits());
  const bool labelled = Names(mask, kLabelsPath) && labels != entry->row.labels;
  if (!limited && !labelled) return Show(*entry);
  GroupRow row = entry->row;
  row.intent_revision = NextRevision();
  if (limited) TakeLimits(spec, row);
  if (labelled) row.labels = std::move(labels);
  CLEAT_TRY(store_.Put(row));
  entry->row = std::move(row);
  Publish(*entry);
  if (limited) {
    GroupChanged(id);
    spdlog::info("{}: limits changed", name);
  }
  return Show(*entry);
}

// What is behind the disk is larger before anybody hears of it. When the store then refuses, that does no harm.
Status HostState::GrowBackend(const std::string& id, const v1::DiskSpec& spec) {
  if (IsKeptMemory(spec)) return memory_.Grow(id, spec.size_bytes());
  if (!FileOf(spec).empty()) return GrowDiskFile(DiskName(id), spec, *paths_);
  return Ok{};
}

Result<v1::Controller> HostState::UpdateController(const v1::UpdateControllerRequest& request) {
  const std::string& name = request.controller().name();
  CLEAT_ASSIGN(auto id, ParseControllerName(name));
  CLEAT_TRY(CheckMask(name, request.update_mask(), {kLabelsPath}));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.controller().labels()));

  const MutexLock lock(mutex_);
  ControllerEntry* entry = FindController(id);
  if (entry == nullptr) return NotThere(name);
  if (entry->row.deleting) return Busy(name, name + " is being removed");
  CLEAT_TRY(CheckEtag(name, request.controller().etag(), entry->row.intent_revision));
  if (labels == entry->row.labels) return Show(*entry);
  ControllerRow row = entry->row;
  row.labels = std::move(labels);
  row.intent_revision = NextRevision();
  CLEAT_TRY(store_.Put(row));
  entry->row = std::move(row);
  Publish(*entry);
  return Show(*entry);
}

}  // namespace cleat::control
