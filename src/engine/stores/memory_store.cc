// SPDX-License-Identifier: Apache-2.0
#include "engine/stores/memory_store.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

namespace cleat::engine {
namespace {

Status CheckSize(const MemoryReport& memory, const UniqueFd& fd) {
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) return ErrnoError(errno, memory.disk + ": fstat of its memory");
  if (static_cast<uint64_t>(file.st_size) >= memory.size_bytes) return Ok{};
  return Error(ErrorCode::kInvalidArgument, memory.disk + ": its memory has " + std::to_string(file.st_size) +
                                                " bytes, not " + std::to_string(memory.size_bytes));
}

}  // namespace

Status MemoryStore::Keep(const MemoryReport& memory, UniqueFd fd) {
  if (!fd) {
    return Error(ErrorCode::kInvalidArgument, memory.disk + ": its memory came without a descriptor");
  }
  const auto found = kept_.find(memory.disk);
  if (found != kept_.end()) {
    if (found->second.size_bytes == memory.size_bytes) return Ok{};
    return Error(ErrorCode::kAlreadyExists, memory.disk + ": memory of " +
                                                std::to_string(found->second.size_bytes) +
                                                " bytes is kept under this name, not " +
                                                std::to_string(memory.size_bytes) + "; drop it first");
  }
  if (kept_.size() >= kMemoriesMax) {
    return Error(ErrorCode::kResourceExhausted, memory.disk + ": this engine keeps " +
                                                    std::to_string(kMemoriesMax) + " memory disks already");
  }
  CLEAT_TRY(CheckSize(memory, fd));
  kept_.emplace(memory.disk, Kept{memory.size_bytes, memory.fixed, std::move(fd)});
  return Ok{};
}

Status MemoryStore::Grow(const std::string& disk, uint64_t size_bytes) {
  const auto found = kept_.find(disk);
  if (found == kept_.end()) return Ok{};
  Kept& kept = found->second;
  if (kept.fixed || kept.size_bytes == size_bytes) return Ok{};
  if (size_bytes < kept.size_bytes) {
    return Error(ErrorCode::kInvalidArgument, disk + ": its memory can't shrink from " +
                                                  std::to_string(kept.size_bytes) + " to " +
                                                  std::to_string(size_bytes) + " bytes");
  }
  Status enough = CheckSize({disk, size_bytes}, kept.fd);
  if (enough) kept.size_bytes = size_bytes;
  return enough;
}

void MemoryStore::Drop(const std::string& disk) {
  kept_.erase(disk);
}

Result<UniqueFd> MemoryStore::Duplicate(const std::string& disk) const {
  const auto found = kept_.find(disk);
  if (found == kept_.end()) {
    return Error(ErrorCode::kNotFound, disk + ": this engine keeps no memory of that disk");
  }
  UniqueFd copy = found->second.fd.Duplicate();
  if (!copy) return ErrnoError(errno, disk + ": duplicating its memory's descriptor");
  return copy;
}

std::vector<MemoryReport> MemoryStore::Report() const {
  std::vector<MemoryReport> report;
  report.reserve(kept_.size());
  for (const auto& [disk, kept] : kept_) report.push_back({disk, kept.size_bytes, kept.fixed});
  return report;
}

}  // namespace cleat::engine
