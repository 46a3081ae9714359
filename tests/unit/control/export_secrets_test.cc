// SPDX-License-Identifier: Apache-2.0
// The secrets of exports' hosts: what the API takes, that they are kept wrapped and never shown, and what engines are told.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "control/api/apply_host.h"
#include "control/backup/keys_needed.h"
#include "control/model/json.h"
#include "control/model/reasons.h"
#include "keys_rig.h"
#include "requests.h"

namespace cleat::control::export_secrets_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Parts of what the secrets stand for, and of their texts.
constexpr const char* kTraces[] = {"QEFCQ0RFRkdISUpL", "@ABCDEFGHIJKLMNO", "YGFiY2RlZmdoaWpr",
                                   "`abcdefghijklmno", "ICEiIyQlJicoKSor", " !\"#$%&'()*+,-./"};

void ExpectNoTrace(const std::string& text) {
  for (const char* const trace : kTraces) EXPECT_EQ(text.find(trace), std::string::npos) << trace;
}

// The first host of the export, which is kHostOne in those of NewExport.
v1::ExportHost& HostOf(v1::CreateControllerRequest& request, int number = 0) {
  return *request.mutable_controller()->mutable_spec()->mutable_exported()->mutable_hosts(number);
}

// Lets in kHostOne with all three secrets, and kHostTwo with none.
v1::CreateControllerRequest WithAll() {
  v1::CreateControllerRequest request = NewExport("db");
  v1::ExportHost& host = HostOf(request);
  host.mutable_dhchap_secret()->set_plain_key(kChapSecret);
  host.mutable_dhchap_ctrl_secret()->set_plain_key(kOtherChapSecret);
  host.mutable_tls_psk()->set_plain_key(kTlsPsk);
  request.mutable_controller()->mutable_spec()->mutable_exported()->add_hosts()->set_nqn(kHostTwo);
  return request;
}

class ExportSecretsTest : public KeysRig {
 protected:
  auto Create(const v1::CreateControllerRequest& request) { return state_->controllers().Create(request); }
  auto Change(const v1::UpdateControllerRequest& request) { return state_->controllers().Update(request); }
  // To the hosts of an export as it would be created.
  auto ChangeTo(const v1::CreateControllerRequest& wanted) {
    v1::UpdateControllerRequest request = LetIn("db", {});
    *request.mutable_controller()->mutable_spec()->mutable_exported()->mutable_hosts() =
        wanted.controller().spec().exported().hosts();
    return Change(request);
  }
  v1::Controller Db() { return state_->controllers().Get(GetController("db")).value(); }
  engine::v1::Export Told() { return engine_.ControllerAt("controllers/db").exported(); }
  std::string TextOf(const engine::v1::WrappedSecret& told) {
    return Unwrapped(told.key_encryption_key(), told.data(), "controllers/db");
  }
  void AwaitTold(const std::string& what, const std::function<bool(const engine::v1::Export&)>& is_so) {
    Await(what, [&] { return is_so(Told()); });
  }
  void AwaitSecured(int secured) {
    AwaitTold("the engine knows the hosts",
              [&](const engine::v1::Export& told) { return told.secured_hosts_size() == secured; });
  }
  v1::ApplyResult Apply(const v1::CreateControllerRequest& wanted, bool dry_run = false) {
    v1::ApplyHostRequest host;
    host.set_dry_run(dry_run);
    *host.add_controllers() = wanted.controller();
    host.mutable_controllers(0)->set_name("controllers/db");
    const auto applied = ApplyHostCall(*state_, [] { return false; }).Apply(host);
    EXPECT_TRUE(applied.ok());
    return applied->results(0);
  }
};

// ---- What they may be ----

