// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/io_lifetime.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/file_lock.h"
#include "base/log.h"

namespace cleat::modules {
namespace {

constexpr off_t kProcessByte = 0;
constexpr off_t kIoByte = 1;
// A file that is being made, and has no locks yet.
constexpr char kUnfinished = '.';

struct flock WholeByte(off_t at) {
  return FileRange(F_WRLCK, static_cast<uint64_t>(at), 1);
}

bool Lock(int fd, int command, off_t at) {
  struct flock lock = WholeByte(at);
  return fcntl(fd, command, &lock) == 0;
}

// By anybody; true also when it can't be told.
bool IsLocked(int fd, off_t at) {
  struct flock lock = WholeByte(at);
  return fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool IsShortage(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOMEM;
}

// A folder that is not there has no names.
Result<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  DIR* const directory = opendir(folder.c_str());
  if (directory == nullptr) {
    if (errno == ENOENT) return names;
    return ErrnoError(errno, folder);
  }
  errno = 0;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != kUnfinished) names.emplace_back(entry->d_name);
    errno = 0;
  }
  const int failed = errno;  // 0: that was the last name
  closedir(directory);
  if (failed != 0) return ErrnoError(failed, folder);
  return names;
}

}  // namespace

Result<std::unique_ptr<IoLifetime>> IoLifetime::Make(const std::string& folder, const std::string& name) {
  const std::string what = "the file of this process' I/O in " + folder;
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoError(errno, what);
  // Others find it when its locks are there.
  std::string unfinished = folder + "/" + kUnfinished + name + "-XXXXXX";
  UniqueFd file(mkostemp(unfinished.data(), O_CLOEXEC));
  if (!file) return ErrnoError(errno, what);
  std::string path = folder + "/" + unfinished.substr(folder.size() + 2);
  const bool made = Lock(file.get(), F_SETLK, kProcessByte) && Lock(file.get(), F_OFD_SETLK, kIoByte) &&
                    rename(unfinished.c_str(), path.c_str()) == 0;
  if (!made) {
    const int error_number = errno;
    unlink(unfinished.c_str());
    return ErrnoError(error_number, what);
  }
  std::unique_ptr<IoLifetime> lifetime(new IoLifetime(folder, std::move(path), std::move(file)));
  static_cast<void>(lifetime->FindDeadWithIo());
  return lifetime;
}

IoLifetime::~IoLifetime() {
  unlink(path_.c_str());
}

std::optional<std::string> IoLifetime::FindDeadWithIo() const {
  const auto names = NamesIn(folder_);
  if (!names) return names.error().message;
  std::optional<std::string> found;
  for (const std::string& name : *names) {
    const std::string path = folder_ + "/" + name;
    if (path == path_) continue;
    const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file) {
      if (IsShortage(errno)) return ErrnoError(errno, path).message;
      if (errno != ENOENT) spdlog::warn("io lifetimes: not looked at: {}", ErrnoError(errno, path).message);
      continue;
    }
    if (IsLocked(file.get(), kProcessByte)) continue;
    if (IsLocked(file.get(), kIoByte)) {
      found = path;
    } else {
      unlink(path.c_str());
    }
  }
  return found;
}

}  // namespace cleat::modules
