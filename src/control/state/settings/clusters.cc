// SPDX-License-Identifier: Apache-2.0
#include "control/state/settings/clusters.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/model/page.h"
#include "control/state/settings/adopt_report.h"
#include "control/state/writes/update_mask.h"
#include "control/validate/backends.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

// Among the names of a new cluster's write: the clusters that are there are counted.
constexpr char kCount[] = "number of clusters";

}  // namespace

void Clusters::Fill(std::vector<ClusterRow> rows) {
  for (ClusterRow& row : rows) {
    const std::string id = row.id;
    core_.tables.clusters.Insert(
        id, {.row = std::move(row), .disks = {}, .engines = {}, .revision = core_.publisher.newest() + 1});
  }
}

Result<v1::Cluster> Clusters::Create(const v1::CreateClusterRequest& request) {
  const std::string& id = request.cluster_id();
  CLEAT_TRY(CheckId("cluster_id", id));
  const std::string name = ClusterName(id);
  v1::ClusterSpec asked = request.cluster().spec();
  const auto key = keys_.ExtractKey(id, &asked);
  CLEAT_TRY(key);
  CLEAT_ASSIGN(auto spec, CompleteClusterSpec(id, std::move(asked)));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.cluster().labels()));
  const Status path = CheckConfFile(name, spec);

  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name, kCount}};
  core_.writes.Await(names);
  CLEAT_ASSIGN(const auto existing, CheckExisting(id, spec, *key));
  if (existing != nullptr) {
    if (existing->row.labels != labels) return AlreadyExistsWithOtherLabels(name);
    return core_.view.Show(*existing);
  }
  CLEAT_TRY(path);
  // Now, since the key-encryption key may have changed while others were awaited.
  if (*key) {
    CLEAT_TRY(keys_.SetWrappedKey(id, **key, &spec));
  }
  CLEAT_TRY(CheckClusterKey(name, spec));
  if (core_.tables.clusters.size() >= kClustersMax) {
    return RefuseFor(
        name, v1::REASON_TOO_MANY_RESOURCES,
        fmt::format("{}: there are {} clusters, which is the most: delete one", name, kClustersMax),
        {{"limit", std::to_string(kClustersMax)}});
  }
  ClusterEntry entry;
  entry.row.id = id;
  entry.row.spec = std::move(spec);
  entry.row.labels = std::move(labels);
  entry.row.revision = entry.row.intent_revision = entry.row.spec_revision = core_.publisher.NextRevision();
  CLEAT_TRY(core_.writes.Write(names, {entry.row}));
  ClusterEntry& kept = core_.tables.clusters.Insert(id, std::move(entry));
  core_.publisher.Publish(kept);
  spdlog::info("{}: created", name);
  return core_.view.Show(kept);
}

Result<const ClusterEntry*> Clusters::CheckExisting(const std::string& id, const v1::ClusterSpec& spec,
                                                    const std::optional<keys::Secret>& key) const {
  const ClusterEntry* const existing = core_.tables.clusters.Find(id);
  if (existing == nullptr) return existing;
  const std::string name = ClusterName(id);
  const v1::ClusterSpec present = WithoutKey(existing->row.spec);
  const v1::ClusterSpec wanted = WithoutKey(spec);
  if (!SameSpec(present, wanted)) return AlreadyExists(name, present, wanted);
  CLEAT_ASSIGN(const auto same_key, keys_.HasKey(existing->row, key));
  if (same_key) return existing;
  return RefuseFor(name, v1::REASON_CONTENT_DIFFERS,
                   fmt::format("{} exists with another key: choose another id, or update it", name),
                   {{"difference", "key"}});
}

Status Clusters::CheckConfFile(const std::string& name, const v1::ClusterSpec& spec) const {
  if (spec.conf_file().empty()) return Ok{};
  return core_.paths->CheckKeys(spec.conf_file(), fmt::format("{}: conf_file '{}'", name, spec.conf_file()));
}

Result<v1::Cluster> Clusters::Get(const v1::GetClusterRequest& request) {
  CLEAT_ASSIGN(auto id, ParseClusterName(request.name()));
  const StateLock lock(core_.mutex);
  const ClusterEntry* entry = core_.tables.clusters.Find(id);
  if (entry == nullptr) return NotFound(request.name());
  return core_.view.Show(*entry);
}

