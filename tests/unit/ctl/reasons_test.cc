// SPDX-License-Identifier: Apache-2.0
#include "ctl/reasons.h"

#include <gtest/gtest.h>

#include "google/rpc/error_details.pb.h"

namespace cleat::ctl::reasons_test {
namespace {

TEST(ReasonsTest, EachHasACodeAMeaningAndAnAction) {
  const auto all = AllReasons();
  EXPECT_EQ(all.size(), static_cast<size_t>(v1::Reason_descriptor()->value_count()) - 1);
  for (const ExplainedReason& reason : all) {
    EXPECT_FALSE(reason.info.meaning().empty()) << reason.name;
    EXPECT_FALSE(reason.info.action().empty()) << reason.name;
    bool known = false;
    for (int code = 1; code <= 16; ++code) known = known || CodeName(code) == reason.info.code();
    EXPECT_TRUE(known) << reason.name << " has the code " << reason.info.code();
  }
}

TEST(ReasonsTest, AreFoundAsPeopleWriteThem) {
  for (const char* name : {"DISK_IN_USE", "disk_in_use", "disk-in-use", "REASON_DISK_IN_USE"}) {
    const auto found = FindReason(name);
    ASSERT_EQ(found.size(), 1U) << name;
    EXPECT_EQ(found.front().name, "DISK_IN_USE");
  }
  EXPECT_TRUE(FindReason("DISK").empty());
  EXPECT_TRUE(FindReason("").empty());
  EXPECT_TRUE(FindReason("UNSPECIFIED").empty());
}

TEST(ReasonsTest, OnlyCleatsOwnAreTakenFromAStatus) {
  google::rpc::ErrorInfo info;
  info.set_reason("DISK_IN_USE");
  info.set_domain("elsewhere");
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  EXPECT_EQ(ReasonOf(details), "");
  info.set_domain("cleat");
  details.add_details()->PackFrom(info);
  EXPECT_EQ(ReasonOf(details), "DISK_IN_USE");
  EXPECT_EQ(ReasonOf(DetailsOf(grpc::Status(grpc::StatusCode::ABORTED, "m", details.SerializeAsString()))),
            "DISK_IN_USE");
  EXPECT_EQ(ReasonOf(DetailsOf(grpc::Status(grpc::StatusCode::ABORTED, "m", "\xff garbage"))), "");
}

}  // namespace
}  // namespace cleat::ctl::reasons_test
