// SPDX-License-Identifier: Apache-2.0
// The reconciler's side: what should be, and what is.
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/backends.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/spec_rules.h"

namespace cleat::control {

ControllerIntent HostState::IntentOf(const std::string& controller_id) {
  const MutexLock lock(mutex_);
  ControllerIntent intent;
  const ControllerEntry* entry = FindController(controller_id);
  if (entry == nullptr) return intent;
  intent.exists = true;
  intent.row = entry->row;
  if (!entry->row.spec.group().empty()) {
    intent.group_slot = FindGroup(*ParseGroupName(entry->row.spec.group()))->row.slot;
  }
  intent.prepared_on = PreparedOn(*entry);
  for (const auto& [id, attachment] : entry->attachments) {
    const DiskEntry* disk = FindDisk(*ParseDiskName(attachment.row.spec.disk()));
    AttachmentIntent& one = intent.attachments.emplace_back();
    one = {.row = attachment.row,
           .disk = disk->row,
           .disk_identity = IdentityOf(disk->row),
           .path_checked = disk->row.revision >= paths_checked_from_,
           .disk_status = disk->status};
    if (const std::string& cluster = ClusterOf(disk->row.spec); !cluster.empty())
      one.cluster_revision = FindCluster(*ParseClusterName(cluster))->row.spec_revision;
  }
  return intent;
}

std::vector<std::string> HostState::ControllersOn(const std::string& engine) {
  const MutexLock lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : controllers_) {
    if (entry.row.engine == engine) ids.push_back(id);
  }
  return ids;
}

std::vector<std::string> HostState::ControllersWith(const std::string& disk_id) {
  const MutexLock lock(mutex_);
  std::vector<std::string> ids;
  const DiskEntry* entry = FindDisk(disk_id);
  if (entry == nullptr) return ids;
  for (const auto& [name, use] : entry->attachments) ids.push_back(ParseAttachmentName(name)->controller);
  return ids;
}

std::optional<DiskRow> HostState::Disk(const std::string& id) {
  const MutexLock lock(mutex_);
  const DiskEntry* entry = FindDisk(id);
  return entry == nullptr ? std::nullopt : std::optional<DiskRow>(entry->row);
}

std::vector<std::string> HostState::MemoryDisks() {
  const MutexLock lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : disks_) {
    if (IsKeptMemory(entry.row.spec)) ids.push_back(id);
  }
  return ids;
}

std::optional<DiskRow> HostState::MemoryDisk(const std::string& id) {
  const MutexLock lock(mutex_);
  const DiskEntry* entry = FindDisk(id);
  if (entry == nullptr || !IsKeptMemory(entry->row.spec)) return std::nullopt;
  return entry->row;
}

uint64_t HostState::NewestRevision() {
  const MutexLock lock(mutex_);
  return revision_;
}

void HostState::ReportEngine(const std::string& id, const v1::EngineStatus& status) {
  const MutexLock lock(mutex_);
  SetEngineStatus(id, status);
}

void HostState::SetEngineStatus(const std::string& id, const v1::EngineStatus& status) {
  EngineEntry& entry = engines_[id];
  v1::EngineStatus complete = status;
  complete.set_controllers(entry.status.controllers());
  if (entry.revision != 0 && SameSpec(entry.status, complete)) return;
  entry.status = std::move(complete);
  Publish(id, entry);
}

void HostState::PlaceControllers() {
  const MutexLock lock(mutex_);
  PlaceWaiting();
}

void HostState::PlaceWaiting() {
  for (auto& [id, entry] : controllers_) {
    if (!entry.row.engine.empty()) continue;
    ControllerRow row = entry.row;
    row.engine = ChooseEngine();
    if (row.engine.empty()) return;
    if (auto status = store_.Put(row); !status.ok()) {
      spdlog::error("{}: not placed on an engine: {}; see to the store's file system", ControllerName(id),
                    status.error().message);
      return;
    }
    entry.row = std::move(row);
    CountController(entry.row.engine, 1);
    Publish(entry);
    ControllerChanged(id);
    if (!entry.row.spec.group().empty()) GroupChanged(*ParseGroupName(entry.row.spec.group()));
  }
}

void HostState::ReportController(const std::string& engine, const std::string& id,
                                 const v1::ControllerStatus& status) {
  const MutexLock lock(mutex_);
  ControllerEntry* entry = FindController(id);
  if (entry == nullptr || entry->row.engine != engine || SameSpec(entry->status, status)) return;
  entry->status = status;
  Publish(*entry);
}

