// SPDX-License-Identifier: Apache-2.0
// Which key a target finds by the identity that a host names, and who may come by a connection that was made with it.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "nvme/fabrics/log_pages.h"
#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target::psk_test {
namespace {

using tls::IdentityVersion;
using tls::Psk;

constexpr const char* kSha256 = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
constexpr const char* kSha384 =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
constexpr const char* kOther = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
constexpr std::string_view kSecond = "nqn.2024-01.com.example:b";
constexpr uint16_t kInvalidHost = 0x184;

std::shared_ptr<const Psk> KeyOf(const char* text) {
  return std::make_shared<const Psk>(Psk::Parse(text, "the key").value());
}
std::string IdentityOf(const char* text, IdentityVersion version, std::string_view subsystem = kSubsystem,
                       std::string_view host = kHost) {
  return KeyOf(text)->KeyFor(host, subsystem, version).value().identity;
}
HostAccess With(const char* text, std::string_view host = kHost) {
  HostAccess access = HostAccess::Named(host);
  access.psk = KeyOf(text);
  return access;
}

TEST(TargetPsk, FindsTheKeyOfAHostByEachIdentityAndSaysForWhom) {
  for (const char* const text : {kSha256, kSha384}) {
    Rig rig;
    ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(text), HostAccess::Named(kOtherHost)}));
    for (const IdentityVersion version : {IdentityVersion::kV0, IdentityVersion::kV1}) {
      const auto found = rig.target.KeyFor(IdentityOf(text, version));
      ASSERT_TRUE(found.ok()) << found.error().message;
      EXPECT_EQ(found->as.host_nqn, kHost);
      EXPECT_EQ(found->as.subsystem_nqn, kSubsystem);
      EXPECT_TRUE(found->key.key == KeyOf(text)->KeyFor(kHost, kSubsystem, version)->key);
    }
  }
}

TEST(TargetPsk, FindsNoKeyOfWhoHasNoneOrAnother) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(kSha256), HostAccess::Named(kOtherHost)}));
  const std::string v1 = IdentityOf(kSha256, IdentityVersion::kV1);
  const std::vector<std::string> rows = {
      IdentityOf(kSha256, IdentityVersion::kV0, kSubsystem, kOtherHost),  // comes in plain TCP
      IdentityOf(kSha256, IdentityVersion::kV0, kSubsystem, "nqn.2024-01.com.example:nobody"),
      IdentityOf(kSha256, IdentityVersion::kV0, kSecond),  // there is no such subsystem
      IdentityOf(kSha384, IdentityVersion::kV0),           // another hash
      IdentityOf(kOther, IdentityVersion::kV1),            // another digest
      v1.substr(0, v1.size() - 1),
      v1 + "A",
  };
  for (const std::string& identity : rows) {
    const auto found = rig.target.KeyFor(identity);
    ASSERT_FALSE(found.ok()) << identity;
    EXPECT_EQ(found.error().code, ErrorCode::kPermissionDenied);
    EXPECT_NE(found.error().message.find("no key is known"), std::string::npos) << found.error().message;
  }
}

TEST(TargetPsk, OfTheDiscoveryServiceIsTheOneOfAnySubsystem) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(kSha256)}));
  ASSERT_TRUE(rig.target.Add(ConfigOf(kSecond)));
  ASSERT_TRUE(rig.target.SetHosts(kSecond, {With(kOther)}));
  for (const char* const text : {kSha256, kOther}) {
    const auto found = rig.target.KeyFor(IdentityOf(text, IdentityVersion::kV1, fabrics::kDiscoveryNqn));
    ASSERT_TRUE(found.ok()) << found.error().message;
    EXPECT_EQ(found->as.subsystem_nqn, fabrics::kDiscoveryNqn);
    EXPECT_TRUE(found->key.key ==
                KeyOf(text)->KeyFor(kHost, fabrics::kDiscoveryNqn, IdentityVersion::kV1)->key);
  }
  // Without a digest it is the first one's.
  const auto first = rig.target.KeyFor(IdentityOf(kOther, IdentityVersion::kV0, fabrics::kDiscoveryNqn));
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(first->key.key ==
              KeyOf(kSha256)->KeyFor(kHost, fabrics::kDiscoveryNqn, IdentityVersion::kV0)->key);
  EXPECT_FALSE(
      rig.target.KeyFor(IdentityOf(kSha256, IdentityVersion::kV0, fabrics::kDiscoveryNqn, kOtherHost)).ok());
}

TEST(TargetPsk, OfAHostThatIsTakenOutIsGone) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(kSha256)}));
  const std::string identity = IdentityOf(kSha256, IdentityVersion::kV0);
  ASSERT_TRUE(rig.target.KeyFor(identity).ok());
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {HostAccess::Named(kHost)}));
  EXPECT_FALSE(rig.target.KeyFor(identity).ok());
}

