// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/rbd_cluster.h"

#include <utility>

namespace cleat::modules {
namespace {

using Settings = std::map<std::string, std::string>;

// Of the client alone; above what all its disks may have in flight, which is bounded by their channels: a client whose
// own throttle is full stalls every one of its images, and even the opening of another.
const Settings kThrottles = {
    {"objecter_inflight_ops", "16777216"},
    {"objecter_inflight_op_bytes", "1099511627776"},
};

// Over the conf file as well.
const Settings kDefaults = {
    {"librados_thread_count", "1"},
    {"ms_async_op_threads", "1"},
    // How often a request whose OSD is gone has the client ask for a newer map: instead of 5 s.
    {"objecter_tick_interval", "1"},
    {"log_to_stderr", "false"},
    {"err_to_stderr", "false"},
    {"mon_cluster_log_to_stderr", "false"},
    {"admin_socket", ""},
    {"log_file", ""},
    // Messages that nobody sees are otherwise made all the same, and kept in memory.
    {"debug_ms", "0/0"},
    {"debug_rados", "0/0"},
    {"debug_objecter", "0/0"},
    {"debug_rbd", "0/0"},
    {"debug_monc", "0/0"},
    {"debug_auth", "0/0"},
};

}  // namespace

const Settings& DemandedOfClient() {
  static const Settings demanded = [] {
    Settings all = kThrottles;
    all.insert(DemandedOfImage().begin(), DemandedOfImage().end());
    // A write that librados gives up on still lands, later.
    all["rados_osd_op_timeout"] = "0";
    // A lock that librbd takes from an owner whose watch has ended is safe only with that owner shut out.
    all["rbd_blocklist_on_break_lock"] = "true";
    // No client writes without having been given the lock.
    all["rbd_auto_exclusive_lock_until_manual_request"] = "false";
    return all;
  }();
  return demanded;
}

const Settings& DemandedOfImage() {
  static const Settings demanded = {
      // Completed writes are the guest's own flushes' business.
      {"rbd_cache", "false"},
      // librbd copies what is written when it is submitted. Memory that a guest changes under a write in flight tears
      // the client's connections down, all of its images' with it.
      {"rbd_disable_zero_copy_writes", "true"},
  };
  return demanded;
}

Status CheckCluster(const ClusterOptions& cluster) {
  const auto refuse = [&cluster](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument,
                 (cluster.name.empty() ? "a cluster" : cluster.name) + ": " + why);
  };
  if (cluster.name.empty()) return refuse("it has no name");
  if (cluster.user.empty())
    return refuse("no user is given: name the one whose key this is, without 'client.'");
  if (cluster.monitors.empty() && cluster.conf_file.empty()) {
    return refuse("neither monitors nor a conf file is given: one of them says where the cluster is");
  }
  if (cluster.images_per_client < 1 || cluster.images_per_client > kImagesPerClientMax) {
    return refuse("images_per_client is " + std::to_string(cluster.images_per_client) + ": use 1 to " +
                  std::to_string(kImagesPerClientMax));
  }
  if (cluster.connect_timeout_ns < kNsPerSecond) return refuse("the connect timeout is less than a second");
  for (const auto& [name, value] : cluster.settings) {
    if (name == "key" || name == "keyring" || name == "keyfile") {
      return refuse("the setting '" + name + "' has a field of its own");
    }
    if (DemandedOfClient().contains(name)) {
      return refuse("the setting '" + name + "' must be " + DemandedOfClient().at(name) +
                    " and can't be changed");
    }
  }
  return Ok{};
}

std::vector<std::pair<std::string, std::string>> ClusterSettings(const ClusterOptions& cluster) {
  std::vector<std::pair<std::string, std::string>> all(kDefaults.begin(), kDefaults.end());
  const std::string seconds = std::to_string(cluster.connect_timeout_ns / kNsPerSecond);
  all.emplace_back("client_mount_timeout", seconds);
  all.emplace_back("rados_mon_op_timeout", seconds);  // of commands and maps; I/O knows no timeout
  if (!cluster.monitors.empty()) all.emplace_back("mon_host", cluster.monitors);
  all.insert(all.end(), cluster.settings.begin(), cluster.settings.end());
  all.insert(all.end(), DemandedOfClient().begin(), DemandedOfClient().end());
  return all;
}

}  // namespace cleat::modules