Result<v1::ListClustersResponse> Clusters::List(const v1::ListClustersRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListClustersResponse response;
  const StateLock lock(core_.mutex);
  for (auto it = core_.tables.clusters.After(request.page_token()); it != core_.tables.clusters.end(); ++it) {
    v1::Cluster cluster = core_.view.Show(it->second);
    if (!page.Take(cluster.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_clusters() = std::move(cluster);
  }
  return response;
}

std::map<std::string, v1::ClusterState> Clusters::States() {
  std::map<std::string, v1::ClusterState> states;
  const StateLock lock(core_.mutex);
  for (const auto& [id, entry] : core_.tables.clusters) states[id] = StateOf(entry);
  return states;
}

Result<v1::Cluster> Clusters::Update(const v1::UpdateClusterRequest& request) {
  const std::string& name = request.cluster().name();
  CLEAT_ASSIGN(auto id, ParseClusterName(name));
  const auto& mask = request.update_mask();
  CLEAT_TRY(CheckMask(name, mask, {kSpecPath, kLabelsPath}));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.cluster().labels()));
  const bool respecified = Names(mask, kSpecPath);
  v1::ClusterSpec spec = request.cluster().spec();
  CLEAT_ASSIGN(const auto key, keys_.ExtractKey(id, &spec));
  if (respecified) {
    CLEAT_ASSIGN(spec, CompleteClusterSpec(id, std::move(spec)));
  }
  const Status path = CheckConfFile(name, spec);

  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name}};
  core_.writes.Await(names);
  ClusterEntry* entry = core_.tables.clusters.Find(id);
  if (entry == nullptr) return NotFound(name);
  CLEAT_TRY(CheckEtag(name, request.cluster().etag(), entry->row.intent_revision));
  ClusterRow row = entry->row;
  if (respecified) {
    // As Create does.
    if (key) {
      CLEAT_TRY(keys_.SetWrappedKey(id, *key, &spec));
    }
    CLEAT_ASSIGN(const auto same_key, keys_.HasKey(row, key));
    if (same_key && row.spec.has_wrapped_key()) *spec.mutable_wrapped_key() = row.spec.wrapped_key();
    CLEAT_TRY(CheckClusterKey(name, spec));
    if (!path.ok() && spec.conf_file() != row.spec.conf_file()) return path.error();
  }
  const bool changed = respecified && !SameSpec(spec, row.spec);
  const bool labelled = Names(mask, kLabelsPath) && labels != row.labels;
  if (!changed && !labelled) return core_.view.Show(*entry);
  row.intent_revision = core_.publisher.NextRevision();
  if (labelled) row.labels = std::move(labels);
  if (changed) {
    row.spec = std::move(spec);
    row.spec_revision = row.intent_revision;
  }
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  core_.publisher.Publish(*entry);
  if (changed) {
    core_.publisher.ClusterChanged(id);
    spdlog::info("{}: settings changed; new connections use them", name);
  }
  return core_.view.Show(*entry);
}

Result<v1::DeleteClusterResponse> Clusters::Delete(const v1::DeleteClusterRequest& request) {
  CLEAT_ASSIGN(auto id, ParseClusterName(request.name()));
  const std::string& name = request.name();
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name}};
  core_.writes.Await(names);
  const ClusterEntry* entry = core_.tables.clusters.Find(id);
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
  CLEAT_TRY(core_.writes.Write(names, {EraseClusterRow{id}}));
  core_.tables.clusters.Erase(id);
  core_.publisher.PublishGone(name);
  core_.publisher.ClusterChanged(id);
  spdlog::info("{}: deleted", name);
  return v1::DeleteClusterResponse();
}

// ---- Keys

Result<bool> Clusters::IsSameKey(const std::string& cluster_id, const v1::ClusterSpec& spec) {
  v1::ClusterSpec asked = spec;
  CLEAT_ASSIGN(const auto key, keys_.ExtractKey(cluster_id, &asked));
  const StateLock lock(core_.mutex);
  const ClusterEntry* entry = core_.tables.clusters.Find(cluster_id);
  return entry == nullptr ? Result<bool>(true) : keys_.HasKey(entry->row, key);
}

Status Clusters::RewrapKeys() {
  const StateLock lock(core_.mutex);
  // A cluster that is being created may have its key under the former key-encryption key; after the wait it is in the table.
  core_.writes.Await({.changes = {kCount}});
  std::vector<std::string> ids;
  for (const auto& [id, entry] : core_.tables.clusters) ids.push_back(id);
  for (const std::string& id : ids) {
    CLEAT_TRY(RewrapKey(id));
  }
  return Ok{};
}

