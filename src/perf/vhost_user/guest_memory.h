// SPDX-License-Identifier: Apache-2.0
// A pretend guest's RAM: regions at chosen guest-physical addresses, with gaps between them, each a memfd of
// its own (possibly at an offset in its file, as QEMU has it for RAM above 4 GiB), with a first-fit allocator
// on top. Owned by the test or by cleat-perf; outlives the rings and drivers that use it; one thread, except
// for At() and the bytes themselves.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "perf/wire/vhost_user.h"

namespace cleat::perf {

struct RegionSpec {
  uint64_t gpa = 0;
  uint64_t size_bytes = 0;
  uint64_t file_offset_bytes = 0;  // where the region starts in its memfd; a multiple of the page size
};

class GuestMemory {
 public:
  static constexpr uint64_t kPageBytes = 4096;

  // All sizes and addresses are multiples of a page; at most wire::kMemoryRegionsMax regions, none
  // overlapping.
  static Result<std::unique_ptr<GuestMemory>> Create(std::span<const RegionSpec> regions);
  // As a PC has it: half of `size_bytes` at address 0, half at 4 GiB.
  static Result<std::unique_ptr<GuestMemory>> CreateWithHole(uint64_t size_bytes);
  ~GuestMemory();
  GuestMemory(const GuestMemory&) = delete;
  GuestMemory& operator=(const GuestMemory&) = delete;

  // Memory hot-plug; the back end learns of it by Frontend::SetMemTable. A region with allocations stays.
  Status AddRegion(const RegionSpec& spec);
  Status RemoveRegion(uint64_t gpa);

  // The bytes at [gpa, gpa + size), or nullptr when they don't lie in one region.
  uint8_t* At(uint64_t gpa, uint64_t size_bytes) const;
  template <typename T>
  T* At(uint64_t gpa) const {
    return reinterpret_cast<T*>(At(gpa, sizeof(T)));
  }
  std::span<uint8_t> Span(uint64_t gpa, uint64_t size_bytes) const;  // CLEAT_CHECKs that it is there

  // The address QEMU would give for it in SET_VRING_ADDR: the front end's own. CLEAT_CHECKs that it is there.
  uint64_t UserAddress(uint64_t gpa) const;

  // First fit, zeroed, in any region or in the one that starts at `region_gpa`. `alignment` is a power of
  // two.
  Result<uint64_t> Allocate(uint64_t size_bytes, uint64_t alignment);
  Result<uint64_t> AllocateIn(uint64_t region_gpa, uint64_t size_bytes, uint64_t alignment);
  void Free(uint64_t gpa, uint64_t size_bytes);  // exactly what was allocated

  // Gives pages back to the host, as a balloon does: they are gone from the memory's file, and whoever touches them next gets others, of
  // zeroes. What lies in them is still allocated here. Both are multiples of a page; CLEAT_CHECKs that they lie in one region.
  Status GiveBack(uint64_t gpa, uint64_t size_bytes);

  // For SET_MEM_TABLE: the regions in order of address, and their files.
  std::vector<wire::MemoryRegion> Table() const;
  std::vector<int> Fds() const;

  // The first address behind the last region: nothing is there.
  uint64_t EndGpa() const;

 private:
  struct Region {
    RegionSpec spec;
    UniqueFd fd;
    uint8_t* host = nullptr;
    std::map<uint64_t, uint64_t> free;  // gpa -> bytes; neighbours are merged
    uint64_t allocated_bytes = 0;
  };

  GuestMemory() = default;
  const Region* Find(uint64_t gpa) const;
  static bool Take(Region& region, uint64_t size_bytes, uint64_t alignment, uint64_t* gpa);
  static void Unmap(Region& region);

  std::map<uint64_t, Region> regions_;  // by gpa
};

}  // namespace cleat::perf
