// SPDX-License-Identifier: Apache-2.0
#include "control/state/disks/memfd_keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <utility>

#include "base/log.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "nvme/host/doubt/doubt_log.h"

namespace cleat::control {
namespace {

constexpr int kSeals = F_SEAL_SHRINK;

Result<UniqueFd> NewMemory(const std::string& disk_id, uint64_t size_bytes) {
  const std::string disk = DiskName(disk_id);
  UniqueFd memory(memfd_create(("cleat:" + disk).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return ErrnoError(errno, disk + ": memory can't be had");
  if (ftruncate(memory.get(), static_cast<off_t>(size_bytes)) != 0) {
    return ErrnoError(errno, fmt::format("{}: {} bytes of memory can't be had", disk, size_bytes));
  }
  if (fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0)
    return ErrnoError(errno, disk + ": memory can't be sealed");
  return memory;
}

}  // namespace

Status MemfdKeeper::Make(const std::string& disk_id, uint64_t size_bytes) {
  CLEAT_ASSIGN(auto memory, NewMemory(disk_id, size_bytes));
  Put(disk_id, std::move(memory), Origin::kNew);
  return Ok{};
}

Status MemfdKeeper::MakeLostLog(const std::string& disk_id) {
  const std::string disk = DiskName(disk_id);
  CLEAT_ASSIGN(auto memory, NewMemory(disk_id, nvme::host::kDoubtLogBytes));
  // A number of its own, so that nobody's word for what another log had fits this one.
  const auto header = nvme::host::DoubtLog::LostHeader(std::random_device()());
  if (pwrite(memory.get(), header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()))
    return ErrnoError(errno, disk + ": memory can't be written");
  Put(disk_id, std::move(memory), Origin::kLostLog);
  spdlog::warn(
      "{}: log of writes in doubt lost: the whole disk is in doubt, its reads go and its writes wait; see "
      "that its target executes nothing any more of what this host has sent, then cleatctl disk "
      "confirm-dead {}",
      disk, disk_id);
  return Ok{};
}

Status MemfdKeeper::Adopt(const std::string& disk_id, uint64_t size_bytes, UniqueFd memory) {
  struct stat info {};
  const int seals = memory.valid() ? fcntl(memory.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(memory.get(), &info) != 0 ||
      static_cast<uint64_t>(info.st_size) < size_bytes) {
    return Error(
        ErrorCode::kDataLoss,
        fmt::format("{}: what the engine kept is not the {} bytes of sealed memory that it was given",
                    DiskName(disk_id), size_bytes));
  }
  Put(disk_id, std::move(memory), Origin::kUsed);
  return Ok{};
}

Status MemfdKeeper::Grow(const std::string& disk_id, uint64_t size_bytes) {
  const std::string disk = DiskName(disk_id);
  const UniqueFd memory = Share(disk_id);
  if (!memory.valid()) {
    return RefuseFor(
        disk, v1::REASON_MEMORY_NOT_HERE,
        fmt::format("{} can't grow now: its memory is held by an engine that is not connected", disk));
  }
  struct stat info {};
  if (fstat(memory.get(), &info) == 0 && static_cast<uint64_t>(info.st_size) >= size_bytes) return Ok{};
  if (ftruncate(memory.get(), static_cast<off_t>(size_bytes)) == 0) return Ok{};
  if (errno == EPERM) {
    return RefuseFor(
        disk, v1::REASON_MEMORY_FIXED,
        fmt::format("{} can't grow: it was made by a version of cleatd that sealed its size. Make a larger "
                    "disk and copy",
                    disk));
  }
  return RefuseFor(
      disk, v1::REASON_HOST_OUT_OF_SPACE,
      ErrnoError(errno, fmt::format("{}: {} bytes of memory can't be had", disk, size_bytes)).message);
}

bool MemfdKeeper::Has(const std::string& disk_id) const {
  const MutexLock lock(mutex_);
  return memories_.contains(disk_id);
}

bool MemfdKeeper::IsLostLog(const std::string& disk_id) const {
  return Is(disk_id, Origin::kLostLog);
}

bool MemfdKeeper::IsUsed(const std::string& disk_id) const {
  return Is(disk_id, Origin::kUsed);
}

bool MemfdKeeper::Is(const std::string& disk_id, Origin origin) const {
  const MutexLock lock(mutex_);
  const auto it = memories_.find(disk_id);
  return it != memories_.end() && it->second.origin == origin;
}

UniqueFd MemfdKeeper::Share(const std::string& disk_id) const {
  const MutexLock lock(mutex_);
  const auto it = memories_.find(disk_id);
  return it == memories_.end() ? UniqueFd() : it->second.file.Duplicate();
}

void MemfdKeeper::Drop(const std::string& disk_id) {
  const MutexLock lock(mutex_);
  memories_.erase(disk_id);
}

void MemfdKeeper::SetUsed(const std::string& disk_id) {
  const MutexLock lock(mutex_);
  if (const auto it = memories_.find(disk_id); it != memories_.end()) it->second.origin = Origin::kUsed;
}

void MemfdKeeper::Put(const std::string& disk_id, UniqueFd memory, Origin origin) {
  const MutexLock lock(mutex_);
  memories_[disk_id] = {.file = std::move(memory), .origin = origin};
}

}  // namespace cleat::control
