// SPDX-License-Identifier: Apache-2.0
// Who may call what: roles on the unix socket and over mutual TLS, the audit log, certificates that are replaced. Over
// real gRPC; certificates are made by the openssl command.
#include <sys/resource.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <filesystem>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "control/daemon.h"
#include "control/model/reasons.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "open_paths.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::api_security_test {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string ReasonIn(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details()) || details.details_size() != 1) return "no details";
  if (!details.details(0).UnpackTo(&info) || info.domain() != "cleat") return "no ErrorInfo";
  return info.reason();
}

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

class SecurityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.state_dir = dir_.path();
    options_.paths_file = OpenPaths(dir_ / "paths.conf");
    options_.api_socket = dir_ / "api.sock";
    options_.engine_socket = dir_ / "engine.sock";
    options_.audit_log = dir_ / "audit.json";
  }
  void Start() {
    auto daemon = Daemon::Start(options_);
    ASSERT_TRUE(daemon.ok()) << daemon.error().message;
    daemon_ = std::move(*daemon);
  }

  static grpc::Status Create(v1::Cleat::Stub& stub, const std::string& id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::Disk disk;
    return stub.CreateDisk(&context, NullDisk(id), &disk);
  }
  static grpc::Status List(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ListDisksResponse response;
    return stub.ListDisks(&context, {}, &response);
  }
  static grpc::Status Delete(v1::Cleat::Stub& stub, const std::string& id, bool purge) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::DeleteDiskRequest request;
    request.set_name("disks/" + id);
    request.set_purge(purge);
    v1::DeleteDiskResponse response;
    return stub.DeleteDisk(&context, request, &response);
  }
  static grpc::Status Undelete(v1::Cleat::Stub& stub, const std::string& id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::UndeleteDiskRequest request;
    request.set_name("disks/" + id);
    v1::Disk disk;
    return stub.UndeleteDisk(&context, request, &disk);
  }
  static grpc::Status Purge(v1::Cleat::Stub& stub, const std::string& id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::PurgeDiskRequest request;
    request.set_name("disks/" + id);
    v1::PurgeDiskResponse response;
    return stub.PurgeDisk(&context, request, &response);
  }
  template <typename Request, typename Response>
  static grpc::Status Call(v1::Cleat::Stub& stub,
                           grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                   Response*),
                           const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    Response response;
    return (stub.*method)(&context, request, &response);
  }
  static grpc::Status ScanDrive(v1::Cleat::Stub& stub) {
    v1::ScanDriveRequest request;
    request.set_device("/dev/null");
    return Call(stub, &v1::Cleat::Stub::ScanDrive, request);
  }
  static grpc::Status CreatePool(v1::Cleat::Stub& stub, const std::string& id) {
    v1::CreatePoolRequest request;
    request.set_pool_id(id);
    request.mutable_pool()->mutable_spec()->set_device("/nowhere");
    return Call(stub, &v1::Cleat::Stub::CreatePool, request);
  }
  static grpc::Status DeletePool(v1::Cleat::Stub& stub, const std::string& id) {
    v1::DeletePoolRequest request;
    request.set_name("pools/" + id);
    return Call(stub, &v1::Cleat::Stub::DeletePool, request);
  }
  static grpc::Status GetPool(v1::Cleat::Stub& stub, const std::string& id) {
    v1::GetPoolRequest request;
    request.set_name("pools/" + id);
    return Call(stub, &v1::Cleat::Stub::GetPool, request);
  }
  static grpc::Status ListPools(v1::Cleat::Stub& stub) {
    return Call(stub, &v1::Cleat::Stub::ListPools, v1::ListPoolsRequest());
  }
  static grpc::Status Backup(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto reader = stub.BackupStore(&context, {});
    v1::BackupStoreResponse piece;
    while (reader->Read(&piece)) {
    }
    return reader->Finish();
  }
  // Of nothing that is a store.
  static grpc::Status Restore(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::RestoreStoreResponse response;
    const auto writer = stub.RestoreStore(&context, &response);
    v1::RestoreStoreRequest request;
    request.mutable_options()->set_size_bytes(4);
    writer->Write(request);
    request.set_data("none");
    writer->Write(request);
    writer->WritesDone();
    return writer->Finish();
  }
  // Opens the upload, and never sends anything.
  static grpc::Status RestoreNothing(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::RestoreStoreResponse response;
    return stub.RestoreStore(&context, &response)->Finish();
  }
  static grpc::Status ApplyExact(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ApplyHostRequest request;
    request.set_mode(v1::APPLY_MODE_EXACT);
    request.set_allow_empty(true);
    request.set_max_removals(100);
    v1::ApplyHostResponse response;
    return stub.ApplyHost(&context, request, &response);
  }

  test::TempDir dir_;
  DaemonOptions options_;
  std::unique_ptr<Daemon> daemon_;
};

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

