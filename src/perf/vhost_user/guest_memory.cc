// SPDX-License-Identifier: Apache-2.0
#include "perf/vhost_user/guest_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace cleat::perf {
namespace {

constexpr uint64_t kHighMemoryGpa = 4ULL << 30;

bool PageMultiple(uint64_t value) {
  return value % GuestMemory::kPageBytes == 0;
}

}  // namespace

Result<std::unique_ptr<GuestMemory>> GuestMemory::Create(std::span<const RegionSpec> regions) {
  std::unique_ptr<GuestMemory> memory(new GuestMemory);
  for (const RegionSpec& spec : regions) {
    CLEAT_TRY(memory->AddRegion(spec));
  }
  return memory;
}

Result<std::unique_ptr<GuestMemory>> GuestMemory::CreateWithHole(uint64_t size_bytes) {
  const uint64_t half_bytes = size_bytes / 2 / kPageBytes * kPageBytes;
  const RegionSpec specs[] = {
      {.gpa = 0, .size_bytes = half_bytes},
      {.gpa = kHighMemoryGpa, .size_bytes = half_bytes, .file_offset_bytes = kPageBytes}};
  return Create(specs);
}

GuestMemory::~GuestMemory() {
  for (auto& [gpa, region] : regions_) Unmap(region);
}

void GuestMemory::Unmap(Region& region) {
  munmap(region.host, region.spec.size_bytes);
}

Status GuestMemory::AddRegion(const RegionSpec& spec) {
  const std::string name = fmt::format("guest memory of {:#x} bytes at {:#x}", spec.size_bytes, spec.gpa);
  const uint64_t end = spec.gpa + spec.size_bytes;
  if (spec.size_bytes == 0 || end < spec.gpa || !PageMultiple(spec.gpa) || !PageMultiple(spec.size_bytes) ||
      !PageMultiple(spec.file_offset_bytes)) {
    return Error(ErrorCode::kInvalidArgument, name + ": must be whole pages and not wrap around");
  }
  if (regions_.size() >= wire::kMemoryRegionsMax) {
    return Error(ErrorCode::kResourceExhausted, name + ": all memory regions are in use");
  }
  for (const auto& [gpa, other] : regions_) {
    if (spec.gpa < gpa + other.spec.size_bytes && gpa < end) {
      return Error(ErrorCode::kAlreadyExists, name + ": overlaps another region");
    }
  }
  Region region;
  region.spec = spec;
  region.fd.Reset(memfd_create("cleat-perf-guest", MFD_CLOEXEC));
  if (!region.fd ||
      ftruncate(region.fd.get(), static_cast<off_t>(spec.file_offset_bytes + spec.size_bytes)) != 0) {
    return ErrnoError(errno, name);
  }
  void* host = mmap(nullptr, spec.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                    region.fd.get(), static_cast<off_t>(spec.file_offset_bytes));
  if (host == MAP_FAILED) return ErrnoError(errno, name);
  region.host = static_cast<uint8_t*>(host);
  region.free.emplace(spec.gpa, spec.size_bytes);
  regions_.emplace(spec.gpa, std::move(region));
  return Ok{};
}

Status GuestMemory::RemoveRegion(uint64_t gpa) {
  auto found = regions_.find(gpa);
  if (found == regions_.end()) {
    return Error(ErrorCode::kNotFound, fmt::format("no guest memory region starts at {:#x}", gpa));
  }
  if (found->second.allocated_bytes != 0) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("guest memory region at {:#x} still has {} bytes in use", gpa,
                             found->second.allocated_bytes));
  }
  Unmap(found->second);
  regions_.erase(found);
  return Ok{};
}

const GuestMemory::Region* GuestMemory::Find(uint64_t gpa) const {
  auto next = regions_.upper_bound(gpa);
  if (next == regions_.begin()) return nullptr;
  const Region& region = std::prev(next)->second;
  return gpa - region.spec.gpa < region.spec.size_bytes ? &region : nullptr;
}

uint8_t* GuestMemory::At(uint64_t gpa, uint64_t size_bytes) const {
  const Region* region = Find(gpa);
  if (region == nullptr) return nullptr;
  const uint64_t offset = gpa - region->spec.gpa;
  return size_bytes <= region->spec.size_bytes - offset ? region->host + offset : nullptr;
}

std::span<uint8_t> GuestMemory::Span(uint64_t gpa, uint64_t size_bytes) const {
  uint8_t* bytes = At(gpa, size_bytes);
  CLEAT_CHECK(bytes != nullptr);
  return {bytes, size_bytes};
}

