// SPDX-License-Identifier: Apache-2.0
#include "base/listed_open.h"

#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace cleat {
namespace {

Error NotListed(const PathLists& lists, PathKind kind, const std::string& what) {
  return {ErrorCode::kInvalidArgument,
          what + " is not among the paths that callers may name: " + lists.HowToList(kind)};
}

// Opens one name in a folder, O_PATH, and a link itself. O_DIRECTORY has a folder that is mounted on demand mounted.
UniqueFd OpenStep(const UniqueFd& folder, const std::string& name, bool want_folder) {
  constexpr int kFlags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  if (want_folder) {
    UniqueFd fd(openat(folder.get(), name.c_str(), kFlags | O_DIRECTORY));
    if (fd || errno != ENOTDIR) return fd;
  }
  return UniqueFd(openat(folder.get(), name.c_str(), kFlags));
}

// Opens one name in a folder, O_PATH. ELOOP for a link, ENOTDIR for what is no folder where one is wanted.
UniqueFd OpenName(const UniqueFd& folder, const std::string& name, bool want_folder) {
  UniqueFd fd = OpenStep(folder, name, want_folder);
  struct stat info {};
  if (!fd || fstat(fd.get(), &info) != 0) return UniqueFd();
  const bool link = S_ISLNK(info.st_mode);
  if (!link && (!want_folder || S_ISDIR(info.st_mode))) return fd;
  fd.Reset();
  errno = link ? ELOOP : ENOTDIR;
  return fd;
}

// Opens a plain path below the folder, one name after the other; a link fails with ELOOP, wherever it leads. openat2 would do the same with
// RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS, but systemd's RestrictSUIDSGID=yes, which both units have, forbids that call.
UniqueFd OpenBeneath(const UniqueFd& folder, std::string_view path, uint64_t flags) {
  UniqueFd at = folder.Duplicate();
  while (at && !path.empty()) {
    const std::string name(path.substr(0, path.find('/')));
    path.remove_prefix(std::min(path.size(), name.size() + 1));
    at = OpenName(at, name, !path.empty() || (flags & O_DIRECTORY) != 0);
  }
  if (!at || (flags & O_PATH) != 0) return at;
  return ReopenAs(at, static_cast<int>(flags));
}

// A path that is walked name by name, and grows by what the links on it say.
class Walk {
 public:
  static constexpr int kLinksMax = 40;  // as the kernel's

  Walk(const std::string& path, const std::string& what) : rest_(path), what_(what) {}

  Result<UniqueFd> Run() {
    Status status = GoToRoot();
    while (status.ok() && !rest_.empty()) {
      const std::string name = rest_.substr(0, rest_.find('/'));
      rest_.erase(0, name.size() + 1);
      if (!name.empty()) status = Step(name);
    }
    CLEAT_TRY(status);
    return std::move(at_);
  }

