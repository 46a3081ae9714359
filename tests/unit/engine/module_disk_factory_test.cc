// SPDX-License-Identifier: Apache-2.0
// A description that a layer refuses: the layer below, which was open already, is closed, and the error is told.
#include "engine/disks/module_disk_factory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/protocol/codec_structs.h"
#include "keys/kek_file.h"
#include "modules/fault/fault.h"
#include "tests/unit/engine/disk_factory_rig.h"

namespace cleat::engine::module_disk_factory_test {
namespace {

using ModuleDiskFactoryTest = DiskFactoryRig;

DiskSpec NullDisk() {
  DiskSpec disk;
  disk.name = "disks/null";
  disk.size_bytes = 1 << 20;
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

// An encrypted disk whose key can be unwrapped here is opened; any other is refused with what is wrong.
TEST_F(ModuleDiskFactoryTest, AnEncryptedDiskTakesItsKey) {
  const std::string folder = testing::TempDir() + "/factory-" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  const auto kek = keys::LoadOrMakeKekFile(folder + "/kek").value();
  std::vector<uint8_t> bytes(64);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i);
  DiskSpec disk = NullDisk();
  disk.encryption =
      EncryptionSpec{keys::Cipher::kAes256Xts, 512, kek.id(), kek.Wrap(keys::Secret::Copy(bytes)).value()};
  const Opened keyless = Open(disk);
  ASSERT_FALSE(keyless.ok());
  EXPECT_EQ(keyless.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(keyless.error().message.find(kek.id()), std::string::npos) << keyless.error().message;

  ASSERT_TRUE(keyring_.SetFiles({folder + "/kek"}));
  EXPECT_TRUE(Open(disk).ok());
  DiskSpec units = disk;
  units.encryption->data_unit_bytes = 4096;
  EXPECT_EQ(Open(units).error().code, ErrorCode::kInvalidArgument);
  DiskSpec length = disk;
  length.encryption->cipher = keys::Cipher::kAes128Xts;
  EXPECT_EQ(Open(length).error().code, ErrorCode::kInvalidArgument);
  DiskSpec damaged = disk;
  damaged.encryption->wrapped_key[9] ^= 1;
  EXPECT_EQ(Open(damaged).error().code, ErrorCode::kDataLoss);
  std::filesystem::remove_all(folder);
}

// In a build with Ceph and in one without.
TEST_F(ModuleDiskFactoryTest, ADiskInACephClusterThatCantBeHadIsRefusedByName) {
  DiskSpec disk = NullDisk();
  BackendMessage image("rbd", {{"cluster", "clusters/none"}, {"pool", "vms"}, {"image", "a"}});
  disk.backend = UnpackBackend(disk.name, image.disk).value();
  const Opened opened = Open(disk);
  ASSERT_FALSE(opened.ok());
  const std::string& message = opened.error().message;
  EXPECT_TRUE(message.starts_with(disk.name)) << message;
  const bool built_without = opened.error().code == ErrorCode::kUnimplemented;
  EXPECT_NE(message.find(built_without ? "built without Ceph" : "clusters/none is not known"),
            std::string::npos)
      << message;
}

TEST_F(ModuleDiskFactoryTest, LimitsThatCantBeAreRefused) {
  DiskSpec disk = NullDisk();
  disk.limits.limits[qos::Meter::kIops].per_second = ~uint64_t{0};
  EXPECT_EQ(Open(disk).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cleat::engine::module_disk_factory_test
