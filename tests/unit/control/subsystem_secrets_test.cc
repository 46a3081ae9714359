// SPDX-License-Identifier: Apache-2.0
// The secrets of NVMe-oF subsystems: what the API takes, that they are kept wrapped and never shown, and what engines are told.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>

#include "control/api/apply_host.h"
#include "control/model/json.h"
#include "control/model/reasons.h"
#include "keys/kek_file.h"
#include "keys_rig.h"
#include "requests.h"

namespace cleat::control::subsystem_secrets_test {
namespace {

// Parts of what the secrets stand for, and of their texts.
constexpr const char* kTraces[] = {"QEFCQ0RFRkdISUpL", "@ABCDEFGHIJKLMNO", "YGFiY2RlZmdoaWpr",
                                   "`abcdefghijklmno", "ICEiIyQlJicoKSor", " !\"#$%&'()*+,-./"};

v1::CreateSubsystemRequest WithAll() {
  v1::CreateSubsystemRequest request = SecretSubsystem("array");
  v1::SubsystemSpec& spec = *request.mutable_subsystem()->mutable_spec();
  spec.mutable_dhchap_ctrl_secret()->set_plain_key(kOtherChapSecret);
  spec.mutable_tls_psk()->set_plain_key(kTlsPsk);
  return request;
}

std::span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class SubsystemSecretsTest : public KeysRig {
 protected:
  auto Create(const v1::CreateSubsystemRequest& request) { return state_->subsystems().Create(request); }
  auto UpdateTo(const v1::CreateSubsystemRequest& wanted) {
    return state_->subsystems().Update(Update(wanted));
  }
  v1::Subsystem Get() {
    v1::GetSubsystemRequest request;
    request.set_name("subsystems/array");
    return state_->subsystems().Get(request).value();
  }
  static void ExpectNoTrace(const std::string& text) {
    for (const char* const trace : kTraces) EXPECT_EQ(text.find(trace), std::string::npos) << trace;
  }
  // What `change` makes of a new subsystem is refused for that field, without a word of what was given.
  void ExpectRefused(const std::function<void(v1::SubsystemSpec&)>& change, v1::Reason reason,
                     const std::string& field, std::string_view says) {
    v1::CreateSubsystemRequest request = NewSubsystem("array");
    change(*request.mutable_subsystem()->mutable_spec());
    const auto made = Create(request);
    ASSERT_FALSE(made.ok()) << says;
    EXPECT_EQ(ReasonOf(made.error()), reason) << made.error().message;
    EXPECT_EQ(MetadataOf(made.error(), "field"), "spec." + field);
    EXPECT_EQ(MetadataOf(made.error(), "resource"), "subsystems/array");
    EXPECT_NE(made.error().message.find(says), std::string::npos) << made.error().message;
    ExpectNoTrace(made.error().message);
  }
  // As somebody does who has cleatd's key-encryption key.
  v1::WrappedKey Wrapped(const std::string& text) {
    const auto kek = keys::LoadKekFile(dir_ / "kek").value();
    const auto bytes = kek.Wrap(keys::Secret::Copy(BytesOf(text)), keys::Wrapping::kPadded).value();
    v1::WrappedKey wrapped;
    wrapped.set_key_encryption_key(kek.id());
    wrapped.set_data(bytes.data(), bytes.size());
    return wrapped;
  }
  void AttachOne() {
    ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
    ASSERT_TRUE(state_->controllers().Create(NewController("vm")).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
    ASSERT_TRUE(WaitFor("controllers/vm/attachments/a").ok());
  }
  // For engine-0, which can't attach it.
  void BeginWithAll() {
    ASSERT_TRUE(Create(WithAll()).ok());
    ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
    v1::CreateControllerRequest request = NewController("vm");
    request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
    ASSERT_TRUE(state_->controllers().Create(request).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
  }
  v1::AttachmentStatus Attached() { return state_->attachments().Get(GetAttachment("vm", "a"))->status(); }
  void AwaitTooOld() {
    Await("it is known what becomes of it", [&] {
      const v1::AttachmentState state = Attached().state();
      return state == v1::ATTACHMENT_STATE_FAILED || state == v1::ATTACHMENT_STATE_READY;
    });
    EXPECT_EQ(Attached().state(), v1::ATTACHMENT_STATE_FAILED);
    EXPECT_TRUE(Attached().message().starts_with(
        "engines/engine-0 (version 0.0.1, protocol 5) can't attach a disk of subsystems/array, which has "
        "secrets and takes protocol 6: upgrade the engine (cleatctl engine upgrade), or stop it and start "
        "the "
        "new one under the same name (--name engine-0)"))
        << Attached().message();
  }
  // `in_vain`: what is waited for never comes, and limits pass.
  v1::UpgradeStatus Upgraded(const std::string& from, const std::string& to, bool in_vain = false) {
    v1::UpgradeEngineRequest request;
    request.set_name(EngineName(from));
    request.set_to(EngineName(to));
    Await("it can begin", [&] { return state_->upgrades().Begin(request).ok(); });
    v1::UpgradeStatus status;
    Await("it has ended", [&] {
      if (in_vain) {
        // In steps, so that why it is in vain is known before its time is over.
        clock_.Leap(kHourNs / 60);
        link_->Wake();
      }
      status = state_->engines().Get(GetEngine(from))->status().upgrade();
      return status.state() != v1::UPGRADE_STATE_RUNNING;
    });
    return status;
  }
  void DetachOne() {
    ASSERT_TRUE(state_->attachments().Detach(Detach("vm", "a")).ok());
    Await("a is detached", [&] { return !state_->attachments().Get(GetAttachment("vm", "a")).ok(); });
  }
  engine::v1::NvmeTcpBackend Told() { return engine_.DiskAt("controllers/vm", 0).nvme_tcp(); }
  std::string TextOf(const engine::v1::WrappedSecret& told) {
    return Unwrapped(told.key_encryption_key(), told.data(), "subsystems/array");
  }
  v1::ApplyResult Apply(const v1::CreateSubsystemRequest& wanted, bool dry_run = false) {
    v1::ApplyHostRequest host;
    host.set_dry_run(dry_run);
    *host.add_subsystems() = Update(wanted).subsystem();
    const auto applied = ApplyHostCall(*state_, [] { return false; }).Apply(host);
    EXPECT_TRUE(applied.ok());
    return applied->results(0);
  }
};

// ---- What they may be ----

TEST_F(SubsystemSecretsTest, WhatIsNoneIsRefusedWithItsFieldAndNotRepeated) {
  const auto chap = [](const std::string& text) {
    return [text](v1::SubsystemSpec& spec) { spec.mutable_dhchap_secret()->set_plain_key(text); };
  };
  const std::string good = kChapSecret;
  ExpectRefused(chap("nonsense"), v1::REASON_KEY_INVALID, "dhchap_secret",
                "dhchap_secret is no DH-HMAC-CHAP secret");
  std::string damaged = good;
  damaged[20] = 'R';
  ExpectRefused(chap(damaged), v1::REASON_KEY_INVALID, "dhchap_secret", "checksum is wrong");
  ExpectRefused(chap(good + "\n"), v1::REASON_KEY_INVALID, "dhchap_secret", "nvme gen-dhchap-key");
  ExpectRefused(chap(""), v1::REASON_KEY_INVALID, "dhchap_secret", "no DH-HMAC-CHAP secret");
  ExpectRefused(chap(std::string(257, 'Q')), v1::REASON_KEY_INVALID, "dhchap_secret.plain_key",
                "dhchap_secret is far too long");
  ExpectRefused([](auto& spec) { spec.mutable_dhchap_ctrl_secret()->set_plain_key(kTlsPsk); },
                v1::REASON_KEY_INVALID, "dhchap_ctrl_secret", "dhchap_ctrl_secret is no DH-HMAC-CHAP secret");
  ExpectRefused([](auto& spec) { spec.mutable_dhchap_ctrl_secret()->set_plain_key(kChapSecret); },
                v1::REASON_KEY_INVALID, "dhchap_ctrl_secret", "without dhchap_secret");
  const auto psk = [](const std::string& text) {
    return [text](v1::SubsystemSpec& spec) { spec.mutable_tls_psk()->set_plain_key(text); };
  };
  const std::string key = kTlsPsk;
  ExpectRefused(psk(kChapSecret), v1::REASON_KEY_INVALID, "tls_psk", "tls_psk is no");
  ExpectRefused(psk(key.substr(0, key.size() - 1)), v1::REASON_KEY_INVALID, "tls_psk", "colon");
  ExpectRefused(psk("NVMeTLSkey-1:02" + key.substr(15)), v1::REASON_KEY_INVALID, "tls_psk", "tls_psk is no");
  ExpectRefused(psk("NVMeTLSkey-1:07" + key.substr(15)), v1::REASON_KEY_INVALID, "tls_psk", "tls_psk is no");
}

TEST_F(SubsystemSecretsTest, OneThatIsToStayAndIsNotThereIsRefused) {
  v1::Secret shown;
  shown.mutable_wrapped_key()->set_key_encryption_key(keyring_->current_id());
  ExpectRefused([&](auto& spec) { *spec.mutable_tls_psk() = shown; }, v1::REASON_KEY_INVALID, "tls_psk",
                "is to stay as it is, and there is none");
}

TEST_F(SubsystemSecretsTest, TheyMayComeWrapped) {
  const auto wrapped = [](const v1::WrappedKey& key) {
    return [key](v1::SubsystemSpec& spec) { *spec.mutable_dhchap_secret()->mutable_wrapped_key() = key; };
  };
  v1::WrappedKey unknown = Wrapped(kChapSecret);
  unknown.set_key_encryption_key("0123456789abcdef");
  ExpectRefused(wrapped(unknown), v1::REASON_KEY_UNKNOWN, "dhchap_secret.wrapped_key", "0123456789abcdef");
  v1::WrappedKey nameless = Wrapped(kChapSecret);
  nameless.set_key_encryption_key("mine");
  ExpectRefused(wrapped(nameless), v1::REASON_KEY_INVALID, "dhchap_secret.wrapped_key.key_encryption_key",
                "16 hexadecimal digits");
  v1::WrappedKey damaged = Wrapped(kChapSecret);
  (*damaged.mutable_data())[9] ^= 1;
  ExpectRefused(wrapped(damaged), v1::REASON_KEY_INVALID, "dhchap_secret.wrapped_key", "is damaged");
  ExpectRefused(wrapped(Wrapped("no secret at all")), v1::REASON_KEY_INVALID, "dhchap_secret",
                "no DH-HMAC-CHAP secret");

  v1::CreateSubsystemRequest request = SecretSubsystem("array");
  *request.mutable_subsystem()->mutable_spec()->mutable_dhchap_secret()->mutable_wrapped_key() =
      Wrapped(kChapSecret);
  const auto made = Create(request);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(Create(SecretSubsystem("array"))->etag(), made->etag()) << "the same secret in another form";
}

TEST_F(SubsystemSecretsTest, WithoutAKeyEncryptionKeyNoneIsTaken) {
  RestartCleatd();
  const auto refused = Create(SecretSubsystem("array"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_KEY_UNKNOWN) << refused.error().message;
  EXPECT_TRUE(Create(NewSubsystem("array")).ok());
}

// ---- How they are kept ----

TEST_F(SubsystemSecretsTest, TheyAreKeptWrappedAndNeverShown) {
  const auto made = Create(WithAll());
  ASSERT_TRUE(made.ok()) << made.error().message;
  const v1::SubsystemSpec& spec = made->spec();
  for (const v1::Secret& secret : {spec.dhchap_secret(), spec.dhchap_ctrl_secret(), spec.tls_psk()}) {
    EXPECT_EQ(secret.wrapped_key().key_encryption_key(), keyring_->current_id())
        << "that it is there is shown";
    EXPECT_TRUE(secret.wrapped_key().data().empty());
    EXPECT_FALSE(secret.has_plain_key());
  }
  ExpectNoTrace(made->SerializeAsString());
  Restart();
  ExpectNoTrace(RawFiles());
  EXPECT_NE(RawFiles().find("nqn.2014-08.org.example:array"), std::string::npos)
      << "the search finds what is there";
  EXPECT_EQ(Get().spec().SerializeAsString(), spec.SerializeAsString());
  EXPECT_EQ(Get().etag(), made->etag());
  v1::ListSubsystemsRequest all;
  ExpectNoTrace(state_->subsystems().List(all)->SerializeAsString());
  EXPECT_EQ(state_->subsystems().List(all)->subsystems(0).spec().SerializeAsString(),
            spec.SerializeAsString());
  ExpectNoTrace(JsonWithoutKeys(WithAll()));
}

TEST_F(SubsystemSecretsTest, TheSameAgainIsTheSameAndAnotherIsNot) {
  const auto made = Create(WithAll());
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(Create(WithAll())->revision(), made->revision());
  EXPECT_EQ(Create(NewSubsystem("array"))->revision(), made->revision()) << "none is said: the present ones";
  v1::CreateSubsystemRequest other = WithAll();
  other.mutable_subsystem()->mutable_spec()->mutable_dhchap_ctrl_secret()->set_plain_key(kChapSecret);
  const auto refused = Create(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_CONTENT_DIFFERS);
  EXPECT_EQ(MetadataOf(refused.error(), "difference"), "secrets");
  ExpectNoTrace(refused.error().message);
  other = WithAll();
  other.mutable_subsystem()->mutable_spec()->mutable_tls_psk()->clear_key();
  EXPECT_EQ(ReasonOf(Create(other).error()), v1::REASON_CONTENT_DIFFERS) << "one fewer";
}

TEST_F(SubsystemSecretsTest, AnUpdateSetsKeepsAndRemovesEachByItself) {
  const auto made = Create(NewSubsystem("array"));
  ASSERT_TRUE(made.ok());
  v1::CreateSubsystemRequest wanted = SecretSubsystem("array");
  const auto set = UpdateTo(wanted);
  ASSERT_TRUE(set.ok()) << set.error().message;
  EXPECT_TRUE(set->spec().dhchap_secret().has_wrapped_key());
  EXPECT_NE(set->etag(), made->etag());
  EXPECT_EQ(UpdateTo(wanted)->etag(), set->etag()) << "nothing changes";
  EXPECT_EQ(UpdateTo(NewSubsystem("array"))->etag(), set->etag()) << "none is said";
  *wanted.mutable_subsystem()->mutable_spec() = set->spec();
  EXPECT_EQ(UpdateTo(wanted)->etag(), set->etag()) << "as answers show it";

  const auto more = UpdateTo(WithAll());
  ASSERT_TRUE(more.ok());
  EXPECT_TRUE(more->spec().has_tls_psk() && more->spec().has_dhchap_ctrl_secret());
  wanted = NewSubsystem("array");
  wanted.mutable_subsystem()->mutable_spec()->mutable_tls_psk();
  const auto fewer = UpdateTo(wanted);
  ASSERT_TRUE(fewer.ok()) << fewer.error().message;
  EXPECT_FALSE(fewer->spec().has_tls_psk());
  EXPECT_TRUE(fewer->spec().has_dhchap_secret() && fewer->spec().has_dhchap_ctrl_secret());
  wanted.mutable_subsystem()->mutable_spec()->mutable_dhchap_secret();
  const auto alone = UpdateTo(wanted);
  ASSERT_FALSE(alone.ok()) << "the subsystem's would be alone";
  EXPECT_EQ(ReasonOf(alone.error()), v1::REASON_KEY_INVALID);
  wanted.mutable_subsystem()->mutable_spec()->mutable_dhchap_ctrl_secret();
  const auto none = UpdateTo(wanted);
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->spec().SerializeAsString(), made->spec().SerializeAsString());
}

TEST_F(SubsystemSecretsTest, TheyAreSparedWhereTheRequestSaysSo) {
  ASSERT_TRUE(Create(SecretSubsystem("array")).ok());
  v1::DeleteSubsystemRequest request;
  request.set_name("subsystems/array");
  request.set_spare_key(true);
  const auto refused = state_->subsystems().Delete(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_KEY_NOT_KEPT);
  request.set_spare_key(false);
  EXPECT_TRUE(state_->subsystems().Delete(request).ok());
  request.set_spare_key(true);
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  EXPECT_TRUE(state_->subsystems().Delete(request).ok()) << "it has none";
}

TEST_F(SubsystemSecretsTest, AHostFileSaysThemAsTheCallsDo) {
  EXPECT_EQ(Apply(SecretSubsystem("array", "nonsense"), /*dry_run=*/true).action(), v1::APPLY_ACTION_FAILED);
  EXPECT_EQ(Apply(SecretSubsystem("array")).action(), v1::APPLY_ACTION_CREATED);
  EXPECT_EQ(Apply(SecretSubsystem("array")).action(), v1::APPLY_ACTION_UNCHANGED);
  EXPECT_EQ(Apply(NewSubsystem("array")).action(), v1::APPLY_ACTION_UNCHANGED);
  const auto other = SecretSubsystem("array", kOtherChapSecret);
  EXPECT_EQ(Apply(other, /*dry_run=*/true).action(), v1::APPLY_ACTION_UPDATED);
  EXPECT_EQ(Apply(SecretSubsystem("array")).action(), v1::APPLY_ACTION_UNCHANGED) << "it was a dry run";
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

// ---- What engines are told ----

TEST_F(SubsystemSecretsTest, EnginesAreToldThemWrappedAndWithoutOneNothing) {
  ASSERT_TRUE(Create(SecretSubsystem("array")).ok());
  ASSERT_TRUE(engine_.Connect());
  AttachOne();
  EXPECT_EQ(TextOf(Told().dhchap_secret()), kChapSecret);
  EXPECT_FALSE(Told().has_dhchap_ctrl_secret() || Told().has_tls_psk());
  ExpectNoTrace(Told().SerializeAsString());

  const auto attached = UpdateTo(WithAll());
  ASSERT_FALSE(attached.ok()) << "its engine would not know";
  EXPECT_EQ(ReasonOf(attached.error()), v1::REASON_SUBSYSTEM_IN_USE);
  EXPECT_NE(attached.error().message.find("secrets stay meanwhile"), std::string::npos)
      << attached.error().message;
  EXPECT_EQ(Apply(WithAll(), /*dry_run=*/true).action(), v1::APPLY_ACTION_FAILED);
  DetachOne();
  ASSERT_TRUE(UpdateTo(WithAll()).ok()) << "though it has a disk";
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
  ASSERT_TRUE(WaitFor("controllers/vm/attachments/a").ok());
  EXPECT_EQ(TextOf(Told().dhchap_secret()), kChapSecret);
  EXPECT_EQ(TextOf(Told().dhchap_ctrl_secret()), kOtherChapSecret);
  EXPECT_EQ(TextOf(Told().tls_psk()), kTlsPsk);
}

// ---- Engines of before

TEST_F(SubsystemSecretsTest, AnEngineThatIsTooOldForThemIsNotAskedAndTheErrorNamesIt) {
  engine_.set_protocol(kProtocolSecrets - 1);
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Create(NewSubsystem("array")).ok());
  AttachOne();
  EXPECT_TRUE(engine_.Has("controllers/vm", 0)) << "without secrets it does what it always did";
  DetachOne();
  for (const bool tls : {false, true}) {
    SCOPED_TRACE(tls);
    v1::CreateSubsystemRequest one = NewSubsystem("array");
    v1::SubsystemSpec& spec = *one.mutable_subsystem()->mutable_spec();
    (tls ? spec.mutable_tls_psk() : spec.mutable_dhchap_secret())->set_plain_key(tls ? kTlsPsk : kChapSecret);
    ASSERT_TRUE(UpdateTo(one).ok());
    (void)engine_.TakeRequests();
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
    AwaitTooOld();
    const Requests asked = engine_.TakeRequests();
    EXPECT_EQ(std::count(asked.begin(), asked.end(), "Attach controllers/vm 0 disks/a"), 0);
    EXPECT_FALSE(engine_.Has("controllers/vm", 0));
    DetachOne();
    (tls ? spec.mutable_tls_psk() : spec.mutable_dhchap_secret())->clear_key();  // removed
    ASSERT_TRUE(UpdateTo(one).ok());
  }
}

TEST_F(SubsystemSecretsTest, TheSuccessorOfOneThatIsTooOldIsToldThem) {
  engine_.set_protocol(kProtocolSecrets - 1);
  ASSERT_TRUE(engine_.Connect());
  BeginWithAll();
  AwaitTooOld();
  engine_.Die();
  engine_.set_protocol(kProtocolSecrets);
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("controllers/vm/attachments/a").ok());
  EXPECT_EQ(TextOf(Told().tls_psk()), kTlsPsk);
}

// As the error says; and nothing goes back.
TEST_F(SubsystemSecretsTest, AnUpgradeFromOneThatIsTooOldGoesThroughAndNotBack) {
  FakeEngine newer(socket_, "engine-1");
  engine_.set_protocol(kProtocolSecrets - 1);
  ASSERT_TRUE(engine_.Connect());
  BeginWithAll();
  AwaitTooOld();
  ASSERT_TRUE(newer.Connect());
  EXPECT_EQ(Upgraded("engine-0", "engine-1").moved(), 1U);
  ASSERT_TRUE(WaitFor("controllers/vm/attachments/a").ok());
  EXPECT_EQ(TextOf(newer.DiskAt("controllers/vm", 0).nvme_tcp().tls_psk()), kTlsPsk);

  const v1::UpgradeStatus back = Upgraded("engine-1", "engine-0", /*in_vain=*/true);
  EXPECT_EQ(back.moved(), 0U);
  ASSERT_EQ(back.failed_size(), 1);
  EXPECT_NE(back.failed(0).reason().find("which has secrets and takes protocol 6"), std::string::npos)
      << back.ShortDebugString();
  EXPECT_TRUE(newer.Has("controllers/vm", 0));
  EXPECT_FALSE(engine_.Has("controllers/vm", 0));
  EXPECT_TRUE(WaitFor("controllers/vm/attachments/a").ok()) << "it is served as before";
}

TEST_F(SubsystemSecretsTest, ANewKeyEncryptionKeyWrapsThemAnewAndTheOldOneCanGo) {
  ASSERT_TRUE(Create(WithAll()).ok());
  const std::string etag = Get().etag();
  const std::string before = keyring_->current_id();
  WriteKek("new", '2');
  Restart({"new", "kek"});
  ASSERT_TRUE(state_->RewrapKeys().ok());
  EXPECT_EQ(Get().etag(), etag) << "the intent is the same";
  Restart({"new"});
  EXPECT_EQ(RawFiles().find(before), std::string::npos) << "nothing is under the former one";
  ASSERT_TRUE(engine_.Connect());
  AttachOne();
  EXPECT_EQ(Told().dhchap_secret().key_encryption_key(), keyring_->current_id());
  EXPECT_EQ(TextOf(Told().dhchap_secret()), kChapSecret);
  EXPECT_EQ(TextOf(Told().dhchap_ctrl_secret()), kOtherChapSecret);
  EXPECT_EQ(TextOf(Told().tls_psk()), kTlsPsk);
}

// What can't be unwrapped stays as it is, and goes when another one comes.
TEST_F(SubsystemSecretsTest, WhatCantBeUnwrappedIsMendedByAnotherOne) {
  ASSERT_TRUE(Create(SecretSubsystem("array")).ok());
  WriteKek("new", '2');
  Restart({"new"});
  ASSERT_TRUE(state_->RewrapKeys().ok());
  EXPECT_NE(Get().spec().dhchap_secret().wrapped_key().key_encryption_key(), keyring_->current_id());
  ASSERT_TRUE(UpdateTo(SecretSubsystem("array")).ok());
  EXPECT_EQ(Get().spec().dhchap_secret().wrapped_key().key_encryption_key(), keyring_->current_id());
}

}  // namespace
}  // namespace cleat::control::subsystem_secrets_test