uint64_t GuestMemory::UserAddress(uint64_t gpa) const {
  return reinterpret_cast<uint64_t>(Span(gpa, 1).data());
}

bool GuestMemory::Take(Region& region, uint64_t size_bytes, uint64_t alignment, uint64_t* gpa) {
  for (auto extent = region.free.begin(); extent != region.free.end(); ++extent) {
    const auto [start, bytes] = *extent;
    const uint64_t aligned = (start + alignment - 1) & ~(alignment - 1);
    const uint64_t lead = aligned - start;
    if (lead > bytes || size_bytes > bytes - lead) continue;
    region.free.erase(extent);
    if (lead != 0) region.free.emplace(start, lead);
    if (lead + size_bytes != bytes) region.free.emplace(aligned + size_bytes, bytes - lead - size_bytes);
    region.allocated_bytes += size_bytes;
    std::memset(region.host + (aligned - region.spec.gpa), 0, size_bytes);
    *gpa = aligned;
    return true;
  }
  return false;
}

Result<uint64_t> GuestMemory::Allocate(uint64_t size_bytes, uint64_t alignment) {
  CLEAT_CHECK(size_bytes > 0 && std::has_single_bit(alignment));
  uint64_t gpa = 0;
  for (auto& [start, region] : regions_) {
    if (Take(region, size_bytes, alignment, &gpa)) return gpa;
  }
  return Error(ErrorCode::kResourceExhausted, fmt::format("guest memory has no {} free bytes", size_bytes));
}

Result<uint64_t> GuestMemory::AllocateIn(uint64_t region_gpa, uint64_t size_bytes, uint64_t alignment) {
  CLEAT_CHECK(size_bytes > 0 && std::has_single_bit(alignment));
  auto found = regions_.find(region_gpa);
  uint64_t gpa = 0;
  if (found != regions_.end() && Take(found->second, size_bytes, alignment, &gpa)) return gpa;
  return Error(ErrorCode::kResourceExhausted,
               fmt::format("guest memory at {:#x} has no {} free bytes", region_gpa, size_bytes));
}

void GuestMemory::Free(uint64_t gpa, uint64_t size_bytes) {
  Region* region = const_cast<Region*>(Find(gpa));
  CLEAT_CHECK(region != nullptr && region->allocated_bytes >= size_bytes);
  region->allocated_bytes -= size_bytes;
  auto next = region->free.upper_bound(gpa);
  CLEAT_CHECK(next == region->free.end() || gpa + size_bytes <= next->first);
  if (next != region->free.end() && gpa + size_bytes == next->first) {
    size_bytes += next->second;
    next = region->free.erase(next);
  }
  if (next != region->free.begin()) {
    auto previous = std::prev(next);
    CLEAT_CHECK(previous->first + previous->second <= gpa);
    if (previous->first + previous->second == gpa) {
      previous->second += size_bytes;
      return;
    }
  }
  region->free.emplace(gpa, size_bytes);
}

Status GuestMemory::GiveBack(uint64_t gpa, uint64_t size_bytes) {
  const Region* region = Find(gpa);
  CLEAT_CHECK(region != nullptr && gpa % kPageBytes == 0 && size_bytes % kPageBytes == 0);
  const uint64_t offset = gpa - region->spec.gpa;
  CLEAT_CHECK(size_bytes <= region->spec.size_bytes - offset);
  if (fallocate(region->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(region->spec.file_offset_bytes + offset),
                static_cast<off_t>(size_bytes)) == 0)
    return Ok{};
  return ErrnoError(errno, fmt::format("guest memory at {:#x} can't be given back", gpa));
}

std::vector<wire::MemoryRegion> GuestMemory::Table() const {
  std::vector<wire::MemoryRegion> table;
  for (const auto& [gpa, region] : regions_) {
    table.push_back({.gpa = gpa,
                     .size_bytes = region.spec.size_bytes,
                     .user_addr = reinterpret_cast<uint64_t>(region.host),
                     .mmap_offset_bytes = region.spec.file_offset_bytes});
  }
  return table;
}

std::vector<int> GuestMemory::Fds() const {
  std::vector<int> fds;
  for (const auto& [gpa, region] : regions_) fds.push_back(region.fd.get());
  return fds;
}

uint64_t GuestMemory::EndGpa() const {
  if (regions_.empty()) return 0;
  const Region& last = regions_.rbegin()->second;
  return last.spec.gpa + last.spec.size_bytes;
}

}  // namespace cleat::perf
