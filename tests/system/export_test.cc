// SPDX-License-Identifier: Apache-2.0
// A disk that one engine exports over NVMe/TCP and another one's disk lies on, on the same host, under a verified load: the engine that
// exports is upgraded and killed, more namespaces come, the disk grows. What was answered is there.
#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "peer.h"
#include "perf/vhost_user/deadline.h"
#include "tests/support/free_address.h"

namespace cleat::system_test::export_test {
namespace {

constexpr uint64_t kDiskBytes = uint64_t{64} << 20;
constexpr char kExporter[] = "exporter";
constexpr uint64_t kRequests = kSanitized ? 300 : 2000;

// A disk in memory, exported by an engine of its own at two addresses, and a disk over it with a guest.
class ExportTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(host_.ok());
    host_.AddEngine(kExporter);
    for (int i = 0; i < 2; ++i) addresses_.push_back(test::FreeAddress());
    v1::SubsystemSpec subsystem = SubsystemOfExport();
    Secure(subsystem);
    const auto known = host_.api().CreateSubsystem("s", subsystem);
    ASSERT_OK(known.status);
    host_nqn_ = known.value.spec().host_nqn();
    ASSERT_NO_FATAL_FAILURE(Export());
    ASSERT_NO_FATAL_FAILURE(UseIt());
  }

  v1::SubsystemSpec SubsystemOfExport() const {
    v1::SubsystemSpec subsystem;
    subsystem.set_nqn("nqn.2024-01.com.example:export");
    for (const std::string& address : addresses_) subsystem.add_addresses(address);
    subsystem.set_keep_alive_ms(2000);
    return subsystem;
  }

  // What the host has to prove, and the subsystem; nothing.
  virtual void Secure(v1::SubsystemSpec& /*subsystem*/) {}
  virtual void Secure(v1::ExportHost& /*host*/) {}

  void Export() {
    ASSERT_OK(host_.api().CreateDisk("inner", MemoryDisk(kDiskBytes)).status);
    v1::ControllerSpec spec;
    spec.set_type(v1::CONTROLLER_TYPE_NVMF);
    spec.set_engine(std::string("engines/") + kExporter);
    spec.mutable_exported()->set_nqn("nqn.2024-01.com.example:export");
    for (const std::string& address : addresses_) spec.mutable_exported()->add_addresses(address);
    v1::ExportHost& host = *spec.mutable_exported()->add_hosts();
    host.set_nqn(host_nqn_);
    Secure(host);
    ASSERT_OK(host_.api().CreateController("e", spec).status);
    ASSERT_OK(host_.api().Attach("e", "inner").status);
    ASSERT_OK(host_.api().WaitReady("controllers/e/attachments/inner"));
  }

  void UseIt() { ASSERT_NO_FATAL_FAILURE(UseIt(host_, peer_)); }
  // By a host that is let in: its disk "a" lies on the exported one.
  void UseIt(Host& host, std::unique_ptr<Peer>& peer) {
    v1::DiskSpec disk;
    disk.set_size_bytes(kDiskBytes);
    auto& backend = *disk.mutable_nvme_tcp();
    backend.set_subsystem("subsystems/s");
    backend.set_namespace_uuid(host_.api().GetAttachment("e", "inner").value.status().namespace_uuid());
    // What a killed engine had under way of a write was not written to this disk after that: it ends with the process.
    disk.mutable_in_doubt()->set_policy(v1::IN_DOUBT_POLICY_ACCEPT);
    ASSERT_OK(host.api().CreateDisk("a", disk).status);
    v1::ControllerSpec spec;
    spec.set_type(v1::CONTROLLER_TYPE_BLK);
    spec.set_socket_path(host.SocketPath("a"));
    spec.set_engine(kEngineName);
    ASSERT_OK(host.api().CreateController("a", spec).status);
    ASSERT_OK(host.api().Attach("a", "a").status);
    auto started = Peer::Start(host.SocketPath("a"));
    ASSERT_OK(started);
    peer = std::move(started).value();
  }

