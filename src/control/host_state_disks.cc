// SPDX-License-Identifier: Apache-2.0
// Disks, from the API's side.
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/disk_file.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/page.h"
#include "control/spec_rules.h"

namespace cleat::control {
namespace {

Error Busy(std::string message) {
  return {ErrorCode::kAborted, std::move(message) + ": retry in a moment"};
}

bool CanShareFile(const v1::DiskSpec& a, const v1::DiskSpec& b) {
  return a.access_mode() == v1::ACCESS_MODE_MANY_READERS && b.access_mode() == v1::ACCESS_MODE_MANY_READERS;
}

}  // namespace

Result<v1::Disk> HostState::CreateDisk(const v1::CreateDiskRequest& request) {
  const std::string& id = request.disk_id();
  if (auto status = CheckId("disk_id", id); !status.ok()) return std::move(status).error();
  auto spec = CompleteDiskSpec(id, request.disk().spec());
  if (!spec.ok()) return std::move(spec).error();
  {
    const std::lock_guard lock(mutex_);
    auto existing = CheckNewDisk(id, *spec);
    if (!existing.ok()) return std::move(existing).error();
    if (*existing != nullptr) return Show(**existing);
    creating_.emplace(id, spec->file().path());
  }
  const Status prepared = PrepareBackend(id, *spec);
  const std::lock_guard lock(mutex_);
  creating_.erase(id);
  if (!prepared.ok()) return prepared.error();
  return CommitDisk(id, *spec);
}

Result<HostState::DiskEntry*> HostState::CheckNewDisk(const std::string& id, const v1::DiskSpec& spec) {
  const std::string name = DiskName(id);
  if (creating_.contains(id)) return Busy(name + " is being created by another call");
  if (DiskEntry* existing = FindDisk(id)) {
    if (existing->row.deleting) return Busy(name + " is still being removed");
    if (SameSpec(existing->row.spec, spec)) return existing;
    return TakenByOther(name, existing->row.spec, spec);
  }
  if (disks_.size() + creating_.size() >= kDisksMax) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("{}: there are {} disks, which is the most: delete one", name, kDisksMax));
  }
  if (!spec.has_file()) return nullptr;
  const std::string& path = spec.file().path();
  for (const auto& [other_id, other] : disks_) {
    if (other.row.spec.file().path() != path || CanShareFile(other.row.spec, spec)) continue;
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("{}: file '{}' is used by {}: two disks can share a file only if both are MANY_READERS. "
                    "Name another file, or delete that disk (cleatctl disk delete {})",
                    name, path, DiskName(other_id), other_id));
  }
  for (const auto& [other_id, other_path] : creating_) {
    if (other_path == path)
      return Busy(fmt::format("{}: file '{}' is being looked at for {}", name, path, DiskName(other_id)));
  }
  return nullptr;
}

Status HostState::PrepareBackend(const std::string& id, const v1::DiskSpec& spec) {
  if (spec.has_memory()) return memory_.Make(id, spec.size_bytes());
  if (spec.has_file()) return PrepareDiskFile(DiskName(id), spec);
  return Ok{};
}

Result<v1::Disk> HostState::CommitDisk(const std::string& id, const v1::DiskSpec& spec) {
  DiskEntry entry;
  entry.row.id = id;
  entry.row.spec = spec;
  entry.row.revision = NextRevision();
  entry.status.set_state(v1::DISK_STATE_READY);
  if (auto status = store_.Put(entry.row); !status.ok()) {
    memory_.Drop(id);
    return std::move(status).error();
  }
  DiskEntry& kept = disks_.emplace(id, std::move(entry)).first->second;
  Publish(kept);
  spdlog::info("created {}, {} bytes", DiskName(id), spec.size_bytes());
  return Show(kept);
}

Result<v1::Disk> HostState::GetDisk(const v1::GetDiskRequest& request) {
  auto id = ParseDiskName(request.name());
  if (!id.ok()) return std::move(id).error();
  const std::lock_guard lock(mutex_);
  const DiskEntry* entry = FindDisk(*id);
  if (entry == nullptr) return Error(ErrorCode::kNotFound, request.name() + " does not exist");
  return Show(*entry);
}

Result<v1::ListDisksResponse> HostState::ListDisks(const v1::ListDisksRequest& request) {
  auto page = Page::Of(request.page_size());
  if (!page.ok()) return std::move(page).error();
  v1::ListDisksResponse response;
  const std::lock_guard lock(mutex_);
  for (auto it = disks_.upper_bound(request.page_token()); it != disks_.end(); ++it) {
    v1::Disk disk = Show(it->second);
    if (!page->Take(disk.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_disks() = std::move(disk);
  }
  return response;
}

Result<v1::DeleteDiskResponse> HostState::DeleteDisk(const v1::DeleteDiskRequest& request) {
  auto id = ParseDiskName(request.name());
  if (!id.ok()) return std::move(id).error();
  const std::string& name = request.name();
  const std::lock_guard lock(mutex_);
  if (creating_.contains(*id)) return Busy(name + " is being created");
  DiskEntry* entry = FindDisk(*id);
  if (entry == nullptr || entry->row.deleting) return v1::DeleteDiskResponse();

  std::vector<std::string> live;
  for (const auto& [attachment, detaching] : entry->attachments) {
    if (!detaching) live.push_back(attachment);
  }
  if (!live.empty()) {
    const AttachmentsShown shown = ShowAttachments(live);
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("{} is in use by {}: detach it first ({})", name, shown.names, shown.commands));
  }
  if (!entry->attachments.empty()) {
    return Busy(fmt::format("{} is still being detached from {}", name, entry->attachments.begin()->first));
  }
  Status status;
  if (entry->row.kept_by.empty()) {
    status = EraseDisk(*entry);
  } else {
    DiskRow row = entry->row;
    row.deleting = true;
    status = store_.Put(row);
    if (status.ok()) {
      entry->row = std::move(row);
      memory_.Drop(*id);
      Publish(*entry);
      DiskChanged(*id);
    }
  }
  if (!status.ok()) return std::move(status).error();
  spdlog::info("deleted {}", name);
  return v1::DeleteDiskResponse();
}

Status HostState::EraseDisk(DiskEntry& entry) {
  const std::string id = entry.row.id;
  if (auto status = store_.EraseDisk(id); !status.ok()) return status;
  disks_.erase(id);
  memory_.Drop(id);
  PublishGone(DiskName(id));
  return Ok{};
}

}  // namespace cleat::control
