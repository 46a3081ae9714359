// SPDX-License-Identifier: Apache-2.0
// The file or block device behind a uring disk: opened, examined, locked. Every call may block on the file
// system and belongs on a BlockingPool's thread, never on a reactor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "block/device.h"
#include "modules/uring/placement.h"
#include "pool/extent_map.h"

namespace cleat::modules {

struct UringOptions;

struct UringFile {
  UniqueFd fd;
  // Where the disk lies on it: all of it, or the extents of a pool's disk, which alone are then locked.
  pool::ExtentMap extents;
  // Block devices, while locked for writing as a whole: the kernel's exclusive claim, which is the device's, not the
  // node's, and keeps out mounts, partitions of it and the disk that it is a partition of.
  UniqueFd claim;
  bool block_device = false;
  std::optional<Placement> placement;  // of a disk of a pool, on the node that the label is read from
  pool::MapCache* maps = nullptr;      // then
  // The byte, far behind any file's end, whose lock stands for this user among those who read the file. 0: nobody's.
  uint64_t user_byte = 0;
  // O_DIRECT is on, and what it asks of buffers' addresses and of their lengths and offsets (powers of two).
  // 1: anything.
  bool direct = false;
  uint32_t memory_align = 1;
  uint32_t length_align = 1;
  bool discard = false;
  uint32_t discard_granularity_bytes = 0;
};

// `maps`, which outlives the file: of the drives of pools. Errors: see OpenUring.
Result<UringFile> OpenUringFile(const UringOptions& options, pool::MapCache& maps);

// What the file or block device holds at present.
// `what` begins errors.
Result<uint64_t> UringFileBytes(const UringFile& file, const std::string& what);

// kFailedPrecondition when that, or what its extents hold, is less than the disk is to have.
Status CheckRoomFor(uint64_t size_bytes, const UringFile& file, const std::string& who,
                    const std::string& path);

// The byte that stands for a user of the file, or of those extents of it: no other one's, but for one chance in 2^61.
uint64_t UserByte(const std::string& user, const UringFile& file);

// Why a lock was not granted.
enum class LockRefusal : uint8_t {
  kHeld,       // somebody else holds it: see lock_holder.h
  kNotThere,   // the drive of a pool does not have the disk: see placement.h
  kLateReads,  // the user before this one has reads under way, and is no process any more, or about to end
};
// Takes the lock that says who may use the file, or the disk's extents of it: exclusive to write, shared to read. Disks with extents of one
// drive keep each other out where they share one, and keep out whoever locks all of it to write. Never waits: kUnavailable when
// it has to be waited for (`refusal` says why), kFailedPrecondition when a block device is claimed by others. `who`
// and `path` are for the error.
Status LockUringFile(UringFile& file, block::AccessMode mode, const std::string& who, const std::string& path,
                     LockRefusal* refusal);
Status UnlockUringFile(UringFile& file, const std::string& who, const std::string& path);
// Of a disk of a pool that is locked for `mode`: takes the locks of these ranges beside those that it has, or none of them. Never waits:
// kUnavailable, as LockUringFile.
Status LockMore(const UringFile& file, block::AccessMode mode, const std::vector<pool::DriveRange>& more,
                const std::string& who, const std::string& path);
void UnlockMore(const UringFile& file, const std::vector<pool::DriveRange>& more);

}  // namespace cleat::modules
