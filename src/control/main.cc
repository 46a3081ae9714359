// SPDX-License-Identifier: Apache-2.0
// cleatd: the API, the intent, and the conductor of engines.
#include <sys/prctl.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/notify.h"
#include "base/paths.h"
#include "base/scheduling.h"
#include "base/version.h"
#include "control/daemon.h"
#include "control/wiping_free.h"
#include "keys/secret_arena.h"

namespace cleat::control {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr mode_t kOpenSocketMode = 0666;

struct Arguments {
  std::string state_dir = DefaultStateDir();
  std::string listen;
  std::string engine_socket;
  std::string group;
  std::vector<std::string> grants;
  std::string tls_listen;
  TlsFiles tls;
  std::string metrics_address;
  bool metrics_histograms = true;
  std::string audit_log;
  std::vector<std::string> kek_files;
  bool secret_arena = true;
  bool wiping_free = true;
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
  options.api_group = arguments.group;
  for (const std::string& grant : arguments.grants) {
    if (auto status = options.grants.Add(grant); !status.ok()) return std::move(status).error();
    // The socket's mode would keep them out; the roles say who may do what.
    const std::string_view to = std::string_view(grant).substr(grant.find('=') + 1);
    if (to.starts_with("uid:") || to.starts_with("gid:")) options.api_socket_mode = kOpenSocketMode;
  }
  options.tls_address = arguments.tls_listen;
  options.tls = arguments.tls;
  const bool tls_complete =
      !options.tls.certificate.empty() && !options.tls.key.empty() && !options.tls.client_ca.empty();
  if (!options.tls_address.empty() && !tls_complete) {
    return Error(
        ErrorCode::kInvalidArgument,
        "--tls-listen takes --tls-cert, --tls-key and --tls-client-ca: the API is never served over TCP "
        "without knowing who calls");
  }
  options.metrics_address = arguments.metrics_address;
  options.metrics.histograms = arguments.metrics_histograms;
  options.audit_log = arguments.audit_log;
  options.kek_files = arguments.kek_files;
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
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  if (const auto asked = HoldCoresFor(kShortTurnNs); !asked.ok())
    spdlog::warn("{}: guests may wait longer while engines are exchanged", asked.error().message);
  auto manager = ServiceNotifier::FromEnvironment();
  if (!manager.ok()) return std::move(manager).error();

  const auto daemon = Daemon::Start(*options);
  if (!daemon.ok()) return daemon.error();
  spdlog::info("cleatd {} serves on unix:{}; engines connect to {}; state in {}", kVersion,
               options->api_socket, options->engine_socket, options->state_dir);
  if (const int port = (*daemon)->metrics_port(); port != 0) {
    spdlog::info("metrics on http://{}{}/metrics",
                 options->metrics_address.substr(0, options->metrics_address.rfind(':') + 1), port);
  }
  if (auto told = manager->Ready("API on unix:" + options->api_socket); !told.ok()) return told;
  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGHUP) (*daemon)->Reload();
  spdlog::info("stopping (signal {}); engines serve on", signal);
  if (const auto told = manager->Stopping("engines serve on"); !told.ok())
    spdlog::warn("{}", told.error().message);
  return Ok{};
}

}  // namespace
}  // namespace cleat::control

int main(int argc, char** argv) {
  // No core, and no debugger of another user's: keys come through here.
  prctl(PR_SET_DUMPABLE, 0);
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
  app.add_option(
      "--grant", arguments.grants,
      "A role (read, attach, admin) for callers: ROLE=uid:USER, ROLE=gid:GROUP, ROLE=cert:NAME; may be given "
      "several times. Root and cleatd's own user are admin");
  app.add_option("--group", arguments.group, "Group that the API's socket is given to");
  app.add_option("--tls-listen", arguments.tls_listen,
                 "Also serve the API on HOST:PORT, over mutual TLS. Certificates are read again on SIGHUP");
  app.add_option("--tls-cert", arguments.tls.certificate, "cleatd's certificate (PEM)");
  app.add_option("--tls-key", arguments.tls.key, "Its key (PEM)");
  app.add_option("--tls-client-ca", arguments.tls.client_ca,
                 "CA that callers' certificates are signed by (PEM)");
  app.add_option(
      "--metrics-address", arguments.metrics_address,
      "Serve /metrics (Prometheus) and /healthz over HTTP on HOST:PORT, to anybody who reaches it: "
      "127.0.0.1:9464, say (default: not at all)");
  app.add_flag(
      "!--no-metrics-histograms", arguments.metrics_histograms,
      "Leave cleat_disk_stage_seconds out of /metrics: on hosts with hundreds of disks in use it is large");
  app.add_option("--audit-log", arguments.audit_log,
                 "File for a record of every change, one line of JSON each; opened again on SIGHUP");
  app.add_option(
         "--kek-file", arguments.kek_files,
         "File with the key-encryption key under which disks' keys are kept; a second one is the key that "
         "was "
         "used before. Read again on SIGHUP (default: the credential cleat-kek, if the service has one, else "
         "kek in the state folder, made at the first start)")
      ->expected(1)
      ->take_all();
  // For the tests that must find keys in memory then; in no help text.
  app.add_flag("!--no-secret-arena", arguments.secret_arena)->group("");
  app.add_flag("!--no-wiping-free", arguments.wiping_free)->group("");
  app.add_option("--log-level", arguments.log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  app.set_version_flag("--version", std::string("cleatd ") + cleat::kVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!arguments.wiping_free) cleat::control::StopWipingFreedMemory();
  if (const auto status = cleat::log::Init("cleatd", arguments.log_level); !status.ok()) {
    std::fprintf(stderr, "cleatd: %s\n", status.error().message.c_str());
    return 2;
  }
  // Before anything of OpenSSL's.
  const auto arena_mode =
      arguments.secret_arena ? cleat::keys::SecretArenaMode::kOn : cleat::keys::SecretArenaMode::kOff;
  if (const auto arena = cleat::keys::InstallSecretArena(arena_mode); !arena.ok()) {
    spdlog::critical("{}", arena.error().message);
    return 1;
  }
  const auto status = cleat::control::Serve(arguments);
  if (status.ok()) return 0;
  spdlog::critical("{}", status.error().message);
  return 1;
}
