// SPDX-License-Identifier: Apache-2.0
// Whom an export lets in: hosts with secrets once these are unwrapped, never without, and the last word holds.
#include "engine/secrets/export_hosts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "keys/kek_file.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::engine::export_hosts_test {
namespace {

constexpr char kOne[] = "nqn.2014-08.org.example:host1";
constexpr char kTwo[] = "nqn.2014-08.org.example:host2";
constexpr char kChapSecret[] = "DHHC-1:01:QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl9YjiZe:";
constexpr char kTlsPsk[] = "NVMeTLSkey-1:01:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:";

WrappedSecret Wrapped(const keys::Kek& kek, const std::string& text) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
  return {kek.id(), kek.Wrap(keys::Secret::Copy({bytes, text.size()}), keys::Wrapping::kPadded).value()};
}

ExportHost WithChap(const keys::Kek& kek, const std::string& nqn, const std::string& text = kChapSecret) {
  ExportHost host{.nqn = nqn};
  host.secrets.dhchap_secret = Wrapped(kek, text);
  return host;
}

class ExportHostsTest : public testing::Test {
 protected:
  ExportHostsTest() {
    CLEAT_CHECK(keyring_.SetFiles({KekPath()}).ok());
    Make(&keyring_);
  }
  ~ExportHostsTest() override { Close(); }

  std::string KekPath() { return folder_.path() + "/kek"; }
  void Make(keys::Keyring* keyring) {
    Close();
    hosts_ = std::make_unique<ExportHosts>(
        "controllers/db", reactors_[0], keyring, &threads_,
        [this](ExportHosts::Hosts hosts) { told_.push_back(std::move(hosts)); });
  }
  void Close() {
    if (hosts_ == nullptr) return;
    const auto close = [](ExportHosts& hosts) -> Task<bool> {
      co_await hosts.Close();
      co_return true;
    };
    reactors_.Await(close(*hosts_));
    hosts_.reset();
  }
  // Until their secrets are unwrapped, or could not be.
  void Settle() {
    const auto settle = [](ExportHosts& hosts) -> Task<bool> {
      co_await hosts.Settled();
      co_return true;
    };
    reactors_.Await(settle(*hosts_));
  }
  void SetAndSettle(std::vector<ExportHost> hosts) {
    hosts_->Set(std::move(hosts));
    Settle();
  }
  // As was told last; nullptr: it is not let in.
  const nvme::target::HostAccess* Find(const std::string& nqn) {
    for (const auto& host : told_.back()) {
      if (host.nqn == nqn) return &host;
    }
    return nullptr;
  }

  test::TempDir folder_;
  const keys::Kek kek_ = keys::LoadOrMakeKekFile(KekPath()).value();
  keys::Keyring keyring_;
  test::VirtualReactors reactors_;
  BlockingPool threads_{0};  // in virtual time
  std::unique_ptr<ExportHosts> hosts_;
  std::vector<ExportHosts::Hosts> told_;
};

TEST_F(ExportHostsTest, WhoHasNothingToProveIsLetInAtOnce) {
  hosts_->Set({{.nqn = kOne}, {.nqn = kTwo}});
  ASSERT_EQ(told_.size(), 1U);
  ASSERT_EQ(told_[0].size(), 2U);
  EXPECT_EQ(told_[0][0].nqn, kOne);
  EXPECT_EQ(told_[0][0].chap, nullptr);
  EXPECT_EQ(told_[0][0].psk, nullptr);
  Settle();
  hosts_->Set({});
  EXPECT_TRUE(told_.back().empty());
}

TEST_F(ExportHostsTest, WhoHasSecretsIsLetInWithTheseAndNotBefore) {
  ExportHost all = WithChap(kek_, kTwo);
  all.secrets.dhchap_ctrl_secret = Wrapped(kek_, kChapSecret);
  all.secrets.tls_psk = Wrapped(kek_, kTlsPsk);
  hosts_->Set({{.nqn = kOne}, all});
  ASSERT_EQ(told_.size(), 1U);
  EXPECT_NE(Find(kOne), nullptr);
  EXPECT_EQ(Find(kTwo), nullptr) << "nothing is known of its secrets yet";
  Settle();
  ASSERT_NE(Find(kTwo), nullptr);
  ASSERT_NE(Find(kTwo)->chap, nullptr);
  EXPECT_TRUE(Find(kTwo)->chap->controller.has_value());
  EXPECT_NE(Find(kTwo)->psk, nullptr);
  EXPECT_EQ(Find(kOne)->chap, nullptr);
  EXPECT_EQ(hosts_->WhyLeftOut(), "");
}

TEST_F(ExportHostsTest, TheSameSecretsAreNotUnwrappedAgain) {
  const ExportHost one = WithChap(kek_, kOne);
  SetAndSettle({one});
  const auto chap = Find(kOne)->chap;
  ASSERT_TRUE(std::filesystem::remove(KekPath()));
  ASSERT_FALSE(keyring_.SetFiles({KekPath()}).ok());
  SetAndSettle({one, {.nqn = kTwo}});
  EXPECT_EQ(Find(kOne)->chap, chap) << "the very same";
  EXPECT_NE(Find(kTwo), nullptr);
}

// They may be the same ones, wrapped anew, and then nothing is to end.
TEST_F(ExportHostsTest, WhileNewSecretsAreUnwrappedTheFormerOnesHold) {
  SetAndSettle({WithChap(kek_, kOne)});
  const auto before = Find(kOne)->chap;
  const auto other = keys::LoadOrMakeKekFile(folder_.path() + "/other").value();
  ASSERT_TRUE(keyring_.SetFiles({folder_.path() + "/other", KekPath()}));
  hosts_->Set({WithChap(other, kOne)});
  ASSERT_NE(Find(kOne), nullptr);
  EXPECT_EQ(Find(kOne)->chap, before);
  Settle();
  ASSERT_NE(Find(kOne), nullptr);
  EXPECT_NE(Find(kOne)->chap, before);
}

