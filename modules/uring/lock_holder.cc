// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/lock_holder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

namespace cleat::modules {
namespace {

namespace fs = std::filesystem;

constexpr size_t kCommandBytesMax = 120;  // of a command line, in a message

bool IsNumber(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Which file it is, without asking the file system behind it, which may hang: what the kernel has in memory is enough of
// an open file.
bool Identify(const char* path, struct statx& file) {
  return statx(AT_FDCWD, path, AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_TYPE | STATX_INO, &file) == 0;
}

bool IsSame(const struct statx& a, const struct statx& b) {
  if (S_ISBLK(a.stx_mode)) {
    return S_ISBLK(b.stx_mode) && a.stx_rdev_major == b.stx_rdev_major &&
           a.stx_rdev_minor == b.stx_rdev_minor;
  }
  return a.stx_ino == b.stx_ino && a.stx_dev_major == b.stx_dev_major && a.stx_dev_minor == b.stx_dev_minor;
}

// Lines as "lock:\t1: OFDLCK  ADVISORY  WRITE -1 fd:00:2 0 EOF" stand in it for each lock of that open file. Files are
// locked by OFD locks, which POSIX ones conflict with; block devices by flock, which is apart from both.
bool IsOfKind(const std::string& line, bool block_device) {
  const auto is = [&line](const char* kind) { return line.find(kind) != std::string::npos; };
  return block_device ? is("FLOCK") : is("OFDLCK") || is("POSIX");
}

// Whether that lock is in the way of a pool's disk: a flock to write on the device, or a lock on bytes of the disk's.
bool IsInTheWay(const std::string& line, const WantedRanges& wanted) {
  std::istringstream words(line);
  std::string word;
  std::string type;
  std::string end_text;
  uint64_t start = 0;
  words >> word >> word >> word >> word >> type >> word >> word >> start >> end_text;
  if (!words) return false;
  const bool writes = type == "WRITE";
  if (IsOfKind(line, true)) return writes;
  if (!IsOfKind(line, false) || !(writes || wanted.writes)) return false;
  const uint64_t end = end_text == "EOF" ? UINT64_MAX : std::strtoull(end_text.c_str(), nullptr, 10) + 1;
  return std::any_of(wanted.ranges.begin(), wanted.ranges.end(), [&](const pool::DriveRange& range) {
    return start < range.end() && range.first_byte < end;
  });
}

bool HasLock(const fs::path& fdinfo, bool block_device, const std::optional<WantedRanges>& wanted) {
  std::ifstream lines(fdinfo);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("lock:")) continue;
    if (wanted ? IsInTheWay(line, *wanted) : IsOfKind(line, block_device)) return true;
  }
  return false;
}

// Whether the process has an open file of the same inode with a lock on it. `ours`: not to be counted.
bool Holds(const fs::path& process, const struct statx& file, const std::string& ours,
           const std::optional<WantedRanges>& wanted) {
  std::error_code error;
  for (fs::directory_iterator fds(process / "fd", error), end; !error && fds != end; fds.increment(error)) {
    const std::string number = fds->path().filename();
    struct statx found {};
    if (number == ours || !Identify(fds->path().c_str(), found) || !IsSame(file, found)) continue;
    if (HasLock(process / "fdinfo" / number, S_ISBLK(file.stx_mode), wanted)) return true;
  }
  return false;
}

std::string CommandOf(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/cmdline", std::ios::binary);
  std::string command((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!command.empty() && command.back() == '\0') command.pop_back();
  // Words are separated by zeroes; whatever else does not belong into a message may come from anybody.
  for (char& c : command) {
    if (c < ' ' || c > '~') c = ' ';
  }
  if (command.size() > kCommandBytesMax) command = command.substr(0, kCommandBytesMax) + "...";
  return command;
}

}  // namespace

std::optional<LockHolder> FindLockHolder(int fd, const std::optional<WantedRanges>& wanted) {
  struct statx file {};
  const std::string number = std::to_string(fd);
  if (!Identify(("/proc/self/fd/" + number).c_str(), file)) return std::nullopt;
  const std::string self = std::to_string(getpid());
  std::error_code error;
  for (fs::directory_iterator processes("/proc", error), end; !error && processes != end;
       processes.increment(error)) {
    const std::string pid = processes->path().filename();
    if (!IsNumber(pid) || !Holds(processes->path(), file, pid == self ? number : std::string(), wanted))
      continue;
    LockHolder holder;
    holder.pid = static_cast<pid_t>(std::stol(pid));
    holder.command = CommandOf(pid);
    struct statx its {};
    struct statx ours {};
    holder.same_program = Identify((processes->path() / "exe").c_str(), its) &&
                          Identify("/proc/self/exe", ours) && IsSame(its, ours);
    return holder;
  }
  return std::nullopt;
}

}  // namespace cleat::modules
