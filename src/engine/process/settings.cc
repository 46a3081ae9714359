// SPDX-License-Identifier: Apache-2.0
#include "engine/process/settings.h"

#include <sched.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/exit_status.h"
#include "base/paths.h"
#include "base/version.h"
#include "keys/kek_file.h"

namespace cleat::engine {
namespace {

constexpr int kUsage = static_cast<int>(ExitStatus::kUsage);

void AddPlaces(CLI::App& app, Settings& settings) {
  app.add_option("--name", settings.name, "this engine's name on the host")->capture_default_str();
  app.add_option("--control", settings.control_socket,
                 "cleatd's socket for engines (default: engine.sock in the runtime directory)");
  app.add_option("--runtime-dir", settings.runtime_dir, "for private sockets; made when it is missing")
      ->capture_default_str();
  app.add_option("--paths", settings.paths_file,
                 "list of the paths that disks, sockets and conf files may have, which cleatd reads as well")
      ->capture_default_str();
  app.add_option(
      "--standby-for", settings.stands_by_for,
      "stand by for the engine of that name: have its controllers prepared, and take them when it dies");
}

void AddReactors(CLI::App& app, Settings& settings) {
  app.add_option("--reactors", settings.reactors, "I/O reactors: one core each while there is work")
      ->check(CLI::Range(1U, kReactorsMax))
      ->capture_default_str();
  app.add_option(
         "--cpus", settings.cpus,
         "pin reactor N to the N-th core of this list, e.g. 2,3; all other threads stay off these cores "
         "(default: not pinned)")
      ->delimiter(',');
  app.add_option("--spin-us", settings.spin_us,
                 "how long a queue is polled without work before its reactor may sleep; shorter where that "
                 "was in vain")
      ->check(CLI::Range(0U, 1000000U))
      ->capture_default_str();
  app.add_flag("--kernel-tls", settings.kernel_tls,
               "connections over TLS to NVMe/TCP targets have the kernel make their records, where it can: "
               "for targets that are trusted (docs/nvmeof.md)");
  app.add_option("--drain-seconds", settings.drain_s,
                 "how long SIGTERM waits for requests in flight; then they are left to a successor")
      ->check(CLI::Range(1U, 3600U))
      ->capture_default_str();
}

void AddKeys(CLI::App& app, Settings& settings) {
  app.add_option(
         "--kek-file", settings.kek_files,
         "file with the key-encryption key that disks' keys are wrapped under, cleatd's; while it is being "
         "changed a second time, with the older one (default: the credential cleat-kek, if the service has "
         "one)")
      ->expected(1)
      ->take_all();
  app.add_option(
      "--state-dir", settings.state_dir,
      "cleatd's state folder: the key that cleatd made there is taken when there is neither --kek-file "
      "nor the credential, and disks may be in its folder disks/");
  // For the test that must find keys in a core then; in no help text.
  app.add_flag("!--no-secret-arena", settings.secret_arena)->group("");
}

Status CheckCpus(const std::vector<uint32_t>& cpus) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return Ok{};  // the start will tell
  for (const uint32_t cpu : cpus) {
    if (cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed)) continue;
    return Error(
        ErrorCode::kInvalidArgument,
        "--cpus: this process may not run on core " + std::to_string(cpu) +
            ": name cores of this host (nproc --all) that the service may use (CPUAffinity=, AllowedCPUs=)");
  }
  return Ok{};
}

}  // namespace

std::optional<int> ParseSettings(int argc, const char* const* argv, Settings* settings) {
  settings->runtime_dir = DefaultRuntimeDir();
  CLI::App app(
      "cleat-engine: serves a host's disks to its guests over vhost-user. Takes its orders from cleatd.");
  app.set_version_flag("--version", kVersion);
  AddPlaces(app, *settings);
  AddReactors(app, *settings);
  AddKeys(app, *settings);
  app.add_option("--log-level", settings->log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  app.add_flag("--check", settings->check,
               "read the whole configuration - options, and the files that they name -, say what is wrong "
               "with it, and exit; "
               "beside an engine that serves, too");
  app.footer(ExitStatusHelp() + " 1: disks did not drain in time.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  if (settings->stands_by_for == settings->name) {
    std::fprintf(stderr, "cleat-engine: --standby-for %s: an engine can't stand by for itself\n",
                 settings->name.c_str());
    return kUsage;
  }
  if (settings->control_socket.empty()) settings->control_socket = settings->runtime_dir + "/engine.sock";
  return std::nullopt;
}

Status CheckSettings(const Settings& settings) {
  CLEAT_TRY(PathLists::Read(settings.paths_file, PathLists::Everything()));
  std::vector<std::string> files = settings.kek_files;
  if (files.empty()) {
    if (const auto credential = keys::KekCredentialPath()) files.push_back(*credential);
  }
  for (const std::string& file : files) CLEAT_TRY(keys::LoadKekFile(file));
  return CheckCpus(settings.cpus);
}

}  // namespace cleat::engine
