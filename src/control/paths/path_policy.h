// SPDX-License-Identifier: Apache-2.0
// Which paths callers may give cleatd for disks' files, controllers' sockets and clusters' conf files: those that the host's operator
// lists (base/path_lists.h), whatever the caller's role, and never a file by which a cleatd lives. The policy is asked when something is
// made; what is stored already stays served, and is named.
//
// Any thread. Methods that open something block on the file system.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/own_files.h"
#include "base/path_lists.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::control {

class PathPolicy {
 public:
  // Everything is allowed: for tests.
  PathPolicy();
  // Reads `lists_file`; a process with these folders has defaults for what it doesn't say.
  static Result<std::unique_ptr<PathPolicy>> Read(const std::string& lists_file, const std::string& state_dir,
                                                  const std::string& runtime_dir);
  // Reads the file again. What was read before holds when it is wrong.
  Status Reload();

  std::shared_ptr<const PathLists> lists() const;

  // A disk's file or device, opened without any effect on it (O_PATH). `what` begins errors; kPermissionDenied when it may not be one.
  Result<UniqueFd> FindDisk(const std::string& path, const std::string& what) const;
  // The same for a file that is a disk already: it may lie anywhere, but not be a store.
  Result<UniqueFd> FindStoredDisk(const std::string& path, const std::string& what) const;
  // The folder, opened likewise, in which a disk's file may be made.
  Result<UniqueFd> FolderOfNewDisk(const std::string& path, const std::string& what) const;
  // Opens the socket's folder if it is there; QEMU's folders come with the VM.
  Status CheckSocket(const std::string& path, const std::string& what) const;
  // Opens the conf file if it is there.
  Status CheckKeys(const std::string& path, const std::string& what) const;

  // Why a new disk, controller or cluster with that path would be refused; nothing when it would not. Compares text, opens nothing.
  std::optional<std::string> WhyUnlisted(PathKind kind, const std::string& path) const;

 private:
  PathPolicy(std::string lists_file, PathLists defaults, PathLists lists, OwnFiles own);

  const std::string lists_file_;  // empty: none to read
  const PathLists defaults_;
  const std::optional<OwnFiles> own_;
  mutable Mutex mutex_;
  std::shared_ptr<const PathLists> lists_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::control
