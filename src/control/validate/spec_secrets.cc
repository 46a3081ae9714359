// SPDX-License-Identifier: Apache-2.0
#include "control/validate/spec_secrets.h"

#include <fmt/format.h>

#include <utility>

#include "keys/secret.h"
#include "nvme/auth/chap_secret.h"
#include "nvme/tls/psk.h"

namespace cleat::control {
namespace {

using Spec = v1::SubsystemSpec;

Status CheckChapSecret(std::string_view text, std::string_view what) {
  CLEAT_TRY(nvme::auth::ChapSecret::Parse(text, what));
  return Ok{};
}

Status CheckTlsPsk(std::string_view text, std::string_view what) {
  CLEAT_TRY(nvme::tls::Psk::Parse(text, what));
  return Ok{};
}

constexpr std::array<SubsystemSecret, kSubsystemSecrets> kSecrets = {{
    {"dhchap_secret", &Spec::has_dhchap_secret, &Spec::dhchap_secret, &Spec::mutable_dhchap_secret,
     &Spec::clear_dhchap_secret, &CheckChapSecret},
    {"dhchap_ctrl_secret", &Spec::has_dhchap_ctrl_secret, &Spec::dhchap_ctrl_secret,
     &Spec::mutable_dhchap_ctrl_secret, &Spec::clear_dhchap_ctrl_secret, &CheckChapSecret},
    {"tls_psk", &Spec::has_tls_psk, &Spec::tls_psk, &Spec::mutable_tls_psk, &Spec::clear_tls_psk,
     &CheckTlsPsk},
}};

}  // namespace

const std::array<SubsystemSecret, kSubsystemSecrets>& SubsystemSecrets() {
  return kSecrets;
}

std::array<v1::Secret*, kSubsystemSecrets> SecretsOf(v1::DiscoverSubsystemsRequest* request) {
  return {request->has_dhchap_secret() ? request->mutable_dhchap_secret() : nullptr,
          request->has_dhchap_ctrl_secret() ? request->mutable_dhchap_ctrl_secret() : nullptr,
          request->has_tls_psk() ? request->mutable_tls_psk() : nullptr};
}

bool HasSecrets(const v1::DiscoverSubsystemsRequest& request) {
  return request.has_dhchap_secret() || request.has_dhchap_ctrl_secret() || request.has_tls_psk();
}

// ---- Wrapped keys

std::vector<const v1::WrappedKey*> WrappedKeysIn(const v1::DiskSpec& spec) {
  if (!spec.encryption().has_wrapped_key()) return {};
  return {&spec.encryption().wrapped_key()};
}

std::vector<const v1::WrappedKey*> WrappedKeysIn(const v1::ClusterSpec& spec) {
  if (!spec.has_wrapped_key()) return {};
  return {&spec.wrapped_key()};
}

std::vector<const v1::WrappedKey*> WrappedKeysIn(const v1::SubsystemSpec& spec) {
  std::vector<const v1::WrappedKey*> keys;
  for (const SubsystemSecret& secret : kSecrets) {
    if ((spec.*secret.get)().has_wrapped_key()) keys.push_back(&(spec.*secret.get)().wrapped_key());
  }
  return keys;
}

std::vector<v1::WrappedKey*> WrappedKeysOf(v1::DiskSpec* spec) {
  if (!spec->encryption().has_wrapped_key()) return {};
  return {spec->mutable_encryption()->mutable_wrapped_key()};
}

std::vector<v1::WrappedKey*> WrappedKeysOf(v1::ClusterSpec* spec) {
  if (!spec->has_wrapped_key()) return {};
  return {spec->mutable_wrapped_key()};
}

std::vector<v1::WrappedKey*> WrappedKeysOf(v1::SubsystemSpec* spec) {
  std::vector<v1::WrappedKey*> keys;
  for (const SubsystemSecret& secret : kSecrets) {
    if ((spec->*secret.get)().has_wrapped_key())
      keys.push_back((spec->*secret.change)()->mutable_wrapped_key());
  }
  return keys;
}

// ---- Plain keys

std::string PlainKeyIn(const v1::DiskSpec& spec) {
  return spec.encryption().has_plain_key() ? "spec.encryption.plain_key" : "";
}

std::string PlainKeyIn(const v1::ClusterSpec& spec) {
  return spec.has_plain_key() ? "spec.plain_key" : "";
}

std::string PlainKeyIn(const v1::SubsystemSpec& spec) {
  for (const SubsystemSecret& secret : kSecrets) {
    if ((spec.*secret.get)().has_plain_key()) return fmt::format("spec.{}.plain_key", secret.field);
  }
  return "";
}

std::string PlainKeyIn(const v1::DiscoverSubsystemsRequest& request) {
  if (request.dhchap_secret().has_plain_key()) return "dhchap_secret.plain_key";
  if (request.dhchap_ctrl_secret().has_plain_key()) return "dhchap_ctrl_secret.plain_key";
  return request.tls_psk().has_plain_key() ? "tls_psk.plain_key" : "";
}

void WipePlainKey(v1::DiskSpec* spec) {
  if (!spec->encryption().has_plain_key()) return;
  keys::Wipe(*spec->mutable_encryption()->mutable_plain_key());
  spec->mutable_encryption()->clear_plain_key();
}

void WipePlainKey(v1::ClusterSpec* spec) {
  if (!spec->has_plain_key()) return;
  keys::Wipe(*spec->mutable_plain_key());
  spec->clear_plain_key();
}

void WipePlainKey(v1::SubsystemSpec* spec) {
  for (const SubsystemSecret& secret : kSecrets) {
    if (!(spec->*secret.get)().has_plain_key()) continue;
    keys::Wipe(*(spec->*secret.change)()->mutable_plain_key());
    (spec->*secret.change)()->clear_plain_key();
  }
}

void WipePlainKey(v1::DiscoverSubsystemsRequest* request) {
  for (v1::Secret* const secret : SecretsOf(request)) {
    if (secret == nullptr || !secret->has_plain_key()) continue;
    keys::Wipe(*secret->mutable_plain_key());
    secret->clear_plain_key();
  }
}

// ---- Neither

v1::DiskSpec WithoutKey(v1::DiskSpec spec) {
  WipePlainKey(&spec);
  if (spec.has_encryption()) spec.mutable_encryption()->clear_wrapped_key();
  return spec;
}

v1::ClusterSpec WithoutKey(v1::ClusterSpec spec) {
  WipePlainKey(&spec);
  spec.clear_key();
  return spec;
}

v1::SubsystemSpec WithoutKey(v1::SubsystemSpec spec) {
  WipePlainKey(&spec);
  for (const SubsystemSecret& secret : kSecrets) (spec.*secret.clear)();
  return spec;
}

}  // namespace cleat::control
