// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/uring_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "base/file_lock.h"
#include "base/listed_open.h"
#include "base/log.h"
#include "modules/uring/uring.h"

namespace cleat::modules {
namespace {

using block::AccessMode;

constexpr uint32_t kAlignMax = 4096;  // of O_DIRECT; what asks for more gets the page cache

std::string Text(uint64_t number) {
  return std::to_string(number);
}

Error WhyNotOpen(int error_number, const UringOptions& options, const std::string& what) {
  const bool writes = options.access == AccessMode::kReadWrite;
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return {ErrorCode::kNotFound, what + " does not exist: make it (truncate -s " +
                                        Text(options.shape.size_bytes) + " " + options.path +
                                        ") or correct the path"};
    case EACCES:
    case EPERM:
      return {ErrorCode::kPermissionDenied,
              what + " may not be " + (writes ? "written" : "read") + " by user " + Text(geteuid()) +
                  ": give that user the right to, on the file and on the folders above it"};
    case EROFS:
      return {ErrorCode::kPermissionDenied,
              what + " is on a read-only file system or device: use it read-only, or make that writable"};
    case EISDIR:
      return {ErrorCode::kFailedPrecondition, what + " is a folder: name a regular file or a block device"};
    default:
      return ErrnoError(error_number, what + " can't be opened");
  }
}

Result<uint64_t> SizeOf(int fd, const struct stat& file, const std::string& what) {
  if (S_ISREG(file.st_mode)) return static_cast<uint64_t>(file.st_size);
  uint64_t bytes = 0;
  if (ioctl(fd, BLKGETSIZE64, &bytes) != 0) return ErrnoError(errno, what + ": asking for its size");
  return bytes;
}

// A number from the block device's queue in sysfs (a partition's is its disk's); 0 when there is none.
uint64_t QueueLimit(dev_t device, const char* name) {
  const std::string base = "/sys/dev/block/" + Text(major(device)) + ":" + Text(minor(device));
  for (const char* queue : {"/queue/", "/../queue/"}) {
    uint64_t value = 0;
    if (std::ifstream stream(base + queue + name); stream >> value) return value;
  }
  return 0;
}

void ExamineDiscard(const struct stat& file, uint32_t logical_block_bytes, UringFile& result) {
  uint64_t granularity = static_cast<uint64_t>(file.st_blksize);
  result.discard = true;  // files: where punching holes turns out not to work, a discard does nothing
  if (result.block_device) {
    result.discard = QueueLimit(file.st_rdev, "discard_max_bytes") > 0;
    granularity = QueueLimit(file.st_rdev, "discard_granularity");
  }
  granularity = std::clamp<uint64_t>(granularity, logical_block_bytes, 1U << 20);
  result.discard_granularity_bytes = static_cast<uint32_t>(granularity - granularity % logical_block_bytes);
}

// Whether a read at `align`, and at nothing better aligned, works. The file is at least one logical block
// long.
bool DirectReadWorks(int fd, uint32_t memory_align, uint32_t length_align) {
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(kAlignMax, 3 * kAlignMax),
                                                           &std::free);
  if (memory == nullptr) return false;
  uint8_t* buffer = static_cast<uint8_t*>(memory.get()) + memory_align;
  return pread(fd, buffer, length_align, 0) >= 0 ||
         errno != EINVAL;  // other errors will show where they matter
}

struct DirectAlign {
  uint32_t memory = 0;
  uint32_t length = 0;  // 0: no O_DIRECT
};

// O_DIRECT is on already. What the file system says (Linux 6.1), or the smallest that a read proves.
DirectAlign FindDirectAlign(int fd, uint32_t logical_block_bytes) {
#ifdef STATX_DIOALIGN
  struct statx told {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &told) == 0 && (told.stx_mask & STATX_DIOALIGN) != 0) {
    const bool usable =
        std::has_single_bit(told.stx_dio_mem_align) && std::has_single_bit(told.stx_dio_offset_align) &&
        told.stx_dio_mem_align <= kAlignMax && told.stx_dio_offset_align <= logical_block_bytes;
    if (usable && DirectReadWorks(fd, told.stx_dio_mem_align, told.stx_dio_offset_align)) {
      return {told.stx_dio_mem_align, told.stx_dio_offset_align};
    }
    return {};
  }
