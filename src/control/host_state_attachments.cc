// SPDX-License-Identifier: Apache-2.0
// Attachments, from the API's side.
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/backends.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/page.h"
#include "control/refusals.h"
#include "control/spec_rules.h"

namespace cleat::control {

Status HostState::FillAttachments(std::vector<AttachmentRow> rows) {
  for (AttachmentRow& row : rows) {
    // Rows of before there were modes.
    if (row.spec.mode() == v1::ATTACHMENT_MODE_UNSPECIFIED) row.spec.set_mode(v1::ATTACHMENT_MODE_ACTIVE);
    ControllerEntry* controller = FindController(row.controller);
    const auto disk_id = ParseDiskName(row.spec.disk());
    DiskEntry* disk = disk_id.ok() ? FindDisk(*disk_id) : nullptr;
    if (controller == nullptr || disk == nullptr) {
      return Refuse(v1::REASON_STORE_DAMAGED,
                    fmt::format("store: {} is there, but not its controller or not {}",
                                AttachmentName(row.controller, row.id), row.spec.disk()));
    }
    disk->attachments[AttachmentName(row.controller, row.id)] = {.detaching = row.deleting, .size_bytes = 0};
    const std::string id = row.id;
    controller->attachments.emplace(
        id, AttachmentEntry{.row = std::move(row), .status = {}, .revision = revision_ + 1});
  }
  return Ok{};
}

Result<v1::Attachment> HostState::AttachDisk(const v1::AttachDiskRequest& request) {
  auto controller_id = ParseControllerName(request.parent());
  if (!controller_id.ok()) return Refuse(v1::REASON_INVALID_NAME, "parent: " + controller_id.error().message);
  auto disk_id = ParseDiskName(request.attachment().spec().disk());
  if (!disk_id.ok()) return Refuse(v1::REASON_INVALID_NAME, "disk: " + disk_id.error().message);
  AttachmentRow row;
  row.controller = *controller_id;
  row.id = request.attachment_id().empty() ? *disk_id : request.attachment_id();
  CLEAT_TRY(CheckId("attachment_id", row.id));
  const std::string name = AttachmentName(row.controller, row.id);

  const v1::AttachmentSpec& asked = request.attachment().spec();
  const MutexLock lock(mutex_);
  AwaitAttaching([&](const Attaching& other) CLEAT_REQUIRES(mutex_) {
    if (other.disk == *disk_id && !IsForManyReaders(*disk_id)) return true;
    if (other.row->controller != row.controller) return false;
    return other.row->id == row.id || !asked.has_target() || other.row->spec.target() == asked.target();
  });
  ControllerEntry* controller = FindController(row.controller);
  if (controller == nullptr) return NotThere(request.parent());
  if (controller->row.deleting) return Busy(request.parent(), request.parent() + " is being removed");
  CLEAT_ASSIGN(row.spec, CompleteAttachmentSpec(name, asked, controller->row.spec.type()));
  if (const AttachmentEntry* existing = FindAttachment(row.controller, row.id)) {
    if (existing->row.deleting) return Busy(name, name + " is still being detached");
    if (!row.spec.has_target()) row.spec.set_target(existing->row.spec.target());
    if (IsSameAttachment(existing->row.spec, row.spec)) return Show(*existing);
    return TakenByOther(name, existing->row.spec, row.spec);
  }
  if (!row.spec.has_target()) {
    CLEAT_ASSIGN(auto target, FreeTarget(*controller, name));
    row.spec.set_target(target);
  }
  CLEAT_TRY(CheckNewAttachment(*controller, row));

  row.revision = row.intent_revision = NextRevision();
  CLEAT_TRY(CommitAttachment(row, *disk_id));
  AttachmentEntry& entry = controller->attachments[row.id];
  entry.row = std::move(row);
  Publish(entry);
  DiskEntry* disk = FindDisk(*disk_id);
  disk->attachments[name] = {};
  if (const std::string& file = FileOf(disk->row.spec); !file.empty()) storages_.Look({{*disk_id, file}});
  Publish(*disk);
  ControllerChanged(*controller_id);
  spdlog::info("{}: attach requested: {}{}{}", name, DiskName(*disk_id),
               entry.row.spec.read_only() ? ", read-only" : "",
               entry.row.spec.mode() == v1::ATTACHMENT_MODE_INCOMING ? ", incoming" : "");
  return Show(entry);
}

bool HostState::IsForManyReaders(const std::string& disk_id) {
  const DiskEntry* disk = FindDisk(disk_id);
  return disk != nullptr && disk->row.spec.access_mode() == v1::ACCESS_MODE_MANY_READERS;
}

Status HostState::CommitAttachment(const AttachmentRow& row, const std::string& disk_id) {
  const auto attaching = attaching_.insert(attaching_.end(), {.row = &row, .disk = disk_id});
  Status status = WriteUnlocked(row);
  attaching_.erase(attaching);
  attached_.NotifyAll();
  return status;
}

Status HostState::WriteUnlocked(const AttachmentRow& row) {
  const MutexUnlock unlocked(mutex_);
  return commits_.Write(row);
}

Status HostState::CheckNewAttachment(const ControllerEntry& controller, const AttachmentRow& row) {
  const std::string name = AttachmentName(row.controller, row.id);
  for (const auto& [other_id, other] : controller.attachments) {
    if (other.row.spec.target() != row.spec.target()) continue;
    const std::string other_name = AttachmentName(row.controller, other_id);
    if (other.row.deleting) {
      return Busy(name,
                  fmt::format("{}: target {} is still held by {}, which is being detached", name,
                              row.spec.target(), other_name),
                  other_name);
    }
    return RefuseFor(name, v1::REASON_TARGET_TAKEN,
                     fmt::format("{}: target {} is taken by {}: detach that first (cleatctl detach {} {})",
                                 name, row.spec.target(), other_name, row.controller, other_id),
                     {{"conflict", other_name}});
  }
  return CheckDiskForAttachment(name, row.spec);
}

Status HostState::CheckDiskForAttachment(const std::string& name, const v1::AttachmentSpec& spec) {
  const std::string& disk = spec.disk();
  const DiskEntry* entry = FindDisk(*ParseDiskName(disk));
  if (entry == nullptr) return NotThere(disk);
  if (entry->row.deleting) return Busy(name, disk + " is being removed", disk);
  if (entry->status.state() == v1::DISK_STATE_LOST) {
    return RefuseFor(name, v1::REASON_DISK_LOST, fmt::format("{}: {}", name, entry->status.message()),
                     {{"conflict", disk}});
  }
  if (const std::string why = WhyReadOnly(entry->row.spec); !why.empty() && !spec.read_only()) {
    return RefuseFor(name, v1::REASON_READ_ONLY_REQUIRED,
                     fmt::format("{}: {} {}: attach it read-only (read_only; cleatctl attach --read-only)",
                                 name, disk, why),
                     {{"conflict", disk}});
  }
  if (entry->row.spec.access_mode() == v1::ACCESS_MODE_MANY_READERS) {
    if (spec.read_only()) return Ok{};
    return RefuseFor(
        name, v1::REASON_READ_ONLY_REQUIRED,
        fmt::format("{}: {} is MANY_READERS: attach it read-only (read_only; cleatctl attach --read-only)",
                    name, disk),
        {{"conflict", disk}});
  }
  const std::string stays = WhyItStays(entry->row.spec);
  if (spec.mode() == v1::ATTACHMENT_MODE_INCOMING && !stays.empty()) {
    return RefuseFor(
        name, v1::REASON_INVALID_FIELD,
        fmt::format("{}: {} {}: a disk that is INCOMING has to be a file, a block device or an image", name,
                    disk, stays),
        {{"field", "spec.mode"}});
  }
  for (const auto& [other_name, use] : entry->attachments) {
    if (use.detaching) {
      return Busy(name, fmt::format("{}: {} is still being detached from {}", name, disk, other_name),
                  other_name);
    }
    const auto other = ParseAttachmentName(other_name);
    // One that owns the disk, and one that is to take it over.
    const v1::AttachmentMode other_mode = FindAttachment(other->controller, other->id)->row.spec.mode();
    if (spec.mode() == v1::ATTACHMENT_MODE_INCOMING && other_mode == v1::ATTACHMENT_MODE_ACTIVE &&
        entry->attachments.size() == 1) {
      continue;
    }
    return RefuseFor(
        name, v1::REASON_DISK_HAS_WRITER,
        fmt::format("{}: {} has a writer, {}, and can't have a second one: detach that first (cleatctl "
                    "detach {} {})",
                    name, disk, other_name, other->controller, other->id),
        {{"conflict", other_name}});
  }
  return Ok{};
}

// The lowest; those that are being detached have theirs still.
Result<uint32_t> HostState::FreeTarget(const ControllerEntry& controller, const std::string& name) const {
  if (controller.row.spec.type() == v1::CONTROLLER_TYPE_BLK) return 0U;
  std::set<uint32_t> taken;
  const AttachmentEntry* leaving = nullptr;
  for (const auto& [id, entry] : controller.attachments) {
    taken.insert(entry.row.spec.target());
    if (entry.row.deleting) leaving = &entry;
  }
  for (uint32_t target = 0; target < kScsiTargets; ++target) {
    if (!taken.contains(target)) return target;
  }
  const std::string parent = ControllerName(controller.row.id);
  if (leaving != nullptr) {
    const std::string conflict = AttachmentName(controller.row.id, leaving->row.id);
    return Busy(name, fmt::format("{}: {} has no free target until {} is detached", name, parent, conflict),
                conflict);
  }
  return RefuseFor(
      name, v1::REASON_TOO_MANY_RESOURCES,
      fmt::format("{}: {} has {} disks, which is the most: detach one, or use another controller", name,
                  parent, kScsiTargets),
      {{"limit", std::to_string(kScsiTargets)}});
}

Result<v1::DetachDiskResponse> HostState::DetachDisk(const v1::DetachDiskRequest& request) {
  CLEAT_ASSIGN(auto ids, ParseAttachmentName(request.name()));
  const MutexLock lock(mutex_);
  AttachmentEntry* entry = FindAttachment(ids.controller, ids.id);
  if (entry == nullptr || entry->row.deleting) return v1::DetachDiskResponse();
  CLEAT_TRY(CheckEtag(request.name(), request.etag(), entry->row.intent_revision));
  ControllerEntry* controller = FindController(ids.controller);
  const DiskEntry& disk = *FindDisk(*ParseDiskName(entry->row.spec.disk()));
  CLEAT_TRY(KeepLastDisk(*controller, disk));
  if (controller->row.engine.empty()) {
    CLEAT_TRY(EraseAttachment(*controller, ids.id));
  } else {
    AttachmentRow row = entry->row;
    row.deleting = true;
    row.intent_revision = NextRevision();
    CLEAT_TRY(store_.Put(row));
    entry->row = std::move(row);
    Publish(*entry);
    FindDisk(*ParseDiskName(entry->row.spec.disk()))->attachments[request.name()].detaching = true;
    ControllerChanged(ids.controller);
  }
  spdlog::info("{}: detach requested", request.name());
  return v1::DetachDiskResponse();
}

Status HostState::KeepLastDisk(ControllerEntry& controller, const DiskEntry& disk) {
  const bool has_one = controller.row.last_disk.known();
  if (controller.row.spec.type() != v1::CONTROLLER_TYPE_BLK || has_one || controller.row.engine.empty())
    return Ok{};
  ControllerRow row = controller.row;
  row.last_disk = IdentityOf(disk.row);
  row.last_disk_name = DiskName(disk.row.id);
  CLEAT_TRY(store_.Put(row));
  controller.row = std::move(row);
  Publish(controller);
  return Ok{};
}

Status HostState::EraseAttachment(ControllerEntry& controller, const std::string& id) {
  const std::string name = AttachmentName(controller.row.id, id);
  CLEAT_TRY(NoteTouched(controller));
  CLEAT_TRY(store_.EraseAttachment(controller.row.id, id));
  const auto it = controller.attachments.find(id);
  DiskEntry* disk = FindDisk(*ParseDiskName(it->second.row.spec.disk()));
  controller.attachments.erase(it);
  PublishGone(name);
  disk->attachments.erase(name);
  Publish(*disk);
  return Ok{};
}

Result<v1::Attachment> HostState::GetAttachment(const v1::GetAttachmentRequest& request) {
  CLEAT_ASSIGN(auto ids, ParseAttachmentName(request.name()));
  const MutexLock lock(mutex_);
  const AttachmentEntry* entry = FindAttachment(ids.controller, ids.id);
  if (entry == nullptr) return NotThere(request.name());
  return Show(*entry);
}

// Ordered by controller, then attachment; the page token is the name of the last one.
Result<v1::ListAttachmentsResponse> HostState::ListAttachments(const v1::ListAttachmentsRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  AttachmentIds after;
  if (!request.page_token().empty()) {
    auto token = ParseAttachmentName(request.page_token());
    if (!token.ok()) return Refuse(v1::REASON_INVALID_PAGE, "page_token is none of this list's");
    after = std::move(*token);
  }
  const bool all = request.parent() == ControllerName("-");
  auto only = all ? Result<std::string>(std::string()) : ParseControllerName(request.parent());
  if (!only.ok()) return Refuse(v1::REASON_INVALID_NAME, "parent: " + only.error().message);

  v1::ListAttachmentsResponse response;
  const MutexLock lock(mutex_);
  if (!all && FindController(*only) == nullptr) return NotThere(request.parent());
  std::string last;
  for (auto it = controllers_.lower_bound(all ? after.controller : *only); it != controllers_.end(); ++it) {
    if (!all && it->first != *only) break;
    const auto& attachments = it->second.attachments;
    auto attachment_it =
        it->first == after.controller ? attachments.upper_bound(after.id) : attachments.begin();
    for (; attachment_it != attachments.end(); ++attachment_it) {
      v1::Attachment attachment = Show(attachment_it->second);
      if (!page.Take(attachment.ByteSizeLong())) {
        response.set_next_page_token(last);
        return response;
      }
      last = attachment.name();
      *response.add_attachments() = std::move(attachment);
    }
  }
  return response;
}

}  // namespace cleat::control
