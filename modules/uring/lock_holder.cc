// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/lock_holder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace cleat::modules {
namespace {

namespace fs = std::filesystem;

constexpr size_t kCommandBytesMax = 120;  // of a command line, in a message

bool IsNumber(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Lines as "lock:\t1: OFDLCK  ADVISORY  WRITE -1 fd:00:2 0 EOF" stand in it for each lock of that open file; POSIX
// locks, which are the process's, do not exclude ours of the same process.
bool HasLock(const fs::path& fdinfo) {
  std::ifstream lines(fdinfo);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("lock:") &&
        (line.find("OFDLCK") != std::string::npos || line.find("FLOCK") != std::string::npos ||
         line.find("POSIX") != std::string::npos)) {
      return true;
    }
  }
  return false;
}

// Whether the process has another open file of the same inode with a lock on it. `ours`: not to be counted.
bool Holds(const fs::path& process, const struct stat& wanted, const std::string& ours) {
  std::error_code error;
  for (fs::directory_iterator fds(process / "fd", error), end; !error && fds != end; fds.increment(error)) {
    const std::string number = fds->path().filename();
    struct stat found {};
    if (number == ours || stat(fds->path().c_str(), &found) != 0) continue;
    const bool same = S_ISBLK(wanted.st_mode)
                          ? S_ISBLK(found.st_mode) && found.st_rdev == wanted.st_rdev
                          : found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino;
    if (same && HasLock(process / "fdinfo" / number)) return true;
  }
  return false;
}

std::string Describe(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/cmdline", std::ios::binary);
  std::string command((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!command.empty() && command.back() == '\0') command.pop_back();
  // Words are separated by zeroes; whatever else does not belong into a message may come from anybody.
  for (char& c : command) {
    if (c < ' ' || c > '~') c = ' ';
  }
  if (command.size() > kCommandBytesMax) command = command.substr(0, kCommandBytesMax) + "...";
  return "process " + pid + (command.empty() ? "" : " (" + command + ")");
}

}  // namespace

std::string DescribeLockHolder(int fd) {
  struct stat wanted {};
  if (fstat(fd, &wanted) != 0) return {};
  const std::string self = std::to_string(getpid());
  std::error_code error;
  for (fs::directory_iterator processes("/proc", error), end; !error && processes != end;
       processes.increment(error)) {
    const std::string pid = processes->path().filename();
    if (!IsNumber(pid)) continue;
    const bool own = pid == self;
    if (Holds(processes->path(), wanted, own ? std::to_string(fd) : std::string())) {
      return own ? "this process" : Describe(pid);
    }
  }
  return {};
}

}  // namespace cleat::modules
