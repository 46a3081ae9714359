// SPDX-License-Identifier: Apache-2.0
#include "control/state/controllers/attachments.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/model/page.h"
#include "control/state/controllers/stuck_attachment.h"
#include "control/validate/backends.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {

Status Attachments::Fill(std::vector<AttachmentRow> rows) {
  for (AttachmentRow& row : rows) {
    // Rows of before there were modes.
    if (row.spec.mode() == v1::ATTACHMENT_MODE_UNSPECIFIED) row.spec.set_mode(v1::ATTACHMENT_MODE_ACTIVE);
    ControllerEntry* controller = core_.tables.controllers.Find(row.controller);
    const auto disk_id = ParseDiskName(row.spec.disk());
    DiskEntry* disk = disk_id.ok() ? core_.tables.disks.Find(*disk_id) : nullptr;
    if (controller == nullptr || disk == nullptr) {
      return Refuse(v1::REASON_STORE_DAMAGED,
                    fmt::format("store: {} is there, but not its controller or not {}",
                                AttachmentName(row.controller, row.id), row.spec.disk()));
    }
    disk->attachments[AttachmentName(row.controller, row.id)] = {.detaching = row.deleting, .size_bytes = 0};
    const std::string id = row.id;
    controller->attachments.emplace(
        id, AttachmentEntry{.row = std::move(row), .status = {}, .revision = core_.publisher.newest() + 1});
  }
  return Ok{};
}

// ---- Attaching

Result<v1::Attachment> Attachments::Attach(const v1::AttachDiskRequest& request) {
  auto controller_id = ParseControllerName(request.parent());
  if (!controller_id.ok()) return Refuse(v1::REASON_INVALID_NAME, "parent: " + controller_id.error().message);
  auto disk_id = ParseDiskName(request.attachment().spec().disk());
  if (!disk_id.ok()) return Refuse(v1::REASON_INVALID_NAME, "disk: " + disk_id.error().message);
  AttachmentRow row;
  row.controller = *controller_id;
  row.id = request.attachment_id().empty() ? *disk_id : request.attachment_id();
  CLEAT_TRY(CheckId("attachment_id", row.id));

  const StateLock lock(core_.mutex);
  const WriteNames names = AwaitNames(row, request.attachment().spec(), *disk_id);
  CLEAT_ASSIGN(const auto existing, CheckNew(row, request.attachment().spec()));
  if (existing != nullptr) return core_.view.Show(*existing);
  row.revision = row.intent_revision = core_.publisher.NextRevision();
  CLEAT_TRY(core_.writes.Write(names, {row}));
  const AttachmentEntry& entry = Add(std::move(row), *disk_id);
  spdlog::info("{}: attach requested: {}{}{}", AttachmentName(*controller_id, entry.row.id),
               DiskName(*disk_id), entry.row.spec.read_only() ? ", read-only" : "",
               entry.row.spec.mode() == v1::ATTACHMENT_MODE_INCOMING ? ", incoming" : "");
  return core_.view.Show(entry);
}

// Whether a disk is shared, and its subsystem, can change during the wait: the disk may be deleted, and another one of that name be made.
WriteNames Attachments::AwaitNames(const AttachmentRow& row, const v1::AttachmentSpec& asked,
                                   const std::string& disk_id) {
  WriteNames names = NamesOf(row, asked, disk_id);
  for (;;) {
    core_.writes.Await(names);
    WriteNames now = NamesOf(row, asked, disk_id);
    if (now == names) return names;
    names = std::move(now);
  }
}

