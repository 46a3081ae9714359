// SPDX-License-Identifier: Apache-2.0
// A disk that takes part in its namespace's reservation, against a target in memory that has one: what tests of it share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "modules/nvmf/disk/nvmf_disk.h"
#include "tests/unit/modules/nvmf_log_file.h"
#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::test {

inline constexpr uint64_t kFamily = 0x1111'2222'3333'4444;
inline constexpr uint64_t kOtherFamily = 0x5555'6666'7777'8888;

inline NvmfTarget::Options WithReservations() {
  NvmfTarget::Options options;
  options.reservations = true;
  return options;
}

class NvmfReservationRig : public testing::Test {
 protected:
  NvmfReservationRig() { rig_.subsystem.proofs.preempted = true; }

  modules::NvmfOptions Options(uint64_t family = kFamily) {
    modules::NvmfOptions options = rig_.Options();
    options.reservation_family = family;
    return options;
  }
  void Open(uint64_t family = kFamily) {
    rig_.Open(Options(family));
    ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  }
  modules::NvmfOptions OptionsWith(const LogFile& log) {
    modules::NvmfOptions options = Options();
    options.doubt_log = log.Duplicate();
    return options;
  }
  void OpenWith(const LogFile& log) {
    rig_.Open(OptionsWith(log));
    ASSERT_TRUE(rig_.Await(rig_.pipeline->Acquire()).ok());
  }
  // Another engine, or another host, that opens the disk and takes it.
  std::unique_ptr<block::Pipeline> OpenOther(modules::NvmfOptions options) {
    auto opened = rig_.TryOpen(std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return block::Pipeline::Make(std::move(opened).value(), block::AccessMode::kReadWrite).value();
  }
  Status TryTake(modules::NvmfOptions options) {
    const auto other = OpenOther(std::move(options));
    Status acquired = rig_.Await(other->Acquire());
    EXPECT_TRUE(rig_.Await(other->Close()).ok());
    return acquired;
  }
  void Write(block::Pipeline& pipeline, uint8_t seed) {
    TestDisk disk(pipeline, *rig_.io[0], [this] { rig_.Turn(); });
    OneWrite write(0, 4096, seed);
    write.Start(disk);
    EXPECT_EQ(disk.Wait(write.io), block::IoStatus::kOk);
  }
  // As an engine does that is told to detach the disk, or ends while it has it.
  void Part(block::Device::Parting parting) {
    rig_.device->SetParting(parting);
    ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
    rig_.Close();
  }
  void HandOver() {
    rig_.device->SetParting(block::Device::Parting::kToOtherHost);
    ASSERT_TRUE(rig_.Await(rig_.pipeline->Release()).ok());
    rig_.device->SetParting(block::Device::Parting::kToNextEngine);
  }
  void Detach() { Part(block::Device::Parting::kDetached); }
  // The hosts that are registered, of the family.
  size_t Registered(uint64_t family = kFamily) {
    size_t count = 0;
    rig_.target.Reservations([&](const nvme::host::reservation_test::ReservationTarget& reservations) {
      count = static_cast<size_t>(std::count_if(
          reservations.registrants.begin(), reservations.registrants.end(),
          [&](const auto& host) { return nvme::host::LifeOf(host.host_id, family).has_value(); }));
    });
    return count;
  }
  // Those of the family that are registered.
  std::vector<nvme::host::LifeId> Lives() {
    std::vector<nvme::host::LifeId> lives;
    rig_.target.Reservations([&](const nvme::host::reservation_test::ReservationTarget& reservations) {
      for (const auto& host : reservations.registrants) {
        if (const auto life = nvme::host::LifeOf(host.host_id, kFamily)) lives.push_back(*life);
      }
    });
    return lives;
  }
  // A write that the target has, and does not answer, as its path breaks.
  void LeaveInDoubt(TestDisk& disk, OneWrite& write) {
    rig_.target.faults.mute_writes = true;
    const uint32_t before = rig_.target.counts.muted;
    write.Start(disk);
    rig_.Until([&] { return rig_.target.counts.muted > before; });
    rig_.target.faults.mute_writes = false;
    rig_.target.CutAll();
  }

  NvmfRig rig_{WithReservations()};
};

}  // namespace cleat::test
