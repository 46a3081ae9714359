// SPDX-License-Identifier: Apache-2.0
// Memory of those who submit commands that the adapter may reach by itself, so that nothing is copied: guests' whose pages stay the same
// (block/memory_registration.h). Whoever makes the adapter's queues knows of it (modules/nvmf/rdma/guest_memory.h), and keeps this as long as there are any.
#pragma once

#include "block/memory.h"
#include "rdma/memory.h"

namespace cleat::nvme::rdma_host {

class DirectMemory {
 public:
  // A registration of all of the region, for local writes and windows, that stays as long as anybody keeps the region; nullptr: there is none, at least
  // now. Called for each command with data that is not in its capsule, which keeps the region; on any reactor that has queues on the adapter.
  virtual const ::cleat::rdma::Registration* Find(const block::MemoryRegion& region) = 0;

 protected:
  ~DirectMemory() = default;
};

}  // namespace cleat::nvme::rdma_host
