// SPDX-License-Identifier: Apache-2.0
// Who may call what on the unix socket: the roles that callers were granted, the audit log, and what every gRPC server
// has. The calls go over real gRPC.
#include <fmt/format.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "api_security_rig.h"

namespace cleat::control::api_security_rig::api_security_test {
namespace {

// ---- Grants ----

Caller Local(uid_t uid, std::set<gid_t> gids = {}) {
  Caller caller;
  caller.kind = Caller::Kind::kLocal;
  caller.uid = uid;
  caller.gids = std::move(gids);
  return caller;
}

Caller Certificate(std::vector<std::string> names) {
  Caller caller;
  caller.kind = Caller::Kind::kCertificate;
  caller.names = std::move(names);
  return caller;
}

TEST(GrantsTest, RootAndOneselfAreAdminAndNobodyElseIsAnything) {
  const Grants grants;
  EXPECT_EQ(grants.RoleOf(Local(0)), Role::kAdmin);
  EXPECT_EQ(grants.RoleOf(Local(geteuid())), Role::kAdmin);
  EXPECT_EQ(grants.RoleOf(Local(4711)), Role::kNone);
  EXPECT_EQ(grants.RoleOf(Certificate({"root", "0", ""})), Role::kNone);
  EXPECT_EQ(grants.RoleOf(Caller()), Role::kNone) << "an unknown caller has uid 0 by default, and is nobody";
}

TEST(GrantsTest, TheHighestOfTheGrantsCounts) {
  Grants grants;
  ASSERT_TRUE(grants.Add("read=uid:4711").ok());
  ASSERT_TRUE(grants.Add("attach=gid:99").ok());
  ASSERT_TRUE(grants.Add("admin=cert:cp.example").ok());
  EXPECT_EQ(grants.RoleOf(Local(4711, {4711})), Role::kRead);
  EXPECT_EQ(grants.RoleOf(Local(4711, {4711, 99})), Role::kAttach);
  EXPECT_EQ(grants.RoleOf(Certificate({"other", "cp.example"})), Role::kAdmin);
  EXPECT_EQ(grants.RoleOf(Certificate({"cp.example.org"})), Role::kNone);
}

TEST(GrantsTest, WrongGrantsAreRefused) {
  Grants grants;
  for (const char* text :
       {"", "read", "read=", "read=uid", "read=uid:", "boss=uid:1", "read=uid:no-such-user-here",
        "read=gid:no-such-group-here", "read=host:a", ":read=uid"}) {
    EXPECT_FALSE(grants.Add(text).ok()) << text;
  }
}

TEST(AuditTest, ARecordIsOneLineOfJsonWhateverIsInIt) {
  const std::string line = ToJson({.caller = "certificate a\"b\n",
                                   .role = Role::kAttach,
                                   .method = "AttachDisk",
                                   .resource = "x\\y",
                                   .code = "OK",
                                   .reason = "",
                                   .duration_us = 5},
                                  1'700'000'000'123);
  EXPECT_EQ(line, R"({"time":"2023-11-14T22:13:20.123Z","caller":"certificate a\"b\u000a","role":"attach",)"
                  R"("method":"AttachDisk","resource":"x\\y","code":"OK","reason":"","duration_us":5})");
}

// ---- The unix socket ----

// A file system that is full, until Mend.
class FullAuditLogTest : public SecurityTest {
 protected:
  void Start() {
    std::filesystem::create_symlink("/dev/full", options_.audit_log);
    SecurityTest::Start();
    stub_ = v1::Cleat::NewStub(
        grpc::CreateChannel("unix:" + options_.api_socket, grpc::InsecureChannelCredentials()));
  }
  void Mend() const { std::filesystem::remove(options_.audit_log); }
  grpc::Status Create(const std::string& id, const std::string& request_id) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", request_id);
    v1::Disk disk;
    return stub_->CreateDisk(&context, NullDisk(id), &disk);
  }
  std::string Records() const { return ReadAll(options_.audit_log); }
  std::unique_ptr<v1::Cleat::Stub> stub_;
};

TEST_F(FullAuditLogTest, RefusesNothingUnlessRecordsAreRequired) {
  Start();
  EXPECT_TRUE(Create("a", "1").ok());
  Mend();
  EXPECT_TRUE(Create("b", "2").ok());
  EXPECT_NE(Records().find(R"("resource":"disks/b","code":"OK")"), std::string::npos) << Records();
  EXPECT_EQ(Records().find("disks/a"), std::string::npos);
}