Status HostState::ReportNextDisk(const std::string& engine, const std::string& controller,
                                 DiskIdentity disk) {
  const MutexLock lock(mutex_);
  ControllerEntry* entry = FindController(controller);
  if (entry == nullptr || entry->row.engine != engine || entry->row.last_disk == disk) return Ok{};
  for (const auto& [id, attachment] : entry->attachments) {
    const DiskEntry& attached = *FindDisk(*ParseDiskName(attachment.row.spec.disk()));
    if (attachment.row.deleting || IdentityOf(attached.row) != disk) continue;
    ControllerRow row = entry->row;
    row.last_disk = disk;
    row.last_disk_name = DiskName(attached.row.id);
    CLEAT_TRY(store_.Put(row));
    spdlog::info("{}: last disk changed: the guest has forgotten {}, and gets {} from now on",
                 ControllerName(controller),
                 entry->row.last_disk_name.empty() ? "the former disk" : entry->row.last_disk_name,
                 row.last_disk_name);
    entry->row = std::move(row);
    Publish(*entry);
    ControllerChanged(controller);
    return Ok{};
  }
  return Ok{};
}

void HostState::ReportAttachment(const std::string& engine, const AttachmentKey& key,
                                 const AttachmentReport& report) {
  const MutexLock lock(mutex_);
  ControllerEntry* controller = FindController(key.controller);
  if (controller == nullptr || controller->row.engine != engine) return;
  v1::AttachmentStatus status;
  status.set_state(report.state);
  status.set_message(report.message);
  status.set_size_bytes(report.size_bytes);
  status.set_failures(report.failures);
  for (auto& [id, entry] : controller->attachments) {
    if (entry.row.spec.target() != key.target) continue;
    if (key.revision != 0 && entry.row.revision != key.revision) continue;
    entry.fenced = report.fenced;
    DiskEntry& disk = *FindDisk(*ParseDiskName(entry.row.spec.disk()));
    TakeMode(disk, entry, report.state);
    Use& use = disk.attachments[AttachmentName(key.controller, id)];
    const bool same = SameSpec(entry.status, status);
    if (same && use.limits_revision == report.limits_revision) continue;
    if (!same) {
      entry.status = status;
      Publish(entry);
    }
    const uint64_t known = KnownSize(disk);
    const bool limited = BehindLimits(disk).empty();
    use.size_bytes = report.size_bytes;
    use.limits_revision = report.limits_revision;
    TakeGrownSize(disk, report.size_bytes);
    if (report.state == v1::ATTACHMENT_STATE_READY) TakeImageSize(disk, report.size_bytes);
    if (KnownSize(disk) != known || BehindLimits(disk).empty() != limited) Publish(disk);
  }
}

// A migration moves the ownership of a disk: the intent follows, so that whoever is started anew meanwhile is told to open
// what is no longer its own, and to acquire what is.
void HostState::TakeMode(DiskEntry& disk, AttachmentEntry& entry, v1::AttachmentState state) {
  const v1::AttachmentMode mode = entry.row.spec.mode();
  if (state == v1::ATTACHMENT_STATE_RELEASED && mode == v1::ATTACHMENT_MODE_ACTIVE) {
    return SetMode(entry, v1::ATTACHMENT_MODE_OUTGOING);
  }
  if (state != v1::ATTACHMENT_STATE_READY || mode == v1::ATTACHMENT_MODE_ACTIVE) return;
  // What another engine said before this one's news is no news: it stays as the news left it.
  if (mode == v1::ATTACHMENT_MODE_OUTGOING && entry.status.state() == v1::ATTACHMENT_STATE_READY) return;
  SetMode(entry, v1::ATTACHMENT_MODE_ACTIVE);
  for (const auto& [name, use] : disk.attachments) {
    const auto other = ParseAttachmentName(name);
    AttachmentEntry& one = *FindAttachment(other->controller, other->id);
    if (&one != &entry && !one.row.deleting && one.row.spec.mode() == v1::ATTACHMENT_MODE_ACTIVE)
      SetMode(one, v1::ATTACHMENT_MODE_OUTGOING);
  }
}

void HostState::SetMode(AttachmentEntry& entry, v1::AttachmentMode mode) {
  AttachmentRow row = entry.row;
  row.spec.set_mode(mode);
  row.intent_revision = NextRevision();
  const std::string name = AttachmentName(row.controller, row.id);
  if (auto status = store_.Put(row); !status.ok()) {
    spdlog::error("{}: mode {} not stored: {}; see to the store's file system", name,
                  v1::AttachmentMode_Name(mode), status.error().message);
    return;
  }
  spdlog::info("{}: mode changed: {}", name,
               mode == v1::ATTACHMENT_MODE_ACTIVE
                   ? "its VM is here, and this host owns the disk"
                   : "its VM migrates away, and this host has given the disk up");
  entry.row = std::move(row);
  Publish(entry);
}

