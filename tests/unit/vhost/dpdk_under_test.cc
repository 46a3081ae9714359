// SPDX-License-Identifier: Apache-2.0
// librte_vhost as the endpoint's tests use it, and what only it can show.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>

#include "host.h"
#include "library_under_test.h"
#include "vhost/library.h"

namespace cleat::vhost::test {
namespace {

struct Started {
  TemporaryDirectory directory;
  std::unique_ptr<VhostLibrary> library;
  bool affinity_kept = false;
  Started() {
    cpu_set_t before;
    cpu_set_t after;
    sched_getaffinity(0, sizeof before, &before);
    auto started = VhostLibrary::Start("test", directory.path());
    sched_getaffinity(0, sizeof after, &after);
    affinity_kept = CPU_EQUAL(&before, &after) != 0;
    CLEAT_CHECK(started.ok());
    library = std::move(started).value();
  }
};

Started& Instance() {
  static Started started;
  return started;
}

}  // namespace

ProtocolLibrary& LibraryUnderTest() {
  return *Instance().library;
}

namespace {

TEST(VhostLibrary, LeavesTheThreadsAffinityAndAPrivateDirectory) {
  EXPECT_TRUE(Instance().affinity_kept);
  struct stat info {};
  const std::string directory = Instance().directory.path() + "/vhost-" + std::to_string(getpid());
  ASSERT_EQ(stat(directory.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700U);
}

TEST(VhostLibrary, ASecondStartIsRefused) {
  Instance();
  TemporaryDirectory directory;
  auto second = VhostLibrary::Start("test", directory.path());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().message, "DPDK can be started only once in a process");
  auto nowhere = VhostLibrary::Start("test", directory.path() + "/no");
  EXPECT_EQ(nowhere.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cleat::vhost::test