TEST_F(FullAuditLogTest, NothingIsChangedWithoutTheRequiredRecordOfTheIntent) {
  options_.audit_required = true;
  Start();
  const grpc::Status refused = Create("a", "1");
  EXPECT_EQ(ReasonIn(refused), "AUDIT_UNWRITABLE") << refused.error_message();
  EXPECT_NE(refused.error_message().find(options_.audit_log), std::string::npos) << refused.error_message();
  EXPECT_FALSE(daemon_->state().disks().Get(GetDisk("a")).ok()) << "the change was not made";
  EXPECT_TRUE(List(*stub_).ok());
  Mend();
  EXPECT_TRUE(Create("a", std::string(1000, 'x')).ok());
  const std::string records = Records();
  const std::string request = R"(,"request":")" + std::string(128, 'x') + R"( ...")";
  const size_t intent = records.find(request + R"(,"phase":"intent"})");
  const size_t outcome = records.find(R"("code":"OK")");
  EXPECT_TRUE(intent < outcome && outcome != std::string::npos) << records;
  EXPECT_NE(records.find(request + "}", outcome), std::string::npos) << records;
}

TEST(AuditTest, ARecordOfWhichAPieceWasWrittenIsFollowedByALineOfItsOwn) {
  const test::TempDir dir;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  auto log = std::move(AuditLog::Open(dir / "audit").value());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  AuditRecord record;
  record.method = "CreateDisk";
  const bool refused = !log->Write(record).ok();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(refused);
  EXPECT_EQ(log->lost(), 1U);
  EXPECT_TRUE(log->Write(record).ok());
  const std::string text = ReadAll(dir / "audit");
  EXPECT_EQ(text[10], '\n') << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

TEST_F(SecurityTest, TheKernelSaysWhoCallsAndTheAuditLogKeepsIt) {
  Start();
  const auto stub = v1::Cleat::NewStub(
      grpc::CreateChannel("unix:" + options_.api_socket, grpc::InsecureChannelCredentials()));
  EXPECT_TRUE(Create(*stub, "a").ok());
  EXPECT_EQ(ReasonIn(Create(*stub, "B")), "INVALID_NAME");
  EXPECT_TRUE(List(*stub).ok());
  daemon_.reset();
  const std::string audit = ReadAll(options_.audit_log);
  const std::string caller = fmt::format(R"("caller":"uid {}, pid {}","role":"admin")", getuid(), getpid());
  EXPECT_NE(audit.find(caller + R"(,"method":"CreateDisk","resource":"disks/a","code":"OK")"),
            std::string::npos)
      << audit;
  EXPECT_NE(audit.find(R"("resource":"disks/B","code":"INVALID_ARGUMENT","reason":"INVALID_NAME")"),
            std::string::npos)
      << audit;
  EXPECT_EQ(std::count(audit.begin(), audit.end(), '\n'), 2) << "reading leaves no record";
}

// ---- What every gRPC server of the field has: health, reflection. Their bytes are given and read as they are. ----

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

// One message there, one back, whether the method is a stream or not.
std::string Exchange(const std::string& socket, const std::string& method, const std::string& bytes) {
  grpc::GenericStub stub(grpc::CreateChannel("unix:" + socket, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  grpc::Status status;
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  if (!wait()) return "no call";
  call->WriteLast(request, {}, nullptr);
  if (!wait()) return "no write";
  call->Read(&reply, nullptr);
  const bool read = wait();
  call->Finish(&status, nullptr);
  wait();
  return read ? BytesOf(reply) : status.error_message();
}

TEST_F(SecurityTest, HealthAndReflectionAnswer) {
  Start();
  const std::string serving("\x08\x01", 2);  // HealthCheckResponse{status: SERVING}
  const std::string cleat(
      "\x0a\x0e"
      "cleat.v1.Cleat",
      16);
  // The first thing that the listener's thread does is to look at the store.
  EXPECT_EQ(Exchange(options_.api_socket, "/grpc.health.v1.Health/Check", cleat), serving);
  EXPECT_EQ(Exchange(options_.api_socket, "/grpc.health.v1.Health/Check", ""), serving);
  const std::string list_services("\x3a\x00", 2);
  const std::string services = Exchange(
      options_.api_socket, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", list_services);
  EXPECT_NE(services.find("cleat.v1.Cleat"), std::string::npos) << services;
}

}  // namespace
}  // namespace cleat::control::api_security_rig::api_security_test
