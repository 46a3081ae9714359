// SPDX-License-Identifier: Apache-2.0
// An engine that is told to end while an image of its cluster, which hangs, is being opened. Exit status 3 when the
// pool said that a thread is left behind, 0 when it said that all have ended.
//   rbd_stuck MONITORS KEY IMAGE
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "tests/ceph/ceph_host.h"
#include "tests/ceph/cluster_key.h"

namespace cleat::test {
namespace {

constexpr uint64_t kBytes = 16 << 20;
constexpr uint64_t kEndWaitNs = kNsPerSecond;

int Main(char** argv) {
  auto cluster = std::make_shared<modules::ClusterOptions>();
  cluster->name = "clusters/c";
  cluster->monitors = argv[1];
  cluster->user = "cleat";
  cluster->key = ClusterKeyOf(argv[2]);
  const MonotonicClock clock;
  RunningReactor control(clock, "control");
  std::unique_ptr<modules::ClientPool> pool;
  control.Do([&] { pool = std::make_unique<modules::ClientPool>(*control, "stuck"); });
  const modules::RbdOptions options = CephHost::Options(cluster, argv[3], kBytes);
  auto opening = control.Begin<OpenResult>([&] { return modules::OpenRbd(options, *pool); });
  while (control.Call<uint64_t>([&] { return pool->status().at(0).busy_ns; }) < 100 * kNsPerMs) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const bool ended = control.Await<bool>([&] { return pool->End(kEndWaitNs); });
  control.Do([&] { pool.reset(); });
  _exit(ended ? 0 : 3);
}

}  // namespace
}  // namespace cleat::test

int main(int argc, char** argv) {
  return argc != 4 ? 64 : cleat::test::Main(argv);
}
