// SPDX-License-Identifier: Apache-2.0
// Disks over RDMA whose requests are in memory that somebody vouches for: adapters reach it directly, and nobody hears of a request before they do not any more.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/rdma_fabric/rdma_fabric.h"
#include "tests/unit/modules/test_disk.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::test::guest_memory_over_rdma {
namespace {

constexpr uint32_t kIoBytes = 32 * 1024;  // more than a capsule has room for

struct GuestMemoryOverRdma : testing::Test {
  static constexpr uint64_t kBytes = TargetRig::kBytes;

  ~GuestMemoryOverRdma() override {
    rig.reset();
    for (const std::string& wrong : fabric.WhatWasWrong()) ADD_FAILURE() << wrong;
    for (const char* const adapter : {"host0", "host1"}) {
      EXPECT_EQ(fabric.queue_pairs(adapter), 0U) << adapter;
      EXPECT_EQ(fabric.registrations(adapter), 0U) << adapter;
    }
  }
  void Open(uint32_t paths = 1) {
    rig = std::make_unique<TargetRig>(nvmf_target::PortLimits(), paths, nvmf_target::StreamTuning(), &fabric);
    rig->OpenHost();
    ASSERT_EQ(rig->disk->Do(block::Op::kWriteZeroes, 0, kBytes), block::IoStatus::kOk);
    of_ports = fabric.registrations("host0");
  }
  // The first command with a region has it registered; until then its data is copied.
  void UntilRegistered(Arena& arena) {
    ASSERT_EQ(rig->disk->Do(block::Op::kRead, 0, kIoBytes, &arena), block::IoStatus::kOk);
    rig->Until([&] { return fabric.registrations("host0") == of_ports + 1; });
  }
  // Whether a target reaches the arena while it has the request.
  bool IsShown(Arena& arena, block::Op op) {
    rig->storage->holds = true;
    Io io;
    io.segments = {{&arena.region(), 0, kIoBytes}};
    rig->disk->Start(io, op, 0, kIoBytes);
    rig->Until([&] { return !rig->storage->held.empty(); });
    const bool shown = fabric.IsShown({arena.data(), kIoBytes});
    rig->storage->LetGo();
    EXPECT_EQ(rig->disk->Wait(io), block::IoStatus::kOk);
    EXPECT_FALSE(fabric.IsShown({arena.data(), kIoBytes}));
    return shown;
  }

  RdmaFabric fabric;
  std::unique_ptr<TargetRig> rig;
  uint32_t of_ports = 0;  // registrations of the adapter that are not guests'
};

TEST_F(GuestMemoryOverRdma, IsShownToTheTargetWhereItIsVouchedFor) {
  Open();
  Arena arena(kIoBytes, Pages::kPinned);
  UntilRegistered(arena);
  EXPECT_TRUE(IsShown(arena, block::Op::kRead));
  EXPECT_TRUE(IsShown(arena, block::Op::kWrite));
  Arena other(kIoBytes);
  EXPECT_FALSE(IsShown(other, block::Op::kRead));
  EXPECT_FALSE(IsShown(other, block::Op::kWrite));
}

TEST_F(GuestMemoryOverRdma, AgreesWithTheReferenceWhileAdaptersGoAndComeBack) {
  Open(2);
  RandomLoad load(*rig->disk, 5, 0, kBytes, RandomLoad::Discards::kNone, Pages::kPinned);
  for (const std::string adapter : {"host0", "target1", "host1", "target0"}) {
    const std::string end = adapter.substr(0, adapter.size() - 1);
    load.Run(100);
    fabric.RemoveAdapter(adapter);
    rig->Until([&] { return rig->device->paths()->optimized == 1; });
    rig->Until([&] { return rig->device->ConfirmDead().ok(); });
    load.Run(100);
    rig->AddAdapter(fabric, end, adapter.back() - '0');
    rig->Until([&] { return rig->device->paths()->optimized == 2; });
  }
}

TEST_F(GuestMemoryOverRdma, NobodyHearsOfARequestWhoseMemoryItsTargetStillReaches) {
  for (const char* const lost : {"target0", "host0"}) {
    SCOPED_TRACE(lost);
    Open(2);
    constexpr size_t kRequests = 16;
    Arena arena(kRequests * kIoBytes, Pages::kPinned);
    ASSERT_EQ(rig->disk->Do(block::Op::kRead, 0, kIoBytes, &arena), block::IoStatus::kOk);
    ASSERT_EQ(rig->disk->Do(block::Op::kRead, 0, kIoBytes, &arena),
              block::IoStatus::kOk);  // by the other path
    rig->Until(
        [&] { return fabric.registrations("host0") > of_ports && fabric.registrations("host1") > of_ports; });
    rig->storage->holds = true;
    std::vector<std::unique_ptr<Io>> ios;
    size_t done = 0;
    for (size_t i = 0; i < kRequests; ++i) {
      Io& io = *ios.emplace_back(std::make_unique<Io>());
      io.segments = {{&arena.region(), i * kIoBytes, kIoBytes}};
      io.on_done = [&, memory = arena.data() + i * kIoBytes] {
        ++done;
        EXPECT_FALSE(fabric.IsShown({memory, kIoBytes}));
      };
      rig->disk->Start(io, block::Op::kRead, i * kIoBytes, kIoBytes);
    }
    rig->Until([&] { return rig->storage->held.size() == kRequests; });
    rig->storage->holds = false;
    fabric.RemoveAdapter(lost);
    // Requests of the path that is gone are done by the other one.
    rig->Until([&] { return done == kRequests / 2; });
    rig->storage->LetGo();
    for (const auto& io : ios) EXPECT_EQ(rig->disk->Wait(*io), block::IoStatus::kOk);
    rig.reset();
    for (const char* const adapter : {"host0", "host1", "target0", "target1"}) {
      if (adapter != std::string(lost)) fabric.RemoveAdapter(adapter);
    }
  }
}

TEST_F(GuestMemoryOverRdma, IsGivenBackWithItsRegion) {
  Open();
  for (int i = 0; i < 3; ++i) {
    Arena arena(kIoBytes, Pages::kPinned);
    UntilRegistered(arena);
  }
  rig->Until([&] { return fabric.registrations("host0") == of_ports; });
}

TEST_F(GuestMemoryOverRdma, IsRegisteredAnewWithTheAdapterThatComesNext) {
  Open();
  Arena arena(kIoBytes, Pages::kPinned);
  UntilRegistered(arena);
  for (int i = 0; i < 3; ++i) {
    fabric.RemoveAdapter("host0");
    rig->Until([&] { return fabric.devices("host0") == 0; });
    EXPECT_EQ(fabric.registrations("host0"), 0U);
    rig->AddAdapter(fabric, "host", 0);
    rig->Until([&] { return rig->device->paths()->optimized == 1; });
    UntilRegistered(arena);
    EXPECT_TRUE(IsShown(arena, block::Op::kRead));
  }
}

TEST_F(GuestMemoryOverRdma, IsCopiedWhereTheAdapterDoesNotRegisterIt) {
  Open();
  fabric.SetRegionMax("host0", kIoBytes - 1);
  Arena arena(kIoBytes, Pages::kPinned);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(IsShown(arena, block::Op::kRead));
  EXPECT_EQ(fabric.registrations("host0"), of_ports);
  EXPECT_EQ(arena.data()[0], 0) << "as the disk has it";
}

}  // namespace
}  // namespace cleat::test::guest_memory_over_rdma
