// SPDX-License-Identifier: Apache-2.0
// cleat-perf's commands. Each adds itself to the command line, and is run when it was the one that was given.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "perf/nvme_tcp/controller.h"
#include "perf/report/report.h"

namespace cleat::perf {

inline constexpr int kExitGood = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitDataFault = 2;
inline constexpr uint32_t kCoreNumberMax = 1023;  // that --cores may name

class Command {
 public:
  virtual ~Command() = default;
  virtual int Run(const std::vector<std::string>& command_line) = 0;
  CLI::App* app = nullptr;
};

std::unique_ptr<Command> AddRunCommand(CLI::App& app);
std::unique_ptr<Command> AddHostileCommand(CLI::App& app);
std::unique_ptr<Command> AddRingLoopCommand(CLI::App& app);
std::unique_ptr<Command> AddCopyLoopCommand(CLI::App& app);
std::unique_ptr<Command> AddCompareCommand(CLI::App& app);

// "0-3,7": numbers up to `max`, as given.
Result<std::vector<uint32_t>> ParseList(std::string_view text, uint32_t max);
uint64_t Nanoseconds(double seconds);

// --json, and what it is for: nothing where `path` is empty.
CLI::Option* AddJson(CLI::App& app, std::string& path);
Status WriteJson(const std::string& path, const std::vector<std::string>& command_line, Json options,
                 Json result);

// The options that say which namespace behind an NVMe/TCP target is meant: --nvme-tcp, --nqn, and those that only make sense with these.
struct NvmeTargetOptions {
  CLI::Option* address;
  CLI::Option* nqn;
  std::vector<CLI::Option*> others;
};
struct NvmeTargetHelp {
  const char* address;
  const char* host_id;  // what is taken where --host-id is not given
  const char* header_digest;
  const char* data_digest;
};
NvmeTargetOptions AddNvmeTarget(CLI::App& app, NvmeTcpOptions& target, const char* group,
                                const NvmeTargetHelp& help);

// Says what went wrong on standard error; kExitFailed.
int Complain(const Error& error);

// True from the first SIGINT or SIGTERM on; a second one ends the process. SIGPIPE is ignored. Called once.
const std::atomic<bool>* StopOnSignals();
// As many as the process may have.
void AllowManyDescriptors();

}  // namespace cleat::perf