TEST_F(ExportSecretsTest, WhatIsNoneIsRefusedWithItsFieldAndNotRepeated) {
  struct Case {
    std::string field;
    std::string says;
    std::function<void(v1::ExportHost&)> spoil;
  };
  v1::Secret shown;
  shown.mutable_wrapped_key()->set_key_encryption_key(keyring_->current_id());
  const std::vector<Case> cases = {
      {"dhchap_secret", "dhchap_secret is no DH-HMAC-CHAP secret",
       [](auto& host) { host.mutable_dhchap_secret()->set_plain_key(kTlsPsk); }},
      {"dhchap_secret.plain_key", "dhchap_secret is far too long",
       [](auto& host) { host.mutable_dhchap_secret()->set_plain_key(std::string(257, 'Q')); }},
      {"dhchap_ctrl_secret", "dhchap_ctrl_secret is there without dhchap_secret",
       [](auto& host) { host.mutable_dhchap_ctrl_secret()->set_plain_key(kChapSecret); }},
      {"tls_psk", "tls_psk is no", [](auto& host) { host.mutable_tls_psk()->set_plain_key(kChapSecret); }},
      {"tls_psk", "is to stay as it is, and there is none",
       [&](auto& host) { *host.mutable_tls_psk() = shown; }},
  };
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.field + " " + wrong.says);
    v1::CreateControllerRequest request = NewExport("db");
    request.mutable_controller()->mutable_spec()->mutable_exported()->add_hosts()->set_nqn(kHostTwo);
    wrong.spoil(HostOf(request, 1));
    const auto made = Create(request);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(ReasonOf(made.error()), v1::REASON_KEY_INVALID) << made.error().message;
    EXPECT_EQ(MetadataOf(made.error(), "field"), "spec.exported.hosts[1]." + wrong.field);
    EXPECT_EQ(MetadataOf(made.error(), "resource"), "controllers/db");
    EXPECT_THAT(made.error().message, HasSubstr("controllers/db: "));
    EXPECT_THAT(made.error().message, HasSubstr(wrong.says));
    ExpectNoTrace(made.error().message);
  }
  EXPECT_FALSE(state_->controllers().Get(GetController("db")).ok());
}

TEST_F(ExportSecretsTest, WithoutAKeyEncryptionKeyNoneIsTaken) {
  RestartCleatd();
  const auto refused = Create(WithAll());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_KEY_UNKNOWN) << refused.error().message;
  EXPECT_TRUE(Create(NewExport("db")).ok());
}

// ---- How they are kept ----

TEST_F(ExportSecretsTest, TheyAreKeptWrappedAndNeverShown) {
  const auto made = Create(WithAll());
  ASSERT_TRUE(made.ok()) << made.error().message;
  const v1::ExportHost& host = made->spec().exported().hosts(0);
  for (const v1::Secret& secret : {host.dhchap_secret(), host.dhchap_ctrl_secret(), host.tls_psk()}) {
    EXPECT_EQ(secret.wrapped_key().key_encryption_key(), keyring_->current_id());
    EXPECT_TRUE(secret.wrapped_key().data().empty());
    EXPECT_FALSE(secret.has_plain_key());
  }
  EXPECT_FALSE(made->spec().exported().hosts(1).has_dhchap_secret());
  ExpectNoTrace(made->SerializeAsString());
  Restart();
  ExpectNoTrace(RawFiles());
  EXPECT_THAT(RawFiles(), HasSubstr(kHostOne)) << "the search finds what is there";
  EXPECT_EQ(Db().spec().SerializeAsString(), made->spec().SerializeAsString());
  EXPECT_EQ(Db().etag(), made->etag());
  ExpectNoTrace(state_->controllers().List(v1::ListControllersRequest())->SerializeAsString());
  ExpectNoTrace(JsonWithoutKeys(WithAll()));
}

TEST_F(ExportSecretsTest, TheSameAgainIsTheSameAndAnotherIsNot) {
  const auto made = Create(WithAll());
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(Create(WithAll())->revision(), made->revision());
  v1::CreateControllerRequest other = WithAll();
  HostOf(other).mutable_dhchap_ctrl_secret()->set_plain_key(kChapSecret);
  const auto refused = Create(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_CONTENT_DIFFERS);
  EXPECT_EQ(MetadataOf(refused.error(), "difference"), "secrets");
  ExpectNoTrace(refused.error().message);
}

