// SPDX-License-Identifier: Apache-2.0
// Making hosts, and attaching. What is measured on them afterwards is in phases_idle.cc and phases_load.cc.
#include "phases.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <numeric>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "process_figures.h"

namespace cleat::bench {
namespace {

double Mean(const std::vector<double>& values, size_t first, size_t count) {
  const auto begin = values.begin() + static_cast<ptrdiff_t>(first);
  return std::accumulate(begin, begin + static_cast<ptrdiff_t>(count), 0.0) / static_cast<double>(count);
}

double LastOverFirst(const std::vector<double>& values) {
  const size_t tenth = values.size() / 10;
  return Mean(values, values.size() - tenth, tenth) / Mean(values, 0, tenth);
}

}  // namespace

void Phases::Say(const std::string& what) const {
  fmt::print("{}\n", what);
  std::fflush(stdout);
}

Status Phases::Run() {
  if (Status status = Disk(); !status) return status;
  if (plan_.serial) {
    CLEAT_TRY(SlowStore());
  }
  if (plan_.serial) {
    if (Status status = Serial(); !status) return status;
  }
  if (plan_.pool) CLEAT_TRY(Pool());
  if (!plan_.parallel) return Ok{};
  Populated crowded;
  Status status = Parallel(&crowded);
  if (status) status = Active(crowded);
  if (!status && crowded.host != nullptr) fmt::print(stderr, "{}", crowded.host->LogTails());
  if (Status ended = EndHost(crowded); status.ok()) status = std::move(ended);
  return status;
}

Status Phases::EndHost(Populated& made) {
  Status ended = made.host != nullptr ? made.host->End() : Status(Ok{});
  made.host.reset();
  made.guests.reset();
  return ended;
}

// What a durable answer can't be faster than: a page that is appended and synced, where the stores are.
Status Phases::Disk() {
  constexpr int kWrites = 200;
  Say(fmt::format("the file system below {}: {} synced writes of 4 KiB", plan_.host.parent_dir, kWrites));
  std::string path = plan_.host.parent_dir + "/cleat-host-bench-disk-XXXXXX";
  const UniqueFd fd(mkostemp(path.data(), O_CLOEXEC));
  if (!fd) return ErrnoError(errno, path);
  unlink(path.c_str());
  const MonotonicClock clock;
  const std::vector<char> page(4096, 'x');
  std::vector<double> times_us;
  for (int i = 0; i < kWrites; ++i) {
    const uint64_t start_ns = clock.NowNs();
    if (write(fd.get(), page.data(), page.size()) < 0 || fdatasync(fd.get()) != 0)
      return ErrnoError(errno, path);
    times_us.push_back(static_cast<double>(clock.NowNs() - start_ns) / kNsPerUs);
  }
  figures_.Add("host_fdatasync_us_p50", "us", {Percentile(times_us, 0.5)});
  return Ok{};
}

Result<Populated> Phases::Populate(const HostShape& shape, uint32_t in_flight) {
  Populated made;
  Status status = PopulateOn(made, shape, in_flight);
  if (status) return made;
  if (made.host != nullptr) fmt::print(stderr, "{}", made.host->LogTails());
  return std::move(status).error();
}

Status Phases::PopulateOn(Populated& made, const HostShape& shape, uint32_t in_flight) {
  const MonotonicClock clock;
  if (made.host == nullptr) {
    CLEAT_ASSIGN(made.host, BenchHost::Start(plan_.host));
  }
  ControlPlane control(made.host->address(), stop_);
  if (Status status = control.WaitForEngine(); !status) return status;
  made.engine_empty_bytes = PrivateDirtyBytes(made.host->engine_pid());
  made.cleatd_empty_bytes = PrivateDirtyBytes(made.host->cleatd_pid());
  std::vector<std::string> sockets;
  for (uint32_t c = 0; c < shape.controllers; ++c) sockets.push_back(made.host->SocketOf(ControllerId(c)));
  auto guests = GuestFleet::Listen(sockets);
  if (!guests) return std::move(guests).error();
  made.guests = std::move(*guests);
  Say(fmt::format("  {} controllers, each with a guest", shape.controllers));
  const uint64_t start_ns = clock.NowNs();
  const auto socket_of = [&](const std::string& id) { return made.host->SocketOf(id); };
  if (Status status = control.CreateControllers(shape, socket_of); !status) return status;
  if (Status status = made.guests->Open(stop_); !status) return status;
  made.handshakes_s = static_cast<double>(clock.NowNs() - start_ns) / kNsPerSecond;
  made.engine_guests_bytes = PrivateDirtyBytes(made.host->engine_pid());
  Say(fmt::format("  {} disks", shape.disks()));
  if (Status status = control.CreateDisks(shape); !status) return status;
  Say(fmt::format("  attaching them, {} at a time", in_flight));
  const uint64_t engine_ns = CpuNs(made.host->engine_pid());
  const uint64_t cleatd_ns = CpuNs(made.host->cleatd_pid());
  auto times = control.Attach(shape, in_flight);
  if (!times) return std::move(times).error();
  const double disks_us = 1000.0 * shape.disks();
  made.engine_cpu_us = static_cast<double>(CpuNs(made.host->engine_pid()) - engine_ns) / disks_us;
  made.cleatd_cpu_us = static_cast<double>(CpuNs(made.host->cleatd_pid()) - cleatd_ns) / disks_us;
  made.times = std::move(*times);
  return Ok{};
}

Status Phases::Serial() {
  Say("one call at a time");
  auto made = Populate(plan_.shape, 1);
  if (!made) return std::move(made).error();
  const AttachTimes& times = made->times;
  figures_.Add("attach_3072_serial_s", "s", {times.all_ready_s});
  figures_.Add("attach_3072_serial_call_us_p50", "us", {Percentile(times.calls_us, 0.5)});
  figures_.Add("attach_3072_serial_call_us_p99", "us", {Percentile(times.calls_us, 0.99)});
  figures_.Add("attach_3072_last_over_first_ratio", "ratio", {LastOverFirst(times.calls_us)});
  figures_.Add("attach_3072_serial_engine_cpu_us", "us", {made->engine_cpu_us});
  figures_.Add("attach_3072_serial_cleatd_cpu_us", "us", {made->cleatd_cpu_us});
  figures_.Add("connect_384_s", "s", {made->handshakes_s});
  Status status = Idle(*made);
  // A disk's first request ever touches memory that was never touched: that is another question.
  if (status) status = Wake(*made, "first_wake");
  if (status) status = Used(*made);
  if (status) status = Wake(*made, "idle_wake");
  if (status) status = BareWake();
  if (!status) fmt::print(stderr, "{}", made->host->LogTails());
  if (Status ended = EndHost(*made); status.ok()) status = std::move(ended);
  return status;
}

Status Phases::Parallel(Populated* crowded) {
  Say("many calls at once");
  auto made = Populate(plan_.shape, plan_.in_flight);
  if (!made) return std::move(made).error();
  *crowded = std::move(*made);
  figures_.Add("attach_3072_parallel_s", "s", {crowded->times.all_ready_s});
  figures_.Add("attach_3072_parallel_acknowledged_s", "s", {crowded->times.all_acknowledged_s});
  figures_.Add("attach_3072_parallel_call_us_p50", "us", {Percentile(crowded->times.calls_us, 0.5)});
  figures_.Add("attach_3072_parallel_last_over_first_ratio", "ratio",
               {LastOverFirst(crowded->times.calls_us)});
  figures_.Add("attach_3072_parallel_engine_cpu_us", "us", {crowded->engine_cpu_us});
  figures_.Add("attach_3072_parallel_cleatd_cpu_us", "us", {crowded->cleatd_cpu_us});
  return Ok{};
}

}  // namespace cleat::bench
