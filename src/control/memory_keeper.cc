// SPDX-License-Identifier: Apache-2.0
#include "control/memory_keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "control/names.h"

namespace cleat::control {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

Status MemoryKeeper::Make(const std::string& disk_id, uint64_t size_bytes) {
  const std::string disk = DiskName(disk_id);
  UniqueFd memory(memfd_create(("cleat:" + disk).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return ErrnoError(errno, disk + ": memory can't be had");
  if (ftruncate(memory.get(), static_cast<off_t>(size_bytes)) != 0) {
    return ErrnoError(errno, fmt::format("{}: {} bytes of memory can't be had", disk, size_bytes));
  }
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0)
    return ErrnoError(errno, disk + ": memory can't be sealed");
  const std::lock_guard lock(mutex_);
  memories_[disk_id] = std::move(memory);
  return Ok{};
}

Status MemoryKeeper::Adopt(const std::string& disk_id, uint64_t size_bytes, UniqueFd memory) {
  struct stat info {};
  const int seals = memory.valid() ? fcntl(memory.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(memory.get(), &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != size_bytes) {
    return Error(
        ErrorCode::kDataLoss,
        fmt::format("{}: what the engine kept is not the {} bytes of sealed memory that it was given",
                    DiskName(disk_id), size_bytes));
  }
  const std::lock_guard lock(mutex_);
  memories_[disk_id] = std::move(memory);
  return Ok{};
}

bool MemoryKeeper::Has(const std::string& disk_id) const {
  const std::lock_guard lock(mutex_);
  return memories_.contains(disk_id);
}

UniqueFd MemoryKeeper::Share(const std::string& disk_id) const {
  const std::lock_guard lock(mutex_);
  const auto it = memories_.find(disk_id);
  return it == memories_.end() ? UniqueFd() : it->second.Duplicate();
}

void MemoryKeeper::Drop(const std::string& disk_id) {
  const std::lock_guard lock(mutex_);
  memories_.erase(disk_id);
}

}  // namespace cleat::control