// ---- Mutual TLS ----

class TlsTest : public SecurityTest {
 protected:
  void Run(const std::string& command) {
    const std::string all = "cd " + dir_.path() + " && { " + command + "; } >openssl.log 2>&1";
    ASSERT_EQ(std::system(all.c_str()), 0) << ReadAll(dir_ / "openssl.log");  // NOLINT(concurrency-mt-unsafe)
  }
  void MakeCa(const std::string& ca) {
    Run(fmt::format(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={0} "
        "-keyout {0}.key -out {0}.pem",
        ca));
  }
  void MakeCertificate(const std::string& ca, const std::string& name, const std::string& file) {
    Run(fmt::format(
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={1} -keyout {2}.key "
        "-out {2}.csr && printf 'subjectAltName=DNS:{1},DNS:localhost' > {2}.ext && "
        "openssl x509 -req -in {2}.csr -CA {0}.pem -CAkey {0}.key -CAcreateserial -days 1 -extfile {2}.ext "
        "-out {2}.pem",
        ca, name, file));
  }
  void SetUp() override {
    SecurityTest::SetUp();
    ASSERT_NO_FATAL_FAILURE(MakeCa("ca"));
    ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", "cleatd.example", "server"));
    options_.tls_address = "127.0.0.1:0";
    options_.tls = {
        .certificate = dir_ / "server.pem", .key = dir_ / "server.key", .client_ca = dir_ / "ca.pem"};
  }

  // A connection of its own, as `name`, that trusts `ca`. No name: shows no certificate.
  std::unique_ptr<v1::Cleat::Stub> Dial(const std::string& name, const std::string& ca = "ca") {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ReadAll(dir_ / (ca + ".pem"));
    if (!name.empty()) {
      options.pem_cert_chain = ReadAll(dir_ / (name + ".pem"));
      options.pem_private_key = ReadAll(dir_ / (name + ".key"));
    }
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::Cleat::NewStub(grpc::CreateCustomChannel(fmt::format("127.0.0.1:{}", daemon_->tls_port()),
                                                        grpc::SslCredentials(options), arguments));
  }
};

