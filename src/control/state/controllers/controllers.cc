// SPDX-License-Identifier: Apache-2.0
#include "control/state/controllers/controllers.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <utility>

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

// What no two controllers have: a socket, or an NQN; for people, too.
std::string ReachOf(const v1::ControllerSpec& spec) {
  return spec.has_exported() ? fmt::format("NQN '{}'", spec.exported().nqn())
                             : fmt::format("socket '{}'", spec.socket_path());
}

// Random, since machine identifiers are copied with machines, and hosts take two subsystems of one name for the same.
Result<std::string> DrawNqn() {
  nvme::fabrics::Uuid uuid{};
  if (getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size()))
    return ErrnoError(errno, "drawing an NQN");
  // The form of a UUID whose bits mean nothing (RFC 4122, 4.4).
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0fU) | 0x40U);
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3fU) | 0x80U);
  return nvme::fabrics::HostIdentityOfUuid(uuid).nqn;
}

// Of what an export is, its hosts alone change.
Status CheckUpdateMask(const std::string& name, const google::protobuf::FieldMask& mask) {
  for (const std::string& path : mask.paths()) {
    if (path == kHostsPath || !path.starts_with("spec.exported")) continue;
    return RefuseFor(
        name, v1::REASON_INVALID_UPDATE_MASK,
        fmt::format("{}: '{:.80}' can't be updated: of an export its hosts alone change ({}); what it "
                    "is called and where it is reached is another one's: create that",
                    name, path, kHostsPath),
        {{"field", path}});
  }
  return CheckMask(name, mask, {kLabelsPath, kHostsPath});
}

}  // namespace

Status Controllers::Fill(std::vector<ControllerRow> rows) {
  for (ControllerRow& row : rows) {
    const std::string id = row.id;
    if (!row.engine.empty()) {
      core_.tables.EngineOf(row.engine).revision = core_.publisher.newest() + 1;
      engines_.Count(row.engine, 1);
    }
    if (!row.spec.group().empty()) {
      const auto group = ParseGroupName(row.spec.group());
      if (!group.ok() || core_.tables.groups.Find(*group) == nullptr) {
        return Refuse(v1::REASON_STORE_DAMAGED, fmt::format("store: {} is there, but not its group {}",
                                                            ControllerName(id), row.spec.group()));
      }
      core_.tables.groups.At(*group).controllers.insert(id);
    }
    core_.tables.controllers.Insert(id, ControllerEntry{.row = std::move(row),
                                                        .status = {},
                                                        .attachments = {},
                                                        .revision = core_.publisher.newest() + 1});
  }
  return Ok{};
}

// ---- Creating

Result<v1::Controller> Controllers::Create(const v1::CreateControllerRequest& request) {
  const std::string& id = request.controller_id();
  CLEAT_TRY(CheckId("controller_id", id));
  const std::string name = ControllerName(id);
  v1::ControllerSpec asked = request.controller().spec();
  CLEAT_ASSIGN(const auto secrets, keys_.ExtractSecrets(id, &asked));
  CLEAT_ASSIGN(auto spec, CompleteControllerSpec(id, std::move(asked)));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.controller().labels()));
  const std::string reach = ReachOf(spec);
  Status path = Ok{};
  if (!spec.has_exported())
    path = core_.paths->CheckSocket(spec.socket_path(), fmt::format("{}: {}", name, reach));

  const StateLock lock(core_.mutex);
  WriteNames names{.changes = {name, reach}, .needs = {kPlacing}};
  if (!spec.group().empty()) names.needs.insert(spec.group());
  core_.writes.Await(names);
  CLEAT_TRY(CompleteNqn(id, spec));
  CLEAT_ASSIGN(auto existing, CheckNew(id, spec, secrets));
  if (existing != nullptr) {
    if (existing->row.labels != labels) return AlreadyExistsWithOtherLabels(name);
    return core_.view.Show(*existing);
  }

  CLEAT_TRY(path);
  CLEAT_TRY(engines_.CheckChosen(id, spec));
  // Now, since the key-encryption key may have changed while others were awaited.
  CLEAT_TRY(keys_.SetSecrets(id, secrets, /*present=*/{}, &spec));
  ControllerEntry entry;
  entry.row.id = id;
  entry.row.spec = spec;
  entry.row.labels = std::move(labels);
  entry.row.revision = entry.row.intent_revision = core_.publisher.NextRevision();
  if (spec.has_exported()) entry.row.hosts_revision = entry.row.revision;
  entry.row.engine =
      spec.engine().empty() ? unclaimed_.EngineThatServes(id) : *ParseEngineName(spec.engine());
  if (entry.row.engine.empty()) entry.row.engine = engines_.Choose();
  CLEAT_TRY(Commit(std::move(entry), names));
  const ControllerEntry& kept = core_.tables.controllers.At(id);
  spdlog::info("{}: created: {}, engine '{}'", name, ReachOf(spec), kept.row.engine);
  v1::Controller made = core_.view.Show(kept);
  // An engine that came while the controller was written did not find it.
  if (kept.row.engine.empty()) PlaceWaiting();
  return made;
}

