// SPDX-License-Identifier: Apache-2.0
#include "perf/load/load.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <memory>
#include <numeric>

#include "base/random.h"
#include "perf/load/load_thread.h"
#include "perf/wire/virtio_scsi.h"

namespace cleat::perf {
namespace {

constexpr uint64_t kTickNs = kNsPerSecond;  // of progress and of looking for what is stuck

class LoadRun {
 public:
  LoadRun(std::span<LoadDevice> devices, const LoadOptions& options, const LoadEnvironment& environment)
      : devices_(devices), options_(options), environment_(environment) {}

  Result<LoadReport> Run() {
    CLEAT_TRY(Prepare());
    start_ns_ = before_ns_ = clock_.NowNs();
    for (size_t i = 0; i < threads_.size(); ++i) {
      LoadThreadState& state = threads_[i]->state;
      state.start_ns = start_ns_;
      state.count_from_ns = start_ns_ + options_.warmup_ns;
      if (options_.time_ns != 0) state.end_ns = state.count_from_ns + options_.time_ns;
      threads_[i]->Start(environment_.cores.empty() ? -1 : environment_.cores[i]);
    }
    Watch();
    for (auto& thread : threads_) {
      if (Status status = thread->Join(); !status && failure_.ok()) failure_ = std::move(status);
    }
    CLEAT_TRY(failure_);
    return Report();
  }

 private:
  Status Prepare() {
    done_fd_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!done_fd_) return ErrnoError(errno, "an eventfd for the generators");
    const size_t thread_count = std::max<size_t>(environment_.cores.size(), 1);
    for (size_t i = 0; i < thread_count; ++i) {
      threads_.push_back(std::make_unique<LoadThread>(rate_, options_, environment_, done_fd_.get()));
    }
    uint64_t streams = 0;
    for (LoadDevice& device : devices_) streams += device.disks.size() * device.queues;
    if (streams == 0) return Error(ErrorCode::kInvalidArgument, "there is no disk to put a load on");
    uint64_t stream = 0;
    for (size_t i = 0; i < devices_.size(); ++i) {
      watched_.emplace_back();
      watched_.back().device = &devices_[i];
      CLEAT_TRY(AddDevice(i, &stream, streams));
    }
    for (auto& thread : threads_) {
      CLEAT_TRY(thread->Prepare());
    }
    return Ok{};
  }

  Status AddDevice(size_t index, uint64_t* stream, uint64_t streams) {
    LoadDevice& device = devices_[index];
    // Whole devices where there are enough of them, for a device's queues share its connection.
    const bool split = devices_.size() < threads_.size() && device.queues > 1;
    if (split && environment_.reconnect) {
      return Error(ErrorCode::kInvalidArgument,
                   "reconnection needs all queues of a device on one core: give no more cores than devices");
    }
    for (LoadDisk& disk : device.disks) {
      if (!options_.verify) continue;
      CLEAT_TRY(CheckLoad(options_, disk.bytes, disk.logical_block_bytes, 1));
      stamps_.push_back(
          std::make_unique<StampedBlocks>(disk.bytes / options_.block_bytes * options_.block_bytes,
                                          options_.block_bytes, stamp_id_ + stamps_.size(), false));
      disk.stamps = stamps_.back().get();
    }
    for (uint16_t q = 0; q < device.queues; ++q) {
      LoadThread& thread = *threads_[(split ? next_queue_++ : index) % threads_.size()];
      const LoadQueue::Setup setup{.type = device.type,
                                   .disks = device.disks,
                                   .queue = q,
                                   .queues = device.queues,
                                   .stream = *stream,
                                   .streams = streams,
                                   .name = fmt::format("{}, queue {}", device.name, q)};
      CLEAT_ASSIGN(auto queue, device.MakeQueue(setup, options_, thread.state));
      thread.AddQueue(std::move(queue), watched_[index]);
      *stream += device.disks.size();
    }
    return Ok{};
  }

  // ---- While the generators run.

