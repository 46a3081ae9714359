// SPDX-License-Identifier: Apache-2.0
#include "control/state/settings/subsystems.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <iterator>
#include <utility>
#include <vector>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/model/page.h"
#include "control/state/writes/update_mask.h"
#include "control/validate/backends.h"
#include "control/validate/spec_rules.h"
#include "nvme/fabrics/names.h"

namespace cleat::control {
namespace {

// Among the names of a new subsystem's write: the subsystems that are there are counted, and their NQNs compared.
constexpr char kSubsystemCount[] = "number of subsystems";

// Why what is asked for can't be done while the subsystem has these disks.
Error InUse(const std::string& name, const std::set<std::string>& disks, std::string_view what) {
  const std::string& disk = *disks.begin();
  return RefuseFor(
      name, v1::REASON_SUBSYSTEM_IN_USE,
      fmt::format("{} has {} disk(s), {} among them, {}: delete them first (cleatctl disk delete {})", name,
                  disks.size(), DiskName(disk), what, disk),
      {{"conflict", DiskName(disk)}});
}

}  // namespace

void Subsystems::Fill(std::vector<SubsystemRow> rows) {
  for (SubsystemRow& row : rows) {
    const std::string id = row.id;
    core_.tables.subsystems.Insert(
        id, {.row = std::move(row), .disks = {}, .revision = core_.publisher.newest() + 1});
  }
}

// ---- The API

Result<Subsystems::Asked> Subsystems::AskedBy(const std::string& id, const v1::Subsystem& subsystem) const {
  Asked asked;
  v1::SubsystemSpec spec = subsystem.spec();
  CLEAT_ASSIGN(asked.secrets, keys_.ExtractSecrets(id, &spec));
  CLEAT_ASSIGN(asked.spec, CompleteSubsystemSpec(id, std::move(spec)));
  CLEAT_ASSIGN(asked.labels, CheckLabels(SubsystemName(id), subsystem.labels()));
  return asked;
}

Result<v1::Subsystem> Subsystems::Create(const v1::CreateSubsystemRequest& request) {
  const std::string& id = request.subsystem_id();
  CLEAT_TRY(CheckId("subsystem_id", id));
  const std::string name = SubsystemName(id);
  CLEAT_ASSIGN(auto asked, AskedBy(id, request.subsystem()));
  v1::SubsystemSpec& spec = *asked.spec;

  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name, kSubsystemCount}};
  core_.writes.Await(names);
  CLEAT_ASSIGN(const auto existing, CheckExisting(id, asked));
  if (existing != nullptr) return core_.view.Show(*existing);
  CLEAT_TRY(CheckRoom(name, spec.nqn()));
  CLEAT_TRY(SetHost(spec));
  // Now, since the key-encryption key may have changed while others were awaited.
  CLEAT_TRY(keys_.SetSecrets(id, asked.secrets, /*present=*/{}, &spec));
  CLEAT_TRY(CheckPskTransport(id, spec));
  SubsystemEntry entry;
  entry.row.id = id;
  entry.row.spec = std::move(spec);
  CLEAT_TRY(SetFamily(entry.row, /*host_before=*/{}));
  entry.row.labels = std::move(*asked.labels);
  entry.row.revision = entry.row.intent_revision = core_.publisher.NextRevision();
  CLEAT_TRY(core_.writes.Write(names, {entry.row}));
  SubsystemEntry& kept = core_.tables.subsystems.Insert(id, std::move(entry));
  core_.publisher.Publish(kept);
  spdlog::info("{}: created: {}; this host is {} to it", name, kept.row.spec.nqn(), kept.row.spec.host_nqn());
  return core_.view.Show(kept);
}

Result<const SubsystemEntry*> Subsystems::CheckExisting(const std::string& id, const Asked& asked) const {
  const SubsystemEntry* const existing = core_.tables.subsystems.Find(id);
  if (existing == nullptr) return existing;
  const std::string name = SubsystemName(id);
  const v1::SubsystemSpec present = WithoutKey(existing->row.spec);
  const v1::SubsystemSpec wanted = WithHostOf(present, *asked.spec);
  if (!SameSpec(present, wanted)) return AlreadyExists(name, present, wanted);
  if (existing->row.labels != *asked.labels) return AlreadyExistsWithOtherLabels(name);
  CLEAT_ASSIGN(const bool same_secrets, keys_.HasSecrets(existing->row, asked.secrets));
  if (same_secrets) return existing;
  return RefuseFor(name, v1::REASON_CONTENT_DIFFERS,
                   fmt::format("{} exists with other secrets: choose another id, or update it", name),
                   {{"difference", "secrets"}});
}

