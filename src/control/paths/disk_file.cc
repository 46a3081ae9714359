// SPDX-License-Identifier: Apache-2.0
#include "control/paths/disk_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "base/listed_open.h"
#include "base/unique_fd.h"
#include "control/model/reasons.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

constexpr mode_t kFileMode = 0600;

Error Wrong(std::string message) {
  return {ErrorCode::kFailedPrecondition, std::move(message)};
}

// NOT_FOUND is for resources; a path that leads nowhere is a state of the host.
Error NotFound(const Error& error) {
  if (error.code != ErrorCode::kNotFound) return error;
  return {ErrorCode::kFailedPrecondition, error.message};
}

// Sparse, of the right size from the moment that it has a name: a crash in between leaves nothing.
Status MakeFileIn(const UniqueFd& folder, const std::string& name, const std::string& what,
                  uint64_t size_bytes) {
  UniqueFd fd = UniqueFd(open(PathOf(folder).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kFileMode));
  const bool unnamed = fd.valid();
  if (!unnamed && (errno == EOPNOTSUPP || errno == EISDIR)) {
    fd.Reset(openat(folder.get(), name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, kFileMode));
  }
  if (!fd.valid()) return ErrnoError(errno, what + " can't be made");

  Status status;
  if (ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) {
    status = ErrnoError(errno, fmt::format("{} can't be made {} bytes long", what, size_bytes));
  } else if (unnamed &&
             linkat(AT_FDCWD, PathOf(fd).c_str(), folder.get(), name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    status = ErrnoError(errno, what + " can't be made");
  }
  if (status.ok() && fsync(fd.get()) != 0) status = ErrnoError(errno, what + " can't be written");
  if (!status.ok() && !unnamed) unlinkat(folder.get(), name.c_str(), 0);
  return status;
}

Status MakeFile(const std::string& what, const v1::DiskSpec& spec, const PathPolicy& paths) {
  const std::string& path = FileOf(spec);
  CLEAT_ASSIGN(const auto folder, paths.FolderOfNewDisk(path, what));
  return MakeFileIn(folder, path.substr(path.rfind('/') + 1), what, spec.size_bytes());
}

Result<uint64_t> SizeOf(const std::string& what, const UniqueFd& fd) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoError(errno, what + " can't be examined");
  if (S_ISREG(info.st_mode)) return static_cast<uint64_t>(info.st_size);
  uint64_t size_bytes = 0;
  if (ioctl(fd.get(), BLKGETSIZE64, &size_bytes) != 0)
    return ErrnoError(errno, what + " does not tell its size");
  return size_bytes;
}

// Checks the file that was found, whatever its path leads to by now.
Result<StorageIdentity> CheckFile(const std::string& what, const v1::DiskSpec& spec, const UniqueFd& found) {
  auto identity = IdentifyStorage(found, what);
  CLEAT_TRY(identity);
  const bool read_only = spec.access_mode() == v1::ACCESS_MODE_MANY_READERS;
  const UniqueFd fd = ReopenAs(found, (read_only ? O_RDONLY : O_RDWR) | O_NONBLOCK);
  if (!fd.valid()) {
    const Error error = ErrnoError(
        errno, fmt::format("{} can't be opened for {}", what, read_only ? "reading" : "reading and writing"));
    return Error(error.code, fmt::format("{}. cleatd runs as user {}: give that user access to it",
                                         error.message, geteuid()));
  }
  CLEAT_ASSIGN(auto size_bytes, SizeOf(what, fd));
  if (size_bytes < spec.size_bytes()) {
    return Wrong(
        fmt::format("{} has {} bytes, the disk is to have {}: make the file larger (truncate -s {} '{}') or "
                    "the disk smaller",
                    what, size_bytes, spec.size_bytes(), spec.size_bytes(), FileOf(spec)));
  }
  return identity;
}

}  // namespace

Result<StorageIdentity> PrepareDiskFile(std::string_view disk_name, const v1::DiskSpec& spec,
                                        const PathPolicy& paths) {
  const std::string& path = FileOf(spec);
  const std::string what = fmt::format("{}: file '{}'", disk_name, path);
  auto found = paths.FindDisk(path, what);
  if (!found.ok() && found.error().code == ErrorCode::kNotFound && spec.file().create()) {
    if (auto status = MakeFile(what, spec, paths); !status.ok()) return NotFound(status.error());
    found = paths.FindDisk(path, what);
  }
  if (found.ok()) return CheckFile(what, spec, *found);
  if (found.error().code != ErrorCode::kNotFound) return NotFound(found.error());
  return Wrong(
      fmt::format("{} does not exist: make it (truncate -s {} '{}') or ask for it to be made "
                  "(file.create; cleatctl disk create --create)",
                  what, spec.size_bytes(), path));
}

Result<StorageIdentity> CheckDiskFile(std::string_view disk_name, const v1::DiskSpec& spec,
                                      const PathPolicy& paths) {
  const std::string what = fmt::format("{}: file '{}'", disk_name, FileOf(spec));
  const auto found = paths.FindDisk(FileOf(spec), what);
  if (found.ok()) return CheckFile(what, spec, *found);
  if (found.error().code != ErrorCode::kNotFound) return NotFound(found.error());
  return Wrong(what + " is gone, and the disk's content with it: put it back, then repeat");
}

Status GrowDiskFile(std::string_view disk_name, const v1::DiskSpec& spec, const PathPolicy& paths) {
  const std::string what = fmt::format("{}: file '{}'", disk_name, FileOf(spec));
  const auto found = paths.FindStoredDisk(FileOf(spec), what);
  if (!found.ok()) return NotFound(found.error());
  struct stat info {};
  if (fstat(found->get(), &info) != 0) return ErrnoError(errno, what + " can't be looked at");
  const bool ours = spec.file().create() && S_ISREG(info.st_mode);
  if (ours && static_cast<uint64_t>(info.st_size) < spec.size_bytes()) {
    const UniqueFd fd = ReopenAs(*found, O_RDWR | O_NONBLOCK);
    if (!fd.valid()) return NotFound(ErrnoError(errno, what + " can't be opened to make it larger"));
    if (ftruncate(fd.get(), static_cast<off_t>(spec.size_bytes())) != 0 || fsync(fd.get()) != 0) {
      return RefuseFor(
          disk_name, v1::REASON_HOST_OUT_OF_SPACE,
          ErrnoError(errno, fmt::format("{} can't be made {} bytes long", what, spec.size_bytes())).message);
    }
  }
  const auto checked = CheckFile(what, spec, *found);
  return checked.ok() ? Status(Ok{}) : Status(checked.error());
}

}  // namespace cleat::control
