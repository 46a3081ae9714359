// SPDX-License-Identifier: Apache-2.0
// Calls that change many things: what the audit log has of each, over real gRPC. About a second in all.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/log_request.h"
#include "control/callers/audited_call.h"
#include "control/model/json.h"
#include "control/model/reasons.h"
#include "daemon_rig.h"
#include "open_paths.h"
#include "requests.h"

namespace cleat::control::audit_changes_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string Base64(const std::string& bytes) {
  google::protobuf::Value value;
  v1::WrappedKey key;
  key.set_data(bytes);
  std::string json;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(key, &json).ok());
  google::protobuf::Struct object;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &object).ok());
  return object.fields().at("data").string_value();
}

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

// A line of the audit log. Each is JSON.
struct Record {
  explicit Record(const std::string& text) : line(text) {
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &json).ok()) << line;
  }
  bool Has(const std::string& field) const { return json.fields().contains(field); }
  std::string Text(const std::string& field) const {
    return Has(field) ? json.fields().at(field).string_value() : "";
  }
  // "before" and "after", as they stand in the line.
  std::string State(const std::string& field) const {
    if (!Has(field)) return "";
    std::string text;
    EXPECT_TRUE(google::protobuf::util::MessageToJsonString(json.fields().at(field), &text).ok());
    return text;
  }
  // "+disks/a", "-disks/a", "~disks/a"; "!disks/a" for one that was refused, and the resource for the call's own record.
  std::string Summary() const {
    const std::string object = Text("object");
    if (object.empty()) return Text("resource");
    if (Text("code") != "OK" && Text("phase").empty()) return "!" + object;
    return (!Has("before") ? "+" : !Has("after") ? "-" : "~") + object;
  }
  std::string line;
  google::protobuf::Struct json;
};

class AuditChangesTest : public DaemonRig {
 protected:
  AuditChangesTest() {
    options_.paths_file = OpenPaths(dir_ / "open.conf");
    options_.audit_log = dir_ / "audit.json";
    for (char c = 0; c < 64; ++c) key_ += c;
  }
  void Start() {
    DaemonRig::Start();
    stub_ = v1::Cleat::NewStub(
        grpc::CreateChannel("unix:" + options_.api_socket, grpc::InsecureChannelCredentials()));
  }

  // The records of what `call` does, which has that request id.
  std::vector<Record> RecordsOf(const std::string& request_id,
                                const std::function<grpc::Status(grpc::ClientContext&)>& call) {
    const size_t before = ReadAll(options_.audit_log).size();
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", request_id);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    status_ = call(context);
    std::istringstream lines(ReadAll(options_.audit_log).substr(before));
    std::vector<Record> records;
    for (std::string line; std::getline(lines, line);) records.emplace_back(line);
    for (const Record& record : records) EXPECT_EQ(record.Text("request"), request_id) << record.line;
    return records;
  }
  std::vector<Record> Apply(const v1::ApplyHostRequest& host, const std::string& request_id = "apply-1") {
    return RecordsOf(request_id, [&](grpc::ClientContext& context) {
      return stub_->ApplyHost(&context, host, &applied_);
    });
  }
  static std::vector<std::string> Summaries(const std::vector<Record>& records) {
    std::vector<std::string> summaries;
    for (const Record& record : records) summaries.push_back(record.Summary());
    return summaries;
  }

