// SPDX-License-Identifier: Apache-2.0
#include "control/state/settings/cluster_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "control/model/names.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

constexpr size_t kNamedMax = 3;  // attachments, in a message

std::string Listed(const std::set<std::string>& attachments) {
  const auto end =
      std::next(attachments.begin(), static_cast<ptrdiff_t>(std::min(attachments.size(), kNamedMax)));
  return fmt::format("{} attachment(s): {}{}", attachments.size(), fmt::join(attachments.begin(), end, ", "),
                     attachments.size() > kNamedMax ? ", ..." : "");
}

std::string EngineNames(const std::set<std::string>& ids) {
  std::vector<std::string> names;
  for (const std::string& id : ids) names.push_back(EngineName(id));
  return fmt::format("{}", fmt::join(names, ", "));
}

// What engines say of full pools, each of those that its own disks are in, without what another one says as well.
std::string FullPools(const std::set<std::string>& told) {
  std::vector<std::string> distinct;
  for (const std::string& one : told) {
    const bool said = std::any_of(told.begin(), told.end(), [&one](const std::string& other) {
      return other != one && other.find(one) != std::string::npos;
    });
    if (!said) distinct.push_back(one);
  }
  return fmt::format("{}", fmt::join(distinct, "; "));
}

// Notes that an engine says so.
void Add(FaultEpisodes& faults, ClusterFault fault, const google::protobuf::Timestamp& since,
         const std::string& engine, const std::string& what) {
  const auto since_s = static_cast<uint64_t>(since.seconds());
  FaultEpisode& episode = faults[fault];
  if (episode.since_s == 0 || since_s < episode.since_s) episode.since_s = since_s;
  episode.what = what;  // the same of all engines
  episode.engines.insert(engine);
}

void AddOf(FaultEpisodes& faults, const std::string& engine, const v1::CephCluster& cluster) {
  if (cluster.has_silent_since())
    Add(faults, ClusterFault::kSilent, cluster.silent_since(), engine, "its monitors do not answer");
  if (cluster.has_full_since())
    Add(faults, ClusterFault::kFull, cluster.full_since(), engine, "it is full, and writes wait:");
  if (cluster.has_paused_since())
    Add(faults, ClusterFault::kPaused, cluster.paused_since(), engine, "its reads or writes are paused");
}

// The faults that hold up what is asked of the cluster, and with it what is shown of its disks.
bool SameHoldingUp(const FaultEpisodes& a, const FaultEpisodes& b) {
  const auto end_of = [](const FaultEpisodes& faults) {
    return faults.lower_bound(ClusterFault::kUnanswered);
  };
  return std::equal(a.begin(), end_of(a), b.begin(), end_of(b));
}

void LogBegin(const std::string& cluster, ClusterFault fault, const FaultEpisode& episode) {
  switch (fault) {
    case ClusterFault::kSilent:
      return spdlog::error("{}: monitors silent: {}; see that they run and can be reached (ceph -s)", cluster,
                           episode.what);
    case ClusterFault::kFull:
      return spdlog::error("{}: full: {}; make room, or raise the pool's quota (ceph df)", cluster,
                           episode.what);
    case ClusterFault::kPaused:
      return spdlog::error("{}: reads or writes paused: its disks wait; 'ceph osd unpause' lets them go on",
                           cluster);
    case ClusterFault::kUnanswered:
      return spdlog::error("{}: disks wait: {}; see to its OSDs (ceph -s)", cluster, episode.what);
    case ClusterFault::kFailing:
      return spdlog::error("{}: disks fail: {}; their messages say why", cluster, episode.what);
  }
}

// `known`: an engine tells of the cluster; without one, all that is known is that nothing is known any more.
void LogEnd(const std::string& cluster, ClusterFault fault, const FaultEpisode& episode, bool known) {
  const uint64_t now_s = SecondsSince1970();
  const uint64_t lasted_s = now_s - std::min(now_s, episode.since_s);
  if (!known) {
    spdlog::info("{}: no engine reaches for it any more: {} when last heard of, {} s ago", cluster,
                 episode.what, lasted_s);
    return;
  }
  switch (fault) {
    case ClusterFault::kSilent:
      return spdlog::info("{}: monitors answer again: after {} s", cluster, lasted_s);
    case ClusterFault::kFull:
      return spdlog::info("{}: full no more: after {} s", cluster, lasted_s);
    case ClusterFault::kPaused:
      return spdlog::info("{}: reads and writes go on: paused for {} s", cluster, lasted_s);
    case ClusterFault::kUnanswered:
      return spdlog::info("{}: disks wait no more: after {} s", cluster, lasted_s);
    case ClusterFault::kFailing:
      return spdlog::info("{}: disks fail no more: after {} s", cluster, lasted_s);
  }
}

}  // namespace

