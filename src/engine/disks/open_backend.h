// SPDX-License-Identifier: Apache-2.0
// From a disk's description to its back end, below every filter. Control reactor.
#pragma once

#include <memory>

#include "base/result.h"
#include "block/device.h"
#include "engine/disks/ceph_disks.h"
#include "engine/disks/disk_factory.h"
#include "engine/disks/path_guard.h"
#include "engine/protocol/spec.h"
#include "engine/stores/memory_store.h"
#include "keys/keyring.h"
#include "modules/nvmf/rdma/rdma_ports.h"
#include "modules/uring/uring_hub.h"
#include "nvmf/login/login_line.h"
#include "reactor/blocking.h"
#include "reactor/task.h"

namespace cleat::engine {

// What back ends of all kinds share: all of it outlives the disks.
struct BackendParts {
  MemoryStore& memories;
  modules::UringHub& uring;
  BlockingPool& blocking;
  nvmf::LoginLine& arithmetic;  // of authentication: a few threads that wait for nobody
  modules::RdmaPorts& rdma;     // by which targets are reached over RDMA
  CephDisks& ceph;
  const PathGuard& paths;
  keys::Keyring& keyring;
  bool kernel_tls = false;  // Settings::kernel_tls
};

// Opened, not acquired. `disk` and `parts` live until the task is over. Errors name the disk, and are the module's;
// kUnimplemented: this engine was built without that kind.
Task<Result<std::unique_ptr<block::Device>>> OpenBackend(const DiskSpec& disk, block::AccessMode mode,
                                                         DiskEvents events, const BackendParts& parts);

}  // namespace cleat::engine
