// SPDX-License-Identifier: Apache-2.0
// Ceph clusters. cleatd never speaks to one: it keeps how they are reached, and tells the engines that have disks of them.
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

void HostState::FillClusters(std::vector<ClusterRow> rows) {
  for (ClusterRow& row : rows) {
    const std::string id = row.id;
    ClusterEntry entry{.row = std::move(row), .disks = {}, .engines = {}, .revision = revision_ + 1};
    clusters_.emplace(id, std::move(entry));
  }
}

Result<v1::Cluster> HostState::CreateCluster(const v1::CreateClusterRequest& request) {
  const std::string& id = request.cluster_id();
  CLEAT_TRY(CheckId("cluster_id", id));
  const std::string name = ClusterName(id);
  v1::ClusterSpec asked = request.cluster().spec();
  const auto key = TakeKey(id, &asked);
  CLEAT_TRY(key);
  CLEAT_ASSIGN(auto spec, CompleteClusterSpec(id, std::move(asked)));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.cluster().labels()));
  if (*key) {
    CLEAT_TRY(PutKey(id, **key, &spec));
  }
  const Status path = CheckConfFile(name, spec);

  const MutexLock lock(mutex_);
  if (const ClusterEntry* existing = FindCluster(id)) {
    const v1::ClusterSpec present = WithoutKey(existing->row.spec);
    const v1::ClusterSpec wanted = WithoutKey(spec);
    if (!SameSpec(present, wanted)) return TakenByOther(name, present, wanted);
    CLEAT_ASSIGN(const auto same_key, HasKey(existing->row, *key));
    if (!same_key) {
      return RefuseFor(name, v1::REASON_CONTENT_DIFFERS,
                       fmt::format("{} exists with another key: choose another id, or update it", name),
                       {{"difference", "key"}});
    }
    if (existing->row.labels != labels) return TakenByOtherLabels(name);
    return Show(*existing);
  }
  CLEAT_TRY(path);
  CLEAT_TRY(CheckClusterKey(name, spec));
  if (clusters_.size() >= kClustersMax) {
    return RefuseFor(
        name, v1::REASON_TOO_MANY_RESOURCES,
        fmt::format("{}: there are {} clusters, which is the most: delete one", name, kClustersMax),
        {{"limit", std::to_string(kClustersMax)}});
  }
  ClusterEntry entry;
  entry.row.id = id;
  entry.row.spec = std::move(spec);
  entry.row.labels = std::move(labels);
  entry.row.revision = entry.row.intent_revision = entry.row.spec_revision = NextRevision();
  CLEAT_TRY(store_.Put(entry.row));
  ClusterEntry& kept = clusters_.emplace(id, std::move(entry)).first->second;
  Publish(kept);
  spdlog::info("{}: created", name);
  return Show(kept);
}

Status HostState::CheckConfFile(const std::string& name, const v1::ClusterSpec& spec) const {
  if (spec.conf_file().empty()) return Ok{};
  return paths_->CheckKeys(spec.conf_file(), fmt::format("{}: conf_file '{}'", name, spec.conf_file()));
}

Result<v1::Cluster> HostState::GetCluster(const v1::GetClusterRequest& request) {
  CLEAT_ASSIGN(auto id, ParseClusterName(request.name()));
  const MutexLock lock(mutex_);
  const ClusterEntry* entry = FindCluster(id);
  if (entry == nullptr) return NotThere(request.name());
  return Show(*entry);
}