TEST_F(TlsTest, CertificatesHaveTheRolesThatTheirNamesWereGranted) {
  ASSERT_TRUE(options_.grants.Add("read=cert:reader.example").ok());
  ASSERT_TRUE(options_.grants.Add("attach=cert:attacher.example").ok());
  ASSERT_TRUE(options_.grants.Add("admin=cert:boss.example").ok());
  for (const char* name : {"reader", "attacher", "boss", "stranger"}) {
    ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", std::string(name) + ".example", name));
  }
  Start();
  const auto reader = Dial("reader");
  EXPECT_TRUE(List(*reader).ok()) << List(*reader).error_message();
  EXPECT_EQ(ReasonIn(Create(*reader, "a")), "ROLE_MISSING");
  const auto attacher = Dial("attacher");
  EXPECT_TRUE(Create(*attacher, "a").ok());
  const grpc::Status exact = ApplyExact(*attacher);
  EXPECT_EQ(exact.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(ApplyExact(*Dial("boss")).ok());
  EXPECT_EQ(ReasonIn(List(*Dial("stranger"))), "ROLE_MISSING");
  const std::string audit = ReadAll(options_.audit_log);
  EXPECT_NE(audit.find(R"("caller":"certificate reader.example","role":"read","method":"CreateDisk")"),
            std::string::npos)
      << audit;
}

TEST_F(TlsTest, PurgingAndBackupsTakeTheRoleAdminAndAreAudited) {
  ASSERT_TRUE(options_.grants.Add("read=cert:reader.example").ok());
  ASSERT_TRUE(options_.grants.Add("attach=cert:attacher.example").ok());
  ASSERT_TRUE(options_.grants.Add("admin=cert:boss.example").ok());
  for (const char* name : {"reader", "attacher", "boss"})
    ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", std::string(name) + ".example", name));
  Start();
  const auto attacher = Dial("attacher");
  const auto boss = Dial("boss");
  ASSERT_TRUE(Create(*attacher, "a").ok());
  EXPECT_EQ(ReasonIn(Delete(*attacher, "a", true)), "ROLE_MISSING");
  EXPECT_TRUE(Delete(*attacher, "a", false).ok());
  EXPECT_EQ(ReasonIn(Undelete(*Dial("reader"), "a")), "ROLE_MISSING");
  EXPECT_TRUE(Undelete(*attacher, "a").ok()) << "refused calls have done nothing";
  EXPECT_TRUE(Delete(*attacher, "a", false).ok());
  EXPECT_EQ(ReasonIn(Purge(*attacher, "a")), "ROLE_MISSING");
  EXPECT_EQ(daemon_->state().kept_disks().Count(), 1U);
  EXPECT_TRUE(Purge(*boss, "a").ok());
  EXPECT_EQ(daemon_->state().kept_disks().Count(), 0U);
  ASSERT_TRUE(Create(*attacher, "b").ok());
  EXPECT_TRUE(Delete(*boss, "b", true).ok());
  EXPECT_EQ(ReasonIn(Backup(*attacher)), "ROLE_MISSING");
  EXPECT_TRUE(Backup(*boss).ok());
  EXPECT_EQ(ReasonIn(Restore(*attacher)), "ROLE_MISSING");
  EXPECT_EQ(ReasonIn(Restore(*boss)), "BACKUP_UNUSABLE");
  const std::string audit = ReadAll(options_.audit_log);
  for (const char* record :
       {R"("role":"attach","method":"UndeleteDisk","resource":"disks/a","code":"OK")",
        R"("role":"attach","method":"PurgeDisk","resource":"disks/a","code":"PERMISSION_DENIED")",
        R"("role":"attach","method":"BackupStore","resource":"store","code":"PERMISSION_DENIED")",
        R"("role":"admin","method":"BackupStore","resource":"store","code":"OK")",
        R"("role":"attach","method":"RestoreStore","resource":"store","code":"PERMISSION_DENIED")",
        R"("role":"admin","method":"RestoreStore","resource":"store","code":"INVALID_ARGUMENT")",
        R"("role":"admin","method":"PurgeDisk","resource":"disks/a","code":"OK")",
        R"-("role":"admin","method":"DeleteDisk(purge)","resource":"disks/b","code":"OK")-"}) {
    EXPECT_NE(audit.find(record), std::string::npos) << record << "\n" << audit;
  }
}

TEST_F(TlsTest, MakingAndDeletingPoolsTakeTheRoleAdminAndAreAudited) {
  ASSERT_TRUE(options_.grants.Add("read=cert:reader.example").ok());
  ASSERT_TRUE(options_.grants.Add("attach=cert:attacher.example").ok());
  ASSERT_TRUE(options_.grants.Add("admin=cert:boss.example").ok());
  for (const char* name : {"reader", "attacher", "boss", "stranger"})
    ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", std::string(name) + ".example", name));
  Start();
  const auto attacher = Dial("attacher");
  const auto boss = Dial("boss");
  EXPECT_EQ(ReasonIn(CreatePool(*attacher, "p")), "ROLE_MISSING");
  EXPECT_EQ(ReasonIn(DeletePool(*attacher, "p")), "ROLE_MISSING");
  // The device is none: what cleatd says of it is not about roles.
  EXPECT_NE(ReasonIn(CreatePool(*boss, "p")), "ROLE_MISSING");
  EXPECT_EQ(ReasonIn(ScanDrive(*attacher)), "ROLE_MISSING");
  EXPECT_NE(ReasonIn(ScanDrive(*boss)), "ROLE_MISSING");
  EXPECT_NE(ReasonIn(DeletePool(*boss, "p")), "ROLE_MISSING");
  const auto reader = Dial("reader");
  EXPECT_NE(ReasonIn(GetPool(*reader, "p")), "ROLE_MISSING");
  EXPECT_NE(ReasonIn(ListPools(*reader)), "ROLE_MISSING");
  EXPECT_EQ(ReasonIn(GetPool(*Dial("stranger"), "p")), "ROLE_MISSING");
  EXPECT_EQ(ReasonIn(ListPools(*Dial("stranger"))), "ROLE_MISSING");
  const std::string audit = ReadAll(options_.audit_log);
  for (const char* record :
       {R"("role":"attach","method":"CreatePool","resource":"pools/p","code":"PERMISSION_DENIED")",
        R"("role":"attach","method":"DeletePool","resource":"pools/p","code":"PERMISSION_DENIED")",
        R"("role":"admin","method":"CreatePool","resource":"pools/p")",
        R"("role":"admin","method":"DeletePool","resource":"pools/p")"}) {
    EXPECT_NE(audit.find(record), std::string::npos) << record << "\n" << audit;
  }
}

// Who is not admitted is answered before anything is read: an upload that never comes would hold one of the API's threads.
TEST_F(TlsTest, AnUploadIsNotAwaitedFromACallerWithoutTheRole) {
  ASSERT_TRUE(options_.grants.Add("attach=cert:attacher.example").ok());
  for (const char* name : {"attacher", "stranger"})
    ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", std::string(name) + ".example", name));
  Start();
  EXPECT_EQ(ReasonIn(RestoreNothing(*Dial("attacher"))), "ROLE_MISSING");
  EXPECT_EQ(ReasonIn(RestoreNothing(*Dial("stranger"))), "ROLE_MISSING");
}

TEST_F(TlsTest, APlainKeyIsTakenOverTheUnixSocketOnly) {
  ASSERT_TRUE(options_.grants.Add("admin=cert:boss.example").ok());
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", "boss.example", "boss"));
  Start();
  std::string key;
  for (char c = 0; c < 64; ++c) key += c;
  auto request = NullDisk("secret");
  request.mutable_disk()->mutable_spec()->mutable_encryption()->set_plain_key(key);
  const auto create = [&](v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    v1::Disk disk;
    return stub.CreateDisk(&context, request, &disk);
  };
  const auto network = Dial("boss");
  const grpc::Status refused = create(*network);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ReasonIn(refused), "PLAIN_KEY_NOT_LOCAL");
  v1::ApplyHostRequest host;
  *host.add_disks() = request.disk();
  host.mutable_disks(0)->set_name("disks/secret");
  grpc::ClientContext context;
  v1::ApplyHostResponse response;
  EXPECT_EQ(ReasonIn(network->ApplyHost(&context, host, &response)), "PLAIN_KEY_NOT_LOCAL");

  const auto local = v1::Cleat::NewStub(
      grpc::CreateChannel("unix:" + options_.api_socket, grpc::InsecureChannelCredentials()));
  EXPECT_TRUE(create(*local).ok());
  grpc::ClientContext again;
  v1::ApplyHostResponse applied;
  ASSERT_TRUE(local->ApplyHost(&again, host, &applied).ok());
  EXPECT_EQ(applied.results(0).action(), v1::APPLY_ACTION_UNCHANGED);
  // What an answer shows is as good as a declaration, also from afar.
  grpc::ClientContext get_context;
  v1::GetDiskRequest get;
  get.set_name("disks/secret");
  v1::Disk shown;
  ASSERT_TRUE(network->GetDisk(&get_context, get, &shown).ok());
  EXPECT_TRUE(shown.spec().encryption().wrapped_key().data().empty());
  *host.mutable_disks(0) = shown;
  grpc::ClientContext third;
  ASSERT_TRUE(network->ApplyHost(&third, host, &applied).ok());
  EXPECT_EQ(applied.results(0).action(), v1::APPLY_ACTION_UNCHANGED) << applied.DebugString();
}

