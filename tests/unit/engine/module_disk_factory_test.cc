// SPDX-License-Identifier: Apache-2.0
// A description that a layer refuses: the layer below, which was open already, is closed, and the error is told.
#include "engine/module_disk_factory.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "base/clock.h"
#include "modules/fault/fault.h"
#include "reactor/reactor.h"

namespace cleat::engine {
namespace {

using Opened = Result<std::unique_ptr<block::Pipeline>>;

class ModuleDiskFactoryTest : public testing::Test {
 protected:
  Opened Open(const DiskSpec& disk) {
    std::optional<Opened> opened;
    Spawn(OpenInto(disk, &opened));
    while (!opened) reactor_->RunOnce();
    return std::move(*opened);
  }

 private:
  Task<void> OpenInto(const DiskSpec& disk, std::optional<Opened>* opened) {
    auto open = disks_.Open(disk, block::AccessMode::kReadWrite);
    Opened disk_opened = co_await std::move(open);
    if (disk_opened) {
      auto close = disk_opened.value()->Close();
      EXPECT_TRUE(co_await std::move(close));
    }
    *opened = std::move(disk_opened);
  }

  ManualClock clock_;
  std::unique_ptr<Reactor> reactor_ = Reactor::Make(clock_, {}).value();
  BlockingPool blocking_{0};
  MemoryStore memories_;
  modules::UringHub uring_;
  ModuleDiskFactory disks_{memories_, uring_, blocking_};
};

DiskSpec NullDisk() {
  DiskSpec disk;
  disk.name = "disks/null";
  disk.size_bytes = 1 << 20;
  disk.backend = NullBackend{};
  return disk;
}

TEST_F(ModuleDiskFactoryTest, OpensADisk) {
  EXPECT_TRUE(Open(NullDisk()).ok());
  DiskSpec faulty = NullDisk();
  faulty.fault = FaultSpec{1, modules::kFaultDelayNsMax, 1'000'000};
  EXPECT_TRUE(Open(faulty).ok());
}

TEST_F(ModuleDiskFactoryTest, AFaultPlanThatCantBeIsRefused) {
  for (const FaultSpec& fault :
       {FaultSpec{1, modules::kFaultDelayNsMax + 1, 0}, FaultSpec{1, 0, 1'000'001}}) {
    DiskSpec disk = NullDisk();
    disk.fault = fault;
    const Opened opened = Open(disk);
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(opened.error().message.find("disks/null"), std::string::npos);
  }
}

}  // namespace
}  // namespace cleat::engine