  void Upgrade(const std::string& to) { Upgrade(kExporter, to); }
  void Upgrade(const std::string& from, const std::string& to) {
    v1::UpgradeEngineRequest request;
    request.set_name("engines/" + from);
    request.set_to("engines/" + to);
    v1::UpgradeEngineResponse response;
    grpc::ClientContext begins;
    ASSERT_OK(host_.api().stub().UpgradeEngine(&begins, request, &response));
    // It is moved once the other engine has it ready.
    const perf::Deadline deadline(kWaitTimeoutNs);
    while (host_.api().GetController("e").value.status().engine() != request.to()) {
      ASSERT_FALSE(deadline.passed()) << host_.api().GetController("e").value.ShortDebugString();
      poll(nullptr, 0, 20);
    }
  }

  void TearDown() override {
    if (peer_ == nullptr) return;
    EXPECT_OK(peer_->ShutDown());
  }

  Host host_{HostOptions{.with_keys = true}};
  std::vector<std::string> addresses_;
  std::string host_nqn_;
  std::unique_ptr<Peer> peer_;
  perf::StampedBlocks blocks_{kDiskBytes, 512, 1, /*initially_zero=*/true};
};

TEST_F(ExportTest, WhatWasAnsweredIsThereWhenItsEngineIsKilledAndUpgraded) {
  IoLoad load(peer_->driver(), blocks_, {.seed = 5});
  EXPECT_OK(load.Run(kRequests));
  load.Start();
  ASSERT_TRUE(load.WaitProgress(kRequests / 4));
  host_.engine(kExporter).Kill();
  host_.StartEngine(kExporter);
  ASSERT_TRUE(load.WaitProgress(kRequests / 4));
  host_.AddEngine("next");
  ASSERT_NO_FATAL_FAILURE(Upgrade("next"));
  ASSERT_TRUE(load.WaitProgress(kRequests / 4));
  EXPECT_OK(load.Stop());
  EXPECT_OK(load.Verify());
}

// Both ways, with what the host has under way.
TEST_F(ExportTest, AHostGoesOnOverUpgrades) {
  IoLoad load(peer_->driver(), blocks_, {.seed = 9});
  EXPECT_OK(load.Run(kRequests));
  load.Start();
  ASSERT_TRUE(load.WaitProgress(kRequests / 4));
  host_.AddEngine("next");
  ASSERT_NO_FATAL_FAILURE(Upgrade("next"));
  ASSERT_TRUE(load.WaitProgress(kRequests / 4));
  ASSERT_NO_FATAL_FAILURE(Upgrade("next", kExporter));
  ASSERT_TRUE(load.WaitProgress(kRequests / 4));
  EXPECT_OK(load.Stop());
  EXPECT_OK(load.Verify());
  EXPECT_EQ(host_.CountInEngineLog("disks/a: path broken"), 0U) << "the host's connections stay the same";
}

TEST_F(ExportTest, AHostThatIsTakenOutOfTheListLosesTheDiskAndHasItAgainWhenItIsBack) {
  IoLoad load(peer_->driver(), blocks_, {.seed = 6});
  load.Start();
  ASSERT_TRUE(load.WaitProgress(kRequests / 8));
  v1::Controller changed;
  changed.set_name("controllers/e");
  ASSERT_OK(host_.api().UpdateController(changed, "spec.exported.hosts").status);
  ASSERT_TRUE(host_.WaitEngineLog("disks/a: path broken"));
  changed.mutable_spec()->mutable_exported()->add_hosts()->set_nqn(host_nqn_);
  ASSERT_OK(host_.api().UpdateController(changed, "spec.exported.hosts").status);
  ASSERT_TRUE(load.WaitProgress(kRequests / 8));
  EXPECT_OK(load.Stop());
  EXPECT_OK(load.Verify());
}

// ---- With reservations

// The host keeps others from writing.
class ReservedExportTest : public ExportTest {
 protected:
  using ExportTest::Secure;
  void Secure(v1::SubsystemSpec& subsystem) override {
    subsystem.set_reservations(v1::RESERVATIONS_EXCLUSIVE);
  }
};

