// SPDX-License-Identifier: Apache-2.0
// What a host costs that nobody uses, and how fast it wakes up.
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "phases.h"
#include "process_figures.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kCalmMs = 1500;  // after the last change, until nothing follows from it any more
constexpr uint64_t kAsleepMs = 3;   // a queue is polled 50 us after its last request
constexpr int kAsleepTriesMax = 20'000;
constexpr uint32_t kReadBlocks = 8;  // 4 KiB
constexpr uint64_t kWakeTimeoutNs = 60 * kNsPerSecond;
constexpr uint64_t kStopLookMs = 100;

// Keeps the calling thread on a core while it lives.
class OnCore {
 public:
  explicit OnCore(int core) {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(core), &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  ~OnCore() { sched_setaffinity(0, sizeof before_, &before_); }
  OnCore(const OnCore&) = delete;
  OnCore& operator=(const OnCore&) = delete;

 private:
  cpu_set_t before_{};
};

}  // namespace

Status Phases::Sleep(uint64_t ms) {
  while (ms > 0) {
    if (stop_.load()) return Error(ErrorCode::kCancelled, "interrupted");
    const uint64_t slice_ms = std::min(ms, kStopLookMs);
    poll(nullptr, 0, static_cast<int>(slice_ms));
    ms -= slice_ms;
  }
  return Ok{};
}

Status Phases::Idle(const Populated& made) {
  Say("nobody does anything");
  if (Status status = Sleep(kCalmMs); !status) return status;
  const double disks = plan_.shape.disks();
  const auto kib_a_disk = [&](uint64_t now_bytes, uint64_t then_bytes) {
    return (static_cast<double>(now_bytes) - static_cast<double>(then_bytes)) / 1024 / disks;
  };
  const uint64_t engine_bytes = PrivateDirtyBytes(made.host->engine_pid());
  figures_.Add("idle_disk_kib", "KiB", {kib_a_disk(engine_bytes, made.engine_empty_bytes)});
  figures_.Add("idle_disk_without_guest_kib", "KiB", {kib_a_disk(engine_bytes, made.engine_guests_bytes)});
  figures_.Add("idle_disk_cleatd_kib", "KiB",
               {kib_a_disk(PrivateDirtyBytes(made.host->cleatd_pid()), made.cleatd_empty_bytes)});
  const MonotonicClock clock;
  std::vector<double> engine_percent, cleatd_percent, percent;
  for (uint32_t i = 0; i < plan_.idle_windows; ++i) {
    const uint64_t start_ns = clock.NowNs();
    const uint64_t engine_ns = CpuNs(made.host->engine_pid());
    const uint64_t cleatd_ns = CpuNs(made.host->cleatd_pid());
    if (Status status = Sleep(plan_.idle_window_ms); !status) return status;
    const auto percent_since = [&](pid_t pid, uint64_t before_ns) {
      return 100.0 * static_cast<double>(CpuNs(pid) - before_ns) /
             static_cast<double>(clock.NowNs() - start_ns);
    };
    engine_percent.push_back(percent_since(made.host->engine_pid(), engine_ns));
    cleatd_percent.push_back(percent_since(made.host->cleatd_pid(), cleatd_ns));
    percent.push_back(engine_percent.back() + cleatd_percent.back());
  }
  figures_.Add("idle_3072_cpu_percent", "%", percent);
  figures_.Add("idle_3072_engine_cpu_percent", "%", engine_percent);
  figures_.Add("idle_3072_cleatd_cpu_percent", "%", cleatd_percent);
  return Ok{};
}

Result<double> Phases::WakeOnce(perf::ScsiDriver& driver, uint8_t target, uint64_t buffer_gpa) {
  const MonotonicClock clock;
  const perf::Segment buffer{buffer_gpa, perf::GuestMemory::kPageBytes, true};
  perf::ScsiIo io;
  io.lun = perf::scsi::LunOf(target);
  io.cdb = perf::scsi::Read10(0, kReadBlocks);
  io.in = {&buffer, 1};
  if (!driver.Submit(0, io)) return Error(ErrorCode::kResourceExhausted, "the ring has no room");
  const uint64_t start_ns = clock.NowNs();
  driver.Kick(0);
  std::array<perf::ScsiCompletion, 1> completion;
  while (driver.Poll(0, completion) == 0) {
    if (clock.NowNs() - start_ns > kWakeTimeoutNs)
      return Error(ErrorCode::kDeadlineExceeded, "a sleeping disk was kicked and did not answer");
  }
  const uint64_t end_ns = clock.NowNs();
  if (!completion[0].good()) return Error(ErrorCode::kInternal, "a read failed: " + completion[0].ToString());
  return static_cast<double>(end_ns - start_ns) / kNsPerUs;
}

