// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/placement.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "modules/uring/uring_file.h"
#include "pool/drive.h"
#include "pool/extent_map.h"
#include "pool/map_cache.h"
#include "pool/pool_drive.h"

namespace cleat::modules {
namespace {

constexpr uint64_t kStepBytes = uint64_t{1} << 20;

std::string Text(uint64_t number) {
  return std::to_string(number);
}

// For reading alone, through the open file of the disk, whatever its O_DIRECT asks of memory. Its errors say "the drive".
class OpenDrive final : public pool::Drive {
 public:
  OpenDrive(int fd, uint64_t size_bytes) : fd_(fd), size_bytes_(size_bytes) {}

  uint64_t size_bytes() const override { return size_bytes_; }

  Status Read(uint64_t offset_bytes, std::span<uint8_t> to) override {
    if (!HaveMemory(std::min<uint64_t>(to.size(), kStepBytes)))
      return ErrnoError(ENOMEM, "reading the drive");
    while (!to.empty()) {
      const auto got = pread(fd_, memory_.get(), std::min<uint64_t>(to.size(), memory_bytes_),
                             static_cast<off_t>(offset_bytes));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Error(ErrorCode::kIo, ErrnoError(errno, At(offset_bytes)).message);
      if (got == 0) return Error(ErrorCode::kIo, At(offset_bytes) + ": it ends there");
      std::memcpy(to.data(), memory_.get(), static_cast<size_t>(got));
      to = to.subspan(static_cast<size_t>(got));
      offset_bytes += static_cast<uint64_t>(got);
    }
    return Ok{};
  }
  Status Write(uint64_t /*offset_bytes*/, std::span<const uint8_t> /*from*/) override { return ReadsAlone(); }
  Status Zero(uint64_t /*offset_bytes*/, uint64_t /*length_bytes*/) override { return ReadsAlone(); }
  Status Flush() override { return ReadsAlone(); }

 private:
  static std::string At(uint64_t offset_bytes) { return "reading the drive at byte " + Text(offset_bytes); }
  static Status ReadsAlone() { return Error(ErrorCode::kInternal, "engines do not write here"); }

  // As a rule nothing but single blocks are read, for which the allocator has no need to ask the kernel.
  bool HaveMemory(uint64_t bytes) {
    if (bytes <= memory_bytes_) return true;
    memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(pool::kBlockBytes, bytes)));
    memory_bytes_ = memory_ != nullptr ? bytes : 0;
    return memory_ != nullptr;
  }

  const int fd_;
  const uint64_t size_bytes_;
  std::unique_ptr<uint8_t, decltype(&std::free)> memory_{nullptr, &std::free};
  uint64_t memory_bytes_ = 0;  // whole blocks
};

// A block device is itself, by whichever node it was opened.
Result<pool::DriveId> IdOf(const UringFile& file, const std::string& what) {
  struct stat status {};
  if (fstat(file.fd.get(), &status) != 0) return ErrnoError(errno, what + " can't be examined");
  if (S_ISBLK(status.st_mode)) return pool::DriveId{.device = status.st_rdev, .file = 0};
  return pool::DriveId{.device = status.st_dev, .file = status.st_ino};
}

Error Refused(const std::string& why) {
  return {ErrorCode::kFailedPrecondition, why};
}

Status LabelIsOurs(const pool::Label& label, const Placement& placement, uint64_t drive_bytes) {
  if (label.pool != placement.pool) {
    return Refused("the drive is one of pool " + pool::TextOf(label.pool) + " (" + label.name +
                   "), the disk is of pool " + pool::TextOf(placement.pool) +
                   ": correct the pool's device, or find the drive that is the pool's");
  }
  if (label.extent_bytes != placement.extent_bytes) {
    return Refused("the drive has extents of " + Text(label.extent_bytes) +
                   " bytes, the disk was made of extents of " + Text(placement.extent_bytes));
  }
  const uint64_t extents =
      std::min<uint64_t>(label.extents, pool::ExtentsOn(drive_bytes, label.extent_bytes));
  for (const pool::ExtentRun& run : placement.runs) {
    if (run.end() <= extents) continue;
    return Refused("the drive has " + Text(extents) + " extents, the disk's reach to number " +
                   Text(run.end() - 1) + ": it has become smaller, or is another one");
  }
  return Ok{};
}

