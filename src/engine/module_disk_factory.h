// SPDX-License-Identifier: Apache-2.0
// The product's DiskFactory: disks of the modules in modules/. Control reactor.
#pragma once

#include <memory>

#include "engine/ceph_disks.h"
#include "engine/disk_factory.h"
#include "engine/memory_store.h"
#include "engine/path_guard.h"
#include "keys/keyring.h"
#include "modules/crypto/crypto_hub.h"
#include "modules/uring/uring_hub.h"
#include "reactor/blocking.h"

namespace cleat::engine {

class ModuleDiskFactory final : public DiskFactory {
 public:
  // All of it outlives the factory and the disks.
  ModuleDiskFactory(MemoryStore& memories, modules::UringHub& uring, const modules::CryptoHub& crypto,
                    keys::Keyring& keyring, BlockingPool& blocking, CephDisks& ceph, const PathGuard& paths)
      : memories_(memories),
        uring_(uring),
        crypto_(crypto),
        keyring_(keyring),
        blocking_(blocking),
        ceph_(ceph),
        paths_(paths) {}

  Task<Result<OpenDisk>> Open(const DiskSpec& disk, block::AccessMode mode, std::shared_ptr<qos::Group> group,
                              DiskEvents events) override;

 private:
  // Back end, then fault, then encryption: what is below the limits.
  Task<Result<std::unique_ptr<block::Device>>> OpenLayers(const DiskSpec& disk, block::AccessMode mode,
                                                          DiskEvents events);
  Task<Result<std::unique_ptr<block::Device>>> OpenBackend(const DiskSpec& disk, block::AccessMode mode,
                                                           DiskEvents events);
  Task<Result<keys::Secret>> KeyOf(const DiskSpec& disk);

  MemoryStore& memories_;
  modules::UringHub& uring_;
  const modules::CryptoHub& crypto_;
  keys::Keyring& keyring_;
  BlockingPool& blocking_;
  CephDisks& ceph_;
  const PathGuard& paths_;
};

}  // namespace cleat::engine
