// SPDX-License-Identifier: Apache-2.0
#include "engine/process/process.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/own_files.h"
#include "base/paths.h"
#include "base/scheduling.h"
#include "base/version.h"
#include "engine/descriptor_capacity.h"
#include "engine/discovery/discover.h"
#include "engine/disks/ceph_disks.h"
#include "engine/disks/module_disk_factory.h"
#include "engine/disks/path_guard.h"
#include "engine/engine.h"
#include "engine/guest_devices/earlier_engines.h"
#include "engine/link/command_link.h"
#include "engine/process/io_reactors.h"
#include "engine/process/watchdog.h"
#include "engine/stores/reservation_files.h"
#include "keys/kek_file.h"
#include "keys/keyring.h"
#include "modules/nvmf/rdma/rdma_ports.h"
#include "nvmf/login/login_line.h"
#include "nvmf/rdma/adapters.h"
#include "nvmf_target/target_service.h"
#include "reactor/blocking.h"
#include "reactor/stall_breaker.h"
#include "vhost/library.h"
#include "vhost/socket_endpoint.h"

namespace cleat::engine {
namespace {

// Storage that hangs takes a thread for each disk that is opened or closed on it; mapping guests' memory must
// not wait for it, so that has a pool of its own.
constexpr uint32_t kStorageThreadsMax = 64;
constexpr uint32_t kMappingThreadsMax = 4;
// Of reservations: hosts can have as much stored as they like, and disks are not to wait for that.
constexpr uint32_t kStoringThreadsMax = 4;
// Of other engines' counters, which nobody waits for but cleatd.
constexpr uint32_t kReadingThreadsMax = 1;
// Of queues that log in, all at once after a switch's restart: they wait for one another, and leave the other processors alone.
constexpr uint32_t kArithmeticThreadsMax = 2;
constexpr uint64_t kCephEndNs = 5 * kNsPerSecond;  // how long its threads may take to end

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
    spdlog::warn(
        "key-encryption keys: not there yet: {}; they are looked for again when an encrypted disk comes",
        read.error().message);
    keyring->SetFilesLater(files);
    return keyring;
  }
  CLEAT_TRY(read);
  spdlog::info("key-encryption keys: loaded: {}", fmt::join(keyring->ids(), ", "));
  return keyring;
}

Result<std::unique_ptr<Reactor>> MakeControl(const MonotonicClock& clock, uint64_t random_seed) {
  Reactor::Options options;
  options.name = "control";
  options.random_seed = random_seed;
  options.spin_ns = 0;
  options.fd_check_interval_ns = 0;
  return Reactor::Make(clock, options);
}

// What a connection asks of other threads is not to wait for a reactor that polls, nor a guest's request for them.
std::vector<uint32_t> OtherCpus(const std::vector<uint32_t>& reactors) {
  if (reactors.empty()) return {};
  std::vector<uint32_t> others = CpusBeside(reactors);
  if (others.empty())
    spdlog::warn(
        "reactors: every core is theirs: this engine's other threads share them; leave a core out of --cpus");
  return others;
}

// What it has to say is lost at worst; a manager that hears nothing acts on that.
void Tell(const Status& told) {
  if (!told) spdlog::warn("service manager: not notified: {}", told.error().message);
}

// What may fail to be made. The rest of the process stands on it.
struct ProcessParts {
  ServiceNotifier manager;
  std::vector<uint32_t> other_cpus;  // for all threads but the reactors' own; empty: any
  uint64_t incarnation = 0;  // another one at each start, for cleatd to tell a restart from a reconnect
  std::unique_ptr<vhost::VhostLibrary> library;
  std::unique_ptr<IoReactors> io;
  UniqueFd counters;
  std::unique_ptr<keys::Keyring> keyring;
  std::unique_ptr<Reactor> control;
};

// The manager, the folder, and where this process' threads run: before the first of them.
Status Prepare(const Settings& settings, ProcessParts* parts) {
  CLEAT_ASSIGN(parts->manager, ServiceNotifier::FromEnvironment());
  CLEAT_TRY(MakeDirectory(settings.runtime_dir));
  if (Status asked = HoldCoresFor(kShortTurnNs); !asked)
    spdlog::warn(
        "scheduling: no short turns on busy cores: {}; guests may wait longer while engines are exchanged",
        asked.error().message);
  parts->other_cpus = OtherCpus(settings.cpus);
  return StayOn(parts->other_cpus);
}

