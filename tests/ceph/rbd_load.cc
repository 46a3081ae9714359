// SPDX-License-Identifier: Apache-2.0
// cleat-rbd-load: the pipeline over RBD images, driven inside one process with so many 4 KiB requests in flight for each, as
// fio's rbd engine drives librbd; and what it takes to have the images open. Prints one JSON object. For scripts/bench.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
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
  uint32_t images = 0;  // 0: the one of that name; else so many, which have a number from 0 on behind it
  uint32_t images_per_client = modules::kImagesPerClientDefault;
  uint32_t loaded = 1;  // of them, the first ones
  uint32_t depth = 16;  // for each of these
  double seconds = 4;   // 0: no load
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

double SecondsSince(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// False: it went wrong, and was said.
bool Good(const Status& status) {
  if (!status) std::fprintf(stderr, "cleat-rbd-load: %s\n", status.error().message.c_str());
  return status.ok();
}

// What the process has of the machine.
struct Taken {
  double threads = Entries("/proc/self/task");
  double descriptors = Entries("/proc/self/fd");
  double heap_kib = static_cast<double>(mallinfo2().uordblks) / 1024;
  double resident_kib = ResidentKib();

  static double Entries(const char* folder) {
    const auto entries = std::filesystem::directory_iterator(folder);
    return static_cast<double>(std::distance(begin(entries), end(entries)));
  }
  static double ResidentKib() {
    std::ifstream file("/proc/self/statm");
    uint64_t total = 0;
    uint64_t resident = 0;
    file >> total >> resident;
    return static_cast<double>(resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE))) / 1024;
  }
};

struct Report {
  double open_s = 0;   // until all of them are open and owned
  double close_s = 0;  // until all of them are given up and closed
  Taken before;
  Taken open;
  double seconds = 0;
  double cpu_s = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;

  void Print() const {
    const auto done = static_cast<double>(std::max(completed, uint64_t{1}));
    std::printf(
        R"({"iops": %.1f, "cpu_us_per_io": %.3f, "completed": %lu, "failed": %lu, "open_s": %.4f, )"
        R"("close_s": %.4f, "threads": %.0f, "descriptors": %.0f, "heap_kib": %.0f, "resident_kib": %.0f})"
        "\n",
        seconds > 0 ? static_cast<double>(completed) / seconds : 0, cpu_s / done * 1e6, completed, failed,
        open_s, close_s, open.threads - before.threads, open.descriptors - before.descriptors,
        open.heap_kib - before.heap_kib, open.resident_kib - before.resident_kib);
  }
};

// The images, open and owned. Used by one thread.
class Disks {
 public:
  using Pipelines = std::vector<std::unique_ptr<block::Pipeline>>;

  Disks(const Settings& settings, RunningReactor& control, RunningReactor& io, modules::ClientPool& pool)
      : settings_(settings), control_(control), io_(io), pool_(pool) {}

  bool Open();
  void Load(Report& report);
  bool Close();

 private:
  // All at the same time, as cleatd asks for them.
  bool OnEach(const std::function<Task<Status>(block::Pipeline&)>& what);

  const Settings& settings_;
  RunningReactor& control_;
  RunningReactor& io_;
  modules::ClientPool& pool_;
  Pipelines pipelines_;
};

bool Disks::OnEach(const std::function<Task<Status>(block::Pipeline&)>& what) {
  std::vector<std::future<Status>> under_way;
  for (auto& pipeline : pipelines_)
    under_way.push_back(control_.Begin<Status>([&what, &pipeline] { return what(*pipeline); }));
  bool good = true;
  for (auto& one : under_way) good = Good(one.get()) && good;
  return good;
}

bool Disks::Open() {
  auto cluster = std::make_shared<modules::ClusterOptions>();
  cluster->name = "clusters/bench";
  cluster->conf_file = settings_.conf;
  cluster->user = settings_.user;
  cluster->images_per_client = settings_.images_per_client;
  using Opened = Result<std::unique_ptr<block::Device>>;
  std::vector<std::future<Opened>> opening;
  for (uint32_t i = 0; i < std::max(settings_.images, 1U); ++i) {
    const std::string image = settings_.images == 0 ? settings_.image : settings_.image + std::to_string(i);
    const block::DiskShape shape("disks/" + image, settings_.size_bytes, 512, 4096);
    const modules::RbdOptions options(shape, cluster, settings_.pool, image, block::AccessMode::kReadWrite);
    opening.push_back(control_.Begin<Opened>([this, options] { return modules::OpenRbd(options, pool_); }));
  }
  bool good = true;
  for (auto& one : opening) {
    Opened opened = one.get();
    good = Good(opened ? Status() : Status(opened.error())) && good;
    if (!opened) continue;
    auto made = block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite);
    good = Good(made ? Status() : Status(made.error())) && good;
    if (made) pipelines_.push_back(std::move(made).value());
  }
  return good && OnEach([](block::Pipeline& pipeline) { return pipeline.Acquire(); });
}

