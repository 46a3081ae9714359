// SPDX-License-Identifier: Apache-2.0
#include "control/state/publish/api_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/validate/backends.h"
#include "control/validate/spec_rules.h"
#include "control/validate/spec_secrets.h"
#include "nvme/fabrics/names.h"
#include "nvme/host/reservation/reservation.h"

namespace cleat::control {
namespace {

google::protobuf::Timestamp TimestampOf(uint64_t seconds) {
  google::protobuf::Timestamp time;
  time.set_seconds(static_cast<int64_t>(seconds));
  return time;
}

std::string IoPathsOf(const DiskEntry& entry) {
  std::set<std::string> paths;
  for (const auto& [name, use] : entry.attachments) {
    if (!use.io_path.empty()) paths.insert(use.io_path);
  }
  return fmt::format("{}", fmt::join(paths, ", "));
}

std::string WhyNotAnswering(const EngineEntry& engine) {
  return fmt::format("{} does not answer: {}", EngineName(engine.id), engine.status.message());
}

std::string NameOnDrive(const pool::MapDisk& disk) {
  v1::Disk described;
  const bool parsed = described.ParseFromString(disk.description) && ParseDiskName(described.name()).ok();
  return parsed ? described.name() : fmt::format("uid {:016x}", disk.identity);
}

// As people read it in what a target says of its registrants.
std::string TextOfFamily(uint64_t family) {
  constexpr size_t kFamilyChars = 18;
  return nvme::fabrics::TextOfUuid(nvme::host::HostIdOf(family, 0)).substr(0, kFamilyChars);
}

// What is missing takes that version of the protocol, which the engine does not speak.
std::string TakesProtocol(uint32_t protocol, const EngineEntry& engine) {
  return fmt::format(
      "takes protocol {}, and {} (version {}) speaks protocol {}: upgrade the engine (cleatctl engine "
      "upgrade), or stop it and start the new one under the same name (--name {})",
      protocol, EngineName(engine.id), engine.status.version(), engine.status.protocol(), engine.id);
}

// For a subsystem that has other addresses, too.
std::optional<std::string> WhyPathsAreLeftOut(const v1::SubsystemSpec& spec, const std::string& name,
                                              const EngineEntry& engine) {
  const auto rdma = std::ranges::count_if(spec.addresses(), IsOverRdma);
  if (rdma == 0 || engine.status.protocol() >= kProtocolRdmaDisks) return std::nullopt;
  return fmt::format("no path goes by {} of {} addresses of {}: they are over RDMA, which {}", rdma,
                     spec.addresses_size(), name, TakesProtocol(kProtocolRdmaDisks, engine));
}

// What of the subsystem's paths the engine does not know, though it has them.
std::optional<std::string> WhyPathsAreOthers(const v1::SubsystemSpec& spec, const std::string& name,
                                             const EngineEntry& engine) {
  const auto sources = std::ranges::count_if(spec.addresses(), HasSource);
  if (engine.status.protocol() >= kProtocolPaths || (sources == 0 && spec.dscp() == 0)) return std::nullopt;
  std::vector<std::string> what;
  if (spec.dscp() != 0)
    what.push_back(fmt::format("packets to {} carry no DSCP ({} is asked for)", name, spec.dscp()));
  if (sources != 0) {
    what.push_back(
        fmt::format("connections to {} of {} addresses of {} come from where its host's routes say", sources,
                    spec.addresses_size(), name));
  }
  return fmt::format("{}: what is asked for {}", fmt::join(what, ", and "),
                     TakesProtocol(kProtocolPaths, engine));
}

}  // namespace

v1::Disk ApiView::Show(const DiskEntry& entry) const {
  v1::Disk disk;
  disk.set_name(DiskName(entry.row.id));
  disk.set_uid(UidOf(entry.row));
  *disk.mutable_spec() = entry.row.spec;
  HideKeys(disk.mutable_spec());
  *disk.mutable_status() = entry.status;
  if (entry.row.deleting) {
    disk.mutable_status()->set_state(v1::DISK_STATE_DELETING);
    disk.mutable_status()->set_message(
        fmt::format("waits until its memory is freed by: {}", fmt::join(entry.row.held_by, ", ")));
  }
  for (const auto& [name, use] : entry.attachments) disk.mutable_status()->add_attachments(name);
  disk.mutable_status()->set_io_path(IoPathsOf(entry));
  disk.mutable_status()->set_size_bytes(propagation_.KnownSize(entry));
  AddNote(WhyHeldUp(entry), *disk.mutable_status()->mutable_message());
  AddNote(WhyUnlisted(entry.row), *disk.mutable_status()->mutable_message());
  AddPathNotes(entry, *disk.mutable_status()->mutable_message());
  disk.set_revision(entry.revision);
  disk.set_etag(EtagOf(entry.row.intent_revision));
  disk.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return disk;
}

v1::Disk ApiView::Show(const DeletedDiskRow& row) const {
  DiskEntry entry;
  entry.row = row.disk;
  entry.revision = row.disk.intent_revision;
  entry.status.set_state(v1::DISK_STATE_DELETED);
  if (KeptMemoryOf(row.disk.spec) == KeptMemory::kContent) {
    entry.status.set_message(
        "its content was freed when it was deleted: undeleted, it is another disk, and empty");
  }
  v1::Disk disk = Show(entry);
  *disk.mutable_delete_time() = TimestampOf(row.delete_time_s);
  *disk.mutable_purge_time() = TimestampOf(row.purge_time_s);
  return disk;
}

v1::Cluster ApiView::Show(const ClusterEntry& entry) const {
  v1::Cluster cluster;
  cluster.set_name(ClusterName(entry.row.id));
  *cluster.mutable_spec() = entry.row.spec;
  HideKeys(cluster.mutable_spec());
  ShowStatus(entry, *cluster.mutable_status());
  cluster.set_revision(entry.revision);
  cluster.set_etag(EtagOf(entry.row.intent_revision));
  cluster.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return cluster;
}

void ApiView::ShowStatus(const ClusterEntry& entry, v1::ClusterStatus& status) const {
  status.set_disks(static_cast<uint32_t>(entry.disks.size()));
  status.set_state(StateOf(entry));
  for (const auto& [fault, episode] : entry.faults)
    AddNote(Describe(ClusterName(entry.row.id), fault, episode), *status.mutable_message());
  if (!entry.faults.empty()) *status.mutable_since() = TimestampOf(entry.faults.begin()->second.since_s);
  if (std::string behind = propagation_.BehindSpec(entry); !behind.empty())
    AddNote(std::move(behind), *status.mutable_message());
  AddNote(WhyUnlisted(entry.row), *status.mutable_message());
}

v1::Subsystem ApiView::Show(const SubsystemEntry& entry) const {
  v1::Subsystem subsystem;
  subsystem.set_name(SubsystemName(entry.row.id));
  *subsystem.mutable_spec() = entry.row.spec;
  HideKeys(subsystem.mutable_spec());
  subsystem.mutable_status()->set_disks(static_cast<uint32_t>(entry.disks.size()));
  if (entry.row.reservation_family != 0)
    subsystem.mutable_status()->set_reservation_family(TextOfFamily(entry.row.reservation_family));
  subsystem.set_revision(entry.revision);
  subsystem.set_etag(EtagOf(entry.row.intent_revision));
  subsystem.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return subsystem;
}

v1::Pool ApiView::Show(const PoolEntry& entry) const {
  v1::Pool pool;
  pool.set_name(PoolName(entry.row.id));
  *pool.mutable_spec() = entry.row.spec;
  ShowStatus(entry, *pool.mutable_status());
  pool.set_revision(entry.revision);
  pool.set_etag(EtagOf(entry.row.intent_revision));
  pool.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return pool;
}

void ApiView::ShowStatus(const PoolEntry& entry, v1::PoolStatus& status) const {
  const uint64_t extent_bytes = entry.row.spec.extent_bytes();
  status.set_state(entry.state);
  status.set_message(entry.message);
  status.set_capacity_bytes(entry.row.extents * extent_bytes);
  status.set_allocated_bytes(entry.of_disks * extent_bytes);
  status.set_reclaimable_bytes(entry.of_deleted * extent_bytes);
  status.set_to_erase_bytes(pool::CountOf(entry.row.to_erase) * extent_bytes);
  status.set_free_bytes(entry.free.count() * extent_bytes);
  status.set_largest_free_bytes(entry.free.longest() * extent_bytes);
  status.set_disks(static_cast<uint32_t>(entry.disks.size()));
  status.set_uid(pool::TextOf(entry.row.uid));
  if (const v1::DriveHealth* health = entry.health.latest(); health != nullptr)
    *status.mutable_health() = *health;
  uint64_t unknown = 0;
  for (const pool::MapDisk& disk : entry.row.unknown) unknown += pool::CountOf(disk.extents);
  status.set_unknown_bytes(unknown * extent_bytes);
  if (unknown == 0) return;
  AddNote(fmt::format("{} disks on the drive are not in the store, which was restored from a backup or lost "
                      "({} for one): "
                      "their extents stay as they are",
                      entry.row.unknown.size(), NameOnDrive(entry.row.unknown.front())),
          *status.mutable_message());
}

v1::Group ApiView::Show(const GroupEntry& entry) const {
  v1::Group group;
  group.set_name(GroupName(entry.row.id));
  *group.mutable_spec() = entry.row.spec;
  for (const std::string& id : entry.controllers) {
    group.mutable_status()->add_controllers(ControllerName(id));
  }
  group.mutable_status()->set_message(propagation_.BehindLimits(entry));
  group.set_revision(entry.revision);
  group.set_etag(EtagOf(entry.row.intent_revision));
  group.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return group;
}

v1::Controller ApiView::Show(const ControllerEntry& entry) const {
  v1::Controller controller;
  controller.set_name(ControllerName(entry.row.id));
  *controller.mutable_spec() = entry.row.spec;
  HideKeys(controller.mutable_spec());
  v1::ControllerStatus& status = *controller.mutable_status();
  status = entry.status;
  if (!entry.row.engine.empty()) status.set_engine(EngineName(entry.row.engine));
  status.set_last_disk(entry.row.last_disk_name);
  if (status.state() == v1::CONTROLLER_STATE_UNSPECIFIED) {
    status.set_state(v1::CONTROLLER_STATE_PENDING);
    if (status.message().empty()) {
      status.set_message(entry.row.engine.empty()
                             ? "no engine has room for it: start cleat-engine"
                             : fmt::format("waits for {}", EngineName(entry.row.engine)));
    }
  }
  if (const EngineEntry* const engine = FindNotAnswering(entry.row.engine); engine != nullptr) {
    status.set_state(v1::CONTROLLER_STATE_NOT_ANSWERING);
    status.set_message(WhyNotAnswering(*engine));
  }
  if (entry.row.deleting) status.set_state(v1::CONTROLLER_STATE_DELETING);
  AddNote(WhyUnlisted(entry.row), *status.mutable_message());
  AddNote(WhyHostsAreLeftOut(entry.row), *status.mutable_message());
  AddNote(WhyAddressesAreLeftOut(entry.row), *status.mutable_message());
  AddNote(WhyNotMarked(entry.row), *status.mutable_message());
  AddNote(WhyNoStandbyPath(entry.row), *status.mutable_message());
  controller.set_revision(entry.revision);
  controller.set_etag(EtagOf(entry.row.intent_revision));
  controller.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return controller;
}

v1::Attachment ApiView::Show(const AttachmentEntry& entry) const {
  v1::Attachment attachment;
  attachment.set_name(AttachmentName(entry.row.controller, entry.row.id));
  *attachment.mutable_spec() = entry.row.spec;
  v1::AttachmentStatus& status = *attachment.mutable_status();
  status = entry.status;
  if (status.state() == v1::ATTACHMENT_STATE_UNSPECIFIED) {
    const ControllerEntry* const controller = tables_.controllers.Find(entry.row.controller);
    const bool placed = controller != nullptr && !controller->row.engine.empty();
    status.set_state(v1::ATTACHMENT_STATE_PENDING);
    status.set_message(placed ? fmt::format("waits for {}", EngineName(controller->row.engine))
                              : "waits until its controller has an engine");
  }
  if (const auto why = WhyHeldUp(entry)) {
    if (status.state() == v1::ATTACHMENT_STATE_OPENING) status.clear_message();
    AddNote(why, *status.mutable_message());
  }
  AddPathNotes(entry.row, *status.mutable_message());
  const ControllerEntry* const owner = tables_.controllers.Find(entry.row.controller);
  const EngineEntry* const engine = owner == nullptr ? nullptr : FindNotAnswering(owner->row.engine);
  if (engine != nullptr) {
    status.set_state(v1::ATTACHMENT_STATE_NOT_ANSWERING);
    status.set_message(WhyNotAnswering(*engine));
  }
  if (const auto uuid = NamespaceOf(entry.row)) status.set_namespace_uuid(nvme::fabrics::TextOfUuid(*uuid));
  if (entry.row.deleting) status.set_state(v1::ATTACHMENT_STATE_DETACHING);
  attachment.set_revision(entry.revision);
  attachment.set_etag(EtagOf(entry.row.intent_revision));
  return attachment;
}

std::optional<nvme::fabrics::Uuid> ApiView::NamespaceOf(const AttachmentRow& row) const {
  const ControllerEntry* const owner = tables_.controllers.Find(row.controller);
  if (owner == nullptr || !owner->row.spec.has_exported()) return std::nullopt;
  const DiskIdentity disk = IdentityOf(tables_.DiskOf(row).row);
  return nvme::fabrics::NamespaceUuidOf(owner->row.spec.exported().nqn(), disk.value());
}

v1::Engine ApiView::Show(const EngineEntry& entry) const {
  v1::Engine engine;
  engine.set_name(EngineName(entry.id));
  *engine.mutable_status() = entry.status;
  if (entry.upgrade) *engine.mutable_status()->mutable_upgrade() = *entry.upgrade;
  if (std::string note = roles_.PathNote(entry); !note.empty()) {
    AddNote(note, *engine.mutable_status()->mutable_message());
    engine.mutable_status()->set_path_difference(std::move(note));
  }
  engine.set_revision(entry.revision);
  return engine;
}

const ClusterEntry* ApiView::FindFaulty(const v1::DiskSpec& disk) const {
  const std::string& name = ClusterOf(disk);
  if (name.empty()) return nullptr;
  const ClusterEntry* const found = tables_.clusters.Find(*ParseClusterName(name));
  return found != nullptr && !found->faults.empty() ? found : nullptr;
}

std::optional<std::string> ApiView::WhyHeldUp(const AttachmentEntry& entry) const {
  if (!WaitsForStorage(entry)) return std::nullopt;
  const ClusterEntry* const cluster = FindFaulty(tables_.DiskOf(entry.row).row.spec);
  return cluster == nullptr ? std::nullopt : WhyHeldUp(*cluster, entry.row.controller);
}

std::optional<std::string> ApiView::WhyHeldUp(const DiskEntry& entry) const {
  const ClusterEntry* const cluster = FindFaulty(entry.row.spec);
  if (cluster == nullptr) return std::nullopt;
  const bool grows = propagation_.KnownSize(entry) < entry.row.spec.size_bytes();
  for (const auto& [name, use] : entry.attachments) {
    const auto ids = ParseAttachmentName(name);
    const ControllerEntry* const controller = tables_.controllers.Find(ids->controller);
    if (controller == nullptr) continue;
    const auto attachment = controller->attachments.find(ids->id);
    const bool waits = attachment != controller->attachments.end() && WaitsForStorage(attachment->second);
    if (!grows && !waits) continue;
    if (auto why = WhyHeldUp(*cluster, ids->controller)) return why;
  }
  return std::nullopt;
}

std::optional<std::string> ApiView::WhyHeldUp(const ClusterEntry& cluster,
                                              const std::string& controller) const {
  const ControllerEntry* const owner = tables_.controllers.Find(controller);
  if (owner == nullptr) return std::nullopt;
  const auto fault = FindHoldingUp(cluster.faults, owner->row.engine);
  if (fault == cluster.faults.end()) return std::nullopt;
  return fmt::format("waits for {}", Describe(ClusterName(cluster.row.id), fault->first, fault->second));
}

const EngineEntry* ApiView::FindNotAnswering(const std::string& engine) const {
  const EngineEntry* const found = tables_.engines.Find(engine);
  return found != nullptr && IsNotAnswering(*found) ? found : nullptr;
}

std::string ApiView::UidOf(const DiskRow& row) const {
  return fmt::format("{:016x}", IdentityOf(row).value());
}

std::string ApiView::SerialOf(const ControllerRow& row) const {
  return fmt::format("{:020x}", DiskIdentity::Of(store_number_, row.revision).value());
}

std::optional<std::string> ApiView::WhyUnlisted(const DiskRow& row) const {
  const std::string& file = FileOf(row.spec);
  if (file.empty()) return std::nullopt;
  return paths_->WhyUnlisted(PathKind::kFile, file);
}

std::optional<std::string> ApiView::WhyUnlisted(const ControllerRow& row) const {
  if (row.spec.socket_path().empty()) return std::nullopt;
  return paths_->WhyUnlisted(PathKind::kSocket, row.spec.socket_path());
}

std::optional<std::string> ApiView::WhyHostsAreLeftOut(const ControllerRow& row) const {
  const EngineEntry* const engine = row.engine.empty() ? nullptr : tables_.engines.Find(row.engine);
  const uint32_t protocol = engine == nullptr ? 0 : engine->status.protocol();
  if (protocol < kProtocolExports || protocol >= kProtocolHostSecrets) return std::nullopt;
  const auto& hosts = row.spec.exported().hosts();
  const auto secured = std::ranges::count_if(hosts, [](const auto& host) { return HasSecrets(host); });
  if (secured == 0) return std::nullopt;
  return fmt::format(
      "{} of {} hosts are not let in: they have secrets, which take protocol {}, and {} (version {}) speaks "
      "protocol {}: upgrade the engine (cleatctl engine upgrade), or stop it and start the new one under the "
      "same name (--name {})",
      secured, hosts.size(), kProtocolHostSecrets, EngineName(row.engine), engine->status.version(), protocol,
      row.engine);
}

std::optional<std::string> ApiView::WhyAddressesAreLeftOut(const ControllerRow& row) const {
  const EngineEntry* const engine = row.engine.empty() ? nullptr : tables_.engines.Find(row.engine);
  const uint32_t protocol = engine == nullptr ? 0 : engine->status.protocol();
  if (protocol < kProtocolExports || protocol >= kProtocolRdma) return std::nullopt;
  const auto& addresses = row.spec.exported().addresses();
  const auto rdma = std::ranges::count_if(addresses, IsOverRdma);
  // Where all are, the engine has no such export, and its controller says why.
  if (rdma == 0 || rdma == addresses.size()) return std::nullopt;
  return fmt::format("nobody listens at {} of {} addresses: they are over RDMA, which {}", rdma,
                     addresses.size(), TakesProtocol(kProtocolRdma, *engine));
}

std::optional<std::string> ApiView::WhyNoStandbyPath(const ControllerRow& row) const {
  const auto& addresses = row.spec.exported().standby_addresses();
  if (row.engine.empty() || addresses.empty()) return std::nullopt;
  const std::string standby = roles_.StandbyOf(row.engine);
  const EngineEntry* const engine = standby.empty() ? nullptr : tables_.engines.Find(standby);
  const uint32_t protocol = engine == nullptr ? kProtocolRdma : engine->status.protocol();
  const auto rdma = std::ranges::count_if(addresses, IsOverRdma);
  if (protocol >= kProtocolRdma || (protocol >= kProtocolHandOver && rdma == 0)) return std::nullopt;
  const std::string what =
      protocol < kProtocolHandOver
          ? fmt::format("the standby addresses: that takes protocol {}",
                        rdma == 0 ? kProtocolHandOver : kProtocolRdma)
          : fmt::format("{} of {} standby addresses: they are over RDMA, which takes protocol {}", rdma,
                        addresses.size(), kProtocolRdma);
  return fmt::format(
      "nobody listens at {}, and {} (version {}) speaks protocol {}: stop it and start the new one under the "
      "same name (--name {})",
      what, EngineName(standby), engine->status.version(), protocol, standby);
}

std::optional<std::string> ApiView::WhyNotMarked(const ControllerRow& row) const {
  const EngineEntry* const engine = row.engine.empty() ? nullptr : tables_.engines.Find(row.engine);
  const uint32_t protocol = engine == nullptr ? 0 : engine->status.protocol();
  const uint32_t dscp = row.spec.exported().dscp();
  if (dscp == 0 || protocol < kProtocolExports || protocol >= kProtocolPaths) return std::nullopt;
  return fmt::format("packets to hosts carry no DSCP ({} is asked for): that {}", dscp,
                     TakesProtocol(kProtocolPaths, *engine));
}

void ApiView::AddPathNotes(const AttachmentRow& row, std::string& message) const {
  const std::string& name = SubsystemOf(tables_.DiskOf(row).row.spec);
  const ControllerEntry* const controller = name.empty() ? nullptr : tables_.controllers.Find(row.controller);
  const EngineEntry* const engine =
      controller == nullptr ? nullptr : tables_.engines.Find(controller->row.engine);
  const uint32_t protocol = engine == nullptr ? 0 : engine->status.protocol();
  if (protocol == 0) return;
  const v1::SubsystemSpec& spec = tables_.subsystems.At(*ParseSubsystemName(name)).row.spec;
  // The engine is not given the disk, and the attachment says why.
  if (protocol < kProtocolRdmaDisks && std::ranges::all_of(spec.addresses(), IsOverRdma)) return;
  AddNote(WhyPathsAreLeftOut(spec, name, *engine), message);
  AddNote(WhyPathsAreOthers(spec, name, *engine), message);
}

// Notes of one attachment are enough: an engine that is too old has the same for each.
void ApiView::AddPathNotes(const DiskEntry& entry, std::string& message) const {
  if (SubsystemOf(entry.row.spec).empty()) return;
  for (const auto& [name, use] : entry.attachments) {
    const auto ids = ParseAttachmentName(name);
    const ControllerEntry* const controller = tables_.controllers.Find(ids->controller);
    if (controller == nullptr) continue;
    const auto attachment = controller->attachments.find(ids->id);
    if (attachment == controller->attachments.end()) continue;
    const size_t before = message.size();
    AddPathNotes(attachment->second.row, message);
    if (message.size() != before) return;
  }
}

std::optional<std::string> ApiView::WhyUnlisted(const ClusterRow& row) const {
  if (row.spec.conf_file().empty()) return std::nullopt;
  return paths_->WhyUnlisted(PathKind::kKey, row.spec.conf_file());
}

}  // namespace cleat::control