Status Controllers::CompleteNqn(const std::string& id, v1::ControllerSpec& spec) const {
  if (!spec.has_exported() || !spec.exported().nqn().empty()) return Ok{};
  const ControllerEntry* const present = core_.tables.controllers.Find(id);
  const std::string engine = unclaimed_.EngineThatServes(id);
  if (present != nullptr) spec = WithNqnOf(present->row.spec, spec);
  if (present == nullptr && !engine.empty()) spec = WithNqnOf(unclaimed_.SpecOn(engine, id), spec);
  std::string& nqn = *spec.mutable_exported()->mutable_nqn();
  if (!nqn.empty()) return Ok{};
  CLEAT_ASSIGN(nqn, DrawNqn());
  return Ok{};
}

Status Controllers::Commit(ControllerEntry entry, const WriteNames& names) {
  const std::string id = entry.row.id;
  const std::string engine = entry.row.engine;
  {
    const RowUnderWay creating(creating_);
    const RowUnderWay placing = engines_.HoldPlace(engine);
    CLEAT_TRY(core_.writes.Write(names, {entry.row}));
  }
  ControllerEntry& kept = core_.tables.controllers.Insert(id, std::move(entry));
  if (!engine.empty()) engines_.Count(engine, 1);
  groups_.Join(kept.row);
  core_.publisher.Publish(kept);
  core_.publisher.ControllerChanged(id);
  return Ok{};
}

Result<ControllerEntry*> Controllers::CheckNew(const std::string& id, const v1::ControllerSpec& spec,
                                               const AskedHosts& secrets) {
  const std::string name = ControllerName(id);
  if (ControllerEntry* existing = core_.tables.controllers.Find(id)) {
    if (existing->row.deleting) {
      return Busy(name, name + " is still being removed");
    }
    const v1::ControllerSpec present = WithoutKey(existing->row.spec);
    if (!SameSpec(present, spec)) return AlreadyExists(name, present, spec);
    CLEAT_ASSIGN(const bool same_secrets, keys_.HasSecrets(existing->row, secrets));
    if (same_secrets) return existing;
    return RefuseFor(
        name, v1::REASON_CONTENT_DIFFERS,
        fmt::format("{} exists with other secrets of its hosts: choose another id, or update it", name),
        {{"difference", "secrets"}});
  }
  if (core_.tables.controllers.size() + creating_ >= kControllersMax) {
    return RefuseFor(
        name, v1::REASON_TOO_MANY_RESOURCES,
        fmt::format("{}: there are {} controllers, which is the most: delete one", name, kControllersMax),
        {{"limit", std::to_string(kControllersMax)}});
  }
  if (!spec.group().empty() && !core_.tables.groups.Has(*ParseGroupName(spec.group())))
    return NotFound(spec.group());
  CLEAT_TRY(CheckReachFree(name, spec));
  return nullptr;
}

