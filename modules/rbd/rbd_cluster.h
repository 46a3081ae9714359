// SPDX-License-Identifier: Apache-2.0
// How a Ceph cluster is reached, and what librados and librbd are told before they connect to it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "keys/secret.h"

namespace cleat::modules {

// Images that share a client share its threads, its sockets, and its fate when it is blocklisted.
inline constexpr uint32_t kImagesPerClientMax = 64;
inline constexpr uint32_t kImagesPerClientDefault = 16;

// The key of a cluster's user, as keys::DecodeCephKey gives it: in the memory for keys, one for all copies of the options.
class ClusterKey {
 public:
  ClusterKey() = default;  // none: the conf file's keyring
  explicit ClusterKey(keys::Secret key) : key_(std::make_shared<const keys::Secret>(std::move(key))) {}

  const keys::Secret* get() const { return key_.get(); }
  bool operator==(const ClusterKey& other) const {
    if (key_ == nullptr || other.key_ == nullptr) return key_ == other.key_;
    return *key_ == *other.key_;
  }

 private:
  std::shared_ptr<const keys::Secret> key_;
};

// Opens a conf file for reading; blocks on the file system. Clusters that differ in this alone are the same.
struct ConfOpener {
  std::function<Result<UniqueFd>(const std::string& path, const std::string& what)>
      open;  // empty: wherever the path leads
  bool operator==(const ConfOpener&) const { return true; }
};

struct ClusterOptions {
  bool operator==(const ClusterOptions&) const = default;

  std::string name;       // "clusters/ID": what errors call it
  std::string monitors;   // "10.0.0.1,10.0.0.2", as ceph.conf's `mon host`; or empty, and
  std::string conf_file;  // a ceph.conf that has them. With both, `monitors` wins.
  ConfOpener conf_opener;
  std::string user;  // "cleat" for client.cleat
  ClusterKey key;
  uint32_t images_per_client = kImagesPerClientDefault;
  // To connect, and for each question to the monitors. Never for I/O: that waits, however long it takes.
  uint64_t connect_timeout_ns = 30 * kNsPerSecond;
  // Where the client's threads run, all of Ceph's included: CPUs that no reactor has. Empty: where the maker of the
  // ClientPool may run.
  std::vector<uint32_t> cpus;
  // More of librados' and librbd's options, over the conf file's. Those that data safety hangs on can't be changed.
  std::map<std::string, std::string> settings;
};

// kInvalidArgument: no name, user or monitors, a limit out of range, or a setting that is not the caller's to make.
Status CheckCluster(const ClusterOptions& cluster);

// Every setting in the order in which it is to be made, the key left out: what spares threads, then `settings`, then
// what must be so.
std::vector<std::pair<std::string, std::string>> ClusterSettings(const ClusterOptions& cluster);

// The settings of ClusterSettings that must be so when connected (a cluster's own configuration database may want them
// otherwise) and on every image (whose metadata may).
const std::map<std::string, std::string>& DemandedOfClient();
const std::map<std::string, std::string>& DemandedOfImage();

}  // namespace cleat::modules
