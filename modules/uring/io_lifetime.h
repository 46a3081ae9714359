// SPDX-License-Identifier: Apache-2.0
// Tells when the I/O of a process that was killed has ended: what the kernel had taken from its io_urings goes on without it.
//
// Each process has a file in a folder that the host's engines share, with two locks on it:
//   byte 0  the process' (F_SETLK, fcntl(2)): free when it has ended, and before any of its connections are closed, since the
//           kernel takes these locks away when it closes descriptors, and lets go of open files after that
//   byte 1  the open file's (F_OFD_SETLK), which all its io_urings have registered: the kernel keeps a ring's files until the ring's
//           last request has ended
// So a file whose byte 0 is free and whose byte 1 is not is of a dead process with living I/O.
//
// Immutable; any thread. All calls block on the folder's file system.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::modules {

class IoLifetime {
 public:
  // Makes the folder (mode 0700) where it is missing, and this process' file in it, whose name begins with `name`; removes the
  // files of processes that have ended, with their I/O. An error of the file system names the folder.
  static Result<std::unique_ptr<IoLifetime>> Make(const std::string& folder, const std::string& name);
  // This process' rings are gone.
  ~IoLifetime();
  IoLifetime(const IoLifetime&) = delete;
  IoLifetime& operator=(const IoLifetime&) = delete;

  // The open file, for rings to register. Nobody else in this process may open and close that file: byte 0 would be free.
  int fd() const { return file_.get(); }
  const std::string& path() const { return path_; }

  // A file of a process that is dead and whose I/O is not; nullopt: there is none. Removes the files of those with neither. What
  // can't be looked at counts as one, with the reason: the folder, unless it is missing, and a file while descriptors or memory are short.
  std::optional<std::string> FindDeadWithIo() const;

 private:
  IoLifetime(std::string folder, std::string path, UniqueFd file)
      : folder_(std::move(folder)), path_(std::move(path)), file_(std::move(file)) {}

  const std::string folder_;
  const std::string path_;
  const UniqueFd file_;
};

}  // namespace cleat::modules