WriteNames Attachments::NamesOf(const AttachmentRow& row, const v1::AttachmentSpec& asked,
                                const std::string& disk_id) const {
  const std::string controller = ControllerName(row.controller);
  WriteNames names{.changes = {AttachmentName(row.controller, row.id)}, .needs = {controller}};
  // A request that does not say which target it takes contends with all others for them.
  const std::string targets = controller + " targets";
  (asked.has_target() ? names.needs : names.changes).insert(targets);
  if (asked.has_target()) names.changes.insert(fmt::format("{} target {}", controller, asked.target()));
  const DiskEntry* const disk = core_.tables.disks.Find(disk_id);
  const bool shared = disk != nullptr && disk->row.spec.access_mode() == v1::ACCESS_MODE_MANY_READERS;
  (shared ? names.needs : names.changes).insert(DiskName(disk_id));
  // Where a subsystem is changes only while none of its disks is attached.
  if (disk != nullptr && !SubsystemOf(disk->row.spec).empty())
    names.needs.insert(SubsystemOf(disk->row.spec));
  return names;
}

Result<const AttachmentEntry*> Attachments::CheckNew(AttachmentRow& row, const v1::AttachmentSpec& asked) {
  const std::string name = AttachmentName(row.controller, row.id);
  const std::string parent = ControllerName(row.controller);
  const ControllerEntry* controller = core_.tables.controllers.Find(row.controller);
  if (controller == nullptr) return NotFound(parent);
  if (controller->row.deleting) return Busy(parent, parent + " is being removed");
  CLEAT_ASSIGN(row.spec, CompleteAttachmentSpec(name, asked, controller->row.spec.type()));
  if (const AttachmentEntry* existing = core_.tables.FindAttachment(row.controller, row.id)) {
    if (existing->row.deleting) return Busy(name, name + " is still being detached");
    if (!row.spec.has_target()) row.spec.set_target(existing->row.spec.target());
    if (IsSameAttachment(existing->row.spec, row.spec)) return existing;
    return AlreadyExists(name, existing->row.spec, row.spec);
  }
  if (!row.spec.has_target()) {
    CLEAT_ASSIGN(auto target, FreeTarget(*controller, name));
    row.spec.set_target(target);
  }
  CLEAT_TRY(CheckTarget(*controller, row));
  CLEAT_TRY(CheckDisk(name, row.spec));
  return nullptr;
}

AttachmentEntry& Attachments::Add(AttachmentRow row, const std::string& disk_id) {
  const std::string name = AttachmentName(row.controller, row.id);
  const std::string controller_id = row.controller;
  AttachmentEntry& entry = core_.tables.controllers.At(controller_id).attachments[row.id];
  entry.row = std::move(row);
  core_.publisher.Publish(entry);
  DiskEntry& disk = core_.tables.disks.At(disk_id);
  disk.attachments[name] = {};
  storages_.LookAgain(disk.row);
  core_.publisher.Publish(disk);
  core_.publisher.ControllerChanged(controller_id);
  return entry;
}

Status Attachments::CheckTarget(const ControllerEntry& controller, const AttachmentRow& row) const {
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
  return Ok{};
}

bool Attachments::IsOfSubsystemWithReservations(const v1::DiskSpec& spec) const {
  const std::string& subsystem = SubsystemOf(spec);
  return !subsystem.empty() &&
         HasReservations(core_.tables.subsystems.Find(*ParseSubsystemName(subsystem))->row.spec);
}