TEST_F(ExportSecretsTest, AnUpdateSetsKeepsAndRemovesEachOfEachHost) {
  const auto made = Create(WithAll());
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(ChangeTo(WithAll())->etag(), made->etag()) << "nothing changes";
  EXPECT_EQ(Change(LetIn("db", {kHostTwo, kHostOne}))->etag(), made->etag()) << "none is said";
  v1::UpdateControllerRequest as_shown = LetIn("db", {});
  *as_shown.mutable_controller()->mutable_spec() = made->spec();
  EXPECT_EQ(Change(as_shown)->etag(), made->etag()) << "as answers show it";

  v1::CreateControllerRequest wanted = WithAll();
  HostOf(wanted).mutable_tls_psk()->clear_key();  // to be removed
  HostOf(wanted, 1).mutable_tls_psk()->set_plain_key(kTlsPsk);
  const auto moved = ChangeTo(wanted);
  ASSERT_TRUE(moved.ok()) << moved.error().message;
  EXPECT_NE(moved->etag(), made->etag());
  EXPECT_FALSE(moved->spec().exported().hosts(0).has_tls_psk());
  EXPECT_TRUE(moved->spec().exported().hosts(0).has_dhchap_ctrl_secret());
  EXPECT_TRUE(moved->spec().exported().hosts(1).tls_psk().has_wrapped_key());

  // A host that goes loses its secrets, and has none when it is let in again.
  ASSERT_TRUE(Change(LetIn("db", {kHostTwo})).ok());
  const auto back = Change(LetIn("db", {kHostOne, kHostTwo}));
  ASSERT_TRUE(back.ok());
  EXPECT_FALSE(back->spec().exported().hosts(0).has_dhchap_secret());
  EXPECT_TRUE(back->spec().exported().hosts(1).has_tls_psk()) << "the one that stayed keeps its own";
  EXPECT_FALSE(ChangeTo(NewExport("db"))->spec().exported().hosts(0).has_dhchap_secret());
}

TEST_F(ExportSecretsTest, TheyAreSparedWhereTheRequestSaysSo) {
  ASSERT_TRUE(Create(WithAll()).ok());
  v1::DeleteControllerRequest request = DeleteController("db");
  request.set_spare_key(true);
  const auto refused = state_->controllers().Delete(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_KEY_NOT_KEPT) << refused.error().message;
  request.set_spare_key(false);
  EXPECT_TRUE(state_->controllers().Delete(request).ok());
  request.set_spare_key(true);
  ASSERT_TRUE(Create(NewExport("db")).ok());
  EXPECT_TRUE(state_->controllers().Delete(request).ok()) << "it has none";
}

TEST_F(ExportSecretsTest, WhatIsDeletedHasNoneWhileItsEngineStillHasIt) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Create(WithAll()).ok());
  AwaitSecured(1);
  engine_.Disconnect();
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("db")).ok());
  ASSERT_EQ(Db().status().state(), v1::CONTROLLER_STATE_DELETING);
  EXPECT_FALSE(Db().spec().exported().hosts(0).has_dhchap_secret());
}

TEST_F(ExportSecretsTest, AHostFileSaysThemAsTheCallsDo) {
  v1::CreateControllerRequest nonsense = WithAll();
  HostOf(nonsense).mutable_tls_psk()->set_plain_key("nonsense");
  EXPECT_EQ(Apply(nonsense, /*dry_run=*/true).action(), v1::APPLY_ACTION_FAILED);
  EXPECT_EQ(Apply(WithAll()).action(), v1::APPLY_ACTION_CREATED);
  EXPECT_EQ(Apply(WithAll()).action(), v1::APPLY_ACTION_UNCHANGED);
  v1::CreateControllerRequest other = WithAll();
  HostOf(other).mutable_dhchap_secret()->set_plain_key(kOtherChapSecret);
  EXPECT_EQ(Apply(other, /*dry_run=*/true).action(), v1::APPLY_ACTION_UPDATED);
  EXPECT_EQ(Apply(WithAll()).action(), v1::APPLY_ACTION_UNCHANGED) << "it was a dry run";
  EXPECT_EQ(Apply(other).action(), v1::APPLY_ACTION_UPDATED);
  EXPECT_EQ(Apply(other).action(), v1::APPLY_ACTION_UNCHANGED);
  v1::ApplyHostRequest nothing;
  nothing.set_mode(v1::APPLY_MODE_EXACT);
  nothing.set_allow_empty(true);
  nothing.set_dry_run(true);
  const auto plan = ApplyHostCall(*state_, [] { return false; }).Apply(nothing);
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->results(0).deletes_key());
}

