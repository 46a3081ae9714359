// SPDX-License-Identifier: Apache-2.0
#include "ctl/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

namespace cleat::ctl {

NewFile::NewFile(std::string path, std::string if_there)
    : path_(std::move(path)), if_there_(std::move(if_there)), unfinished_(path_ + ".unfinished-XXXXXX") {}

NewFile::~NewFile() {
  if (fd_.valid()) unlink(unfinished_.c_str());
}

Status NewFile::Open() {
  fd_ = UniqueFd(mkostemp(unfinished_.data(), O_CLOEXEC));
  return fd_.valid() ? Status(Ok{}) : Status(Failed());
}

Status NewFile::Write(std::string_view data) {
  while (!data.empty()) {
    const ssize_t written = write(fd_.get(), data.data(), data.size());
    if (written < 0 && errno != EINTR) return Failed();
    if (written > 0) data.remove_prefix(static_cast<size_t>(written));
  }
  return Ok{};
}

Status NewFile::Finish(bool replace) {
  if (fsync(fd_.get()) != 0) return Failed();
  if (!Rename(replace)) return Failed();
  fd_.Reset();
  const std::string folder = std::filesystem::path(path_).parent_path();
  const UniqueFd parent(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return parent.valid() && fsync(parent.get()) == 0 ? Status(Ok{}) : Status(Failed());
}

bool NewFile::Rename(bool replace) const {
  const unsigned flags = replace ? 0 : RENAME_NOREPLACE;
  if (renameat2(AT_FDCWD, unfinished_.c_str(), AT_FDCWD, path_.c_str(), flags) == 0) return true;
  // Some file systems don't know RENAME_NOREPLACE; NFS is one.
  if (replace || errno != EINVAL || link(unfinished_.c_str(), path_.c_str()) != 0) return false;
  unlink(unfinished_.c_str());
  return true;
}

Error NewFile::Failed() const {
  const int why = errno;
  if (why == EEXIST)
    return Error(ErrorCode::kAlreadyExists, fmt::format("'{}' is there: {}", path_, if_there_));
  return ErrnoError(why, fmt::format("'{}' can't be written", path_));
}

}  // namespace cleat::ctl