Status MapHasDisk(const pool::MapIndex* map, const Placement& placement) {
  const auto not_yet = [](const std::string& why) {
    return Error(ErrorCode::kUnavailable, why + ": tried again until cleatd has written it");
  };
  if (map == nullptr) return not_yet("the drive has no copy of the pool's map yet");
  if (map->Has(placement.identity, placement.runs)) return Ok{};
  return not_yet("the drive has a copy of the pool's map, of generation " + Text(map->generation()) +
                 ", that does not have the disk with these extents yet");
}

Status CheckLabelAndMap(const Placement& placement, const pool::DriveId& id, OpenDrive& drive,
                        pool::MapCache& maps) {
  CLEAT_ASSIGN(const auto label, pool::ReadLabel(drive));
  if (!label)
    return Refused(
        "the drive carries no label of a pool: correct the pool's device, or find the drive that is the "
        "pool's");
  CLEAT_TRY(LabelIsOurs(*label, placement, drive.size_bytes()));
  CLEAT_ASSIGN(const auto map, maps.Read(id, drive, *label));
  return MapHasDisk(map.get(), placement);
}

Status CheckDrive(const Placement& placement, const UringFile& file, const std::string& what) {
  CLEAT_ASSIGN(const uint64_t drive_bytes, UringFileBytes(file, what));
  CLEAT_ASSIGN(const pool::DriveId id, IdOf(file, what));
  CLEAT_CHECK(file.maps != nullptr);
  OpenDrive drive(file.fd.get(), drive_bytes);
  const Status checked = CheckLabelAndMap(placement, id, drive, *file.maps);
  if (!checked) return Error(checked.error().code, what + ": " + checked.error().message);
  return Ok{};
}

}  // namespace

Status CheckPlacement(const UringFile& file, const std::string& what) {
  if (!file.placement) return Ok{};
  return CheckDrive(*file.placement, file, what);
}

Result<Growth> GrowthOf(const Placement& now, const pool::ExtentRuns& runs, const std::string& what) {
  const pool::ExtentRuns before = pool::Joined(now.runs);
  pool::ExtentRuns more = pool::Joined(runs);
  if (!pool::AreWithin(runs, pool::kExtentsMax) || !pool::BeginsWith(more, before)) {
    return Error(ErrorCode::kInvalidArgument,
                 what +
                     ": the extents that the disk is to have are not those that it has, and more: detach "
                     "it, and attach it again");
  }
  Growth growth{.placement = now, .extents = pool::ExtentMap(now.extent_bytes, runs), .more = {}};
  growth.placement.runs = runs;
  const size_t last = before.size() - 1;
  more.erase(more.begin(), more.begin() + static_cast<ptrdiff_t>(last));
  more.front().first += before[last].count;
  more.front().count -= before[last].count;
  if (more.front().count == 0) more.erase(more.begin());
  if (!more.empty()) growth.more = pool::ExtentMap(now.extent_bytes, more).Ranges();
  return growth;
}

Status CheckGrowth(const Growth& growth, const UringFile& file, const std::string& what) {
  return CheckDrive(growth.placement, file, what);
}

Status PlaceOnDrive(const Placement& placement, uint64_t size_bytes, const std::string& what,
                    pool::MapCache& maps, UringFile& file) {
  file.placement = placement;
  file.maps = &maps;
  CLEAT_TRY(CheckPlacement(file, what));
  pool::ExtentMap extents(placement.extent_bytes, placement.runs);
  if (size_bytes > extents.size_bytes()) {
    return Refused(what + ": the disk has " + Text(size_bytes) + " bytes, its extents " +
                   Text(extents.size_bytes()));
  }
  file.extents = std::move(extents);
  return Ok{};
}

}  // namespace cleat::modules
