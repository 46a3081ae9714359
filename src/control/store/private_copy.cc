// SPDX-License-Identifier: Apache-2.0
#include "control/store/private_copy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "control/store/sqlite_row.h"

namespace cleat::control {
namespace {

constexpr const char* kMemory = "/dev/shm";  // on every Linux that systemd runs on
constexpr const char* kName = "/cleat.db";
// The database first: it has to be there.
constexpr const char* kSuffixes[] = {"", "-wal", "-journal"};
constexpr size_t kPieceBytes = size_t{1} << 20;

// A folder in memory that nobody else may enter; it goes, with what is in it, with this.
class MemoryFolder {
 public:
  MemoryFolder() = default;
  ~MemoryFolder() {
    if (path_.empty()) return;
    for (const char* suffix : kSuffixes) unlink((path_ + kName + suffix).c_str());
    rmdir(path_.c_str());
  }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  Status Make() {
    struct statfs info {};
    if (statfs(kMemory, &info) != 0) return ErrnoError(errno, kMemory);
    if (info.f_type != TMPFS_MAGIC && info.f_type != RAMFS_MAGIC)
      return Error(ErrorCode::kUnavailable, fmt::format("{} is no memory: mount a tmpfs there", kMemory));
    std::string path = fmt::format("{}/cleat-store-XXXXXX", kMemory);
    if (mkdtemp(path.data()) == nullptr) return ErrnoError(errno, fmt::format("no folder in {}", kMemory));
    path_ = path;
    return Ok{};
  }
  std::string database() const { return path_ + kName; }

 private:
  std::string path_;
};

// Reads all of it. Nobody writes to it, so that it has the size that it had at first.
Status CopyAll(int from, int to, const std::string& what) {
  std::vector<char> piece(kPieceBytes);
  for (;;) {
    const ssize_t got = read(from, piece.data(), piece.size());
    if (got < 0) return ErrnoError(errno, fmt::format("'{}' can't be read", what));
    if (got == 0) return Ok{};
    const ssize_t put = write(to, piece.data(), static_cast<size_t>(got));
    if (put != got)
      return ErrnoError(put < 0 ? errno : ENOSPC, fmt::format("no copy of '{}' in {}", what, kMemory));
  }
}

// Takes the file's size off `room`. A file that is not there is no error, unless it is `needed`.
Status CopyFile(const std::string& from, const std::string& to, bool needed, uint64_t* room) {
  const UniqueFd source(open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!source.valid() && errno == ENOENT && !needed) return Ok{};
  struct stat info {};
  if (!source.valid() || fstat(source.get(), &info) != 0)
    return ErrnoError(errno, fmt::format("'{}' can't be read", from));
  if (static_cast<uint64_t>(info.st_size) > *room) {
    return Error(
        ErrorCode::kResourceExhausted,
        fmt::format("'{}' and what is beside it have more than {} bytes", from, kPrivateCopyBytesMax));
  }
  *room -= static_cast<uint64_t>(info.st_size);
  const UniqueFd target(open(to.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (!target.valid()) return ErrnoError(errno, fmt::format("'{}' can't be made", to));
  return CopyAll(source.get(), target.get(), from);
}

// Zeros when there is none.
FileStamp::Part PartOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return {};
  const auto changed_ns =
      static_cast<uint64_t>(info.st_ctim.tv_sec) * kNsPerSecond + static_cast<uint64_t>(info.st_ctim.tv_nsec);
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .size_bytes = static_cast<uint64_t>(info.st_size),
          .changed_ns = changed_ns};
}

}  // namespace

FileStamp StampOf(const std::string& path) {
  return {.database = PartOf(path), .log = PartOf(path + "-wal")};
}

Result<sqlite3*> OpenPrivateCopy(const std::string& path) {
  MemoryFolder folder;
  CLEAT_TRY(folder.Make());
  uint64_t room = kPrivateCopyBytesMax;
  for (const char* suffix : kSuffixes)
    CLEAT_TRY(CopyFile(path + suffix, folder.database() + suffix, *suffix == '\0', &room));
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(folder.database().c_str(), &opened, SQLITE_OPEN_READWRITE, nullptr);
  std::unique_ptr<sqlite3, decltype(&sqlite3_close)> db(opened, &sqlite3_close);
  // The first read has SQLite open the log, and take over what it holds.
  constexpr char kStart[] =
      "PRAGMA locking_mode = EXCLUSIVE; SELECT count(*) FROM sqlite_master; PRAGMA query_only = ON";
  if (code != SQLITE_OK || sqlite3_exec(opened, kStart, nullptr, nullptr, nullptr) != SQLITE_OK)
    return SqlError(opened, path, "reading a copy");
  return db.release();
}

}  // namespace cleat::control