Status Clusters::RewrapKey(const std::string& id) {
  const WriteNames names{.changes = {ClusterName(id)}};
  core_.writes.Await(names);
  ClusterEntry* const entry = core_.tables.clusters.Find(id);
  if (entry == nullptr) return Ok{};
  ClusterRow row = entry->row;
  if (!keys_.Rewrap(row)) return Ok{};
  row.spec_revision = core_.publisher.NextRevision();
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  core_.publisher.Publish(*entry);
  core_.publisher.ClusterChanged(id);
  spdlog::info("{}: key wrapped anew: under key-encryption key {}", ClusterName(id),
               keys_.keyring()->current_id());
  return Ok{};
}

// ---- For disks

Status Clusters::CheckClusterOf(const std::string& disk_id, const v1::DiskSpec& spec) {
  const std::string& cluster = ClusterOf(spec);
  if (cluster.empty()) return Ok{};
  if (core_.tables.clusters.Find(*ParseClusterName(cluster)) != nullptr) return Ok{};
  return RefuseFor(cluster, v1::REASON_RESOURCE_NOT_FOUND,
                   fmt::format("{}: {} does not exist: create it first (cleatctl cluster create)",
                               DiskName(disk_id), cluster));
}

Status Clusters::Fill(const DiskRow& row) {
  if (!IsInCluster(row.spec)) return Ok{};
  const std::string& name = ClusterOf(row.spec);
  const auto cluster = ParseClusterName(name);
  if (!cluster.ok() || !core_.tables.clusters.Has(*cluster)) {
    return Refuse(v1::REASON_STORE_DAMAGED,
                  fmt::format("store: {} is there, but not its cluster {}", DiskName(row.id), name));
  }
  core_.tables.clusters.At(*cluster).disks.insert(row.id);
  return Ok{};
}

void Clusters::Join(const DiskRow& row) {
  const std::string& name = ClusterOf(row.spec);
  if (name.empty()) return;
  ClusterEntry& cluster = core_.tables.clusters.At(*ParseClusterName(name));
  cluster.disks.insert(row.id);
  core_.publisher.Publish(cluster);
}

void Clusters::Leave(const DiskRow& row) {
  const std::string& name = ClusterOf(row.spec);
  if (name.empty()) return;
  ClusterEntry& cluster = core_.tables.clusters.At(*ParseClusterName(name));
  cluster.disks.erase(row.id);
  core_.publisher.Publish(cluster);
}

// ---- The reconciler's side

std::optional<ClusterRow> Clusters::Row(const std::string& id) {
  const StateLock lock(core_.mutex);
  const ClusterEntry* entry = core_.tables.clusters.Find(id);
  return entry == nullptr ? std::nullopt : std::optional(entry->row);
}

bool Clusters::IsUsedOn(const std::string& engine, const std::string& cluster_id) {
  const StateLock lock(core_.mutex);
  const ClusterEntry* entry = core_.tables.clusters.Find(cluster_id);
  return entry != nullptr &&
         core_.propagation.EnginesOf(*entry, Propagation::Which::kStandingByToo).contains(engine);
}

std::vector<std::string> Clusters::On(const std::string& engine) {
  const StateLock lock(core_.mutex);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : core_.tables.clusters) {
    if (core_.propagation.EnginesOf(entry, Propagation::Which::kStandingByToo).contains(engine))
      ids.push_back(id);
  }
  return ids;
}

std::vector<std::string> Clusters::Controllers(const std::string& cluster_id) {
  const StateLock lock(core_.mutex);
  std::set<std::string> ids;
  if (const ClusterEntry* entry = core_.tables.clusters.Find(cluster_id)) {
    for (const std::string& disk : entry->disks) {
      for (const auto& [name, use] : core_.tables.disks.At(disk).attachments)
        ids.insert(ParseAttachmentName(name)->controller);
    }
  }
  return {ids.begin(), ids.end()};
}

void Clusters::Report(const std::string& engine, const std::string& id,
                      const std::optional<ClusterReport>& report) {
  const StateLock lock(core_.mutex);
  ClusterEntry* const entry = core_.tables.clusters.Find(id);
  if (entry != nullptr && AdoptReport(entry->engines, engine, report)) core_.publisher.Publish(*entry);
}

}  // namespace cleat::control
