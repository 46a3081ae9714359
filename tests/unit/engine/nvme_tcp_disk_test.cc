// SPDX-License-Identifier: Apache-2.0
// A disk over NVMe/TCP as the engine opens it, against a target: what cleatd says of reservations is what the target sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "engine/protocol/codec_structs.h"
#include "nvme/fabrics/names.h"
#include "nvme/host/reservation/reservation.h"
#include "tests/unit/engine/disk_factory_rig.h"
#include "tests/unit/modules/nvmf_log_file.h"
#include "tests/unit/modules/nvmf_target.h"

namespace cleat::engine::nvme_tcp_disk_test {
namespace {

using nvme::host::reservation_test::ReservationTarget;
using test::NvmfTarget;

constexpr uint64_t kFamily = 0xfedc'ba98'7654'3210;

NvmfTarget::Options WithReservations() {
  NvmfTarget::Options options;
  options.reservations = true;
  return options;
}

class NvmeTcpDisk : public DiskFactoryRig {
 protected:
  // The namespace of target_, with a log that is kept.
  DiskSpec Disk(uint64_t family) {
    const BackendMessage message("nvme_tcp",
                                 {{"subsystem", "subsystems/a"},
                                  {"nqn", NvmfTarget::kSubsystem},
                                  {"host_nqn", "nqn.2014-08.org.example:host"},
                                  {"host_id", "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11"},
                                  {"namespace_uuid", nvme::fabrics::TextOfUuid(NvmfTarget::kUuid)}});
    Cleat__Engine__V1__NvmeTcpBackend& nvme = *message.disk.nvme_tcp;
    std::string address = "127.0.0.1:" + std::to_string(target_.port());
    std::array<char*, 1> addresses{address.data()};
    nvme.n_addresses = addresses.size();
    nvme.addresses = addresses.data();
    CLEAT_PB_SET(nvme, keep_alive_ms, 5000);
    if (family != 0) CLEAT_PB_SET(nvme, reservation_family, family);
    DiskSpec disk;
    disk.name = "disks/a";
    disk.size_bytes = 1 << 20;
    disk.backend = UnpackBackend(disk.name, message.disk).value();
    EXPECT_TRUE(memories_
                    .Keep({.disk = disk.name, .size_bytes = nvme::host::kDoubtLogBytes, .fixed = true},
                          log_.Duplicate())
                    .ok());
    return disk;
  }
  // How many hosts have been registrants.
  std::pair<size_t, size_t> CameIn() {
    std::pair<size_t, size_t> of_family_and_all;
    target_.Reservations([&](const ReservationTarget& reservations) {
      of_family_and_all.second = reservations.came_in.size();
      of_family_and_all.first = static_cast<size_t>(std::count_if(
          reservations.came_in.begin(), reservations.came_in.end(),
          [](const auto& host) { return nvme::host::LifeOf(host.first, kFamily).has_value(); }));
    });
    return of_family_and_all;
  }

  NvmfTarget target_{WithReservations()};
  test::LogFile log_;
};

TEST_F(NvmeTcpDisk, TakesPartInReservationsAsTheHostThatItIsTold) {
  const auto opened = Open(Disk(kFamily), block::AccessMode::kReadWrite, /*acquires=*/true);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(CameIn(), std::pair(size_t{1}, size_t{1}));
}

TEST_F(NvmeTcpDisk, TakesPartInNoneWithoutAWord) {
  const auto opened = Open(Disk(0), block::AccessMode::kReadWrite, /*acquires=*/true);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(CameIn(), std::pair(size_t{0}, size_t{0}));
}

TEST_F(NvmeTcpDisk, ThatOnlyReadsTakesPartInNone) {
  const auto opened = Open(Disk(kFamily), block::AccessMode::kReadOnly, /*acquires=*/true);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_EQ(CameIn(), std::pair(size_t{0}, size_t{0}));
}

}  // namespace
}  // namespace cleat::engine::nvme_tcp_disk_test