  void Watch() {
    uint64_t next_tick_ns = start_ns_ + kTickNs;
    std::vector<pollfd> fds;
    while (
        !std::all_of(threads_.begin(), threads_.end(), [](const auto& thread) { return thread->done(); })) {
      fds.clear();
      fds.push_back({.fd = done_fd_.get(), .events = POLLIN, .revents = 0});
      for (Watched& device : watched_) {
        const bool gone = device.gone.load(std::memory_order_acquire);
        fds.push_back({.fd = gone ? -1 : device.device->connection_fd(), .events = POLLRDHUP, .revents = 0});
      }
      const uint64_t now_ns = clock_.NowNs();
      const uint64_t left_ns = next_tick_ns > now_ns ? next_tick_ns - now_ns : 0;
      const int ready = poll(fds.data(), fds.size(), static_cast<int>((left_ns + kNsPerMs - 1) / kNsPerMs));
      if (ready > 0) SeeWhoLeft(fds);
      if (environment_.stop != nullptr && environment_.stop->load(std::memory_order_relaxed)) Stop();
      const bool failed = std::any_of(threads_.begin(), threads_.end(),
                                      [](const auto& thread) { return thread->done() && !thread->Join(); });
      if (failed) Stop();  // the others' work is of no use
      if (clock_.NowNs() < next_tick_ns) continue;
      next_tick_ns += kTickNs;
      for (auto& thread : threads_) thread->Notify(LoadThread::kLook);
      if (environment_.progress) environment_.progress(Progress());
    }
  }

  void SeeWhoLeft(std::span<const pollfd> fds) {
    for (size_t i = 0; i < watched_.size(); ++i) {
      if ((fds[i + 1].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) == 0) continue;
      watched_[i].gone.store(true, std::memory_order_release);
      for (auto& thread : threads_) thread->Notify(LoadThread::kLook);
    }
    uint64_t count = 0;
    // An end that is seen now need not be told again; which one it was is asked in Watch's condition.
    [[maybe_unused]] const ssize_t taken = read(done_fd_.get(), &count, sizeof count);
  }

  void Stop() {
    if (stopped_) return;
    stopped_ = true;
    for (auto& thread : threads_) thread->Notify(LoadThread::kStop);
  }

  LoadProgress Progress() {
    const uint64_t now_ns = clock_.NowNs();
    LatencyHistogram all;
    uint64_t data_requests = 0;
    LoadProgress progress;
    for (auto& thread : threads_) {
      const LoadStats& stats = thread->state.stats;
      for (size_t op = 0; op < kLoadOps; ++op) {
        all.Merge(stats.latency[op]);
        if (op <= static_cast<size_t>(LoadOp::kWrite)) data_requests += stats.latency[op].total();
        progress.errors += stats.errors[op].load(std::memory_order_relaxed);
      }
    }
    const LatencyHistogram fresh = all.Since(before_);
    const double seconds = static_cast<double>(now_ns - before_ns_) / static_cast<double>(kNsPerSecond);
    const uint64_t counted_from_ns = start_ns_ + options_.warmup_ns;
    progress.seconds = static_cast<double>(now_ns - start_ns_) / static_cast<double>(kNsPerSecond);
    progress.warming_up = now_ns < counted_from_ns;
    progress.iops = static_cast<double>(fresh.total()) / seconds;
    progress.bytes_per_second =
        static_cast<double>(data_requests - data_before_) * options_.block_bytes / seconds;
    progress.p50_ns = fresh.PercentileNs(0.5);
    progress.p99_ns = fresh.PercentileNs(0.99);
    progress.part_done = -1;
    if (options_.requests != 0) {
      progress.part_done = static_cast<double>(all.total()) / static_cast<double>(options_.requests);
    }
    if (options_.time_ns != 0) {
      progress.part_done =
          std::max(progress.part_done, static_cast<double>(now_ns - start_ns_) /
                                           static_cast<double>(options_.warmup_ns + options_.time_ns));
    }
    progress.part_done = std::min(progress.part_done, 1.0);
    before_ = std::move(all);
    before_ns_ = now_ns;
    data_before_ = data_requests;
    return progress;
  }

  // ---- After the end.

  LoadReport Report() {
    LoadReport report;
    uint64_t last_ns = start_ns_ + options_.warmup_ns;
    for (auto& thread : threads_) {
      const LoadStats& stats = thread->state.stats;
      for (size_t op = 0; op < kLoadOps; ++op) {
        LoadReport::Operation& operation = report.operations[op];
        operation.latency.Merge(stats.latency[op]);
        operation.errors += stats.errors[op].load();
        operation.unsent += stats.unsent[op];
      }
      report.verified_blocks += stats.verified_blocks.load();
      report.faults += stats.faults.load();
      report.reconnects += thread->state.reconnects;
      report.polls += stats.polls;
      report.idle_polls += stats.idle_polls;
      report.longest_gap_ns = std::max(report.longest_gap_ns, stats.longest_gap_ns);
      if (report.first_error.empty()) report.first_error = stats.first_error;
      if (report.first_fault.empty()) report.first_fault = stats.first_fault;
      last_ns = std::max(last_ns, thread->loaded_ns);
    }
    for (size_t op = 0; op < kLoadOps; ++op) {
      LoadReport::Operation& operation = report.operations[op];
      operation.requests = operation.latency.total() - operation.unsent;
      report.requests += operation.requests;
      report.unsent += operation.unsent;
      report.latency.Merge(operation.latency);
      report.errors += operation.errors;
      if (op <= static_cast<size_t>(LoadOp::kWrite))
        report.data_bytes += operation.requests * options_.block_bytes;
    }
    report.devices = static_cast<uint32_t>(devices_.size());
    for (const LoadDevice& device : devices_) report.disks += static_cast<uint32_t>(device.disks.size());
    report.elapsed_ns = last_ns - start_ns_ - options_.warmup_ns;
    return report;
  }

