// SPDX-License-Identifier: Apache-2.0
#include "control/observe/metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/version.h"
#include "observe/histogram.h"
#include "stats/disk_stats.h"

namespace cleat::control {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using MetricLabels = std::vector<ClientMetric::Label>;

constexpr uint64_t kFirstEndNs = kNsPerUs;
constexpr uint64_t kLastEndNs = 10 * kNsPerSecond;

double Seconds(double ns) {
  return ns / static_cast<double>(kNsPerSecond);
}

std::string IdOf(std::string_view name) {
  return std::string(name.substr(name.find_last_of('/') + 1));
}

MetricFamily Family(const char* name, MetricType type, const char* help) {
  return {.name = name, .help = help, .type = type, .metric = {}};
}

void Add(MetricFamily& family, MetricLabels labels, double value) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  if (family.type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

MetricLabels With(MetricLabels labels, const char* name, const std::string& value) {
  labels.push_back({name, value});
  return labels;
}

void AddHistogram(MetricFamily& family, MetricLabels labels, const observe::Histogram& histogram) {
  static const std::vector<uint64_t> kEndsNs = HistogramEndsNs();
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  metric.histogram.sample_count = histogram.count();
  metric.histogram.sample_sum = Seconds(histogram.SumNs());
  for (const uint64_t end_ns : kEndsNs) {
    metric.histogram.bucket.push_back({.cumulative_count = histogram.CountUpTo(end_ns),
                                       .upper_bound = Seconds(static_cast<double>(end_ns))});
  }
}

// Families without a series are left out.
void MoveFilled(std::initializer_list<MetricFamily*> from, std::vector<MetricFamily>& to) {
  for (MetricFamily* family : from) {
    if (!family->metric.empty()) to.push_back(std::move(*family));
  }
}

// All that is told of disks.
struct DiskFamilies {
  MetricFamily operations = Family("cleat_disk_operations_total", MetricType::Counter,
                                   "Requests of the guest that were answered, with those that failed");
  MetricFamily bytes =
      Family("cleat_disk_bytes_total", MetricType::Counter, "Data of requests, without those that failed");
  MetricFamily errors = Family("cleat_disk_errors_total", MetricType::Counter, "Requests that failed");
  MetricFamily in_flight =
      Family("cleat_disk_in_flight", MetricType::Gauge,
             "Requests in flight at the engine's last look, a quarter of a second ago at most");
  MetricFamily oldest = Family("cleat_disk_oldest_request_seconds", MetricType::Gauge,
                               "Age of the oldest one of those; 0: none");
  MetricFamily stages = Family("cleat_disk_stage_seconds", MetricType::Histogram,
                               "How long requests took from the stage before to this one; total: all of it");
  uint64_t without_histograms = 0;

  void Add(const observe::SegmentReader& reader, const stats::DiskSeen& disk, bool histograms);
  bool AddStages(const observe::SegmentReader& reader, const stats::DiskSeen& disk,
                 const MetricLabels& labels);
};

void DiskFamilies::Add(const observe::SegmentReader& reader, const stats::DiskSeen& disk, bool histograms) {
  const MetricLabels labels{{"engine", reader.engine()},
                            {"controller", IdOf(disk.controller)},
                            {"target", std::to_string(disk.target)},
                            {"disk", IdOf(disk.disk)}};
  for (size_t op = 0; op < disk.ops.size(); ++op) {
    const observe::OpCount& count = disk.ops[op];
    const std::string& name = reader.op_names()[op];
    // Rates need to see where these begin; the others are rare, and many.
    if (count.requests == 0 && name != "read" && name != "write") continue;
    const MetricLabels with_op = With(labels, "op", name);
    control::Add(operations, with_op, static_cast<double>(count.requests));
    control::Add(bytes, with_op, static_cast<double>(count.bytes));
    control::Add(errors, with_op, static_cast<double>(count.errors));
  }
  control::Add(in_flight, labels, static_cast<double>(disk.in_flight));
  control::Add(oldest, labels, Seconds(static_cast<double>(disk.age_ns)));
  if (histograms && !AddStages(reader, disk, labels)) ++without_histograms;
}

bool DiskFamilies::AddStages(const observe::SegmentReader& reader, const stats::DiskSeen& disk,
                             const MetricLabels& labels) {
  if (stages.metric.size() >= Metrics::kHistogramsMax) return false;
  const auto histograms = stats::HistogramsOf(reader, disk);
  for (size_t op = 0; op < histograms.size(); ++op) {
    for (size_t stage = 0; stage < histograms[op].size(); ++stage) {
      if (histograms[op][stage].count() == 0) continue;
      AddHistogram(stages,
                   With(With(labels, "op", reader.op_names()[op]), "stage", reader.stage_names()[stage]),
                   histograms[op][stage]);
    }
  }
  return true;
}

// What is told of an engine's connections to Ceph: for each cluster, since connections come and go.
struct CephFamilies {
  MetricFamily threads =
      Family("cleat_ceph_threads", MetricType::Gauge, "Threads of Ceph's libraries in the engine");
  MetricFamily unlisted = Family("cleat_ceph_clients_unlisted", MetricType::Gauge,
                                 "Clients that the engine did not report one by one: the others count below");
  MetricFamily clients =
      Family("cleat_ceph_clients", MetricType::Gauge, "Clients: connections that images share");
  MetricFamily images =
      Family("cleat_ceph_images", MetricType::Gauge, "Images that are open, or being opened or closed");
  MetricFamily blocklisted =
      Family("cleat_ceph_clients_blocklisted", MetricType::Gauge,
             "Clients that were shut out: their disks fail until they are attached again");
  MetricFamily busy =
      Family("cleat_ceph_clients_busy", MetricType::Gauge,
             "Clients whose thread has been at the same call to the cluster for a second or more");
  MetricFamily longest = Family("cleat_ceph_busy_seconds", MetricType::Gauge,
                                "How long the longest of these has been waiting for the cluster; 0: none");

  void Add(const std::string& engine, const v1::CephStatus& status);
};

struct CephClusterUse {
  uint64_t clients = 0;
  uint64_t images = 0;
  uint64_t blocklisted = 0;
  uint64_t busy = 0;
  double longest_seconds = 0;
};

void CephFamilies::Add(const std::string& engine, const v1::CephStatus& status) {
  std::map<std::string, CephClusterUse> clusters;
  for (const v1::CephClient& client : status.clients()) {
    CephClusterUse& use = clusters[client.cluster()];
    ++use.clients;
    use.images += client.images();
    use.blocklisted += client.blocklisted() ? 1 : 0;
    use.busy += client.has_busy() ? 1 : 0;
    const double seconds = static_cast<double>(client.busy().seconds()) +
                           static_cast<double>(client.busy().nanos()) / static_cast<double>(kNsPerSecond);
    use.longest_seconds = std::max(use.longest_seconds, seconds);
  }
  const MetricLabels of_engine{{"engine", engine}};
  const auto listed = static_cast<uint32_t>(status.clients_size());
  control::Add(threads, of_engine, status.threads());
  control::Add(unlisted, of_engine, status.clients_total() - std::min(listed, status.clients_total()));
  for (const auto& [name, use] : clusters) {
    const MetricLabels labels = With(of_engine, "cluster", IdOf(name));
    control::Add(clients, labels, static_cast<double>(use.clients));
    control::Add(images, labels, static_cast<double>(use.images));
    control::Add(blocklisted, labels, static_cast<double>(use.blocklisted));
    control::Add(busy, labels, static_cast<double>(use.busy));
    control::Add(longest, labels, use.longest_seconds);
  }
}

void AddCeph(std::vector<MetricFamily>& families, const v1::ListEnginesResponse& engines) {
  CephFamilies ceph;
  for (const v1::Engine& engine : engines.engines()) {
    if (engine.status().has_ceph()) ceph.Add(IdOf(engine.name()), engine.status().ceph());
  }
  MoveFilled({&ceph.threads, &ceph.unlisted, &ceph.clients, &ceph.images, &ceph.blocklisted, &ceph.busy,
              &ceph.longest},
             families);
}

// The state of each cluster as all engines together see it; a cluster that no engine reaches for has no series.
void AddClusters(std::vector<MetricFamily>& families,
                 const std::map<std::string, v1::ClusterState>& clusters) {
  MetricFamily silent =
      Family("cleat_cluster_not_answering", MetricType::Gauge,
             "Whether the Ceph cluster's monitors or the storage of its disks do not answer");
  MetricFamily full = Family("cleat_cluster_full", MetricType::Gauge,
                             "Whether pools of the Ceph cluster are full, so that writes to disks wait");
  MetricFamily failing = Family("cleat_cluster_failing", MetricType::Gauge,
                                "Whether the Ceph cluster answers requests of its disks with errors");
  for (const auto& [id, state] : clusters) {
    if (state == v1::CLUSTER_STATE_UNSPECIFIED) continue;
    const MetricLabels labels{{"cluster", id}};
    Add(silent, labels, state == v1::CLUSTER_STATE_NOT_ANSWERING ? 1 : 0);
    Add(full, labels, state == v1::CLUSTER_STATE_FULL ? 1 : 0);
    Add(failing, labels, state == v1::CLUSTER_STATE_FAILING ? 1 : 0);
  }
  MoveFilled({&silent, &full, &failing}, families);
}

// What pools' drives say of their condition. There is no series of what a drive does not report, or can't be asked.
struct DriveFamilies {
  MetricFamily known = Family("cleat_pool_health_known", MetricType::Gauge,
                              "Whether cleatd gets the SMART log of the pool's drive");
  MetricFamily warnings =
      Family("cleat_pool_warnings", MetricType::Gauge, "Critical warnings of the pool's drive");
  MetricFamily wear = Family("cleat_pool_wear_ratio", MetricType::Gauge,
                             "Endurance of the pool's drive that is used up; may go beyond 1");
  MetricFamily temperature =
      Family("cleat_pool_temperature_celsius", MetricType::Gauge, "Temperature of the pool's drive");
  MetricFamily spare = Family("cleat_pool_spare_ratio", MetricType::Gauge,
                              "Spare blocks that the pool's drive has left, of those it was made with");
  MetricFamily threshold = Family("cleat_pool_spare_threshold_ratio", MetricType::Gauge,
                                  "Spare below which the maker of the pool's drive gives no promise");
  MetricFamily media_errors =
      Family("cleat_pool_media_errors_total", MetricType::Counter,
             "Errors of its media that the pool's drive could not correct, since it was made");
  MetricFamily written = Family("cleat_pool_written_bytes_total", MetricType::Counter,
                                "Bytes written to the pool's drive since it was made");
  MetricFamily powered = Family("cleat_pool_power_on_seconds_total", MetricType::Counter,
                                "Time that the pool's drive has been on since it was made, in whole hours");
  MetricFamily unsafe_shutdowns =
      Family("cleat_pool_unsafe_shutdowns_total", MetricType::Counter,
             "Times that the pool's drive lost its power without notice since it was made");

  void Add(const MetricLabels& labels, const v1::DriveHealth& health);
};

void DriveFamilies::Add(const MetricLabels& labels, const v1::DriveHealth& health) {
  constexpr double kPercent = 100;
  constexpr double kSecondsOfAnHour = 3600;
  const bool is_known = health.unknown_because().empty();
  control::Add(known, labels, is_known ? 1 : 0);
  if (is_known || !health.warnings().empty()) control::Add(warnings, labels, health.warnings_size());
  const auto add = [&labels](MetricFamily& family, bool has, double value) {
    if (has) control::Add(family, labels, value);
  };
  add(wear, health.has_wear_percent(), health.wear_percent() / kPercent);
  add(temperature, health.has_temperature_celsius(), health.temperature_celsius());
  add(spare, health.has_spare_percent(), health.spare_percent() / kPercent);
  add(threshold, health.has_spare_threshold_percent(), health.spare_threshold_percent() / kPercent);
  add(media_errors, health.has_media_errors(), static_cast<double>(health.media_errors()));
  add(written, health.has_written_bytes(), static_cast<double>(health.written_bytes()));
  add(powered, health.has_power_on_hours(), static_cast<double>(health.power_on_hours()) * kSecondsOfAnHour);
  add(unsafe_shutdowns, health.has_unsafe_shutdowns(), static_cast<double>(health.unsafe_shutdowns()));
}

void AddDrives(std::vector<MetricFamily>& families, const std::vector<v1::Pool>& pools) {
  DriveFamilies drives;
  for (const v1::Pool& pool : pools) {
    if (pool.status().has_health()) drives.Add({{"pool", IdOf(pool.name())}}, pool.status().health());
  }
  MoveFilled(
      {&drives.known, &drives.warnings, &drives.wear, &drives.temperature, &drives.spare, &drives.threshold,
       &drives.media_errors, &drives.written, &drives.powered, &drives.unsafe_shutdowns},
      families);
}

void AddPools(std::vector<MetricFamily>& families, const std::vector<v1::Pool>& pools) {
  MetricFamily ready = Family("cleat_pool_ready", MetricType::Gauge, "Whether the pool's drive can be used");
  MetricFamily bytes = Family("cleat_pool_bytes", MetricType::Gauge, "Bytes of the pool, by what they are");
  MetricFamily largest =
      Family("cleat_pool_largest_free_bytes", MetricType::Gauge, "The largest piece of free bytes in a row");
  for (const v1::Pool& pool : pools) {
    const MetricLabels labels{{"pool", IdOf(pool.name())}};
    const v1::PoolStatus& status = pool.status();
    Add(ready, labels, status.state() == v1::POOL_STATE_READY ? 1 : 0);
    Add(bytes, With(labels, "state", "allocated"), static_cast<double>(status.allocated_bytes()));
    Add(bytes, With(labels, "state", "reclaimable"), static_cast<double>(status.reclaimable_bytes()));
    Add(bytes, With(labels, "state", "to_erase"), static_cast<double>(status.to_erase_bytes()));
    Add(bytes, With(labels, "state", "free"), static_cast<double>(status.free_bytes()));
    Add(largest, labels, static_cast<double>(status.largest_free_bytes()));
  }
  MoveFilled({&ready, &bytes, &largest}, families);
}

// How disks over NVMe-oF do: their paths, and what is in doubt.
struct PathFamilies {
  MetricFamily paths = Family("cleat_disk_paths", MetricType::Gauge, "Paths of the disk, by their ANA state");
  MetricFamily losses = Family("cleat_disk_path_losses_total", MetricType::Counter,
                               "Paths that broke since the engine opened the disk");
  MetricFamily failovers = Family("cleat_disk_failovers_total", MetricType::Counter,
                                  "Broken paths after which requests went on by another one");
  MetricFamily ranges = Family("cleat_disk_in_doubt_ranges", MetricType::Gauge,
                               "Ranges of the disk that an older write may still overwrite");
  MetricFamily bytes = Family("cleat_disk_in_doubt_bytes", MetricType::Gauge, "Bytes of these ranges");
  MetricFamily waiting =
      Family("cleat_disk_waiting_for_doubt", MetricType::Gauge, "Requests that wait for writes in doubt");
  MetricFamily oldest = Family("cleat_disk_waiting_for_doubt_seconds", MetricType::Gauge,
                               "How long the oldest one of those has been waiting; 0: none");
  MetricFamily failed = Family("cleat_disk_failed_in_doubt_total", MetricType::Counter,
                               "Requests that failed as they had waited too long for writes in doubt");
  MetricFamily accepted = Family("cleat_disk_accepted_in_doubt_total", MetricType::Counter,
                                 "Broken paths that left writes in doubt which later ones did not wait for");

  void Add(const v1::Attachment& attachment, int64_t now_s);
};

void PathFamilies::Add(const v1::Attachment& attachment, int64_t now_s) {
  const v1::PathsStatus& status = attachment.status().paths();
  const std::string& name = attachment.name();  // "controllers/C/attachments/A"
  const MetricLabels labels{{"controller", IdOf(name.substr(0, name.find("/attachments/")))},
                            {"target", std::to_string(attachment.spec().target())},
                            {"disk", IdOf(attachment.spec().disk())}};
  control::Add(paths, With(labels, "state", "optimized"), status.optimized());
  control::Add(paths, With(labels, "state", "non_optimized"), status.non_optimized());
  control::Add(paths, With(labels, "state", "unusable"), status.unusable());
  const auto add = [&labels](MetricFamily& family, uint64_t value) {
    control::Add(family, labels, static_cast<double>(value));
  };
  add(losses, status.losses());
  add(failovers, status.failovers());
  add(ranges, status.doubt_ranges());
  add(bytes, status.doubt_bytes());
  add(waiting, status.waiting());
  const int64_t since_s = status.has_waiting_since() ? status.waiting_since().seconds() : now_s;
  control::Add(oldest, labels, static_cast<double>(std::max<int64_t>(0, now_s - since_s)));
  add(failed, status.failed());
  add(accepted, status.accepted());
}

void AddPaths(std::vector<MetricFamily>& families, const std::vector<v1::Attachment>& attachments) {
  PathFamilies all;
  const int64_t now_s = std::time(nullptr);
  for (const v1::Attachment& attachment : attachments) all.Add(attachment, now_s);
  MoveFilled({&all.paths, &all.losses, &all.failovers, &all.ranges, &all.bytes, &all.waiting, &all.oldest,
              &all.failed, &all.accepted},
             families);
}

void AddProcess(std::vector<MetricFamily>& families) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  families.push_back(
      Family("process_cpu_seconds_total", MetricType::Counter, "User and system time that cleatd has taken"));
  Add(families.back(), {}, seconds(usage.ru_utime) + seconds(usage.ru_stime));
  uint64_t resident_pages = 0;
  if (FILE* file = fopen("/proc/self/statm", "re"); file != nullptr) {
    if (fscanf(file, "%*u %lu", &resident_pages) != 1) resident_pages = 0;
    fclose(file);
  }
  families.push_back(Family("process_resident_memory_bytes", MetricType::Gauge, "Memory that cleatd has"));
  Add(families.back(), {}, static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)));
}

