// SPDX-License-Identifier: Apache-2.0
#include "control/state/moves/engine_process.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

namespace cleat::control {
namespace {

constexpr std::string_view kProgram = "cleat-engine";
constexpr std::string_view kNameOption = "--name";
constexpr std::string_view kDefaultName = "engine-0";

// /proc/PID/cmdline (proc(5)): each argument ends with a zero byte.
std::vector<std::string> ArgumentsOf(const std::filesystem::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(std::move(argument));
  return arguments;
}

bool IsEngine(const std::vector<std::string>& arguments, const std::string& engine) {
  if (arguments.empty() || std::filesystem::path(arguments.front()).filename() != kProgram) return false;
  std::string_view name = kDefaultName;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == kNameOption && i + 1 < arguments.size()) name = arguments[i + 1];
    if (argument.starts_with("--name=")) name = argument.substr(kNameOption.size() + 1);
  }
  return name == engine;
}

}  // namespace

std::optional<pid_t> FindEngineProcess(const std::string& engine) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string text = entry.path().filename();
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
    if (error != std::errc() || end != text.data() + text.size()) continue;
    if (IsEngine(ArgumentsOf(entry.path()), engine)) return pid;
  }
  return std::nullopt;
}

}  // namespace cleat::control
