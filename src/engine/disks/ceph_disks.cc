// SPDX-License-Identifier: Apache-2.0
#include "engine/disks/ceph_disks.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "base/clock.h"
#include "modules/rbd/client_pool.h"
#include "modules/rbd/cluster_watch.h"
#include "modules/rbd/rbd.h"
#include "reactor/sync.h"

namespace cleat::engine {
namespace {

constexpr uint64_t kLookEveryNs = kNsPerSecond;
// Threads come and go with clients and their first images; this often they are counted all the same.
constexpr uint32_t kCountEveryLooks = 10;

using Cluster = std::shared_ptr<const modules::ClusterOptions>;

// Without a key.
modules::ClusterOptions OptionsOf(const ClusterSpec& spec, const PathGuard& paths) {
  modules::ClusterOptions options;
  options.conf_opener.open = [&paths](const std::string& path, const std::string& what) {
    return paths.OpenKeys(path, what);
  };
  options.name = spec.name;
  options.monitors = spec.monitors;
  options.conf_file = spec.conf_file;
  options.user = spec.user;
  if (spec.images_per_client != 0) options.images_per_client = spec.images_per_client;
  if (spec.connect_timeout_ms != 0) options.connect_timeout_ns = spec.connect_timeout_ms * kNsPerMs;
  return options;
}

}  // namespace

struct CephDisks::Core {
  struct Known {
    uint64_t revision;
    std::weak_ptr<const modules::ClusterOptions> options;
  };

  Core(const Parts& p, const std::string& engine, std::vector<uint32_t> c)
      : parts(p), cpus(std::move(c)), clients(p.control, engine), watching(p.control) {}

  Task<Result<Cluster>> Find(const std::string& disk, const std::string& name);
  void Watch();
  Task<void> KeepLooking();
  CephReport Look();
  void AskMonitors();
  std::vector<CephClusterReport> ReportClusters();
  modules::ClusterWatch::Now Now() const;

  const Parts parts;
  const std::vector<uint32_t> cpus;
  modules::ClientPool clients;
  // With their keys: made when the first disk needs them, and gone with the last one.
  std::map<std::string, Known> known;
  modules::ClusterWatch cluster_watch;
  std::function<void(const CephReport&)> on_report = [](const CephReport&) {};
  bool looking = false;
  uint32_t threads = 0;
  Gate watching;
  CancelToken ending;
};

CephDisks::CephDisks(const Parts& parts, const std::string& engine, std::vector<uint32_t> cpus)
    : core_(std::make_unique<Core>(parts, engine, std::move(cpus))) {}
CephDisks::~CephDisks() = default;

void CephDisks::SetOnReport(std::function<void(const CephReport&)> on_report) {
  core_->on_report = std::move(on_report);
}

// Off the control reactor where the keyring may read its files again.
Task<Result<Cluster>> CephDisks::Core::Find(const std::string& disk, const std::string& name) {
  std::erase_if(known, [this](const auto& one) { return parts.clusters.Find(one.first) == nullptr; });
  const ClusterSpec* found = parts.clusters.Find(name);
  if (found == nullptr) {
    co_return Error(ErrorCode::kNotFound, disk + ": " + name + " is not known to this engine: put it first");
  }
  const auto before = known.find(name);
  if (before != known.end() && before->second.revision == found->revision) {
    if (Cluster options = before->second.options.lock()) co_return options;
  }
  const ClusterSpec spec = *found;
  auto options = std::make_shared<modules::ClusterOptions>(OptionsOf(spec, parts.paths));
  options->cpus = cpus;
  if (!spec.wrapped_key.empty()) {
    const std::function<Result<keys::Secret>()> unwrap = [this, &spec] {
      return parts.keyring.Unwrap(spec.key_encryption_key, spec.wrapped_key, spec.name,
                                  keys::Wrapping::kPadded);
    };
    auto key = co_await parts.blocking.Run<Result<keys::Secret>>(unwrap);
    if (!key) co_return Error(key.error().code, disk + ": " + key.error().message);
    options->key = modules::ClusterKey(std::move(key).value());
  }
  known[name] = {spec.revision, options};
  co_return Cluster(std::move(options));
}

Task<Result<std::unique_ptr<block::Device>>> CephDisks::Open(const DiskSpec& disk, const RbdBackend& rbd,
                                                             block::AccessMode mode, DiskEvents events) {
  CLEAT_CO_ASSIGN(auto cluster, co_await core_->Find(disk.name, rbd.cluster));
  core_->Watch();
  block::DiskShape shape(disk.name, disk.size_bytes, disk.logical_block_bytes, disk.physical_block_bytes);
  modules::RbdOptions options(std::move(shape), std::move(cluster), rbd.pool, rbd.image, mode);
  options.name_space = rbd.name_space;
  options.snapshot = rbd.snapshot;
  options.image_bytes_min = rbd.image_bytes;
  options.events.resized = [grew = std::move(events.grew), block_bytes = disk.logical_block_bytes,
                            name = disk.name](uint64_t size_bytes) {
    spdlog::info("{}: image's size changed: {} bytes", name, size_bytes);
    if (grew) grew(size_bytes - size_bytes % block_bytes);
  };
  options.events.fenced = std::move(events.fenced);
  const uint64_t began_ns = core_->parts.control.now_ns();
  auto opened = co_await modules::OpenRbd(std::move(options), core_->clients);
  const Status status = opened ? Status(Ok{}) : Status(opened.error());
  core_->cluster_watch.Opened(rbd.cluster, status, began_ns, core_->Now());
  co_return opened;
}

// ---- What is told of the connections

void CephDisks::Core::Watch() {
  if (looking || !watching.TryEnter()) return;
  looking = true;
  Spawn(KeepLooking());
}

modules::ClusterWatch::Now CephDisks::Core::Now() const {
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
  return {
      .ns = parts.control.now_ns(),
      .unix_s = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(unix_time).count())};
}