TEST_F(ExportHostsTest, WhoHadNothingToProveIsNotLetInWithoutProofAnyMore) {
  SetAndSettle({{.nqn = kOne}});
  hosts_->Set({WithChap(kek_, kOne)});
  EXPECT_EQ(Find(kOne), nullptr);
  Settle();
  EXPECT_NE(Find(kOne)->chap, nullptr);
  hosts_->Set({{.nqn = kOne}});
  EXPECT_EQ(Find(kOne)->chap, nullptr);
}

TEST_F(ExportHostsTest, WhoseSecretsCantBeUnwrappedIsLeftOutWithTheReasonUntilTheyCan) {
  const auto missing = keys::Kek::Random();
  hosts_->Set({{.nqn = kOne}, WithChap(missing, kTwo)});
  Settle();
  EXPECT_NE(Find(kOne), nullptr) << "the others are let in";
  EXPECT_EQ(Find(kTwo), nullptr);
  const std::string why = hosts_->WhyLeftOut();
  EXPECT_TRUE(why.starts_with("not let in: host " + std::string(kTwo) + ": dhchap_secret: ")) << why;
  EXPECT_NE(why.find("key-encryption key " + missing.id()), std::string::npos) << why;
  EXPECT_NE(why.find("--kek-file"), std::string::npos) << why;

  // Somebody brings the key: nobody has to say so.
  const std::string path = folder_.path() + "/late";
  const auto late = keys::LoadOrMakeKekFile(path).value();
  keyring_.SetFilesLater({path});
  hosts_->Set({{.nqn = kOne}, WithChap(late, kTwo)});
  EXPECT_TRUE(reactors_.RunUntil([&] { return Find(kTwo) != nullptr; }));
  EXPECT_EQ(hosts_->WhyLeftOut(), "");
}

TEST_F(ExportHostsTest, ItIsTriedAgainByItself) {
  ASSERT_TRUE(std::filesystem::remove(KekPath()));
  keyring_.SetFilesLater({KekPath()});
  const auto late = keys::LoadOrMakeKekFile(folder_.path() + "/late").value();
  SetAndSettle({WithChap(late, kOne)});
  EXPECT_EQ(Find(kOne), nullptr);
  const uint64_t began_ns = reactors_.clock().NowNs();
  std::filesystem::rename(folder_.path() + "/late", KekPath());
  EXPECT_TRUE(reactors_.RunUntil([&] { return Find(kOne) != nullptr; }));
  EXPECT_GE(reactors_.clock().NowNs() - began_ns, ExportHosts::kRetryNsMin / 2);
  EXPECT_LE(reactors_.clock().NowNs() - began_ns, 2 * ExportHosts::kRetryNsMin);
}

TEST_F(ExportHostsTest, NewSecretsThatCantBeUnwrappedEndTheFormerOnes) {
  SetAndSettle({WithChap(kek_, kOne)});
  SetAndSettle({WithChap(keys::Kek::Random(), kOne)});
  EXPECT_EQ(Find(kOne), nullptr) << "they may have been taken from the host";
}

TEST_F(ExportHostsTest, OfSeveralThatAreLeftOutOneIsNamedAndTheOthersAreCounted) {
  const auto missing = keys::Kek::Random();
  SetAndSettle({WithChap(missing, kOne), WithChap(missing, kTwo)});
  const std::string why = hosts_->WhyLeftOut();
  EXPECT_NE(why.find(kOne), std::string::npos) << why;
  EXPECT_NE(why.find("; nor are 1 other host(s)"), std::string::npos) << why;
  // One that is taken out of the list is not missed.
  SetAndSettle({WithChap(missing, kTwo)});
  EXPECT_EQ(hosts_->WhyLeftOut().find(kOne), std::string::npos);
}

TEST_F(ExportHostsTest, OfChangesThatComeQuicklyTheLastHolds) {
  hosts_->Set({WithChap(kek_, kOne)});
  hosts_->Set({WithChap(kek_, kTwo)});
  Settle();
  EXPECT_EQ(Find(kOne), nullptr);
  EXPECT_NE(Find(kTwo), nullptr);
  hosts_->Set({WithChap(kek_, kOne), WithChap(kek_, kTwo)});
  hosts_->Set({});
  Settle();
  reactors_.RunUntilIdle();
  EXPECT_TRUE(told_.back().empty()) << "what was unwrapped for nobody lets nobody in";
}

TEST_F(ExportHostsTest, WithoutAKeyringNobodyWithSecretsIsLetIn) {
  Make(nullptr);
  SetAndSettle({{.nqn = kOne}, WithChap(kek_, kTwo)});
  EXPECT_NE(Find(kOne), nullptr);
  EXPECT_EQ(Find(kTwo), nullptr);
  EXPECT_NE(hosts_->WhyLeftOut().find("no key-encryption keys"), std::string::npos) << hosts_->WhyLeftOut();
}

TEST_F(ExportHostsTest, NothingIsToldOnceItIsClosed) {
  hosts_->Set({WithChap(kek_, kOne)});
  ExportHosts& hosts = *hosts_;
  const auto close = [](ExportHosts& of) -> Task<bool> {
    co_await of.Close();
    co_return true;
  };
  reactors_.Await(close(hosts));
  const size_t told = told_.size();
  hosts.Set({{.nqn = kTwo}});
  reactors_.RunUntilIdle();
  EXPECT_EQ(told_.size(), told);
}

}  // namespace
}  // namespace cleat::engine::export_hosts_test
