// SPDX-License-Identifier: Apache-2.0
// What all kinds of resources share: loading, revisions, showing, publishing.
#include "control/host_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/backends.h"
#include "control/names.h"
#include "control/refusals.h"

namespace cleat::control {
namespace {

// Status changes take revisions too and aren't stored one by one, so they are reserved in blocks; a restart
// goes on with the next block.
constexpr uint64_t kRevisionsPerBlock = 1'000'000;

}  // namespace

Result<std::unique_ptr<HostState>> HostState::Load(Store& store, MemoryKeeper& memory, size_t watch_queue_max,
                                                   keys::Keyring* keyring, KeepDeleted keep) {
  std::unique_ptr<HostState> state(new HostState(store, memory, watch_queue_max, keyring, std::move(keep)));
  const MutexLock lock(state->mutex_);
  CLEAT_ASSIGN(auto first, store.ReserveRevisions(kRevisionsPerBlock));
  state->revision_ = first - 1;
  state->revisions_until_ = first + kRevisionsPerBlock;
  CLEAT_ASSIGN(auto rows, store.Load());
  CLEAT_TRY(state->Fill(std::move(rows)));
  state->LookAtFiles();
  return state;
}

Status HostState::Fill(Rows rows) {
  paths_checked_from_ = rows.paths_checked_from;
  // What is named comes before what names it.
  FillClusters(std::move(rows.clusters));
  CLEAT_TRY(FillDisks(std::move(rows.disks)));
  for (DeletedDiskRow& row : rows.deleted_disks) deleted_.Put(std::move(row));
  CLEAT_TRY(FillGroups(std::move(rows.groups)));
  CLEAT_TRY(FillControllers(std::move(rows.controllers)));
  CLEAT_TRY(FillAttachments(std::move(rows.attachments)));
  FillUpgrades(std::move(rows.upgrades));
  lost_ = std::move(rows.lost);
  // Nothing is known of any engine yet.
  ++revision_;
  hub_.StartHistory(revision_);
  v1::EngineStatus unseen;
  unseen.set_message("has not connected since cleatd started");
  for (const auto& [id, entry] : engines_) SetEngineStatus(id, unseen);
  for (auto& [id, entry] : disks_) {
    if (entry.status.state() == v1::DISK_STATE_PENDING) DiskChanged(id);
  }
  return Ok{};
}

void HostState::LookAtFiles() {
  std::vector<KnownStorages::File> files;
  for (const auto& [id, entry] : disks_) {
    if (const std::string& file = FileOf(entry.row.spec); !file.empty()) files.push_back({id, file});
  }
  storages_.Look(std::move(files));
}

uint64_t HostState::NextRevision() {
  if (++revision_ < revisions_until_) return revision_;
  auto first = store_.ReserveRevisions(kRevisionsPerBlock);
  if (first.ok()) {
    revision_ = *first;
    revisions_until_ = *first + kRevisionsPerBlock;
  } else {
    // Going on is better than stopping: the store's next successful write reserves again, and no other
    // process hands out revisions meanwhile.
    spdlog::error(
        "revisions: none reserved: {}; the next write that succeeds reserves some: see to the store's file "
        "system",
        first.error().message);
  }
  return revision_;
}

// ---- Showing ----

uint64_t HostState::KnownSize(const DiskEntry& entry) const {
  uint64_t size_bytes = entry.row.spec.size_bytes();
  for (const auto& [name, use] : entry.attachments) {
    if (use.size_bytes != 0 && !use.detaching) size_bytes = std::min(size_bytes, use.size_bytes);
  }
  return size_bytes;
}

v1::Disk HostState::Show(const DiskEntry& entry) const {
  v1::Disk disk;
  disk.set_name(DiskName(entry.row.id));
  disk.set_uid(UidOf(entry.row));
  *disk.mutable_spec() = entry.row.spec;
  if (disk.spec().has_encryption())
    disk.mutable_spec()->mutable_encryption()->mutable_wrapped_key()->clear_data();
  *disk.mutable_status() = entry.status;
  if (entry.row.deleting) {
    disk.mutable_status()->set_state(v1::DISK_STATE_DELETING);
    disk.mutable_status()->set_message(
        fmt::format("waits until its memory is freed by: {}", fmt::join(entry.row.kept_by, ", ")));
  }
  for (const auto& [name, use] : entry.attachments) disk.mutable_status()->add_attachments(name);
  disk.mutable_status()->set_size_bytes(KnownSize(entry));
  AddNote(WhyUnlisted(entry.row), *disk.mutable_status()->mutable_message());
  disk.set_revision(entry.revision);
  disk.set_etag(EtagOf(entry.row.intent_revision));
  disk.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return disk;
}

v1::Group HostState::Show(const GroupEntry& entry) const {
  v1::Group group;
  group.set_name(GroupName(entry.row.id));
  *group.mutable_spec() = entry.row.spec;
  for (const std::string& id : entry.controllers) {
    group.mutable_status()->add_controllers(ControllerName(id));
  }
  group.mutable_status()->set_message(BehindLimits(entry));
  group.set_revision(entry.revision);
  group.set_etag(EtagOf(entry.row.intent_revision));
  group.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return group;
}

v1::Controller HostState::Show(const ControllerEntry& entry) const {
  v1::Controller controller;
  controller.set_name(ControllerName(entry.row.id));
  *controller.mutable_spec() = entry.row.spec;
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
  if (entry.row.deleting) status.set_state(v1::CONTROLLER_STATE_DELETING);
  AddNote(WhyUnlisted(entry.row), *status.mutable_message());
  controller.set_revision(entry.revision);
  controller.set_etag(EtagOf(entry.row.intent_revision));
  controller.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return controller;
}

v1::Attachment HostState::Show(const AttachmentEntry& entry) const {
  v1::Attachment attachment;
  attachment.set_name(AttachmentName(entry.row.controller, entry.row.id));
  *attachment.mutable_spec() = entry.row.spec;
  v1::AttachmentStatus& status = *attachment.mutable_status();
  status = entry.status;
  if (status.state() == v1::ATTACHMENT_STATE_UNSPECIFIED) {
    const auto controller = controllers_.find(entry.row.controller);
    const bool placed = controller != controllers_.end() && !controller->second.row.engine.empty();
    status.set_state(v1::ATTACHMENT_STATE_PENDING);
    status.set_message(placed ? fmt::format("waits for {}", EngineName(controller->second.row.engine))
                              : "waits until its controller has an engine");
  }
  if (entry.row.deleting) status.set_state(v1::ATTACHMENT_STATE_DETACHING);
  attachment.set_revision(entry.revision);
  attachment.set_etag(EtagOf(entry.row.intent_revision));
  return attachment;
}

v1::Engine HostState::Show(const std::string& id, const EngineEntry& entry) const {
  v1::Engine engine;
  engine.set_name(EngineName(id));
  *engine.mutable_status() = entry.status;
  if (entry.upgrade) *engine.mutable_status()->mutable_upgrade() = *entry.upgrade;
  if (std::string note = PathNote(id, entry); !note.empty()) {
    AddNote(note, *engine.mutable_status()->mutable_message());
    engine.mutable_status()->set_path_difference(std::move(note));
  }
  engine.set_revision(entry.revision);
  return engine;
}

// ---- Publishing ----

namespace {

std::shared_ptr<v1::WatchResponse> NewEvent(uint64_t revision) {
  auto event = std::make_shared<v1::WatchResponse>();
  event->set_revision(revision);
  return event;
}

void SetResource(v1::Disk&& disk, v1::WatchResponse& event) {
  *event.mutable_disk() = std::move(disk);
}
void SetResource(v1::Cluster&& cluster, v1::WatchResponse& event) {
  *event.mutable_cluster() = std::move(cluster);
}
void SetResource(v1::Group&& group, v1::WatchResponse& event) {
  *event.mutable_group() = std::move(group);
}
void SetResource(v1::Controller&& controller, v1::WatchResponse& event) {
  *event.mutable_controller() = std::move(controller);
}
void SetResource(v1::Attachment&& attachment, v1::WatchResponse& event) {
  *event.mutable_attachment() = std::move(attachment);
}
void SetResource(v1::Engine&& engine, v1::WatchResponse& event) {
  *event.mutable_engine() = std::move(engine);
}

// That the resource is now as shown.
template <typename Resource>
WatchEvent EventOf(uint64_t revision, Resource shown) {
  auto event = NewEvent(revision);
  SetResource(std::move(shown), *event);
  return event;
}

}  // namespace

void HostState::Tell(const WatchEvent& event) {
  hub_.Publish(event);
  published_.NotifyAll();
}

void HostState::Publish(DiskEntry& entry) {
  entry.revision = NextRevision();
  Tell(EventOf(revision_, Show(entry)));
}

void HostState::Publish(ClusterEntry& entry) {
  entry.revision = NextRevision();
  Tell(EventOf(revision_, Show(entry)));
}

void HostState::Publish(GroupEntry& entry) {
  entry.revision = NextRevision();
  Tell(EventOf(revision_, Show(entry)));
}

void HostState::Publish(ControllerEntry& entry) {
  entry.revision = NextRevision();
  Tell(EventOf(revision_, Show(entry)));
}

void HostState::Publish(AttachmentEntry& entry) {
  entry.revision = NextRevision();
  Tell(EventOf(revision_, Show(entry)));
}

void HostState::Publish(const std::string& id, EngineEntry& entry) {
  entry.revision = NextRevision();
  Tell(EventOf(revision_, Show(id, entry)));
}

void HostState::PublishGone(const std::string& name) {
  auto event = NewEvent(NextRevision());
  event->set_gone(name);
  Tell(event);
}

std::vector<WatchEvent> HostState::Snapshot() const {
  std::vector<WatchEvent> snapshot;
  for (const auto& [id, entry] : engines_) snapshot.push_back(EventOf(entry.revision, Show(id, entry)));
  for (const auto& [id, entry] : clusters_) snapshot.push_back(EventOf(entry.revision, Show(entry)));
  for (const auto& [id, entry] : disks_) snapshot.push_back(EventOf(entry.revision, Show(entry)));
  for (const auto& [id, entry] : groups_) snapshot.push_back(EventOf(entry.revision, Show(entry)));
  for (const auto& [id, entry] : controllers_) {
    snapshot.push_back(EventOf(entry.revision, Show(entry)));
    for (const auto& [attachment_id, attachment] : entry.attachments) {
      snapshot.push_back(EventOf(attachment.revision, Show(attachment)));
    }
  }
  return snapshot;
}

Result<std::shared_ptr<Watcher>> HostState::Watch(uint64_t start_revision) {
  const MutexLock lock(mutex_);
  CLEAT_ASSIGN(auto first, start_revision == 0 ? Result<std::vector<WatchEvent>>(Snapshot())
                                               : hub_.Since(start_revision));
  auto synced = NewEvent(revision_);
  synced->mutable_synced();
  first.push_back(std::move(synced));
  return hub_.Subscribe(std::move(first));
}

// ---- Finding, and telling the reconciler ----

HostState::DiskEntry* HostState::FindDisk(const std::string& id) {
  const auto it = disks_.find(id);
  return it == disks_.end() ? nullptr : &it->second;
}

HostState::ClusterEntry* HostState::FindCluster(const std::string& id) {
  const auto it = clusters_.find(id);
  return it == clusters_.end() ? nullptr : &it->second;
}

HostState::GroupEntry* HostState::FindGroup(const std::string& id) {
  const auto it = groups_.find(id);
  return it == groups_.end() ? nullptr : &it->second;
}

HostState::ControllerEntry* HostState::FindController(const std::string& id) {
  const auto it = controllers_.find(id);
  return it == controllers_.end() ? nullptr : &it->second;
}

HostState::AttachmentEntry* HostState::FindAttachment(const std::string& controller_id,
                                                      const std::string& id) {
  ControllerEntry* controller = FindController(controller_id);
  if (controller == nullptr) return nullptr;
  const auto it = controller->attachments.find(id);
  return it == controller->attachments.end() ? nullptr : &it->second;
}

void HostState::SetWake(std::function<void()> wake) {
  const MutexLock lock(mutex_);
  wake_ = std::move(wake);
}

void HostState::ControllerChanged(const std::string& id) {
  changed_.controllers.insert(id);
  wake_();
}

void HostState::DiskChanged(const std::string& id) {
  changed_.disks.insert(id);
  wake_();
}

void HostState::ClusterChanged(const std::string& id) {
  changed_.clusters.insert(id);
  wake_();
}

void HostState::GroupChanged(const std::string& id) {
  changed_.groups.insert(id);
  wake_();
}

ChangedIntent HostState::TakeChanged() {
  const MutexLock lock(mutex_);
  return std::exchange(changed_, {});
}

}  // namespace cleat::control