Status Subsystems::CheckRoom(const std::string& name, const std::string& nqn) const {
  for (const auto& [id, entry] : core_.tables.subsystems) {
    if (entry.row.spec.nqn() != nqn) continue;
    return RefuseFor(name, v1::REASON_NQN_TAKEN,
                     fmt::format("{}: {} has the NQN '{}': name that one for disks, or delete it", name,
                                 SubsystemName(id), nqn),
                     {{"conflict", SubsystemName(id)}});
  }
  if (core_.tables.subsystems.size() < kSubsystemsMax) return Ok{};
  return RefuseFor(
      name, v1::REASON_TOO_MANY_RESOURCES,
      fmt::format("{}: there are {} subsystems, which is the most: delete one", name, kSubsystemsMax),
      {{"limit", std::to_string(kSubsystemsMax)}});
}

Result<nvme::fabrics::HostIdentity> Subsystems::ThisHost() const {
  nvme::fabrics::Uuid uuid = host_;
  if (uuid == nvme::fabrics::Uuid{} &&
      getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size()))
    return ErrnoError(errno, "drawing an identifier for this host");
  // The form of a UUID whose bits mean nothing (RFC 4122, 4.4).
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0fU) | 0x40U);
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3fU) | 0x80U);
  return nvme::fabrics::HostIdentityOfUuid(uuid);
}

// A host that was given another identity may be a copy of one that lives, so that the family goes with the identity.
Status Subsystems::SetFamily(SubsystemRow& row, std::string_view host_before) {
  if (row.spec.host_id() != host_before) row.reservation_family = 0;
  if (!HasReservations(row.spec)) return Ok{};
  while (row.reservation_family == 0) {
    uint64_t& family = row.reservation_family;
    if (getrandom(&family, sizeof(family), 0) != static_cast<ssize_t>(sizeof(family)))
      return ErrnoError(errno, "drawing a number for this host's reservations");
  }
  return Ok{};
}

Result<v1::Subsystem> Subsystems::Get(const v1::GetSubsystemRequest& request) {
  CLEAT_ASSIGN(auto id, ParseSubsystemName(request.name()));
  const StateLock lock(core_.mutex);
  const SubsystemEntry* entry = core_.tables.subsystems.Find(id);
  if (entry == nullptr) return NotFound(request.name());
  return core_.view.Show(*entry);
}

Result<v1::ListSubsystemsResponse> Subsystems::List(const v1::ListSubsystemsRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListSubsystemsResponse response;
  const StateLock lock(core_.mutex);
  const auto& table = core_.tables.subsystems;
  for (auto it = table.After(request.page_token()); it != table.end(); ++it) {
    v1::Subsystem subsystem = core_.view.Show(it->second);
    if (!page.Take(subsystem.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_subsystems() = std::move(subsystem);
  }
  return response;
}

Result<v1::Subsystem> Subsystems::Update(const v1::UpdateSubsystemRequest& request) {
  const std::string& name = request.subsystem().name();
  CLEAT_ASSIGN(auto id, ParseSubsystemName(name));
  CLEAT_ASSIGN(const auto asked, AskedBy(id, request));
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name}};
  core_.writes.Await(names);
  SubsystemEntry* entry = core_.tables.subsystems.Find(id);
  if (entry == nullptr) return NotFound(name);
  CLEAT_ASSIGN(auto row, RowAfter(*entry, asked, request.subsystem().etag(), /*gone=*/{}));
  const bool changed = !SameSpec(row.spec, entry->row.spec);
  if (!changed && row.labels == entry->row.labels) return core_.view.Show(*entry);
  row.intent_revision = core_.publisher.NextRevision();
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  core_.publisher.Publish(*entry);
  if (changed) spdlog::info("{}: settings changed", name);
  return core_.view.Show(*entry);
}

Status Subsystems::CheckUpdate(const v1::UpdateSubsystemRequest& request, const NameSet& gone) {
  CLEAT_ASSIGN(auto id, ParseSubsystemName(request.subsystem().name()));
  CLEAT_ASSIGN(const auto asked, AskedBy(id, request));
  const StateLock lock(core_.mutex);
  const SubsystemEntry* entry = core_.tables.subsystems.Find(id);
  if (entry == nullptr) return NotFound(request.subsystem().name());
  const auto row = RowAfter(*entry, asked, request.subsystem().etag(), gone);
  return row.ok() ? Status(Ok{}) : Status(row.error());
}

