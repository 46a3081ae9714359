// SPDX-License-Identifier: Apache-2.0
#include "engine/disks/path_guard.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/listed_open.h"
#include "base/log.h"

namespace cleat::engine {
namespace {

// The lists' refusals, as a caller hears them.
Result<UniqueFd> Permitted(Result<UniqueFd> found) {
  if (found.ok() || found.error().code != ErrorCode::kInvalidArgument) return found;
  return Error(ErrorCode::kPermissionDenied, std::move(found).error().message);
}

bool IsBlockDevice(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISBLK(info.st_mode);
}

std::string FolderOf(const std::string& path) {
  return path.substr(0, std::max<size_t>(path.rfind('/'), 1));
}

std::string SocketText(const std::string& path) {
  return "socket " + path;
}

}  // namespace

PathGuard::PathGuard() : lists_(std::make_shared<const PathLists>(PathLists::Everything())) {}

PathGuard::PathGuard(std::string lists_file, const std::string& state_dir, const std::string& runtime_dir)
    : lists_file_(std::move(lists_file)),
      defaults_(PathLists::Defaults(state_dir, runtime_dir)),
      own_(state_dir),
      lists_(std::make_shared<const PathLists>()) {
  if (const Status read = Reload(); !read) {
    spdlog::error(
        "path lists: not read: {}; no path is allowed, and what is attached is served on: correct the file, "
        "then reload cleatd",
        read.error().message);
  }
}

Status PathGuard::Reload() {
  if (lists_file_.empty()) return Ok{};
  CLEAT_ASSIGN(auto read, PathLists::Read(lists_file_, defaults_));
  auto lists = std::make_shared<const PathLists>(std::move(read));
  const MutexLock lock(mutex_);
  lists_ = std::move(lists);
  return Ok{};
}

std::shared_ptr<const PathLists> PathGuard::lists() const {
  const MutexLock lock(mutex_);
  return lists_;
}

std::string PathGuard::Text() const {
  return lists()->Text();
}

Result<UniqueFd> PathGuard::FindDisk(const std::string& path, const std::string& what, Links links) const {
  const auto present = lists();
  const PathKind kind = IsBlockDevice(path) ? PathKind::kDevice : PathKind::kFile;
  const bool strictly = links == Links::kNone && present->EntryOf(kind, path);
  auto found = Permitted(strictly ? FindListedDisk(*present, path, what) : FindByTrustedLinks(path, what));
  CLEAT_TRY(found);
  CLEAT_TRY(strictly && own_ ? own_->CheckNotOwn(*found, what) : OwnFiles::CheckNoStore(*found, what));
  return found;
}

// Of sockets and conf files it is not known whether they were looked at when they were made, so trusted links are followed everywhere.
Result<UniqueFd> PathGuard::OpenKeys(const std::string& path, const std::string& what) const {
  auto found = Permitted(FindByTrustedLinks(path, what));
  CLEAT_TRY(found);
  UniqueFd keys = ReopenAs(*found, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!keys) return ErrnoError(errno, what + " can't be read");
  return keys;
}

Result<UniqueFd> PathGuard::FindSocket(const std::string& path) {
  return Permitted(FindByTrustedLinks(path, SocketText(path)));
}

Result<UniqueFd> PathGuard::FindFolder(const std::string& path) {
  return Permitted(FindByTrustedLinks(FolderOf(path), SocketText(path) + ": its folder"));
}

}  // namespace cleat::engine