Status Controllers::CheckStandbyFree(const std::string& name, const v1::ControllerSpec& spec,
                                     const std::string& other_name, const v1::ControllerSpec& other) {
  if (!spec.has_exported() || !other.has_exported()) return Ok{};
  const std::string address = StandbyConflictOf(spec.exported(), other.exported());
  if (address.empty()) return Ok{};
  return RefuseFor(name, v1::REASON_INVALID_FIELD,
                   fmt::format("{}: {} would be an address of it and of {}, of the one where its engine "
                               "listens and of the other where an engine stands "
                               "by: hosts would reach the wrong engine. Choose another address or port",
                               name, address, other_name),
                   {{"field", "spec.exported.standby_addresses"}});
}

Status Controllers::CheckReachFree(const std::string& name, const v1::ControllerSpec& spec) const {
  const std::string reach = ReachOf(spec);
  for (const auto& [other_id, other] : core_.tables.controllers) {
    CLEAT_TRY(CheckStandbyFree(name, spec, ControllerName(other_id), other.row.spec));
    if (ReachOf(other.row.spec) != reach) continue;
    const std::string other_name = ControllerName(other_id);
    if (other.row.deleting) {
      return Busy(name,
                  fmt::format("{}: {} is still used by {}, which is being removed", name, reach, other_name),
                  other_name);
    }
    if (spec.has_exported()) {
      return RefuseFor(
          name, v1::REASON_NQN_TAKEN,
          fmt::format("{}: {} is used by {}: each export needs one of its own. Leave it out to get "
                      "one, or delete that export (cleatctl export delete {})",
                      name, reach, other_name, other_id),
          {{"conflict", other_name}});
    }
    return RefuseFor(
        name, v1::REASON_SOCKET_TAKEN,
        fmt::format("{}: {} is used by {}: each controller needs a socket of its own. Choose another "
                    "path, or delete that controller (cleatctl controller delete {})",
                    name, reach, other_name, other_id),
        {{"conflict", other_name}});
  }
  return Ok{};
}

// ---- Reading and updating

Result<v1::Controller> Controllers::Get(const v1::GetControllerRequest& request) {
  CLEAT_ASSIGN(auto id, ParseControllerName(request.name()));
  const StateLock lock(core_.mutex);
  const ControllerEntry* entry = core_.tables.controllers.Find(id);
  if (entry == nullptr) return NotFound(request.name());
  return core_.view.Show(*entry);
}

Result<v1::ListControllersResponse> Controllers::List(const v1::ListControllersRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListControllersResponse response;
  const StateLock lock(core_.mutex);
  for (auto it = core_.tables.controllers.After(request.page_token()); it != core_.tables.controllers.end();
       ++it) {
    v1::Controller controller = core_.view.Show(it->second);
    if (!page.Take(controller.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_controllers() = std::move(controller);
  }
  return response;
}

Result<v1::Controller> Controllers::Update(const v1::UpdateControllerRequest& request) {
  const std::string& name = request.controller().name();
  CLEAT_ASSIGN(auto id, ParseControllerName(name));
  CLEAT_TRY(CheckUpdateMask(name, request.update_mask()));
  Hosts hosts;
  if (Names(request.update_mask(), kHostsPath)) {
    *hosts.spec.mutable_exported()->mutable_hosts() = request.controller().spec().exported().hosts();
    CLEAT_ASSIGN(hosts.secrets, keys_.ExtractSecrets(id, &hosts.spec));
  }

  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name}};
  core_.writes.Await(names);
  ControllerEntry* entry = core_.tables.controllers.Find(id);
  if (entry == nullptr) return NotFound(name);
  if (entry->row.deleting) return Busy(name, name + " is being removed");
  CLEAT_TRY(CheckEtag(name, request.controller().etag(), entry->row.intent_revision));
  ControllerRow row = entry->row;
  CLEAT_TRY(ChangeRow(request, hosts, row));
  const bool other_hosts = !SameSpec(row.spec, entry->row.spec);
  if (!other_hosts && row.labels == entry->row.labels) return core_.view.Show(*entry);
  row.intent_revision = core_.publisher.NextRevision();
  if (other_hosts) row.hosts_revision = row.intent_revision;
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  core_.publisher.Publish(*entry);
  if (!other_hosts) return core_.view.Show(*entry);
  core_.publisher.ControllerChanged(id);
  spdlog::info("{}: hosts changed: {} are let in", name, entry->row.spec.exported().hosts_size());
  return core_.view.Show(*entry);
}