Result<Subsystems::Asked> Subsystems::AskedBy(const std::string& id,
                                              const v1::UpdateSubsystemRequest& request) const {
  const std::string& name = request.subsystem().name();
  const auto& mask = request.update_mask();
  CLEAT_TRY(CheckMask(name, mask, {kSpecPath, kLabelsPath}));
  if (Names(mask, kSpecPath)) {
    CLEAT_ASSIGN(auto asked, AskedBy(id, request.subsystem()));
    if (!Names(mask, kLabelsPath)) asked.labels.reset();
    return asked;
  }
  Asked asked;
  CLEAT_ASSIGN(asked.labels, CheckLabels(name, request.subsystem().labels()));
  return asked;
}

Result<SubsystemRow> Subsystems::RowAfter(const SubsystemEntry& entry, const Asked& asked,
                                          std::string_view etag, const NameSet& gone) const {
  SubsystemRow row = entry.row;
  CLEAT_TRY(CheckEtag(SubsystemName(row.id), etag, row.intent_revision));
  if (asked.spec) {
    row.spec = WithHostOf(entry.row.spec, *asked.spec);
    CLEAT_TRY(keys_.SetSecrets(row.id, asked.secrets, entry.row.spec, &row.spec));
    CLEAT_TRY(CheckPskTransport(row.id, row.spec));
    CLEAT_TRY(SetFamily(row, entry.row.spec.host_id()));
  }
  if (asked.labels) row.labels = *asked.labels;
  if (!SameSpec(row.spec, entry.row.spec)) {
    CLEAT_TRY(CheckChange(entry, row.spec, gone));
  }
  return row;
}

Status Subsystems::CheckChange(const SubsystemEntry& entry, const v1::SubsystemSpec& spec,
                               const NameSet& gone) const {
  const std::string name = SubsystemName(entry.row.id);
  if (spec.nqn() != entry.row.spec.nqn()) {
    return RefuseFor(name, v1::REASON_INVALID_FIELD,
                     fmt::format("{}: nqn is '{}', and can't become '{}': create another subsystem", name,
                                 entry.row.spec.nqn(), spec.nqn()),
                     {{"field", "spec.nqn"}});
  }
  NameSet disks;
  for (const std::string& disk : entry.disks) {
    if (!gone.contains(DiskName(disk))) disks.insert(disk);
  }
  if (disks.empty()) return Ok{};
  v1::SubsystemSpec moved = WithoutKey(entry.row.spec);
  *moved.mutable_addresses() = spec.addresses();
  moved.set_dscp(spec.dscp());
  moved.set_reservations(spec.reservations());
  moved.set_quiesce_time_proves(spec.quiesce_time_proves());
  if (SameSpec(moved, WithoutKey(spec))) return CheckDetached(name, disks, gone);
  return InUse(name, disks, "which its settings hold for");
}

// An attachment that is being detached counts: its engine may have the disk still.
Status Subsystems::CheckDetached(const std::string& name, const NameSet& disks, const NameSet& gone) const {
  std::vector<std::string> live;
  std::string attached;  // the first disk that has one of these
  std::string leaving;
  for (const std::string& disk : disks) {
    for (const auto& [attachment, use] : core_.tables.disks.At(disk).attachments) {
      if (gone.contains(attachment)) continue;
      if (use.detaching) {
        leaving = attachment;
        continue;
      }
      if (live.empty()) attached = DiskName(disk);
      live.push_back(attachment);
    }
  }
  if (!live.empty()) {
    const AttachmentsShown shown = ShowAttachments(live);
    return RefuseFor(
        name, v1::REASON_SUBSYSTEM_IN_USE,
        fmt::format("{} has disks attached, {} among them ({}), and its addresses, DSCP, reservations and "
                    "secrets stay meanwhile: detach them first ({})",
                    name, attached, shown.names, shown.commands),
        {{"conflict", attached}});
  }
  if (leaving.empty()) return Ok{};
  return Busy(name, fmt::format("{}: {} is still being detached", name, leaving), leaving);
}

