// SPDX-License-Identifier: Apache-2.0
// Whole command lines against a cleatd that answers as each test likes: what is printed where, and the exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ctl/app.h"
#include "ctl/client.h"
#include "ctl/show.h"
#include "fake_cleatd.h"

namespace cleat::ctl::run_test {
namespace {

using fake_cleatd::FakeCleatd;
using fake_cleatd::Refusal;
using ::testing::HasSubstr;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

class RunTest : public ::testing::Test {
 protected:
  RunTest() {
    std::string folder = std::filesystem::temp_directory_path() / "cleat-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    address_ = "unix:" + folder + "/api.sock";
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(&cleatd_);
    server_ = builder.BuildAndStart();
  }
  ~RunTest() override {
    server_->Shutdown();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  Outcome Ctl(std::vector<const char*> arguments) const {
    arguments.insert(arguments.begin(), {"cleatctl", "--address", address_.c_str()});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = ctl::Run(static_cast<int>(arguments.size()), arguments.data());
    return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
  }

  std::string folder_;
  std::string address_;
  FakeCleatd cleatd_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(RunTest, AListHasAllPages) {
  cleatd_.list_disks = [](const v1::ListDisksRequest& request, v1::ListDisksResponse& page) {
    const int number = request.page_token().empty() ? 0 : std::stoi(request.page_token());
    page.add_disks()->set_name("disks/d" + std::to_string(number));
    if (number < 2) page.set_next_page_token(std::to_string(number + 1));
    return grpc::Status::OK;
  };
  const Outcome table = Ctl({"disk", "list"});
  EXPECT_EQ(table.code, kOk);
  EXPECT_THAT(table.out, HasSubstr("\nd0 "));
  EXPECT_THAT(table.out, HasSubstr("\nd2 "));
  EXPECT_EQ(table.err, "");
  EXPECT_THAT(Ctl({"disk", "list", "-o", "json"}).out, HasSubstr("\"next_page_token\": \"\""));
  EXPECT_THAT(Ctl({"--output=yaml", "disk", "list"}).out, HasSubstr("- name: disks/d1\n"));
}

TEST_F(RunTest, ARefusalIsToldWithItsReason) {
  cleatd_.get_disk = [](const v1::GetDiskRequest&, v1::Disk&) {
    return Refusal(grpc::StatusCode::NOT_FOUND, "RESOURCE_NOT_FOUND", "disks/a does not exist");
  };
  const Outcome outcome = Ctl({"disk", "get", "a", "-o", "json"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err,
            "cleatctl: disks/a does not exist\nreason: RESOURCE_NOT_FOUND (run cleatctl explain "
            "RESOURCE_NOT_FOUND)\n");
}

TEST_F(RunTest, ACallThatCleatdDoesNotKnow) {
  EXPECT_EQ(Ctl({"engine", "list"}).code, kFailed);
  EXPECT_THAT(Ctl({"engine", "list"}).err, HasSubstr("older than cleatctl"));
}

TEST_F(RunTest, LabelsAreMergedAndWrittenAgainWhenSomebodyElseWasFaster) {
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

TEST_F(RunTest, ConfirmDeadSaysWhatItIsAboutAndNamesItsNumber) {
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

TEST_F(RunTest, ResizeAsksForTheSizeAlone) {
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

TEST_F(RunTest, WaitingEndsInThreeWays) {
  cleatd_.attach_disk = [](const v1::AttachDiskRequest& request, v1::Attachment& attachment) {
    EXPECT_FALSE(request.attachment().spec().has_target());
    attachment.set_name(request.parent() + "/attachments/a");
    attachment.mutable_status()->set_state(v1::ATTACHMENT_STATE_PENDING);
    return grpc::Status::OK;
  };
  v1::WaitRequest asked;
  grpc::Status answer;
  cleatd_.wait = [&](const v1::WaitRequest& request, v1::WaitResponse& response) {
    asked = request;
    response.mutable_attachment()->set_name(request.name());
    response.mutable_attachment()->mutable_status()->set_state(v1::ATTACHMENT_STATE_READY);
    return answer;
  };
  Outcome outcome = Ctl({"attach", "a", "c", "--wait=7"});
  EXPECT_EQ(outcome.code, kOk);
  EXPECT_THAT(outcome.out, HasSubstr("READY"));
  EXPECT_EQ(asked.name(), "controllers/c/attachments/a");
  EXPECT_EQ(asked.condition(), v1::WAIT_CONDITION_READY);
  EXPECT_EQ(asked.timeout().seconds(), 7);
  EXPECT_TRUE(asked.fail_fast());

  answer = Refusal(grpc::StatusCode::DEADLINE_EXCEEDED, "WAIT_TIMED_OUT", "still PENDING");
  outcome = Ctl({"attach", "a", "c", "--wait"});
  EXPECT_EQ(outcome.code, kTimedOut);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("still PENDING"));

  answer = Refusal(grpc::StatusCode::FAILED_PRECONDITION, "WAIT_FAILED", "no such file");
  outcome = Ctl({"attach", "a", "c", "--wait"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("no such file"));

  asked.Clear();
  EXPECT_EQ(Ctl({"attach", "a", "c"}).code, kOk);
  EXPECT_EQ(asked.name(), "");
}

TEST_F(RunTest, ApplyReportsOnEachObject) {
  cleatd_.apply_host = [](const v1::ApplyHostRequest& request, v1::ApplyHostResponse& response) {
    EXPECT_EQ(request.mode(), v1::APPLY_MODE_EXACT);
    EXPECT_TRUE(request.dry_run());
    v1::ApplyResult& good = *response.add_results();
    good.set_name(request.disks(0).name());
    good.set_action(v1::APPLY_ACTION_CREATED);
    v1::ApplyResult& bad = *response.add_results();
    bad.set_name("disks/b");
    bad.set_action(v1::APPLY_ACTION_FAILED);
    google::rpc::ErrorInfo info;
    info.set_reason("DISK_CANNOT_SHRINK");
    info.set_domain("cleat");
    bad.mutable_error()->set_message("smaller");
    bad.mutable_error()->add_details()->PackFrom(info);
    return grpc::Status::OK;
  };
  const std::string path = folder_ + "/host.yaml";
  FILE* file = fopen(path.c_str(), "w");
  fputs("disks: [{name: disks/a}, {name: disks/b}]\n", file);
  fclose(file);
  const Outcome outcome = Ctl({"apply", "-f", path.c_str(), "--mode", "exact", "--dry-run"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_EQ(outcome.out,
            "WOULD BE  NAME     REASON              MESSAGE\nCREATED   disks/a\n"
            "FAILED    disks/b  DISK_CANNOT_SHRINK  smaller\n");
  EXPECT_THAT(outcome.err, HasSubstr("1 of 2 objects failed"));
  EXPECT_THAT(Ctl({"apply", "-f", path.c_str(), "--mode", "exact", "--dry-run", "-o", "json"}).out,
              HasSubstr("\"reason\": \"DISK_CANNOT_SHRINK\""));
  EXPECT_EQ(Ctl({"apply", "-f", "/nowhere"}).code, kUsage);
}

// What removes is planned first; and as nobody is at a terminal here, nothing is done without --yes.
TEST_F(RunTest, ApplyRemovesOnlyWhatWasPlannedAndMeant) {
  std::vector<v1::ApplyHostRequest> calls;
  cleatd_.apply_host = [&](const v1::ApplyHostRequest& request, v1::ApplyHostResponse& response) {
    calls.push_back(request);
    for (const char* name : {"disks/b", "disks/c"}) {
      v1::ApplyResult& result = *response.add_results();
      result.set_name(name);
      result.set_action(v1::APPLY_ACTION_DELETED);
      result.set_deletes_key(std::string(name) == "disks/c");
    }
    response.set_complete(true);
    response.set_etag("7-2");
    return grpc::Status::OK;
  };
  const std::string path = folder_ + "/host.yaml";
  FILE* file = fopen(path.c_str(), "w");
  fputs("disks: [{name: disks/a}]\n", file);
  fclose(file);
  const auto apply = [&](std::vector<const char*> more) {
    calls.clear();
    std::vector<const char*> arguments = {"apply", "-f", path.c_str(), "--mode", "exact"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Ctl(arguments);
  };

  Outcome outcome = apply({});
  EXPECT_EQ(outcome.code, kUsage);
  EXPECT_EQ(outcome.err,
            "cleatctl: 2 objects of the host are not in the file, and will be removed:\n  disks/b\n"
            "  disks/c  and with it its key\n"
            "nobody is at a terminal to be asked: give --yes if that is meant. Nothing was done\n");
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_TRUE(calls[0].dry_run());

  outcome = apply({"--yes", "--max-removals", "1"});
  EXPECT_EQ(outcome.code, kFailed);
  EXPECT_THAT(outcome.err, HasSubstr("more than --max-removals 1: nothing was done"));
  ASSERT_EQ(calls.size(), 1U);

  outcome = apply({"--yes", "--max-removals", "2"});
  EXPECT_EQ(outcome.code, kOk);
  EXPECT_EQ(outcome.out, "ACTION   NAME\nDELETED  disks/b\nDELETED  disks/c\n");
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_FALSE(calls[1].dry_run());
  EXPECT_EQ(calls[1].max_removals(), 2U);
  EXPECT_EQ(calls[1].etag(), "7-2");
  EXPECT_FALSE(calls[1].allow_empty());
}

TEST_F(RunTest, ABackupIsWholeOrNotThere) {
  uint64_t sent_bytes = 0;
  grpc::Status end;
  cleatd_.backup_store = [&](grpc::ServerWriter<v1::BackupStoreResponse>& writer) {
    v1::BackupStoreResponse piece;
    piece.mutable_info()->set_size_bytes(100);
    writer.Write(piece);
    piece.set_data(std::string(sent_bytes, 'x'));
    writer.Write(piece);
    return end;
  };
  const std::string path = folder_ + "/backup.db";
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  };
  const auto before = files();
  for (const uint64_t bytes : {0, 99, 101}) {
    sent_bytes = bytes;
    EXPECT_EQ(Ctl({"store", "backup", path.c_str()}).code, kFailed) << bytes;
    EXPECT_EQ(files(), before) << bytes;
  }
  sent_bytes = 100;
  end = grpc::Status(grpc::StatusCode::UNAVAILABLE, "went away");
  EXPECT_EQ(Ctl({"store", "backup", path.c_str()}).code, kUnreachable);
  EXPECT_EQ(files(), before);
  end = grpc::Status::OK;
  EXPECT_EQ(Ctl({"store", "backup", path.c_str()}).code, kOk);
  EXPECT_EQ(std::filesystem::file_size(path), 100U);
  EXPECT_EQ(Ctl({"store", "backup", path.c_str()}).code, kUsage) << "it is there";
}

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

TEST_F(RunTest, APoolIsMadeOfADriveAsTheCommandLineSays) {
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

TEST_F(RunTest, ASubsystemIsMadeAndChangedAsTheCommandLineSays) {
  v1::Subsystem array;
  cleatd_.create_subsystem = [&](const v1::CreateSubsystemRequest& request, v1::Subsystem& subsystem) {
    EXPECT_EQ(request.subsystem_id(), "array");
    array = request.subsystem();
    array.set_name("subsystems/array");
    subsystem = array;
    return grpc::Status::OK;
  };
  cleatd_.get_subsystem = [&](const v1::GetSubsystemRequest& request, v1::Subsystem& subsystem) {
    EXPECT_EQ(request.name(), "subsystems/array");
    subsystem = array;
    return grpc::Status::OK;
  };
  v1::UpdateSubsystemRequest update;
  cleatd_.update_subsystem = [&](const v1::UpdateSubsystemRequest& request, v1::Subsystem& subsystem) {
    update = request;
    subsystem = request.subsystem();
    return grpc::Status::OK;
  };
  Outcome outcome =
      Ctl({"subsystem", "create", "array", "--nqn", "nqn.2014-08.org.example:array", "--address", "10.0.0.1",
           "--data-digest", "--keep-alive-ms", "8000", "--label", "site=b"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("nqn.2014-08.org.example:array  10.0.0.1"));
  EXPECT_EQ(array.spec().addresses_size(), 1);
  EXPECT_TRUE(array.spec().data_digest());
  EXPECT_FALSE(array.spec().header_digest());
  EXPECT_EQ(array.spec().keep_alive_ms(), 8000U);
  EXPECT_EQ(array.labels().at("site"), "b");
  outcome = Ctl({"subsystem", "get", "array"});
  EXPECT_THAT(outcome.out, HasSubstr("8000 ms"));

  outcome = Ctl({"subsystem", "update", "subsystems/array", "--no-data-digest", "--address", "10.0.0.2"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_FALSE(update.subsystem().spec().data_digest());
  EXPECT_EQ(update.subsystem().spec().addresses_size(), 1);
  EXPECT_EQ(update.subsystem().spec().addresses(0), "10.0.0.2");
  EXPECT_EQ(update.subsystem().spec().keep_alive_ms(), 8000U) << "what was not given stays";
  EXPECT_EQ(update.update_mask().paths_size(), 1);
  outcome = Ctl({"subsystem", "update", "array", "--label", "site=c"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_EQ(update.update_mask().paths(0), "labels");
  EXPECT_EQ(Ctl({"subsystem", "create", "array", "--address", "10.0.0.1"}).code, kUsage) << "without its NQN";
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

TEST_F(RunTest, AScanShowsWhatADriveHasAndTheNextStep) {
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

TEST_F(RunTest, APoolShowsWhatItHas) {
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

TEST_F(RunTest, APoolShowsTheConditionOfItsDrive) {
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

TEST_F(RunTest, APoolIsDeletedByItsEtagAndWaitedFor) {
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

TEST_F(RunTest, ADiskOfAPoolSaysWhichExtentsItHas) {
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

TEST_F(RunTest, PoolsAreWatchedAndWaitedFor) {
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

TEST_F(RunTest, NobodyThere) {
  server_->Shutdown();
  std::filesystem::remove(folder_ + "/api.sock");
  const Outcome gone = Ctl({"disk", "list"});
  EXPECT_EQ(gone.code, kUnreachable);
  EXPECT_THAT(gone.err, HasSubstr("can't be reached at " + address_ + ": No such file or directory"));
  EXPECT_THAT(gone.err, HasSubstr("CLEAT_ADDRESS"));
}

TEST_F(RunTest, AWrongCommandLine) {
  const std::pair<std::vector<const char*>, const char*> cases[] = {
      {{}, "a command is missing\nSee cleatctl --help"},
      {{"disks"}, "no command 'cleatctl disks'. Did you mean disk?"},
      {{"disk", "creat"}, "no command 'cleatctl disk creat'. Did you mean create?\nSee cleatctl disk --help"},
      {{"disk"}, "See cleatctl disk --help"},
      {{"disk", "create", "a", "--memory"}, "--size is required\nSee cleatctl disk create --help"},
      {{"disk", "create", "a", "--memory", "--size", "10GB"}, "'10GB' is not a size"},
      {{"disk", "create", "a", "--size", "10G"}, "[--file,--memory,--null,--rbd"},
      {{"disk", "create", "a", "--memory", "--size", "1G", "--label", "x"}, "'x' is not KEY=VALUE"},
      {{"controller", "create", "c", "--socket", "/s", "--type", "nvme"}, "nvme"},
      {{"pool", "create", "p"}, "--device is required\nSee cleatctl pool create --help"},
      {{"pool", "create", "p", "--device", "/d", "--extent-size", "256MB"}, "'256MB' is not a size"},
      {{"attach", "a", "c", "--wait=0"}, "0"},
      {{"attach", "a", "c", "--wait=0x10"}, "0x10"},
      {{"wait", "a"}, "'a' is not a full name"},
      {{"wait", "disks/a", "--timeout", "2h"}, "'2h' is not from 1 s to 1 h"},
      {{"--output", "xml", "disk", "list"}, "xml"},
      {{"explain", "DISK_INUSE"}, "Did you mean DISK_IN_USE?"},
      {{"help", "fly"}, "there is no command 'fly'"},
  };
  for (const auto& [arguments, words] : cases) {
    const Outcome outcome = Ctl(arguments);
    EXPECT_EQ(outcome.code, kUsage) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_EQ(outcome.err.find("cleatctl: "), 0U);
  }
}

TEST_F(RunTest, WhatNeedsNoCleatd) {
  server_->Shutdown();
  EXPECT_THAT(Ctl({"explain", "disk-in-use"}).out, HasSubstr("action   Detach it, then repeat.\n"));
  EXPECT_THAT(Ctl({"explain", "-o", "yaml"}).out,
              HasSubstr("- reason: DISK_IN_USE\n    code: FAILED_PRECONDITION\n"));
  EXPECT_THAT(Ctl({"explain", "DISK_IN_USE", "-o", "json"}).out, HasSubstr("\"reason\": \"DISK_IN_USE\""));
  EXPECT_THAT(Ctl({"version"}).out, HasSubstr("cleatctl "));
  EXPECT_THAT(Ctl({"version", "-o", "json"}).out, HasSubstr("{\"version\": \""));
  EXPECT_THAT(Ctl({"help", "disk", "create"}).out, HasSubstr("--many-readers"));
  EXPECT_THAT(Ctl({"attach", "--help"}).out, HasSubstr("Examples:"));
  EXPECT_THAT(Ctl({"completion", "bash"}).out, HasSubstr("complete -F _cleatctl cleatctl"));
}

}  // namespace
}  // namespace cleat::ctl::run_test