Status Controllers::ChangeRow(const v1::UpdateControllerRequest& request, const Hosts& hosts,
                              ControllerRow& row) const {
  const std::string& name = request.controller().name();
  if (Names(request.update_mask(), kLabelsPath)) {
    CLEAT_ASSIGN(row.labels, CheckLabels(name, request.controller().labels()));
  }
  if (!Names(request.update_mask(), kHostsPath)) return Ok{};
  if (!row.spec.has_exported()) {
    return RefuseFor(name, v1::REASON_INVALID_UPDATE_MASK,
                     fmt::format("{}: '{}' can't be updated: only an export has hosts", name, kHostsPath),
                     {{"field", kHostsPath}});
  }
  const v1::ControllerSpec present = row.spec;
  *row.spec.mutable_exported()->mutable_hosts() = hosts.spec.exported().hosts();
  CLEAT_TRY(CompleteExportHosts(name, row.spec.mutable_exported()));
  return keys_.SetSecrets(row.id, hosts.secrets, present, &row.spec);
}

// ---- Deleting

Result<v1::DeleteControllerResponse> Controllers::Delete(const v1::DeleteControllerRequest& request) {
  CLEAT_ASSIGN(auto id, ParseControllerName(request.name()));
  const std::string& name = request.name();
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name}};
  core_.writes.Await(names);
  ControllerEntry* entry = core_.tables.controllers.Find(id);
  if (entry == nullptr) {
    CLEAT_TRY(DeleteUnclaimed(id, names));
    return v1::DeleteControllerResponse();
  }
  if (entry->row.deleting) return v1::DeleteControllerResponse();
  CLEAT_TRY(CheckEtag(name, request.etag(), entry->row.intent_revision));
  CLEAT_TRY(CheckNoDisks(name, *entry));
  if (request.spare_key()) {
    CLEAT_TRY(CheckKeyIsSpared(name, entry->row.spec));
  }
  if (entry->row.engine.empty()) {
    CLEAT_TRY(Erase(id, names));
  } else {
    CLEAT_TRY(MakeTombstone(*entry, names));
  }
  spdlog::info("{}: deleted", name);
  return v1::DeleteControllerResponse();
}

Status Controllers::CheckNoDisks(const std::string& name, const ControllerEntry& entry) const {
  std::vector<std::string> live;
  for (const auto& [attachment_id, attachment] : entry.attachments) {
    if (!attachment.row.deleting) live.push_back(AttachmentName(entry.row.id, attachment_id));
  }
  if (live.empty()) return Ok{};
  const AttachmentsShown shown = ShowAttachments(live);
  return RefuseFor(
      name, v1::REASON_CONTROLLER_IN_USE,
      fmt::format("{} has disks attached ({}): detach them first ({})", name, shown.names, shown.commands),
      {{"conflict", live.front()}});
}

Status Controllers::CheckKeyIsSpared(const std::string& name, const v1::ControllerSpec& spec) {
  if (WrappedKeysIn(spec).empty()) return Ok{};
  return RefuseFor(name, v1::REASON_KEY_NOT_KEPT,
                   fmt::format("{} has secrets of its hosts that cleatd keeps, wrapped, and no file of this "
                               "host: they would be destroyed. To make the export again takes them anew",
                               name));
}

Status Controllers::MakeTombstone(ControllerEntry& entry, const WriteNames& names) {
  ControllerRow row = entry.row;
  row.deleting = true;
  row.spec = WithoutKey(std::move(row.spec));  // no engine is told of its hosts any more
  row.intent_revision = core_.publisher.NextRevision();
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry.row = std::move(row);
  core_.publisher.Publish(entry);
  core_.publisher.ControllerChanged(entry.row.id);
  groups_.MarkGroupOf(entry.row);
  return Ok{};
}

