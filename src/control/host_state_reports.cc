// SPDX-License-Identifier: Apache-2.0
// The conductor's side: what should be, and what is.
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/spec_rules.h"

namespace cleat::control {

ControllerIntent HostState::IntentOf(const std::string& controller_id) {
  const std::lock_guard lock(mutex_);
  ControllerIntent intent;
  const ControllerEntry* entry = FindController(controller_id);
  if (entry == nullptr) return intent;
  intent.exists = true;
  intent.row = entry->row;
  for (const auto& [id, attachment] : entry->attachments) {
    const DiskEntry* disk = FindDisk(*ParseDiskName(attachment.row.spec.disk()));
    intent.attachments.push_back({.row = attachment.row, .disk = disk->row, .disk_status = disk->status});
  }
  return intent;
}

std::vector<std::string> HostState::ControllersOn(const std::string& engine) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : controllers_) {
    if (entry.row.engine == engine) ids.push_back(id);
  }
  return ids;
}

std::vector<std::string> HostState::ControllersWith(const std::string& disk_id) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  const DiskEntry* entry = FindDisk(disk_id);
  if (entry == nullptr) return ids;
  for (const auto& [name, use] : entry->attachments) ids.push_back(ParseAttachmentName(name)->controller);
  return ids;
}

std::optional<DiskRow> HostState::Disk(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const DiskEntry* entry = FindDisk(id);
  return entry == nullptr ? std::nullopt : std::optional<DiskRow>(entry->row);
}

std::vector<std::string> HostState::MemoryDisks() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : disks_) {
    if (entry.row.spec.has_memory()) ids.push_back(id);
  }
  return ids;
}

std::optional<DiskRow> HostState::MemoryDisk(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const DiskEntry* entry = FindDisk(id);
  if (entry == nullptr || !entry->row.spec.has_memory()) return std::nullopt;
  return entry->row;
}

uint64_t HostState::NewestRevision() {
  const std::lock_guard lock(mutex_);
  return revision_;
}

void HostState::ReportEngine(const std::string& id, const v1::EngineStatus& status) {
  const std::lock_guard lock(mutex_);
  EngineEntry& entry = engines_[id];
  v1::EngineStatus complete = status;
  complete.set_controllers(entry.status.controllers());
  if (entry.revision != 0 && SameSpec(entry.status, complete)) return;
  entry.status = std::move(complete);
  Publish(id, entry);
}

void HostState::PlaceControllers() {
  const std::lock_guard lock(mutex_);
  for (auto& [id, entry] : controllers_) {
    if (!entry.row.engine.empty()) continue;
    ControllerRow row = entry.row;
    row.engine = ChooseEngine();
    if (row.engine.empty()) return;
    if (auto status = store_.Put(row); !status.ok()) {
      spdlog::error("{} can't be placed: {}", ControllerName(id), status.error().message);
      return;
    }
    entry.row = std::move(row);
    CountController(entry.row.engine, 1);
    Publish(entry);
    ControllerChanged(id);
  }
}

void HostState::ReportController(const std::string& engine, const std::string& id,
                                 const v1::ControllerStatus& status) {
  const std::lock_guard lock(mutex_);
  ControllerEntry* entry = FindController(id);
  if (entry == nullptr || entry->row.engine != engine || SameSpec(entry->status, status)) return;
  entry->status = status;
  Publish(*entry);
}

void HostState::ReportAttachment(const std::string& engine, const AttachmentKey& key,
                                 const AttachmentReport& report) {
  const std::lock_guard lock(mutex_);
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
    if (SameSpec(entry.status, status)) continue;
    entry.status = status;
    Publish(entry);
    DiskEntry& disk = *FindDisk(*ParseDiskName(entry.row.spec.disk()));
    const uint64_t known = KnownSize(disk);
    disk.attachments[AttachmentName(key.controller, id)].size_bytes = report.size_bytes;
    if (KnownSize(disk) != known) Publish(disk);
  }
}

void HostState::ReportDisk(const std::string& id, v1::DiskState state, const std::string& message) {
  const std::lock_guard lock(mutex_);
  DiskEntry* entry = FindDisk(id);
  if (entry == nullptr || (entry->status.state() == state && entry->status.message() == message)) return;
  entry->status.set_state(state);
  entry->status.set_message(message);
  Publish(*entry);
}

Status HostState::RecordKept(const std::string& disk_id, const std::string& engine, bool kept) {
  const std::lock_guard lock(mutex_);
  DiskEntry* entry = FindDisk(disk_id);
  if (entry == nullptr || entry->row.kept_by.contains(engine) == kept) return Ok{};
  DiskRow row = entry->row;
  if (kept) {
    row.kept_by.insert(engine);
    row.reached_engine = true;
  } else {
    row.kept_by.erase(engine);
  }
  if (auto status = store_.Put(row); !status.ok()) return status;
  entry->row = std::move(row);
  if (entry->row.deleting) Publish(*entry);
  return Ok{};
}

Status HostState::ForgetAttachment(const std::string& controller_id, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const AttachmentEntry* entry = FindAttachment(controller_id, id);
  if (entry == nullptr || !entry->row.deleting) return Ok{};
  return EraseAttachment(*FindController(controller_id), id);
}

Status HostState::ForgetController(const std::string& id) {
  const std::lock_guard lock(mutex_);
  ControllerEntry* entry = FindController(id);
  if (entry == nullptr || !entry->row.deleting || !entry->attachments.empty()) return Ok{};
  return EraseController(*entry);
}

Status HostState::ForgetDisk(const std::string& id) {
  const std::lock_guard lock(mutex_);
  DiskEntry* entry = FindDisk(id);
  if (entry == nullptr || !entry->row.deleting) return Ok{};
  return EraseDisk(*entry);
}

}  // namespace cleat::control
