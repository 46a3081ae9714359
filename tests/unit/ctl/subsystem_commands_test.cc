// SPDX-License-Identifier: Apache-2.0
// Command lines for subsystems (run_fixture.h): what cleatd is asked, where secrets come from, and that none is shown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ctl/app.h"
#include "ctl/client.h"
#include "ctl/subsystem_discovery.h"
#include "fake_cleatd.h"
#include "run_fixture.h"

namespace cleat::ctl::subsystem_commands_test {
namespace {

using fake_cleatd::Refusal;
using run_fixture::Outcome;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "DHHC-1:01:QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl9YjiZe:";

class SubsystemCommands : public run_fixture::RunTest {
 protected:
  // A cleatd with one subsystem, which it shows as it was given, but for secrets.
  SubsystemCommands() {
    cleatd_.create_subsystem = [&](const v1::CreateSubsystemRequest& request, v1::Subsystem& subsystem) {
      EXPECT_EQ(request.subsystem_id(), "array");
      created_ = request.subsystem();
      array_ = created_;
      array_.set_name("subsystems/array");
      for (v1::Secret* const secret :
           {array_.mutable_spec()->mutable_dhchap_secret(), array_.mutable_spec()->mutable_tls_psk()}) {
        if (secret->has_plain_key())
          secret->mutable_wrapped_key()->set_key_encryption_key("0123456789abcdef");
      }
      subsystem = array_;
      return grpc::Status::OK;
    };
    cleatd_.get_subsystem = [&](const v1::GetSubsystemRequest& request, v1::Subsystem& subsystem) {
      EXPECT_EQ(request.name(), "subsystems/array");
      subsystem = array_;
      return grpc::Status::OK;
    };
    cleatd_.update_subsystem = [&](const v1::UpdateSubsystemRequest& request, v1::Subsystem& subsystem) {
      update_ = request;
      subsystem = array_;
      return grpc::Status::OK;
    };
  }
  Outcome Create(std::vector<const char*> more) {
    std::vector<const char*> arguments = {
        "subsystem", "create", "array", "--nqn", "nqn.2014-08.org.example:array", "--address", "10.0.0.1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Ctl(arguments);
  }
  std::string WriteFile(const std::string& name, const std::string& text) {
    std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    return path;
  }

  v1::Subsystem created_;
  v1::Subsystem array_;
  v1::UpdateSubsystemRequest update_;
};

TEST_F(SubsystemCommands, MakeAndChangeOneAsTheCommandLineSays) {
  Outcome outcome =
      Ctl({"subsystem", "create", "array", "--nqn", "nqn.2014-08.org.example:array", "--address", "10.0.0.1",
           "--address", "10.0.1.1", "--data-digest", "--keep-alive-ms", "8000", "--label", "site=b"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("nqn.2014-08.org.example:array  10.0.0.1, 10.0.1.1"));
  EXPECT_THAT(created_.spec().addresses(), testing::ElementsAre("10.0.0.1", "10.0.1.1"));
  EXPECT_TRUE(created_.spec().data_digest());
  EXPECT_FALSE(created_.spec().header_digest());
  EXPECT_EQ(created_.spec().keep_alive_ms(), 8000U);
  EXPECT_EQ(created_.labels().at("site"), "b");
  outcome = Ctl({"subsystem", "get", "array"});
  EXPECT_THAT(outcome.out, HasSubstr("8000 ms"));
  EXPECT_THAT(Ctl({"subsystem", "get", "array", "-o", "yaml"}).out, HasSubstr("10.0.1.1"));

  outcome = Ctl({"subsystem", "update", "subsystems/array", "--no-data-digest", "--address", "10.0.0.2"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_FALSE(update_.subsystem().spec().data_digest());
  EXPECT_THAT(update_.subsystem().spec().addresses(), testing::ElementsAre("10.0.0.2"))
      << "in place of all that there were";
  EXPECT_EQ(update_.subsystem().spec().keep_alive_ms(), 8000U) << "what was not given stays";
  EXPECT_EQ(update_.update_mask().paths_size(), 1);
  outcome = Ctl({"subsystem", "update", "array", "--label", "site=c"});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  EXPECT_EQ(update_.update_mask().paths(0), "labels");
  EXPECT_EQ(Ctl({"subsystem", "create", "array", "--address", "10.0.0.1"}).code, kUsage) << "without its NQN";
}

TEST_F(SubsystemCommands, AddressesOverRdmaAreGivenAndShownBesideOthers) {
  const Outcome made = Create({"--address", "rdma://10.0.0.1", "--address", "rdma://[fd00::1]:4421"});
  ASSERT_EQ(made.code, kOk) << made.err;
  EXPECT_THAT(created_.spec().addresses(),
              testing::ElementsAre("10.0.0.1", "rdma://10.0.0.1", "rdma://[fd00::1]:4421"));
  EXPECT_THAT(made.out, HasSubstr("10.0.0.1, rdma://10.0.0.1, rdma://[fd00::1]:4421"));
  EXPECT_THAT(Ctl({"subsystem", "get", "array", "-o", "yaml"}).out, HasSubstr("rdma://[fd00::1]:4421"));
  ASSERT_EQ(Ctl({"subsystem", "update", "array", "--address", "rdma://10.0.0.2"}).code, kOk);
  EXPECT_THAT(update_.subsystem().spec().addresses(), testing::ElementsAre("rdma://10.0.0.2"));
}

TEST_F(SubsystemCommands, SourcesAndADscpAreGivenShownAndChanged) {
  const Outcome made =
      Create({"--address", "10.0.1.1,from=10.0.1.9", "--address", "rdma://10.0.0.1", "--dscp", "26"});
  ASSERT_EQ(made.code, kOk) << made.err;
  EXPECT_THAT(created_.spec().addresses(),
              testing::ElementsAre("10.0.0.1", "10.0.1.1,from=10.0.1.9", "rdma://10.0.0.1"));
  EXPECT_EQ(created_.spec().dscp(), 26U);
  EXPECT_THAT(made.out, HasSubstr("10.0.0.1, 10.0.1.1,from=10.0.1.9, rdma://10.0.0.1"));
  EXPECT_THAT(Ctl({"subsystem", "get", "array"}).out, testing::ContainsRegex("dscp +26\n"));
  ASSERT_EQ(Ctl({"subsystem", "update", "array", "--keep-alive-ms", "8000"}).code, kOk);
  EXPECT_EQ(update_.subsystem().spec().dscp(), 26U) << "what was not given stays";
  ASSERT_EQ(Ctl({"subsystem", "update", "array", "--dscp", "0"}).code, kOk);
  EXPECT_EQ(update_.subsystem().spec().dscp(), 0U);
  EXPECT_EQ(Create({"--dscp", "af31"}).code, kUsage);
}

TEST_F(SubsystemCommands, ReservationsAreSaidAndShownInWords) {
  const Outcome made = Create({"--reservations", "exclusive"});
  ASSERT_EQ(made.code, kOk) << made.err;
  EXPECT_EQ(created_.spec().reservations(), v1::RESERVATIONS_EXCLUSIVE);
  array_.mutable_status()->set_reservation_family("4c0f7d1e-8a55-4d0b");
  const Outcome shown = Ctl({"subsystem", "get", "array"});
  EXPECT_THAT(shown.out, HasSubstr("exclusive"));
  EXPECT_THAT(shown.out, HasSubstr("4c0f7d1e-8a55-4d0b"));

  ASSERT_EQ(Ctl({"subsystem", "update", "array", "--reservations", "proof"}).code, kOk);
  EXPECT_EQ(update_.subsystem().spec().reservations(), v1::RESERVATIONS_PROOF);
  ASSERT_EQ(Ctl({"subsystem", "update", "array", "--keep-alive-ms", "8000"}).code, kOk);
  EXPECT_EQ(update_.subsystem().spec().reservations(), v1::RESERVATIONS_EXCLUSIVE) << "what it was stays";
  ASSERT_EQ(Ctl({"subsystem", "update", "array", "--reservations", "off"}).code, kOk);
  EXPECT_EQ(update_.subsystem().spec().reservations(), v1::RESERVATIONS_OFF);
  EXPECT_EQ(Create({"--reservations", "shared"}).code, kUsage);
}

TEST_F(SubsystemCommands, SecretsComeFromFilesAndAreNotShown) {
  const std::string chap = WriteFile("chap", std::string(kSecret) + "\n");
  const std::string psk = WriteFile("psk", "NVMeTLSkey-1:...:");
  const Outcome made = Create({"--dhchap-secret-file", chap.c_str(), "--tls-psk-file", psk.c_str()});
  ASSERT_EQ(made.code, kOk) << made.err;
  EXPECT_EQ(created_.spec().dhchap_secret().plain_key(), kSecret) << "without the end of the line";
  EXPECT_EQ(created_.spec().tls_psk().plain_key(), "NVMeTLSkey-1:...:");
  EXPECT_FALSE(created_.spec().has_dhchap_ctrl_secret());
  EXPECT_EQ(made.err, "");
  const Outcome shown = Ctl({"subsystem", "get", "array"});
  EXPECT_THAT(shown.out, HasSubstr("kept under 0123456789abcdef"));
  EXPECT_THAT(shown.out + made.out, Not(HasSubstr("DHHC")));
}

TEST_F(SubsystemCommands, AnUpdateSetsOneAndRemovesAnotherAndLeavesTheRest) {
  const std::string chap = WriteFile("chap", kSecret);
  v1::SubsystemSpec& spec = *array_.mutable_spec();
  spec.mutable_dhchap_secret()->mutable_wrapped_key()->set_key_encryption_key("0123456789abcdef");
  spec.mutable_tls_psk()->mutable_wrapped_key()->set_key_encryption_key("0123456789abcdef");
  Outcome outcome =
      Ctl({"subsystem", "update", "array", "--no-tls-psk", "--dhchap-ctrl-secret-file", chap.c_str()});
  ASSERT_EQ(outcome.code, kOk) << outcome.err;
  const v1::SubsystemSpec& asked = update_.subsystem().spec();
  EXPECT_EQ(asked.dhchap_secret().wrapped_key().key_encryption_key(), "0123456789abcdef") << "as it is";
  EXPECT_EQ(asked.dhchap_ctrl_secret().plain_key(), kSecret);
  EXPECT_TRUE(asked.has_tls_psk()) << "there and empty: removed";
  EXPECT_EQ(asked.tls_psk().key_case(), v1::Secret::KEY_NOT_SET);
  EXPECT_EQ(update_.update_mask().paths(0), "spec");
  outcome = Ctl({"subsystem", "update", "array", "--no-tls-psk", "--tls-psk-file", chap.c_str()});
  EXPECT_EQ(outcome.code, kUsage);
}

TEST_F(SubsystemCommands, AFileThatHasNoSecretIsNamedAndNotShown) {
  const auto refused = [&](const std::string& file, const std::string& says) {
    const Outcome outcome = Create({"--dhchap-secret-file", file.c_str()});
    EXPECT_EQ(outcome.code, kUsage) << says;
    EXPECT_THAT(outcome.err, HasSubstr("--dhchap-secret-file " + file));
    EXPECT_THAT(outcome.err, HasSubstr(says));
    EXPECT_THAT(outcome.err, Not(HasSubstr("secret-text")));
  };
  refused(folder_ + "/none", "it can't be opened");
  refused(folder_, "it can't be read");
  refused(WriteFile("empty", " \n"), "there is nothing in it");
  std::string much;
  while (much.size() <= 256) much += "secret-text";
  refused(WriteFile("much", much), "too large");
  EXPECT_FALSE(created_.has_spec()) << "cleatd is not asked";

  const std::string chap = WriteFile("chap", kSecret);
  using std::filesystem::perms;
  std::filesystem::permissions(chap, perms::owner_read | perms::others_read);
  const Outcome open = Create({"--dhchap-secret-file", chap.c_str()});
  EXPECT_EQ(open.code, kOk);
  EXPECT_THAT(open.err, HasSubstr("other users can read it: chmod 600"));
}

// ---- Discovery

class DiscoveryCommands : public SubsystemCommands {
 protected:
  DiscoveryCommands() {
    response_.set_host_nqn("nqn.2014-08.org.example:host");
    cleatd_.discover_subsystems = [&](const v1::DiscoverSubsystemsRequest& request,
                                      v1::DiscoverSubsystemsResponse& response) {
      asked_ = request;
      response = response_;
      return grpc::Status::OK;
    };
  }
  v1::DiscoveryRecord& Add(const std::string& nqn, const std::string& address,
                           const std::string& transport = "tcp") {
    v1::DiscoveryRecord& record = *response_.add_records();
    record.set_subtype(v1::DISCOVERY_SUBTYPE_NVM);
    record.set_nqn(nqn);
    record.set_transport(transport);
    record.set_address(address);
    record.set_port("4420");
    return record;
  }
  Outcome CreateDiscovered(const std::vector<const char*>& more = {}) {
    std::vector<const char*> arguments = {"subsystem",
                                          "create",
                                          "array",
                                          "--nqn",
                                          kNqn,
                                          "--discover",
                                          "10.0.0.9",
                                          "--host-nqn",
                                          "nqn.2014-08.org.example:host",
                                          "--host-id",
                                          "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Ctl(arguments);
  }

  static constexpr const char* kNqn = "nqn.2014-08.org.example:array";
  v1::DiscoverSubsystemsResponse response_;
  v1::DiscoverSubsystemsRequest asked_;
};

TEST_F(DiscoveryCommands, ShowWhatTheServiceHas) {
  Add(kNqn, "10.0.0.1").set_secure_channel(v1::SECURE_CHANNEL_REQUIRED);
  Add("nqn.2014-08.org.nvmexpress.discovery", "fd00::1").set_subtype(v1::DISCOVERY_SUBTYPE_REFERRAL);
  response_.set_skipped(2);
  response_.set_why_skipped("record 3 has no name");
  const Outcome shown = Ctl({"subsystem", "discover", "--address", "10.0.0.9"});
  ASSERT_EQ(shown.code, kOk) << shown.err;
  EXPECT_EQ(asked_.address(), "10.0.0.9");
  EXPECT_EQ(asked_.host_nqn(), "");
  EXPECT_THAT(shown.out, testing::ContainsRegex(std::string(kNqn) + " +nvm +tcp +10.0.0.1 +4420 +required"));
  EXPECT_THAT(shown.out, testing::ContainsRegex("referral +tcp +fd00::1 +4420"));
  EXPECT_THAT(shown.out,
              HasSubstr("2 record(s) of the service make no sense and are left out: record 3 has"));
  EXPECT_THAT(Ctl({"subsystem", "discover", "--address", "10.0.0.9", "-o", "json"}).out,
              HasSubstr("DISCOVERY_SUBTYPE_REFERRAL"));
  response_.Clear();
  EXPECT_THAT(Ctl({"subsystem", "discover", "--address", "10.0.0.9"}).out, HasSubstr("has nothing for host"));
  EXPECT_EQ(Ctl({"subsystem", "discover"}).code, kUsage);
}

TEST_F(DiscoveryCommands, ASubsystemIsMadeOfAllAddressesOfItsNqnThatDisksAreReachedBy) {
  Add(kNqn, "10.0.0.1");
  Add("nqn.2014-08.org.example:other", "10.0.0.2");
  Add(kNqn, "10.0.0.3", "rdma");
  Add(kNqn, "10.0.0.1", "rdma");
  Add(kNqn, "fd00::6", "rdma");
  Add(kNqn, "21:00:00", "fc");
  Add(kNqn, "10.0.0.4").set_subtype(v1::DISCOVERY_SUBTYPE_REFERRAL);
  Add(kNqn, "fd00::5");
  Add(kNqn, "10.0.0.1");
  const Outcome made = CreateDiscovered();
  ASSERT_EQ(made.code, kOk) << made.err;
  EXPECT_EQ(made.err, "");
  EXPECT_THAT(created_.spec().addresses(),
              testing::ElementsAre("10.0.0.1:4420", "rdma://10.0.0.3:4420", "rdma://10.0.0.1:4420",
                                   "rdma://[fd00::6]:4420", "[fd00::5]:4420"));
  EXPECT_EQ(asked_.address(), "10.0.0.9");
  EXPECT_EQ(asked_.host_id(), "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11") << "as the subsystem's disks will";
}

TEST_F(DiscoveryCommands, AddressesOfOneTransportAloneAreTakenWhereThatIsSaid) {
  Add(kNqn, "10.0.0.1");
  Add(kNqn, "10.0.0.3", "rdma");
  ASSERT_EQ(CreateDiscovered({"--discover-transport", "tcp"}).code, kOk);
  EXPECT_THAT(created_.spec().addresses(), testing::ElementsAre("10.0.0.1:4420"));
  ASSERT_EQ(CreateDiscovered({"--discover-transport", "rdma"}).code, kOk);
  EXPECT_THAT(created_.spec().addresses(), testing::ElementsAre("rdma://10.0.0.3:4420"));
  EXPECT_EQ(CreateDiscovered({"--discover-transport", "fc"}).code, kUsage);
  EXPECT_EQ(Create({"--discover-transport", "tcp"}).code, kUsage) << "nothing is discovered";
  response_.mutable_records()->RemoveLast();
  EXPECT_THAT(CreateDiscovered({"--discover-transport", "rdma"}).err,
              HasSubstr("has no NVMe/RDMA address of nqn.2014-08.org.example:array for host "
                        "nqn.2014-08.org.example:host: it has no subsystem over NVMe/RDMA for this host\n"));
}

TEST_F(DiscoveryCommands, WithAPreSharedKeyAddressesOverRdmaAreNamedAndLeftOut) {
  const std::string psk = WriteFile("psk", "NVMeTLSkey-1:...:");
  Add(kNqn, "10.0.0.3", "rdma");
  const Outcome none = CreateDiscovered({"--tls-psk-file", psk.c_str()});
  EXPECT_EQ(none.code, kFailed);
  EXPECT_THAT(none.err, HasSubstr("has no NVMe/TCP address of nqn.2014-08.org.example:array for host"));
  EXPECT_FALSE(created_.has_spec()) << "cleatd is not asked";
  Add(kNqn, "10.0.0.1");
  const Outcome made = CreateDiscovered({"--tls-psk-file", psk.c_str()});
  ASSERT_EQ(made.code, kOk) << made.err;
  EXPECT_THAT(created_.spec().addresses(), testing::ElementsAre("10.0.0.1:4420"));
  EXPECT_THAT(made.err, HasSubstr("NVMe/RDMA has no TLS, and a pre-shared key is given: left out of "
                                  "nqn.2014-08.org.example:array's addresses are rdma://10.0.0.3:4420\n"));
}

TEST_F(DiscoveryCommands, AnAddressOfTheServiceOverRdmaIsAskedAsItIsSaid) {
  Add(kNqn, "10.0.0.1", "rdma");
  const Outcome shown = Ctl({"subsystem", "discover", "--address", "rdma://10.0.0.9"});
  ASSERT_EQ(shown.code, kOk) << shown.err;
  EXPECT_EQ(asked_.address(), "rdma://10.0.0.9");
  EXPECT_THAT(shown.out, testing::ContainsRegex(std::string(kNqn) + " +nvm +rdma +10.0.0.1 +4420"));
}

TEST_F(DiscoveryCommands, ASubsystemThatTheServiceHasNotIsNotMade) {
  Add("nqn.2014-08.org.example:other", "10.0.0.2");
  Add("nqn.2014-08.org.example:third", "10.0.0.3", "rdma");
  Add(kNqn, "21:00:00", "fc");
  const Outcome refused = CreateDiscovered();
  EXPECT_EQ(refused.code, kFailed);
  EXPECT_THAT(refused.err,
              HasSubstr("the discovery service at 10.0.0.9 has no NVMe/TCP or NVMe/RDMA address of "
                        "nqn.2014-08.org.example:array for host nqn.2014-08.org.example:host: it has "
                        "nqn.2014-08.org.example:other, nqn.2014-08.org.example:third\n"));
  cleatd_.discover_subsystems = [](const auto&, auto&) {
    return Refusal(grpc::StatusCode::FAILED_PRECONDITION, "DISCOVERY_FAILED", "nobody there");
  };
  EXPECT_THAT(CreateDiscovered().err, HasSubstr("nobody there"));
  EXPECT_FALSE(created_.has_spec()) << "cleatd is not asked";
}

TEST_F(DiscoveryCommands, AddressesBeyondTheEighthAreNamedAndLeftOut) {
  for (int i = 1; i <= 10; ++i) Add(kNqn, "10.0.0." + std::to_string(i));
  const Outcome made = CreateDiscovered();
  ASSERT_EQ(made.code, kOk) << made.err;
  EXPECT_EQ(created_.spec().addresses_size(), 8);
  EXPECT_THAT(made.err, HasSubstr("has 10 addresses, and a subsystem 8 at most: left out are 10.0.0.9:4420, "
                                  "10.0.0.10:4420"));
}

TEST_F(DiscoveryCommands, AWatcherIsShownWhatHasComeAndGoneAndWhyItEnds) {
  Add(kNqn, "10.0.0.1");
  Add("nqn.2014-08.org.example:other", "10.0.0.2");
  std::vector<v1::DiscoverSubsystemsResponse> logs{response_};
  response_.mutable_records()->RemoveLast();
  Add("nqn.2014-08.org.example:new", "fd00::1").set_secure_channel(v1::SECURE_CHANNEL_REQUIRED);
  logs.push_back(response_);
  size_t next = 0;
  cleatd_.watch_discovery = [&](const v1::DiscoverSubsystemsRequest& request,
                                v1::DiscoverSubsystemsResponse& log) {
    asked_ = request;
    if (next < logs.size()) log = logs[next];
    return next++ < logs.size();
  };
  const Outcome shown = Ctl({"subsystem", "discover", "--address", "10.0.0.9", "--watch"});
  EXPECT_NE(shown.code, kOk);
  EXPECT_THAT(shown.err, HasSubstr("it has ended"));
  EXPECT_EQ(asked_.address(), "10.0.0.9");
  EXPECT_THAT(shown.out,
              HasSubstr("\ngone: nqn.2014-08.org.example:other (nvm, tcp 10.0.0.2:4420)\n"
                        "new: nqn.2014-08.org.example:new (nvm, tcp [fd00::1]:4420), secure channel "
                        "required\nNQN"));
  EXPECT_THAT(shown.out.substr(0, shown.out.find("gone:")), HasSubstr("10.0.0.2"));
}

TEST_F(DiscoveryCommands, AWatcherIsShownAnEntryThatHasChangedAsOneAndAChangeOfNothingThatIsShown) {
  const auto has = [&](v1::SecureChannel channel) {
    response_.clear_records();
    Add(kNqn, "10.0.0.1").set_secure_channel(channel);
    return response_;
  };
  const std::vector<v1::DiscoverSubsystemsResponse> logs{
      has(v1::SECURE_CHANNEL_UNSPECIFIED), has(v1::SECURE_CHANNEL_REQUIRED),
      has(v1::SECURE_CHANNEL_NOT_REQUIRED), has(v1::SECURE_CHANNEL_NOT_REQUIRED)};
  size_t next = 0;
  cleatd_.watch_discovery = [&](const v1::DiscoverSubsystemsRequest&, v1::DiscoverSubsystemsResponse& log) {
    if (next < logs.size()) log = logs[next];
    return next++ < logs.size();
  };
  const Outcome shown = Ctl({"subsystem", "discover", "--address", "10.0.0.9", "--watch"});
  const std::string line = std::string("\nchanged: ") + kNqn + " (nvm, tcp 10.0.0.1:4420), secure channel ";
  EXPECT_THAT(shown.out, HasSubstr(line + "required; before: secure channel not said\nNQN"));
  EXPECT_THAT(shown.out, HasSubstr(line + "not required; before: secure channel required\nNQN"));
  EXPECT_THAT(shown.out, HasSubstr("\nchanged: nothing that is shown here\nNQN"));
  EXPECT_THAT(shown.out, Not(HasSubstr("gone: ")));
  EXPECT_THAT(shown.out, Not(HasSubstr("new: ")));
}

TEST_F(DiscoveryCommands, SecretsAreTheServicesWhereThatIsSaid) {
  const std::string secret = WriteFile("host.key", kSecret);
  const char* const file = secret.c_str();
  ASSERT_EQ(Ctl({"subsystem", "discover", "--address", "10.0.0.9", "--dhchap-secret-file", file}).code, kOk);
  EXPECT_EQ(asked_.dhchap_secret().plain_key(), kSecret);
  EXPECT_FALSE(asked_.has_tls_psk() || asked_.has_dhchap_ctrl_secret());
  const std::string ctrl = WriteFile("ctrl.key", "DHHC-1:00:...:");
  const std::string psk = WriteFile("psk", "NVMeTLSkey-1:...:");
  ASSERT_EQ(Ctl({"subsystem", "discover", "--address", "10.0.0.9", "--dhchap-secret-file", file,
                 "--dhchap-ctrl-secret-file", ctrl.c_str(), "--tls-psk-file", psk.c_str()})
                .code,
            kOk);
  EXPECT_EQ(asked_.dhchap_ctrl_secret().plain_key(), "DHHC-1:00:...:");
  EXPECT_EQ(asked_.tls_psk().plain_key(), "NVMeTLSkey-1:...:");
  Add(kNqn, "10.0.0.1");
  for (const bool with : {false, true}) {
    std::vector<const char*> arguments{"subsystem", "create",     "array",    "--nqn",
                                       kNqn,        "--discover", "10.0.0.9", "--dhchap-secret-file",
                                       file};
    if (with) arguments.push_back("--discover-with-secrets");
    const Outcome made = Ctl(arguments);
    ASSERT_EQ(made.code, kOk) << made.err;
    EXPECT_EQ(asked_.has_dhchap_secret(), with);
    EXPECT_EQ(created_.spec().dhchap_secret().plain_key(), kSecret);
  }
}

TEST_F(DiscoveryCommands, AWatchKeepsNoSecret) {
  cleatd_.watch_discovery = [&](const v1::DiscoverSubsystemsRequest& request,
                                v1::DiscoverSubsystemsResponse&) {
    asked_ = request;
    return false;
  };
  Globals globals;
  globals.connection.address = address_;
  Client client(globals);
  v1::DiscoverSubsystemsRequest request;
  request.mutable_dhchap_secret()->set_plain_key(kSecret);
  request.mutable_tls_psk()->set_plain_key(kSecret);
  testing::internal::CaptureStderr();
  EXPECT_NE(WatchDiscovery(client, request), kOk);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("it has ended"));
  EXPECT_EQ(asked_.dhchap_secret().plain_key(), kSecret) << "cleatd has it";
  EXPECT_EQ(request.dhchap_secret().plain_key(), "");
  EXPECT_EQ(request.tls_psk().plain_key(), "");
}

TEST_F(DiscoveryCommands, AddressesAreGivenOrDiscoveredAndNotBoth) {
  EXPECT_EQ(Create({"--discover", "10.0.0.9"}).code, kUsage);
  EXPECT_EQ(Ctl({"subsystem", "create", "array", "--nqn", kNqn}).code, kUsage);
}

TEST_F(DiscoveryCommands, NobodyIsAskedInPlainTextWhereSecretsAreMeant) {
  EXPECT_EQ(Create({"--discover-with-secrets"}).code, kUsage);
  const Outcome without = Ctl(
      {"subsystem", "create", "array", "--nqn", kNqn, "--discover", "10.0.0.9", "--discover-with-secrets"});
  EXPECT_EQ(without.code, kUsage);
  EXPECT_NE(without.err.find("no secret is given"), std::string::npos) << without.err;
}

TEST_F(SubsystemCommands, SecretsAreDestroyedOnlyWhenThatIsMeant) {
  std::vector<bool> spared;
  cleatd_.delete_subsystem = [&](const v1::DeleteSubsystemRequest& request, v1::DeleteSubsystemResponse&) {
    spared.push_back(request.spare_key());
    return request.spare_key()
               ? Refusal(grpc::StatusCode::FAILED_PRECONDITION, "KEY_NOT_KEPT", "it has secrets")
               : grpc::Status::OK;
  };
  const Outcome refused = Ctl({"subsystem", "delete", "array"});
  EXPECT_EQ(refused.code, kUsage) << "nobody is there to be asked";
  EXPECT_THAT(refused.err, HasSubstr("--yes"));
  EXPECT_EQ(Ctl({"subsystem", "delete", "array", "--yes"}).code, kOk);
  EXPECT_EQ(spared, (std::vector<bool>{true, false}));
}

}  // namespace
}  // namespace cleat::ctl::subsystem_commands_test