Status Controllers::Erase(const std::string& id, const WriteNames& names) {
  CLEAT_TRY(core_.writes.Write(names, {EraseControllerRow{id}}));
  const ControllerRow row = core_.tables.controllers.At(id).row;
  groups_.Leave(row);
  core_.tables.controllers.Erase(id);
  core_.publisher.PublishGone(ControllerName(id));
  if (row.engine.empty()) return Ok{};
  engines_.Count(row.engine, -1);
  PlaceWaiting();
  return Ok{};
}

Status Controllers::DeleteUnclaimed(const std::string& id, const WriteNames& names) {
  const std::string engine = unclaimed_.EngineThatServes(id);
  if (engine.empty()) return Ok{};
  ControllerEntry entry;
  entry.row.id = id;
  entry.row.spec = unclaimed_.SpecOn(engine, id);
  entry.row.engine = engine;
  entry.row.deleting = true;
  entry.row.revision = entry.row.intent_revision = core_.publisher.NextRevision();
  CLEAT_TRY(core_.writes.Write(names, {entry.row}));
  ControllerEntry& kept = core_.tables.controllers.Insert(id, std::move(entry));
  engines_.Count(engine, 1);
  core_.publisher.Publish(kept);
  core_.publisher.ControllerChanged(id);
  spdlog::info("{}: deleted: the restored store did not know it", ControllerName(id));
  return Ok{};
}

Status Controllers::Forget(const std::string& id) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {ControllerName(id)}};
  core_.writes.Await(names);
  const ControllerEntry* entry = core_.tables.controllers.Find(id);
  if (entry == nullptr || !entry->row.deleting || !entry->attachments.empty()) return Ok{};
  return Erase(id, names);
}

// ---- Secrets of exports' hosts

Result<bool> Controllers::AreSameSecrets(const std::string& id, const v1::ControllerSpec& spec) {
  v1::ControllerSpec asked = spec;
  CLEAT_ASSIGN(const auto secrets, keys_.ExtractSecrets(id, &asked));
  const StateLock lock(core_.mutex);
  const ControllerEntry* entry = core_.tables.controllers.Find(id);
  return entry == nullptr ? Result<bool>(true) : keys_.HasSecrets(entry->row, secrets);
}

Status Controllers::RewrapKeys() {
  const StateLock lock(core_.mutex);
  // An export that is being created may have secrets under the former key-encryption key; after the wait it is in the table.
  core_.writes.Await({.changes = {kPlacing}});
  std::vector<std::string> ids;
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (entry.row.spec.has_exported()) ids.push_back(id);
  }
  for (const std::string& id : ids) {
    CLEAT_TRY(RewrapKeysOf(id));
  }
  return Ok{};
}

Status Controllers::RewrapKeysOf(const std::string& id) {
  const WriteNames names{.changes = {ControllerName(id)}};
  core_.writes.Await(names);
  ControllerEntry* const entry = core_.tables.controllers.Find(id);
  if (entry == nullptr) return Ok{};
  ControllerRow row = entry->row;
  if (!keys_.Rewrap(row)) return Ok{};
  // Engines that could not unwrap them get another chance, and no engine needs the former key-encryption key any more.
  row.hosts_revision = core_.publisher.NextRevision();
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  core_.publisher.Publish(*entry);
  core_.publisher.ControllerChanged(id);
  spdlog::info("{}: secrets of its hosts wrapped anew: under key-encryption key {}", ControllerName(id),
               keys_.keyring()->current_id());
  return Ok{};
}

// ---- The reconciler's side

