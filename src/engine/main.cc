// SPDX-License-Identifier: Apache-2.0
// cleat-engine: serves the disks of one host (or of one NUMA node) to its guests. Takes its orders from
// cleatd, keeps nothing on disk. Threads: this one, which becomes the control reactor; one for each I/O
// reactor; the vhost library's one; a few for calls that block.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/paths.h"
#include "base/scheduling.h"
#include "base/version.h"
#include "block/memory_guard.h"
#include "engine/command_link.h"
#include "engine/engine.h"
#include "engine/module_disk_factory.h"
#include "engine/reactor_thread.h"
#include "engine/termination.h"
#include "engine/watchdog.h"
#include "keys/kek_file.h"
#include "keys/keyring.h"
#include "keys/secret_arena.h"
#include "modules/crypto/crypto_hub.h"
#include "observe/sight.h"
#include "reactor/blocking.h"
#include "vhost/library.h"
#include "vhost/socket_endpoint.h"

namespace cleat::engine {
namespace {

constexpr uint32_t kReactorsMax = 64;
static_assert(kReactorsMax <= kHandOverWordsMax, "a disk has a cell of the counters on each of its reactors");
// Storage that hangs takes a thread for each disk that is opened or closed on it; mapping guests' memory must
// not wait for it, so that has a pool of its own.
constexpr uint32_t kStorageThreadsMax = 64;
constexpr uint32_t kMappingThreadsMax = 4;
// Of other engines' counters, which nobody waits for but cleatd.
constexpr uint32_t kReadingThreadsMax = 1;
constexpr uint64_t kCephEndNs = 5 * kNsPerSecond;  // how long its threads may take to end

struct Settings {
  std::string name = "engine-0";
  std::string control_socket;
  std::string runtime_dir;
  uint32_t reactors = 1;
  std::vector<uint32_t> cpus;
  uint32_t spin_us = 50;
  uint32_t drain_s = Termination::kDrainSecondsDefault;
  std::vector<std::string> kek_files;
  std::string state_dir;  // cleatd's; empty: not known
  bool secret_arena = true;
  std::string stands_by_for;
  std::string log_level = "info";
};

// Every ring takes several descriptors; the soft limit of 1,024 is a shell's, not a server's.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < 32768) {
    spdlog::warn("only {} descriptors may be open: enough for about {} disks (raise RLIMIT_NOFILE to 32768)",
                 limit.rlim_max, limit.rlim_max / 16);
  }
}

// Without a file there is no key: such an engine serves disks without encryption, and takes no other.
Result<std::unique_ptr<keys::Keyring>> MakeKeyring(const Settings& settings) {
  auto keyring = std::make_unique<keys::Keyring>();
  std::vector<std::string> files = settings.kek_files;
  if (files.empty()) {
    if (const auto credential = keys::KekCredentialPath()) files.push_back(*credential);
  }
  if (files.empty() && !settings.state_dir.empty()) files.push_back(settings.state_dir + "/kek");
  if (files.empty()) return keyring;
  Status read = keyring->SetFiles(files);
  if (!read && read.error().code == ErrorCode::kNotFound) {
    // cleatd, which makes it, may start after us.
    spdlog::warn("{}: looked for again when an encrypted disk comes", read.error().message);
    keyring->SetFilesLater(files);
    return keyring;
  }
  if (!read) return std::move(read).error();
  spdlog::info("key-encryption keys: {}", fmt::join(keyring->ids(), ", "));
  return keyring;
}

using ReactorThreads = std::vector<std::unique_ptr<ReactorThread>>;

Result<ReactorThreads> MakeReactors(const Settings& settings, uint64_t incarnation) {
  const TickRate rate = TickRate::Measure();
  ReactorThreads threads;
  for (uint32_t i = 0; i < settings.reactors; ++i) {
    Reactor::Options options;
    options.name = "reactor-" + std::to_string(i);
    options.index = i;
    options.spin_ns = settings.spin_us * kNsPerUs;
    options.random_seed = incarnation + i + 1;
    auto thread = ReactorThread::Make(rate, options);
    if (!thread) return std::move(thread).error();
    threads.push_back(std::move(thread).value());
  }
  return threads;
}

Status StartReactors(const ReactorThreads& threads, const Settings& settings) {
  for (size_t i = 0; i < threads.size(); ++i) {
    std::optional<uint32_t> cpu;
    if (i < settings.cpus.size()) cpu = settings.cpus[i];
    Status started = threads[i]->Start(cpu);
    if (!started) return started;
  }
  return Ok{};
}

