// SPDX-License-Identifier: Apache-2.0
// Requests of one size to a namespace over NVMe/TCP or NVMe/RDMA through a disk's pipeline, on one reactor that polls: what the engine's initiator costs
// without a ring and a guest, to set beside another initiator's figures with the same target.
//
//   nvmf_loop --address 127.0.0.1:4430 --nqn NQN --namespace UUID [--depth 32] [--write] [--seconds 3] [--core 1] [--json]
//   [--one-piece-a-send] [--read-on-events] [--receive-buffer-kib 64] [--window-by-kernel] [--digests-by-instruction] [--digests-by-table]   without what makes it fast, one by one
//   [--tls-psk-file FILE [--kernel-tls]]   over TLS, whose records the kernel makes where it can, with --kernel-tls
//   [--address 127.0.0.1:4431]   given again for each further path; rdma://192.0.2.1:4420 over RDMA
//   [--longest]                  how long requests wait while paths break: see below
// Prints thousands of requests a second, the latency's percentiles, and for how many nanoseconds of its core a request keeps the reactor
// busy: turns that found nothing to do are not counted. Beside the mean of that its median, which other programs on the core do not move.
//
// With --longest it goes on until its input ends, and for each line that it is given prints, as a JSON list in microseconds, the longest
// request since the line before of each place in the queue, requests under way with the time that they have had. Places on the disk are
// taken in turn, so that no request overlaps what a broken path has left in doubt before all of --bytes has been written.
#include <pthread.h>
#include <sched.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "block/pipeline.h"
#include "modules/nvmf/nvmf.h"
#include "modules/nvmf/rdma/rdma_ports.h"
#include "nvme/tcp/crc32c.h"
#include "nvmf/rdma/adapters.h"
#include "perf/workload/latency_histogram.h"
#include "reactor/reactor.h"

namespace cleat {
namespace {

struct Arguments {
  std::vector<std::string> addresses;
  std::string nqn;
  std::string name_space;
  std::string psk_file;
  uint32_t depth = 32;
  uint32_t block_bytes = 4096;
  bool writes = false;
  bool header_digest = false;
  bool data_digest = false;
  double seconds = 3;
  uint32_t keep_alive_ms = 5000;
  modules::TcpTuning tuning;
  bool digests_by_table = false;
  bool digests_by_instruction = false;
  int core = -1;
  uint64_t bytes = uint64_t{512} << 20;
  bool json = false;
  bool longest = false;
};

[[noreturn]] void Fail(const std::string& why) {
  std::fprintf(stderr, "nvmf_loop: %s\n", why.c_str());
  std::exit(2);
}

template <typename T>
T Must(Result<T> result) {
  if (!result) Fail(result.error().message);
  return std::move(result).value();
}

std::unique_ptr<Reactor> MakeReactor(const Clock& clock, const char* name) {
  Reactor::Options options;
  options.name = name;
  return Must(Reactor::Make(clock, options));
}

// The control reactor, which sleeps nearly always, on a thread of its own.
class Control {
 public:
  explicit Control(const Clock& clock)
      : reactor_(MakeReactor(clock, "control")), thread_([this] { reactor_->Run(); }) {}
  ~Control() {
    reactor_->Stop();
    thread_.join();
  }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  Reactor& reactor() { return *reactor_; }

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