TEST_F(TlsTest, AClustersKeyIsTakenOverTheUnixSocketOnly) {
  ASSERT_TRUE(options_.grants.Add("admin=cert:boss.example").ok());
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", "boss.example", "boss"));
  Start();
  constexpr char kKey[] = "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw==";
  v1::CreateClusterRequest request;
  request.set_cluster_id("ceph");
  request.mutable_cluster()->mutable_spec()->set_monitors("10.0.0.1");
  request.mutable_cluster()->mutable_spec()->set_user("cleat");
  request.mutable_cluster()->mutable_spec()->set_plain_key(kKey);
  v1::UpdateClusterRequest update;
  *update.mutable_cluster() = request.cluster();
  update.mutable_cluster()->set_name("clusters/ceph");
  update.mutable_update_mask()->add_paths("spec");
  v1::ApplyHostRequest host;
  *host.add_clusters() = update.cluster();
  const auto network = Dial("boss");
  const auto local = v1::Cleat::NewStub(
      grpc::CreateChannel("unix:" + options_.api_socket, grpc::InsecureChannelCredentials()));
  v1::Cluster cluster;
  const auto create = [&](v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    return stub.CreateCluster(&context, request, &cluster);
  };
  const auto change = [&](v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    return stub.UpdateCluster(&context, update, &cluster);
  };
  const auto apply = [&](v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    v1::ApplyHostResponse response;
    return stub.ApplyHost(&context, host, &response);
  };
  EXPECT_EQ(ReasonIn(create(*network)), "PLAIN_KEY_NOT_LOCAL");
  EXPECT_EQ(ReasonIn(change(*network)), "PLAIN_KEY_NOT_LOCAL");
  EXPECT_EQ(ReasonIn(apply(*network)), "PLAIN_KEY_NOT_LOCAL");
  EXPECT_TRUE(create(*local).ok());
  EXPECT_TRUE(change(*local).ok());
  EXPECT_TRUE(apply(*local).ok());
  EXPECT_EQ(cluster.SerializeAsString().find(kKey), std::string::npos);
  daemon_.reset();
  EXPECT_EQ(ReadAll(options_.audit_log).find(kKey), std::string::npos);
}

