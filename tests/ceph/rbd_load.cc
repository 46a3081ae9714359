// SPDX-License-Identifier: Apache-2.0
// cleat-rbd-load: the pipeline over an RBD image, driven inside one process with so many 4 KiB requests in flight, as
// fio's rbd engine drives librbd. Prints one JSON object. For scripts/bench.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "block/pipeline.h"
#include "modules/rbd/client_pool.h"
#include "modules/rbd/rbd.h"
#include "tests/ceph/running_reactor.h"

namespace cleat::test {
namespace {

constexpr uint64_t kIoBytes = 4096;

struct Settings {
  std::string conf;
  std::string user = "cleat";
  std::string pool = "rbd";
  std::string image;
  uint32_t read_percent = 100;
  uint64_t size_bytes = 0;
  uint32_t depth = 16;
  double seconds = 4;
};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// On the I/O reactor's thread; each request that ends starts the next.
class Load {
 public:
  Load(const Settings& settings, block::PipelineChannel& channel)
      : settings_(settings),
        channel_(channel),
        memory_(settings.depth * kIoBytes, 0x5a),
        slots_(settings.depth) {
    region_ = block::MemoryRegion::Borrow(memory_.data(), memory_.size());
    for (uint32_t i = 0; i < settings.depth; ++i) {
      slots_[i].load = this;
      slots_[i].segment = {region_.get(), i * kIoBytes, static_cast<uint32_t>(kIoBytes)};
    }
  }
  void Begin() {
    for (Slot& slot : slots_) Start(slot);
  }
  void Stop() { stopping_.store(true, std::memory_order_relaxed); }
  uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }
  uint64_t failed() const { return failed_.load(std::memory_order_relaxed); }
  std::future<void> Ended() { return ended_.get_future(); }

 private:
  struct Slot {
    block::Request request;
    block::Segment segment;
    Load* load = nullptr;
  };
  void Start(Slot& slot) {
    block::Request& request = slot.request;
    request.op = random_.Chance(settings_.read_percent, 100) ? block::Op::kRead : block::Op::kWrite;
    request.offset_bytes = kIoBytes * random_.Below(settings_.size_bytes / kIoBytes);
    request.length_bytes = kIoBytes;
    request.segments = {&slot.segment, 1};
    request.Push([](block::Request&, const block::Frame& frame) { Done(*static_cast<Slot*>(frame.layer)); },
                 &slot);
    channel_.Submit(request);
  }
  static void Done(Slot& slot) {
    Load& load = *slot.load;
    load.completed_.fetch_add(1, std::memory_order_relaxed);
    if (slot.request.status != block::IoStatus::kOk) load.failed_.fetch_add(1, std::memory_order_relaxed);
    if (!load.stopping_.load(std::memory_order_relaxed)) return load.Start(slot);
    if (++load.idle_ == load.settings_.depth) load.ended_.set_value();
  }

  const Settings& settings_;
  block::PipelineChannel& channel_;
  std::vector<uint8_t> memory_;
  std::shared_ptr<block::MemoryRegion> region_;
  std::vector<Slot> slots_;
  Random random_{1};
  uint32_t idle_ = 0;
  std::promise<void> ended_;
  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> failed_{0};
  std::atomic<bool> stopping_{false};
};

void Measure(const Settings& settings, RunningReactor& io, block::PipelineChannel& channel) {
  Load load(settings, channel);
  auto ended = load.Ended();
  const double cpu_before = CpuSeconds();
  const auto since = std::chrono::steady_clock::now();
  io.Do([&] { load.Begin(); });
  std::this_thread::sleep_for(std::chrono::duration<double>(settings.seconds));
  const uint64_t completed = load.completed();
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  const double cpu = CpuSeconds() - cpu_before;
  load.Stop();
  ended.get();
  std::printf(R"({"iops": %.1f, "cpu_us_per_io": %.3f, "completed": %lu, "failed": %lu})"
              "\n",
              static_cast<double>(completed) / took, cpu / static_cast<double>(completed) * 1e6, completed,
              load.failed());
}

// False: it went wrong, and was said.
bool Good(const Status& status) {
  if (!status) std::fprintf(stderr, "cleat-rbd-load: %s\n", status.error().message.c_str());
  return status.ok();
}

bool Run(const Settings& settings, RunningReactor& control, RunningReactor& io, modules::ClientPool& pool) {
  auto cluster = std::make_shared<modules::ClusterOptions>();
  cluster->name = "clusters/bench";
  cluster->conf_file = settings.conf;
  cluster->user = settings.user;
  const block::DiskShape shape("disks/bench", settings.size_bytes, 512, 4096);
  const modules::RbdOptions options(shape, cluster, settings.pool, settings.image,
                                    block::AccessMode::kReadWrite);
  using Opened = Result<std::unique_ptr<block::Device>>;
  Opened opened = control.Await<Opened>([&] { return modules::OpenRbd(options, pool); });
  if (!opened) return Good(opened.error());
  auto made = block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite);
  if (!made) return Good(made.error());
  std::unique_ptr<block::Pipeline> pipeline = std::move(made).value();
  bool good = Good(control.Await<Status>([&] { return pipeline->Acquire(); }));
  if (good) {
    std::unique_ptr<block::PipelineChannel> channel;
    io.Do([&] { channel = std::move(pipeline->OpenChannel(*io)).value(); });
    Measure(settings, io, *channel);
    io.Do([&] { channel.reset(); });
    good = Good(control.Await<Status>([&] { return pipeline->Release(); }));
  }
  good = Good(control.Await<Status>([&] { return pipeline->Close(); })) && good;
  control.Do([&] { pipeline.reset(); });
  return good;
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("cleat-rbd-load: 4 KiB requests through the pipeline to an RBD image, without a guest");
  app.add_option("--conf", settings.conf, "the cluster's ceph.conf, with a keyring for the user")->required();
  app.add_option("--user", settings.user)->capture_default_str();
  app.add_option("--pool", settings.pool)->capture_default_str();
  app.add_option("--image", settings.image)->required();
  app.add_option("--size", settings.size_bytes, "bytes of the image that are used")->required();
  app.add_option("--read-percent", settings.read_percent, "of the requests; the others write")
      ->check(CLI::Range(0U, 100U))
      ->capture_default_str();
  app.add_option("--depth", settings.depth)->check(CLI::Range(1U, 1024U))->capture_default_str();
  app.add_option("--seconds", settings.seconds)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  spdlog::set_level(spdlog::level::off);
  const MonotonicClock clock;
  RunningReactor control(clock, "control");
  RunningReactor io(clock, "io0");
  std::unique_ptr<modules::ClientPool> pool;
  control.Do([&] { pool = std::make_unique<modules::ClientPool>(*control, "bench"); });
  const bool good = Run(settings, control, io, *pool);
  const bool ended = control.Await<bool>([&] { return pool->End(30 * kNsPerSecond); });
  control.Do([&] { pool.reset(); });
  if (!ended) _exit(1);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace cleat::test

int main(int argc, char** argv) {
  return cleat::test::Main(argc, argv);
}
