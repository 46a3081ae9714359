// SPDX-License-Identifier: Apache-2.0
// What /metrics says, in Prometheus' terms; docs/operations.md has the table. Made from the engines' counters, and from what
// they reported last of their connections to Ceph, when it is asked for: between two scrapes it costs nothing. Any thread.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cleat/v1/cleat.pb.h"
#include "control/observe/counters.h"
#include "control/observe/slow_watch.h"

namespace cleat::control {

struct MetricsOptions {
  bool histograms = true;  // cleat_disk_stage_seconds
};

class Metrics final : public prometheus::Collectable {
 public:
  // Histograms of a scrape, each of an operation and a stage of a disk. Disks beyond that have none, which
  // cleat_metrics_disks_without_histograms says.
  static constexpr size_t kHistogramsMax = 5000;

  // As the API shows them; called for each scrape.
  using Engines = std::function<v1::ListEnginesResponse()>;

  // What cleatd counts of the host; called for each scrape.
  struct Host {
    size_t deleted_disks = 0;   // that are kept
    size_t unlisted_paths = 0;  // of what is served all the same: HostState::Unlisted
    bool store_writable = true;
    uint64_t audit_records_lost = 0;                        // that the audit log's file lacks
    std::map<std::string, v1::ClusterState> clusters = {};  // by id
    std::vector<v1::Pool> pools = {};
    std::vector<v1::Attachment> over_paths = {};  // with AttachmentStatus.paths
  };
  using HostNumbers = std::function<Host()>;

  // Both outlive it, and so does what `engines` and `host` use.
  Metrics(const Counters& counters, const SlowWatch& slow, Engines engines, HostNumbers host,
          const MetricsOptions& options)
      : counters_(counters),
        slow_(slow),
        engines_(std::move(engines)),
        host_(std::move(host)),
        options_(options) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const Counters& counters_;
  const SlowWatch& slow_;
  const Engines engines_;
  const HostNumbers host_;
  const MetricsOptions options_;
};

// The upper ends (`le`) of the histograms' buckets in ns: each is the end of a bucket that the engine counts in, so
// that no count is guessed; 1, 2, 5 us and so on to 10 s, up to 3 % more.
std::vector<uint64_t> HistogramEndsNs();

}  // namespace cleat::control
