// SPDX-License-Identifier: Apache-2.0
// An engine to be killed while it makes an image larger that it does not own. Says where it stands, and stays there.
//   rbd_grower MONITORS KEY IMAGE BYTES locked|grown|over
// locked: librbd is about to be asked for the resize; grown: it has done it; over: so has the device.
#include <dlfcn.h>
#include <rbd/librbd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "base/log.h"
#include "tests/ceph/ceph_host.h"
#include "tests/ceph/cluster_key.h"

namespace cleat::test {
namespace {

std::string_view stays_at;

void StayAt(std::string_view step) {
  if (step != stays_at) return;
  std::printf("%s\n", step.data());
  std::fflush(stdout);
  for (;;) pause();
}

int Main(char** argv) {
  spdlog::set_level(spdlog::level::off);  // its output is read
  stays_at = argv[5];
  auto cluster = std::make_shared<modules::ClusterOptions>();
  cluster->name = "clusters/c";
  cluster->monitors = argv[1];
  cluster->user = "cleat";
  cluster->key = ClusterKeyOf(argv[2]);
  CephHost host("doomed");
  const uint64_t bytes = std::strtoull(argv[4], nullptr, 10);
  auto opened = host.Open(CephHost::Options(cluster, argv[3], bytes));
  if (!opened) _exit(1);
  const Status grown = host.control().Await<Status>([&] { return (*opened)->Resize(2 * bytes); });
  if (!grown) _exit(2);
  StayAt("over");
  _exit(3);
}

}  // namespace
}  // namespace cleat::test

// Before librbd's own, for the module in this program.
extern "C" int rbd_resize2(rbd_image_t image, uint64_t size, bool allow_shrink, librbd_progress_fn_t progress,
                           void* argument) {
  static const auto real = reinterpret_cast<decltype(&rbd_resize2)>(dlsym(RTLD_NEXT, "rbd_resize2"));
  cleat::test::StayAt("locked");
  const int result = real(image, size, allow_shrink, progress, argument);
  cleat::test::StayAt("grown");
  return result;
}

int main(int argc, char** argv) {
  return argc != 6 ? 64 : cleat::test::Main(argv);
}
