// SPDX-License-Identifier: Apache-2.0
// Where specs have keys and other secrets: said here once, for whoever wraps, shows, counts or wipes them. Pure functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"

namespace cleat::control {

// Whether the text is such a secret. Errors begin with `what`, and say nothing of the text.
Status CheckChapSecret(std::string_view text, std::string_view what);
Status CheckTlsPsk(std::string_view text, std::string_view what);

// One of the secrets that a subsystem, or a host of an export, may have: its field in SubsystemSpec or ExportHost.
template <typename Message>
struct SecretField {
  const char* field;
  bool (Message::*has)() const;
  const v1::Secret& (Message::*get)() const;
  v1::Secret* (Message::*change)();
  void (Message::*clear)();
  Status (*check)(std::string_view text, std::string_view what);
};
inline constexpr size_t kNvmfSecrets = 3;
template <typename Message>
inline constexpr std::array<SecretField<Message>, kNvmfSecrets> kSecretsOf = {{
    {"dhchap_secret", &Message::has_dhchap_secret, &Message::dhchap_secret, &Message::mutable_dhchap_secret,
     &Message::clear_dhchap_secret, &CheckChapSecret},
    {"dhchap_ctrl_secret", &Message::has_dhchap_ctrl_secret, &Message::dhchap_ctrl_secret,
     &Message::mutable_dhchap_ctrl_secret, &Message::clear_dhchap_ctrl_secret, &CheckChapSecret},
    {"tls_psk", &Message::has_tls_psk, &Message::tls_psk, &Message::mutable_tls_psk, &Message::clear_tls_psk,
     &CheckTlsPsk},
}};
// Whether a host that is let in has something to prove.
bool HasSecrets(const v1::ExportHost& host);

// The secrets of a request to discover, in the same order, to be changed; nullptr: it has no such one.
std::array<v1::Secret*, kNvmfSecrets> SecretsOf(v1::DiscoverSubsystemsRequest* request);
bool HasSecrets(const v1::DiscoverSubsystemsRequest& request);

// Of specs as they are kept: each wrapped key that is there.
std::vector<const v1::WrappedKey*> WrappedKeysIn(const v1::DiskSpec& spec);
std::vector<const v1::WrappedKey*> WrappedKeysIn(const v1::ClusterSpec& spec);
std::vector<const v1::WrappedKey*> WrappedKeysIn(const v1::SubsystemSpec& spec);
std::vector<const v1::WrappedKey*> WrappedKeysIn(const v1::ControllerSpec& spec);
// The same, to be changed.
std::vector<v1::WrappedKey*> WrappedKeysOf(v1::DiskSpec* spec);
std::vector<v1::WrappedKey*> WrappedKeysOf(v1::ClusterSpec* spec);
std::vector<v1::WrappedKey*> WrappedKeysOf(v1::SubsystemSpec* spec);
std::vector<v1::WrappedKey*> WrappedKeysOf(v1::ControllerSpec* spec);

// Leaves of a spec that is kept what may be shown: that there are keys, and what they are wrapped under.
template <typename Spec>
void HideKeys(Spec* spec) {
  for (v1::WrappedKey* const key : WrappedKeysOf(spec)) key->clear_data();
}

// All of its wrapped keys, one after the other: different whenever one of them is. To be compared, and shown to nobody.
template <typename Spec>
std::string WrappedKeyBytes(const Spec& spec) {
  std::string bytes;
  for (const v1::WrappedKey* const key : WrappedKeysIn(spec)) bytes += key->data();
  return bytes;
}

// The first plain key that it has: its path, as "spec.encryption.plain_key". Empty: it has none.
std::string PlainKeyIn(const v1::DiskSpec& spec);
std::string PlainKeyIn(const v1::ClusterSpec& spec);
std::string PlainKeyIn(const v1::SubsystemSpec& spec);
std::string PlainKeyIn(const v1::ControllerSpec& spec);
std::string PlainKeyIn(const v1::DiscoverSubsystemsRequest& request);

// Overwrites the plain keys in it, if there are any, and takes them out.
void WipePlainKey(v1::DiskSpec* spec);
void WipePlainKey(v1::ClusterSpec* spec);
void WipePlainKey(v1::SubsystemSpec* spec);
void WipePlainKey(v1::ControllerSpec* spec);
void WipePlainKey(v1::DiscoverSubsystemsRequest* request);

// Without anything of its keys: to be shown, and compared.
v1::DiskSpec WithoutKey(v1::DiskSpec spec);
v1::ClusterSpec WithoutKey(v1::ClusterSpec spec);
v1::SubsystemSpec WithoutKey(v1::SubsystemSpec spec);
v1::ControllerSpec WithoutKey(v1::ControllerSpec spec);

}  // namespace cleat::control