ControllerIntent Controllers::IntentOf(const std::string& controller_id) {
  const StateLock lock(core_.mutex);
  ControllerIntent intent;
  const ControllerEntry* entry = core_.tables.controllers.Find(controller_id);
  if (entry == nullptr) return intent;
  intent.exists = true;
  intent.row = entry->row;
  if (!entry->row.spec.group().empty()) {
    intent.group_slot = core_.tables.groups.Find(*ParseGroupName(entry->row.spec.group()))->row.slot;
  }
  intent.prepared_on = core_.roles.PreparedOn(*entry);
  if (entry->row.spec.has_exported()) intent.serial = core_.view.SerialOf(entry->row);
  for (const auto& [id, attachment] : entry->attachments) {
    const DiskEntry* disk = core_.tables.disks.Find(*ParseDiskName(attachment.row.spec.disk()));
    AttachmentIntent& one = intent.attachments.emplace_back();
    one = {.row = attachment.row,
           .disk = disk->row,
           .disk_identity = core_.view.IdentityOf(disk->row),
           .path_checked = disk->row.revision >= core_.tables.paths_checked_from,
           .disk_status = disk->status};
    if (const std::string& cluster = ClusterOf(disk->row.spec); !cluster.empty())
      one.cluster_revision = core_.tables.clusters.At(*ParseClusterName(cluster)).row.spec_revision;
    if (const std::string& name = SubsystemOf(disk->row.spec); !name.empty()) {
      const SubsystemRow& subsystem = core_.tables.subsystems.At(*ParseSubsystemName(name)).row;
      one.subsystem = subsystem.spec;
      one.reservation_family = subsystem.reservation_family;
    }
    if (const std::string& name = PoolOf(disk->row.spec); !name.empty()) {
      const PoolRow& pool = core_.tables.pools.At(*ParsePoolName(name)).row;
      one.pool = {.device = pool.spec.device(), .uid = pool.uid, .extent_bytes = pool.spec.extent_bytes()};
    }
  }
  return intent;
}

std::vector<std::string> Controllers::On(const std::string& engine) {
  const StateLock lock(core_.mutex);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (entry.row.engine == engine) ids.push_back(id);
  }
  return ids;
}

std::vector<std::string> Controllers::For(const std::string& engine) {
  const StateLock lock(core_.mutex);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (core_.roles.IsFor(entry, engine)) ids.push_back(id);
  }
  return ids;
}

void Controllers::Report(const std::string& engine, const std::string& id,
                         const v1::ControllerStatus& status) {
  const StateLock lock(core_.mutex);
  ControllerEntry* entry = core_.tables.controllers.Find(id);
  if (entry == nullptr || entry->row.engine != engine || SameSpec(entry->status, status)) return;
  entry->status = status;
  core_.publisher.Publish(*entry);
}

Status Controllers::ReportNextDisk(const std::string& engine, const std::string& id, DiskIdentity disk) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {ControllerName(id)}};
  core_.writes.Await(names);
  ControllerEntry* entry = core_.tables.controllers.Find(id);
  if (entry == nullptr || entry->row.engine != engine || entry->row.last_disk == disk) return Ok{};
  for (const auto& [attachment_id, attachment] : entry->attachments) {
    const DiskEntry& attached = core_.tables.DiskOf(attachment.row);
    if (attachment.row.deleting || core_.view.IdentityOf(attached.row) != disk) continue;
    ControllerRow row = entry->row;
    row.last_disk = disk;
    row.last_disk_name = DiskName(attached.row.id);
    CLEAT_TRY(core_.writes.Write(names, {row}));
    spdlog::info("{}: last disk changed: the guest has forgotten {}, and gets {} from now on",
                 ControllerName(id),
                 entry->row.last_disk_name.empty() ? "the former disk" : entry->row.last_disk_name,
                 row.last_disk_name);
    entry->row = std::move(row);
    core_.publisher.Publish(*entry);
    core_.publisher.ControllerChanged(id);
    return Ok{};
  }
  return Ok{};
}

Status Controllers::LearnLastDisk(const std::string& id, DiskIdentity disk, const std::string& name) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {ControllerName(id)}};
  core_.writes.Await(names);
  ControllerEntry* entry = core_.tables.controllers.Find(id);
  if (core_.tables.lost.empty() || entry == nullptr ||
      entry->row.last_disk != DiskIdentity::SomeOf(core_.store.number()))
    return Ok{};
  ControllerRow row = entry->row;
  row.last_disk = disk;
  row.last_disk_name = name;
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  return Ok{};
}

}  // namespace cleat::control
