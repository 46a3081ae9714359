// SPDX-License-Identifier: Apache-2.0
#include "perf/bare_loops/ring_loop.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "perf/load/load_thread.h"
#include "perf/vhost_user/deadline.h"
#include "perf/wire/virtio_blk.h"
#include "perf/wire/virtqueue.h"

namespace cleat::perf {
namespace {

constexpr uint64_t kDiskBytes = 1ULL << 40;  // nobody stores anything
constexpr uint64_t kMemoryBytes = 512ULL << 20;
constexpr uint64_t kEmptyNsMax = 60 * kNsPerSecond;  // of runs without a request

template <typename T>
T Load(T* shared) {
  return std::atomic_ref<T>(*shared).load(std::memory_order_acquire);
}
template <typename T>
void Store(T* shared, T value) {
  std::atomic_ref<T>(*shared).store(value, std::memory_order_release);
}

// The device's side of one ring. Trusts what it reads: it is our own.
class BareDevice {
 public:
  BareDevice(const DriverRing& ring, uint8_t* memory)
      : memory_(memory),
        size_(ring.size()),
        desc_(memory + ring.desc_gpa()),
        avail_(reinterpret_cast<uint16_t*>(memory + ring.avail_gpa())),
        used_(memory + ring.used_gpa()) {}

  void RunSplit(const std::atomic<bool>& stop) {
    uint16_t next = 0;
    const auto mask = static_cast<uint16_t>(size_ - 1);
    auto* used_index = reinterpret_cast<uint16_t*>(used_) + 1;
    auto* elements = reinterpret_cast<wire::UsedElement*>(used_ + sizeof(uint32_t));
    const auto* table = reinterpret_cast<const wire::Descriptor*>(desc_);
    while (!stop.load(std::memory_order_relaxed)) {
      const uint16_t end = Load(&avail_[1]);
      if (end == next) continue;
      for (; next != end; ++next) {
        const uint16_t head = avail_[2 + (next & mask)];
        ServeSplit(table, head);
        elements[next & mask] = {head, 1};
      }
      Store(used_index, next);
    }
  }

  void RunPacked(const std::atomic<bool>& stop) {
    auto* table = reinterpret_cast<wire::PackedDescriptor*>(desc_);
    uint16_t index = 0;
    bool wrap = true;
    while (!stop.load(std::memory_order_relaxed)) {
      const uint16_t flags = Load(&table[index].flags);
      const uint16_t available = wrap ? wire::kDescAvail : wire::kDescUsed;
      if ((flags & (wire::kDescAvail | wire::kDescUsed)) != available) continue;
      const uint16_t count = ServePacked(table, index);
      table[index].len = 1;
      table[index].id = last_id_;
      const int used = wire::kDescWrite | (wrap ? wire::kDescAvail | wire::kDescUsed : 0);
      Store(&table[index].flags, static_cast<uint16_t>(used));
      index = static_cast<uint16_t>(index + count);
      if (index >= size_) {
        index = static_cast<uint16_t>(index - size_);
        wrap = !wrap;
      }
    }
  }

 private:
  void Answer(uint64_t header_gpa, uint64_t status_gpa) {
    sector_ = reinterpret_cast<const wire::BlkHeader*>(memory_ + header_gpa)->sector;
    std::atomic_ref<uint8_t>(memory_[status_gpa]).store(wire::kBlkOk, std::memory_order_relaxed);
  }

  void ServeSplit(const wire::Descriptor* table, uint16_t head) {
    const wire::Descriptor* at = &table[head];
    if ((at->flags & wire::kDescIndirect) != 0) {
      table = reinterpret_cast<const wire::Descriptor*>(memory_ + at->gpa);
      at = table;
    }
    const uint64_t header_gpa = at->gpa;
    while ((at->flags & wire::kDescNext) != 0) at = &table[at->next];
    Answer(header_gpa, at->gpa);
  }

