// SPDX-License-Identifier: Apache-2.0
// cleat-engine: serves the disks of one host (or of one NUMA node) to its guests. Takes its orders from
// cleatd, keeps nothing on disk. Threads: this one, which becomes the control reactor; one for each I/O
// reactor; the vhost library's one; a few for calls that block; Ceph's own, where disks are in it.
#include <signal.h>
#include <sys/resource.h>

#include <cstdio>

#include "base/clock.h"
#include "base/exit_status.h"
#include "base/log.h"
#include "block/memory_guard.h"
#include "engine/process/process.h"
#include "engine/process/settings.h"
#include "engine/process/termination.h"
#include "keys/secret_arena.h"

namespace cleat::engine {
namespace {

// Every ring takes several descriptors; the soft limit of 1,024 is a shell's, not a server's.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// What holds for the whole process, before its first thread.
Status SetUpProcess(const Settings& settings) {
  // Before anything of OpenSSL's.
  CLEAT_TRY(keys::InstallSecretArena(settings.secret_arena ? keys::SecretArenaMode::kOn
                                                           : keys::SecretArenaMode::kOff));
  RaiseFileLimit();
  Termination::BlockSignals();
  signal(SIGPIPE, SIG_IGN);
  // A write past the file size limit is an error of that disk, not the engine's end.
  signal(SIGXFSZ, SIG_IGN);
  return block::MemoryGuard::Install();
}

int Check(const Settings& settings) {
  const Status status = CheckSettings(settings);
  if (status) return 0;
  spdlog::error("cleat-engine: exiting: {}", status.error().message);
  return static_cast<int>(ExitStatusOf(status.error()));
}

int Main(int argc, char** argv) {
  Settings settings;
  if (const auto exit_status = ParseSettings(argc, argv, &settings)) return *exit_status;
  if (const Status logging = log::Init("cleat-engine", settings.log_level); !logging) {
    std::fprintf(stderr, "cleat-engine: %s\n", logging.error().message.c_str());
    return static_cast<int>(ExitStatus::kUsage);
  }
  if (settings.check) return Check(settings);
  const MonotonicClock clock;
  const uint64_t started_ns = clock.NowNs();
  Status served = SetUpProcess(settings);
  if (served) served = Serve(settings);
  if (served) return 0;
  spdlog::error("cleat-engine: exiting: {}", served.error().message);
  return EndAfter(ExitStatusOf(served.error()), settings.runtime_dir, "cleat-engine-" + settings.name,
                  (clock.NowNs() - started_ns) / kNsPerMs);
}

}  // namespace
}  // namespace cleat::engine

int main(int argc, char** argv) {
  return cleat::engine::Main(argc, argv);
}