Status Attachments::CheckDisk(const std::string& name, const v1::AttachmentSpec& spec) {
  const std::string& disk = spec.disk();
  const DiskEntry* entry = core_.tables.disks.Find(*ParseDiskName(disk));
  if (entry == nullptr) return NotFound(disk);
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
  const std::string stays = WhyItStays(entry->row.spec, IsOfSubsystemWithReservations(entry->row.spec));
  if (spec.mode() == v1::ATTACHMENT_MODE_INCOMING && !stays.empty()) {
    return RefuseFor(name, v1::REASON_INVALID_FIELD,
                     fmt::format("{}: {} {}: a disk that is INCOMING has to be a file, a block device, an "
                                 "image or a namespace of a subsystem with reservations",
                                 name, disk, stays),
                     {{"field", "spec.mode"}});
  }
  for (const auto& [other_name, use] : entry->attachments) {
    if (use.detaching) {
      return Busy(name, fmt::format("{}: {} is still being detached from {}", name, disk, other_name),
                  other_name);
    }
    const auto other = ParseAttachmentName(other_name);
    // Two attachments: the one that owns the disk, and the one that is to take it over.
    const v1::AttachmentMode other_mode =
        core_.tables.FindAttachment(other->controller, other->id)->row.spec.mode();
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
Result<uint32_t> Attachments::FreeTarget(const ControllerEntry& controller, const std::string& name) const {
  const uint32_t targets = TargetsOf(controller.row.spec.type());
  if (targets == 1) return 0U;
  std::set<uint32_t> taken;
  const AttachmentEntry* leaving = nullptr;
  for (const auto& [id, entry] : controller.attachments) {
    taken.insert(entry.row.spec.target());
    if (entry.row.deleting) leaving = &entry;
  }
  for (uint32_t target = 0; target < targets; ++target) {
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
                  parent, targets),
      {{"limit", std::to_string(targets)}});
}

// ---- Detaching

Result<v1::DetachDiskResponse> Attachments::Detach(const v1::DetachDiskRequest& request) {
  CLEAT_ASSIGN(auto ids, ParseAttachmentName(request.name()));
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {request.name(), ControllerName(ids.controller)}};
  core_.writes.Await(names);
  const AttachmentEntry* entry = core_.tables.FindAttachment(ids.controller, ids.id);
  if (entry == nullptr || entry->row.deleting) return v1::DetachDiskResponse();
  CLEAT_TRY(CheckEtag(request.name(), request.etag(), entry->row.intent_revision));
  if (core_.tables.controllers.At(ids.controller).row.engine.empty()) {
    CLEAT_TRY(EraseUnplaced(ids, names));
  } else {
    CLEAT_TRY(MakeTombstone(ids, names));
  }
  spdlog::info("{}: detach requested", request.name());
  return v1::DetachDiskResponse();
}

// Of a controller that no engine has. An engine that is forgotten may have left a reservation; it goes before the mutex does, so that nobody can
// attach the disk there anew before.
Status Attachments::EraseUnplaced(const AttachmentIds& ids, const WriteNames& names) {
  const auto namespace_uuid = NamespaceOf(ids);
  CLEAT_TRY(Erase(ids, names));
  if (namespace_uuid) RemoveReservation(ids, *namespace_uuid);
  return Ok{};
}

Status Attachments::MakeTombstone(const AttachmentIds& ids, const WriteNames& names) {
  AttachmentEntry& entry = *core_.tables.FindAttachment(ids.controller, ids.id);
  AttachmentRow row = entry.row;
  row.deleting = true;
  row.intent_revision = core_.publisher.NextRevision();
  std::optional<ControllerRow> controller =
      WithLastDisk(core_.tables.controllers.At(ids.controller).row, core_.tables.DiskOf(row).row);
  StoreChange change;
  if (controller) change.emplace_back(*controller);
  change.emplace_back(row);
  CLEAT_TRY(core_.writes.Write(names, change));
  if (controller) SetController(*std::move(controller));
  entry.row = std::move(row);
  core_.publisher.Publish(entry);
  core_.tables.DiskOf(entry.row).attachments[AttachmentName(ids.controller, ids.id)].detaching = true;
  core_.publisher.ControllerChanged(ids.controller);
  return Ok{};
}

std::optional<ControllerRow> Attachments::WithLastDisk(const ControllerRow& controller,
                                                       const DiskRow& disk) const {
  if (controller.spec.type() != v1::CONTROLLER_TYPE_BLK || controller.last_disk.known()) return std::nullopt;
  ControllerRow row = controller;
  row.last_disk = core_.view.IdentityOf(disk);
  row.last_disk_name = DiskName(disk.id);
  return row;
}

std::optional<ControllerRow> Attachments::Touched(const ControllerRow& controller) {
  const auto& lost = core_.tables.lost;
  if (lost.empty() || controller.intent_revision >= lost.back().until) return std::nullopt;
  ControllerRow row = controller;
  row.intent_revision = core_.publisher.NextRevision();
  return row;
}

