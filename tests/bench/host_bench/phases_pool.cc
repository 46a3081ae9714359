// SPDX-License-Identifier: Apache-2.0
// Disks of a pool: how long it takes to make one, and to attach all.
#include <fmt/format.h>

#include "phases.h"

namespace cleat::bench {

// In turns, so that what else runs on the machine meets both.
Status Phases::CreateTimes(ControlPlane& control, const std::string& folder) {
  Say(fmt::format("  {} disks of it, and as many in files, in turns", plan_.creates));
  std::vector<double> pool_ms;
  std::vector<double> file_ms;
  for (uint32_t i = 0; i < plan_.creates; ++i) {
    if (stop_.load()) return Error(ErrorCode::kCancelled, "interrupted");
    CLEAT_ASSIGN(const double in_pool, control.CreateInPool(fmt::format("p{}", i)));
    CLEAT_ASSIGN(const double in_file,
                 control.CreateInFile(fmt::format("f{}", i), fmt::format("{}/f{}.img", folder, i)));
    pool_ms.push_back(in_pool);
    file_ms.push_back(in_file);
  }
  figures_.Add("pool_create_ms_p50", "ms", {Percentile(pool_ms, 0.5)});
  figures_.Add("pool_create_ms_p99", "ms", {Percentile(pool_ms, 0.99)});
  figures_.Add("file_create_ms_p50", "ms", {Percentile(file_ms, 0.5)});
  return Ok{};
}

Status Phases::Pool() {
  HostShape shape = plan_.shape;
  shape.in_pool = true;
  Say(fmt::format("a pool of {} extents on a sparse file: erasing it", shape.disks() + plan_.creates));
  Populated made;
  CLEAT_ASSIGN(made.host, BenchHost::Start(plan_.host));
  ControlPlane control(made.host->address(), stop_);
  Status status = control.WaitForEngine();
  if (status) status = control.CreatePool(made.host->folder() + "/pool.img", shape.disks() + plan_.creates);
  if (status) status = CreateTimes(control, made.host->folder());
  if (status) status = PopulateOn(made, shape, plan_.in_flight);
  if (status) {
    figures_.Add("pool_3072_attach_s", "s", {made.times.all_ready_s});
    figures_.Add("pool_3072_attach_acknowledged_s", "s", {made.times.all_acknowledged_s});
    figures_.Add("pool_3072_attach_call_us_p50", "us", {Percentile(made.times.calls_us, 0.5)});
    figures_.Add("pool_3072_attach_engine_cpu_us", "us", {made.engine_cpu_us});
    figures_.Add("pool_3072_attach_cleatd_cpu_us", "us", {made.cleatd_cpu_us});
  } else {
    fmt::print(stderr, "{}", made.host->LogTails());
  }
  if (Status ended = EndHost(made); status.ok()) status = std::move(ended);
  return status;
}

}  // namespace cleat::bench