// A cluster is asked once in a few seconds, however many clients it has.
void CephDisks::Core::AskMonitors() {
  for (const std::string& cluster : cluster_watch.Due(Now())) {
    const std::shared_ptr<modules::RadosClient> client = clients.FindConnected(cluster);
    if (client == nullptr) continue;
    const bool asked = client->AskHealth([this, cluster](const Result<modules::ClusterHealth>& answer) {
      cluster_watch.Answered(cluster, answer, Now());
    });
    if (asked) cluster_watch.Asked(cluster, Now());
  }
}

std::vector<CephClusterReport> CephDisks::Core::ReportClusters() {
  std::vector<CephClusterReport> reports;
  for (modules::ClusterCondition& condition : cluster_watch.Report(Now())) {
    reports.push_back({std::move(condition.cluster), condition.silent_since_s, condition.full_since_s,
                       condition.full.substr(0, kCephFullBytesMax), condition.paused_since_s});
  }
  return reports;
}

CephReport CephDisks::Core::Look() {
  CephReport report;
  std::vector<modules::RadosClientStatus> statuses = clients.status();
  cluster_watch.Look(statuses, Now());
  report.clusters = ReportClusters();
  for (modules::RadosClientStatus& client : statuses) {
    const uint64_t busy_ns = client.busy_ns < kCephBusyNsMin ? 0 : client.busy_ns;
    report.clients.push_back(
        {std::move(client.cluster), std::move(client.id), client.images, busy_ns, client.blocklisted});
  }
  report.clients_total = static_cast<uint32_t>(report.clients.size());
  std::stable_sort(report.clients.begin(), report.clients.end(), [](const auto& a, const auto& b) {
    return std::pair(a.busy_ns, a.blocklisted) > std::pair(b.busy_ns, b.blocklisted);
  });
  if (report.clients.size() > kCephClientsMax) report.clients.resize(kCephClientsMax);
  if (report.clients_total > 0) report.threads = threads;
  return report;
}

Task<void> CephDisks::Core::KeepLooking() {
  CephReport told;
  const std::function<uint32_t()> count = [] { return modules::CountCephThreads(); };
  for (uint32_t looks = 0; !ending.cancelled(); ++looks) {
    co_await parts.control.SleepFor(kLookEveryNs, &ending);
    CephReport report = Look();
    AskMonitors();
    if (report != told || looks % kCountEveryLooks == 0) {
      threads = co_await parts.blocking.Run<uint32_t>(count);
      report = Look();
    }
    if (report != told) {
      told = report;
      on_report(report);
    }
    if (report.clients_total == 0 && cluster_watch.empty()) break;
  }
  looking = false;
  watching.Leave();
}

Task<bool> CephDisks::End(uint64_t wait_ns) {
  core_->ending.Cancel();
  co_await core_->watching.Close();
  co_return co_await core_->clients.End(wait_ns);
}

}  // namespace cleat::engine
