// SPDX-License-Identifier: Apache-2.0
// What /metrics says of connections to Ceph: sums for each cluster, however many connections there are.
#include "control/observe/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace cleat::control::metrics_test {
namespace {

class CephMetricsTest : public testing::Test {
 protected:
  v1::CephStatus& AddEngine(const std::string& id) {
    v1::Engine& engine = *engines_.add_engines();
    engine.set_name("engines/" + id);
    engine.mutable_status()->set_connected(true);
    return *engine.mutable_status()->mutable_ceph();
  }
  static v1::CephClient& AddClient(v1::CephStatus& status, const std::string& cluster, uint32_t images) {
    v1::CephClient& client = *status.add_clients();
    client.set_cluster("clusters/" + cluster);
    client.set_images(images);
    status.set_clients_total(status.clients_total() + 1);
    return client;
  }
  // "name{label=value,...}" and the value, of all that is about Ceph.
  std::map<std::string, double> Collect(const std::string& prefix = "cleat_ceph_") const {
    std::map<std::string, double> samples;
    for (const auto& family : metrics_.Collect()) {
      if (!family.name.starts_with(prefix)) continue;
      const bool counts = family.type == prometheus::MetricType::Counter;
      EXPECT_EQ(counts, family.name.ends_with("_total")) << family.name;
      for (const auto& metric : family.metric) {
        std::string labels;
        for (const auto& label : metric.label)
          labels += (labels.empty() ? "" : ",") + label.name + "=" + label.value;
        samples[family.name + "{" + labels + "}"] = counts ? metric.counter.value : metric.gauge.value;
      }
    }
    return samples;
  }