void Disks::Load(Report& report) {
  std::vector<std::unique_ptr<block::PipelineChannel>> channels;
  std::vector<std::unique_ptr<test::Load>> loads;
  std::vector<std::future<void>> ended;
  for (uint32_t i = 0; i < settings_.loaded; ++i) {
    io_.Do([&] { channels.push_back(std::move(pipelines_[i]->OpenChannel(*io_)).value()); });
    loads.push_back(std::make_unique<test::Load>(settings_, *channels.back()));
    ended.push_back(loads.back()->Ended());
  }
  const double cpu_before = CpuSeconds();
  const auto since = std::chrono::steady_clock::now();
  io_.Do([&] {
    for (auto& load : loads) load->Begin();
  });
  std::this_thread::sleep_for(std::chrono::duration<double>(settings_.seconds));
  for (auto& load : loads) report.completed += load->completed();
  report.seconds = SecondsSince(since);
  report.cpu_s = CpuSeconds() - cpu_before;
  for (auto& load : loads) load->Stop();
  for (auto& one : ended) one.get();
  for (auto& load : loads) report.failed += load->failed();
  io_.Do([&] { channels.clear(); });
}

bool Disks::Close() {
  bool good = OnEach([](block::Pipeline& pipeline) { return pipeline.Release(); });
  good = OnEach([](block::Pipeline& pipeline) { return pipeline.Close(); }) && good;
  control_.Do([this] { pipelines_.clear(); });
  return good;
}

bool Run(Disks& disks, double load_s, Report& report) {
  auto since = std::chrono::steady_clock::now();
  bool good = disks.Open();
  report.open_s = SecondsSince(since);
  report.open = Taken();
  if (good && load_s > 0) disks.Load(report);
  since = std::chrono::steady_clock::now();
  good = disks.Close() && good;
  report.close_s = SecondsSince(since);
  return good;
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("cleat-rbd-load: 4 KiB requests through the pipeline to RBD images, without a guest");
  app.add_option("--conf", settings.conf, "the cluster's ceph.conf, with a keyring for the user")->required();
  app.add_option("--user", settings.user)->capture_default_str();
  app.add_option("--pool", settings.pool)->capture_default_str();
  app.add_option("--image", settings.image)->required();
  app.add_option("--images", settings.images, "open so many, that have a number from 0 on behind that name");
  app.add_option("--images-per-client", settings.images_per_client)
      ->check(CLI::Range(1U, modules::kImagesPerClientMax))
      ->capture_default_str();
  app.add_option("--loaded", settings.loaded, "of these images, the first ones")->capture_default_str();
  app.add_option("--size", settings.size_bytes, "bytes of the image that are used")->required();
  app.add_option("--read-percent", settings.read_percent, "of the requests; the others write")
      ->check(CLI::Range(0U, 100U))
      ->capture_default_str();
  app.add_option("--depth", settings.depth, "requests in flight for each image that is loaded")
      ->check(CLI::Range(1U, 1024U))
      ->capture_default_str();
  app.add_option("--seconds", settings.seconds, "0: the images are opened and closed")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (settings.loaded > std::max(settings.images, 1U)) {
    std::fprintf(stderr, "cleat-rbd-load: --loaded %u is more than there are images\n", settings.loaded);
    return 1;
  }
  spdlog::set_level(spdlog::level::off);
  const MonotonicClock clock;
  RunningReactor control(clock, "control");
  RunningReactor io(clock, "io0");
  std::unique_ptr<modules::ClientPool> pool;
  control.Do([&] { pool = std::make_unique<modules::ClientPool>(*control, "bench"); });
  Report report;
  bool good = false;
  {
    Disks disks(settings, control, io, *pool);
    good = Run(disks, settings.seconds, report);
  }
  if (good) report.Print();
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
