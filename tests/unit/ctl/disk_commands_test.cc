// SPDX-License-Identifier: Apache-2.0
// Command lines for disks (run_fixture.h): what cleatd is asked, and what is printed of its answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ctl/app.h"
#include "fake_cleatd.h"
#include "run_fixture.h"

namespace cleat::ctl::disk_commands_test {
namespace {

using fake_cleatd::Refusal;
using run_fixture::Outcome;
using ::testing::HasSubstr;

class DiskCommands : public run_fixture::RunTest {};

TEST_F(DiskCommands, LabelsAreMergedAndWrittenAgainWhenSomebodyElseWasFaster) {
  int reads = 0;
  cleatd_.get_disk = [&](const v1::GetDiskRequest& request, v1::Disk& disk) {
    disk.set_name(request.name());
    disk.set_etag("e" + std::to_string(++reads));
    (*disk.mutable_labels())["kept"] = "k";
    (*disk.mutable_labels())["old"] = "o";
    return grpc::Status::OK;
  };
  std::vector<v1::UpdateDiskRequest> updates;
  cleatd_.update_disk = [&](const v1::UpdateDiskRequest& request, v1::Disk& disk) {
    updates.push_back(request);
    disk = request.disk();
    return updates.size() > 1 ? grpc::Status::OK
                              : Refusal(grpc::StatusCode::ABORTED, "ETAG_MISMATCH", "changed since");
  };
  const Outcome outcome = Ctl({"disk", "update", "a", "--label", "new=n=m", "--remove-label", "old"});
  EXPECT_EQ(outcome.code, kOk) << outcome.err;
  ASSERT_EQ(updates.size(), 2U);
  EXPECT_EQ(updates[1].disk().etag(), "e2");
  EXPECT_EQ(updates[1].disk().labels().size(), 2U);
  EXPECT_EQ(updates[1].disk().labels().at("new"), "n=m");
  EXPECT_EQ(updates[1].update_mask().paths(0), "labels");

  updates.clear();
  EXPECT_EQ(Ctl({"disk", "update", "a", "--label", "x=y", "--etag", "e0"}).code, kFailed);
  EXPECT_EQ(updates.size(), 1U);
  EXPECT_EQ(updates[0].disk().etag(), "e0");
  EXPECT_EQ(Ctl({"disk", "update", "a"}).code, kUsage);
}

TEST_F(DiskCommands, ConfirmDeadSaysWhatItIsAboutAndNamesItsNumber) {
  bool in_doubt = true;
  cleatd_.get_disk = [&](const v1::GetDiskRequest& request, v1::Disk& disk) {
    disk.set_name(request.name());
    if (!in_doubt) return grpc::Status::OK;
    v1::DiskDoubt& doubt = *disk.mutable_status()->mutable_doubt();
    doubt.set_number(7);
    doubt.set_ranges(2);
    doubt.set_bytes(8192);
    return grpc::Status::OK;
  };
  std::vector<v1::ConfirmDeadRequest> confirmed;
  cleatd_.confirm_dead = [&](const v1::ConfirmDeadRequest& request, v1::Disk& disk) {
    confirmed.push_back(request);
    disk.set_name(request.name());
    return grpc::Status::OK;
  };
  const Outcome asked = Ctl({"disk", "confirm-dead", "a"});
  EXPECT_EQ(asked.code, kUsage) << "nobody is at a terminal";
  EXPECT_THAT(asked.err, HasSubstr("disks/a: in doubt: 2 ranges, 8192 bytes (number 7)"));
  EXPECT_TRUE(confirmed.empty());
  EXPECT_EQ(Ctl({"disk", "confirm-dead", "a", "--yes"}).code, kOk);
  EXPECT_EQ(Ctl({"disk", "confirm-dead", "a", "--doubt", "5"}).code, kOk);
  ASSERT_EQ(confirmed.size(), 2U);
  EXPECT_EQ(confirmed[0].name(), "disks/a");
  EXPECT_EQ(confirmed[0].doubt_number(), 7U);
  EXPECT_EQ(confirmed[1].doubt_number(), 5U);
  EXPECT_THAT(Ctl({"disk", "get", "a"}).out, HasSubstr("8192 bytes, number 7"));

  in_doubt = false;
  const Outcome nothing = Ctl({"disk", "confirm-dead", "a", "--yes"});
  EXPECT_EQ(nothing.code, kOk);
  EXPECT_THAT(nothing.err, HasSubstr("nothing is in doubt"));
  ASSERT_EQ(confirmed.size(), 3U) << "cleatd may know better";
  EXPECT_EQ(confirmed[2].doubt_number(), 0U);
}

TEST_F(DiskCommands, ResizeAsksForTheSizeAlone) {
  cleatd_.update_disk = [&](const v1::UpdateDiskRequest& request, v1::Disk& disk) {
    EXPECT_EQ(request.update_mask().paths_size(), 1);
    EXPECT_EQ(request.update_mask().paths(0), "spec.size_bytes");
    disk = request.disk();
    return grpc::Status::OK;
  };
  const Outcome outcome = Ctl({"disk", "resize", "a", "20G"});
  EXPECT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("20 GiB"));
}

TEST_F(DiskCommands, ADiskOfAPoolSaysWhichExtentsItHas) {
  cleatd_.get_disk = [](const v1::GetDiskRequest& request, v1::Disk& disk) {
    disk.set_name(request.name());
    v1::PoolBackend& pool = *disk.mutable_spec()->mutable_pool();
    pool.set_pool("pools/nvme0");
    for (uint32_t i = 0; i < 20; ++i) {
      v1::ExtentRun& run = *pool.add_extents();
      run.set_first(100 * i);
      run.set_count(i == 0 ? 32 : 1);
    }
    return grpc::Status::OK;
  };
  const std::string out = Ctl({"disk", "get", "a"}).out;
  EXPECT_THAT(out, HasSubstr("pool:nvme0\n"));
  EXPECT_THAT(out, HasSubstr("51: 0-31, 100, 200, "));
  EXPECT_THAT(out, HasSubstr(", 1500, and 4 more run(s)\n"));
}

TEST_F(DiskCommands, WhatADiskDoesInDoubtIsAskedForWithItsTimeAndAloneChangesNothingElse) {
  v1::CreateDiskRequest created;
  cleatd_.create_disk = [&](const v1::CreateDiskRequest& request, v1::Disk& disk) {
    created = request;
    disk = request.disk();
    disk.set_name("disks/" + request.disk_id());
    return grpc::Status::OK;
  };
  v1::UpdateDiskRequest updated;
  cleatd_.update_disk = [&](const v1::UpdateDiskRequest& request, v1::Disk& disk) {
    updated = request;
    disk = request.disk();
    return grpc::Status::OK;
  };
  const std::vector<const char*> create = {"disk",   "create",      "a",
                                           "--size", "1G",          "--nvme-tcp",
                                           "s",      "--namespace", "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11"};
  std::vector<const char*> with_rule = create;
  with_rule.insert(with_rule.end(), {"--in-doubt", "fail-after=30s"});
  const Outcome made = Ctl(with_rule);
  EXPECT_EQ(made.code, kOk) << made.err;
  EXPECT_EQ(created.disk().spec().in_doubt().policy(), v1::IN_DOUBT_POLICY_FAIL_AFTER);
  EXPECT_EQ(created.disk().spec().in_doubt().fail_after_s(), 30U);
  EXPECT_EQ(Ctl(create).code, kOk);
  EXPECT_FALSE(created.disk().spec().has_in_doubt());

  EXPECT_EQ(Ctl({"disk", "update", "a", "--in-doubt", "accept"}).code, kOk);
  EXPECT_EQ(updated.disk().spec().in_doubt().policy(), v1::IN_DOUBT_POLICY_ACCEPT);
  ASSERT_EQ(updated.update_mask().paths_size(), 1);
  EXPECT_EQ(updated.update_mask().paths(0), "spec.in_doubt");
  EXPECT_EQ(Ctl({"disk", "update", "a", "--in-doubt", "hold", "--on-no-space", "wait"}).code, kOk);
  EXPECT_EQ(updated.disk().spec().in_doubt().policy(), v1::IN_DOUBT_POLICY_HOLD);
  EXPECT_EQ(updated.update_mask().paths_size(), 2);
  for (const char* const wrong : {"fail-after=", "fail-after=x", "fail-after=-1", "fail-after=1m", "never"}) {
    const Outcome outcome = Ctl({"disk", "update", "a", "--in-doubt", wrong});
    EXPECT_EQ(outcome.code, kUsage) << wrong;
    EXPECT_THAT(outcome.err, HasSubstr("fail-after=30")) << wrong;
  }
  EXPECT_EQ(Ctl({"disk", "update", "a", "--in-doubt", "hold", "--label", "x=y"}).code, kUsage);
}

}  // namespace
}  // namespace cleat::ctl::disk_commands_test
