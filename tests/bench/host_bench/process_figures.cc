// SPDX-License-Identifier: Apache-2.0
#include "process_figures.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "../../system/process.h"
#include "base/clock.h"

namespace cleat::bench {

uint64_t CpuNs(pid_t pid) {
  // The fields behind the command, which is in parentheses; the first of them is number 3.
  const std::string line = system_test::ReadTextFile(fmt::format("/proc/{}/stat", pid));
  const size_t at = line.rfind(')');
  if (at == std::string::npos) return 0;
  std::istringstream rest(line.substr(at + 1));
  const std::vector<std::string> fields{std::istream_iterator<std::string>(rest), {}};
  constexpr size_t kUserTime = 14 - 3;
  if (fields.size() <= kUserTime + 1) return 0;
  const auto ticks_per_second = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  return (std::stoull(fields[kUserTime]) + std::stoull(fields[kUserTime + 1])) *
         (kNsPerSecond / ticks_per_second);
}

uint64_t PrivateDirtyBytes(pid_t pid) {
  std::istringstream lines(system_test::ReadTextFile(fmt::format("/proc/{}/smaps_rollup", pid)));
  std::string word;
  uint64_t kib = 0;
  while (lines >> word) {
    if (word == "Private_Dirty:" && lines >> kib) return kib * 1024;
  }
  return 0;
}

}  // namespace cleat::bench
