// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/ceph_error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace cleat::modules::ceph_error_test {
namespace {

using block::IoStatus;

// A guest acts on these: a full cluster is no broken disk, and who was shut out is to stay out.
TEST(CephError, AnIoKeepsItsMeaning) {
  for (const bool read_only : {false, true}) {
    EXPECT_EQ(StatusOfCeph(-ENOSPC, read_only), IoStatus::kNoSpace);
    EXPECT_EQ(StatusOfCeph(-EDQUOT, read_only), IoStatus::kNoSpace);  // of a pool
    EXPECT_EQ(StatusOfCeph(-ESHUTDOWN, read_only), IoStatus::kFenced);
    EXPECT_EQ(StatusOfCeph(-EOPNOTSUPP, read_only), IoStatus::kUnsupported);
    for (const int unknown : {-EIO, -ENOENT, -ETIMEDOUT, -4095})
      EXPECT_EQ(StatusOfCeph(unknown, read_only), IoStatus::kIoError);
  }
  EXPECT_EQ(StatusOfCeph(-EROFS, true), IoStatus::kReadOnly);
  EXPECT_EQ(StatusOfCeph(-EROFS, false), IoStatus::kReservationConflict);  // a writer without its lock
}

TEST(CephError, AnOperationNamesTheObjectAndTheCause) {
  const Error gone = CephError(-ENOENT, "disks/a: image rbd/a can't be opened");
  EXPECT_EQ(gone.code, ErrorCode::kNotFound);
  EXPECT_EQ(gone.message, "disks/a: image rbd/a can't be opened: No such file or directory");
  const Error refused = CephError(-EACCES, "clusters/c");
  EXPECT_EQ(refused.code, ErrorCode::kPermissionDenied);
  EXPECT_NE(refused.message.find("check the user, its key and its capabilities"), std::string::npos);
  EXPECT_EQ(CephError(-EDQUOT, "x").code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(CephError(-ETIMEDOUT, "x").code, ErrorCode::kUnavailable);
  EXPECT_EQ(CephError(7, "no errno").code, ErrorCode::kIo);
}

}  // namespace
}  // namespace cleat::modules::ceph_error_test