void Attachments::SetController(ControllerRow row) {
  ControllerEntry& entry = core_.tables.controllers.At(row.id);
  entry.row = std::move(row);
  core_.publisher.Publish(entry);
}

// The reservation goes before the row: nobody can attach the disk there anew before, and a cleatd that ends in between does both again.
Status Attachments::Forget(const std::string& controller_id, const std::string& id) {
  const AttachmentIds ids{.controller = controller_id, .id = id};
  const StateLock lock(core_.mutex);
  if (const auto namespace_uuid = NamespaceOf(ids);
      namespace_uuid && core_.tables.FindAttachment(controller_id, id)->row.deleting) {
    const StateUnlock unlock(core_.mutex);
    RemoveReservation(ids, *namespace_uuid);
  }
  const WriteNames names{.changes = {AttachmentName(controller_id, id), ControllerName(controller_id)}};
  core_.writes.Await(names);
  const AttachmentEntry* entry = core_.tables.FindAttachment(controller_id, id);
  if (entry == nullptr || !entry->row.deleting) return Ok{};
  return Erase(ids, names);
}

// ---- Reservations of exports' namespaces

std::optional<nvme::fabrics::Uuid> Attachments::NamespaceOf(const AttachmentIds& ids) const {
  const ControllerEntry* const controller = core_.tables.controllers.Find(ids.controller);
  if (controller == nullptr) return std::nullopt;
  const auto found = controller->attachments.find(ids.id);
  return found == controller->attachments.end() ? std::nullopt : core_.view.NamespaceOf(found->second.row);
}

void Attachments::RemoveReservation(const AttachmentIds& ids,
                                    const nvme::fabrics::Uuid& namespace_uuid) const {
  if (const Status status = reservations_.Remove(namespace_uuid); !status.ok())
    spdlog::warn(
        "{}: reservation of its hosts not removed: {}; remove the file, or the disk has that reservation "
        "when it is attached there again",
        AttachmentName(ids.controller, ids.id), status.error().message);
}

Status Attachments::Erase(const AttachmentIds& ids, const WriteNames& names) {
  StoreChange change;
  std::optional<ControllerRow> controller = Touched(core_.tables.controllers.At(ids.controller).row);
  if (controller) change.emplace_back(*controller);
  change.emplace_back(EraseAttachmentRow{.controller = ids.controller, .id = ids.id});
  CLEAT_TRY(core_.writes.Write(names, change));
  if (controller) SetController(*std::move(controller));
  const std::string name = AttachmentName(ids.controller, ids.id);
  auto& attachments = core_.tables.controllers.At(ids.controller).attachments;
  const auto place = attachments.find(ids.id);
  DiskEntry& disk = core_.tables.DiskOf(place->second.row);
  cluster_faults_.OnStorage(place->second.row, v1::STORAGE_STATE_UNSPECIFIED);
  attachments.erase(place);
  core_.publisher.PublishGone(name);
  disk.attachments.erase(name);
  core_.publisher.Publish(disk);
  return Ok{};
}

// ---- Reading

Result<v1::Attachment> Attachments::Get(const v1::GetAttachmentRequest& request) {
  CLEAT_ASSIGN(auto ids, ParseAttachmentName(request.name()));
  const StateLock lock(core_.mutex);
  const AttachmentEntry* entry = core_.tables.FindAttachment(ids.controller, ids.id);
  if (entry == nullptr) return NotFound(request.name());
  return core_.view.Show(*entry);
}

std::vector<v1::Attachment> Attachments::OverPaths() const {
  std::vector<v1::Attachment> found;
  const StateLock lock(core_.mutex);
  const ResourceTable<ControllerEntry>& controllers = core_.tables.controllers;
  for (auto it = controllers.From(""); it != controllers.end(); ++it) {
    for (const auto& [id, entry] : it->second.attachments) {
      if (entry.status.has_paths()) found.push_back(core_.view.Show(entry));
    }
  }
  return found;
}