void ClusterFaults::OnEngine(const v1::EngineStatus& before, const v1::EngineStatus& now) {
  std::set<std::string> names;
  for (const v1::EngineStatus* status : {&before, &now}) {
    for (const v1::CephCluster& cluster : status->ceph().clusters()) names.insert(cluster.name());
  }
  for (const std::string& name : names) LookAt(name);
}

void ClusterFaults::LookAt(const std::string& name) {
  const auto id = ParseClusterName(name);
  ClusterEntry* const entry = id.ok() ? core_.tables.clusters.Find(*id) : nullptr;
  if (entry != nullptr) Look(*entry);
}

void ClusterFaults::OnStorage(const AttachmentRow& row, v1::StorageState storage) {
  const std::string& cluster = ClusterOf(core_.tables.DiskOf(row).row.spec);
  if (cluster.empty()) return;
  ClusterEntry& entry = core_.tables.clusters.At(*ParseClusterName(cluster));
  const std::string name = AttachmentName(row.controller, row.id);
  const auto note = [&name](std::set<std::string>& attachments, bool is_so) {
    return is_so ? attachments.insert(name).second : attachments.erase(name) != 0;
  };
  const bool waits = note(entry.unanswered, storage == v1::STORAGE_STATE_NOT_ANSWERING);
  const bool fails = note(entry.failing, storage == v1::STORAGE_STATE_FAILING);
  if (waits || fails) Look(entry);
}

void ClusterFaults::OnAttachment(DiskEntry& disk) {
  const std::string& cluster = ClusterOf(disk.row.spec);
  if (cluster.empty()) return;
  const ClusterEntry& entry = core_.tables.clusters.At(*ParseClusterName(cluster));
  if (!entry.faults.empty()) core_.publisher.Publish(disk);
}

FaultEpisodes ClusterFaults::FaultsOf(const ClusterEntry& entry) const {
  FaultEpisodes faults;
  std::set<std::string> full;
  const std::string name = ClusterName(entry.row.id);
  for (const auto& [id, engine] : core_.tables.engines) {
    for (const v1::CephCluster& cluster : engine.status.ceph().clusters()) {
      if (cluster.name() != name) continue;
      AddOf(faults, id, cluster);
      if (cluster.has_full_since()) full.insert(cluster.full());
    }
  }
  if (const auto silent = faults.find(ClusterFault::kSilent); silent != faults.end())
    silent->second.what += " " + EngineNames(silent->second.engines);
  if (const auto found = faults.find(ClusterFault::kFull); found != faults.end())
    found->second.what += " " + FullPools(full);
  const auto add = [&](ClusterFault fault, const std::set<std::string>& attachments, const char* what) {
    if (attachments.empty()) return;
    const auto known = entry.faults.find(fault);
    const uint64_t since_s = known == entry.faults.end() ? SecondsSince1970() : known->second.since_s;
    faults[fault] = {
        .since_s = since_s, .what = fmt::format("{} {}", what, Listed(attachments)), .engines = {}};
  };
  add(ClusterFault::kUnanswered, entry.unanswered, "its storage does not answer");
  add(ClusterFault::kFailing, entry.failing, "its storage fails requests of");
  return faults;
}

bool ClusterFaults::IsTold(const ClusterEntry& entry) const {
  const std::string name = ClusterName(entry.row.id);
  return std::any_of(core_.tables.engines.begin(), core_.tables.engines.end(), [&name](const auto& engine) {
    const auto& clusters = engine.second.status.ceph().clusters();
    return std::any_of(clusters.begin(), clusters.end(),
                       [&name](const v1::CephCluster& cluster) { return cluster.name() == name; });
  });
}

void ClusterFaults::Look(ClusterEntry& entry) {
  FaultEpisodes faults = FaultsOf(entry);
  const bool told = IsTold(entry);
  if (faults == entry.faults && told == entry.told) return;
  const std::string name = ClusterName(entry.row.id);
  for (const auto& [fault, episode] : faults) {
    if (!entry.faults.contains(fault)) LogBegin(name, fault, episode);
  }
  for (const auto& [fault, episode] : entry.faults) {
    if (!faults.contains(fault)) LogEnd(name, fault, episode, told);
  }
  std::swap(entry.faults, faults);
  entry.told = told;
  core_.publisher.Publish(entry);
  if (!SameHoldingUp(entry.faults, faults)) PublishWaiting(entry);
}

void ClusterFaults::PublishWaiting(const ClusterEntry& entry) {
  for (const std::string& id : entry.disks) {
    DiskEntry& disk = core_.tables.disks.At(id);
    bool waits = core_.propagation.KnownSize(disk) < disk.row.spec.size_bytes();
    for (const auto& [name, use] : disk.attachments) {
      const auto ids = ParseAttachmentName(name);
      AttachmentEntry& attachment = *core_.tables.FindAttachment(ids->controller, ids->id);
      if (!WaitsForStorage(attachment)) continue;
      core_.publisher.Publish(attachment);
      waits = true;
    }
    if (waits) core_.publisher.Publish(disk);
  }
}

}  // namespace cleat::control