TEST(TargetPsk, AnswersWhateverAHostNamesItsKeyBy) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(kSha256)}));
  const std::string good = IdentityOf(kSha256, IdentityVersion::kV1);
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(rig.target.KeyFor(std::string_view(good).substr(0, length)).ok()) << length;
  for (size_t at = 0; at < good.size(); ++at) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 0x21);
    EXPECT_FALSE(rig.target.KeyFor(changed).ok()) << changed;
  }
  EXPECT_FALSE(rig.target.KeyFor(good + std::string(60'000, 'A')).ok());
  EXPECT_TRUE(rig.target.KeyFor(good).ok());
}

// ---- Connect

TEST(TargetPsk, LetsAHostInByItsKeyAloneAndOneWithoutInPlainTcpAlone) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(kSha256), HostAccess::Named(kOtherHost)}));
  const auto status_of = [&](std::string_view host, const SecuredAs* secured) {
    rig.secured = secured;
    const Connected connected = rig.Connect(ConnectCapsule(0, kSubsystem, host));
    if (connected.controller != nullptr) rig.target.End(*connected.controller);
    return connected.answer.status;
  };
  const auto key = KeyOf(kSha256);
  const SecuredAs as_it{std::string(kHost), std::string(kSubsystem), key};
  const SecuredAs as_other{std::string(kOtherHost), std::string(kSubsystem), key};
  const SecuredAs elsewhere{std::string(kHost), std::string(kSecond), key};
  const SecuredAs discovery{std::string(kHost), std::string(fabrics::kDiscoveryNqn), key};
  EXPECT_EQ(status_of(kHost, &as_it), 0);
  EXPECT_EQ(status_of(kOtherHost, nullptr), 0);
  EXPECT_EQ(status_of(kHost, nullptr), kInvalidHost);
  for (const SecuredAs* const wrong : {&as_other, &elsewhere, &discovery})
    EXPECT_EQ(status_of(kHost, wrong), kInvalidHost) << wrong->host_nqn << " " << wrong->subsystem_nqn;
  for (const SecuredAs* const any : {&as_it, &as_other}) EXPECT_EQ(status_of(kOtherHost, any), kInvalidHost);
}

// The connection was made with the key of before, and Connect comes when it is another one: who has had the old one is not let in.
TEST(TargetPsk, LetsNoHostInByAKeyThatWasReplacedSinceItsHandshake) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(kSha256)}));
  const auto found = rig.target.KeyFor(IdentityOf(kSha256, IdentityVersion::kV0));
  ASSERT_TRUE(found.ok()) << found.error().message;
  rig.secured = &found->as;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(kOther)}));
  EXPECT_EQ(rig.Connect(ConnectCapsule(0, kSubsystem, kHost)).answer.status, kInvalidHost);
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(kSha256)}));
  const Connected connected = rig.Connect(ConnectCapsule(0, kSubsystem, kHost));
  ASSERT_TRUE(connected.answer.ok()) << "it is the same key, unwrapped anew";
  rig.target.End(*connected.controller);
}

// There is no TLS over RDMA.
TEST(TargetPsk, AHostWithAKeyIsNeitherOfferedRdmaNorLetInByIt) {
  Rig rig;
  SubsystemConfig config = ConfigOf(kSecond);
  fabrics::TransportAddress rdma = kLocal;
  rdma.transport = fabrics::TransportType::kRdma;
  config.addresses = {rdma, kLocal};
  config.hosts = {With(kSha256), HostAccess::Named(kOtherHost)};
  ASSERT_TRUE(rig.target.Add(config));
  const auto offered = [&](std::string_view host) {
    TargetController& controller = rig.Live(fabrics::kDiscoveryNqn, host);
    const auto log = fabrics::ParseDiscoveryLog(
        rig.Read(controller, GetLogPage(LogPage::kDiscovery, 0, 8192), 8192), "it");
    EXPECT_TRUE(log);
    std::vector<fabrics::TransportType> transports;
    for (const fabrics::DiscoveryRecord& record : log->records) {
      if (record.subsystem_nqn == kSecond) transports.push_back(record.address->transport);
    }
    return transports;
  };
  using fabrics::TransportType;
  EXPECT_EQ(offered(kHost), std::vector{TransportType::kTcp});
  EXPECT_EQ(offered(kOtherHost), (std::vector{TransportType::kRdma, TransportType::kTcp}));
  rig.local = rdma;
  EXPECT_EQ(offered(kHost), std::vector{TransportType::kTcp}) << "asked over RDMA, too";
  EXPECT_EQ(rig.Connect(ConnectCapsule(0, kSecond, kHost)).answer.status, kInvalidHost);
  const Connected other = rig.Connect(ConnectCapsule(0, kSecond, kOtherHost));
  ASSERT_TRUE(other.answer.ok());
  rig.target.End(*other.controller);
}

TEST(TargetPsk, LetsHostsAskTheDiscoveryServiceInPlainTcpOrByAKeyForIt) {
  Rig rig;
  ASSERT_TRUE(rig.target.SetHosts(kSubsystem, {With(kSha256)}));
  const auto status_of = [&](const SecuredAs* secured) {
    rig.secured = secured;
    ConnectCapsule capsule(0, fabrics::kDiscoveryNqn);
    const Connected connected = rig.Connect(capsule);
    if (connected.controller != nullptr) rig.target.End(*connected.controller);
    return connected.answer.status;
  };
  const SecuredAs for_it{std::string(kHost), std::string(fabrics::kDiscoveryNqn), nullptr};
  const SecuredAs for_another{std::string(kHost), std::string(kSubsystem), nullptr};
  const SecuredAs of_another{std::string(kOtherHost), std::string(fabrics::kDiscoveryNqn), nullptr};
  EXPECT_EQ(status_of(nullptr), 0);
  EXPECT_EQ(status_of(&for_it), 0);
  EXPECT_EQ(status_of(&for_another), kInvalidHost);
  EXPECT_EQ(status_of(&of_another), kInvalidHost);
}

}  // namespace
}  // namespace cleat::nvme::target::psk_test
