// SPDX-License-Identifier: Apache-2.0
#include "nvme/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

#include "nvme/command.h"
#include "tests/unit/scsi/unit_rig.h"

namespace cleat::nvme::status_test {
namespace {

using block::IoStatus;

constexpr uint16_t kDoNotRetry = 1U << 14;

constexpr Status Of(uint8_t type, uint8_t code, uint16_t more = 0) {
  return Status(static_cast<uint16_t>(type << 8 | code | more));
}

TEST(NvmeStatus, FieldsAreWhereTheKernelPutsThem) {
  const Status status(0x4281);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.type(), 2);
  EXPECT_EQ(status.code(), 0x81);
  EXPECT_TRUE(status.do_not_retry());
  EXPECT_TRUE(Status(0).ok());
  EXPECT_TRUE(Status(0x6000).ok()) << "More and Do Not Retry are no errors";
}

// What a guest's SCSI disk says: "NVM Express: SCSI Translation Reference" 1.5, 7, but for what status.cc makes HARDWARE ERROR.
TEST(NvmeStatus, HasTheSenseOfItsKind) {
  const struct {
    Status status;
    const char* read;
    const char* write;
  } cases[] = {
      {Of(0, 0x01), "5/20/00", "5/20/00"},   {Of(0, 0x06), "4/44/00", "4/44/00"},
      {Of(0, 0x0b), "4/44/00", "4/44/00"},   {Of(0, 0x20), "7/27/00", "7/27/00"},
      {Of(0, 0x80), "5/21/00", "5/21/00"},   {Of(0, 0x81), "7/27/07", "7/27/07"},
      {Of(0, 0x83), "conflict", "conflict"}, {Of(2, 0x80), "3/11/00", "3/0c/00"},
      {Of(2, 0x81), "3/11/00", "3/0c/00"},   {Of(2, 0x82), "3/11/00", "3/0c/00"},
      {Of(3, 0x70), "4/44/00", "4/44/00"},
  };
  for (const auto& expected : cases) {
    scsi::UnitRig rig;
    rig.disk.result = StatusOf(expected.status);
    EXPECT_EQ(rig.Run(scsi::Cdb10(scsi::kRead10, 0, 1), {}, 512), expected.read) << NameOf(expected.status);
    EXPECT_EQ(rig.Run(scsi::Cdb10(scsi::kWrite10, 0, 1), scsi::Filled(512, 1)), expected.write)
        << NameOf(expected.status);
  }
}

TEST(NvmeStatus, EveryOneIsAnErrorWithAName) {
  for (uint16_t field = 1; field < 0x800; ++field) {
    const Status status(field);
    EXPECT_NE(StatusOf(status), IoStatus::kOk);
    EXPECT_NE(StatusOf(status), IoStatus::kAborted) << "never of a request that was begun";
    EXPECT_FALSE(NameOf(status).empty());
  }
  EXPECT_EQ(NameOf(Of(2, 0x81)), "Unrecovered Read Error (2/81h)");
  EXPECT_EQ(NameOf(Of(7, 0x0f)), "status 7/0fh");
  EXPECT_EQ(StatusOf(Of(2, 0xc0)), IoStatus::kIoError) << "a vendor's, of the medium";
  EXPECT_EQ(StatusOf(Of(7, 0x0f)), IoStatus::kHardwareError);
}

TEST(NvmeStatus, IsTriedAgainWhereThatMayHelpAndTheDriveDoesNotSayNo) {
  EXPECT_TRUE(MayRetry(Of(2, 0x81)));
  EXPECT_FALSE(MayRetry(Of(2, 0x81, kDoNotRetry)));
  EXPECT_TRUE(MayRetry(Of(0, 0x07)));
  EXPECT_FALSE(MayRetry(Of(0, 0x02)));
  EXPECT_FALSE(MayRetry(Of(0, 0x80)));
  EXPECT_FALSE(MayRetry(Of(7, 0x0f))) << "nobody knows it";
}

TEST(NvmeStatus, HasRoomBesideErrnos) {
  for (const uint16_t field : {0x281, 0x001, 0x371, 0x7ff}) {
    const auto back = StatusOfErrorNumber(ErrorNumberOf(Status(field)));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(back->type() << 8 | back->code(), field);
    EXPECT_LE(ErrorNumberOf(Status(field)), 0xffff) << "what StorageCell keeps of it";
  }
  EXPECT_EQ(ErrorNumberOf(Of(0, 0x81)), ENOSPC) << "writes may wait for space (block/space_wait.h)";
  for (const int error_number : {0, EIO, ENOSPC, EHWPOISON})
    EXPECT_FALSE(StatusOfErrorNumber(error_number).has_value());
}

// NVM Command Set Specification 1.0: 3.2.4 (Read), 3.2.7 (Write Zeroes).
TEST(NvmeCommand, FieldsAreWhereTheSpecificationPutsThem) {
  const Command read = OnBlocks(Opcode::kRead, 3, 0x123456789a, 8, kForceUnitAccess);
  EXPECT_EQ(read.opcode, 0x02);
  EXPECT_EQ(read.nsid, 3U);
  EXPECT_EQ(read.cdw10, 0x3456789aU);
  EXPECT_EQ(read.cdw11, 0x12U);
  EXPECT_EQ(read.cdw12, 0x40000007U);
  EXPECT_EQ(OnBlocks(Opcode::kWriteZeroes, 1, 0, kBlocksMax, kDeallocate).cdw12, 0x0200ffffU);
  EXPECT_EQ(Deallocate(1).cdw10, 0U) << "one range, written as one less";
  EXPECT_EQ(Deallocate(1).cdw11, 4U);
}

}  // namespace
}  // namespace cleat::nvme::status_test
