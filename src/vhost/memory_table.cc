// SPDX-License-Identifier: Apache-2.0
#include "vhost/memory_table.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

namespace cleat::vhost {
namespace {

std::string Describe(uint64_t address, uint64_t size_bytes) {
  return "[" + std::to_string(address) + ", +" + std::to_string(size_bytes) + ")";
}

bool Overlap(const MemoryTable::Region& a, const MemoryTable::Region& b) {
  return a.user_address < b.user_address + b.memory->size_bytes() &&
         b.user_address < a.user_address + a.memory->size_bytes();
}

Error Annotate(size_t index, const Error& error) {
  return {error.code, "memory region " + std::to_string(index) + ": " + error.message};
}

// The last reference, wherever it is dropped, goes to `release`.
std::shared_ptr<block::MemoryRegion> Hand(std::shared_ptr<block::MemoryRegion> mapped,
                                          const MemoryTable::ReleaseFn& release) {
  if (!release) return mapped;
  block::MemoryRegion* bare = mapped.get();
  return {bare, [mapped = std::move(mapped), release](block::MemoryRegion*) mutable {
            release(std::move(mapped));
          }};
}

const MemoryTable::Region* FindMapped(const MemoryTable* table, const struct stat& file,
                                      const MemoryTableRegion& wanted) {
  if (table == nullptr) return nullptr;
  for (const MemoryTable::Region& region : table->regions()) {
    if (region.file_device == file.st_dev && region.file_inode == file.st_ino &&
        region.file_offset_bytes == wanted.file_offset_bytes &&
        region.memory->size_bytes() == wanted.size_bytes) {
      return &region;
    }
  }
  return nullptr;
}

Result<MemoryTable::Region> MapRegion(const MemoryTableRegion& wanted, const UniqueFd& fd,
                                      const MemoryTable* previous, const MemoryTable::ReleaseFn& release,
                                      const std::string& pinned_by) {
  CLEAT_TRY(block::MemoryRegion::CheckInMemory(fd));
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) return ErrnoError(errno, "fstat");
  MemoryTable::Region region;
  region.guest_address = wanted.guest_address;
  region.user_address = wanted.user_address;
  region.file_device = file.st_dev;
  region.file_inode = file.st_ino;
  region.file_offset_bytes = wanted.file_offset_bytes;
  // A mapping keeps its file, so as long as we have it the inode can't have become another one.
  if (const MemoryTable::Region* same = FindMapped(previous, file, wanted)) {
    region.memory = same->memory;
    return region;
  }
  std::unique_ptr<block::MemoryRegistration> registration;
  if (!pinned_by.empty()) registration = std::make_unique<block::MemoryRegistration>(pinned_by);
  CLEAT_ASSIGN(auto mapped, block::MemoryRegion::Map(fd, wanted.file_offset_bytes, wanted.size_bytes,
                                                     std::move(registration)));
  region.memory = Hand(std::move(mapped), release);
  return region;
}

}  // namespace

Result<std::shared_ptr<const MemoryTable>> MemoryTable::Make(std::vector<Region> regions) {
  if (regions.size() > kMemoryRegionsMax) {
    return Error(ErrorCode::kInvalidArgument, "memory table of " + std::to_string(regions.size()) +
                                                  " regions: at most " + std::to_string(kMemoryRegionsMax));
  }
  std::vector<block::MemoryMap::Entry> entries;
  for (size_t i = 0; i < regions.size(); ++i) {
    const Region& region = regions[i];
    if (region.memory->size_bytes() > UINT64_MAX - region.user_address) {
      return Error(ErrorCode::kInvalidArgument,
                   "memory region " + std::to_string(i) + " goes beyond the front end's address space");
    }
    for (size_t j = 0; j < i; ++j) {
      if (Overlap(region, regions[j])) {
        return Error(ErrorCode::kInvalidArgument, "memory regions " + std::to_string(j) + " and " +
                                                      std::to_string(i) +
                                                      " overlap in the front end's address space");
      }
    }
    entries.push_back({region.guest_address, region.memory});
  }
  CLEAT_ASSIGN(auto map, block::MemoryMap::Make(std::move(entries)));
  return std::shared_ptr<const MemoryTable>(new MemoryTable(std::move(regions), std::move(map)));
}

Result<std::shared_ptr<const MemoryTable>> MemoryTable::Map(std::span<const MemoryTableRegion> regions,
                                                            std::span<const UniqueFd> files,
                                                            const MemoryTable* previous,
                                                            const ReleaseFn& release,
                                                            const std::string& pinned_by) {
  CLEAT_CHECK(regions.size() == files.size());
  std::vector<Region> mapped;
  for (size_t i = 0; i < regions.size(); ++i) {
    auto region = MapRegion(regions[i], files[i], previous, release, pinned_by);
    if (!region) return Annotate(i, region.error());
    mapped.push_back(std::move(region).value());
  }
  return Make(std::move(mapped));
}

Result<MemoryTable::Place> MemoryTable::FromUser(uint64_t user_address, uint64_t size_bytes,
                                                 uint64_t alignment) const {
  for (const Region& region : regions_) {
    const uint64_t offset = user_address - region.user_address;  // wraps to huge when below
    if (offset >= region.memory->size_bytes()) continue;
    if (size_bytes > region.memory->size_bytes() - offset) {
      return Error(ErrorCode::kInvalidArgument,
                   Describe(user_address, size_bytes) + " goes beyond the end of its memory region");
    }
    Place place{region.memory->base() + offset, region.guest_address + offset};
    if (reinterpret_cast<uintptr_t>(place.host) % alignment != 0) {
      return Error(ErrorCode::kInvalidArgument, Describe(user_address, size_bytes) + " is not aligned to " +
                                                    std::to_string(alignment) + " bytes");
    }
    return place;
  }
  return Error(ErrorCode::kInvalidArgument,
               Describe(user_address, size_bytes) + " is in no memory region of the last SET_MEM_TABLE");
}

}  // namespace cleat::vhost