  ManualClock clock_{100 * kNsPerSecond};
  Counters counters_{clock_};
  SlowWatch slow_{counters_, [](bool, const std::string&) {}};
  v1::ListEnginesResponse engines_;
  Metrics::Host host_;
  Metrics metrics_{counters_, slow_, [this] { return engines_; }, [this] { return host_; }, {}};
};

TEST_F(CephMetricsTest, AClustersClientsAreSummedUpAndTheLongestWaitCounts) {
  v1::CephStatus& status = AddEngine("engine-0");
  status.set_threads(42);
  AddClient(status, "a", 16).mutable_busy()->set_seconds(12);
  v1::CephClient& worst = AddClient(status, "a", 7);
  worst.mutable_busy()->set_seconds(93);
  worst.mutable_busy()->set_nanos(500'000'000);
  AddClient(status, "a", 1).set_blocklisted(true);
  AddClient(status, "b", 2);
  const std::map<std::string, double> expected = {
      {"cleat_ceph_threads{engine=engine-0}", 42},
      {"cleat_ceph_clients_unlisted{engine=engine-0}", 0},
      {"cleat_ceph_clients{engine=engine-0,cluster=a}", 3},
      {"cleat_ceph_clients{engine=engine-0,cluster=b}", 1},
      {"cleat_ceph_images{engine=engine-0,cluster=a}", 24},
      {"cleat_ceph_images{engine=engine-0,cluster=b}", 2},
      {"cleat_ceph_clients_blocklisted{engine=engine-0,cluster=a}", 1},
      {"cleat_ceph_clients_blocklisted{engine=engine-0,cluster=b}", 0},
      {"cleat_ceph_clients_busy{engine=engine-0,cluster=a}", 2},
      {"cleat_ceph_clients_busy{engine=engine-0,cluster=b}", 0},
      {"cleat_ceph_busy_seconds{engine=engine-0,cluster=a}", 93.5},
      {"cleat_ceph_busy_seconds{engine=engine-0,cluster=b}", 0},
  };
  EXPECT_EQ(Collect(), expected);
}

TEST_F(CephMetricsTest, WhatIsWrongWithAClusterIsSeenWhicheverEngineSaysSo) {
  host_.clusters = {{"full", v1::CLUSTER_STATE_FULL},
                    {"silent", v1::CLUSTER_STATE_NOT_ANSWERING},
                    {"well", v1::CLUSTER_STATE_OK},
                    {"unused", v1::CLUSTER_STATE_UNSPECIFIED}};
  std::map<std::string, std::map<std::string, double>> seen;
  for (const auto& family : metrics_.Collect()) {
    if (!family.name.starts_with("cleat_cluster_")) continue;
    for (const auto& metric : family.metric) seen[family.name][metric.label.at(0).value] = metric.gauge.value;
  }
  using Samples = std::map<std::string, double>;
  EXPECT_EQ(seen["cleat_cluster_not_answering"], (Samples{{"full", 0}, {"silent", 1}, {"well", 0}}));
  EXPECT_EQ(seen["cleat_cluster_full"], (Samples{{"full", 1}, {"silent", 0}, {"well", 0}}));
  EXPECT_EQ(seen["cleat_cluster_failing"], (Samples{{"full", 0}, {"silent", 0}, {"well", 0}}));
}

TEST_F(CephMetricsTest, PoolsAreSeenWithWhatTheirBytesAre) {
  v1::Pool pool;
  pool.set_name("pools/p");
  pool.mutable_status()->set_state(v1::POOL_STATE_READY);
  pool.mutable_status()->set_allocated_bytes(1);
  pool.mutable_status()->set_reclaimable_bytes(2);
  pool.mutable_status()->set_to_erase_bytes(3);
  pool.mutable_status()->set_free_bytes(4);
  pool.mutable_status()->set_largest_free_bytes(5);
  host_.pools = {pool};
  const std::map<std::string, double> expected = {
      {"cleat_pool_ready{pool=p}", 1},
      {"cleat_pool_bytes{pool=p,state=allocated}", 1},
      {"cleat_pool_bytes{pool=p,state=reclaimable}", 2},
      {"cleat_pool_bytes{pool=p,state=to_erase}", 3},
      {"cleat_pool_bytes{pool=p,state=free}", 4},
      {"cleat_pool_largest_free_bytes{pool=p}", 5},
  };
  EXPECT_EQ(Collect("cleat_pool_"), expected);
  host_.pools.front().mutable_status()->set_state(v1::POOL_STATE_FAILED);
  EXPECT_EQ(Collect("cleat_pool_")["cleat_pool_ready{pool=p}"], 0);
}

TEST_F(CephMetricsTest, APoolsDriveIsSeenWithAllThatItSaysOfItself) {
  v1::Pool pool;
  pool.set_name("pools/p");
  v1::DriveHealth& health = *pool.mutable_status()->mutable_health();
  health.set_wear_percent(103);
  health.set_temperature_celsius(-4);
  health.set_spare_percent(9);
  health.set_spare_threshold_percent(10);
  health.set_media_errors(7);
  health.set_written_bytes(512'000);
  health.set_power_on_hours(2);
  health.set_unsafe_shutdowns(3);
  health.add_warnings("the spare is below its threshold");
  host_.pools = {pool};
  const auto of_drive = [this] {
    std::map<std::string, double> samples = Collect("cleat_pool_");
    std::erase_if(samples, [](const auto& sample) {
      return sample.first.starts_with("cleat_pool_bytes") || sample.first.starts_with("cleat_pool_largest") ||
             sample.first.starts_with("cleat_pool_ready");
    });
    return samples;
  };
  const std::map<std::string, double> expected = {
      {"cleat_pool_health_known{pool=p}", 1},
      {"cleat_pool_warnings{pool=p}", 1},
      {"cleat_pool_wear_ratio{pool=p}", 1.03},
      {"cleat_pool_temperature_celsius{pool=p}", -4},
      {"cleat_pool_spare_ratio{pool=p}", 0.09},
      {"cleat_pool_spare_threshold_ratio{pool=p}", 0.1},
      {"cleat_pool_media_errors_total{pool=p}", 7},
      {"cleat_pool_written_bytes_total{pool=p}", 512'000},
      {"cleat_pool_power_on_seconds_total{pool=p}", 7200},
      {"cleat_pool_unsafe_shutdowns_total{pool=p}", 3},
  };
  EXPECT_EQ(of_drive(), expected);
  // What a drive can't be asked for has no series, rather than a zero.
  v1::DriveHealth& unknown = *host_.pools.front().mutable_status()->mutable_health();
  unknown.Clear();
  unknown.set_unknown_because("cleatd may not ask it");
  unknown.set_temperature_celsius(31);
  const std::map<std::string, double> little = {{"cleat_pool_health_known{pool=p}", 0},
                                                {"cleat_pool_temperature_celsius{pool=p}", 31}};
  EXPECT_EQ(of_drive(), little);
  unknown.add_warnings("the temperature is beyond a threshold");
  EXPECT_EQ(of_drive()["cleat_pool_warnings{pool=p}"], 1);
  host_.pools.front().mutable_status()->clear_health();
  EXPECT_TRUE(of_drive().empty());
}

TEST_F(CephMetricsTest, DeletedDisksThatAreKeptAreCounted) {
  host_ = {.deleted_disks = 7, .unlisted_paths = 3};
  const auto families = metrics_.Collect();
  const auto kept = std::find_if(families.begin(), families.end(),
                                 [](const auto& family) { return family.name == "cleat_deleted_disks"; });
  ASSERT_NE(kept, families.end());
  EXPECT_EQ(kept->metric.at(0).gauge.value, 7);
}

TEST_F(CephMetricsTest, AStoreThatCantBeWrittenIsSeen) {
  for (const bool writable : {true, false}) {
    host_.store_writable = writable;
    const auto families = metrics_.Collect();
    const auto found = std::find_if(families.begin(), families.end(),
                                    [](const auto& family) { return family.name == "cleat_store_writable"; });
    ASSERT_NE(found, families.end());
    EXPECT_EQ(found->metric.at(0).gauge.value, writable ? 1 : 0);
  }
}

TEST_F(CephMetricsTest, ThereIsOneSeriesAClusterHoweverManyClients) {
  v1::CephStatus& status = AddEngine("engine-0");
  for (int i = 0; i < 64; ++i) AddClient(status, "a", 16);
  AddEngine("engine-1").set_clients_total(1);
  const size_t before = Collect().size();
  for (int i = 0; i < 64; ++i) AddClient(status, "a", 16);
  EXPECT_EQ(Collect().size(), before);
  status.set_clients_total(200);  // of which the engine lists some
  EXPECT_EQ(Collect().at("cleat_ceph_clients_unlisted{engine=engine-0}"), 72);
}

TEST_F(CephMetricsTest, NothingIsSaidWithoutConnections) {
  engines_.add_engines()->set_name("engines/engine-0");
  EXPECT_TRUE(Collect().empty());
}

TEST_F(CephMetricsTest, ADiskOverNvmeOfIsToldWithItsPathsAndWhatIsInDoubt) {
  EXPECT_TRUE(Collect("cleat_disk_path").empty()) << "no disk is reached over paths";
  v1::Attachment attachment;
  attachment.set_name("controllers/vm/attachments/x");
  attachment.mutable_spec()->set_disk("disks/a");
  attachment.mutable_spec()->set_target(2);
  v1::PathsStatus& paths = *attachment.mutable_status()->mutable_paths();
  paths.set_optimized(1);
  paths.set_unusable(3);
  paths.set_losses(5);
  paths.set_failovers(4);
  paths.set_doubt_ranges(2);
  paths.set_doubt_bytes(8192);
  paths.set_waiting(7);
  paths.mutable_waiting_since()->set_seconds(1'000'000'000);
  paths.set_failed(6);
  paths.set_accepted(8);
  host_.over_paths = {attachment};
  const std::string of_disk = "{controller=vm,target=2,disk=a";
  auto samples = Collect("cleat_disk_");
  EXPECT_EQ(samples["cleat_disk_paths" + of_disk + ",state=optimized}"], 1);
  EXPECT_EQ(samples["cleat_disk_paths" + of_disk + ",state=non_optimized}"], 0);
  EXPECT_EQ(samples["cleat_disk_paths" + of_disk + ",state=unusable}"], 3);
  EXPECT_EQ(samples["cleat_disk_path_losses_total" + of_disk + "}"], 5);
  EXPECT_EQ(samples["cleat_disk_failovers_total" + of_disk + "}"], 4);
  EXPECT_EQ(samples["cleat_disk_in_doubt_ranges" + of_disk + "}"], 2);
  EXPECT_EQ(samples["cleat_disk_in_doubt_bytes" + of_disk + "}"], 8192);
  EXPECT_EQ(samples["cleat_disk_waiting_for_doubt" + of_disk + "}"], 7);
  EXPECT_GT(samples["cleat_disk_waiting_for_doubt_seconds" + of_disk + "}"], 1'000'000);
  EXPECT_EQ(samples["cleat_disk_failed_in_doubt_total" + of_disk + "}"], 6);
  EXPECT_EQ(samples["cleat_disk_accepted_in_doubt_total" + of_disk + "}"], 8);
  host_.over_paths.front().mutable_status()->mutable_paths()->clear_waiting_since();
  EXPECT_EQ(Collect("cleat_disk_waiting_for_doubt_seconds").begin()->second, 0);
}

}  // namespace
}  // namespace cleat::control::metrics_test
