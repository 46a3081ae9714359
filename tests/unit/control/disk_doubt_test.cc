// SPDX-License-Identifier: Apache-2.0
// What is in doubt of a disk over NVMe-oF, and an operator's word: cleatd's side, with the test as the engine that writes the log.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "control/model/reasons.h"
#include "nvme/host/doubt/doubt_log.h"
#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control::disk_doubt_test {
namespace {

using nvme::host::BlockRange;
using nvme::host::DoubtLog;
using nvme::host::kDoubtLogBytes;
using nvme::host::kDoubtLogShape;

constexpr BlockRange kRange{.first = 8, .blocks = 16};

template <typename T>
v1::Reason ReasonOfResult(const Result<T>& result) {
  return result.ok() ? v1::REASON_UNSPECIFIED : ReasonOf(result.error());
}

class DiskDoubtTest : public ReconcilerRig {
 protected:
  void SetUp() override {
    v1::CreateSubsystemRequest subsystem;
    subsystem.set_subsystem_id("array");
    subsystem.mutable_subsystem()->mutable_spec()->set_nqn("nqn.2014-08.org.example:array");
    subsystem.mutable_subsystem()->mutable_spec()->add_addresses("10.0.0.1");
    ASSERT_TRUE(state_->subsystems().Create(subsystem).ok());
    v1::CreateDiskRequest disk = NullDisk("a");
    v1::NvmeTcpBackend& nvme = *disk.mutable_disk()->mutable_spec()->mutable_nvme_tcp();
    nvme.set_subsystem("subsystems/array");
    nvme.set_namespace_uuid("4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11");
    ASSERT_TRUE(state_->disks().Create(disk).ok());
    const UniqueFd memory = memory_->Share("a");
    ASSERT_TRUE(memory.valid());
    void* const at = mmap(nullptr, kDoubtLogBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    ASSERT_NE(at, MAP_FAILED);
    bytes_ = {static_cast<uint8_t*>(at), kDoubtLogBytes};
  }
  void TearDown() override {
    if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  }

  DoubtLog OpenLog() { return DoubtLog::Open(bytes_, kDoubtLogShape, 7).value(); }
  v1::DiskStatus Status() {
    auto disk = state_->disks().Get(GetDisk("a")).value();
    state_->disk_doubt().AddTo(disk);
    return disk.status();
  }
  auto Confirm(uint64_t number, const std::string& name = "disks/a") {
    v1::ConfirmDeadRequest request;
    request.set_name(name);
    request.set_doubt_number(number);
    return state_->disk_doubt().ConfirmDead(request);
  }

  std::span<uint8_t> bytes_;
};

TEST_F(DiskDoubtTest, IsShownWithItsSizeAndConfirmedByItsNumber) {
  EXPECT_FALSE(Status().has_doubt()) << "no engine has had it";
  EXPECT_TRUE(Confirm(1).ok()) << "nothing is in doubt";
  DoubtLog log = OpenLog();
  EXPECT_FALSE(Status().has_doubt());
  log.Store(std::vector{kRange}, DoubtLog::Number::kNew);
  const v1::DiskStatus status = Status();
  ASSERT_TRUE(status.has_doubt());
  EXPECT_EQ(status.doubt().ranges(), 1U);
  EXPECT_EQ(status.doubt().bytes(), 16 * 512U);
  EXPECT_FALSE(status.doubt().whole_disk());

  EXPECT_EQ(ReasonOfResult(Confirm(status.doubt().number() + 1)), v1::REASON_DOUBT_CHANGED);
  EXPECT_FALSE(log.IsConfirmed());
  const auto confirmed = Confirm(status.doubt().number());
  ASSERT_TRUE(confirmed.ok()) << confirmed.error().message;
  EXPECT_EQ(confirmed->status().doubt().number(), status.doubt().number());
  EXPECT_TRUE(log.IsConfirmed());
}

TEST_F(DiskDoubtTest, OfALostLogIsTheWholeDiskAndNoMore) {
  const auto header = DoubtLog::LostHeader(99);
  std::copy(header.begin(), header.end(), bytes_.begin());
  const v1::DiskStatus status = Status();
  EXPECT_TRUE(status.doubt().whole_disk());
  EXPECT_EQ(status.doubt().bytes(), state_->disks().Get(GetDisk("a"))->spec().size_bytes());
  EXPECT_EQ(status.doubt().number(), 99U);
  EXPECT_TRUE(Confirm(99).ok());
  EXPECT_TRUE(DoubtLog::IsLostAndConfirmed(bytes_));
}

TEST_F(DiskDoubtTest, OfALogThatIsDamagedCannotBeConfirmed) {
  bytes_[0] = 1;
  EXPECT_TRUE(Status().doubt().whole_disk());
  for (const uint64_t number : {0, 1}) EXPECT_EQ(ReasonOfResult(Confirm(number)), v1::REASON_DOUBT_CHANGED);
}

TEST_F(DiskDoubtTest, OfAnotherKindOfDiskIsNone) {
  ASSERT_TRUE(state_->disks().Create(MemoryDisk("m")).ok());
  EXPECT_TRUE(Confirm(1, "disks/m").ok());
  EXPECT_EQ(ReasonOfResult(Confirm(1, "disks/none")), v1::REASON_RESOURCE_NOT_FOUND);
}

TEST_F(DiskDoubtTest, WhoseLogIsElsewhereCannotBeConfirmed) {
  memory_->Drop("a");
  EXPECT_FALSE(Status().has_doubt());
  EXPECT_EQ(ReasonOfResult(Confirm(1)), v1::REASON_MEMORY_NOT_HERE);
}

}  // namespace
}  // namespace cleat::control::disk_doubt_test
