// SPDX-License-Identifier: Apache-2.0
#include "control/paths/path_policy.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <utility>

#include "base/listed_open.h"
#include "base/log.h"
#include "control/model/reasons.h"

namespace cleat::control {
namespace {

constexpr PathKind kKinds[] = {PathKind::kFile, PathKind::kDevice, PathKind::kSocket, PathKind::kKey};

// Gives the lists' refusals the API's reason.
Error WithReason(const Error& error) {
  if (error.code != ErrorCode::kInvalidArgument) return error;
  return Refuse(v1::REASON_PATH_NOT_ALLOWED, error.message);
}

// The same for cleatd's own files.
Status WithReason(const Status& not_own) {
  if (not_own.ok()) return not_own;
  return Refuse(v1::REASON_PATH_NOT_ALLOWED, not_own.error().message);
}

void SayWhatIsOpen(const PathLists& lists) {
  for (const PathKind kind : kKinds) {
    if (!lists.IsOpen(kind)) continue;
    spdlog::warn(
        "{}: every path is allowed ('/'): callers that may create disks reach all that cleatd and the "
        "engines can open; list folders instead",
        PathLists::NameOf(kind));
  }
}

}  // namespace

PathPolicy::PathPolicy() : lists_(std::make_shared<const PathLists>(PathLists::Everything())) {}

PathPolicy::PathPolicy(std::string lists_file, PathLists defaults, PathLists lists, OwnFiles own)
    : lists_file_(std::move(lists_file)),
      defaults_(std::move(defaults)),
      own_(std::move(own)),
      lists_(std::make_shared<const PathLists>(std::move(lists))) {}

Result<std::unique_ptr<PathPolicy>> PathPolicy::Read(const std::string& lists_file,
                                                     const std::string& state_dir,
                                                     const std::string& runtime_dir) {
  PathLists defaults = PathLists::Defaults(state_dir, runtime_dir);
  CLEAT_ASSIGN(auto lists, PathLists::Read(lists_file, defaults));
  SayWhatIsOpen(lists);
  return std::unique_ptr<PathPolicy>(
      new PathPolicy(lists_file, std::move(defaults), std::move(lists), OwnFiles(state_dir)));
}

Status PathPolicy::Reload() {
  if (lists_file_.empty()) return Ok{};
  CLEAT_ASSIGN(auto read, PathLists::Read(lists_file_, defaults_));
  SayWhatIsOpen(read);
  auto lists = std::make_shared<const PathLists>(std::move(read));
  const MutexLock lock(mutex_);
  lists_ = std::move(lists);
  return Ok{};
}

std::shared_ptr<const PathLists> PathPolicy::lists() const {
  const MutexLock lock(mutex_);
  return lists_;
}

Result<UniqueFd> PathPolicy::FindDisk(const std::string& path, const std::string& what) const {
  auto found = FindListedDisk(*lists(), path, what);
  if (!found.ok()) return WithReason(found.error());
  if (own_) {
    CLEAT_TRY(WithReason(own_->CheckNotOwn(*found, what)));
  }
  return found;
}

Result<UniqueFd> PathPolicy::FindStoredDisk(const std::string& path, const std::string& what) const {
  if (!WhyUnlisted(PathKind::kFile, path)) return FindDisk(path, what);
  UniqueFd found(open(path.c_str(), O_PATH | O_CLOEXEC));
  if (!found) return ErrnoError(errno, what + " can't be looked at");
  if (OwnFiles::IsStore(found))
    return Refuse(v1::REASON_PATH_NOT_ALLOWED, what + " leads to a cleatd's store by now: correct that");
  return found;
}

Result<UniqueFd> PathPolicy::FolderOfNewDisk(const std::string& path, const std::string& what) const {
  auto folder = OpenListedFolder(*lists(), PathKind::kFile, path, what);
  if (!folder.ok()) return WithReason(folder.error());
  if (own_) {
    const std::string name = path.substr(path.rfind('/') + 1);
    CLEAT_TRY(WithReason(own_->CheckNotOwnFolder(*folder, name, what)));
  }
  return folder;
}

Status PathPolicy::CheckSocket(const std::string& path, const std::string& what) const {
  const auto folder = OpenListedFolder(*lists(), PathKind::kSocket, path, what);
  if (folder.ok() || folder.error().code != ErrorCode::kInvalidArgument) return Ok{};
  return WithReason(folder.error());
}

Status PathPolicy::CheckKeys(const std::string& path, const std::string& what) const {
  const auto file = OpenListedKeys(*lists(), path, what);
  if (file.ok() || file.error().code != ErrorCode::kInvalidArgument) return Ok{};
  return WithReason(file.error());
}

std::optional<std::string> PathPolicy::WhyUnlisted(PathKind kind, const std::string& path) const {
  const auto present = lists();
  const bool listed =
      present->EntryOf(kind, path) || (kind == PathKind::kFile && present->EntryOf(PathKind::kDevice, path));
  if (listed) return std::nullopt;
  return fmt::format(
      "'{}' is not among the paths that this host's operator lists ({}): it is served all the same, a "
      "new one would be refused",
      path, PathLists::kDefaultPath);
}

}  // namespace cleat::control
