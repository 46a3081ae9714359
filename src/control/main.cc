// SPDX-License-Identifier: Apache-2.0
// cleatd: the API, the intent, and the reconciler of engines.
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>

#include "base/clock.h"
#include "base/exit_status.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/scheduling.h"
#include "base/version.h"
#include "control/arguments.h"
#include "control/check_configuration.h"
#include "control/daemon.h"
#include "control/signal_wait.h"
#include "control/store/sqlite_row.h"
#include "control/wiping_free.h"
#include "keys/secret_arena.h"

namespace cleat::control {
namespace {

// How the daemon's threads tell the main one that the store was restored. Sent by anybody else it restarts the API.
constexpr int kRestored = SIGUSR2;

// One descriptor a memory disk, and some for connections.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Blocked before the first thread, so that only sigwait gets them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  sigaddset(&signals, kRestored);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  // A write past a limit on the file's size is an error of that write.
  std::signal(SIGXFSZ, SIG_IGN);
  return signals;
}

void SayWhatServes(const DaemonOptions& options, const Daemon& daemon) {
  spdlog::info("cleatd: version {} serves on unix:{}, engines connect to {}, state in {}", kVersion,
               options.api_socket, options.engine_socket, options.state_dir);
  if (const int port = daemon.metrics_port(); port != 0) {
    spdlog::info("metrics: served on http://{}{}/metrics",
                 options.metrics_address.substr(0, options.metrics_address.rfind(':') + 1), port);
  }
}

Status Serve(DaemonOptions options) {
  CLEAT_TRY(MakeFolders(options));
  const sigset_t signals = BlockSignals();
  RaiseDescriptorLimit();
  if (const auto asked = HoldCoresFor(kShortTurnNs); !asked.ok())
    spdlog::warn(
        "scheduling: no short turns on busy cores: {}; guests may wait longer while engines are exchanged",
        asked.error().message);
  CLEAT_ASSIGN(auto manager, ServiceNotifier::FromEnvironment());

  options.on_restored = [main = pthread_self()] { pthread_kill(main, kRestored); };
  const MonotonicClock clock;
  SignalWait signal_wait(signals, manager, clock);
  int signal = kRestored;
  for (bool first = true; signal == kRestored; first = false) {
    CLEAT_ASSIGN(const auto daemon, Daemon::Start(options));
    SayWhatServes(options, *daemon);
    if (first) {
      CLEAT_TRY(manager.Ready("API on unix:" + options.api_socket));
    }
    const auto goes_on = [&daemon = *daemon] { return daemon.GoesOn(); };
    while ((signal = signal_wait.Next(goes_on)) == SIGHUP) daemon->Reload();
    if (signal == kRestored) spdlog::warn("store: restored: cleatd loads everything anew; engines serve on");
  }
  spdlog::info("cleatd: stopping on signal {}; engines serve on", signal);
  if (const auto told = manager.Stopping("engines serve on"); !told.ok())
    spdlog::warn("service manager: not notified: {}", told.error().message);
  return Ok{};
}

int Check(const DaemonOptions& options) {
  const Status status = CheckConfiguration(options);
  if (status.ok()) return 0;
  spdlog::critical("cleatd: exiting: {}", status.error().message);
  return static_cast<int>(ExitStatusOf(status.error()));
}

int Main(int argc, char** argv) {
  // No core, and no debugger of another user's: keys come through here.
  prctl(PR_SET_DUMPABLE, 0);
  Arguments arguments;
  if (const auto exit_status = ParseArguments(argc, argv, &arguments)) return *exit_status;
  if (!arguments.wiping_free) StopWipingFreedMemory();
  if (const auto logging = log::Init("cleatd", arguments.log_level); !logging.ok()) {
    std::fprintf(stderr, "cleatd: %s\n", logging.error().message.c_str());
    return static_cast<int>(ExitStatus::kUsage);
  }
  auto options = OptionsFrom(arguments);
  if (!options.ok()) {
    spdlog::critical("cleatd: exiting: {}", options.error().message);
    return static_cast<int>(ExitStatus::kUsage);
  }
  if (arguments.check) return Check(*options);
  const MonotonicClock clock;
  const uint64_t started_ns = clock.NowNs();
  // Before anything of OpenSSL's.
  auto status = keys::InstallSecretArena(arguments.secret_arena ? keys::SecretArenaMode::kOn
                                                                : keys::SecretArenaMode::kOff);
  if (status.ok()) status = Serve(*options);
  if (status.ok()) return 0;
  const ExitStatus exit_status =
      IsUnwritable(status.error()) ? ExitStatus::kCantCreate : ExitStatusOf(status.error());
  spdlog::critical("cleatd: exiting: {}", status.error().message);
  return EndAfter(exit_status, options->runtime_dir, "cleatd", (clock.NowNs() - started_ns) / kNsPerMs);
}

}  // namespace
}  // namespace cleat::control

int main(int argc, char** argv) {
  return cleat::control::Main(argc, argv);
}
