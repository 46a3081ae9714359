// SPDX-License-Identifier: Apache-2.0
// Every kind of back end that the protocol has, and those that it will have: what is said of it comes through whole, and it is opened
// or refused by name.
#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <memory_resource>
#include <set>
#include <string>
#include <vector>

#include "base/build_options.h"
#include "engine/protocol/codec_structs.h"
#include "tests/unit/engine/disk_factory_rig.h"

namespace cleat::engine::backends_test {
namespace {

using EveryBackend = DiskFactoryRig;

// As cleatd would send it: with something in each text.
BackendMessage Sample(const std::string& kind) {
  std::map<std::string, std::string> texts;
  for (const std::string& name : BackendMessage::TextsOf(kind)) texts[name] = "a-" + name;
  return BackendMessage(kind, texts);
}

std::vector<uint8_t> Bytes(const PbDisk& disk) {
  std::vector<uint8_t> bytes(cleat__engine__v1__disk__get_packed_size(&disk));
  cleat__engine__v1__disk__pack(&disk, bytes.data());
  return bytes;
}

DiskSpec DiskOf(const std::string& kind) {
  DiskSpec disk;
  disk.name = "disks/a";
  disk.size_bytes = 1 << 20;
  disk.backend = UnpackBackend(disk.name, Sample(kind).disk).value();
  return disk;
}

TEST_F(EveryBackend, ComesThroughWhole) {
  ASSERT_GE(BackendMessage::Kinds().size(), 4U);
  for (const std::string& kind : BackendMessage::Kinds()) {
    SCOPED_TRACE(kind);
    const BackendMessage sample = Sample(kind);
    const auto backend = UnpackBackend("disks/a", sample.disk);
    ASSERT_TRUE(backend.ok()) << backend.error().message;
    std::pmr::monotonic_buffer_resource memory;
    PbDisk again = CLEAT__ENGINE__V1__DISK__INIT;
    PackBackend(*backend, again, memory);
    EXPECT_EQ(again.backend_case, sample.disk.backend_case);
    const auto unpacked = UnpackBackend("disks/a", again);
    ASSERT_TRUE(unpacked.ok());
    EXPECT_TRUE(*unpacked == *backend);
    // Fields that are zero may be said or left out, but none is lost: what is packed once is packed so again.
    PbDisk third = CLEAT__ENGINE__V1__DISK__INIT;
    PackBackend(*unpacked, third, memory);
    EXPECT_EQ(Bytes(again), Bytes(third));
    EXPECT_GE(Bytes(again).size(), Bytes(sample.disk).size());
  }
}

TEST_F(EveryBackend, IsAnotherStorageThanThatOfOtherKinds) {
  for (const std::string& kind : BackendMessage::Kinds()) {
    for (const std::string& other : BackendMessage::Kinds()) {
      EXPECT_EQ(DiskOf(kind).backend == DiskOf(other).backend, kind == other) << kind << " and " << other;
    }
  }
}

// Files, clusters and kept memory are not there: these are refused by the disk's name. What needs nothing does I/O.
TEST_F(EveryBackend, IsOpenedOrRefusedByName) {
  std::set<std::string> used;
  for (const std::string& kind : BackendMessage::Kinds()) {
    SCOPED_TRACE(kind);
    const DiskSpec disk = DiskOf(kind);
    const auto opened = Open(disk);
    if (opened.ok()) {
      EXPECT_TRUE(OpenAndUse(disk));
      used.insert(kind);
    } else {
      EXPECT_TRUE(opened.error().message.starts_with(disk.name)) << opened.error().message;
    }
  }
  EXPECT_TRUE(used.contains("null"));
  EXPECT_EQ(used.contains("example"), kExampleDisks);
}

TEST_F(EveryBackend, ThatTheBuildDoesNotHaveIsUnimplemented) {
  const auto opened = Open(DiskOf("example"));
  ASSERT_EQ(opened.ok(), kExampleDisks);
  if (kExampleDisks) return;
  EXPECT_EQ(opened.error().code, ErrorCode::kUnimplemented);
  EXPECT_NE(opened.error().message.find("CLEAT_EXAMPLE=OFF"), std::string::npos) << opened.error().message;
}

TEST(BackendDefault, IsANullDisk) {
  EXPECT_TRUE(Backend() == DiskOf("null").backend);
  EXPECT_FALSE(Backend() == DiskOf("memory").backend);
}

}  // namespace
}  // namespace cleat::engine::backends_test
