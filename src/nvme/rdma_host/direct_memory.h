// SPDX-License-Identifier: Apache-2.0
// Memory of those who submit commands that the adapter may reach by itself, so that nothing is copied: guests' whose pages stay the same
// (block/memory_registration.h). What is known of it is the maker's of the adapter's queues (modules/nvmf/rdma/guest_memory.h).
#pragma once

#include "block/memory.h"
#include "rdma/memory.h"

namespace cleat::nvme::rdma_host {

class DirectMemory {
 public:
  // A registration of all of the region, for local writes and windows, that stays as long as anybody keeps the region; nullptr: there is none, at least
  // now. Called for each command with data that is not in its capsule.
  virtual const ::cleat::rdma::Registration* Find(const block::MemoryRegion& region) = 0;

 protected:
  ~DirectMemory() = default;
};

}  // namespace cleat::nvme::rdma_host
