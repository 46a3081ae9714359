// SPDX-License-Identifier: Apache-2.0
// The hook of the rings and the in-flight logs (virtio/guest_access.h, CLEAT_STORE_HOOK): asked before each store to
// memory that outlives the process. A program that links this links the hooked build of cleat_virtio. One thread.
#pragma once

#include <cstdint>

namespace cleat::sim {

class StoreWatch {
 public:
  virtual ~StoreWatch() = default;
  // False: the store does not happen; the watch has done it, will, or never does.
  virtual bool BeforeStore(uint8_t* at, uint64_t value, uint32_t bytes) = 0;
};

// Who is asked; nullptr: nobody. It outlives its being asked.
void SetStoreWatch(StoreWatch* watch);

}  // namespace cleat::sim
