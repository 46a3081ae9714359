// SPDX-License-Identifier: Apache-2.0
// What cleatd says of an export, as the engine reads it: whole, or refused by the name of what is wrong.
#include <cleat/engine/v1/engine.pb-c.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/protocol/codec.h"
#include "keys/key_encryption_key.h"

namespace cleat::engine::export_codec_test {
namespace {

using Envelope = Cleat__Engine__V1__Envelope;

struct Free {
  void operator()(Envelope* envelope) const { cleat__engine__v1__envelope__free_unpacked(envelope, nullptr); }
};
using EnvelopePtr = std::unique_ptr<Envelope, Free>;

EnvelopePtr Read(const std::vector<uint8_t>& bytes) {
  return EnvelopePtr(cleat__engine__v1__envelope__unpack(nullptr, bytes.size(), bytes.data()));
}

std::string HostNqn(size_t number) {
  return "nqn.2014-08.org.example:host" + std::to_string(number);
}

// The longest text of a secret has 103 characters, which become a multiple of 8 and 8 more (RFC 5649, 3 and 4).
constexpr size_t kWrappedBytesMax = 112;

// A host with secrets, as cleatd would say it.
struct SecuredHost {
  explicit SecuredHost(std::string of) : nqn(std::move(of)) {
    for (auto* secret : {&chap, &ctrl, &psk}) {
      cleat__engine__v1__wrapped_secret__init(secret);
      secret->key_encryption_key = kek.data();
      secret->has_data = 1;
      secret->data = {.len = data.size(), .data = data.data()};
    }
  }
  SecuredHost(const SecuredHost&) = delete;
  SecuredHost& operator=(const SecuredHost&) = delete;
  Cleat__Engine__V1__ExportHost* Message() {
    cleat__engine__v1__export_host__init(&message);
    message.nqn = nqn.data();
    if (has_chap) message.dhchap_secret = &chap;
    if (has_ctrl) message.dhchap_ctrl_secret = &ctrl;
    if (has_psk) message.tls_psk = &psk;
    return &message;
  }

  std::string nqn;
  std::string kek = std::string(keys::kKekIdDigits, 'a');
  std::vector<uint8_t> data = std::vector<uint8_t>(kWrappedBytesMax, 7);
  Cleat__Engine__V1__WrappedSecret chap, ctrl, psk;
  bool has_chap = true;
  bool has_ctrl = true;
  bool has_psk = true;
  Cleat__Engine__V1__ExportHost message;
};

// A PutController as cleatd would send it, for tests to spoil.
struct Request {
  Result<Incoming> Decoded() {
    Cleat__Engine__V1__Export exported = CLEAT__ENGINE__V1__EXPORT__INIT;
    exported.nqn = nqn.data();
    exported.serial = serial.data();
    std::vector<char*> address_texts;
    for (std::string& address : addresses) address_texts.push_back(address.data());
    exported.n_addresses = address_texts.size();
    exported.addresses = address_texts.data();
    std::vector<char*> standby_texts;
    for (std::string& address : standby_addresses) standby_texts.push_back(address.data());
    exported.n_standby_addresses = standby_texts.size();
    exported.standby_addresses = standby_texts.data();
    std::vector<char*> host_texts;
    for (std::string& host : hosts) host_texts.push_back(host.data());
    exported.n_hosts = host_texts.size();
    exported.hosts = host_texts.data();
    std::vector<Cleat__Engine__V1__ExportHost*> secured_hosts;
    for (const auto& host : secured) secured_hosts.push_back(host->Message());
    exported.n_secured_hosts = secured_hosts.size();
    exported.secured_hosts = secured_hosts.data();
    exported.has_hosts_revision = 1;
    exported.hosts_revision = 12;
    exported.has_dscp = 1;
    exported.dscp = dscp;
    if (has_export) controller.exported = &exported;
    controller.name = name.data();
    controller.has_type = controller.has_queues = controller.has_revision = 1;
    controller.queues = 8;
    controller.revision = 7;
    Cleat__Engine__V1__PutController put = CLEAT__ENGINE__V1__PUT_CONTROLLER__INIT;
    put.controller = &controller;
    Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
    envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_PUT_CONTROLLER;
    envelope.put_controller = &put;
    std::vector<uint8_t> bytes(cleat__engine__v1__envelope__get_packed_size(&envelope));
    cleat__engine__v1__envelope__pack(&envelope, bytes.data());
    size_bytes = bytes.size();
    return Decode(bytes);
  }
  SecuredHost& AddSecured(std::string host) {
    return *secured.emplace_back(std::make_unique<SecuredHost>(std::move(host)));
  }
  ControllerSpec Spec() {
    auto decoded = Decoded();
    EXPECT_TRUE(decoded.ok()) << decoded.error().message;
    return decoded.ok() ? std::get<PutControllerMessage>(decoded->body).controller : ControllerSpec();
  }

