// SPDX-License-Identifier: Apache-2.0
// Reads of 4 KiB from an NVMe namespace through a disk's pipeline, on one reactor that sleeps while the drive works: by the drive's own
// commands, or through its block device. No ring, no guest: what differs is the way to the drive. For a guest with an emulated drive and
// counted instructions (scripts/bench/cleat_bench/measure_nvme.py).
//
//   namespace_loop --device /dev/nvme0n1 --by commands|pinned|block|bare|registered [--depth 32] [--requests 20000]
// `pinned`: by commands from memory that somebody vouches for, registered when it begins. `bare` and `registered` are a loop without the
// engine, to compare with each other: bare_commands.h.
// Prints for how many nanoseconds a request keeps the only processor busy, interrupts and kernel included: a thread that runs when nobody
// else does counts what is left.
#include <pthread.h>
#include <sched.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bare_commands.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/random.h"
#include "block/pipeline.h"
#include "modules/nvme/nvme.h"
#include "modules/uring/uring.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"

namespace cleat {
namespace {

constexpr uint32_t kBlockBytes = 4096;

struct Arguments {
  std::string device;
  std::string by = "commands";
  uint32_t depth = 32;
  uint64_t requests = 20'000;
  uint64_t bytes = uint64_t{32} << 20;
};

class Loop {
 public:
  explicit Loop(const Arguments& arguments) : arguments_(arguments) {
    Reactor::Options options;
    options.name = "io0";
    options.spin_ns = 0;
    reactor_ = std::move(Reactor::Make(clock_, options)).value();
    CLEAT_CHECK(hub_.emplace().AddReactor(*reactor_).ok());
    const modules::UringOptions disk(block::DiskShape("disks/n", arguments.bytes, 512, kBlockBytes),
                                     arguments.device, block::AccessMode::kReadWrite);
    const bool by_commands = arguments.by != "block";
    auto opened = Await(by_commands ? modules::OpenFileDisk(disk, *hub_, blocking_)
                                    : modules::OpenUring(disk, *hub_, blocking_));
    if (!opened) Fail(opened.error().message);
    const bool commands = opened.value()->io_path().starts_with("NVMe commands");
    if (commands != by_commands) Fail("it goes by " + opened.value()->io_path());
    pipeline_ =
        std::move(block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite)).value();
    channel_ = std::move(pipeline_->OpenChannel(*reactor_)).value();
    memory_ = static_cast<uint8_t*>(std::aligned_alloc(kBlockBytes, size_t{arguments.depth} * kBlockBytes));
    const bool pinned = arguments.by == "pinned";
    region_ = block::MemoryRegion::Borrow(
        memory_, uint64_t{arguments.depth} * kBlockBytes,
        pinned ? std::make_unique<block::MemoryRegistration>("namespace_loop") : nullptr);
    for (uint32_t i = 0; i < arguments.depth; ++i)
      slots_.push_back(std::make_unique<Slot>(
          *this, block::Segment{region_.get(), uint64_t{i} * kBlockBytes, kBlockBytes}));
    while (pinned && !hub_->registrar().Find(*region_, 0, kBlockBytes)) sched_yield();
  }
  ~Loop() {
    channel_.reset();
    CLEAT_CHECK(Await(pipeline_->Close()).ok());
    pipeline_.reset();
    std::free(memory_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void Run(uint64_t requests) {
    wanted_ = begun_ + requests;
    for (const auto& slot : slots_) Begin(*slot);
    while (done_ < wanted_) reactor_->RunOnce();
  }

 private:
  struct Slot {
    Slot(Loop& l, block::Segment s) : loop(l), segment(s) {}
    Loop& loop;
    block::Request request;
    block::Segment segment;
  };

  [[noreturn]] static void Fail(const std::string& why) {
    std::fprintf(stderr, "namespace_loop: %s\n", why.c_str());
    std::exit(2);
  }

  void Begin(Slot& slot) {
    if (begun_ == wanted_) return;
    ++begun_;
    slot.request.op = block::Op::kRead;
    slot.request.offset_bytes = random_.Below(arguments_.bytes / kBlockBytes) * kBlockBytes;
    slot.request.length_bytes = kBlockBytes;
    slot.request.segments = {&slot.segment, 1};
    slot.request.Push(
        [](block::Request& request, const block::Frame& frame) {
          CLEAT_CHECK(request.status == block::IoStatus::kOk);
          auto& own = *static_cast<Slot*>(frame.layer);
          ++own.loop.done_;
          own.loop.Begin(own);
        },
        &slot);
    channel_->Submit(slot.request);
  }

  template <typename T>
  T Await(Task<T> task) {
    std::optional<T> result;
    reactor_->PostCall([&] { Spawn(Keep(std::move(task), result)); });
    while (!result) reactor_->RunOnce();
    return std::move(*result);
  }
  template <typename T>
  static Task<void> Keep(Task<T> task, std::optional<T>& result) {
    result.emplace(co_await task);
  }

  const Arguments arguments_;
  const MonotonicClock clock_;
  BlockingPool blocking_{1};
  std::unique_ptr<Reactor> reactor_;
  std::optional<modules::UringHub> hub_;
  std::unique_ptr<block::Pipeline> pipeline_;
  std::unique_ptr<block::PipelineChannel> channel_;
  uint8_t* memory_ = nullptr;
  std::shared_ptr<block::MemoryRegion> region_;
  std::vector<std::unique_ptr<Slot>> slots_;
  Random random_{1};
  uint64_t wanted_ = 0;
  uint64_t begun_ = 0;
  uint64_t done_ = 0;
};

// Counts in the time that nobody else wants (SCHED_IDLE).
class Leftover {
 public:
  Leftover() {
    const sched_param none{};
    CLEAT_CHECK(pthread_setschedparam(thread_.native_handle(), SCHED_IDLE, &none) == 0);
  }
  ~Leftover() {
    ended_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  Leftover(const Leftover&) = delete;
  Leftover& operator=(const Leftover&) = delete;

  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_{[this] {
    while (!ended_.load(std::memory_order_relaxed))
      count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }};
};

// Counts, and nanoseconds, while `work` runs.
struct Spent {
  uint64_t counts = 0;
  uint64_t ns = 0;
};
Spent Measure(const Leftover& leftover, const std::function<void()>& work) {
  const MonotonicClock clock;
  const uint64_t counts = leftover.count();
  const uint64_t ns = clock.NowNs();
  work();
  return {leftover.count() - counts, clock.NowNs() - ns};
}

void MeasureLoop(auto& loop, uint64_t requests) {
  loop.Run(requests / 10);
  const Leftover leftover;
  const Spent rest = Measure(leftover, [] { std::this_thread::sleep_for(std::chrono::milliseconds(500)); });
  const Spent load = Measure(leftover, [&] { loop.Run(requests); });
  const double left_ns =
      static_cast<double>(load.counts) * static_cast<double>(rest.ns) / static_cast<double>(rest.counts);
  std::printf("%.1f\n", (static_cast<double>(load.ns) - left_ns) / static_cast<double>(requests));
}

}  // namespace
}  // namespace cleat

int main(int argc, char** argv) {
  cleat::Arguments arguments;
  CLI::App app("Reads from an NVMe namespace, by commands or through its block device");
  app.add_option("--device", arguments.device)->required();
  app.add_option("--by", arguments.by)
      ->check(CLI::IsMember({"commands", "pinned", "block", "bare", "registered"}))
      ->capture_default_str();
  app.add_option("--depth", arguments.depth)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--requests", arguments.requests)->capture_default_str();
  app.add_option("--bytes", arguments.bytes, "of the device that are read")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (arguments.by != "bare" && arguments.by != "registered") {
    cleat::Loop loop(arguments);
    cleat::MeasureLoop(loop, arguments.requests);
  } else {
    cleat::BareCommands loop({.device = arguments.device,
                              .bytes = arguments.bytes,
                              .depth = arguments.depth,
                              .registered = arguments.by == "registered"});
    cleat::MeasureLoop(loop, arguments.requests);
  }
  return 0;
}