#endif
  for (const uint32_t align : {512U, 4096U}) {
    if (align <= logical_block_bytes && DirectReadWorks(fd, align, align)) return {align, align};
  }
  return {};
}

// Decides between O_DIRECT and the page cache and sets the open file's flags accordingly; also clears
// O_NONBLOCK.
Status ChooseDirect(const UringOptions& options, const std::string& what, UringFile& file) {
  DirectAlign align;
  if (options.direct_io && fcntl(file.fd.get(), F_SETFL, O_DIRECT) == 0) {
    align = FindDirectAlign(file.fd.get(), options.shape.logical_block_bytes);
  }
  if (align.length != 0) {
    file.direct = true;
    file.memory_align = align.memory;
    file.length_align = align.length;
    return Ok{};
  }
  if (fcntl(file.fd.get(), F_SETFL, 0) != 0) return ErrnoError(errno, what + ": setting its flags");
  if (options.direct_io) {
    spdlog::info("{}: page cache in use: no O_DIRECT with blocks of {} bytes", what,
                 options.shape.logical_block_bytes);
  }
  return Ok{};
}

// The same device again, exclusively (open(2), O_EXCL without O_CREAT). The lock on the open file that does the
// I/O is what outlives a killed process; this is what other nodes of the device see.
Status Claim(UringFile& file, const std::string& what) {
  const std::string same = "/proc/self/fd/" + Text(static_cast<uint64_t>(file.fd.get()));
  file.claim = UniqueFd(open(same.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC | O_NONBLOCK));
  if (file.claim) return Ok{};
  if (errno == EBUSY) {
    return Error(ErrorCode::kFailedPrecondition,
                 what +
                     " is in use: it, a partition of it or the disk that it is a partition of is mounted, "
                     "or opened exclusively (lsblk, dmsetup ls and lslocks show it): end that use, then try "
                     "again");
  }
  return ErrnoError(errno, what + " can't be opened exclusively");
}

// What is locked of a file's content by those who read it together, and where users' bytes begin: no file is as long.
constexpr uint64_t kUserBytesFrom = uint64_t{1} << 61;

// 0, or the errno.
int LockRange(const UringFile& file, short type, uint64_t start, uint64_t length) {
  struct flock range = FileRange(type, start, length);
  return fcntl(file.fd.get(), F_OFD_SETLK, &range) == 0 ? 0 : errno;
}

// Of the open file all ranges below users' bytes, at once.
void UnlockRanges(const UringFile& file) {
  LockRange(file, F_UNLCK, 0, kUserBytesFrom);
}

// All of these, or none.
int LockRanges(const UringFile& file, short type, const std::vector<pool::DriveRange>& ranges) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const int failed = LockRange(file, type, ranges[i].first_byte, ranges[i].bytes);
    if (failed == 0) continue;
    while (i-- > 0) LockRange(file, F_UNLCK, ranges[i].first_byte, ranges[i].bytes);
    return failed;
  }
  return 0;
}

// A pool's disk: each of its extents, or none. Block devices have a shared flock beside, which keeps out those who lock all of one to write.
int LockExtents(const UringFile& file, short type) {
  const int fd = file.fd.get();
  if (type == F_UNLCK) {
    UnlockRanges(file);
    return file.block_device && flock(fd, LOCK_UN) != 0 ? errno : 0;
  }
  if (file.block_device && flock(fd, LOCK_SH | LOCK_NB) != 0) return errno;
  const int failed = LockRanges(file, type, file.extents.Ranges());
  if (failed != 0 && file.block_device) flock(fd, LOCK_UN);
  return failed;
}