  std::unique_ptr<Reactor> reactor_;
  std::thread thread_;
};

std::shared_ptr<const nvme::tls::Psk> PskIn(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!std::getline(file, text)) Fail(path + ": there is no key");
  return std::make_shared<const nvme::tls::Psk>(Must(nvme::tls::Psk::Parse(text, path)));
}

modules::NvmfOptions OptionsOf(const Arguments& arguments, modules::RdmaPorts& rdma) {
  auto subsystem = std::make_shared<modules::NvmfSubsystem>();
  subsystem->name = "subsystems/loop";
  subsystem->nqn = arguments.nqn;
  for (const auto& address : arguments.addresses)
    subsystem->addresses.push_back({Must(nvme::fabrics::ParseAddressOfAnyTransport(address))});
  subsystem->host = nvme::fabrics::HostIdentityOfUuid(
      Must(nvme::fabrics::ParseUuid("6f6c4c0e-37a6-4bd0-9d1b-0d4a2c0e1f11")));
  subsystem->header_digest = arguments.header_digest;
  subsystem->data_digest = arguments.data_digest;
  subsystem->kato_ms = arguments.keep_alive_ms;
  subsystem->tuning = arguments.tuning;
  if (!arguments.psk_file.empty()) subsystem->psk = PskIn(arguments.psk_file);
  modules::NvmfOptions options(block::DiskShape("disks/loop", arguments.bytes, 512, 4096),
                               std::move(subsystem), Must(nvme::fabrics::ParseUuid(arguments.name_space)),
                               block::AccessMode::kReadWrite);
  options.rdma = &rdma;
  return options;
}

class Loop {
 public:
  explicit Loop(const Arguments& arguments)
      : arguments_(arguments), reactor_(MakeReactor(clock_, "io0")), control_(clock_) {
    auto device = Must(control_.Await<Result<std::unique_ptr<block::Device>>>(
        [this] { return modules::OpenNvmf(OptionsOf(arguments_, *rdma_)); }));
    pipeline_ = Must(block::Pipeline::Make(std::move(device), block::AccessMode::kReadWrite));
    if (const auto status = control_.Await<Status>([this] { return pipeline_->Acquire(); }); !status)
      Fail(status.error().message);
    channel_ = Must(pipeline_->OpenChannel(*reactor_));
    const size_t bytes = size_t{arguments_.depth} * arguments_.block_bytes;
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(4096, bytes));
    region_ = block::MemoryRegion::Borrow(memory_, bytes);
    for (uint32_t i = 0; i < arguments_.depth; ++i)
      slots_.push_back(std::make_unique<Slot>(
          *this,
          block::Segment{region_.get(), uint64_t{i} * arguments_.block_bytes, arguments_.block_bytes}));
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  struct Figures {
    uint64_t requests = 0;
    uint64_t ns = 0;
    uint64_t busy_ns = 0;
    perf::LatencyHistogram latency;
    perf::LatencyHistogram turn;  // of each request: its turn's time, by the requests that ended in it
  };
  Figures Run(uint64_t ns) {
    figures_ = {};
    ending_ = false;
    const uint64_t begun = clock_.NowNs();
    for (const auto& slot : slots_) Begin(*slot, begun);
    uint64_t last = begun;
    uint64_t spent_ns = 0;  // of turns that worked, since a request ended
    while (under_way_ > 0) {
      const uint64_t done = figures_.requests;
      const bool worked = reactor_->RunOnce();
      const uint64_t now = clock_.NowNs();
      if (worked) {
        figures_.busy_ns += now - last;
        spent_ns += now - last;
      }
      last = now;
      ending_ = now - begun >= ns;
      const uint64_t ended = figures_.requests - done;
      if (ended == 0) continue;
      const uint64_t each_ns = std::exchange(spent_ns, 0) / ended;
      for (uint64_t i = 0; i < ended; ++i) figures_.turn.Record(each_ns);
      last = clock_.NowNs();
    }
    figures_.ns = last - begun;
    return std::move(figures_);
  }
  // Until the input ends.
  void RunLongest() {
    std::atomic<uint32_t> asked{0};
    std::atomic<bool> over{false};
    std::thread listening([&] {
      for (std::string line; std::getline(std::cin, line);) ++asked;
      over = true;
    });
    ending_ = false;
    for (const auto& slot : slots_) Begin(*slot, clock_.NowNs());
    for (uint32_t told = 0; !over.load();) {
      if (!reactor_->RunOnce()) std::this_thread::yield();
      if (told == asked.load()) continue;
      ++told;
      PrintLongest();
    }
    listening.join();
    ending_ = true;
    while (under_way_ > 0) reactor_->RunOnce();
  }
  ~Loop() {
    channel_.reset();
    std::atomic<bool> closed{false};
    std::thread closing([&] {
      (void)control_.Await<Status>([this] { return Close(); });
      closed.store(true);
    });
    while (!closed.load()) reactor_->RunOnce();
    closing.join();
    pipeline_.reset();
    std::free(memory_);
  }

