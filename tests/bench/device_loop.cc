// SPDX-License-Identifier: Apache-2.0
// The engine's side of a virtqueue in a loop on one thread: a driver offers a batch of 4 KiB reads, one turn of the
// reactor serves them through queue, pipeline and null device, with the in-flight log, the counters and the stage stamps
// on, and the driver takes the answers. No socket, no other core, no sleep.
//
// Two uses: under valgrind, where the instructions of Reactor::RunOnce are counted and repeat exactly (see
// scripts/instruction_gate.py), and by itself, where it says what a request costs with everything in the cache.
//
//   device_loop --device blk|scsi --ring split|packed [--depth 32] [--requests 1000000] [--uncounted]
#include <linux/virtio_blk.h>
#include <linux/virtio_scsi.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "block/pipeline.h"
#include "modules/null/null.h"
#include "observe/engine_counters.h"
#include "perf/ring/driver_ring.h"
#include "perf/vhost_user/guest_memory.h"
#include "virtio/blk_model.h"
#include "virtio/ring_format.h"
#include "virtio/scsi_model.h"

namespace cleat {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{1} << 30;
constexpr uint32_t kBlockBytes = 4096;
constexpr uint64_t kMemoryBytes = uint64_t{64} << 20;
constexpr uint16_t kRingSize = 256;
constexpr uint64_t kInflightBytes = 64 * 1024;
constexpr uint32_t kFirstRequestQueue = 2;

struct Arguments {
  std::string device = "blk";
  std::string ring = "split";
  uint32_t depth = 32;
  uint64_t requests = 1'000'000;
  bool uncounted = false;
};

// One reactor that is control and I/O in one, in virtual time.
class Bench {
 public:
  explicit Bench(const Arguments& arguments) : arguments_(arguments) {
    OpenDisk();
    if (scsi()) {
      OpenScsi();
    } else {
      OpenBlk();
    }
    MakeRing();
    StartQueue();
    MakeRequests();
  }
  ~Bench() {
    bool drained = false;
    queue_->Stop([&drained] { drained = true; });
    while (!drained) Turn();
    queue_.reset();
    if (scsi_ != nullptr) RunTask(scsi_->Remove(0));
    scsi_.reset();
    blk_.reset();
    channel_.reset();
    disk_counters_.reset();
    RunTask(pipeline_->Close());
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void Run(uint64_t requests) {
    for (uint64_t done = 0; done < requests;) {
      for (uint32_t i = 0; i < arguments_.depth; ++i)
        CLEAT_CHECK(ring_->Add(chains_[i], true, i).has_value());
      ring_->Publish();
      perf::UsedEntry used;
      for (uint32_t taken = 0; taken < arguments_.depth;) {
        Turn();
        while (ring_->Pop(&used) == perf::PopResult::kDone) ++taken;
      }
      done += arguments_.depth;
    }
  }
  uint64_t served() const { return ring_->stats().chains; }

 private:
  bool scsi() const { return arguments_.device == "scsi"; }
  void Turn() {
    clock_.AdvanceBy(1000);
    reactor_->RunOnce();
  }
  template <typename T>
  void RunTask(Task<T> task) {
    bool done = false;
    Spawn(Finish(std::move(task), &done));
    while (!done) Turn();
  }
  template <typename T>
  static Task<void> Finish(Task<T> task, bool* done) {
    (void)co_await std::move(task);
    *done = true;
  }
  static Task<void> Finish(Task<void> task, bool* done) {
    co_await std::move(task);
    *done = true;
  }
  Task<void> OpenNull() {
    modules::NullOptions options(block::DiskShape{"disks/null", kDiskBytes, 512, 512});
    options.zero_fill = false;  // the memory traffic of zeroes is not ours to measure
    auto open = modules::OpenNull(std::move(options));
    auto device = co_await std::move(open);
    pipeline_ = block::Pipeline::Make(std::move(device).value(), block::AccessMode::kReadWrite).value();
  }
  void OpenDisk() {
    reactor_ = Reactor::Make(clock_, {}).value();
    RunTask(OpenNull());
    channel_ = pipeline_->OpenChannel(*reactor_).value();
    if (arguments_.uncounted) return;
    counters_ = observe::EngineCounters::Make("bench", 1, {reactor_.get()}).value();
    disk_counters_ = counters_->AddDisk("controllers/bench", "disks/null", 0, *reactor_, clock_.NowNs());
  }
  virtio::DiskChannelRef ChannelRef() {
    return {channel_.get(), disk_counters_.get(), counters_ != nullptr ? counters_->On(*reactor_) : nullptr};
  }
  void OpenBlk() {
    blk_ = std::make_unique<virtio::BlkModel>(pipeline_->geometry(), block::AccessMode::kReadWrite, "bench",
                                              1, [this](Reactor&) { return ChannelRef(); });
    model_ = blk_.get();
    queue_ = blk_->OpenQueue(*reactor_, 0).value();
  }
  void OpenScsi() {
    scsi_ = std::make_unique<virtio::ScsiModel>("controllers/bench", *reactor_,
                                                std::vector<Reactor*>{reactor_.get()}, 1);
    virtio::ScsiDisk disk;
    disk.name = "disks/null";
    disk.geometry = pipeline_->geometry();
    disk.channel_on = [this](Reactor&) { return ChannelRef(); };
    RunTask(scsi_->Add(0, std::move(disk)));
    model_ = scsi_.get();
    queue_ = scsi_->OpenQueue(*reactor_, kFirstRequestQueue).value();
  }

  void MakeRing() {
    memory_ = perf::GuestMemory::Create(std::vector<perf::RegionSpec>{{0, kMemoryBytes, 0}}).value();
    perf::RingOptions options;
    options.size = kRingSize;
    options.indirect_entries = 4;
    options.packed = arguments_.ring == "packed";
    ring_ = perf::DriverRing::Create(*memory_, options).value();
  }
  void StartQueue() {
    virtio::QueueSetup setup;
    setup.features = model_->features();
    if (!ring_->packed()) setup.features &= ~(uint64_t{1} << virtio::kFeatureRingPacked);
    auto region = block::MemoryRegion::Borrow(memory_->At(0, kMemoryBytes), kMemoryBytes);
    setup.memory = block::MemoryMap::Make({{0, std::move(region)}}).value();
    setup.ring.size = kRingSize;
    setup.ring.descriptors = memory_->At(ring_->desc_gpa(), 1);
    setup.ring.available = memory_->At(ring_->avail_gpa(), 1);
    setup.ring.used = memory_->At(ring_->used_gpa(), 1);
    setup.next_available = ring_->first_base();
    inflight_.resize(kInflightBytes);
    setup.inflight = {inflight_.data(), inflight_.size(), nullptr};
    queue_->Start(setup, [](const std::string& why) {
      std::fprintf(stderr, "device_loop: the ring broke: %s\n", why.c_str());
      std::abort();
    });
  }
  void MakeRequests() {
    for (uint32_t i = 0; i < arguments_.depth; ++i) {
      const uint64_t area = memory_->Allocate(4096, 64).value();
      const uint64_t data = memory_->Allocate(kBlockBytes, 4096).value();
      chains_.push_back(scsi() ? ScsiRead(area, data, i) : BlkRead(area, data, i));
    }
  }
  std::vector<perf::Segment> BlkRead(uint64_t area, uint64_t data, uint32_t number) {
    auto& header = *memory_->At<virtio_blk_outhdr>(area);
    header.type = VIRTIO_BLK_T_IN;
    header.sector = uint64_t{number} * (kBlockBytes / 512);
    return {{area, sizeof(header), false}, {data, kBlockBytes, true}, {area + 64, 1, true}};
  }
  std::vector<perf::Segment> ScsiRead(uint64_t area, uint64_t data, uint32_t number) {
    auto& header = *memory_->At<virtio_scsi_cmd_req>(area);
    header.lun[0] = 1;
    header.lun[2] = 0x40;
    header.tag = number;
    header.cdb[0] = 0x28;  // READ(10)
    header.cdb[5] = static_cast<uint8_t>(number * 8);
    header.cdb[8] = kBlockBytes / 512;
    return {{area, sizeof(header), false},
            {area + 64, sizeof(virtio_scsi_cmd_resp), true},
            {data, kBlockBytes, true}};
  }

  const Arguments& arguments_;
  ManualClock clock_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<observe::EngineCounters> counters_;
  std::unique_ptr<block::Pipeline> pipeline_;
  std::unique_ptr<observe::DiskCounters> disk_counters_;
  std::unique_ptr<block::PipelineChannel> channel_;
  std::unique_ptr<virtio::BlkModel> blk_;
  std::unique_ptr<virtio::ScsiModel> scsi_;
  virtio::DeviceModel* model_ = nullptr;
  std::unique_ptr<perf::GuestMemory> memory_;
  std::unique_ptr<perf::DriverRing> ring_;
  std::vector<uint8_t> inflight_;
  std::unique_ptr<virtio::DeviceQueue> queue_;
  std::vector<std::vector<perf::Segment>> chains_;
};

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("The device side of a virtqueue on a null disk, in a loop: what a request costs the engine.");
  app.add_option("--device", arguments.device)->check(CLI::IsMember({"blk", "scsi"}))->capture_default_str();
  app.add_option("--ring", arguments.ring)->check(CLI::IsMember({"split", "packed"}))->capture_default_str();
  app.add_option("--depth", arguments.depth, "Requests a turn")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--requests", arguments.requests)->capture_default_str();
  app.add_flag("--uncounted", arguments.uncounted, "Without counters and stage histograms");
  CLI11_PARSE(app, argc, argv);
  Bench bench(arguments);
  const auto begin = std::chrono::steady_clock::now();
  bench.Run(arguments.requests);
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
  std::printf("{\"requests\": %llu, \"both_sides_ns\": %.1f}\n",
              static_cast<unsigned long long>(bench.served()),
              elapsed.count() / static_cast<double>(bench.served()));
  return 0;
}

}  // namespace
}  // namespace cleat

int main(int argc, char** argv) {
  return cleat::Main(argc, argv);
}
