// SPDX-License-Identifier: Apache-2.0
// Whole command lines against a cleatd that answers as each test likes: what is printed where, and the exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ctl/app.h"
#include "fake_cleatd.h"
#include "run_fixture.h"

namespace cleat::ctl::run_test {
namespace {

using fake_cleatd::Refusal;
using run_fixture::Outcome;
using run_fixture::RunTest;
using ::testing::HasSubstr;

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

TEST_F(RunTest, SlowSaysFirstWhatIsStuckWhyAndWhatToDo) {
  v1::ListSlowRequestsResponse answer;
  v1::SlowRequest& slow = *answer.add_requests();
  slow.set_disk("disks/other");
  slow.set_operation("read");
  std::string asked;
  cleatd_.list_slow_requests = [&](const v1::ListSlowRequestsRequest& request,
                                   v1::ListSlowRequestsResponse& response) {
    asked = request.name();
    response = answer;
    return grpc::Status::OK;
  };
  EXPECT_THAT(Ctl({"slow"}).out, testing::StartsWith("TIME ")) << "nothing is stuck";

  v1::StuckAttachment& stuck = *answer.add_stuck();
  stuck.set_disk("disks/root");
  stuck.set_controller("controllers/vm1");
  stuck.set_reason(v1::STUCK_REASON_WRITES_IN_DOUBT);
  stuck.mutable_since()->set_seconds(1'700'000'000);
  stuck.set_waiting(4);
  stuck.set_message("left by a path");
  stuck.set_next_step("cleatctl disk confirm-dead root");
  Outcome outcome = Ctl({"slow", "root"});
  EXPECT_EQ(outcome.code, kOk);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(asked, "disks/root");
  EXPECT_THAT(outcome.out,
              testing::MatchesRegex("DISK  CONTROLLER  SINCE +WAITING  STUCK BY +NEXT STEP +MESSAGE\n"
                                    "root  vm1         2023-11-1[0-9T:]+  4        WRITES_IN_DOUBT  "
                                    "cleatctl disk confirm-dead root  left by a path\n"
                                    "\nTIME .*\n.*other .*\n"));
  EXPECT_THAT(Ctl({"slow", "-o", "json"}).out,
              HasSubstr("\"next_step\": \"cleatctl disk confirm-dead root\""));

  answer.set_stuck_left_out(7);
  outcome = Ctl({"slow"});
  EXPECT_EQ(outcome.code, kOk);
  EXPECT_THAT(outcome.err, HasSubstr("7 more are stuck"));
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