// It is let in as well, and knows nothing of reservations.
TEST_F(ReservedExportTest, AnotherHostCannotWriteHoweverTheEngineChanges) {
  Host other{HostOptions{}};
  ASSERT_TRUE(other.ok());
  v1::SubsystemSpec subsystem = SubsystemOfExport();
  const std::string other_id = "8d2f5a3e-4c0b-4a57-9d3e-0b9f6a1c7e32";
  const std::string other_nqn = "nqn.2014-08.org.nvmexpress:uuid:" + other_id;
  subsystem.set_host_nqn(other_nqn);
  subsystem.set_host_id(other_id);
  ASSERT_OK(other.api().CreateSubsystem("s", subsystem).status);
  v1::Controller changed;
  changed.set_name("controllers/e");
  for (const std::string& nqn : {host_nqn_, other_nqn})
    changed.mutable_spec()->mutable_exported()->add_hosts()->set_nqn(nqn);
  ASSERT_OK(host_.api().UpdateController(changed, "spec.exported.hosts").status);
  IoLoad load(peer_->driver(), blocks_, {.seed = 10});
  load.Start();
  ASSERT_TRUE(load.WaitProgress(kRequests / 8));

  std::unique_ptr<Peer> stranger;
  ASSERT_NO_FATAL_FAILURE(UseIt(other, stranger));
  const auto check = [&] {
    std::vector<uint8_t> block(512, 'X');
    EXPECT_FALSE(stranger->driver().WriteSync(0, block)) << "the other host has written";
    EXPECT_OK(stranger->driver().ReadSync(0, block));
    EXPECT_TRUE(load.WaitProgress(kRequests / 8));
  };
  check();
  host_.engine(kExporter).Kill();
  host_.StartEngine(kExporter);
  check();
  host_.AddEngine("next");
  ASSERT_NO_FATAL_FAILURE(Upgrade("next"));
  check();
  EXPECT_OK(load.Stop());
  EXPECT_OK(load.Verify());
  EXPECT_OK(stranger->ShutDown());
}

// ---- With secrets

constexpr char kHostSecret[] = "DHHC-1:01:QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl9YjiZe:";
constexpr char kExportSecret[] = "DHHC-1:00:YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8x9qY5:";
constexpr char kTlsPsk[] = "NVMeTLSkey-1:01:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:";

// Both sides prove themselves, and every connection is TLS.
class SecuredExportTest : public ExportTest {
 protected:
  using ExportTest::Secure;
  void Secure(v1::SubsystemSpec& subsystem) override { SetSecrets(subsystem); }
  void Secure(v1::ExportHost& host) override { SetSecrets(host); }

  template <typename Message>
  static void SetSecrets(Message& message) {
    message.mutable_dhchap_secret()->set_plain_key(kHostSecret);
    message.mutable_dhchap_ctrl_secret()->set_plain_key(kExportSecret);
    message.mutable_tls_psk()->set_plain_key(kTlsPsk);
  }
  // The host has to prove that it has that one.
  void ChangeHostSecret(const char* secret) {
    v1::Controller changed;
    changed.set_name("controllers/e");
    v1::ExportHost& host = *changed.mutable_spec()->mutable_exported()->add_hosts();
    host.set_nqn(host_nqn_);
    host.mutable_dhchap_secret()->set_plain_key(secret);
    ASSERT_OK(host_.api().UpdateController(changed, "spec.exported.hosts").status);
  }
};

TEST_F(SecuredExportTest, AHostWithTheSecretsHasTheDiskAlsoWhenItsEngineIsKilledAndUpgraded) {
  IoLoad load(peer_->driver(), blocks_, {.seed = 7});
  load.Start();
  ASSERT_TRUE(load.WaitProgress(kRequests / 8));
  host_.engine(kExporter).Kill();
  host_.StartEngine(kExporter);
  ASSERT_TRUE(load.WaitProgress(kRequests / 8));
  host_.AddEngine("next");
  ASSERT_NO_FATAL_FAILURE(Upgrade("next"));
  ASSERT_TRUE(load.WaitProgress(kRequests / 8));
  EXPECT_OK(load.Stop());
  EXPECT_OK(load.Verify());
}

TEST_F(SecuredExportTest, AHostWhoseSecretIsAnotherOneLosesTheDiskAndHasItAgainWithTheOldOne) {
  IoLoad load(peer_->driver(), blocks_, {.seed = 8});
  load.Start();
  ASSERT_TRUE(load.WaitProgress(kRequests / 8));
  ASSERT_NO_FATAL_FAILURE(ChangeHostSecret(kExportSecret));
  ASSERT_TRUE(host_.WaitEngineLog("disks/a: path broken"));
  ASSERT_NO_FATAL_FAILURE(ChangeHostSecret(kHostSecret));
  ASSERT_TRUE(load.WaitProgress(kRequests / 8));
  EXPECT_OK(load.Stop());
  EXPECT_OK(load.Verify());
}

}  // namespace
}  // namespace cleat::system_test::export_test
