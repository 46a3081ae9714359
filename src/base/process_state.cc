// SPDX-License-Identifier: Apache-2.0
#include "base/process_state.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string_view>

namespace cleat {
namespace {

// A line's value in /proc/PID/status (proc(5)): "State:\tT (stopped)".
std::string FieldOf(const std::string& status, std::string_view field) {
  std::istringstream lines(status);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(field)) continue;
    const size_t begin = line.find_first_not_of(" \t", field.size());
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

std::optional<std::string> Read(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// The process' control group where that is frozen (cgroup v2: cgroups(7), "cgroup.events"); empty: it is not, or nobody can tell.
std::string FrozenGroup(pid_t pid) {
  const auto groups = Read(fmt::format("/proc/{}/cgroup", pid));
  if (!groups) return {};
  const std::string group = FieldOf(*groups, "0::");
  const auto events = Read(fmt::format("/sys/fs/cgroup{}/cgroup.events", group));
  return events && FieldOf(*events, "frozen") == "1" ? group : std::string();
}

}  // namespace

std::optional<std::string> WhyProcessStandsStill(pid_t pid) {
  const auto status = Read(fmt::format("/proc/{}/status", pid));
  if (!status) return std::nullopt;
  if (const std::string group = FrozenGroup(pid); !group.empty())
    return fmt::format("process {} is frozen with its control group {}: thaw that", pid, group);
  const std::string state = FieldOf(*status, "State:");
  switch (state.empty() ? '?' : state.front()) {
    case 'T':
      return fmt::format(
          "process {} is stopped (SIGSTOP, or a shell's job control): `kill -CONT {}` lets it go on", pid,
          pid);
    case 't':
      return fmt::format("process {} is held by process {}, a debugger: let it go on there", pid,
                         FieldOf(*status, "TracerPid:"));
    default:
      return std::nullopt;
  }
}

std::optional<std::string> WhyProcessIsHidden(pid_t pid, const std::string& proc) {
  if (Read(fmt::format("{}/{}/status", proc, pid))) return std::nullopt;
  if (kill(pid, 0) != 0 && errno != EPERM) return std::nullopt;
  return fmt::format(
      "process {} may be stopped, which is hidden from this one (ProtectProc=, hidepid=): `ps -o stat= -p "
      "{}` "
      "says T then",
      pid, pid);
}

std::string ProcessState(pid_t pid) {
  if (auto why = WhyProcessStandsStill(pid)) return *std::move(why);
  const auto status = Read(fmt::format("/proc/{}/status", pid));
  if (!status) return fmt::format("process {} has ended, or can't be looked at", pid);
  const std::string state = FieldOf(*status, "State:");
  switch (state.empty() ? '?' : state.front()) {
    case 'D':
      return fmt::format(
          "process {} waits in the kernel, which nothing interrupts: for swapped memory or a device", pid);
    case 'Z':
      return fmt::format("process {} has ended, and its parent has not been told", pid);
    default:
      return fmt::format("process {} is there ({}) and may hang: see its log", pid, state);
  }
}

}  // namespace cleat