void HostState::TakeGrownSize(DiskEntry& entry, uint64_t size_bytes) {
  if (!GrowsInEngine(entry.row.spec) || size_bytes <= entry.row.spec.size_bytes() ||
      size_bytes > kDiskBytesMax)
    return;
  DiskRow row = entry.row;
  row.spec.set_size_bytes(size_bytes);
  row.intent_revision = NextRevision();
  if (auto status = store_.Put(row); !status.ok()) {
    spdlog::error("{}: growth to {} bytes not stored: {}; see to the store's file system", DiskName(row.id),
                  size_bytes, status.error().message);
    return;
  }
  spdlog::info("{}: storage grew by itself: {} bytes, had {}", DiskName(row.id), size_bytes,
               entry.row.spec.size_bytes());
  entry.row = std::move(row);
  Publish(entry);
  DiskChanged(entry.row.id);
}

void HostState::TakeImageSize(DiskEntry& entry, uint64_t size_bytes) {
  DiskRow row = entry.row;
  if (row.image_bytes == 0 || size_bytes <= row.image_bytes) return;
  row.image_bytes = size_bytes < row.spec.size_bytes() ? size_bytes : 0;
  // Not stored, it is taken for smaller than it is: then nobody is told should somebody cut it off.
  if (auto status = store_.Put(row); !status.ok()) {
    spdlog::warn("{}: image's size of {} bytes not stored: {}; see to the store's file system",
                 DiskName(row.id), size_bytes, status.error().message);
    return;
  }
  entry.row = std::move(row);
}

void HostState::ReportDisk(const std::string& id, v1::DiskState state, const std::string& message) {
  const MutexLock lock(mutex_);
  DiskEntry* entry = FindDisk(id);
  if (entry == nullptr || (entry->status.state() == state && entry->status.message() == message)) return;
  entry->status.set_state(state);
  entry->status.set_message(message);
  Publish(*entry);
}

// What an engine says of a group or cluster, or that it does not know it any more.
template <typename Entry, typename Report>
void HostState::TakeReport(Entry* entry, const std::string& engine, const std::optional<Report>& report) {
  if (entry == nullptr) return;
  const auto known = entry->engines.find(engine);
  if (!report) {
    if (known == entry->engines.end()) return;
    entry->engines.erase(known);
  } else {
    if (known != entry->engines.end() && known->second == *report) return;
    entry->engines[engine] = *report;
  }
  Publish(*entry);
}

void HostState::ReportGroup(const std::string& engine, const std::string& id,
                            const std::optional<GroupReport>& report) {
  const MutexLock lock(mutex_);
  TakeReport(FindGroup(id), engine, report);
}

void HostState::ReportCluster(const std::string& engine, const std::string& id,
                              const std::optional<ClusterReport>& report) {
  const MutexLock lock(mutex_);
  TakeReport(FindCluster(id), engine, report);
}

Status HostState::RecordKept(const std::string& disk_id, const std::string& engine, bool kept) {
  const MutexLock lock(mutex_);
  DiskEntry* entry = FindDisk(disk_id);
  if (entry == nullptr || entry->row.kept_by.contains(engine) == kept) return Ok{};
  DiskRow row = entry->row;
  if (kept) {
    row.kept_by.insert(engine);
    row.reached_engine = true;
  } else {
    row.kept_by.erase(engine);
  }
  CLEAT_TRY(store_.Put(row));
  entry->row = std::move(row);
  if (entry->row.deleting) Publish(*entry);
  return Ok{};
}

Status HostState::ForgetAttachment(const std::string& controller_id, const std::string& id) {
  const MutexLock lock(mutex_);
  const AttachmentEntry* entry = FindAttachment(controller_id, id);
  if (entry == nullptr || !entry->row.deleting) return Ok{};
  return EraseAttachment(*FindController(controller_id), id);
}

Status HostState::ForgetController(const std::string& id) {
  const MutexLock lock(mutex_);
  ControllerEntry* entry = FindController(id);
  if (entry == nullptr || !entry->row.deleting || !entry->attachments.empty()) return Ok{};
  return EraseController(*entry);
}

Status HostState::ForgetDisk(const std::string& id) {
  const MutexLock lock(mutex_);
  DiskEntry* entry = FindDisk(id);
  if (entry == nullptr || !entry->row.deleting) return Ok{};
  return EraseDisk(*entry);
}

}  // namespace cleat::control