TEST_F(ExportSecretsTest, AStoreWithThemNeedsTheirKeyEncryptionKey) {
  ControllerRow row;
  row.id = "db";
  row.spec = Create(WithAll())->spec();
  Rows rows;
  rows.controllers.push_back(row);
  EXPECT_THAT(KeysNeeded(rows), ElementsAre(std::pair(keyring_->current_id(), "controllers/db")));
}

// ---- What engines are told ----

TEST_F(ExportSecretsTest, EnginesAreToldThemWrappedAndApartFromHostsWithout) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Create(WithAll()).ok());
  AwaitSecured(1);
  EXPECT_THAT(Told().hosts(), ElementsAre(kHostTwo));
  const engine::v1::ExportHost one = Told().secured_hosts(0);
  EXPECT_EQ(one.nqn(), kHostOne);
  EXPECT_EQ(TextOf(one.dhchap_secret()), kChapSecret);
  EXPECT_EQ(TextOf(one.dhchap_ctrl_secret()), kOtherChapSecret);
  EXPECT_EQ(TextOf(one.tls_psk()), kTlsPsk);
  ExpectNoTrace(Told().SerializeAsString());

  // Another secret is told at once, as another host is.
  v1::CreateControllerRequest wanted = WithAll();
  HostOf(wanted).mutable_dhchap_secret()->set_plain_key(kOtherChapSecret);
  ASSERT_TRUE(ChangeTo(wanted).ok());
  AwaitTold("the engine knows the other secret", [&](const engine::v1::Export& told) {
    return told.secured_hosts_size() == 1 &&
           TextOf(told.secured_hosts(0).dhchap_secret()) == kOtherChapSecret;
  });
  ASSERT_TRUE(Change(LetIn("db", {kHostTwo})).ok());
  AwaitSecured(0);
}

TEST_F(ExportSecretsTest, AnEngineThatIsTooOldForThemIsToldTheOtherHostsAloneAndTheStatusSaysSo) {
  engine_.set_protocol(kProtocolHostSecrets - 1);
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Create(WithAll()).ok());
  AwaitTold("the engine knows the host without", [](const engine::v1::Export& told) {
    return told.hosts_size() == 1 && told.hosts(0) == kHostTwo;
  });
  EXPECT_EQ(Told().secured_hosts_size(), 0);
  EXPECT_THAT(Db().status().message(),
              HasSubstr("1 of 2 hosts are not let in: they have secrets, which take protocol 11, and "
                        "engines/engine-0 (version 0.0.1) speaks protocol 10: upgrade the engine"));
  ASSERT_TRUE(Change(LetIn("db", {kHostTwo})).ok());
  EXPECT_THAT(Db().status().message(), Not(HasSubstr("not let in")));
  ASSERT_TRUE(ChangeTo(WithAll()).ok());

  // The new engine under the same name.
  engine_.Die();
  engine_.set_protocol(kProtocolHostSecrets);
  ASSERT_TRUE(engine_.Connect());
  AwaitSecured(1);
  EXPECT_THAT(Db().status().message(), Not(HasSubstr("not let in")));
}

TEST_F(ExportSecretsTest, ANewKeyEncryptionKeyWrapsThemAnewAndTheOldOneCanGo) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Create(WithAll()).ok());
  AwaitSecured(1);
  const std::string etag = Db().etag();
  const std::string before = keyring_->current_id();
  WriteKek("new", '2');
  Restart({"new", "kek"});
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->RewrapKeys().ok());
  EXPECT_EQ(Db().etag(), etag) << "the intent is the same";
  AwaitTold("the engine knows them under the new one", [&](const engine::v1::Export& told) {
    return told.secured_hosts_size() == 1 &&
           told.secured_hosts(0).tls_psk().key_encryption_key() == keyring_->current_id();
  });
  EXPECT_EQ(TextOf(Told().secured_hosts(0).dhchap_secret()), kChapSecret);
  Restart({"new"});
  EXPECT_EQ(RawFiles().find(before), std::string::npos) << "nothing is under the former one";
}

}  // namespace
}  // namespace cleat::control::export_secrets_test
