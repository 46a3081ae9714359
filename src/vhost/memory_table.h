// SPDX-License-Identifier: Apache-2.0
// A guest's memory as its front end described it (SET_MEM_TABLE): our own mapping of each region, and the two
// ways to address it - guest-physical (block::MemoryMap), and "user", the front end's own virtual addresses,
// in which ring addresses are given. Immutable; held by the session and, through the MemoryMap, by queues and
// requests in flight.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "block/memory.h"
#include "vhost/protocol.h"

namespace cleat::vhost {

class MemoryTable {
 public:
  // Takes a region's last reference, on whatever thread it was dropped: unmapping a large guest takes
  // milliseconds, which no reactor should spend.
  using ReleaseFn = std::function<void(std::shared_ptr<block::MemoryRegion>)>;

  struct Region {
    uint64_t guest_address = 0;
    uint64_t user_address = 0;
    std::shared_ptr<block::MemoryRegion> memory;
    // What was mapped, so that the next table can use the mapping again.
    dev_t file_device = 0;
    ino_t file_inode = 0;
    uint64_t file_offset_bytes = 0;
  };

  // From memory that is there already (tests, simulation). Refuses overlaps, and more than kMemoryRegionsMax
  // regions.
  static Result<std::shared_ptr<const MemoryTable>> Make(std::vector<Region> regions);

  // Maps the files, `previous`' mapping of the same piece of the same file being used again (memory hot-plug
  // must not map everything anew, nor register it anew). Blocks: for a BlockingPool's thread. Keeps no descriptor. `pinned_by`: who vouches
  // that the guest gives no memory back, so that it may be registered; empty: nobody.
  static Result<std::shared_ptr<const MemoryTable>> Map(std::span<const MemoryTableRegion> regions,
                                                        std::span<const UniqueFd> files,
                                                        const MemoryTable* previous, const ReleaseFn& release,
                                                        const std::string& pinned_by = {});

  const std::shared_ptr<const block::MemoryMap>& map() const { return map_; }
  std::span<const Region> regions() const { return regions_; }

  struct Place {
    uint8_t* host = nullptr;
    uint64_t guest_address = 0;
  };
  // The whole range in one region and aligned (a power of two), or an error that says what was asked for.
  Result<Place> FromUser(uint64_t user_address, uint64_t size_bytes, uint64_t alignment) const;

 private:
  MemoryTable(std::vector<Region> regions, std::shared_ptr<const block::MemoryMap> map)
      : regions_(std::move(regions)), map_(std::move(map)) {}
  std::vector<Region> regions_;
  std::shared_ptr<const block::MemoryMap> map_;
};

}  // namespace cleat::vhost
