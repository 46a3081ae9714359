// SPDX-License-Identifier: Apache-2.0
// Which paths callers may name: the host's operator lists them in /etc/cleat/paths.conf, which cleatd reads. Any role
// is bound by it. A line is KIND ENTRY:
//
//   files DIR        regular files at any depth below it may become disks
//   devices PATTERN  block devices that have a name which matches it, as a shell would; * matches no slash
//   sockets DIR      controllers' sockets
//   keys DIR         Ceph's conf files and keyrings
//
// `/` as an entry lists everything of its kind, `none` nothing; a kind without a line has its default. # begins a comment.
// Immutable once made: any thread. (base/listed_open.h opens what is listed.)
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cleat {

enum class PathKind : uint8_t { kFile, kDevice, kSocket, kKey };
inline constexpr size_t kPathKinds = 4;

class PathLists {
 public:
  static constexpr const char* kDefaultPath = "/etc/cleat/paths.conf";
  static constexpr size_t kEntriesMax = 64;  // of a kind
  static constexpr size_t kFileBytesMax =
      48 << 10;  // what Text() gives of it fits a message between engine and cleatd

  // What holds without a file, for processes with these folders.
  static PathLists Defaults(const std::string& state_dir, const std::string& runtime_dir);
  static PathLists Everything();
  static std::string NameOf(PathKind kind);  // "files"
  // `source` names the text in errors, which have the line's number. kInvalidArgument.
  static Result<PathLists> Parse(std::string_view text, std::string_view source, PathLists defaults);
  // Of the file; `defaults` when there is none. Blocks on the file system.
  static Result<PathLists> Read(const std::string& path, PathLists defaults);

  const std::vector<std::string>& entries(PathKind kind) const { return entries_[static_cast<size_t>(kind)]; }
  // The entry below which the path is; of devices, the first pattern that the path itself matches. Looks at nothing but the text, so
  // that the path may still lead elsewhere. Nothing for a path that is not absolute and without `.`, `..`, and empty names.
  std::optional<std::string> EntryOf(PathKind kind, std::string_view path) const;
  // Everything of its kind is listed.
  bool IsOpen(PathKind kind) const;
  // For errors: the kind's entries and how to add one.
  std::string HowToList(PathKind kind) const;
  // Line by line, sorted: the same for lists that allow the same.
  std::string Text() const;
  bool operator==(const PathLists&) const = default;

 private:
  Status AddLine(std::string_view line, std::array<bool, kPathKinds>& named);
  std::vector<std::string>& Of(PathKind kind) { return entries_[static_cast<size_t>(kind)]; }

  std::array<std::vector<std::string>, kPathKinds> entries_;  // sorted
};

// Absolute, without `.`, `..`, empty names and a slash at the end.
bool IsPlainPath(std::string_view path);

}  // namespace cleat