  using Watched = LoadThread::Watched;
  const std::span<LoadDevice> devices_;
  const LoadOptions options_;
  const LoadEnvironment environment_;
  const TickRate rate_ = TickRate::Measure();
  const MonotonicClock clock_;
  UniqueFd done_fd_;
  std::vector<std::unique_ptr<StampedBlocks>> stamps_;
  // Another one in every run: what the last run wrote is not mistaken for this one's.
  const uint64_t stamp_id_ = Random(clock_.NowNs()).Next();
  std::deque<Watched> watched_;
  std::vector<std::unique_ptr<LoadThread>> threads_;  // ends before what it uses
  size_t next_queue_ = 0;
  uint64_t start_ns_ = 0;
  bool stopped_ = false;
  Status failure_;
  LatencyHistogram before_;  // of the last progress
  uint64_t before_ns_ = 0;
  uint64_t data_before_ = 0;
};

}  // namespace

LoadDevice LoadDevice::Of(BlkDriver& driver, std::string name) {
  LoadDevice device{
      .name = name, .type = DeviceType::kBlk, .driver = &driver, .queues = driver.num_queues(), .disks = {}};
  device.disks.push_back({.name = std::move(name),
                          .bytes = driver.capacity_bytes(),
                          .logical_block_bytes = driver.block_bytes()});
  return device;
}

Result<LoadDevice> LoadDevice::Of(ScsiDriver& driver, std::string name, std::span<const uint8_t> targets) {
  LoadDevice device{.name = name,
                    .type = DeviceType::kScsi,
                    .driver = &driver,
                    .first_ring = wire::kScsiFirstRequestQueue,
                    .queues = driver.request_queues(),
                    .disks = {}};
  for (const uint8_t target : targets) {
    LoadDisk disk{.name = fmt::format("{}, target {}", name, target), .lun = scsi::LunOf(target)};
    auto attentions = driver.ClearUnitAttentions(disk.lun);
    if (!attentions) return Error(attentions.error().code, disk.name + ": " + attentions.error().message);
    Result<ScsiDriver::Capacity> capacity = driver.ReadCapacity(disk.lun);
    if (!capacity) return Error(capacity.error().code, disk.name + ": " + capacity.error().message);
    disk.bytes = capacity->bytes();
    disk.logical_block_bytes = capacity->block_bytes;
    device.disks.push_back(std::move(disk));
  }
  return device;
}

LoadDevice LoadDevice::Of(NvmeTcpDriver& driver, std::string name) {
  LoadDevice device{
      .name = name, .type = DeviceType::kNvme, .nvme = &driver, .queues = driver.num_queues(), .disks = {}};
  const NvmeTcpController::Namespace& disk = driver.disk();
  device.disks.push_back({.name = fmt::format("{}, namespace {}", name, disk.nsid),
                          .bytes = disk.blocks * disk.block_bytes,
                          .logical_block_bytes = disk.block_bytes,
                          .nsid = disk.nsid});
  return device;
}

Result<std::unique_ptr<LoadQueue>> LoadDevice::MakeQueue(const LoadQueue::Setup& setup,
                                                         const LoadOptions& options,
                                                         LoadThreadState& state) const {
  if (nvme != nullptr)
    return LoadQueue::Make(nvme->queue(setup.queue), nvme->memory(), setup, options, state);
  DriverRing& ring = driver->ring(static_cast<uint16_t>(first_ring + setup.queue));
  return LoadQueue::Make(ring, driver->memory(), setup, options, state);
}

int LoadDevice::connection_fd() const {
  return nvme != nullptr ? nvme->admin_socket() : driver->frontend().socket().fd();
}

Result<LoadReport> RunLoad(std::span<LoadDevice> devices, const LoadOptions& options,
                           const LoadEnvironment& environment) {
  return LoadRun(devices, options, environment).Run();
}

Result<LoadReport> RunLoad(BlkDriver& driver, const LoadOptions& options) {
  LoadDevice device = LoadDevice::Of(driver, "disk");
  return RunLoad({&device, 1}, options);
}

}  // namespace cleat::perf
