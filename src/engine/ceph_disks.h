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
#include "engine/cluster_store.h"
#include "engine/disk_factory.h"
#include "engine/path_guard.h"
#include "engine/spec.h"
#include "keys/keyring.h"
#include "reactor/blocking.h"
#include "reactor/task.h"

namespace cleat::engine {

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
  // while there are any.
  void SetOnReport(std::function<void(const CephReport&)> on_report);

  // `disk` has an RbdBackend, and lives until the task is over. Opened, not acquired. Lasts as long as the cluster takes,
  // which is told in modules/rbd/rbd.h, as are the errors.
  Task<Result<std::unique_ptr<block::Device>>> Open(const DiskSpec& disk, block::AccessMode mode,
                                                    DiskEvents events);

  // No disk is open. False: threads that are stuck in Ceph are left, and the process must leave by _exit.
  Task<bool> End(uint64_t wait_ns);

 private:
  struct Core;
  std::unique_ptr<Core> core_;
};

}  // namespace cleat::engine
