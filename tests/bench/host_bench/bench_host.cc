// SPDX-License-Identifier: Apache-2.0
#include "bench_host.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "base/clock.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kEndTimeoutNs = 60 * kNsPerSecond;
constexpr size_t kLogTailBytes = 2000;

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
  auto cleatd = host->Spawn("cleatd", {"--state-dir", folder + "/state", "--listen", host->address(),
                                       "--engine-socket", host->EngineSocket(), "--log-level", "info"});
  if (!cleatd) return std::move(cleatd).error();
  host->cleatd_ = std::move(*cleatd);
  if (Status started = host->StartEngine(); !started) return std::move(started).error();
  return host;
}

Status BenchHost::StartEngine() {
  auto engine = Spawn("cleat-engine",
                      {"--name", "engine-0", "--control", EngineSocket(), "--runtime-dir", folder_ + "/run",
                       "--reactors", "1", "--cpus", std::to_string(options_.engine_core)});
  if (!engine) return std::move(engine).error();
  engine_ = std::move(*engine);
  return Ok{};
}

Result<std::unique_ptr<system_test::Process>> BenchHost::Spawn(
    const std::string& program, const std::vector<std::string>& arguments) const {
  system_test::Process::Options options;
  options.program = options_.bin_dir + "/" + program;
  options.arguments = arguments;
  options.log_path = folder_ + "/" + program + ".log";
  options.directory = folder_;
  return system_test::Process::Start(options);
}

Status BenchHost::End() {
  Status status;
  // The engine first: it is to drain with somebody to tell.
  if (engine_ != nullptr) status = EndWell(*engine_, "cleat-engine");
  if (cleatd_ != nullptr) {
    if (Status ended = EndWell(*cleatd_, "cleatd"); status.ok()) status = std::move(ended);
  }
  return status;
}

BenchHost::~BenchHost() {
  if (engine_ != nullptr) engine_->Kill();
  if (cleatd_ != nullptr) cleatd_->Kill();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string BenchHost::LogTails() const {
  std::string text;
  for (const char* program : {"cleatd", "cleat-engine"}) {
    const std::string log = system_test::ReadTextFile(fmt::format("{}/{}.log", folder_, program));
    const size_t from = log.size() > kLogTailBytes ? log.size() - kLogTailBytes : 0;
    text += fmt::format("---- end of {}.log\n{}", program, log.substr(from));
  }
  return text;
}

}  // namespace cleat::bench