Result<ProcessParts> Build(const Settings& settings, const MonotonicClock& clock) {
  ProcessParts parts;
  CLEAT_TRY(Prepare(settings, &parts));
  parts.incarnation = clock.NowNs() ^ (static_cast<uint64_t>(getpid()) << 48);
  CLEAT_ASSIGN(parts.library, vhost::VhostLibrary::Start(settings.name, settings.runtime_dir));
  CLEAT_ASSIGN(parts.io, IoReactors::Make(settings, parts.incarnation));
  CLEAT_ASSIGN(parts.counters, parts.io->counters().OpenForReaders());
  CLEAT_ASSIGN(parts.keyring, MakeKeyring(settings));
  CLEAT_TRY(parts.io->Start(settings));
  CLEAT_ASSIGN(parts.control, MakeControl(clock, parts.incarnation));
  return parts;
}

// Before a disk is refused for want of descriptors. The limit that is named is enough for as many controllers as an engine may have.
void WarnOfFewDescriptors(const DescriptorBudget& budget) {
  const uint64_t disks = DisksWithin(budget.left());
  if (disks >= kControllersMax) return;
  spdlog::warn(
      "descriptors: {} are left for what is to be served: enough for {} disks on files, each behind a "
      "controller of one queue; raise LimitNOFILE= of its service to 32768",
      budget.left(), disks);
}

// As cleatd finds them: PathLists compares paths as text.
std::string StateDir(const Settings& settings) {
  const std::string folder = settings.state_dir.empty() ? DefaultStateDir() : settings.state_dir;
  return (std::filesystem::absolute(folder) / "").lexically_normal().parent_path();
}

// Without one, no reservation ends with a loss of power, which is the safe side.
std::string BootId() {
  auto id = ReservationFiles::BootId();
  if (id) return std::move(id).value();
  spdlog::warn(
      "reservations: this start of the machine has no name: {}; those that end with a loss of power are kept "
      "over it",
      id.error().message);
  return {};
}

std::string FolderOfSocket(const std::string& path) {
  return std::filesystem::path(path).parent_path();
}

CommandLink::Options LinkOptions(const Settings& settings, ProcessParts& parts, PathGuard& paths,
                                 BlockingPool& reading) {
  CommandLink::Options options;
  options.socket_path = settings.control_socket;
  options.hello.engine = settings.name;
  options.hello.version = kVersion;
  options.hello.incarnation = parts.incarnation;
  options.hello.reactors = settings.reactors;
  options.hello.stands_by_for = settings.stands_by_for;
  options.counters = std::move(parts.counters);
  options.paths = &paths;
  options.reading = &reading;
  options.reactors.assign(parts.io->reactors().begin(), parts.io->reactors().end());
  return options;
}

// Members in the order in which they use each other; they go in the other one, the reactors' threads last.
class Process {
 public:
  Process(const Settings& settings, ProcessParts parts) : settings_(settings), parts_(std::move(parts)) {}

  // Until it has drained.
  Status Run();

 private:
  Task<void> ShutDown();
  std::string WhatIsLeft() const;

