// SPDX-License-Identifier: Apache-2.0
// A disk in memory, or one that does nothing, shown to NVMe/TCP hosts by one reactor: what the engine's target costs without a control plane,
// to set beside another target's figures with the same host.
//
//   target_loop --listen 127.0.0.1:4430 --nqn NQN --host NQN [--null] [--mib 256 [--huge-pages]] [--core 1] [--reactors 1] [--psk FILE]
//   [--uuid UUID]   the disk's: hosts take each from one subsystem alone
//   [--memory FILE]   the disk is this file, which is in memory: one disk for several targets, and for whoever looks at it
//   [--sleeps]   reactors leave their cores while nothing is to do: behind target_floor, which has the I/O queues
//   [--one-pdu-a-send] [--read-on-events] [--copy-data] [--no-look-ahead] [--stay-in-epoll] [--digests-by-instruction]   without what makes it fast,
//   one by one
//   [--zero-copy none|learned|all]   which reads' data the kernel sends from where it is: learned, unless it is said
// Serves until its input ends. For each line that it is given it prints, as JSON, for how many nanoseconds its reactors were busy so far.
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "block/pipeline.h"
#include "modules/null/null.h"
#include "modules/ram/ram.h"
#include "nvme/tcp/crc32c.h"
#include "nvmf_target/target_service.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"

namespace cleat {
namespace {

struct Arguments {
  std::vector<std::string> addresses;
  std::string nqn;
  std::vector<std::string> hosts;
  std::string psk_file;
  bool sleeps = false;
  bool null = false;
  std::string uuid = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11";
  uint64_t mib = 256;
  std::string memory_file;
  bool huge_pages = false;
  int core = -1;
  uint32_t reactors = 1;
  nvmf_target::StreamTuning tuning;
  bool digests_by_instruction = false;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "target_loop: %s\n", why.c_str());
  std::exit(2);
}

template <typename T>
T Must(Result<T> result) {
  if (!result) Fail(result.error().message);
  return std::move(result).value();
}

void Must(const Status& status) {
  if (!status.ok()) Fail(status.error().message);
}

enum class Way { kSleeps, kPolls };

// A reactor on a thread. One that polls never sleeps, and counts how long it was busy.
class Runner {
 public:
  Runner(const Clock& clock, const char* name, Way way, int core) : clock_(clock), way_(way) {
    Reactor::Options options;
    options.name = name;
    reactor_ = Must(Reactor::Make(clock, options));
    thread_ = std::thread([this, core] { Run(core); });
  }
  ~Runner() {
    stop_ = true;
    reactor_->Stop();
    thread_.join();
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Reactor& reactor() { return *reactor_; }
  uint64_t busy_ns() const { return busy_ns_; }

  template <typename T>
  T Await(std::function<Task<T>()> make) {
    std::promise<T> done;
    reactor_->PostCall([&] { Spawn(Keep(make(), done)); });
    return done.get_future().get();
  }

 private:
  template <typename T>
  static Task<void> Keep(Task<T> task, std::promise<T>& done) {
    done.set_value(co_await task);
  }
  void Run(int core) {
    if (core >= 0) {
      cpu_set_t cores;
      CPU_ZERO(&cores);
      CPU_SET(core, &cores);
      pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
    }
    if (way_ == Way::kSleeps) return reactor_->Run();
    uint64_t before = clock_.NowNs();
    while (!stop_) {
      const bool worked = reactor_->RunOnce();
      const uint64_t now = clock_.NowNs();
      if (worked) busy_ns_ += now - before;
      before = now;
    }
  }

  const Clock& clock_;
  const Way way_;
  std::unique_ptr<Reactor> reactor_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> busy_ns_{0};
  std::thread thread_;
};

class Target {
 public:
  explicit Target(const Arguments& arguments) : arguments_(arguments) {
    for (uint32_t i = 0; i < arguments.reactors; ++i) {
      io_.push_back(std::make_unique<Runner>(clock_, "io", arguments.sleeps ? Way::kSleeps : Way::kPolls,
                                             arguments.core < 0 ? -1 : arguments.core + static_cast<int>(i)));
    }
  }