 private:
  Task<Status> Close() {
    auto closed = co_await pipeline_->Close();
    co_await rdma_->Close();
    rdma_.reset();
    adapters_.reset();
    co_return closed;
  }

  struct Slot {
    Slot(Loop& l, block::Segment s) : loop(l), segment(s) {}
    Loop& loop;
    block::Request request;
    block::Segment segment;
    uint64_t begun_ns = 0;
    uint64_t longest_ns = 0;
  };

  uint64_t NextPlace() {
    const uint64_t places = arguments_.bytes / arguments_.block_bytes;
    return arguments_.longest ? next_++ % places : random_.Below(places);
  }

  void Begin(Slot& slot, uint64_t now_ns) {
    ++under_way_;
    slot.begun_ns = now_ns;
    slot.request.op = arguments_.writes ? block::Op::kWrite : block::Op::kRead;
    slot.request.offset_bytes = NextPlace() * arguments_.block_bytes;
    slot.request.length_bytes = arguments_.block_bytes;
    slot.request.segments = {&slot.segment, 1};
    slot.request.Push(
        [](block::Request& request, const block::Frame& frame) {
          auto& own = *static_cast<Slot*>(frame.layer);
          if (request.status != block::IoStatus::kOk) Fail("a request has failed");
          own.loop.Ended(own);
        },
        &slot);
    channel_->Submit(slot.request);
  }
  void Ended(Slot& slot) {
    --under_way_;
    ++figures_.requests;
    const uint64_t now_ns = clock_.NowNs();
    const uint64_t took_ns = now_ns - slot.begun_ns;
    slot.longest_ns = std::max(slot.longest_ns, took_ns);
    figures_.latency.Record(took_ns);
    if (!ending_) Begin(slot, now_ns);
  }
  void PrintLongest() {
    const uint64_t now_ns = clock_.NowNs();
    const char* before = "[";
    for (const auto& slot : slots_) {
      const uint64_t longest_ns = std::max(std::exchange(slot->longest_ns, 0), now_ns - slot->begun_ns);
      std::printf("%s%.1f", before, static_cast<double>(longest_ns) / 1e3);
      before = ", ";
    }
    std::printf("]\n");
    std::fflush(stdout);
  }

  const Arguments arguments_;
  const MonotonicClock clock_;
  std::unique_ptr<Reactor> reactor_;
  Control control_;
  // Adapters, and the ports on them, end on the control reactor.
  std::unique_ptr<nvmf::RdmaAdapters> adapters_ = std::make_unique<nvmf::RdmaAdapters>(control_.reactor());
  std::unique_ptr<modules::RdmaPorts> rdma_ = std::make_unique<modules::RdmaPorts>(*adapters_);
  std::unique_ptr<block::Pipeline> pipeline_;
  std::unique_ptr<block::PipelineChannel> channel_;
  uint8_t* memory_ = nullptr;
  std::shared_ptr<block::MemoryRegion> region_;
  std::vector<std::unique_ptr<Slot>> slots_;
  Random random_{1};
  uint64_t next_ = 0;
  Figures figures_;
  uint32_t under_way_ = 0;
  bool ending_ = false;
};

void AddTuning(CLI::App& app, Arguments& arguments) {
  modules::TcpTuning& tuning = arguments.tuning;
  app.add_flag("!--one-piece-a-send", tuning.batches_sends,
               "each piece of memory in a system call of its own");
  app.add_flag("!--read-on-events", tuning.reads_without_event,
               "wait for the socket's event before each read");
  app.add_option_function<uint32_t>(
         "--receive-buffer-kib", [&tuning](uint32_t kib) { tuning.receive_buffer_bytes = kib * 1024; },
         "what one system call reads at most")
      ->check(CLI::Range(1, 4096));
  app.add_flag_callback(
      "--window-by-kernel", [&tuning] { tuning.unread_bytes = 0; },
      "the kernel begins with little room for what is unread");
  app.add_flag("--kernel-tls", tuning.kernel_tls, "TLS' records are made by the kernel where it can");
  auto* by_table = app.add_flag("--digests-by-table", arguments.digests_by_table,
                                "neither folded nor by the processor's instruction");
  app.add_flag("--digests-by-instruction", arguments.digests_by_instruction,
               "not folded, by the processor's instruction")
      ->excludes(by_table);
}

void Pin(int core) {
  if (core < 0) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<unsigned>(core), &cores);
  if (sched_setaffinity(0, sizeof(cores), &cores) != 0) Fail("there is no core " + std::to_string(core));
}

