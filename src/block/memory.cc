// SPDX-License-Identifier: Apache-2.0
#include "block/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace cleat::block {
MemoryRegion::MemoryRegion(uint8_t* base, uint64_t size_bytes, void* mapping, uint64_t mapping_bytes,
                           MemoryGuard guard, std::unique_ptr<MemoryRegistration> registration)
    : base_(base),
      size_bytes_(size_bytes),
      mapping_(mapping),
      mapping_bytes_(mapping_bytes),
      guard_(std::move(guard)),
      registration_(std::move(registration)) {}

MemoryRegion::~MemoryRegion() {
  guard_.reset();
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
  if (registration_ != nullptr) registration_->End();
}

Status MemoryRegion::CheckInMemory(const UniqueFd& fd) {
  // Only files of these two kinds have seals, and asking for them asks no file system anything.
  if (fcntl(fd.get(), F_GET_SEALS) >= 0) return Ok{};
  if (errno == EBADF) return ErrnoError(errno, "memory region");
  return Error(ErrorCode::kInvalidArgument,
               "its file is neither in memory (memfd, tmpfs) nor in huge pages (hugetlbfs); a page of "
               "any other may take as long to come as its storage does, and other guests would wait for it");
}

Result<std::shared_ptr<MemoryRegion>> MemoryRegion::Map(const UniqueFd& fd, uint64_t fd_offset,
                                                        uint64_t size_bytes,
                                                        std::unique_ptr<MemoryRegistration> registration) {
  CLEAT_TRY(CheckInMemory(fd));
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) return ErrnoError(errno, "memory region: fstat");
  const auto file_bytes = static_cast<uint64_t>(file.st_size);
  // A peer's mistake is told at once; what becomes of the file later is the guard's affair.
  if (size_bytes == 0 || size_bytes > file_bytes || fd_offset > file_bytes - size_bytes) {
    return Error(ErrorCode::kInvalidArgument, "memory region of " + std::to_string(size_bytes) +
                                                  " bytes at offset " + std::to_string(fd_offset) +
                                                  " is outside its file of " + std::to_string(file_bytes) +
                                                  " bytes");
  }
  // A hugetlbfs file's block is its huge page: offset and length of both mmap and munmap must be multiples of
  // it.
  const auto page_bytes =
      static_cast<uint64_t>(std::max<int64_t>(sysconf(_SC_PAGESIZE), static_cast<int64_t>(file.st_blksize)));
  const uint64_t lead = fd_offset % page_bytes;
  const uint64_t mapping_bytes = (size_bytes + lead + page_bytes - 1) / page_bytes * page_bytes;
  void* mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(),
                       static_cast<off_t>(fd_offset - lead));
  if (mapping == MAP_FAILED) return ErrnoError(errno, "memory region: mmap");
  auto guard = MemoryGuard::Watch(mapping, mapping_bytes, page_bytes);
  if (!guard) {
    munmap(mapping, mapping_bytes);
    return std::move(guard).error();
  }
  return std::shared_ptr<MemoryRegion>(new MemoryRegion(static_cast<uint8_t*>(mapping) + lead, size_bytes,
                                                        mapping, mapping_bytes, std::move(guard).value(),
                                                        std::move(registration)));
}

std::shared_ptr<MemoryRegion> MemoryRegion::Borrow(void* base, uint64_t size_bytes,
                                                   std::unique_ptr<MemoryRegistration> registration) {
  return std::shared_ptr<MemoryRegion>(new MemoryRegion(static_cast<uint8_t*>(base), size_bytes, nullptr, 0,
                                                        MemoryGuard(), std::move(registration)));
}

Result<std::shared_ptr<const MemoryMap>> MemoryMap::Make(std::vector<Entry> entries) {
  if (entries.size() > kEntriesMax) {
    return Error(ErrorCode::kInvalidArgument, "memory map of " + std::to_string(entries.size()) +
                                                  " regions: at most " + std::to_string(kEntriesMax));
  }
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries) {
    if (entry.region->size_bytes() > UINT64_MAX - entry.guest_address) {
      return Error(ErrorCode::kInvalidArgument, "memory region goes beyond the guest's address space");
    }
    sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Entry* a, const Entry* b) { return a->guest_address < b->guest_address; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->guest_address - sorted[i - 1]->guest_address < sorted[i - 1]->region->size_bytes()) {
      return Error(ErrorCode::kInvalidArgument, "memory regions overlap in the guest's address space");
    }
  }
  return std::shared_ptr<const MemoryMap>(new MemoryMap(std::move(entries)));
}

MemoryMap::MemoryMap(std::vector<Entry> entries) : entries_(std::move(entries)) {
  for (const Entry& entry : entries_) {
    ranges_.push_back({entry.guest_address, entry.region->size_bytes(), entry.region.get()});
  }
}

uint8_t* MemoryMap::Contiguous(uint64_t guest_address, uint64_t length_bytes) const {
  const Segment segment = Translate(guest_address, length_bytes);
  return segment.length_bytes == length_bytes && length_bytes > 0 ? segment.data() : nullptr;
}

}  // namespace cleat::block