  void Open() {
    Must(control_.Await<Status>([this] { return Begin(); }));
  }
  void Close() {
    Must(control_.Await<Status>([this] { return End(); }));
  }
  uint64_t busy_ns() const {
    uint64_t sum = 0;
    for (const auto& io : io_) sum += io->busy_ns();
    return sum;
  }

 private:
  Task<Result<std::unique_ptr<block::Device>>> OpenDevice() {
    block::DiskShape shape("disks/loop", arguments_.mib << 20, 512, 4096);
    if (arguments_.null) {
      modules::NullOptions options(shape);
      options.zero_fill = false;
      co_return co_await modules::OpenNull(std::move(options));
    }
    UniqueFd memory(arguments_.memory_file.empty()
                        ? memfd_create("loop", MFD_CLOEXEC | (arguments_.huge_pages ? MFD_HUGETLB : 0))
                        : open(arguments_.memory_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!memory || ftruncate(memory.get(), static_cast<off_t>(arguments_.mib << 20)) != 0)
      Fail("no memory for the disk");
    co_return co_await modules::OpenRam({shape, std::move(memory)}, blocking_);
  }

  // nullptr: hosts come in plain TCP.
  std::shared_ptr<const nvme::tls::Psk> ReadPsk() const {
    if (arguments_.psk_file.empty()) return nullptr;
    std::ifstream file(arguments_.psk_file);
    std::string text;
    file >> text;
    return std::make_shared<nvme::tls::Psk>(Must(nvme::tls::Psk::Parse(text, arguments_.psk_file)));
  }

  Task<Status> Begin() {
    adapters_ = std::make_unique<nvmf::RdmaAdapters>(control_.reactor());
    service_ = std::make_unique<nvmf_target::TargetService>(*adapters_, nullptr, arguments_.tuning);
    CLEAT_CO_ASSIGN(auto device, co_await OpenDevice());
    CLEAT_CO_ASSIGN(pipeline_, block::Pipeline::Make(std::move(device), block::AccessMode::kReadWrite));
    for (const auto& io : io_) {
      co_await io->reactor().Enter();
      channels_.push_back(Must(pipeline_->OpenChannel(io->reactor())));
      co_await control_.reactor().Enter();
    }
    nvmf_target::SubsystemParts parts;
    parts.name = "loop";
    parts.config.nqn = arguments_.nqn;
    parts.config.serial = "LOOP";
    for (const std::string& nqn : arguments_.hosts) {
      parts.config.hosts.push_back(nvme::target::HostAccess::Named(nqn));
      parts.config.hosts.back().psk = ReadPsk();
    }
    for (const std::string& address : arguments_.addresses)
      parts.config.addresses.push_back(Must(nvme::fabrics::ParseAddressOfAnyTransport(address)));
    for (const auto& io : io_) parts.reactors.push_back(&io->reactor());
    CLEAT_CO_TRY(service_->AddSubsystem(std::move(parts)));
    nvme::fabrics::NamespaceIds ids;
    ids.uuid = Must(nvme::fabrics::ParseUuid(arguments_.uuid));
    ids.nguid = *ids.uuid;
    nvmf_target::NamespaceParts space;
    space.shape = nvme::target::ShapeOf(pipeline_->geometry(), false, ids);
    space.channel_on = [this](Reactor& reactor) {
      for (size_t i = 0; i < io_.size(); ++i) {
        if (&io_[i]->reactor() == &reactor) return nvmf_target::NamespaceChannel{channels_[i].get()};
      }
      return nvmf_target::NamespaceChannel{};
    };
    CLEAT_CO_TRY(co_await service_->AddNamespace(arguments_.nqn, 1, std::move(space)));
    co_return service_->Serve(arguments_.nqn);
  }

  Task<Status> End() {
    (void)co_await service_->Withdraw(arguments_.nqn);
    co_await service_->RemoveNamespace(arguments_.nqn, 1);
    service_->RemoveSubsystem(arguments_.nqn);
    co_await service_->Close();
    service_.reset();
    adapters_.reset();
    for (size_t i = 0; i < io_.size(); ++i) {
      co_await io_[i]->reactor().Enter();
      channels_[i].reset();
      co_await control_.reactor().Enter();
    }
    co_return co_await pipeline_->Close();
  }

  const Arguments& arguments_;
  const MonotonicClock clock_;
  BlockingPool blocking_{1};
  std::vector<std::unique_ptr<Runner>> io_;
  Runner control_{clock_, "control", Way::kSleeps, -1};
  std::unique_ptr<nvmf::RdmaAdapters> adapters_;
  std::unique_ptr<nvmf_target::TargetService> service_;
  std::unique_ptr<block::Pipeline> pipeline_;
  std::vector<std::unique_ptr<block::PipelineChannel>> channels_;
};

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Shows a disk to NVMe/TCP hosts by one reactor.");
  app.add_option("--listen", arguments.addresses, "Addresses")->required();
  app.add_option("--nqn", arguments.nqn, "The subsystem's")->required();
  app.add_option("--host", arguments.hosts, "NQNs of hosts that are let in")->required();
  app.add_flag("--sleeps", arguments.sleeps, "Reactors sleep while nothing is to do");
  app.add_option("--psk", arguments.psk_file, "File with the hosts' pre-shared key: they come by TLS");
  app.add_flag("--null", arguments.null, "A disk that does nothing");
  app.add_option("--uuid", arguments.uuid, "The disk's");
  app.add_option("--mib", arguments.mib, "The disk's size");
  app.add_option("--memory", arguments.memory_file,
                 "A file in memory that is the disk, of several targets perhaps")
      ->excludes("--null");
  app.add_flag("--huge-pages", arguments.huge_pages,
               "Its memory is in huge pages, which are reserved already");
  app.add_option("--core", arguments.core, "Of the first reactor");
  app.add_option("--reactors", arguments.reactors, "How many");
  app.add_flag("!--one-pdu-a-send", arguments.tuning.batches_sends, "A system call for each piece");
  app.add_flag("!--read-on-events", arguments.tuning.reads_without_event, "Reads when the socket says so");
  app.add_flag("!--copy-data", arguments.tuning.keeps_data, "Of writes, from where it was received");
  app.add_flag("!--no-look-ahead", arguments.tuning.looks_ahead, "To the next command's blocks");
  app.add_flag("--digests-by-instruction", arguments.digests_by_instruction, "And not folded");
  const std::map<std::string, nvmf_target::ZeroCopy> zero_copies = {
      {"none", nvmf_target::ZeroCopy::kNone},
      {"learned", nvmf_target::ZeroCopy::kLearned},
      {"all", nvmf_target::ZeroCopy::kAll}};
  app.add_option("--zero-copy", arguments.tuning.zero_copy, "Which large data is sent from where it is")
      ->transform(CLI::CheckedTransformer(zero_copies));
  app.add_flag("!--stay-in-epoll", arguments.tuning.leaves_epoll, "Each packet is an event");
  CLI11_PARSE(app, argc, argv);
  if (arguments.digests_by_instruction) nvme::tcp::SetCrc32cWay(nvme::tcp::Crc32cWay::kInstruction);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("target_loop"));
  Target target(arguments);
  target.Open();
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    std::printf("{\"busy_ns\": %llu}\n", static_cast<unsigned long long>(target.busy_ns()));
    std::fflush(stdout);
  }
  target.Close();
  return 0;
}

}  // namespace
}  // namespace cleat

int main(int argc, char** argv) {
  return cleat::Main(argc, argv);
}