void Print(const Arguments& arguments, const Loop::Figures& figures) {
  const auto requests = static_cast<double>(figures.requests);
  const double kiops = requests * 1e6 / static_cast<double>(figures.ns);
  const double p50 = static_cast<double>(figures.latency.PercentileNs(0.5)) / 1e3;
  const double p99 = static_cast<double>(figures.latency.PercentileNs(0.99)) / 1e3;
  const double busy = static_cast<double>(figures.busy_ns) / requests;
  const auto turn = static_cast<double>(figures.turn.PercentileNs(0.5));
  std::printf(
      arguments.json
          ? "{\"kiops\": %.2f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"busy_ns\": %.1f, \"turn_ns\": %.1f}\n"
          : "%.1f thousand a second, p50 %.2f us, p99 %.2f us, busy for %.1f ns a request, the median one "
            "for %.1f\n",
      kiops, p50, p99, busy, turn);
}

}  // namespace
}  // namespace cleat

int main(int argc, char** argv) {
  cleat::Arguments arguments;
  CLI::App app("Requests to a namespace over NVMe/TCP");
  app.add_option("--address", arguments.addresses, "given again for each further path")
      ->required()
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--nqn", arguments.nqn)->required();
  app.add_option("--namespace", arguments.name_space, "its UUID")->required();
  app.add_option("--depth", arguments.depth)->check(CLI::Range(1, 128))->capture_default_str();
  app.add_option("--block-bytes", arguments.block_bytes)->capture_default_str();
  app.add_flag("--write", arguments.writes);
  app.add_flag("--header-digest", arguments.header_digest);
  app.add_flag("--data-digest", arguments.data_digest);
  app.add_option("--tls-psk-file", arguments.psk_file,
                 "the pre-shared key of TLS, as nvme gen-tls-key prints it");
  cleat::AddTuning(app, arguments);
  app.add_option("--seconds", arguments.seconds)->capture_default_str();
  app.add_option("--core", arguments.core, "for the loop");
  app.add_option("--bytes", arguments.bytes, "of the namespace that are used")->capture_default_str();
  app.add_option("--keep-alive-ms", arguments.keep_alive_ms)->capture_default_str();
  app.add_flag("--json", arguments.json);
  app.add_flag("--longest", arguments.longest,
               "for each line of the input, the longest requests since the one before");
  CLI11_PARSE(app, argc, argv);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("nvmf_loop"));  // the output is for programs
  if (arguments.digests_by_table) cleat::nvme::tcp::SetCrc32cByTable();
  if (arguments.digests_by_instruction)
    cleat::nvme::tcp::SetCrc32cWay(cleat::nvme::tcp::Crc32cWay::kInstruction);
  cleat::Loop loop(arguments);
  cleat::Pin(arguments.core);
  if (arguments.longest) {
    loop.RunLongest();
    return 0;
  }
  constexpr double kNsPerSecond = 1e9;
  (void)loop.Run(static_cast<uint64_t>(arguments.seconds * kNsPerSecond / 10));
  cleat::Print(arguments, loop.Run(static_cast<uint64_t>(arguments.seconds * kNsPerSecond)));
  return 0;
}