  const Settings& settings_;
  ProcessParts parts_;
  Reactor& control_ = *parts_.control;
  BlockingPool storage_{kStorageThreadsMax};
  BlockingPool storing_{kStoringThreadsMax};
  BlockingPool mapping_{kMappingThreadsMax};
  BlockingPool reading_{kReadingThreadsMax};
  nvmf::LoginLine arithmetic_{kArithmeticThreadsMax};
  nvmf::RdmaAdapters adapters_{control_};
  modules::RdmaPorts rdma_ports_{adapters_};
  DescriptorBudget descriptors_ = DescriptorBudget::OfProcess();
  MemoryStore memories_;
  GroupStore groups_{control_};
  ClusterStore clusters_;
  PathGuard paths_{settings_.paths_file, StateDir(settings_), FolderOfSocket(settings_.control_socket)};
  CephDisks ceph_{
      {control_, clusters_, *parts_.keyring, storage_, paths_}, settings_.name, parts_.other_cpus};
  ModuleDiskFactory disks_{memories_, parts_.io->uring(),  parts_.io->crypto(), *parts_.keyring,
                           storage_,  arithmetic_,         rdma_ports_,         ceph_,
                           paths_,    settings_.kernel_tls};
  vhost::SocketEndpointFactory endpoints_{control_, mapping_, *parts_.library, &paths_};
  EarlierEngines earlier_{parts_.io->lifetime(), reading_};
  ReservationFiles reservations_{StateDir(settings_) + "/" + OwnFiles::kReservationsName, storage_, storing_,
                                 BootId()};
  nvmf_target::TargetService target_{adapters_, &descriptors_, {}, {}, &reservations_};
  Engine engine_{Engine::Parts{control_, parts_.io->reactors(), disks_, endpoints_, memories_, groups_,
                               clusters_, &parts_.io->counters(), &reading_, &descriptors_, &earlier_,
                               [this](DiscoverySpec discovery, DiscoverySeen seen, CancelToken& cancel) {
                                 return Discover(std::move(discovery), std::move(seen),
                                                 {*parts_.keyring, storage_, arithmetic_, rdma_ports_},
                                                 cancel);
                               },
                               &target_, parts_.keyring.get(), &storage_}};
  CommandLink link_{control_, engine_, LinkOptions(settings_, parts_, paths_, reading_)};
  Watchdog watchdog_{control_, parts_.io->reactors(), parts_.manager.watchdog_ns(),
                     [this] { Tell(parts_.manager.Alive()); }};
  Termination termination_{control_, settings_.drain_s,
                           [this] {
                             Tell(parts_.manager.Stopping("draining " + WhatIsLeft()));
                             Spawn(ShutDown());
                           },
                           [this] { return WhatIsLeft(); }};
  bool ceph_ended_ = true;
  StallBreaker stall_breaker_;
};

// What a shutdown waits for: a few names, and how many there are.
std::string Process::WhatIsLeft() const {
  constexpr size_t kNamesMax = 5;
  const auto attachments = engine_.Attachments();
  std::string names;
  for (size_t i = 0; i < std::min(attachments.size(), kNamesMax); ++i) {
    names += (i > 0 ? ", " : " (") + attachments[i].spec.disk.name + " on " + attachments[i].spec.controller;
  }
  if (!names.empty()) names += attachments.size() > kNamesMax ? ", ...)" : ")";
  return std::to_string(attachments.size()) + " disk(s)" + names;
}

Task<void> Process::ShutDown() {
  // A request that hangs - a cluster that does not answer - is not to keep the other disks from draining.
  link_.HangUp();
  co_await engine_.Shutdown();
  co_await target_.Close();
  co_await rdma_ports_.Close();
  co_await link_.Stop();
  ceph_ended_ = co_await ceph_.End(kCephEndNs);
  co_await watchdog_.Stop();
  control_.Stop();
}

Status Process::Run() {
  WarnOfFewDescriptors(descriptors_);
  CLEAT_TRY(termination_.Start());
  std::vector<StallBreaker::Watched> reactors = parts_.io->Threads();
  reactors.push_back({&control_, gettid()});
  CLEAT_TRY(stall_breaker_.Start(reactors, parts_.incarnation));
  ceph_.SetOnReport([this](const CephReport& report) { link_.ReportCeph(report); });
  link_.Start();
  spdlog::info("cleat-engine: version {} serves as '{}' with {} reactors, cleatd's socket is {}", kVersion,
               settings_.name, settings_.reactors, settings_.control_socket);
  control_.PostCall([this] { watchdog_.Start(); });
  Tell(parts_.manager.Ready("orders from " + settings_.control_socket));
  control_.Run();
  if (!ceph_ended_) {
    // Nothing is open any more, but what Ceph's threads use must not be destroyed under them.
    spdlog::warn(
        "cleat-engine: drained, but for Ceph's threads: the cluster that they wait for does not answer; the "
        "process ends without them");
    spdlog::default_logger()->flush();
    _exit(0);
  }
  spdlog::info("cleat-engine: drained");
  return Ok{};
}

}  // namespace

Status Serve(const Settings& settings) {
  const MonotonicClock clock;
  CLEAT_ASSIGN(auto parts, Build(settings, clock));
  const auto process = std::make_unique<Process>(settings, std::move(parts));
  return process->Run();
}

}  // namespace cleat::engine
