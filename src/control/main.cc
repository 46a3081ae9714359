// SPDX-License-Identifier: Apache-2.0
// cleatd: the API, the intent, and the conductor of engines.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>

#include "base/log.h"
#include "base/paths.h"
#include "base/version.h"
#include "control/daemon.h"

namespace cleat::control {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";

struct Arguments {
  std::string state_dir = DefaultStateDir();
  std::string listen;
  std::string engine_socket;
  std::string log_level = "info";
};

// One descriptor a memory disk, and some for connections.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result<DaemonOptions> OptionsFrom(const Arguments& arguments) {
  DaemonOptions options;
  options.state_dir = arguments.state_dir;
  options.engine_socket = arguments.engine_socket.empty() ? DefaultEngineSocket() : arguments.engine_socket;
  const std::string listen =
      arguments.listen.empty() ? std::string(kUnixPrefix) + DefaultApiSocket() : arguments.listen;
  if (!listen.starts_with(kUnixPrefix)) {
    return Error(ErrorCode::kInvalidArgument, "--listen '" + listen + "': give unix:PATH");
  }
  options.api_socket = listen.substr(kUnixPrefix.size());
  if (auto status = MakeDirectory(options.state_dir); !status.ok()) return std::move(status).error();
  for (const std::string& socket : {options.api_socket, options.engine_socket}) {
    const std::string folder = std::filesystem::path(socket).parent_path();
    if (folder.empty()) continue;
    if (auto status = MakeDirectory(folder); !status.ok()) return std::move(status).error();
  }
  return options;
}

Status Serve(const Arguments& arguments) {
  auto options = OptionsFrom(arguments);
  if (!options.ok()) return std::move(options).error();
  // Blocked before the first thread, so that only sigwait below gets them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();

  const auto daemon = Daemon::Start(*options);
  if (!daemon.ok()) return daemon.error();
  spdlog::info("cleatd {} serves on unix:{}; engines connect to {}; state in {}", kVersion,
               options->api_socket, options->engine_socket, options->state_dir);
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("stopping (signal {}); engines serve on", signal);
  return Ok{};
}

}  // namespace
}  // namespace cleat::control

int main(int argc, char** argv) {
  cleat::control::Arguments arguments;
  CLI::App app(
      "cleatd: Cleat's API. Keeps what should be in its state folder and has the engines bring it about.\n"
      "Restarting it does not touch any guest's I/O.");
  app.add_option("--state-dir", arguments.state_dir, "Folder of the store; made when missing")
      ->capture_default_str();
  app.add_option("--listen", arguments.listen,
                 "Where the API listens, unix:PATH (default: unix:" + cleat::DefaultApiSocket() + ")");
  app.add_option("--engine-socket", arguments.engine_socket,
                 "Socket that engines connect to (default: " + cleat::DefaultEngineSocket() + ")");
  app.add_option("--log-level", arguments.log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  app.set_version_flag("--version", std::string("cleatd ") + cleat::kVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const auto status = cleat::log::Init("cleatd", arguments.log_level); !status.ok()) {
    std::fprintf(stderr, "cleatd: %s\n", status.error().message.c_str());
    return 2;
  }
  const auto status = cleat::control::Serve(arguments);
  if (status.ok()) return 0;
  spdlog::critical("{}", status.error().message);
  return 1;
}
