// SPDX-License-Identifier: Apache-2.0
// Disks in Ceph, and the process' connections for them: modules/rbd behind the engine's own words. A build without Ceph
// (CLEAT_RBD=OFF) has one that refuses them all (ceph_disks_none.cc). Control reactor; owned by the process (process.cc), outlives the disks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "block/device.h"
#include "engine/disks/disk_factory.h"
#include "engine/disks/path_guard.h"
#include "engine/protocol/spec.h"
#include "engine/stores/cluster_store.h"
#include "keys/keyring.h"
#include "reactor/blocking.h"
#include "reactor/task.h"

namespace cleat::engine {

struct RbdBackend {
  std::string cluster;  // "clusters/ID"
  std::string pool;
  std::string name_space;  // empty: the pool's default one
  std::string image;
  std::string snapshot;  // empty: the image itself
  // What the image is known to have had; 0: as much as the disk. Says nothing about which image it is.
  uint64_t image_bytes = 0;

  bool operator==(const RbdBackend& other) const {
    return cluster == other.cluster && pool == other.pool && name_space == other.name_space &&
           image == other.image && snapshot == other.snapshot;
  }
};

class CephDisks {
 public:
  struct Parts {  // all of it outlives this
    Reactor& control;
    const ClusterStore& clusters;
    keys::Keyring& keyring;
    BlockingPool& blocking;
    const PathGuard& paths;
  };
  // `engine`: its name, which other owners of images are told. `cpus`: where Ceph's threads run; empty: anywhere.
  CephDisks(const Parts& parts, const std::string& engine, std::vector<uint32_t> cpus);
  ~CephDisks();
  CephDisks(const CephDisks&) = delete;
  CephDisks& operator=(const CephDisks&) = delete;

  // Called a second after something has changed, and every second while a connection is busy for longer than that. Only
  // while there are any, or a cluster whose monitors do not answer is to be reached.
  void SetOnReport(std::function<void(const CephReport&)> on_report);

  // `disk` and `rbd`, its back end, live until the task is over. Opened, not acquired. Lasts as long as the cluster takes,
  // which is told in modules/rbd/rbd.h, as are the errors.
  Task<Result<std::unique_ptr<block::Device>>> Open(const DiskSpec& disk, const RbdBackend& rbd,
                                                    block::AccessMode mode, DiskEvents events);

  // No disk is open. False: threads that are stuck in Ceph are left, and the process must leave by _exit.
  Task<bool> End(uint64_t wait_ns);

 private:
  struct Core;
  std::unique_ptr<Core> core_;
};

}  // namespace cleat::engine
