// SPDX-License-Identifier: Apache-2.0
#include "control/pools/block_drive.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/file_lock.h"
#include "base/listed_open.h"
#include "control/pools/signatures.h"
#include "pool/layout.h"

namespace cleat::control {
namespace {

constexpr size_t kBounceBytes = size_t{1} << 20;

// The bytes of which one cleatd has the lock: those of the label's first copy.
struct flock LabelBytesLocked() {
  return FileRange(F_WRLCK, 0, pool::kBlockBytes);
}

Error WhyNoDrive(int error_number, const std::string& path) {
  if (error_number == EACCES || error_number == EPERM) {
    return {ErrorCode::kPermissionDenied,
            path + " may not be read and written by user " + std::to_string(geteuid()) +
                ": give that user the right to both, and see that the device is not read-only"};
  }
  if (error_number == EROFS)
    return {ErrorCode::kPermissionDenied,
            path + " is read-only, or on a read-only file system: make it writable"};
  return ErrnoError(error_number, path + " can't be opened for reading and writing");
}

// OFD locks belong to nobody by name; a POSIX one names its process.
std::string HolderOfLock(const UniqueFd& fd) {
  struct flock range = LabelBytesLocked();
  if (fcntl(fd.get(), F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK && range.l_pid > 0)
    return "process " + std::to_string(range.l_pid);
  return "another process, a cleatd or an engine that has it as a whole disk";
}

// Moves all of it, however little a call does. 0, or the errno; EIO where the drive ends before.
template <typename Call>
int MoveAll(Call call, uint8_t* memory, size_t length, uint64_t offset_bytes) {
  while (length > 0) {
    const ssize_t moved = call(memory, length, static_cast<off_t>(offset_bytes));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EIO;
    memory += moved;
    offset_bytes += static_cast<uint64_t>(moved);
    length -= static_cast<size_t>(moved);
  }
  return 0;
}

bool PunchHole(const UniqueFd& fd, uint64_t offset_bytes, uint64_t length_bytes) {
  int result = -1;
  do {
    result = fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset_bytes),
                       static_cast<off_t>(length_bytes));
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

}  // namespace

Result<std::unique_ptr<HostDrive>> BlockDrive::OpenAny(const UniqueFd& found, const std::string& path) {
  CLEAT_ASSIGN(std::unique_ptr<HostDrive> drive, Open(found, path));
  return drive;
}

Result<std::unique_ptr<BlockDrive>> BlockDrive::Open(const UniqueFd& found, const std::string& path) {
  std::unique_ptr<BlockDrive> drive(new BlockDrive(path));
  CLEAT_TRY(drive->OpenFile(found, O_RDWR));
  CLEAT_TRY(drive->Lock());
  if (drive->block_device_) CLEAT_TRY(drive->Claim());
  CLEAT_TRY(drive->Measure());
  CLEAT_TRY(drive->UsePageCacheWhereItMust());
  // What others left in the page cache goes to the drive now, not over the pool later.
  CLEAT_TRY(drive->Flush());
  return drive;
}

Result<std::unique_ptr<BlockDrive>> BlockDrive::OpenToRead(const UniqueFd& found, const std::string& path) {
  std::unique_ptr<BlockDrive> drive(new BlockDrive(path));
  CLEAT_TRY(drive->OpenFile(found, O_RDONLY));
  CLEAT_TRY(drive->Measure());
  CLEAT_TRY(drive->UsePageCacheWhereItMust());
  return drive;
}

Status BlockDrive::OpenFile(const UniqueFd& found, int access) {
  struct stat info {};
  if (fstat(found.get(), &info) != 0) return ErrnoError(errno, path_ + " can't be examined");
  if (!S_ISREG(info.st_mode) && !S_ISBLK(info.st_mode)) {
    return Error(ErrorCode::kFailedPrecondition,
                 path_ + " is neither a block device nor a regular file: name one that is");
  }
  block_device_ = S_ISBLK(info.st_mode);
  fd_ = ReopenAs(found, access | O_NOCTTY | O_DIRECT);
  if (!fd_ && errno == EINVAL && !block_device_) fd_ = ReopenAs(found, access | O_NOCTTY);  // tmpfs
  if (!fd_) return WhyNoDrive(errno, path_);
  void* memory = nullptr;
  if (posix_memalign(&memory, pool::kBlockBytes, kBounceBytes) != 0)
    return ErrnoError(ENOMEM, path_ + ": no memory to read it to");
  buffer_.reset(static_cast<uint8_t*>(memory));
  return Ok{};
}

// Some file systems refuse O_DIRECT only when it is used.
Status BlockDrive::UsePageCacheWhereItMust() {
  if (block_device_ || size_bytes_ == 0) return Ok{};
  if (pread(fd_.get(), buffer_.get(), pool::kBlockBytes, 0) >= 0 || errno != EINVAL) return Ok{};
  if (fcntl(fd_.get(), F_SETFL, 0) != 0) return ErrnoError(errno, path_ + ": its flags can't be set");
  return Ok{};
}

Status BlockDrive::Lock() {
  if (block_device_ && flock(fd_.get(), LOCK_SH | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoError(errno, path_ + " can't be locked");
    return Error(ErrorCode::kUnavailable,
                 path_ +
                     " is locked as a whole, by an engine that has it as a disk or by a tool that formats it "
                     "(lslocks, as root, shows it): end that use, then try again");
  }
  struct flock range = LabelBytesLocked();
  if (fcntl(fd_.get(), F_OFD_SETLK, &range) == 0) return Ok{};
  if (errno != EAGAIN && errno != EACCES) return ErrnoError(errno, path_ + " can't be locked");
  return Error(ErrorCode::kUnavailable,
               path_ + " is locked by " + HolderOfLock(fd_) +
                   " (lslocks, as root, shows it), or by a killed one whose last write is "
                   "under way: end that use, then try again");
}

// The claim is an open file of its own (open(2), O_EXCL without O_CREAT), and is made after the locks, whose refusal says more.
Status BlockDrive::Claim() {
  claim_ = ReopenAs(fd_, O_RDONLY | O_EXCL);
  if (claim_) return Ok{};
  if (errno != EBUSY) return ErrnoError(errno, path_ + " can't be opened exclusively");
  return Error(
      ErrorCode::kFailedPrecondition,
      path_ +
          " is in use: it, a partition of it or the drive that it is a partition of is mounted, is swap, is "
          "part of a RAID or of LVM, or is opened exclusively (lsblk and dmsetup ls show it): end that use, "
          "then try again");
}

Status BlockDrive::Measure() {
  uint64_t bytes = 0;
  if (block_device_) {
    int block_bytes = 0;
    if (ioctl(fd_.get(), BLKGETSIZE64, &bytes) != 0 || ioctl(fd_.get(), BLKSSZGET, &block_bytes) != 0)
      return ErrnoError(errno, path_ + " does not tell its size");
    if (static_cast<uint64_t>(block_bytes) > pool::kBlockBytes) {
      return Error(ErrorCode::kFailedPrecondition,
                   path_ + " has blocks of " + std::to_string(block_bytes) + " bytes, a pool's have " +
                       std::to_string(pool::kBlockBytes) +
                       ": format it with smaller ones, or name another drive");
    }
  } else {
    struct stat info {};
    if (fstat(fd_.get(), &info) != 0) return ErrnoError(errno, path_ + " does not tell its size");
    bytes = static_cast<uint64_t>(info.st_size);
  }
  size_bytes_ = bytes / pool::kBlockBytes * pool::kBlockBytes;
  return Ok{};
}

bool BlockDrive::TryLock(uint64_t offset_bytes, uint64_t length_bytes) {
  struct flock range = FileRange(F_WRLCK, offset_bytes, length_bytes);
  return fcntl(fd_.get(), F_OFD_SETLK, &range) == 0;
}

void BlockDrive::Unlock(uint64_t offset_bytes, uint64_t length_bytes) {
  struct flock range = FileRange(F_UNLCK, offset_bytes, length_bytes);
  (void)fcntl(fd_.get(), F_OFD_SETLK, &range);
}

Status BlockDrive::Read(uint64_t offset_bytes, std::span<uint8_t> to) {
  CLEAT_CHECK(offset_bytes <= size_bytes_ && to.size() <= size_bytes_ - offset_bytes);
  const auto read = [this](uint8_t* memory, size_t length, off_t at) {
    return pread(fd_.get(), memory, length, at);
  };
  while (!to.empty()) {
    const size_t length = std::min(to.size(), kBounceBytes);
    if (const int failed = MoveAll(read, buffer_.get(), length, offset_bytes); failed != 0)
      return Failed(failed, "can't be read", offset_bytes);
    std::memcpy(to.data(), buffer_.get(), length);
    to = to.subspan(length);
    offset_bytes += length;
  }
  return Ok{};
}

Status BlockDrive::Write(uint64_t offset_bytes, std::span<const uint8_t> from) {
  CLEAT_CHECK(offset_bytes <= size_bytes_ && from.size() <= size_bytes_ - offset_bytes);
  const auto write = [this](uint8_t* memory, size_t length, off_t at) {
    return pwrite(fd_.get(), memory, length, at);
  };
  while (!from.empty()) {
    const size_t length = std::min(from.size(), kBounceBytes);
    std::memcpy(buffer_.get(), from.data(), length);
    if (const int failed = MoveAll(write, buffer_.get(), length, offset_bytes); failed != 0)
      return Failed(failed, "can't be written", offset_bytes);
    from = from.subspan(length);
    offset_bytes += length;
  }
  return Ok{};
}

Status BlockDrive::Zero(uint64_t offset_bytes, uint64_t length_bytes) {
  CLEAT_CHECK(offset_bytes <= size_bytes_ && length_bytes <= size_bytes_ - offset_bytes);
  if (length_bytes == 0) return Ok{};
  // In a block device the kernel punches only holes that read as zeroes.
  if (PunchHole(fd_, offset_bytes, length_bytes)) return Ok{};
  if (!block_device_) return WriteZeroes(offset_bytes, length_bytes);
  uint64_t range[] = {offset_bytes, length_bytes};
  int result = -1;
  do {
    result = ioctl(fd_.get(), BLKZEROOUT, range);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? Status(Ok{}) : Status(Failed(errno, "can't be erased", offset_bytes));
}

Status BlockDrive::WriteZeroes(uint64_t offset_bytes, uint64_t length_bytes) {
  const auto write = [this](uint8_t* memory, size_t length, off_t at) {
    return pwrite(fd_.get(), memory, length, at);
  };
  std::memset(buffer_.get(), 0, kBounceBytes);
  while (length_bytes > 0) {
    const size_t length = std::min<uint64_t>(length_bytes, kBounceBytes);
    if (const int failed = MoveAll(write, buffer_.get(), length, offset_bytes); failed != 0)
      return Failed(failed, "can't be erased", offset_bytes);
    offset_bytes += length;
    length_bytes -= length;
  }
  return Ok{};
}

Status BlockDrive::Flush() {
  if (fdatasync(fd_.get()) == 0) return Ok{};
  const Error error = ErrnoError(errno, path_ + ": what was written can't be made durable");
  return Error(ErrorCode::kIo, error.message);
}

Status BlockDrive::CheckEmpty() const {
  // The page cache may have what was there before others wrote past it.
  const UniqueFd reader = ReopenAs(fd_, O_RDONLY);
  if (!reader) return ErrnoError(errno, path_ + " can't be opened for reading");
  posix_fadvise(reader.get(), 0, 0, POSIX_FADV_DONTNEED);
  CLEAT_ASSIGN(const auto signature, FindSignature(reader, path_));
  if (!signature) return Ok{};
  return Error(ErrorCode::kFailedPrecondition,
               path_ + " has " + *signature +
                   ": name another drive, or, if all of it may be lost, ask for it to be "
                   "overwritten (--overwrite)");
}

Error BlockDrive::Failed(int error_number, const char* what, uint64_t offset_bytes) const {
  const Error error = ErrnoError(
      error_number, path_ + " " + what + " at byte " + std::to_string(offset_bytes) + " or after it");
  return {ErrorCode::kIo, error.message};
}

}  // namespace cleat::control
