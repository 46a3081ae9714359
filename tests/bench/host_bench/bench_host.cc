// SPDX-License-Identifier: Apache-2.0
#include "bench_host.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/clock.h"
#include "base/path_lists.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kEndTimeoutNs = 60 * kNsPerSecond;
constexpr size_t kLogTailBytes = 2000;
constexpr int kFileLooksMax = 1000;
constexpr int kFileLookMs = 10;

bool WaitForFile(const std::string& path) {
  for (int i = 0; i < kFileLooksMax; ++i) {
    if (!system_test::ReadTextFile(path).empty()) return true;
    poll(nullptr, 0, kFileLookMs);
  }
  return false;
}

Status EndWell(system_test::Process& process, const std::string& name) {
  auto ended = process.Terminate(kEndTimeoutNs);
  if (!ended) return Error(ended.error().code, name + ": " + ended.error().message);
  if (WIFEXITED(*ended) && WEXITSTATUS(*ended) == 0) return Ok{};
  return Error(ErrorCode::kInternal, fmt::format("{} did not end well, wait status {}", name, *ended));
}

}  // namespace

Result<std::unique_ptr<BenchHost>> BenchHost::Start(const HostOptions& options) {
  std::string folder = options.parent_dir + "/cleat-host-bench-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return ErrnoError(errno, "a folder in " + options.parent_dir);
  std::unique_ptr<BenchHost> host(new BenchHost(options, folder));
  std::ofstream(folder + "/paths.conf") << PathLists::Everything().Text();
  std::vector<std::string> arguments{"--state-dir",   folder + "/state",      "--listen",
                                     host->address(), "--engine-socket",      host->EngineSocket(),
                                     "--paths",       folder + "/paths.conf", "--log-level",
                                     "info"};
  arguments.insert(arguments.end(), options.cleatd_arguments.begin(), options.cleatd_arguments.end());
  auto cleatd = host->Spawn("cleatd", arguments, "cleatd");
  if (!cleatd) return std::move(cleatd).error();
  host->cleatd_ = std::move(*cleatd);
  if (options.with_keys && !WaitForFile(folder + "/state/kek"))
    return Error(ErrorCode::kDeadlineExceeded, "cleatd has not made a key-encryption key");
  if (Status started = host->AddEngine(); !started) return std::move(started).error();
  return host;
}

Status BenchHost::AddEngine(const std::vector<std::string>& more) {
  const size_t number = engines_.size();
  const std::string name = EngineId(number);
  engines_.push_back({.name = name, .log = "cleat-" + name, .more = more, .process = nullptr});
  return StartEngine(number);
}

Status BenchHost::StartEngine(size_t engine) {
  Engine& started = engines_[engine];
  std::vector<std::string> arguments{"--name",        started.name,
                                     "--control",     EngineSocket(),
                                     "--runtime-dir", folder_ + "/run",
                                     "--reactors",    "1",
                                     "--cpus",        std::to_string(options_.engine_core),
                                     "--state-dir",   folder_ + "/state",
                                     "--paths",       folder_ + "/paths.conf"};
  if (options_.with_keys) arguments.insert(arguments.end(), {"--kek-file", folder_ + "/state/kek"});
  arguments.insert(arguments.end(), started.more.begin(), started.more.end());
  auto process = Spawn("cleat-engine", arguments, started.log);
  if (!process) return std::move(process).error();
  started.process = std::move(*process);
  return Ok{};
}

Result<std::unique_ptr<system_test::Process>> BenchHost::Spawn(const std::string& program,
                                                               const std::vector<std::string>& arguments,
                                                               const std::string& log) const {
  system_test::Process::Options options;
  options.program = options_.bin_dir + "/" + program;
  options.arguments = arguments;
  options.log_path = folder_ + "/" + log + ".log";
  options.directory = folder_;
  if (program == "cleatd") options.preload = options_.cleatd_preload;
  return system_test::Process::Start(options);
}

Status BenchHost::End() {
  Status status;
  // The engines first: they are to drain with somebody to tell.
  for (const Engine& engine : engines_) {
    if (engine.process == nullptr) continue;
    if (Status ended = EndWell(*engine.process, engine.log); status.ok()) status = std::move(ended);
  }
  if (cleatd_ != nullptr) {
    if (Status ended = EndWell(*cleatd_, "cleatd"); status.ok()) status = std::move(ended);
  }
  return status;
}

BenchHost::~BenchHost() {
  for (const Engine& engine : engines_) {
    if (engine.process != nullptr) engine.process->Kill();
  }
  if (cleatd_ != nullptr) cleatd_->Kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string BenchHost::LogTails() const {
  std::string text;
  std::vector<std::string> names{"cleatd"};
  for (const Engine& engine : engines_) names.push_back(engine.log);
  for (const std::string& name : names) {
    const std::string log = system_test::ReadTextFile(fmt::format("{}/{}.log", folder_, name));
    const size_t from = log.size() > kLogTailBytes ? log.size() - kLogTailBytes : 0;
    text += fmt::format("---- end of {}.log\n{}", name, log.substr(from));
  }
  return text;
}

void BenchHost::StopEngine(size_t engine) {
  kill(engines_[engine].process->pid(), SIGSTOP);
}

}  // namespace cleat::bench