 private:
  Status GoToRoot() {
    at_ = UniqueFd(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    return at_ ? Status(Ok{}) : Status(ErrnoError(errno, what_ + ": the root folder can't be opened"));
  }
  Status Step(const std::string& name) {
    UniqueFd next = OpenStep(at_, name, !rest_.empty());
    struct stat info {};
    if (!next || fstat(next.get(), &info) != 0)
      return ErrnoError(errno == ENOTDIR ? ENOENT : errno, what_ + " can't be opened");
    if (S_ISLNK(info.st_mode)) return Follow(next, info.st_uid);
    at_ = std::move(next);
    return Ok{};
  }
  Status Follow(const UniqueFd& link, uid_t owner) {
    if (owner != 0 && owner != geteuid()) {
      return Error(ErrorCode::kInvalidArgument,
                   what_ + " leads through a symbolic link of user " + std::to_string(owner) +
                       ", who may let it lead anywhere: have root make the link, or name what it leads to");
    }
    if (++links_ > kLinksMax) return ErrnoError(ELOOP, what_ + " can't be opened");
    std::string target(PATH_MAX, '\0');
    const ssize_t size = readlinkat(link.get(), "", target.data(), target.size());
    if (size < 0) return ErrnoError(errno, what_ + ": a symbolic link on its way can't be read");
    target.resize(static_cast<size_t>(size));
    rest_ = rest_.empty() ? target : target + "/" + rest_;
    return target.starts_with('/') ? GoToRoot() : Status(Ok{});
  }

  std::string rest_;
  const std::string& what_;
  UniqueFd at_;
  int links_ = 0;
};

Error WhyNot(int error_number, const std::string& what, const std::string& entry) {
  if (error_number == ELOOP) {
    return {ErrorCode::kInvalidArgument, what + " leads through a symbolic link below " + entry +
                                             ", which is not followed there: name what it leads to"};
  }
  return ErrnoError(error_number, what + " can't be opened");
}

// `flags` for what is at the path, which is below an entry of that kind.
Result<UniqueFd> OpenBelow(const PathLists& lists, PathKind kind, const std::string& path, uint64_t flags,
                           const std::string& what) {
  const auto entry = lists.EntryOf(kind, path);
  if (!entry) return NotListed(lists, kind, what);
  if (*entry == "/") {
    UniqueFd fd(open(path.c_str(), static_cast<int>(flags) | O_CLOEXEC));
    if (!fd) return ErrnoError(errno, what + " can't be opened");
    return fd;
  }
  // The folder is the operator's own word: links in it are followed.
  const UniqueFd folder(open(entry->c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return ErrnoError(errno, what + ": the folder " + *entry + " can't be opened");
  UniqueFd fd = OpenBeneath(folder, path.substr(entry->size() + 1), flags);
  if (!fd) return WhyNot(errno, what, *entry);
  return fd;
}

// A listed name that leads to the device of that number; empty when none does.
std::string ListedNameOf(const PathLists& lists, dev_t device) {
  for (const std::string& pattern : lists.entries(PathKind::kDevice)) {
    glob_t found{};
    std::string listed;
    if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
      const auto* const last = found.gl_pathv + found.gl_pathc;
      const auto* const name =
          std::find_if(found.gl_pathv, found.gl_pathv + found.gl_pathc, [device](const char* path) {
            struct stat info {};
            return stat(path, &info) == 0 && S_ISBLK(info.st_mode) && info.st_rdev == device;
          });
      if (name != last) listed = *name;
    }
    globfree(&found);
    if (!listed.empty()) return listed;
  }
  return {};
}

// A device must be given by a listed name: any other of its names may be another device's after the host's next start.
Status CheckListedDevice(const PathLists& lists, const std::string& path, dev_t device,
                         const std::string& what) {
  if (lists.EntryOf(PathKind::kDevice, path)) return Ok{};
  const std::string listed = ListedNameOf(lists, device);
  if (listed.empty()) return NotListed(lists, PathKind::kDevice, what);
  return Error(ErrorCode::kInvalidArgument,
               what + " is a device that callers may name by a listed name alone: " + listed);
}

Error Neither(const std::string& what) {
  return {ErrorCode::kFailedPrecondition,
          what + " is neither a regular file nor a block device: name one that is"};
}

}  // namespace

Result<UniqueFd> FindListedDisk(const PathLists& lists, const std::string& path, const std::string& what) {
  struct stat info {};
  if (lists.EntryOf(PathKind::kFile, path)) {
    auto fd = OpenBelow(lists, PathKind::kFile, path, O_PATH, what);
    // A link to a listed device is as good as the device.
    if (!fd.ok() && fd.error().code != ErrorCode::kInvalidArgument) return fd;
    if (fd.ok() && fstat(fd->get(), &info) != 0) return ErrnoError(errno, what + " can't be examined");
    if (fd.ok() && S_ISREG(info.st_mode)) return fd;
  }
  UniqueFd fd(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!fd) {
    const int error_number = errno;
    // Whether it is there is no business of callers who may not name it.
    if (!lists.EntryOf(PathKind::kFile, path) && !lists.EntryOf(PathKind::kDevice, path))
      return NotListed(lists, PathKind::kFile, what);
    return ErrnoError(error_number, what + " can't be opened");
  }
  if (fstat(fd.get(), &info) != 0) return ErrnoError(errno, what + " can't be examined");
  if (S_ISBLK(info.st_mode)) {
    CLEAT_TRY(CheckListedDevice(lists, path, info.st_rdev, what));
    return fd;
  }
  if (S_ISREG(info.st_mode)) {
    const auto entry = lists.EntryOf(PathKind::kFile, path);
    return entry ? WhyNot(ELOOP, what, *entry) : NotListed(lists, PathKind::kFile, what);
  }
  return lists.EntryOf(PathKind::kFile, path) ? Neither(what) : NotListed(lists, PathKind::kFile, what);
}

Result<UniqueFd> OpenListedKeys(const PathLists& lists, const std::string& path, const std::string& what) {
  auto fd = OpenBelow(lists, PathKind::kKey, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, what);
  CLEAT_TRY(fd);
  struct stat info {};
  if (fstat(fd->get(), &info) != 0) return ErrnoError(errno, what + " can't be examined");
  if (!S_ISREG(info.st_mode))
    return Error(ErrorCode::kFailedPrecondition, what + " is no regular file: name one");
  return fd;
}

Result<UniqueFd> OpenListedFolder(const PathLists& lists, PathKind kind, const std::string& path,
                                  const std::string& what) {
  const auto entry = lists.EntryOf(kind, path);
  if (!entry) return NotListed(lists, kind, what);
  const std::string folder = path.substr(0, std::max<size_t>(path.rfind('/'), 1));
  if (folder == *entry || folder == "/") {
    UniqueFd fd(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return ErrnoError(errno, what + ": the folder " + folder + " can't be opened");
    return fd;
  }
  return OpenBelow(lists, kind, folder, O_PATH | O_DIRECTORY, what + ": the folder " + folder);
}

Result<UniqueFd> FindByTrustedLinks(const std::string& path, const std::string& what) {
  return Walk(path, what).Run();
}

UniqueFd ReopenAs(const UniqueFd& found, int flags) {
  return UniqueFd(open(PathOf(found).c_str(), flags | O_CLOEXEC));
}

std::string PathOf(const UniqueFd& fd) {
  return "/proc/self/fd/" + std::to_string(fd.get());
}

}  // namespace cleat
