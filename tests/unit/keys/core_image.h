// SPDX-License-Identifier: Apache-2.0
// What a core dump of a process holds. Of a live process: all of its memory but what it left out (MADV_DONTDUMP; "dd" in
// smaps, proc(5)), which needs no core_pattern, no limits, and no dying process. And real ones, with the registers, where the
// kernel writes them into the process' folder.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace cleat::test {

// Calls `piece(std::string_view)` for each mapping.
template <typename Piece>
void ForEachDumpedMapping(pid_t pid, Piece piece) {
  const std::string proc = "/proc/" + std::to_string(pid);
  const UniqueFd memory(open((proc + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  std::ifstream smaps(proc + "/smaps");
  uint64_t begin = 0;
  uint64_t end = 0;
  std::string line;
  while (std::getline(smaps, line)) {
    unsigned long from = 0;
    unsigned long to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      begin = from;
      end = to;
    }
    if (line.rfind("VmFlags:", 0) != 0) continue;
    const std::string flags = line + " ";
    if (flags.find(" dd ") != std::string::npos || flags.find(" rd ") == std::string::npos) continue;
    std::string bytes(end - begin, '\0');
    uint64_t got = 0;
    while (got < bytes.size()) {
      const ssize_t step =
          pread(memory.get(), bytes.data() + got, bytes.size() - got, static_cast<off_t>(begin + got));
      if (step <= 0) break;  // [vvar] can't be read
      got += static_cast<uint64_t>(step);
    }
    piece(std::string_view(bytes).substr(0, got));
  }
}

// How often any of the parts of 16 bytes of `key` is in it: what is left of a key in registers' spill places or in a
// cipher's schedule is found as well as the whole.
inline size_t CountKeyParts(std::string_view bytes, const std::string& key) {
  size_t found = 0;
  for (size_t part = 0; part + 16 <= key.size(); part += 16) {
    const std::string_view wanted = std::string_view(key).substr(part, 16);
    for (size_t at = bytes.find(wanted); at != std::string_view::npos; at = bytes.find(wanted, at + 1))
      ++found;
  }
  return found;
}
inline size_t CountKeyParts(pid_t pid, const std::string& key) {
  size_t found = 0;
  ForEachDumpedMapping(pid, [&](std::string_view bytes) { found += CountKeyParts(bytes, key); });
  return found;
}

// Whether this machine's kernel writes cores as files into the process' own folder; elsewhere they can't be had here.
inline bool CoresAreFilesHere() {
  std::ifstream file("/proc/sys/kernel/core_pattern");
  std::string pattern;
  std::getline(file, pattern);
  return !pattern.empty() && pattern.find_first_of("|/") == std::string::npos;
}

// What is in the files of a folder that look like cores.
inline std::string ReadCores(const std::string& folder) {
  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    if (bytes.starts_with("\x7f"
                          "ELF"))
      all += bytes;
  }
  return all;
}

}  // namespace cleat::test