Error WhyNotLocked(int error_number, const std::string& what) {
  if (error_number != EAGAIN && error_number != EACCES && error_number != EWOULDBLOCK)
    return ErrnoError(error_number, what + " can't be locked");
  return {ErrorCode::kUnavailable,
          what +
              " is locked, by no process that can be seen: by a killed one whose last writes are still "
              "under way, or by one of another user (lslocks, as root, shows it): try again"};
}

// Of a file: who writes locks all there is, users' bytes too. Of a block device a flock, as udev and others do.
int LockContent(const UringFile& file, short type) {
  if (!file.extents.is_whole_drive()) return LockExtents(file, type);
  if (!file.block_device) return LockRange(file, type, 0, type == F_RDLCK ? kUserBytesFrom : 0);
  const int operation = type == F_UNLCK ? LOCK_UN : type == F_WRLCK ? LOCK_EX : LOCK_SH;
  return flock(file.fd.get(), operation | LOCK_NB) == 0 ? 0 : errno;
}

// A file that is open to be read alone can't be locked for writing, but it can be asked who would be in the way: whoever had this user's byte
// has it until the kernel has ended the last read of that open file, also when its process was killed.
Status LockUserByte(const UringFile& file, const std::string& what, LockRefusal* refusal) {
  struct flock other = FileRange(F_WRLCK, file.user_byte, 1);
  if (fcntl(file.fd.get(), F_OFD_GETLK, &other) != 0)
    return ErrnoError(errno, what + ": locks can't be looked at");
  // Engines before this one, and other programs, lock a file from its beginning on: they may be any user.
  if (other.l_type != F_UNLCK && other.l_start == static_cast<off_t>(file.user_byte)) {
    *refusal = LockRefusal::kLateReads;
    return Error(
        ErrorCode::kUnavailable,
        what + ": the last reads of the engine that served it here before are still under way: try again");
  }
  const int failed = LockRange(file, F_RDLCK, file.user_byte, 1);
  return failed == 0 ? Status(Ok{}) : Status(ErrnoError(failed, what + " can't be locked"));
}

}  // namespace

Result<UniqueFd> FindAnyFile(const std::string& path, const std::string& what) {
  UniqueFd found(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!found) return ErrnoError(errno == ENOTDIR ? ENOENT : errno, what + " can't be opened");
  return found;
}

Result<UringFile> OpenUringFile(const UringOptions& options, pool::MapCache& maps) {
  const std::string what = options.shape.name + ": " + options.path;
  // First without opening: opening a pipe or a terminal has effects.
  const auto found = options.find(options.path, what);
  if (!found && found.error().code == ErrorCode::kNotFound) return WhyNotOpen(ENOENT, options, what);
  CLEAT_TRY(found);
  struct stat status {};
  if (fstat(found.value().get(), &status) != 0) return ErrnoError(errno, what + ": fstat");
  const auto usable = [&status] { return S_ISREG(status.st_mode) || S_ISBLK(status.st_mode); };
  const auto unusable = [&] {
    if (S_ISDIR(status.st_mode)) return WhyNotOpen(EISDIR, options, what);
    return Error(ErrorCode::kFailedPrecondition,
                 what + " is neither a regular file nor a block device: name one of those");
  };
  if (!usable()) return unusable();

  UringFile file;
  const int access = options.access == AccessMode::kReadWrite ? O_RDWR : O_RDONLY;
  file.fd = ReopenAs(found.value(), access | O_NONBLOCK | O_NOCTTY);
  if (!file.fd) return WhyNotOpen(errno, options, what);
  file.block_device = S_ISBLK(status.st_mode);

  CLEAT_ASSIGN(const auto bytes, SizeOf(file.fd.get(), status, what));
  if (bytes < options.shape.size_bytes && !options.placement) {
    return Error(ErrorCode::kFailedPrecondition,
                 what + " has " + Text(bytes) + " bytes, the disk " + Text(options.shape.size_bytes) + ": " +
                     (file.block_device ? "enlarge the device"
                                        : "enlarge the file (truncate -s " + Text(options.shape.size_bytes) +
                                              " " + options.path + ")") +
                     " or make the disk anew with a smaller size");
  }
  ExamineDiscard(status, options.shape.logical_block_bytes, file);
  CLEAT_TRY(ChooseDirect(options, what, file));
  if (options.placement)
    CLEAT_TRY(PlaceOnDrive(*options.placement, options.shape.size_bytes, what, maps, file));
  return file;
}

