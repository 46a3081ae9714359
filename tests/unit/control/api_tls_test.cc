// SPDX-License-Identifier: Apache-2.0
// Who may call what over mutual TLS: roles by the names in certificates, and certificates that are replaced. The calls go over real gRPC;
// certificates are made by the openssl command.
#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "api_security_rig.h"
#include "control/model/reasons.h"
#include "fake_engine.h"
#include "silent_relay.h"

namespace cleat::control::api_security_rig::api_tls_test {
namespace {

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
  std::unique_ptr<v1::Cleat::Stub> Dial(const std::string& name, const std::string& ca = "ca", int port = 0) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ReadAll(dir_ / (ca + ".pem"));
    if (!name.empty()) {
      options.pem_cert_chain = ReadAll(dir_ / (name + ".pem"));
      options.pem_private_key = ReadAll(dir_ / (name + ".key"));
    }
    grpc::ChannelArguments arguments;
    arguments.SetSslTargetNameOverride("localhost");
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::Cleat::NewStub(
        grpc::CreateCustomChannel(fmt::format("127.0.0.1:{}", port == 0 ? daemon_->tls_port() : port),
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
  EXPECT_EQ(ReasonIn(Discover(*reader)), "ROLE_MISSING");
  const auto attacher = Dial("attacher");
  EXPECT_EQ(ReasonIn(Discover(*attacher)), "ENGINE_NOT_CONNECTED");
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

// A caller who is not admitted is answered before anything is read: an upload that never comes would hold one of the API's threads.
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

TEST_F(TlsTest, ASubsystemsSecretsAreTakenOverTheUnixSocketOnly) {
  ASSERT_TRUE(options_.grants.Add("admin=cert:boss.example").ok());
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", "boss.example", "boss"));
  Start();
  const v1::CreateSubsystemRequest request = SecretSubsystem("array");
  v1::UpdateSubsystemRequest update = Update(request);
  v1::ApplyHostRequest host;
  *host.add_subsystems() = update.subsystem();
  v1::Subsystem subsystem;
  const auto create = [&](v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    return stub.CreateSubsystem(&context, request, &subsystem);
  };
  const auto change = [&](v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    return stub.UpdateSubsystem(&context, update, &subsystem);
  };
  const auto apply = [&](v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    v1::ApplyHostResponse response;
    return stub.ApplyHost(&context, host, &response);
  };
  const auto network = Dial("boss");
  const auto local = v1::Cleat::NewStub(
      grpc::CreateChannel("unix:" + options_.api_socket, grpc::InsecureChannelCredentials()));
  for (const auto& call :
       std::initializer_list<std::function<grpc::Status(v1::Cleat::Stub&)>>{create, change, apply}) {
    EXPECT_EQ(ReasonIn(call(*network)), "PLAIN_KEY_NOT_LOCAL");
  }
  EXPECT_TRUE(create(*local).ok());
  EXPECT_TRUE(change(*local).ok());
  EXPECT_TRUE(apply(*local).ok());
  EXPECT_EQ(subsystem.SerializeAsString().find(kChapSecret), std::string::npos);
  // What an answer shows is as good as a declaration, also from afar.
  *host.mutable_subsystems(0) = subsystem;
  EXPECT_TRUE(apply(*network).ok());
  daemon_.reset();
  EXPECT_EQ(ReadAll(options_.audit_log).find(kChapSecret), std::string::npos);
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

// Nothing tells cleatd that the host of a caller has died, and the kernel of either side keeps the connection. One whose host lives is left alone,
// however long it hears nothing.
TEST_F(TlsTest, AWatcherWhoseHostHasDiedLeavesItsPlace) {
  ASSERT_TRUE(options_.grants.Add("attach=cert:watcher.example").ok());
  ASSERT_NO_FATAL_FAILURE(MakeCertificate("ca", "watcher.example", "watcher"));
  options_.keep_alive = {.time = std::chrono::milliseconds(100), .timeout = std::chrono::seconds(8)};
  Start();
  FakeEngine engine(options_.engine_socket);
  engine.SetDiscovery({{}});
  ASSERT_TRUE(engine.Connect());
  SilentRelay relay(daemon_->tls_port());
  const auto stub = Dial("watcher", "ca", relay.port());
  grpc::ClientContext context;  // without a deadline, which would end the call as well
  v1::DiscoverSubsystemsRequest request;
  request.set_address("10.0.0.1");
  const auto reader = stub->WatchDiscovery(&context, request);
  v1::DiscoverSubsystemsResponse log;
  ASSERT_TRUE(reader->Read(&log)) << reader->Finish().error_message();
  EXPECT_TRUE(relay.AwaitPieces(5)) << "signs of life that it is asked for, and gives";
  engine.TellWatched({{}});
  ASSERT_TRUE(reader->Read(&log)) << reader->Finish().error_message();
  relay.FallSilent();
  engine.WaitForRequest("StopDiscover");
  context.TryCancel();
  EXPECT_FALSE(reader->Finish().ok());
}

}  // namespace
}  // namespace cleat::control::api_security_rig::api_tls_test
