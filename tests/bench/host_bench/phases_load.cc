// SPDX-License-Identifier: Apache-2.0
// A few busy disks among many idle ones, against the same number alone.
#include <fmt/format.h>

#include "base/clock.h"
#include "perf/load/load.h"
#include "phases.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kWarmUpNs = 100 * kNsPerMs;

}  // namespace

Result<std::vector<perf::LoadDevice>> Phases::ActiveDisks(GuestFleet& guests, size_t step) const {
  std::vector<perf::LoadDevice> devices;
  for (size_t i = 0; i < plan_.active; ++i) {
    auto device = guests.DeviceOf(i * step, 0);
    if (!device) return std::move(device).error();
    devices.push_back(std::move(*device));
  }
  return devices;
}

Result<double> Phases::LoadOnce(std::vector<perf::LoadDevice>& devices) {
  perf::LoadOptions options;
  options.depth = plan_.depth;
  options.time_ns = uint64_t{plan_.load_ms} * kNsPerMs;
  options.warmup_ns = kWarmUpNs;
  perf::LoadEnvironment environment;
  environment.cores = {plan_.generator_core};
  environment.stop = &stop_;
  auto report = perf::RunLoad(devices, options, environment);
  if (!report) return std::move(report).error();
  if (stop_.load()) return Error(ErrorCode::kCancelled, "interrupted");
  if (report->errors > 0) return Error(ErrorCode::kInternal, "the load failed: " + report->first_error);
  return report->iops();
}

Status Phases::Active(Populated& crowded) {
  const HostShape alone_shape{.controllers = plan_.active, .targets = 1};
  Say(fmt::format("{} disks alone, on a host beside it", plan_.active));
  auto alone = Populate(alone_shape, plan_.in_flight);
  if (!alone) return std::move(alone).error();
  Say(fmt::format("{} of {} disks are busy, then {} of {}, in turns", plan_.active, plan_.shape.disks(),
                  plan_.active, plan_.active));
  auto among_many = ActiveDisks(*crowded.guests, plan_.shape.controllers / plan_.active);
  if (!among_many) return std::move(among_many).error();
  auto lonely = ActiveDisks(*alone->guests, 1);
  if (!lonely) return std::move(lonely).error();
  std::vector<double> ratios, crowded_kiops, alone_kiops;
  for (uint32_t i = 0; i < plan_.load_pairs; ++i) {
    double iops[2] = {};
    for (const uint32_t turn : {i % 2, 1 - i % 2}) {
      auto rate = LoadOnce(turn == 0 ? *among_many : *lonely);
      if (!rate) return std::move(rate).error();
      iops[turn] = *rate;
    }
    crowded_kiops.push_back(iops[0] / 1000);
    alone_kiops.push_back(iops[1] / 1000);
    ratios.push_back(iops[0] / iops[1]);
  }
  figures_.Add("active_64_of_3072_ratio", "ratio", ratios);
  figures_.Add("active_64_of_3072_kiops", "1000/s", crowded_kiops);
  figures_.Add("active_64_of_64_kiops", "1000/s", alone_kiops);
  return EndHost(*alone);
}

}  // namespace cleat::bench