TEST_F(TlsTest, WithoutACertificateOfTheCaNobodyGetsIn) {
  ASSERT_TRUE(options_.grants.Add("admin=cert:boss.example").ok());
  ASSERT_NO_FATAL_FAILURE(MakeCa("other"));
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("other", "boss.example", "impostor"));
  Start();
  EXPECT_EQ(List(*Dial("")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(List(*Dial("impostor")).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, NewCertificatesAreTakenAndWrongOnesAreNot) {
  ASSERT_TRUE(options_.grants.Add("read=cert:reader.example").ok());
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", "reader.example", "reader"));
  Start();
  const auto before = Dial("reader");
  ASSERT_TRUE(List(*before).ok());

  // A key of another certificate: refused, the old pair stays.
  const std::string good_key = ReadAll(options_.tls.key);
  std::ofstream(options_.tls.key) << ReadAll(dir_ / "reader.key");
  daemon_->Reload();
  EXPECT_TRUE(List(*Dial("reader")).ok());
  std::ofstream(options_.tls.key) << good_key;

  // Another CA altogether.
  ASSERT_NO_FATAL_FAILURE(MakeCa("next"));
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("next", "cleatd.example", "server"));
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("next", "reader.example", "next-reader"));
  std::filesystem::copy_file(dir_ / "next.pem", options_.tls.client_ca,
                             std::filesystem::copy_options::overwrite_existing);
  daemon_->Reload();
  EXPECT_TRUE(List(*Dial("next-reader", "next")).ok());
  EXPECT_EQ(List(*Dial("reader", "next")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(List(*before).ok()) << "connections that exist stay";
}

TEST_F(TlsTest, WrongFilesAreNamedAtTheStart) {
  options_.tls.key = dir_ / "none.key";
  const auto daemon = Daemon::Start(options_);
  ASSERT_FALSE(daemon.ok());
  EXPECT_NE(daemon.error().message.find("none.key"), std::string::npos);
}

}  // namespace
}  // namespace cleat::control::api_security_test