  // A group, a cluster with a key, an encrypted disk, a controller, and the two attached.
  v1::ApplyHostRequest Host() const {
    v1::ApplyHostRequest host;
    *host.add_groups() = NewGroup("g", 100).group();
    host.mutable_groups(0)->set_name("groups/g");
    v1::Cluster& cluster = *host.add_clusters();
    cluster.set_name("clusters/ceph");
    cluster.mutable_spec()->set_monitors("10.0.0.1");
    cluster.mutable_spec()->set_user("cleat");
    cluster.mutable_spec()->set_plain_key(kCephKey);
    v1::Disk& disk = *host.add_disks();
    disk = NullDisk("a").disk();
    disk.set_name("disks/a");
    disk.mutable_spec()->mutable_encryption()->set_plain_key(key_);
    (*disk.mutable_labels())["owner"] = "\"me\"";
    v1::Controller& controller = *host.add_controllers();
    controller = ControllerIn("vm", "g").controller();
    controller.set_name("controllers/vm");
    v1::Attachment& attachment = *host.add_attachments();
    attachment.set_name("controllers/vm/attachments/a");
    attachment.mutable_spec()->set_disk("disks/a");
    return host;
  }
  // Whatever a key looks like: as it was given, as it is stored, and both written as text.
  void ExpectNoKeyIn(const std::string& text) {
    const std::string wrapped = daemon_->state().disks().Row("a")->spec.encryption().wrapped_key().data();
    const std::string ceph = daemon_->state().clusters().Row("ceph")->spec.wrapped_key().data();
    ASSERT_FALSE(wrapped.empty() || ceph.empty());
    for (const std::string& secret : {key_, wrapped, ceph, std::string(kCephKey)}) {
      for (const std::string& form : {secret, Base64(secret), Hex(secret)})
        EXPECT_EQ(text.find(form), std::string::npos) << Hex(secret);
    }
  }

  static constexpr char kCephKey[] = "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw==";
  std::string key_;
  std::unique_ptr<v1::Cleat::Stub> stub_;
  grpc::Status status_;
  v1::ApplyHostResponse applied_;
};

TEST_F(AuditChangesTest, AHostFileLeavesARecordOfEachObject) {
  Start();
  v1::ApplyHostRequest host = Host();
  *host.add_attachments() = host.attachments(0);
  host.mutable_attachments(1)->set_name("controllers/vm/attachments/b");
  host.mutable_attachments(1)->mutable_spec()->set_disk("disks/none");
  const std::vector<Record> records = Apply(host);
  ASSERT_TRUE(status_.ok()) << status_.error_message();
  EXPECT_THAT(Summaries(records),
              ElementsAre("+groups/g", "+clusters/ceph", "+disks/a", "+controllers/vm",
                          "+controllers/vm/attachments/a", "!controllers/vm/attachments/b", "host"));
  for (const Record& record : records) {
    EXPECT_EQ(record.Text("method"), "ApplyHost");
    EXPECT_EQ(record.Text("resource"), "host");
    EXPECT_EQ(record.Text("caller"), fmt::format("uid {}, pid {}", getuid(), getpid()));
    EXPECT_EQ(record.Text("role"), "admin");
  }
  EXPECT_THAT(records[0].line, HasSubstr(R"("kind":"group","object":"groups/g","after":{"spec":{"limits":)"));
  EXPECT_THAT(records[0].line, HasSubstr(R"("iops":{"per_second":"100"})"));
  EXPECT_THAT(records[1].line, HasSubstr(R"("monitors":"10.0.0.1")"));
  EXPECT_THAT(records[1].line, HasSubstr(R"-("key":"(set)")-"));
  EXPECT_THAT(records[2].line, HasSubstr(R"-("labels":{"owner":"\"me\""},"key":"(set)"})-"));
  EXPECT_THAT(records[4].line, HasSubstr(R"("disk":"disks/a")"));
  EXPECT_EQ(records[5].Text("kind"), "attachment");
  EXPECT_EQ(records[5].Text("reason"), "TARGET_TAKEN");
  EXPECT_EQ(records[6].Text("code"), "OK");
  ExpectNoKeyIn(ReadAll(options_.audit_log));

  EXPECT_THAT(Summaries(Apply(Host())), ElementsAre("host")) << "nothing has changed";
  host = Host();
  host.set_dry_run(true);
  host.mutable_groups(0)->mutable_spec()->clear_limits();
  EXPECT_THAT(Summaries(Apply(host)), ElementsAre("dry run"));
}

