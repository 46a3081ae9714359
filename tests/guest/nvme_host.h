// SPDX-License-Identifier: Apache-2.0
// What opens the drives of the guest: see nvme_namespace.cc.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "modules/nvme/nvme.h"
#include "tests/unit/modules/uring_fixture.h"

namespace cleat::modules::nvme_namespace {

using block::AccessMode;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kBytes = 16 * kMiB;  // of each disk

inline std::string PathIn(const char* variable) {
  const char* path = std::getenv(variable);
  if (path == nullptr) ADD_FAILURE() << variable << " names no drive: this runs in the guest of test_nvme.py";
  return path == nullptr ? "" : path;
}

class Host : public test::UringHost {
 public:
  Result<std::unique_ptr<block::Device>> OpenAny(const std::string& path, uint32_t block = 512,
                                                 AccessMode mode = AccessMode::kReadWrite) {
    UringOptions options(block::DiskShape("disks/n", kBytes, block, 4096), path, mode);
    options.lock_wait_ns = lock_wait_ns;
    return Await(OpenFileDisk(std::move(options), hub(), blocking()));
  }
  std::unique_ptr<block::Device> MustOpen(const std::string& path, uint32_t block = 512,
                                          AccessMode mode = AccessMode::kReadWrite) {
    auto opened = OpenAny(path, block, mode);
    if (!opened) ADD_FAILURE() << opened.error().message;
    CLEAT_CHECK(opened.ok());
    return std::move(opened).value();
  }
  // The disk has to use commands, or a test of commands would test nothing.
  std::unique_ptr<test::TestDisk> OpenNamespaceDisk(const std::string& path, uint32_t block = 512) {
    auto device = MustOpen(path, block);
    EXPECT_TRUE(device->io_path().starts_with("NVMe commands (/dev/ng")) << device->io_path();
    return std::make_unique<test::TestDisk>(std::move(device), reactor(), [this] { reactor().RunOnce(); });
  }
  void Close(test::TestDisk& disk) {
    disk.CloseChannel();
    EXPECT_TRUE(Await(disk.pipeline().Close()).ok());
  }

  uint64_t lock_wait_ns = 100 * kNsPerMs;
};

struct Drive {
  const char* variable;
  uint32_t block;
};

}  // namespace cleat::modules::nvme_namespace