void AddEngines(std::vector<MetricFamily>& families, const v1::ListEnginesResponse& engines) {
  MetricFamily differ = Family("cleat_engine_path_lists_differ", MetricType::Gauge,
                               "Whether the engine takes other paths for listed than cleatd does");
  MetricFamily silent =
      Family("cleat_engine_not_answering", MetricType::Gauge,
             "Whether the engine is connected and does not go on, or one of its reactors does not");
  MetricFamily controllers =
      Family("cleat_engine_controllers", MetricType::Gauge, "Controllers that are placed on the engine");
  MetricFamily standing_by = Family("cleat_engine_standing_by", MetricType::Gauge,
                                    "Controllers of other engines that stand by there, ready to be taken");
  MetricFamily alone = Family("cleat_left_alone_controllers", MetricType::Gauge,
                              "Controllers that are left alone since the store was restored");
  for (const v1::Engine& engine : engines.engines()) {
    Add(differ, {{"engine", IdOf(engine.name())}}, engine.status().path_difference().empty() ? 0 : 1);
    Add(controllers, {{"engine", IdOf(engine.name())}}, engine.status().controllers());
    Add(standing_by, {{"engine", IdOf(engine.name())}}, engine.status().standing_by());
    Add(silent, {{"engine", IdOf(engine.name())}},
        engine.status().state() == v1::ENGINE_STATE_NOT_ANSWERING ? 1 : 0);
    Add(alone, {{"engine", IdOf(engine.name())}}, engine.status().left_alone_total());
  }
  families.push_back(std::move(differ));
  for (MetricFamily* family : {&silent, &controllers, &standing_by}) families.push_back(std::move(*family));
  families.push_back(std::move(alone));
}

}  // namespace

