// SPDX-License-Identifier: Apache-2.0
#include "control/validate/spec_secrets.h"

#include <fmt/format.h>

#include <utility>

#include "keys/secret.h"
#include "nvme/auth/chap_secret.h"
#include "nvme/tls/psk.h"

namespace cleat::control {
namespace {

template <typename Message>
void AddWrappedKeys(const Message& message, std::vector<const v1::WrappedKey*>& keys) {
  for (const SecretField<Message>& secret : kSecretsOf<Message>) {
    if ((message.*secret.get)().has_wrapped_key()) keys.push_back(&(message.*secret.get)().wrapped_key());
  }
}

template <typename Message>
void AddWrappedKeys(Message* message, std::vector<v1::WrappedKey*>& keys) {
  for (const SecretField<Message>& secret : kSecretsOf<Message>) {
    if ((message->*secret.get)().has_wrapped_key())
      keys.push_back((message->*secret.change)()->mutable_wrapped_key());
  }
}

// Its field; empty: there is none.
template <typename Message>
std::string FieldOfPlainKey(const Message& message) {
  for (const SecretField<Message>& secret : kSecretsOf<Message>) {
    if ((message.*secret.get)().has_plain_key()) return fmt::format("{}.plain_key", secret.field);
  }
  return "";
}

template <typename Message>
void WipePlainKeysOf(Message* message) {
  for (const SecretField<Message>& secret : kSecretsOf<Message>) {
    if (!(message->*secret.get)().has_plain_key()) continue;
    keys::Wipe(*(message->*secret.change)()->mutable_plain_key());
    (message->*secret.change)()->clear_plain_key();
  }
}

template <typename Message>
void ClearSecretsOf(Message* message) {
  for (const SecretField<Message>& secret : kSecretsOf<Message>) (message->*secret.clear)();
}

}  // namespace

Status CheckChapSecret(std::string_view text, std::string_view what) {
  CLEAT_TRY(nvme::auth::ChapSecret::Parse(text, what));
  return Ok{};
}

Status CheckTlsPsk(std::string_view text, std::string_view what) {
  CLEAT_TRY(nvme::tls::Psk::Parse(text, what));
  return Ok{};
}

bool HasSecrets(const v1::ExportHost& host) {
  return host.has_dhchap_secret() || host.has_dhchap_ctrl_secret() || host.has_tls_psk();
}

std::array<v1::Secret*, kNvmfSecrets> SecretsOf(v1::DiscoverSubsystemsRequest* request) {
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
  AddWrappedKeys(spec, keys);
  return keys;
}

std::vector<const v1::WrappedKey*> WrappedKeysIn(const v1::ControllerSpec& spec) {
  std::vector<const v1::WrappedKey*> keys;
  for (const v1::ExportHost& host : spec.exported().hosts()) AddWrappedKeys(host, keys);
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
  AddWrappedKeys(spec, keys);
  return keys;
}

std::vector<v1::WrappedKey*> WrappedKeysOf(v1::ControllerSpec* spec) {
  std::vector<v1::WrappedKey*> keys;
  if (!spec->has_exported()) return keys;
  for (v1::ExportHost& host : *spec->mutable_exported()->mutable_hosts()) AddWrappedKeys(&host, keys);
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
  const std::string field = FieldOfPlainKey(spec);
  return field.empty() ? field : "spec." + field;
}

std::string PlainKeyIn(const v1::ControllerSpec& spec) {
  const auto& hosts = spec.exported().hosts();
  for (int i = 0; i < hosts.size(); ++i) {
    if (const std::string field = FieldOfPlainKey(hosts[i]); !field.empty())
      return fmt::format("spec.exported.hosts[{}].{}", i, field);
  }
  return "";
}

std::string PlainKeyIn(const v1::DiscoverSubsystemsRequest& request) {
  return FieldOfPlainKey(request);
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
  WipePlainKeysOf(spec);
}

void WipePlainKey(v1::ControllerSpec* spec) {
  if (!spec->has_exported()) return;
  for (v1::ExportHost& host : *spec->mutable_exported()->mutable_hosts()) WipePlainKeysOf(&host);
}

void WipePlainKey(v1::DiscoverSubsystemsRequest* request) {
  WipePlainKeysOf(request);
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
  ClearSecretsOf(&spec);
  return spec;
}

v1::ControllerSpec WithoutKey(v1::ControllerSpec spec) {
  WipePlainKey(&spec);
  if (!spec.has_exported()) return spec;
  for (v1::ExportHost& host : *spec.mutable_exported()->mutable_hosts()) ClearSecretsOf(&host);
  return spec;
}

}  // namespace cleat::control