std::vector<v1::StuckAttachment> Attachments::Stuck() const {
  std::vector<v1::StuckAttachment> found;
  const StateLock lock(core_.mutex);
  const ResourceTable<ControllerEntry>& controllers = core_.tables.controllers;
  for (auto it = controllers.From(""); it != controllers.end(); ++it) {
    for (const auto& [id, entry] : it->second.attachments) {
      const v1::StorageState storage = entry.status.storage_state();
      if (storage == v1::STORAGE_STATE_OK || storage == v1::STORAGE_STATE_UNSPECIFIED) continue;
      auto stuck = StuckOf(core_.view.Show(entry), core_.tables.DiskOf(entry.row).row.spec);
      if (!stuck) continue;
      stuck->set_engine(EngineName(it->second.row.engine));
      found.push_back(*std::move(stuck));
    }
  }
  return found;
}

// Ordered by controller, then attachment; the page token is the name of the last one.
Result<v1::ListAttachmentsResponse> Attachments::List(const v1::ListAttachmentsRequest& request) {
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
  const StateLock lock(core_.mutex);
  if (!all && !core_.tables.controllers.Has(*only)) return NotFound(request.parent());
  std::string last;
  const ResourceTable<ControllerEntry>& controllers = core_.tables.controllers;
  for (auto it = controllers.From(all ? after.controller : *only); it != controllers.end(); ++it) {
    if (!all && it->first != *only) break;
    const auto& attachments = it->second.attachments;
    auto attachment_it =
        it->first == after.controller ? attachments.upper_bound(after.id) : attachments.begin();
    for (; attachment_it != attachments.end(); ++attachment_it) {
      v1::Attachment attachment = core_.view.Show(attachment_it->second);
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

// ---- The reconciler's reports

// On the reconciler's thread, as Forget: the attachment may become a tombstone meanwhile, and does not go.
void Attachments::Report(const std::string& engine, const AttachmentKey& key,
                         const AttachmentReport& report) {
  const StateLock lock(core_.mutex);
  AttachmentEntry* entry = FindReported(engine, key);
  if (entry == nullptr) return;
  entry->fenced = report.fenced;
  const AttachmentRow before = entry->row;
  // What is stored of the report comes first: who sees the attachment's status sees what follows from it.
  AdoptMode(before, entry->status.state(), report.state);
  const std::string disk_id = *ParseDiskName(before.spec.disk());
  disks_.AdoptGrownSize(disk_id, report.size_bytes);
  if (report.state == v1::ATTACHMENT_STATE_READY) disks_.AdoptImageSize(disk_id, report.size_bytes);
  // That took its time without the mutex.
  entry = FindReported(engine, key);
  if (entry != nullptr && entry->row.revision == before.revision) ReportTo(*entry, report);
}

// Null: it is gone meanwhile, or is not that engine's. A target has one attachment at most.
AttachmentEntry* Attachments::FindReported(const std::string& engine, const AttachmentKey& key) {
  ControllerEntry* controller = core_.tables.controllers.Find(key.controller);
  if (controller == nullptr || controller->row.engine != engine) return nullptr;
  for (auto& [id, entry] : controller->attachments) {
    if (entry.row.spec.target() != key.target) continue;
    return key.revision == 0 || entry.row.revision == key.revision ? &entry : nullptr;
  }
  return nullptr;
}

void Attachments::ReportTo(AttachmentEntry& entry, const AttachmentReport& report) {
  v1::AttachmentStatus status;
  status.set_state(report.state);
  status.set_message(report.message);
  status.set_size_bytes(report.size_bytes);
  status.set_failures(report.failures);
  status.set_storage_state(report.storage);
  status.set_on_no_space(report.on_no_space);
  status.set_io_path(report.io_path);
  if (report.in_doubt) *status.mutable_in_doubt() = *report.in_doubt;
  if (report.paths) *status.mutable_paths() = *report.paths;
  DiskEntry& disk = core_.tables.DiskOf(entry.row);
  DiskUse& use = disk.attachments.at(AttachmentName(entry.row.controller, entry.row.id));
  const bool same = SameSpec(entry.status, status);
  if (same && use.limits_revision == report.limits_revision) return;
  if (!same) {
    std::swap(entry.status, status);
    core_.publisher.Publish(entry);
    cluster_faults_.OnStorage(entry.row, entry.status.storage_state());
    if (status.state() != entry.status.state()) cluster_faults_.OnAttachment(disk);
  }
  const uint64_t known = core_.propagation.KnownSize(disk);
  const bool limited = core_.propagation.BehindLimits(disk).empty();
  const bool same_path = use.io_path == report.io_path;
  use.size_bytes = report.size_bytes;
  use.limits_revision = report.limits_revision;
  use.io_path = report.io_path;
  if (core_.propagation.KnownSize(disk) != known || core_.propagation.BehindLimits(disk).empty() != limited ||
      !same_path)
    core_.publisher.Publish(disk);
}

// So that whoever is started anew meanwhile is told to open what is no longer its own, and to acquire what is. After the first SetMode, which
// lets go of the mutex, the disk is still there: its attachment is one to a controller that has an engine, and keeps that engine. Such an
// attachment goes only by Forget, which is called on this thread.
void Attachments::AdoptMode(const AttachmentRow& row, v1::AttachmentState before, v1::AttachmentState state) {
  const v1::AttachmentMode mode = row.spec.mode();
  const AttachmentIds ids{.controller = row.controller, .id = row.id};
  if (state == v1::ATTACHMENT_STATE_RELEASED && mode == v1::ATTACHMENT_MODE_ACTIVE)
    return SetMode(ids, row.revision, v1::ATTACHMENT_MODE_OUTGOING);
  if (state != v1::ATTACHMENT_STATE_READY || mode == v1::ATTACHMENT_MODE_ACTIVE) return;
  // What another engine said before this one's news is no news: it stays as the news left it.
  if (mode == v1::ATTACHMENT_MODE_OUTGOING && before == v1::ATTACHMENT_STATE_READY) return;
  SetMode(ids, row.revision, v1::ATTACHMENT_MODE_ACTIVE);
  const std::string own = AttachmentName(row.controller, row.id);
  std::vector<AttachmentIds> others;
  for (const auto& [name, use] : core_.tables.DiskOf(row).attachments) {
    if (name != own) others.push_back(*ParseAttachmentName(name));
  }
  for (const AttachmentIds& other : others) {
    const AttachmentEntry* const entry = core_.tables.FindAttachment(other.controller, other.id);
    if (entry != nullptr && !entry->row.deleting && entry->row.spec.mode() == v1::ATTACHMENT_MODE_ACTIVE)
      SetMode(other, entry->row.revision, v1::ATTACHMENT_MODE_OUTGOING);
  }
}

void Attachments::SetMode(const AttachmentIds& ids, uint64_t revision, v1::AttachmentMode mode) {
  const std::string name = AttachmentName(ids.controller, ids.id);
  const WriteNames names{.changes = {name}, .needs = {ControllerName(ids.controller)}};
  core_.writes.Await(names);
  AttachmentEntry* const entry = core_.tables.FindAttachment(ids.controller, ids.id);
  if (entry == nullptr || entry->row.revision != revision || entry->row.deleting ||
      entry->row.spec.mode() == mode)
    return;
  AttachmentRow row = entry->row;
  row.spec.set_mode(mode);
  row.intent_revision = core_.publisher.NextRevision();
  if (auto status = core_.writes.Write(names, {row}); !status.ok()) {
    spdlog::error("{}: mode {} not stored: {}; see to the store's file system", name,
                  v1::AttachmentMode_Name(mode), status.error().message);
    return;
  }
  spdlog::info("{}: mode changed: {}", name,
               mode == v1::ATTACHMENT_MODE_ACTIVE
                   ? "its VM is here, and this host owns the disk"
                   : "its VM migrates away, and this host has given the disk up");
  entry->row = std::move(row);
  core_.publisher.Publish(*entry);
}

}  // namespace cleat::control