Result<uint64_t> UringFileBytes(const UringFile& file, const std::string& what) {
  struct stat status {};
  if (fstat(file.fd.get(), &status) != 0) return ErrnoError(errno, what + " can't be examined");
  return SizeOf(file.fd.get(), status, what);
}

Status CheckRoomFor(uint64_t size_bytes, const UringFile& file, const std::string& who,
                    const std::string& path) {
  if (!file.extents.is_whole_drive()) {
    if (size_bytes <= file.extents.size_bytes()) return Ok{};
    return Error(ErrorCode::kFailedPrecondition, who + ": its extents of " + path + " have " +
                                                     Text(file.extents.size_bytes()) +
                                                     " bytes, the disk is to have " + Text(size_bytes));
  }
  CLEAT_ASSIGN(const uint64_t bytes, UringFileBytes(file, who + ": " + path));
  if (bytes >= size_bytes) return Ok{};
  return Error(ErrorCode::kFailedPrecondition, who + ": " + path + " has " + Text(bytes) +
                                                   " bytes, the disk is to have " + Text(size_bytes) +
                                                   ": let it grow first");
}

uint64_t UserByte(const std::string& user, const UringFile& file) {
  const bool whole = file.extents.is_whole_drive();
  const std::string name = whole ? user : user + " from " + Text(file.extents.At(0).first_byte);
  uint64_t hash =
      14695981039346656037ULL;  // FNV-1a; never to be changed, since engines of other versions go by it
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211ULL;
  return kUserBytesFrom + hash % kUserBytesFrom;
}

Status LockUringFile(UringFile& file, AccessMode mode, const std::string& who, const std::string& path,
                     LockRefusal* refusal) {
  const bool writes = mode == AccessMode::kReadWrite;
  const int failed = LockContent(file, writes ? F_WRLCK : F_RDLCK);
  const std::string what = who + ": " + path;
  if (failed == 0) {
    Status placed = CheckPlacement(file, what);
    if (!placed) {
      LockContent(file, F_UNLCK);
      *refusal = LockRefusal::kNotThere;
      return placed;
    }
  }
  if (failed == 0 && file.block_device && writes && file.extents.is_whole_drive()) {
    Status claimed = Claim(file, what);
    if (!claimed) LockContent(file, F_UNLCK);
    return claimed;
  }
  if (failed == 0) {
    if (writes || file.user_byte == 0) return Ok{};
    Status locked = LockUserByte(file, what, refusal);
    if (!locked) LockContent(file, F_UNLCK);
    return locked;
  }
  *refusal = LockRefusal::kHeld;
  return WhyNotLocked(failed, what);
}

Status LockMore(const UringFile& file, AccessMode mode, const std::vector<pool::DriveRange>& more,
                const std::string& who, const std::string& path) {
  const int failed = LockRanges(file, mode == AccessMode::kReadWrite ? F_WRLCK : F_RDLCK, more);
  if (failed == 0) return Ok{};
  return WhyNotLocked(failed, who + ": " + path);
}

void UnlockMore(const UringFile& file, const std::vector<pool::DriveRange>& more) {
  for (const pool::DriveRange& range : more) LockRange(file, F_UNLCK, range.first_byte, range.bytes);
}

Status UnlockUringFile(UringFile& file, const std::string& who, const std::string& path) {
  file.claim.Reset();
  if (file.user_byte != 0) LockRange(file, F_UNLCK, file.user_byte, 1);
  const int failed = LockContent(file, F_UNLCK);
  if (failed == 0) return Ok{};
  return ErrnoError(failed, who + ": " + path + " can't be unlocked");
}

}  // namespace cleat::modules
