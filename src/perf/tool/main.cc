// SPDX-License-Identifier: Apache-2.0
// cleat-perf: a load generator with its own virtio driver. It stands where QEMU and a guest would: it owns
// the vhost-user sockets, takes the back ends' connections, and does I/O on the disks behind them. It has an NVMe/TCP
// initiator of its own as well, for the targets on the other side of the engine.
#include <fmt/format.h>
#include <sys/resource.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/version.h"
#include "perf/tool/command_line.h"

namespace cleat::perf {
namespace {

std::atomic<bool> g_stop{false};

void HandleSignal(int /*signal*/) {
  g_stop.store(true, std::memory_order_relaxed);
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Load generator for vhost-user disks (blk and scsi): plays QEMU and its guest, no VM needed. And for "
      "namespaces behind NVMe/TCP.",
      "cleat-perf");
  app.set_version_flag("--version", std::string("cleat-perf ") + kVersion);
  app.footer(
      "Exit status: 0 - all went well, 1 - errors, 2 - a disk returned wrong data.\n"
      "Each command explains itself: cleat-perf run --help");
  app.require_subcommand(1);
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(AddRunCommand(app));
  commands.push_back(AddHostileCommand(app));
  commands.push_back(AddRingLoopCommand(app));
  commands.push_back(AddCopyLoopCommand(app));
  commands.push_back(AddCompareCommand(app));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitGood : kExitFailed;
  }
  const std::vector<std::string> command_line(argv, argv + argc);
  for (const auto& command : commands) {
    if (command->app->parsed()) return command->Run(command_line);
  }
  return kExitFailed;
}

}  // namespace

Result<std::vector<uint32_t>> ParseList(std::string_view text, uint32_t max) {
  constexpr size_t kNumbersMax = 100'000;
  const auto bad = [&] {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("'{}' is no list of numbers from 0 to {}, such as 0-3,7", text, max));
  };
  std::vector<uint32_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    uint32_t first = 0;
    auto [next, error] = std::from_chars(at, end, first);
    uint32_t last = first;
    if (error == std::errc() && next < end && *next == '-') {
      const auto range = std::from_chars(next + 1, end, last);
      next = range.ptr;
      error = range.ec;
    }
    if (error != std::errc() || first > last || last > max || numbers.size() + (last - first) >= kNumbersMax)
      return bad();
    for (uint32_t number = first; number <= last; ++number) numbers.push_back(number);
    if (next < end && (*next != ',' || next + 1 == end)) return bad();
    at = next < end ? next + 1 : end;
  }
  if (numbers.empty()) return bad();
  return numbers;
}

uint64_t Nanoseconds(double seconds) {
  return static_cast<uint64_t>(seconds * static_cast<double>(kNsPerSecond));
}

CLI::Option* AddJson(CLI::App& app, std::string& path) {
  return app.add_option("--json", path, "The result as JSON, to a file or - for standard output")
      ->type_name("FILE");
}

Status WriteJson(const std::string& path, const std::vector<std::string>& command_line, Json options,
                 Json result) {
  if (path.empty()) return Ok{};
  return WriteText(path, ResultFile(command_line, std::move(options), std::move(result)).dump(2) + "\n");
}

NvmeTargetOptions AddNvmeTarget(CLI::App& app, NvmeTcpOptions& target, const char* group,
                                const NvmeTargetHelp& help) {
  const auto text = [&](const char* name, std::string& value, const std::string& what, const char* type) {
    return app.add_option(name, value, what)->type_name(type)->group(group);
  };
  const auto flag = [&](const char* name, bool& value, const char* what) {
    return app.add_flag(name, value, what)->group(group);
  };
  NvmeTargetOptions added{};
  added.address = text("--nvme-tcp", target.address, help.address, "HOST:PORT");
  added.nqn = text("--nqn", target.subsystem_nqn, "The subsystem's NQN", "NQN");
  added.others = {
      text("--namespace", target.namespace_name, "The namespace's number or UUID (default: the only one)",
           "ID"),
      text("--host-nqn", target.host_nqn, "This host's NQN (default: made of its identifier)", "NQN"),
      text("--host-id", target.host_id, fmt::format("This host's identifier (default: {})", help.host_id),
           "UUID"),
      flag("--header-digest", target.digests.header, help.header_digest),
      flag("--data-digest", target.digests.data, help.data_digest),
  };
  return added;
}

int Complain(const Error& error) {
  std::fprintf(stderr, "cleat-perf: %s\n", error.message.c_str());
  return kExitFailed;
}

const std::atomic<bool>* StopOnSignals() {
  struct sigaction action {};
  action.sa_handler = HandleSignal;
  action.sa_flags = SA_RESETHAND;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return &g_stop;
}

void AllowManyDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace cleat::perf

int main(int argc, char** argv) {
  return cleat::perf::Main(argc, argv);
}