Result<v1::ListClustersResponse> HostState::ListClusters(const v1::ListClustersRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListClustersResponse response;
  const MutexLock lock(mutex_);
  for (auto it = clusters_.upper_bound(request.page_token()); it != clusters_.end(); ++it) {
    v1::Cluster cluster = Show(it->second);
    if (!page.Take(cluster.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_clusters() = std::move(cluster);
  }
  return response;
}

Result<v1::DeleteClusterResponse> HostState::DeleteCluster(const v1::DeleteClusterRequest& request) {
  CLEAT_ASSIGN(auto id, ParseClusterName(request.name()));
  const std::string& name = request.name();
  const MutexLock lock(mutex_);
  ClusterEntry* entry = FindCluster(id);
  if (entry == nullptr) return v1::DeleteClusterResponse();
  CLEAT_TRY(CheckEtag(name, request.etag(), entry->row.intent_revision));
  if (!entry->disks.empty()) {
    const std::string& disk = *entry->disks.begin();
    return RefuseFor(
        name, v1::REASON_CLUSTER_IN_USE,
        fmt::format("{} has {} disk(s), {} among them: delete them first (cleatctl disk delete {})", name,
                    entry->disks.size(), DiskName(disk), disk),
        {{"conflict", DiskName(disk)}});
  }
  if (request.spare_key() && entry->row.spec.has_wrapped_key()) {
    return RefuseFor(
        name, v1::REASON_KEY_NOT_KEPT,
        fmt::format("{} has a key that cleatd keeps, wrapped, and no file of this host: it would be "
                    "destroyed. To make the cluster again takes it anew (ceph auth get-key)",
                    name));
  }
  CLEAT_TRY(store_.EraseCluster(id));
  clusters_.erase(id);
  PublishGone(name);
  ClusterChanged(id);
  spdlog::info("{}: deleted", name);
  return v1::DeleteClusterResponse();
}

v1::Cluster HostState::Show(const ClusterEntry& entry) const {
  v1::Cluster cluster;
  cluster.set_name(ClusterName(entry.row.id));
  *cluster.mutable_spec() = entry.row.spec;
  if (cluster.spec().has_wrapped_key()) cluster.mutable_spec()->mutable_wrapped_key()->clear_data();
  cluster.mutable_status()->set_disks(static_cast<uint32_t>(entry.disks.size()));
  cluster.mutable_status()->set_message(BehindSpec(entry));
  AddNote(WhyUnlisted(entry.row), *cluster.mutable_status()->mutable_message());
  cluster.set_revision(entry.revision);
  cluster.set_etag(EtagOf(entry.row.intent_revision));
  cluster.mutable_labels()->insert(entry.row.labels.begin(), entry.row.labels.end());
  return cluster;
}

Status HostState::CheckClusterOf(const std::string& disk_id, const v1::DiskSpec& spec) {
  const std::string& cluster = ClusterOf(spec);
  if (cluster.empty()) return Ok{};
  if (FindCluster(*ParseClusterName(cluster)) != nullptr) return Ok{};
  return RefuseFor(cluster, v1::REASON_RESOURCE_NOT_FOUND,
                   fmt::format("{}: {} does not exist: create it first (cleatctl cluster create)",
                               DiskName(disk_id), cluster));
}

void HostState::JoinCluster(const DiskRow& row) {
  const std::string& name = ClusterOf(row.spec);
  if (name.empty()) return;
  ClusterEntry& cluster = *FindCluster(*ParseClusterName(name));
  cluster.disks.insert(row.id);
  Publish(cluster);
}

void HostState::LeaveCluster(const DiskRow& row) {
  const std::string& name = ClusterOf(row.spec);
  if (name.empty()) return;
  ClusterEntry& cluster = *FindCluster(*ParseClusterName(name));
  cluster.disks.erase(row.id);
  Publish(cluster);
}

std::set<std::string> HostState::EnginesOf(const ClusterEntry& entry, Which which) const {
  std::set<std::string> engines;
  for (const std::string& id : entry.disks) {
    const auto disk = disks_.find(id);
    if (disk == disks_.end()) continue;
    for (const auto& [name, use] : disk->second.attachments) {
      if (use.detaching) continue;
      const auto controller = controllers_.find(ParseAttachmentName(name)->controller);
      if (controller == controllers_.end() || controller->second.row.engine.empty()) continue;
      engines.insert(controller->second.row.engine);
      if (which == Which::kStandingByToo) engines.merge(PreparedOn(controller->second));
    }
  }
  return engines;
}

std::string HostState::BehindSpec(const ClusterEntry& entry) const {
  std::string behind;
  for (const std::string& engine : EnginesOf(entry, Which::kServing)) {
    const auto report = entry.engines.find(engine);
    const bool there = report != entry.engines.end();
    if (there && report->second.spec_revision >= entry.row.spec_revision) continue;
    behind += fmt::format("{}{} does not know the present spec yet", behind.empty() ? "" : "; ",
                          EngineName(engine));
    if (there && !report->second.message.empty()) behind += fmt::format(" ({})", report->second.message);
  }
  return behind;
}

// ---- The reconciler's side ----

std::optional<ClusterRow> HostState::ClusterById(const std::string& id) {
  const MutexLock lock(mutex_);
  const ClusterEntry* entry = FindCluster(id);
  return entry == nullptr ? std::nullopt : std::optional(entry->row);
}

bool HostState::UsesCluster(const std::string& engine, const std::string& cluster_id) {
  const MutexLock lock(mutex_);
  const ClusterEntry* entry = FindCluster(cluster_id);
  return entry != nullptr && EnginesOf(*entry, Which::kStandingByToo).contains(engine);
}

std::vector<std::string> HostState::ClustersOn(const std::string& engine) {
  const MutexLock lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : clusters_) {
    if (EnginesOf(entry, Which::kStandingByToo).contains(engine)) ids.push_back(id);
  }
  return ids;
}

std::vector<std::string> HostState::ControllersOfCluster(const std::string& cluster_id) {
  const MutexLock lock(mutex_);
  std::set<std::string> ids;
  if (const ClusterEntry* entry = FindCluster(cluster_id)) {
    for (const std::string& disk : entry->disks) {
      for (const auto& [name, use] : FindDisk(disk)->attachments)
        ids.insert(ParseAttachmentName(name)->controller);
    }
  }
  return {ids.begin(), ids.end()};
}

}  // namespace cleat::control