// However Serve ends: what the reactors use goes only after their threads.
class StopAtEnd {
 public:
  explicit StopAtEnd(const ReactorThreads& threads) : threads_(threads) {}
  ~StopAtEnd() {
    for (const auto& thread : threads_) thread->Stop();
  }
  StopAtEnd(const StopAtEnd&) = delete;
  StopAtEnd& operator=(const StopAtEnd&) = delete;

 private:
  const ReactorThreads& threads_;
};

// What a shutdown waits for: a few names, and how many there are.
std::string WhatIsLeft(const Engine& engine) {
  constexpr size_t kNamesMax = 5;
  const auto attachments = engine.Attachments();
  std::string names;
  for (size_t i = 0; i < std::min(attachments.size(), kNamesMax); ++i) {
    names += (i > 0 ? ", " : " (") + attachments[i].spec.disk.name + " on " + attachments[i].spec.controller;
  }
  if (!names.empty()) names += attachments.size() > kNamesMax ? ", ...)" : ")";
  return std::to_string(attachments.size()) + " disk(s)" + names;
}

// What a connection asks of other threads is not to wait for a reactor that polls, nor a guest's request for them.
std::vector<uint32_t> OtherCpus(const std::vector<uint32_t>& reactors) {
  if (reactors.empty()) return {};
  std::vector<uint32_t> others = CpusBeside(reactors);
  if (others.empty()) spdlog::warn("reactors have every core: this engine's other threads share them");
  return others;
}

Task<void> ShutDown(CommandLink& link, Engine& engine, CephDisks& ceph, bool& ceph_ended, Watchdog& watchdog,
                    Reactor& control) {
  auto hang_up = link.Stop();
  co_await std::move(hang_up);
  auto drain = engine.Shutdown();
  co_await std::move(drain);
  auto end = ceph.End(kCephEndNs);
  ceph_ended = co_await std::move(end);
  auto stop = watchdog.Stop();
  co_await std::move(stop);
  control.Stop();
}

// What it has to say is lost at worst; a manager that hears nothing acts on that.
void Tell(const Status& told) {
  if (!told) spdlog::warn("{}", told.error().message);
}

Status Serve(const Settings& settings) {
  const MonotonicClock clock;
  auto manager = ServiceNotifier::FromEnvironment();
  if (!manager) return std::move(manager).error();
  Status made = MakeDirectory(settings.runtime_dir);
  if (!made) return made;
  if (Status asked = HoldCoresFor(kShortTurnNs); !asked)
    spdlog::warn("{}: guests may wait longer while engines are exchanged", asked.error().message);
  const std::vector<uint32_t> other_cpus = OtherCpus(settings.cpus);
  if (Status stays = StayOn(other_cpus); !stays) return stays;
  // Another number at each start, for cleatd to tell a restart from a reconnect.
  const uint64_t incarnation = clock.NowNs() ^ (static_cast<uint64_t>(getpid()) << 48);

  auto library = vhost::VhostLibrary::Start(settings.name, settings.runtime_dir);
  if (!library) return std::move(library).error();
  auto threads = MakeReactors(settings, incarnation);
  if (!threads) return std::move(threads).error();
  std::vector<Reactor*> io_reactors;
  for (const auto& thread : *threads) io_reactors.push_back(&thread->reactor());
  modules::UringHub uring;
  for (Reactor* io : io_reactors) {
    const Status added = uring.AddReactor(*io);
    if (!added) spdlog::warn("{}: disks on files can't be opened", added.error().message);
  }
  // Before the threads, and gone after them.
  modules::CryptoHub crypto;
  for (Reactor* io : io_reactors) {
    const Status added = crypto.AddReactor(*io);
    if (!added) spdlog::warn("{}: encrypted disks can't be opened", added.error().message);
  }
  auto keyring = MakeKeyring(settings);
  if (!keyring) return std::move(keyring).error();
  auto sight = observe::Sight::Make(settings.name, incarnation, io_reactors);
  if (!sight) return std::move(sight).error();
  const StopAtEnd stop_at_end(*threads);
  Status started = StartReactors(*threads, settings);
  if (!started) return started;

  Reactor::Options control_options;
  control_options.name = "control";
  control_options.spin_ns = 0;
  control_options.fd_check_interval_ns = 0;
  auto control = Reactor::Make(clock, control_options);
  if (!control) return std::move(control).error();

  BlockingPool storage(kStorageThreadsMax);
  BlockingPool mapping(kMappingThreadsMax);
  BlockingPool reading(kReadingThreadsMax);
  MemoryStore memories;
  GroupStore groups(**control);
  ClusterStore clusters;
  CephDisks ceph({**control, clusters, **keyring, storage}, settings.name, other_cpus);
  bool ceph_ended = true;
  ModuleDiskFactory disks(memories, uring, crypto, **keyring, storage, ceph);
  vhost::SocketEndpointFactory endpoints(**control, mapping, **library);
  Engine engine(Engine::Parts{**control, io_reactors, disks, endpoints, memories, groups, clusters,
                              sight->get(), &reading});

  CommandLink::Options link_options;
  link_options.socket_path = settings.control_socket;
  link_options.hello.engine = settings.name;
  link_options.hello.version = kVersion;
  link_options.hello.incarnation = incarnation;
  link_options.hello.reactors = settings.reactors;
  link_options.hello.stands_by_for = settings.stands_by_for;
  auto counters = (*sight)->OpenForReaders();
  if (!counters) return std::move(counters).error();
  link_options.counters = std::move(counters).value();
  CommandLink link(**control, engine, std::move(link_options));

  Watchdog watchdog(**control, io_reactors, manager->watchdog_ns(), [&] { Tell(manager->Alive()); });
  const auto drain = [&] {
    Tell(manager->Stopping("draining " + WhatIsLeft(engine)));
    Spawn(ShutDown(link, engine, ceph, ceph_ended, watchdog, **control));
  };
  Termination termination(**control, settings.drain_s, drain, [&] { return WhatIsLeft(engine); });
  Status watching = termination.Start();
  if (!watching) return watching;
  ceph.SetOnReport([&](const CephReport& report) { link.ReportCeph(report); });
  link.Start();
  spdlog::info("cleat-engine {} '{}' with {} reactor(s), orders from {}", kVersion, settings.name,
               settings.reactors, settings.control_socket);
  (*control)->PostCall([&] { watchdog.Start(); });
  Tell(manager->Ready("orders from " + settings.control_socket));
  (*control)->Run();
  if (!ceph_ended) {
    // Nothing is open any more, but what Ceph's threads use must not be destroyed under them.
    spdlog::warn("drained; threads are stuck in Ceph, whose cluster does not answer: leaving without them");
    spdlog::default_logger()->flush();
    _exit(0);
  }
  spdlog::info("drained, bye");
  return Ok{};
}

