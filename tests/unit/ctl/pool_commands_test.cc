// SPDX-License-Identifier: Apache-2.0
// Command lines for pools (run_fixture.h): what cleatd is asked, and what is printed of its answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ctl/app.h"
#include "ctl/show.h"
#include "fake_cleatd.h"
#include "run_fixture.h"

namespace cleat::ctl::pool_commands_test {
namespace {

using run_fixture::Outcome;
using ::testing::HasSubstr;

class PoolCommands : public run_fixture::RunTest {};

v1::Pool PoolWith(uint64_t extents, uint64_t to_erase) {
  constexpr uint64_t kExtentBytes = uint64_t{256} << 20;
  v1::Pool pool;
  pool.set_name("pools/nvme0");
  pool.mutable_spec()->set_device("/dev/disk/by-id/nvme-a");
  pool.mutable_spec()->set_extent_bytes(kExtentBytes);
  (*pool.mutable_labels())["bay"] = "3";
  v1::PoolStatus& status = *pool.mutable_status();
  status.set_state(v1::POOL_STATE_READY);
  status.set_capacity_bytes(extents * kExtentBytes);
  status.set_allocated_bytes(40 * kExtentBytes);
  status.set_to_erase_bytes(to_erase * kExtentBytes);
  status.set_free_bytes((extents - 40 - to_erase) * kExtentBytes);
  status.set_largest_free_bytes(2 * kExtentBytes);
  status.set_disks(1);
  status.set_uid("00112233445566778899aabbccddeeff");
  return pool;
}

TEST_F(PoolCommands, APoolIsMadeOfADriveAsTheCommandLineSays) {
  std::vector<v1::CreatePoolRequest> requests;
  cleatd_.create_pool = [&](const v1::CreatePoolRequest& request, v1::Pool& pool) {
    requests.push_back(request);
    pool = PoolWith(3577, 3537);
    pool.mutable_status()->set_state(v1::POOL_STATE_OPENING);
    return grpc::Status::OK;
  };
  const Outcome plain = Ctl({"pool", "create", "nvme0", "--device", "/dev/disk/by-id/nvme-a"});
  EXPECT_EQ(plain.code, kOk) << plain.err;
  EXPECT_THAT(plain.out, HasSubstr("OPENING"));
  ASSERT_EQ(requests.size(), 1U);
  EXPECT_EQ(requests[0].pool_id(), "nvme0");
  EXPECT_EQ(requests[0].pool().spec().device(), "/dev/disk/by-id/nvme-a");
  EXPECT_EQ(requests[0].pool().spec().extent_bytes(), 0U) << "cleatd chooses";
  EXPECT_FALSE(requests[0].overwrite());

  cleatd_.wait = [](const v1::WaitRequest& request, v1::WaitResponse& response) {
    EXPECT_EQ(request.name(), "pools/nvme0");
    *response.mutable_pool() = PoolWith(3577, 3537);
    return grpc::Status::OK;
  };
  const Outcome all = Ctl({"pool", "create", "pools/nvme0", "--device", "/d", "--extent-size", "64M",
                           "--overwrite", "--label", "bay=3", "--wait"});
  EXPECT_EQ(all.code, kOk) << all.err;
  EXPECT_THAT(all.out, HasSubstr("READY"));
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[1].pool_id(), "nvme0");
  EXPECT_EQ(requests[1].pool().spec().extent_bytes(), uint64_t{64} << 20);
  EXPECT_EQ(requests[1].pool().labels().at("bay"), "3");
  EXPECT_TRUE(requests[1].overwrite());
}

// A drive with one disk that can be made, and one that can't.
v1::ScanDriveResponse ScanOf(const v1::Pool& pool) {
  v1::ScanDriveResponse scan;
  *scan.mutable_pool() = pool;
  scan.set_of_this_host(true);
  v1::ScannedDisk& good = *scan.add_disks();
  good.mutable_disk()->set_name("disks/root");
  good.mutable_disk()->set_uid("0000010000000007");
  good.mutable_disk()->mutable_spec()->set_size_bytes(uint64_t{1} << 30);
  v1::ExtentRun& run = *good.mutable_disk()->mutable_spec()->mutable_pool()->add_extents();
  run.set_first(3);
  run.set_count(4);
  v1::ScannedDisk& bad = *scan.add_disks();
  bad.mutable_disk()->set_uid("0000010000000008");
  bad.set_deleted(true);
  bad.set_problem("its description can't be read");
  return scan;
}

TEST_F(PoolCommands, AScanShowsWhatADriveHasAndTheNextStep) {
  v1::Pool pool = PoolWith(3577, 0);
  pool.mutable_status()->clear_state();
  cleatd_.scan_drive = [&](const v1::ScanDriveRequest& request, v1::ScanDriveResponse& response) {
    EXPECT_EQ(request.device(), "/dev/nvme0n1");
    response = ScanOf(pool);
    return grpc::Status::OK;
  };
  const std::string text = Ctl({"pool", "scan", "--device", "/dev/nvme0n1"}).out;
  EXPECT_EQ(
      text,
      "pools/nvme0 on /dev/nvme0n1: 894.2 GiB, uid 00112233445566778899aabbccddeeff, of this host\n"
      "DISK  SIZE   EXTENTS  DELETED  UID               PROBLEM\n"
      "root  1 GiB  4: 3-6            0000010000000007\n"
      "?                     yes      0000010000000008  its description can't be read\n"
      "1 of the disks would stay on the drive, unknown, and keep their extents\n"
      "to have it here, with its disks: cleatctl pool create nvme0 --device /dev/nvme0n1 --from-drive\n");
  EXPECT_THAT(Ctl({"pool", "scan", "--device", "/dev/nvme0n1", "-o", "json"}).out,
              HasSubstr("\"problem\": \"its description can't be read\""));
  pool.mutable_status()->set_state(v1::POOL_STATE_READY);
  EXPECT_THAT(Ctl({"pool", "scan", "--device", "/dev/nvme0n1"}).out,
              HasSubstr("\ncleatd has it already: cleatctl pool get nvme0\n"));

  v1::CreatePoolRequest created;
  cleatd_.create_pool = [&](const v1::CreatePoolRequest& request, v1::Pool& answer) {
    created = request;
    answer = pool;
    return grpc::Status::OK;
  };
  EXPECT_EQ(Ctl({"pool", "create", "nvme0", "--device", "/d", "--from-drive"}).code, kOk);
  EXPECT_TRUE(created.from_drive());
  EXPECT_EQ(Ctl({"pool", "create", "nvme0", "--device", "/d", "--from-drive", "--overwrite"}).code, kUsage);
}

TEST_F(PoolCommands, APoolShowsWhatItHas) {
  cleatd_.list_pools = [](const v1::ListPoolsRequest& request, v1::ListPoolsResponse& page) {
    *page.add_pools() = PoolWith(3577, 0);
    if (request.page_token().empty()) page.set_next_page_token("1");
    return grpc::Status::OK;
  };
  const std::string row =
      "nvme0  /dev/disk/by-id/nvme-a  894.2 GiB  10 GiB     884.2 GiB  512 MiB  1      READY  bay=3\n";
  EXPECT_EQ(
      Ctl({"pool", "list"}).out,
      "POOL   DEVICE                  CAPACITY   ALLOCATED  FREE       LARGEST  DISKS  STATE  LABELS\n" +
          row + row);
  cleatd_.get_pool = [](const v1::GetPoolRequest& request, v1::Pool& pool) {
    EXPECT_EQ(request.name(), "pools/nvme0");
    pool = PoolWith(3577, 8);
    pool.mutable_status()->set_reclaimable_bytes(uint64_t{1} << 30);
    return grpc::Status::OK;
  };
  EXPECT_THAT(Ctl({"pool", "get", "nvme0"}).out,
              ::testing::AllOf(HasSubstr("\nextent        256 MiB\n"), HasSubstr("\nreclaimable   1 GiB\n"),
                               HasSubstr("\nto erase      2 GiB\n"),
                               HasSubstr("\nuid           00112233445566778899aabbccddeeff\n")));
  EXPECT_THAT(Ctl({"pool", "get", "pools/nvme0", "-o", "json"}).out,
              HasSubstr("\"capacity_bytes\": \"960193626112\""));
}

TEST_F(PoolCommands, APoolShowsTheConditionOfItsDrive) {
  v1::Pool worn = PoolWith(3577, 0);
  v1::DriveHealth& health = *worn.mutable_status()->mutable_health();
  health.set_wear_percent(103);
  health.set_temperature_celsius(71);
  health.set_spare_percent(9);
  health.set_spare_threshold_percent(10);
  health.set_media_errors(0);
  health.set_written_bytes(uint64_t{3} << 40);
  health.add_warnings("the spare is below its threshold");
  health.add_warnings("the media is read-only");
  cleatd_.list_pools = [&](const v1::ListPoolsRequest&, v1::ListPoolsResponse& page) {
    *page.add_pools() = worn;
    return grpc::Status::OK;
  };
  const std::string list = Ctl({"pool", "list"}).out;
  EXPECT_THAT(list, HasSubstr("STATE  WEAR   WARNINGS"));
  EXPECT_THAT(list,
              HasSubstr("READY  103 %  the spare is below its threshold; the media is read-only  bay=3\n"));
  cleatd_.get_pool = [&](const v1::GetPoolRequest&, v1::Pool& pool) {
    pool = worn;
    return grpc::Status::OK;
  };
  EXPECT_THAT(Ctl({"pool", "get", "nvme0"}).out,
              ::testing::AllOf(
                  HasSubstr("\nwear          103 %\n"), HasSubstr("\ntemperature   71 C\n"),
                  HasSubstr("\nspare         9 %, threshold 10 %\n"), HasSubstr("\nmedia errors  0\n"),
                  HasSubstr("\nwritten       3 TiB\n"),
                  HasSubstr("\nwarnings      the spare is below its threshold; the media is read-only\n"),
                  ::testing::Not(HasSubstr("health"))));
  health.Clear();
  health.set_unknown_because("cleatd may not ask the drive");
  EXPECT_THAT(Ctl({"pool", "get", "nvme0"}).out,
              ::testing::AllOf(HasSubstr("\nhealth        not known: cleatd may not ask the drive\n"),
                               ::testing::Not(HasSubstr("wear")), ::testing::Not(HasSubstr("spare"))));
}

TEST_F(PoolCommands, APoolIsDeletedByItsEtagAndWaitedFor) {
  v1::DeletePoolRequest deleted;
  cleatd_.delete_pool = [&](const v1::DeletePoolRequest& request, v1::DeletePoolResponse&) {
    deleted = request;
    return grpc::Status::OK;
  };
  cleatd_.wait = [](const v1::WaitRequest& request, v1::WaitResponse& response) {
    EXPECT_EQ(request.condition(), v1::WAIT_CONDITION_GONE);
    response.set_gone(request.name());
    return grpc::Status::OK;
  };
  const Outcome outcome = Ctl({"pool", "delete", "nvme0", "--etag", "e1", "--wait"});
  EXPECT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(deleted.name(), "pools/nvme0");
  EXPECT_EQ(deleted.etag(), "e1");
}

TEST_F(PoolCommands, PoolsAreWatchedAndWaitedFor) {
  v1::WatchResponse event;
  event.set_revision(1000007);
  *event.mutable_pool() = PoolWith(3577, 0);
  event.mutable_pool()->mutable_status()->set_state(v1::POOL_STATE_NOT_ANSWERING);
  event.mutable_pool()->mutable_status()->set_message("the drive does not answer");
  EXPECT_EQ(
      LineOf(event),
      "   1000007  pools/nvme0                               NOT_ANSWERING  the drive does not answer\n");
  cleatd_.wait = [](const v1::WaitRequest&, v1::WaitResponse& response) {
    *response.mutable_pool() = PoolWith(3577, 0);
    return grpc::Status::OK;
  };
  EXPECT_THAT(Ctl({"wait", "pools/nvme0"}).out, HasSubstr("nvme0  /dev/disk/by-id/nvme-a"));
}

}  // namespace
}  // namespace cleat::ctl::pool_commands_test