Result<v1::DeleteSubsystemResponse> Subsystems::Delete(const v1::DeleteSubsystemRequest& request) {
  CLEAT_ASSIGN(auto id, ParseSubsystemName(request.name()));
  const std::string& name = request.name();
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name}};
  core_.writes.Await(names);
  const SubsystemEntry* entry = core_.tables.subsystems.Find(id);
  if (entry == nullptr) return v1::DeleteSubsystemResponse();
  CLEAT_TRY(CheckEtag(name, request.etag(), entry->row.intent_revision));
  if (!entry->disks.empty()) return InUse(name, entry->disks, "which are reached by it");
  if (request.spare_key() && !WrappedKeysIn(entry->row.spec).empty()) {
    return RefuseFor(
        name, v1::REASON_KEY_NOT_KEPT,
        fmt::format("{} has secrets that cleatd keeps, wrapped, and no file of this host: they would be "
                    "destroyed. To make the subsystem again takes them anew",
                    name));
  }
  CLEAT_TRY(core_.writes.Write(names, {EraseSubsystemRow{id}}));
  core_.tables.subsystems.Erase(id);
  core_.publisher.PublishGone(name);
  spdlog::info("{}: deleted", name);
  return v1::DeleteSubsystemResponse();
}

// ---- Secrets

Result<bool> Subsystems::AreSameSecrets(const std::string& subsystem_id, const v1::SubsystemSpec& spec) {
  v1::SubsystemSpec asked = spec;
  CLEAT_ASSIGN(const auto secrets, keys_.ExtractSecrets(subsystem_id, &asked));
  const StateLock lock(core_.mutex);
  const SubsystemEntry* entry = core_.tables.subsystems.Find(subsystem_id);
  return entry == nullptr ? Result<bool>(true) : keys_.HasSecrets(entry->row, secrets);
}

Status Subsystems::RewrapKeys() {
  const StateLock lock(core_.mutex);
  // A subsystem that is being created may have secrets under the former key-encryption key; after the wait it is in the table.
  core_.writes.Await({.changes = {kSubsystemCount}});
  std::vector<std::string> ids;
  for (const auto& [id, entry] : core_.tables.subsystems) ids.push_back(id);
  for (const std::string& id : ids) {
    CLEAT_TRY(RewrapKeysOf(id));
  }
  return Ok{};
}

Status Subsystems::RewrapKeysOf(const std::string& id) {
  const WriteNames names{.changes = {SubsystemName(id)}};
  core_.writes.Await(names);
  SubsystemEntry* const entry = core_.tables.subsystems.Find(id);
  if (entry == nullptr) return Ok{};
  SubsystemRow row = entry->row;
  if (!keys_.Rewrap(row)) return Ok{};
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  core_.publisher.Publish(*entry);
  spdlog::info("{}: secrets wrapped anew: under key-encryption key {}", SubsystemName(id),
               keys_.keyring()->current_id());
  return Ok{};
}

// ---- For disks

Status Subsystems::CheckSubsystemOf(const std::string& disk_id, const v1::DiskSpec& spec) {
  const std::string& subsystem = SubsystemOf(spec);
  if (subsystem.empty() || core_.tables.subsystems.Has(*ParseSubsystemName(subsystem))) return Ok{};
  return RefuseFor(subsystem, v1::REASON_RESOURCE_NOT_FOUND,
                   fmt::format("{}: {} does not exist: create it first (cleatctl subsystem create)",
                               DiskName(disk_id), subsystem));
}

Status Subsystems::Fill(const DiskRow& row) {
  if (!row.spec.has_nvme_tcp()) return Ok{};
  const std::string& name = SubsystemOf(row.spec);
  const auto id = ParseSubsystemName(name);
  if (!id.ok() || !core_.tables.subsystems.Has(*id)) {
    return Refuse(v1::REASON_STORE_DAMAGED,
                  fmt::format("store: {} is there, but not its subsystem {}", DiskName(row.id), name));
  }
  core_.tables.subsystems.At(*id).disks.insert(row.id);
  return Ok{};
}

void Subsystems::Join(const DiskRow& row) {
  const std::string& name = SubsystemOf(row.spec);
  if (name.empty()) return;
  SubsystemEntry& subsystem = core_.tables.subsystems.At(*ParseSubsystemName(name));
  subsystem.disks.insert(row.id);
  core_.publisher.Publish(subsystem);
}

void Subsystems::Leave(const DiskRow& row) {
  const std::string& name = SubsystemOf(row.spec);
  if (name.empty()) return;
  SubsystemEntry& subsystem = core_.tables.subsystems.At(*ParseSubsystemName(name));
  subsystem.disks.erase(row.id);
  core_.publisher.Publish(subsystem);
}

}  // namespace cleat::control