int Main(int argc, char** argv) {
  Settings settings;
  settings.runtime_dir = DefaultRuntimeDir();
  CLI::App app(
      "cleat-engine: serves a host's disks to its guests over vhost-user. Takes its orders from cleatd.");
  app.set_version_flag("--version", kVersion);
  app.add_option("--name", settings.name, "this engine's name on the host")->capture_default_str();
  app.add_option("--control", settings.control_socket,
                 "cleatd's socket for engines (default: engine.sock in the runtime directory)");
  app.add_option("--runtime-dir", settings.runtime_dir, "for private sockets; made when it is missing")
      ->capture_default_str();
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
  app.add_option("--drain-seconds", settings.drain_s,
                 "how long SIGTERM waits for requests in flight; then they are left to a successor")
      ->check(CLI::Range(1U, 3600U))
      ->capture_default_str();
  app.add_option(
      "--standby-for", settings.stands_by_for,
      "stand by for the engine of that name: have its controllers prepared, and take them when it dies");
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
      "nor the credential");
  // For the test that must find keys in a core then; in no help text.
  app.add_flag("!--no-secret-arena", settings.secret_arena)->group("");
  app.add_option("--log-level", settings.log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (settings.stands_by_for == settings.name) {
    std::fprintf(stderr, "cleat-engine: --standby-for %s: an engine can't stand by for itself\n",
                 settings.name.c_str());
    return 2;
  }
  if (settings.control_socket.empty()) settings.control_socket = settings.runtime_dir + "/engine.sock";

  const Status logging = log::Init("cleat-engine", settings.log_level);
  if (!logging) {
    std::fprintf(stderr, "cleat-engine: %s\n", logging.error().message.c_str());
    return 2;
  }
  // Before anything of OpenSSL's.
  const auto arena_mode = settings.secret_arena ? keys::SecretArenaMode::kOn : keys::SecretArenaMode::kOff;
  if (const Status arena = keys::InstallSecretArena(arena_mode); !arena) {
    spdlog::error("{}", arena.error().message);
    return 1;
  }
  RaiseFileLimit();
  Termination::BlockSignals();
  signal(SIGPIPE, SIG_IGN);
  // A write past the file size limit is an error of that disk, not the engine's end.
  signal(SIGXFSZ, SIG_IGN);
  if (const Status guarded = block::MemoryGuard::Install(); !guarded) {
    spdlog::error("{}", guarded.error().message);
    return 1;
  }
  const Status served = Serve(settings);
  if (!served) {
    spdlog::error("{}", served.error().message);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace cleat::engine

int main(int argc, char** argv) {
  return cleat::engine::Main(argc, argv);
}