  // How many descriptors of the ring the chain has.
  uint16_t ServePacked(const wire::PackedDescriptor* table, uint16_t index) {
    const wire::PackedDescriptor* at = &table[index];
    last_id_ = at->id;
    if ((at->flags & wire::kDescIndirect) != 0) {
      const auto* indirect = reinterpret_cast<const wire::PackedDescriptor*>(memory_ + at->gpa);
      Answer(indirect[0].gpa, indirect[at->len / sizeof *indirect - 1].gpa);
      return 1;
    }
    const uint64_t header_gpa = at->gpa;
    uint16_t count = 1;
    for (; (at->flags & wire::kDescNext) != 0; ++count) {
      at = &table[static_cast<size_t>(index + count) % size_];
      last_id_ = at->id;
    }
    Answer(header_gpa, at->gpa);
    return count;
  }

  uint8_t* const memory_;
  const uint16_t size_;
  uint8_t* const desc_;
  uint16_t* const avail_;
  uint8_t* const used_;
  uint16_t last_id_ = 0;
  volatile uint64_t sector_ = 0;  // so that headers are read
};

void BindThisThread(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(core), &set);
  // Where that is not allowed the kernel finds a core.
  static_cast<void>(sched_setaffinity(0, sizeof set, &set));
}

Result<RingLoopReport> RunOnce(const RingLoopOptions& options) {
  const RegionSpec region{.gpa = 0, .size_bytes = kMemoryBytes};
  CLEAT_ASSIGN(auto memory, GuestMemory::Create({&region, 1}));
  LoadOptions load;
  load.depth = options.depth;
  load.block_bytes = options.block_bytes;
  load.indirect = options.indirect;
  load.time_ns = options.time_ns;
  load.requests = options.requests;
  const uint32_t descriptors = LoadQueue::DescriptorsNeeded(load, 1, options.indirect);
  const RingOptions ring_options{
      .size = static_cast<uint16_t>(std::bit_ceil(std::max<uint32_t>(descriptors, 128))),
      .event_idx = true,
      .indirect_entries = options.indirect ? uint16_t{8} : uint16_t{0},
      .packed = options.packed};
  CLEAT_ASSIGN(auto ring, DriverRing::Create(*memory, ring_options));

  const UniqueFd done_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!done_fd) return ErrnoError(errno, "an eventfd");
  const TickRate rate = TickRate::Measure();
  const MonotonicClock clock;
  const LoadEnvironment environment;
  LoadThread::Watched watched;
  LoadThread generator(rate, load, environment, done_fd.get());
  LoadQueue::Setup setup;
  setup.name = "ring";
  setup.disks.push_back({.name = "ring", .bytes = kDiskBytes});
  CLEAT_ASSIGN(auto queue, LoadQueue::Make(*ring, *memory, setup, load, generator.state));
  generator.AddQueue(std::move(queue), watched);
  CLEAT_TRY(generator.Prepare());

  std::atomic<bool> stop{false};
  BareDevice device(*ring, memory->At(0, kMemoryBytes));
  std::thread device_thread([&] {
    BindThisThread(options.device_core);
    options.packed ? device.RunPacked(stop) : device.RunSplit(stop);
  });
  const uint64_t start_ns = clock.NowNs();
  generator.state.count_from_ns = start_ns;
  if (options.time_ns != 0) generator.state.end_ns = start_ns + options.time_ns;
  generator.Start(options.generator_core);
  Status status = generator.Join();
  stop = true;
  device_thread.join();
  CLEAT_TRY(status);

  RingLoopReport report;
  const LoadStats& stats = generator.state.stats;
  report.latency.Merge(stats.latency[static_cast<size_t>(LoadOp::kRead)]);
  report.requests = report.latency.total();
  report.errors = stats.errors[static_cast<size_t>(LoadOp::kRead)].load();
  report.elapsed_ns = generator.loaded_ns - start_ns;
  return report;
}

}  // namespace

Result<RingLoopReport> RunRingLoop(const RingLoopOptions& options) {
  // On a busy machine one of the two threads may get no core before a short time is over. Such a run says nothing.
  const Deadline deadline(kEmptyNsMax);
  for (;;) {
    auto report = RunOnce(options);
    if (!report || report->requests > 0 || deadline.passed()) return report;
  }
}

}  // namespace cleat::perf
