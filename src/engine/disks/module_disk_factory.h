// SPDX-License-Identifier: Apache-2.0
// The product's DiskFactory: disks of the modules in modules/. Control reactor.
#pragma once

#include <memory>

#include "engine/disks/disk_factory.h"
#include "engine/disks/open_backend.h"
#include "keys/keyring.h"
#include "modules/crypto/crypto_hub.h"

namespace cleat::engine {

class ModuleDiskFactory final : public DiskFactory {
 public:
  // All of it outlives the factory and the disks.
  ModuleDiskFactory(MemoryStore& memories, modules::UringHub& uring, const modules::CryptoHub& crypto,
                    keys::Keyring& keyring, BlockingPool& blocking, nvmf::LoginLine& arithmetic,
                    modules::RdmaPorts& rdma, CephDisks& ceph, const PathGuard& paths,
                    bool kernel_tls = false)
      : parts_{memories, uring, blocking, arithmetic, rdma, ceph, paths, keyring, kernel_tls},
        crypto_(crypto) {}

  Task<Result<OpenDisk>> Open(const DiskSpec& disk, block::AccessMode mode, std::shared_ptr<qos::Group> group,
                              DiskEvents events) override;

 private:
  // Back end, then fault, then encryption: what is below the limits.
  Task<Result<std::unique_ptr<block::Device>>> OpenLayers(const DiskSpec& disk, block::AccessMode mode,
                                                          DiskEvents events);
  Task<Result<keys::Secret>> KeyOf(const DiskSpec& disk);

  const BackendParts parts_;
  const modules::CryptoHub& crypto_;
};

}  // namespace cleat::engine
