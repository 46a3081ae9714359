// SPDX-License-Identifier: Apache-2.0
#include "base/path_lists.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/unique_fd.h"

namespace cleat {
namespace {

constexpr std::array<std::string_view, kPathKinds> kKindNames = {"files", "devices", "sockets", "keys"};
constexpr std::string_view kEverything = "/";
constexpr std::string_view kNothing = "none";
constexpr std::string_view kBlanks = " \t\r";

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool IsBelow(std::string_view path, std::string_view folder) {
  if (folder == kEverything) return true;
  return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

bool Matches(const std::string& path, const std::string& pattern) {
  return pattern == kEverything || fnmatch(pattern.c_str(), path.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0;
}

Error Wrong(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace

bool IsPlainPath(std::string_view path) {
  if (path.size() < 2 || path.front() != '/' || path.find('\0') != std::string_view::npos) return false;
  while (!path.empty()) {
    path.remove_prefix(1);
    const std::string_view name = path.substr(0, path.find('/'));
    if (name.empty() || name == "." || name == "..") return false;
    path.remove_prefix(name.size());
  }
  return true;
}

PathLists PathLists::Defaults(const std::string& state_dir, const std::string& runtime_dir) {
  PathLists lists;
  lists.Of(PathKind::kFile) = {state_dir + "/disks"};
  // A volume group or a device-mapper name that was made for Cleat, and never a disk that the host itself may live on.
  lists.Of(PathKind::kDevice) = {"/dev/cleat/*", "/dev/disk/by-partlabel/cleat-*", "/dev/mapper/cleat-*"};
  lists.Of(PathKind::kSocket) = {runtime_dir + "-guests", "/run/libvirt/qemu", "/var/lib/libvirt/qemu"};
  lists.Of(PathKind::kKey) = {"/etc/ceph", state_dir + "/keys"};
  for (auto& entries : lists.entries_) std::sort(entries.begin(), entries.end());
  return lists;
}

PathLists PathLists::Everything() {
  PathLists lists;
  for (auto& entries : lists.entries_) entries = {std::string(kEverything)};
  return lists;
}

std::string PathLists::NameOf(PathKind kind) {
  return std::string(kKindNames[static_cast<size_t>(kind)]);
}

Status PathLists::AddLine(std::string_view line, std::array<bool, kPathKinds>& named) {
  const size_t blank = line.find_first_of(kBlanks);
  const std::string_view name = line.substr(0, blank);
  const std::string_view entry =
      blank == std::string_view::npos ? std::string_view() : Trimmed(line.substr(blank));
  const auto kind = std::find(kKindNames.begin(), kKindNames.end(), name);
  if (kind == kKindNames.end())
    return Wrong("'" + std::string(name) + "' is none of files, devices, sockets and keys");
  const auto index = static_cast<size_t>(kind - kKindNames.begin());
  std::vector<std::string>& entries = entries_[index];
  if (!std::exchange(named[index], true)) entries.clear();
  if (entry == kNothing) return Ok{};
  if (entry != kEverything && !IsPlainPath(entry)) {
    return Wrong("'" + std::string(entry) + "' is no absolute path without . and .. and a slash at its end");
  }
  if (entries.size() == kEntriesMax)
    return Wrong("more than " + std::to_string(kEntriesMax) + " lines of " + std::string(name));
  entries.emplace_back(entry);
  return Ok{};
}

Result<PathLists> PathLists::Parse(std::string_view text, std::string_view source, PathLists defaults) {
  std::array<bool, kPathKinds> named{};
  for (size_t number = 1; !text.empty(); ++number) {
    const std::string_view whole = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), whole.size() + 1));
    const std::string_view line = Trimmed(whole.substr(0, whole.find('#')));
    if (line.empty()) continue;
    if (auto status = defaults.AddLine(line, named); !status.ok()) {
      return Wrong(std::string(source) + ", line " + std::to_string(number) + ": " + status.error().message);
    }
  }
  for (auto& entries : defaults.entries_) {
    std::sort(entries.begin(), entries.end());
    entries.erase(std::unique(entries.begin(), entries.end()), entries.end());
  }
  return defaults;
}

Result<PathLists> PathLists::Read(const std::string& path, PathLists defaults) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) return defaults;
  if (!fd) return ErrnoError(errno, path + " can't be read");
  std::string text(kFileBytesMax + 1, '\0');
  const ssize_t size = read(fd.get(), text.data(), text.size());
  if (size < 0) return ErrnoError(errno, path + " can't be read");
  if (static_cast<size_t>(size) > kFileBytesMax)
    return Wrong(path + " has more than " + std::to_string(kFileBytesMax) + " bytes");
  text.resize(static_cast<size_t>(size));
  return Parse(text, path, std::move(defaults));
}

std::optional<std::string> PathLists::EntryOf(PathKind kind, std::string_view path) const {
  if (!IsPlainPath(path)) return std::nullopt;
  const std::string whole(path);
  std::optional<std::string> found;
  for (const std::string& entry : entries(kind)) {
    const bool covers = kind == PathKind::kDevice ? Matches(whole, entry) : IsBelow(path, entry);
    // The innermost folder: what lies between it and the file is looked at most strictly.
    if (covers && (!found || entry.size() > found->size())) found = entry;
  }
  return found;
}

bool PathLists::IsOpen(PathKind kind) const {
  const auto& all = entries(kind);
  return std::find(all.begin(), all.end(), kEverything) != all.end();
}

std::string PathLists::HowToList(PathKind kind) const {
  std::string listed;
  for (const std::string& entry : entries(kind)) listed += (listed.empty() ? "" : ", ") + entry;
  return "this host allows " + (listed.empty() ? "none" : listed) +
         ": choose one of those, or have the operator add a line '" + NameOf(kind) +
         (kind == PathKind::kDevice ? " PATTERN" : " DIR") + "' to " + kDefaultPath;
}

std::string PathLists::Text() const {
  std::string text;
  for (size_t kind = 0; kind < kPathKinds; ++kind) {
    for (const std::string& entry : entries_[kind])
      text += std::string(kKindNames[kind]) + " " + entry + "\n";
    if (entries_[kind].empty()) text += std::string(kKindNames[kind]) + " " + std::string(kNothing) + "\n";
  }
  return text;
}

}  // namespace cleat
