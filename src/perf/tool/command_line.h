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
// Says what went wrong on standard error; kExitFailed.
int Complain(const Error& error);

// True from the first SIGINT or SIGTERM on; a second one ends the process. SIGPIPE is ignored. Called once.
const std::atomic<bool>* StopOnSignals();
// As many as the process may have.
void AllowManyDescriptors();

}  // namespace cleat::perf