// One that is asleep: it has to be kicked. A busy machine may take its time until the reactor is.
Result<double> Phases::WakeAsleep(perf::ScsiDriver& driver, uint8_t target, uint64_t buffer_gpa) {
  const perf::DriverRing& ring = driver.ring(perf::wire::kScsiFirstRequestQueue);
  for (int tries = 0; tries < kAsleepTriesMax; ++tries) {
    if (Status status = Sleep(kAsleepMs); !status) return std::move(status).error();
    const uint64_t kicks = ring.stats().kicks;
    auto time_us = WakeOnce(driver, target, buffer_gpa);
    if (!time_us || ring.stats().kicks > kicks) return time_us;
  }
  return Error(ErrorCode::kInternal, fmt::format("a disk was awake after {} ms without a request, {} times",
                                                 kAsleepMs, kAsleepTriesMax));
}

Status Phases::Wake(const Populated& made, const std::string& figure) {
  Say(fmt::format("waking {} disks, one after the other", plan_.wakes));
  // Spinning on the engine's core, this thread would be what a disk waits for.
  const OnCore pinned(plan_.generator_core);
  std::vector<double> times_us;
  for (uint32_t i = 0; i < plan_.wakes; ++i) {
    // Far apart, so that nothing of the one before is of use.
    const size_t guest = (i * size_t{149}) % made.guests->size();
    const auto target = static_cast<uint8_t>(i % plan_.shape.targets);
    perf::ScsiDriver& driver = made.guests->driver(guest);
    if (auto cleared = driver.ClearUnitAttentions(perf::scsi::LunOf(target)); !cleared)
      return std::move(cleared).error();
    auto buffer = driver.memory().Allocate(perf::GuestMemory::kPageBytes, perf::GuestMemory::kPageBytes);
    if (!buffer) return std::move(buffer).error();
    auto time_us = WakeAsleep(driver, target, *buffer);
    if (!time_us) return std::move(time_us).error();
    driver.memory().Free(*buffer, perf::GuestMemory::kPageBytes);
    times_us.push_back(*time_us);
  }
  figures_.Add(figure + "_us_p50", "us", {Percentile(times_us, 0.5)});
  figures_.Add(figure + "_us_p99", "us", {Percentile(times_us, 0.99)});
  return Ok{};
}

// What no engine can be faster than: a thread on its core that sleeps in epoll_wait, woken by an eventfd, writes a word
// that this thread spins on.
Status Phases::BareWake() {
  Say("waking a bare thread, as often");
  const UniqueFd kick(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (!kick || !epoll || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, kick.get(), &event) != 0)
    return ErrnoError(errno, "an eventfd and an epoll descriptor");
  const uint32_t wakes = plan_.wakes;
  std::atomic<uint32_t> seen{0};
  std::thread sleeper([&] {
    const OnCore there(plan_.host.engine_core);
    for (uint32_t i = 1; i <= wakes; ++i) {
      epoll_event ready{};
      uint64_t count = 0;
      while (epoll_wait(epoll.get(), &ready, 1, -1) != 1 || read(kick.get(), &count, sizeof count) < 0) {
      }
      seen.store(i, std::memory_order_release);
    }
  });
  const OnCore here(plan_.generator_core);
  const MonotonicClock clock;
  std::vector<double> times_us;
  for (uint32_t i = 1; i <= wakes; ++i) {
    poll(nullptr, 0, kAsleepMs);
    const uint64_t one = 1;
    const uint64_t start_ns = clock.NowNs();
    if (write(kick.get(), &one, sizeof one) < 0) break;  // can't fail: it is empty
    while (seen.load(std::memory_order_acquire) != i) {
    }
    times_us.push_back(static_cast<double>(clock.NowNs() - start_ns) / kNsPerUs);
  }
  sleeper.join();
  figures_.Add("host_wake_us_p50", "us", {Percentile(times_us, 0.5)});
  return Ok{};
}

// A disk that was used has more: its histograms' pages, for one.
Status Phases::Used(const Populated& made) {
  Say("every disk is read once");
  std::vector<uint8_t> data(kReadBlocks * perf::wire::kSectorBytes);
  for (size_t guest = 0; guest < made.guests->size(); ++guest) {
    if (stop_.load()) return Error(ErrorCode::kCancelled, "interrupted");
    perf::ScsiDriver& driver = made.guests->driver(guest);
    for (uint32_t target = 0; target < plan_.shape.targets; ++target) {
      const perf::scsi::Lun lun = perf::scsi::LunOf(static_cast<uint8_t>(target));
      if (auto cleared = driver.ClearUnitAttentions(lun); !cleared) return std::move(cleared).error();
      auto read = driver.Execute(lun, perf::scsi::Read10(0, kReadBlocks), {}, data);
      if (!read) return std::move(read).error();
      if (!read->good()) return Error(ErrorCode::kInternal, "a read failed: " + read->ToString());
    }
  }
  const double bytes = static_cast<double>(PrivateDirtyBytes(made.host->engine_pid())) -
                       static_cast<double>(made.engine_empty_bytes);
  figures_.Add("idle_used_disk_kib", "KiB", {bytes / 1024 / plan_.shape.disks()});
  return Ok{};
}

}  // namespace cleat::bench
