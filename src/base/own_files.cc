// SPDX-License-Identifier: Apache-2.0
#include "base/own_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "base/listed_open.h"

namespace cleat {
namespace {

bool IsBelow(const std::string& path, const std::string& folder) {
  return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

// The path of what was opened, without links; empty when the kernel does not tell it.
std::string RealPath(const UniqueFd& found) {
  std::error_code failed;
  const std::filesystem::path path = std::filesystem::read_symlink(PathOf(found), failed);
  return failed ? std::string() : path.string();
}

}  // namespace

OwnFiles::OwnFiles(const std::string& state_dir) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(state_dir, failed);
  state_dir_ = failed ? state_dir : real.string();
}

Error OwnFiles::Refusal(const std::string& what) const {
  return {ErrorCode::kPermissionDenied,
          what + " is one of a cleatd's own, by which it knows the host: choose another one, below " +
              state_dir_ + "/disks for example"};
}

// CheckFolder takes a folder with a file of that name for a cleatd's state directory, so no disk may have that name.
Status OwnFiles::CheckName(const std::string& path, const std::string& what) const {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.starts_with(kStoreName) ? Status(Refusal(what)) : Status(Ok{});
}

Status OwnFiles::CheckFolder(const std::string& folder, const std::string& what) const {
  const std::string disks = state_dir_ + "/disks";
  const bool of_disks = folder == disks || IsBelow(folder, disks);
  if (!of_disks && (folder == state_dir_ || IsBelow(folder, state_dir_))) return Refusal(what);
  // The state directory of another cleatd.
  std::error_code failed;
  if (!folder.empty() && std::filesystem::exists(folder + "/" + kStoreName, failed)) return Refusal(what);
  return Ok{};
}

Status OwnFiles::CheckNotOwn(const UniqueFd& found, const std::string& what) const {
  const std::string path = RealPath(found);
  CLEAT_TRY(CheckName(path, what));
  CLEAT_TRY(CheckFolder(path.substr(0, path.rfind('/')), what));
  struct stat info {};
  // A file with one name that looks like a store is a guest's disk with such content, or a copy that nobody uses.
  const bool linked = fstat(found.get(), &info) == 0 && info.st_nlink > 1;
  return IsAmongOurs(found) || (linked && IsStore(found)) ? Status(Refusal(what)) : Status(Ok{});
}

Status OwnFiles::CheckNoStore(const UniqueFd& found, const std::string& what) {
  if (!IsStore(found)) return Ok{};
  const std::string path = RealPath(found);
  const bool named = path.substr(path.rfind('/') + 1).starts_with(kStoreName);
  struct stat info {};
  const bool linked = fstat(found.get(), &info) == 0 && info.st_nlink > 1;
  if (!named && !linked) return Ok{};
  return Error(ErrorCode::kPermissionDenied, what + " leads to a cleatd's store by now, " + path +
                                                 ": make it lead to the disk's file again");
}

Status OwnFiles::CheckNotOwnFolder(const UniqueFd& folder, const std::string& name,
                                   const std::string& what) const {
  CLEAT_TRY(CheckName(name, what));
  return CheckFolder(RealPath(folder), what);
}

// Known by its header, whatever its name.
bool OwnFiles::IsStore(const UniqueFd& found) {
  constexpr std::string_view kMagic("SQLite format 3\0", 16);
  constexpr size_t kApplicationIdAt = 68;  // big-endian (https://www.sqlite.org/fileformat.html, 1.3)
  struct stat info {};
  if (fstat(found.get(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  std::array<uint8_t, kApplicationIdAt + 4> header{};
  const UniqueFd file = ReopenAs(found, O_RDONLY | O_NONBLOCK);
  if (!file || pread(file.get(), header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()))
    return false;
  uint64_t id = 0;
  for (size_t i = kApplicationIdAt; i < header.size(); ++i) id = id << 8 | header[i];
  return std::equal(kMagic.begin(), kMagic.end(), header.begin()) && id == kStoreApplicationId;
}

// Finds files of the state directory under other names: hard links, bind mounts.
bool OwnFiles::IsAmongOurs(const UniqueFd& found) const {
  struct stat asked {};
  if (fstat(found.get(), &asked) != 0) return false;
  std::error_code failed;
  std::filesystem::directory_iterator entry(state_dir_, failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    struct stat ours {};
    if (lstat(entry->path().c_str(), &ours) == 0 && S_ISREG(ours.st_mode) && ours.st_dev == asked.st_dev &&
        ours.st_ino == asked.st_ino)
      return true;
  }
  return false;
}

}  // namespace cleat