std::vector<uint64_t> HistogramEndsNs() {
  std::vector<uint64_t> ends;
  for (uint64_t decade_ns = kFirstEndNs; decade_ns <= kLastEndNs; decade_ns *= 10) {
    for (const uint64_t factor : {1, 2, 5}) {
      if (decade_ns * factor > kLastEndNs) break;
      ends.push_back(observe::BucketHighestNs(observe::BucketOf(decade_ns * factor)));
    }
  }
  return ends;
}

std::vector<MetricFamily> Metrics::Collect() const {
  std::vector<MetricFamily> families;
  families.push_back(Family("cleat_build_info", MetricType::Gauge, "Always 1; the label says which version"));
  Add(families.back(), {{"version", kVersion}}, 1);
  MetricFamily connected =
      Family("cleat_engine_connected", MetricType::Gauge, "Whether the engine is connected to cleatd");
  DiskFamilies disks;
  for (const CountersOf& engine : counters_.Open()) {
    Add(connected, {{"engine", engine.engine}}, engine.connected ? 1 : 0);
    if (!engine.reader) continue;
    for (const stats::DiskSeen& disk : stats::DisksOf(*engine.reader, counters_.NowNs())) {
      disks.Add(*engine.reader, disk, options_.histograms);
    }
  }
  families.push_back(std::move(connected));
  MoveFilled({&disks.operations, &disks.bytes, &disks.errors, &disks.in_flight, &disks.oldest, &disks.stages},
             families);
  const v1::ListEnginesResponse engines = engines_();
  AddCeph(families, engines);
  AddEngines(families, engines);
  families.push_back(
      Family("cleat_deleted_disks", MetricType::Gauge, "Deleted disks that are kept; 4096 at most"));
  const Host host = host_();
  Add(families.back(), {}, static_cast<double>(host.deleted_disks));
  AddClusters(families, host.clusters);
  AddPools(families, host.pools);
  AddDrives(families, host.pools);
  AddPaths(families, host.over_paths);
  families.push_back(Family(
      "cleat_unlisted_paths", MetricType::Gauge,
      "Disks, controllers and clusters that are served though callers may not name their paths any more"));
  Add(families.back(), {}, static_cast<double>(host.unlisted_paths));
  families.push_back(Family("cleat_store_writable", MetricType::Gauge,
                            "Whether cleatd's store takes writes; 0: changes are refused"));
  Add(families.back(), {}, host.store_writable ? 1 : 0);
  families.push_back(Family("cleat_audit_records_lost_total", MetricType::Counter,
                            "Records that the audit log's file lacks since cleatd started"));
  Add(families.back(), {}, static_cast<double>(host.audit_records_lost));
  families.push_back(Family("cleat_disks_stuck", MetricType::Gauge,
                            "Disks whose oldest request is older than the engine's threshold"));
  Add(families.back(), {}, static_cast<double>(slow_.stuck_disks()));
  families.push_back(
      Family("cleat_slow_requests_total", MetricType::Counter,
             "Slow requests noticed since cleatd started: when they became slow, and when they ended"));
  Add(families.back(), {}, static_cast<double>(slow_.slow_requests()));
  families.push_back(Family("cleat_metrics_disks_without_histograms", MetricType::Gauge,
                            "Disks that have none here because there would be too many"));
  Add(families.back(), {}, static_cast<double>(disks.without_histograms));
  AddProcess(families);
  return families;
}

}  // namespace cleat::control
