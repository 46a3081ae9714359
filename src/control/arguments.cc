// SPDX-License-Identifier: Apache-2.0
#include "control/arguments.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/exit_status.h"
#include "base/log.h"
#include "base/version.h"
#include "control/model/reasons.h"

namespace cleat::control {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr mode_t kOpenSocketMode = 0666;

void AddPlaces(CLI::App& app, Arguments& arguments) {
  app.add_option("--state-dir", arguments.state_dir, "Folder of the store; made when missing")
      ->capture_default_str();
  app.add_option(
         "--paths", arguments.paths_file,
         "File with the paths that callers may name for disks, sockets and keys; read again on SIGHUP. "
         "Without it: disks/ of the state folder, block devices made for Cleat, the sockets of guests")
      ->capture_default_str();
  app.add_option("--listen", arguments.listen,
                 "Where the API listens, unix:PATH (default: unix:" + DefaultApiSocket() + ")");
  app.add_option("--engine-socket", arguments.engine_socket,
                 "Socket that engines connect to (default: " + DefaultEngineSocket() + ")");
}

void AddCallers(CLI::App& app, Arguments& arguments) {
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
}

void AddWhatIsSeen(CLI::App& app, Arguments& arguments) {
  app.add_option(
      "--metrics-address", arguments.metrics_address,
      "Serve /metrics (Prometheus) and /healthz over HTTP on HOST:PORT, to anybody who reaches it: "
      "127.0.0.1:9464, say (default: not at all)");
  app.add_flag(
      "!--no-metrics-histograms", arguments.metrics_histograms,
      "Leave cleat_disk_stage_seconds out of /metrics: on hosts with hundreds of disks in use it is large");
  app.add_option("--audit-log", arguments.audit_log,
                 "File for a record of every change, one line of JSON each; opened again on SIGHUP");
  app.add_flag("--audit-required", arguments.audit_required,
               "Make no change before a record of the intent is in that file; it is refused while none can "
               "be written");
}

void AddKeys(CLI::App& app, Arguments& arguments) {
  app.add_option(
         "--kek-file", arguments.kek_files,
         "File with the key-encryption key under which disks' keys are kept; a second one is the key that "
         "was "
         "used before. Read again on SIGHUP (default: the credential cleat-kek, if the service has one, else "
         "kek in the state folder, made at the first start)")
      ->expected(1)
      ->take_all();
  app.add_option("--keep-deleted-days", arguments.keep_deleted_days,
                 "How long a deleted disk can be undeleted, with its key; 0: not at all. Those that are kept "
                 "already keep "
                 "their time")
      ->check(CLI::Range(0U, kKeepDeletedDaysMax))
      ->capture_default_str();
  // For the tests that must find keys in memory then; in no help text.
  app.add_flag("!--no-secret-arena", arguments.secret_arena)->group("");
  app.add_flag("!--no-wiping-free", arguments.wiping_free)->group("");
}

void AddEngines(CLI::App& app, Arguments& arguments) {
  app.add_option(
         "--kill-silent-engine-seconds", arguments.kill_silent_engine_s,
         "Kill an engine that has not answered for so long - its process is stopped, or hangs - if another "
         "engine "
         "stands by for it and can take its controllers; 0: never. Without a standby nothing is killed")
      ->check(CLI::Range(0U, kKillSilentEngineSecondsMax))
      ->capture_default_str();
}

}  // namespace

std::optional<int> ParseArguments(int argc, const char* const* argv, Arguments* arguments) {
  CLI::App app(
      "cleatd: Cleat's API. Keeps what should be in its state folder and has the engines bring it about.\n"
      "Restarting it does not touch any guest's I/O.");
  AddPlaces(app, *arguments);
  AddCallers(app, *arguments);
  AddWhatIsSeen(app, *arguments);
  AddKeys(app, *arguments);
  AddEngines(app, *arguments);
  app.add_option("--log-level", arguments->log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  app.add_flag("--check", arguments->check,
               "Read the whole configuration - options, and the files that they name -, say what is wrong "
               "with it, and exit; "
               "beside a cleatd that serves, too");
  app.footer(ExitStatusHelp());
  app.set_version_flag("--version", std::string("cleatd ") + kVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitStatus::kUsage);
  }
  return std::nullopt;
}

Result<DaemonOptions> OptionsFrom(const Arguments& arguments) {
  DaemonOptions options;
  // PathLists compares it with callers' paths as text.
  options.state_dir = (std::filesystem::absolute(arguments.state_dir) / "").lexically_normal().parent_path();
  options.paths_file = arguments.paths_file;
  options.engine_socket = arguments.engine_socket.empty() ? DefaultEngineSocket() : arguments.engine_socket;
  options.runtime_dir = std::filesystem::path(options.engine_socket).parent_path();
  const std::string listen =
      arguments.listen.empty() ? std::string(kUnixPrefix) + DefaultApiSocket() : arguments.listen;
  if (!listen.starts_with(kUnixPrefix)) {
    return Error(ErrorCode::kInvalidArgument, "--listen '" + listen + "': give unix:PATH");
  }
  options.api_socket = listen.substr(kUnixPrefix.size());
  options.api_group = arguments.group;
  for (const std::string& grant : arguments.grants) {
    CLEAT_TRY(options.grants.Add(grant));
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
  options.audit_required = arguments.audit_required;
  if (options.audit_required && options.audit_log.empty())
    return Error(ErrorCode::kInvalidArgument, "--audit-required takes --audit-log FILE");
  options.kek_files = arguments.kek_files;
  options.keep_deleted_days = arguments.keep_deleted_days;
  options.reconciler.kill_after_ns = arguments.kill_silent_engine_s * kNsPerSecond;
  return options;
}

Status MakeFolders(const DaemonOptions& options) {
  Status state = MakeDirectory(options.state_dir);
  // A full or read-only file system may be another one by the next start.
  if (!state.ok() && (state.error().code == ErrorCode::kFailedPrecondition ||
                      state.error().code == ErrorCode::kResourceExhausted))
    return Refuse(v1::REASON_STORE_UNWRITABLE, state.error().message);
  CLEAT_TRY(state);
  // Where callers may put disks' files if the operator lists no other place. A full file system holds nothing else up.
  if (const Status made = MakeDirectory(options.state_dir + "/disks"); !made.ok())
    spdlog::warn("cleatd: {}; no disks can be made there: see to the file system", made.error().message);
  for (const std::string& socket : {options.api_socket, options.engine_socket}) {
    const std::string folder = std::filesystem::path(socket).parent_path();
    if (folder.empty()) continue;
    CLEAT_TRY(MakeDirectory(folder));
  }
  return Ok{};
}

}  // namespace cleat::control