  std::string name = "controllers/db";
  std::string nqn = "nqn.2014-08.org.nvmexpress:uuid:0c9ea5e5-3b0d-4b3f-8f4c-3ed1f9a0d0aa";
  std::string serial = "0123456789abcdef0123";
  std::vector<std::string> addresses = {"10.0.0.1:4420", "[::]:4421"};
  std::vector<std::string> standby_addresses = {"10.0.1.1:4420"};
  std::vector<std::string> hosts = {HostNqn(1), HostNqn(2)};
  std::vector<std::unique_ptr<SecuredHost>> secured;
  size_t size_bytes = 0;  // of the message
  bool has_export = true;
  uint32_t dscp = 46;
  Cleat__Engine__V1__Controller controller = [] {
    Cleat__Engine__V1__Controller init = CLEAT__ENGINE__V1__CONTROLLER__INIT;
    init.type = CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_NVMF;
    return init;
  }();
};

TEST(ExportCodec, AnExportComesThroughWhole) {
  const ControllerSpec spec = Request().Spec();
  EXPECT_EQ(spec.type, ControllerType::kNvmf);
  EXPECT_EQ(spec.queues, 8U);
  EXPECT_EQ(spec.socket_path, "");
  ASSERT_TRUE(spec.exported.has_value());
  const Request sent;
  EXPECT_EQ(spec.exported->nqn, sent.nqn);
  EXPECT_EQ(spec.exported->serial, sent.serial);
  ASSERT_EQ(spec.exported->addresses.size(), 2U);
  EXPECT_EQ(nvme::fabrics::TextOfAddress(spec.exported->addresses[0]), "10.0.0.1:4420");
  EXPECT_EQ(nvme::fabrics::TextOfAddress(spec.exported->addresses[1]), "[::]:4421");
  ASSERT_EQ(spec.exported->standby_addresses.size(), 1U);
  EXPECT_EQ(nvme::fabrics::TextOfAddress(spec.exported->standby_addresses[0]), "10.0.1.1:4420");
  ASSERT_EQ(spec.exported->hosts.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(spec.exported->hosts[i].nqn, sent.hosts[i]);
    EXPECT_FALSE(spec.exported->hosts[i].secrets.any());
  }
  EXPECT_EQ(spec.exported->hosts_revision, 12U);
  EXPECT_EQ(spec.exported->dscp, 46);

  Request nobody;
  nobody.hosts.clear();
  EXPECT_TRUE(nobody.Spec().exported->hosts.empty());
}

TEST(ExportCodec, AddressesOfBothTransportsComeThroughWhole) {
  Request request;
  request.addresses = {"10.0.0.1:4420", "rdma://10.0.0.1:4420"};
  request.standby_addresses = {"rdma://[fd00::1]:4420"};
  const ControllerSpec spec = request.Spec();
  ASSERT_TRUE(spec.exported.has_value());
  ASSERT_EQ(spec.exported->addresses.size(), 2U) << "they are two";
  EXPECT_EQ(nvme::fabrics::TextOfAddress(spec.exported->addresses[1]), "rdma://10.0.0.1:4420");
  EXPECT_EQ(nvme::fabrics::TextOfAddress(spec.exported->standby_addresses[0]), "rdma://[fd00::1]:4420");
  request.addresses.push_back("rdma://10.0.0.1");
  EXPECT_FALSE(request.Decoded().ok()) << "twice";
  request.addresses = {"rdma://target.example:4420"};
  EXPECT_FALSE(request.Decoded().ok());
}

TEST(ExportCodec, SecretsComeThroughWhole) {
  Request request;
  request.AddSecured(HostNqn(3));
  SecuredHost& half = request.AddSecured(HostNqn(4));
  half.has_chap = half.has_ctrl = false;
  const ControllerSpec spec = request.Spec();
  ASSERT_TRUE(spec.exported.has_value());
  ASSERT_EQ(spec.exported->hosts.size(), 4U);
  EXPECT_FALSE(spec.exported->hosts[1].secrets.any());
  const ExportHost& all = spec.exported->hosts[2];
  EXPECT_EQ(all.nqn, HostNqn(3));
  for (const WrappedSecret& secret :
       {all.secrets.dhchap_secret, all.secrets.dhchap_ctrl_secret, all.secrets.tls_psk}) {
    EXPECT_EQ(secret.key_encryption_key, half.kek);
    EXPECT_EQ(secret.data, half.data);
  }
  EXPECT_EQ(spec.exported->hosts[3].nqn, HostNqn(4));
  EXPECT_TRUE(spec.exported->hosts[3].secrets.tls_psk.there());
  EXPECT_FALSE(spec.exported->hosts[3].secrets.dhchap_secret.there());
  EXPECT_FALSE(spec.exported->hosts[3].secrets.dhchap_ctrl_secret.there());
}

TEST(ExportCodec, AReportHasAllButTheHosts) {
  ControllerReport report;
  Request secured;
  secured.AddSecured(HostNqn(3));
  report.spec = secured.Spec();
  report.state = ControllerState::kReady;
  const EnvelopePtr told = Read(EncodeController(report));
  const auto& controller = *told->status_event->controller->controller;
  EXPECT_EQ(controller.type, CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_NVMF);
  EXPECT_EQ(controller.socket_path, nullptr);
  EXPECT_EQ(controller.has_socket_mode, 0);
  ASSERT_NE(controller.exported, nullptr);
  EXPECT_EQ(controller.exported->nqn, Request().nqn);
  EXPECT_EQ(controller.exported->serial, Request().serial);
  ASSERT_EQ(controller.exported->n_addresses, 2U);
  EXPECT_STREQ(controller.exported->addresses[1], "[::]:4421");
  ASSERT_EQ(controller.exported->n_standby_addresses, 1U);
  EXPECT_STREQ(controller.exported->standby_addresses[0], "10.0.1.1:4420");
  EXPECT_EQ(controller.exported->n_hosts, 0U);
  EXPECT_EQ(controller.exported->n_secured_hosts, 0U);
  EXPECT_EQ(controller.exported->hosts_revision, 12U);
  EXPECT_EQ(controller.exported->dscp, 46U);
}

TEST(ExportCodec, HostsChangeAndNothingElseDoes) {
  const ControllerSpec spec = Request().Spec();
  ControllerSpec other = spec;
  other.exported->hosts.clear();
  other.exported->hosts_revision = 13;
  EXPECT_TRUE(spec.SameAs(other));
  other = spec;
  other.exported->dscp = 0;
  EXPECT_TRUE(spec.SameAs(other)) << "a cleatd of before version 15 tells none";
  other = spec;
  other.exported->nqn += "0";
  EXPECT_FALSE(spec.SameAs(other));
  other = spec;
  other.exported->serial += "0";
  EXPECT_FALSE(spec.SameAs(other));
  other = spec;
  other.exported->addresses.pop_back();
  EXPECT_FALSE(spec.SameAs(other));
  other = spec;
  other.exported->standby_addresses[0].port = 4422;
  EXPECT_FALSE(spec.SameAs(other));
  other.exported->standby_addresses.clear();
  EXPECT_TRUE(spec.SameAs(other)) << "a cleatd of before version 12 tells none";
  EXPECT_TRUE(other.SameAs(spec)) << "nor has told any";
  other = spec;
  other.exported.reset();
  EXPECT_FALSE(spec.SameAs(other));
  EXPECT_FALSE(other.SameAs(spec));
}

TEST(ExportCodec, TheMostThatIsTaken) {
  Request request;
  request.nqn = "nqn.2014-08.org.example:" + std::string(nvme::fabrics::kNqnBytesMax - 24, 'x');
  request.addresses.clear();
  for (size_t i = 0; i < kExportAddressesMax; ++i)
    request.addresses.push_back("10.0.0.1:" + std::to_string(1000 + i));
  request.standby_addresses.clear();
  for (size_t i = 0; i < kExportAddressesMax; ++i)
    request.standby_addresses.push_back("10.0.1.1:" + std::to_string(1000 + i));
  request.hosts.clear();
  for (size_t i = 0; i < kExportHostsMax; ++i) request.hosts.push_back(HostNqn(i));
  const ControllerSpec spec = request.Spec();
  ASSERT_TRUE(spec.exported.has_value());
  EXPECT_EQ(spec.exported->addresses.size(), kExportAddressesMax);
  EXPECT_EQ(spec.exported->standby_addresses.size(), kExportAddressesMax);
  EXPECT_EQ(spec.exported->hosts.size(), kExportHostsMax);
}

// With the longest of everything it is one message.
TEST(ExportCodec, TheMostThatIsTakenWithSecrets) {
  const auto nqn_of = [](size_t number) {
    const std::string name = HostNqn(number) + ":";
    return name + std::string(nvme::fabrics::kNqnBytesMax - name.size(), 'x');
  };
  Request request;
  request.nqn = nqn_of(100);
  request.addresses.clear();
  for (size_t i = 0; i < kExportAddressesMax; ++i)
    request.addresses.push_back("[fd00:1111:2222:3333:4444:5555:6666:7777]:" + std::to_string(10'000 + i));
  for (size_t i = 1; i < kExportAddressesMax; ++i)
    request.standby_addresses.push_back("[fd00:1111:2222:3333:4444:5555:6666:8888]:" +
                                        std::to_string(10'000 + i));
  request.hosts.clear();
  for (size_t i = 0; i < kExportHostsMax; ++i) request.AddSecured(nqn_of(i));
  const ControllerSpec spec = request.Spec();
  ASSERT_TRUE(spec.exported.has_value());
  EXPECT_EQ(spec.exported->hosts.size(), kExportHostsMax);
  constexpr size_t kRoomForTheRest = 2048;  // the controller's own names, the caller's
  EXPECT_LE(request.size_bytes + kRoomForTheRest, kMessageBytesMax);
}

TEST(ExportCodec, WhatIsWrongIsRefusedByName) {
  struct Case {
    std::string message;
    std::function<void(Request&)> spoil;
  };
  const std::vector<Case> cases = {
      {"exported is missing", [](Request& r) { r.has_export = false; }},
      {"exported.nqn", [](Request& r) { r.nqn = "iqn.2014-08.org.example:a"; }},
      {"discovery service", [](Request& r) { r.nqn = nvme::fabrics::kDiscoveryNqn; }},
      {"exported.serial", [](Request& r) { r.serial.clear(); }},
      {"exported.serial", [](Request& r) { r.serial += "x"; }},
      {"exported.serial", [](Request& r) { r.serial = "a\nb"; }},
      {"exported.addresses has 0", [](Request& r) { r.addresses.clear(); }},
      {"exported.addresses has 9",
       [](Request& r) {
         for (size_t i = 2; i <= kExportAddressesMax; ++i)
           r.addresses.push_back("10.0.0.1:" + std::to_string(1000 + i));
       }},
      {"exported.addresses", [](Request& r) { r.addresses[0] = "target.example:4420"; }},
      {"10.0.0.1 twice", [](Request& r) { r.addresses[1] = "10.0.0.1"; }},
      {"exported.standby_addresses has 9",
       [](Request& r) {
         for (size_t i = 1; i <= kExportAddressesMax; ++i)
           r.standby_addresses.push_back("10.0.0.1:" + std::to_string(1000 + i));
       }},
      {"exported.standby_addresses", [](Request& r) { r.standby_addresses[0] = "standby.example"; }},
      {"10.0.1.1 twice", [](Request& r) { r.standby_addresses.push_back("10.0.1.1"); }},
      {"10.0.0.1, where the engine that serves it listens",
       [](Request& r) { r.standby_addresses[0] = "10.0.0.1"; }},
      {"exported.dscp is not 0 to 63", [](Request& r) { r.dscp = 64; }},
      {"exported.hosts", [](Request& r) { r.hosts[0] = "me"; }},
      {"host1 twice", [](Request& r) { r.hosts[1] = r.hosts[0]; }},
      {"exported.hosts has 65",
       [](Request& r) {
         for (size_t i = 3; i <= kExportHostsMax + 1; ++i) r.hosts.push_back(HostNqn(i));
       }},
      {"exported.hosts has 65",
       [](Request& r) {
         for (size_t i = 3; i <= kExportHostsMax + 1; ++i) r.AddSecured(HostNqn(i));
       }},
      {"host1 twice", [](Request& r) { r.AddSecured(HostNqn(1)); }},
      {"exported.hosts", [](Request& r) { r.AddSecured("me"); }},
      {"host3 is among those with secrets, and has none",
       [](Request& r) {
         SecuredHost& host = r.AddSecured(HostNqn(3));
         host.has_chap = host.has_ctrl = host.has_psk = false;
       }},
      {"host3.dhchap_ctrl_secret is there without dhchap_secret",
       [](Request& r) { r.AddSecured(HostNqn(3)).has_chap = false; }},
      {"host3.tls_psk has a length", [](Request& r) { r.AddSecured(HostNqn(3)).psk.data.len = 8; }},
      {"host3.dhchap_secret has a length",
       [](Request& r) { r.AddSecured(HostNqn(3)).chap.key_encryption_key = nullptr; }},
      {"socket_path", [](Request& r) { r.controller.socket_path = r.name.data(); }},
      {"memory_pinned", [](Request& r) { r.controller.has_memory_pinned = r.controller.memory_pinned = 1; }},
      {"only a controller of the type nvmf",
       [](Request& r) { r.controller.type = CLEAT__ENGINE__V1__CONTROLLER_TYPE__CONTROLLER_TYPE_BLK; }},
  };
  for (const Case& wrong : cases) {
    Request request;
    wrong.spoil(request);
    const auto refused = request.Decoded();
    ASSERT_FALSE(refused.ok()) << wrong.message;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << wrong.message;
    EXPECT_NE(refused.error().message.find(wrong.message), std::string::npos) << refused.error().message;
  }
}

// An export has more disks than any other controller, and its hand-over is one message.
TEST(ExportCodec, TheHandOverOfAnExportWithAllItsDisksFits) {
  HandOver given;
  const std::vector<uint64_t> use(18, ~uint64_t{0});
  const std::vector<uint64_t> cells(kReactorsReportedMax, 65535);
  for (uint32_t target = 0; target < kNamespacesMax; ++target) given.disks.push_back({target, use, cells});
  const EnvelopePtr reply = Read(EncodeReply(5, Ok{}, &given));
  std::string name = "controllers/db";
  Cleat__Engine__V1__TakeController take = CLEAT__ENGINE__V1__TAKE_CONTROLLER__INIT;
  take.name = name.data();
  take.hand_over = reply->reply->hand_over;
  Envelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_TAKE_CONTROLLER;
  envelope.take_controller = &take;
  std::vector<uint8_t> bytes(cleat__engine__v1__envelope__get_packed_size(&envelope));
  cleat__engine__v1__envelope__pack(&envelope, bytes.data());
  const auto taken = Decode(bytes);
  ASSERT_TRUE(taken.ok()) << taken.error().message;
  EXPECT_EQ(std::get<TakeControllerMessage>(taken->body).hand_over.disks.size(), kNamespacesMax);
}

}  // namespace
}  // namespace cleat::engine::export_codec_test
