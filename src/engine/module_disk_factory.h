// SPDX-License-Identifier: Apache-2.0
// The product's DiskFactory: disks of the modules in modules/. Control reactor.
#pragma once

#include <memory>

#include "engine/disk_factory.h"
#include "engine/memory_store.h"
#include "modules/uring/uring_hub.h"
#include "reactor/blocking.h"

namespace cleat::engine {

class ModuleDiskFactory final : public DiskFactory {
 public:
  // All of it outlives the factory and the disks.
  ModuleDiskFactory(MemoryStore& memories, modules::UringHub& uring, BlockingPool& blocking)
      : memories_(memories), uring_(uring), blocking_(blocking) {}

  Task<Result<std::unique_ptr<block::Pipeline>>> Open(const DiskSpec& disk, block::AccessMode mode) override;

 private:
  Task<Result<std::unique_ptr<block::Device>>> OpenBackend(const DiskSpec& disk, block::AccessMode mode);

  MemoryStore& memories_;
  modules::UringHub& uring_;
  BlockingPool& blocking_;
};

}  // namespace cleat::engine