TEST_F(AuditChangesTest, AHostFileThatChangesAndRemovesSaysWhatWasThere) {
  Start();
  Apply(Host());
  v1::ApplyHostRequest host = Host();
  host.set_mode(v1::APPLY_MODE_EXACT);
  host.set_max_removals(10);
  host.clear_attachments();
  host.clear_controllers();
  host.clear_disks();
  *host.mutable_groups(0) = NewGroup("g", 200).group();
  host.mutable_groups(0)->set_name("groups/g");
  host.mutable_clusters(0)->mutable_spec()->set_plain_key("AQBBAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw==");
  const std::vector<Record> records = Apply(host, "apply-2");
  ASSERT_TRUE(status_.ok()) << status_.error_message();
  EXPECT_THAT(Summaries(records), ElementsAre("-controllers/vm/attachments/a", "-controllers/vm", "~disks/a",
                                              "~groups/g", "~clusters/ceph", "host"));
  EXPECT_THAT(records[1].line, HasSubstr(R"("before":{"spec":{"type":"CONTROLLER_TYPE_BLK")"));
  EXPECT_THAT(records[2].line, HasSubstr(R"("after":{"deleted":true,"uid":")")) << "it is kept for some days";
  EXPECT_THAT(records[2].line, Not(HasSubstr(R"("key":)"))) << "its key is the same";
  EXPECT_THAT(records[3].State("before"), HasSubstr("100"));
  EXPECT_THAT(records[3].State("after"), HasSubstr("200"));
  EXPECT_THAT(records[4].State("before"), Not(HasSubstr("(")));
  EXPECT_THAT(records[4].State("after"), HasSubstr(R"-("key":"(changed)")-"));
  EXPECT_THAT(ReadAll(options_.audit_log), Not(HasSubstr("AQBBAQIDBAUG")));
}

TEST_F(AuditChangesTest, ACallThatChangesWhatItNamesHasOneRecord) {
  Start();
  const auto created = RecordsOf("create-1", [&](grpc::ClientContext& context) {
    v1::Disk disk;
    return stub_->CreateDisk(&context, NullDisk("a"), &disk);
  });
  ASSERT_EQ(created.size(), 1U);
  EXPECT_EQ(created[0].Summary(), "+disks/a");
  const auto limited = RecordsOf("limit-1", [&](grpc::ClientContext& context) {
    v1::Disk disk;
    return stub_->UpdateDisk(&context, LimitDisk("a", 500), &disk);
  });
  ASSERT_EQ(limited.size(), 1U);
  EXPECT_EQ(limited[0].Summary(), "~disks/a");
  EXPECT_THAT(limited[0].State("before"), Not(HasSubstr("500")));
  EXPECT_THAT(limited[0].State("after"), HasSubstr("500"));
  const auto again = RecordsOf("limit-2", [&](grpc::ClientContext& context) {
    v1::Disk disk;
    return stub_->UpdateDisk(&context, LimitDisk("a", 500), &disk);
  });
  EXPECT_THAT(Summaries(again), ElementsAre("disks/a")) << "nothing has changed";
}

TEST_F(AuditChangesTest, ARestoreLeavesARecordOfWhatComesBackGoesAndChanges) {
  Start();
  Apply(Host());
  std::string backup;
  RecordsOf("backup-1", [&](grpc::ClientContext& context) {
    const auto reader = stub_->BackupStore(&context, {});
    v1::BackupStoreResponse piece;
    while (reader->Read(&piece)) backup += piece.data();
    return reader->Finish();
  });
  ASSERT_TRUE(status_.ok()) << status_.error_message();
  RecordsOf("limit-1", [&](grpc::ClientContext& context) {
    v1::Group group;
    return stub_->UpdateGroup(&context, LimitGroup("g", 300), &group);
  });
  RecordsOf("detach-1", [&](grpc::ClientContext& context) {
    v1::DetachDiskResponse response;
    return stub_->DetachDisk(&context, Detach("vm", "a"), &response);
  });
  RecordsOf("create-1", [&](grpc::ClientContext& context) {
    v1::Disk disk;
    return stub_->CreateDisk(&context, NullDisk("z"), &disk);
  });
  const auto restore = [&](grpc::ClientContext& context, bool dry_run) {
    v1::RestoreStoreResponse response;
    const auto writer = stub_->RestoreStore(&context, &response);
    v1::RestoreStoreRequest request;
    request.mutable_options()->set_size_bytes(backup.size());
    request.mutable_options()->set_dry_run(dry_run);
    writer->Write(request);
    request.set_data(backup);
    writer->Write(request);
    writer->WritesDone();
    return writer->Finish();
  };
  ExpectNoKeyIn(ReadAll(options_.audit_log));
  EXPECT_THAT(Summaries(RecordsOf("dry", [&](grpc::ClientContext& c) { return restore(c, true); })),
              ElementsAre("store"));
  const auto records = RecordsOf("restore-1", [&](grpc::ClientContext& c) { return restore(c, false); });
  ASSERT_TRUE(status_.ok()) << status_.error_message();
  EXPECT_THAT(Summaries(records),
              ElementsAre("-disks/z", "~groups/g", "+controllers/vm/attachments/a", "store"));
  EXPECT_THAT(records[1].State("before"), HasSubstr("300"));
  EXPECT_THAT(records[1].State("after"), HasSubstr("100"));
  ExpectNoKeyIn(ReadAll(options_.audit_log));
}

// What ExpectNoKeyIn looks for is what a message shows that is not asked to hide it.
TEST_F(AuditChangesTest, KeysAreLeftOutWhereverTheyAre) {
  v1::DiskSpec disk;
  disk.set_serial("shown");
  for (const bool wrapped : {false, true}) {
    if (wrapped) {
      disk.mutable_encryption()->mutable_wrapped_key()->set_data(key_);
    } else {
      disk.mutable_encryption()->set_plain_key(key_);
    }
    std::string plain;
    ASSERT_TRUE(google::protobuf::util::MessageToJsonString(disk, &plain).ok());
    EXPECT_THAT(plain, HasSubstr(Base64(key_)));
    EXPECT_THAT(JsonWithoutKeys(disk), Not(HasSubstr(Base64(key_))));
    EXPECT_THAT(JsonWithoutKeys(disk), HasSubstr("shown"));
  }
  v1::Cluster cluster = Host().clusters(0);
  EXPECT_THAT(JsonWithoutKeys(cluster), Not(HasSubstr(kCephKey)));
  EXPECT_THAT(JsonWithoutKeys(cluster), HasSubstr("10.0.0.1"));
  v1::ApplyHostRequest host = Host();
  EXPECT_THAT(JsonWithoutKeys(host), Not(HasSubstr(kCephKey))) << "of repeated messages, too";
}

TEST_F(AuditChangesTest, ASubsystemsSecretsAreSetChangedAndRemovedWithoutBeingShown) {
  Start();
  const auto record = [&](const std::string& id, const std::function<void(v1::SubsystemSpec&)>& change) {
    v1::ApplyHostRequest host;
    *host.add_subsystems() = NewSubsystem("array").subsystem();
    host.mutable_subsystems(0)->set_name("subsystems/array");
    change(*host.mutable_subsystems(0)->mutable_spec());
    const std::vector<Record> records = Apply(host, id);
    EXPECT_TRUE(status_.ok() && applied_.complete()) << applied_.ShortDebugString();
    return records.front().line;
  };
  const auto chap = [](const char* secret) {
    return [secret](v1::SubsystemSpec& spec) { spec.mutable_dhchap_secret()->set_plain_key(secret); };
  };
  EXPECT_THAT(record("set", chap(kChapSecret)), HasSubstr(R"-("key":"(set)")-"));
  EXPECT_THAT(record("again", chap(kOtherChapSecret)), HasSubstr(R"-("key":"(changed)")-"));
  EXPECT_THAT(record("gone", [](auto& spec) { spec.mutable_dhchap_secret(); }),
              HasSubstr(R"-("key":"(removed)")-"));
  const std::string log = ReadAll(options_.audit_log);
  for (const std::string secret : {kChapSecret, kOtherChapSecret}) {
    EXPECT_THAT(log, Not(HasSubstr(secret.substr(10, 16))));
    EXPECT_THAT(log, Not(HasSubstr(Base64(secret).substr(0, 16))));
  }
  EXPECT_THAT(log, HasSubstr("dhchap_secret"));
}

// ---- Records that are required

TEST_F(AuditChangesTest, IntentsOfEachObjectComeBeforeTheirOutcomes) {
  options_.audit_required = true;
  Start();
  v1::ApplyHostRequest host;
  *host.mutable_groups() = Host().groups();
  const std::vector<Record> records = Apply(host);
  EXPECT_THAT(Summaries(records), ElementsAre("host", "+groups/g", "+groups/g", "host"));
  std::vector<std::string> phases;
  for (const Record& record : records) phases.push_back(record.Text("phase"));
  EXPECT_THAT(phases, ElementsAre("intent", "intent", "", ""));
  EXPECT_THAT(records[1].line, HasSubstr(R"("after":{"spec":)"));
}

// An audit log that takes the call's intent and nothing else.
class HalfFullAuditLogTest : public AuditChangesTest {
 protected:
  HalfFullAuditLogTest() : handler_(std::signal(SIGXFSZ, SIG_IGN)), log_path_(dir_ / "few") {
    getrlimit(RLIMIT_FSIZE, &limit_);
  }
  ~HalfFullAuditLogTest() override {
    LimitFiles(limit_.rlim_cur);
    std::signal(SIGXFSZ, handler_);
  }
  void LimitFiles(rlim_t bytes) {
    rlimit limit = limit_;
    limit.rlim_cur = bytes;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  static ObjectChanges TwoChanges() {
    return {{"disk", "disks/a", "", R"({"spec":{}})"}, {"disk", "disks/b", R"({"spec":{}})", ""}};
  }
  static AuditRecord Call() {
    AuditRecord call;
    call.caller = "uid 0, pid 1";
    call.role = Role::kAdmin;
    call.method = "ApplyHost";
    call.resource = "host";
    call.request_id = "r";
    return call;
  }

 private:
  void (*handler_)(int);
  rlimit limit_{};

 protected:
  const std::string log_path_;
};

TEST_F(HalfFullAuditLogTest, AChangeWhoseRecordsCannotAllBeWrittenIsRefusedAndLeavesNone) {
  const auto log = std::move(AuditLog::Open(log_path_, true).value());
  AuditedCall call(*log, Call());
  ASSERT_TRUE(call.Begin().ok());
  const std::string intent = ReadAll(log_path_);
  LimitFiles(2 * intent.size() + 150);  // the first of two lines, and a piece of the second
  const Status refused = call.Announce(TwoChanges());
  LimitFiles(RLIM_INFINITY);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_AUDIT_UNWRITABLE);
  EXPECT_EQ(ReadAll(log_path_), intent) << "all of them, or none";
  EXPECT_EQ(log->lost(), 2U);
  call.End(&refused.error());
  std::istringstream lines(ReadAll(log_path_).substr(intent.size()));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(Record(line).Text("reason"), "AUDIT_UNWRITABLE");
  EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(HalfFullAuditLogTest, WhatIsDoneForACallAfterItsEndIsWrittenAtOnceAndNeverHeldUp) {
  const auto log = std::move(AuditLog::Open(log_path_, true).value());
  AuditedCall call(*log, Call());
  ASSERT_TRUE(call.Begin().ok());
  call.End(nullptr);
  const size_t before = ReadAll(log_path_).size();
  LimitFiles(before);
  EXPECT_TRUE(call.Announce(TwoChanges()).ok()) << "a guest waits";
  call.Made(TwoChanges());
  EXPECT_EQ(log->lost(), 2U);
  LimitFiles(RLIM_INFINITY);
  call.Made(TwoChanges());
  const std::string added = ReadAll(log_path_).substr(before);
  EXPECT_THAT(added, HasSubstr(R"("object":"disks/a","after":{"spec":{}})"));
  EXPECT_THAT(added, HasSubstr(R"("object":"disks/b","before":{"spec":{}})"));
}

TEST_F(HalfFullAuditLogTest, AStateThatIsTooLongIsLeftOut) {
  const auto log = std::move(AuditLog::Open(log_path_).value());
  AuditRecord record = Call();
  record.kind = "disk";
  record.object = "disks/a";
  record.before = '"' + std::string(kStateBytesMax - 2, 'x') + '"';
  record.after = '"' + std::string(kStateBytesMax - 1, 'x') + '"';
  ASSERT_TRUE(log->Write(record).ok());
  const std::string line = ReadAll(log_path_);
  EXPECT_THAT(line, HasSubstr(R"("before":"xxxx)"));
  EXPECT_THAT(line, HasSubstr(fmt::format(R"("after":{{"omitted_bytes":{}}})", kStateBytesMax + 1)));
  const std::vector<AuditRecord> many(kBatchBytesMax / kStateBytesMax + 10, record);
  ASSERT_TRUE(log->Write(many).ok());
  EXPECT_LT(ReadAll(log_path_).size(), kBatchBytesMax + many.size() * 1024);
}

}  // namespace
}  // namespace cleat::control::audit_changes_test
