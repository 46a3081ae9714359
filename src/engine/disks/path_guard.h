// SPDX-License-Identifier: Apache-2.0
// Opens what cleatd has this engine serve - disks' files and devices, controllers' sockets, clusters' conf files - each time anew: cleatd
// looked when it was made, and the path may lead elsewhere since. A disk's file below a folder that the host's operator lists
// (base/path_lists.h) is opened without following a link, and a device by a listed name. What no list has any more, what was made before
// anybody looked, sockets and conf files are served whatever the lists say, but by links alone that root or this process' user owns. A
// cleatd's store never is a disk.
//
// Any thread; its methods block on the file system. Outlives what is opened by it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "base/own_files.h"
#include "base/path_lists.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "vhost/socket_paths.h"

namespace cleat::engine {

class PathGuard final : public vhost::SocketPaths {
 public:
  // Everything is listed: for tests.
  PathGuard();
  // Reads `lists_file`, for an engine of a cleatd with these folders. A file that can't be read lists nothing, so that guests' disks are
  // served all the same; that is logged.
  PathGuard(std::string lists_file, const std::string& state_dir, const std::string& runtime_dir);

  // Reads the file again. What was read before holds when it is wrong.
  Status Reload();
  // As PathLists::Text has them.
  std::string Text() const;

  // Which links are followed below a listed folder: none, or those that root or this process' user owns, for a disk that was made before
  // anybody looked.
  enum class Links : uint8_t { kNone, kTrusted };

  // Below, kPermissionDenied when it may not be opened; `what` begins errors.
  // A disk's file or device, O_PATH: without any effect on it.
  Result<UniqueFd> FindDisk(const std::string& path, const std::string& what,
                            Links links = Links::kNone) const;
  // A cluster's conf file, to be read.
  Result<UniqueFd> OpenKeys(const std::string& path, const std::string& what) const;
  Result<UniqueFd> FindSocket(const std::string& path) override;
  Result<UniqueFd> FindFolder(const std::string& path) override;

 private:
  std::shared_ptr<const PathLists> lists() const;

  const std::string lists_file_;  // empty: none to read
  const PathLists defaults_;
  const std::optional<OwnFiles> own_;
  mutable Mutex mutex_;
  std::shared_ptr<const PathLists> lists_ CLEAT_GUARDED_BY(mutex_);  // never null
};

}  // namespace cleat::engine
