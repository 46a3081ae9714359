// SPDX-License-Identifier: Apache-2.0
// An engine to be killed: owns images, writes to all of them without end and says so. Ends when it is shut out.
//   rbd_writer MONITORS KEY IMAGE...
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/ceph/ceph_host.h"
#include "tests/ceph/cluster_key.h"

namespace cleat::test {
namespace {

constexpr uint64_t kBytes = 4 << 20;
constexpr uint64_t kWriteBytes = 4096;

void Say(const char* word) {
  std::printf("%s\n", word);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::off);  // its output is read
  auto cluster = std::make_shared<modules::ClusterOptions>();
  cluster->name = "clusters/c";
  cluster->monitors = argv[1];
  cluster->user = "cleat";
  cluster->key = ClusterKeyOf(argv[2]);
  CephHost host("doomed");
  std::vector<std::unique_ptr<HostDisk>> disks;
  for (int i = 3; i < argc; ++i) {
    disks.push_back(host.OpenDisk(CephHost::Options(cluster, argv[i], kBytes)));
    if (disks.back() == nullptr) _exit(1);
  }
  Say("owner");
  Arena arena(kWriteBytes);
  for (uint64_t round = 0;; ++round) {
    for (const auto& disk : disks) {
      const block::IoStatus status =
          disk->Do(block::Op::kWrite, round * kWriteBytes % kBytes, kWriteBytes, &arena);
      if (status == block::IoStatus::kOk) continue;
      Say(status == block::IoStatus::kFenced ? "fenced" : block::IoStatusName(status));
      _exit(2);
    }
    if (round % 16 == 0) Say("wrote");
  }
}

}  // namespace
}  // namespace cleat::test

int main(int argc, char** argv) {
  return argc < 4 ? 64 : cleat::test::Main(argc, argv);
}
