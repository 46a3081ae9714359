// SPDX-License-Identifier: Apache-2.0
#include "control/state/keys/spec_keys.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "base/log.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/validate/spec_rules.h"
#include "keys/ceph_key.h"
#include "keys/data_key.h"

namespace cleat::control {
namespace {

using Asks = AskedSecret::Asks;

keys::Cipher CipherOf(const v1::DiskSpec& spec) {
  return spec.encryption().cipher() == v1::CIPHER_AES_128_XTS ? keys::Cipher::kAes128Xts
                                                              : keys::Cipher::kAes256Xts;
}

std::span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string_view TextOf(const keys::Secret& secret) {
  return {reinterpret_cast<const char*>(secret.bytes().data()), secret.size()};
}

// The errors of src/keys name the object and what to do, and nothing of a key.
Error RefuseKey(const std::string& name, const std::string& path, const Error& error) {
  const bool unknown = error.code == ErrorCode::kFailedPrecondition;
  return RefuseFor(name, unknown ? v1::REASON_KEY_UNKNOWN : v1::REASON_KEY_INVALID, error.message,
                   {{"field", "spec." + path}});
}

Error RefuseWithoutKeyring(const std::string& name) {
  return RefuseFor(name, v1::REASON_KEY_UNKNOWN, name + ": this cleatd has no key-encryption key");
}

Error RefuseTooLong(const std::string& name, const std::string& what, const std::string& path) {
  return RefuseFor(name, v1::REASON_KEY_INVALID, fmt::format("{}: its {} is far too long", name, what),
                   {{"field", "spec." + path}});
}

void SetWrapped(const keys::WrappedKey& wrapped, v1::WrappedKey& kept) {
  kept.set_key_encryption_key(wrapped.kek_id);
  kept.set_data(wrapped.bytes.data(), wrapped.bytes.size());
}

}  // namespace

// ---- Any key

Result<keys::Secret> SpecKeys::UnwrapAsked(const std::string& name, const std::string& path,
                                           const v1::WrappedKey& wrapped, keys::Wrapping wrapping) const {
  if (!keys::IsKekId(wrapped.key_encryption_key())) {
    return RefuseFor(name, v1::REASON_KEY_INVALID,
                     fmt::format("{}: {}.key_encryption_key must be the id of a key-encryption key: {} "
                                 "hexadecimal digits",
                                 name, path, keys::kKekIdDigits),
                     {{"field", fmt::format("spec.{}.key_encryption_key", path)}});
  }
  if (keyring_ == nullptr) return RefuseWithoutKeyring(name);
  auto unwrapped = keyring_->Unwrap(wrapped.key_encryption_key(), BytesOf(wrapped.data()), name, wrapping);
  if (!unwrapped.ok()) return RefuseKey(name, path, unwrapped.error());
  return unwrapped;
}

Status SpecKeys::Wrap(const std::string& name, const std::string& path, const keys::Secret& key,
                      keys::Wrapping wrapping, v1::WrappedKey& kept) const {
  if (keyring_ == nullptr) return RefuseWithoutKeyring(name);
  const auto wrapped = keyring_->Wrap(key, wrapping);
  if (!wrapped.ok()) return RefuseKey(name, path, wrapped.error());
  SetWrapped(*wrapped, kept);
  return Ok{};
}

Result<bool> SpecKeys::Is(const std::string& name, const v1::WrappedKey& kept,
                          const keys::Secret& key) const {
  if (keyring_ == nullptr) return RefuseWithoutKeyring(name);
  const auto present =
      keyring_->Unwrap(kept.key_encryption_key(), BytesOf(kept.data()), name, keys::Wrapping::kPadded);
  return present.ok() && *present == key;
}

SpecKeys::Rewrapped SpecKeys::Rewrap(const std::string& name, keys::Wrapping wrapping, v1::WrappedKey& kept,
                                     bool log) const {
  if (kept.key_encryption_key() == keyring_->current_id()) return Rewrapped::kWasSo;
  const auto wrapped = keyring_->Rewrap(kept.key_encryption_key(), BytesOf(kept.data()), name, wrapping);
  if (!wrapped.ok()) {
    if (log) spdlog::error("{}; the key stays wrapped as it is", wrapped.error().message);
    return Rewrapped::kFailed;
  }
  SetWrapped(*wrapped, kept);
  return Rewrapped::kDone;
}

// ---- Disks

Result<std::optional<keys::Secret>> SpecKeys::ExtractKey(const std::string& id, v1::DiskSpec* asked) const {
  const std::string name = DiskName(id);
  std::optional<keys::Secret> key;
  if (!asked->has_encryption()) return key;
  v1::Encryption& encryption = *asked->mutable_encryption();
  if (encryption.has_plain_key()) {
    if (encryption.plain_key().size() > keys::kSecretBytesMax) {
      WipePlainKey(asked);
      return RefuseTooLong(name, "key", "encryption.plain_key");
    }
    key = keys::Secret::TakeFrom(*encryption.mutable_plain_key());
    encryption.clear_plain_key();
    return key;
  }
  const v1::WrappedKey wrapped = encryption.wrapped_key();
  encryption.clear_wrapped_key();
  if (wrapped.data().empty()) return key;
  CLEAT_ASSIGN(key, UnwrapAsked(name, "encryption.wrapped_key", wrapped, keys::Wrapping::kPlain));
  return key;
}

Status SpecKeys::SetWrappedKey(const std::string& id, const std::optional<keys::Secret>& key,
                               v1::DiskSpec* spec) const {
  if (!spec->has_encryption()) return Ok{};
  const std::string name = DiskName(id);
  if (!key) {
    return RefuseFor(
        name, v1::REASON_KEY_INVALID,
        fmt::format("{}: encryption takes a key: give plain_key (over the unix socket), or wrapped_key with "
                    "its data",
                    name),
        {{"field", "spec.encryption.key"}});
  }
  if (auto status = keys::CheckDataKey(CipherOf(*spec), key->bytes(), name); !status.ok()) {
    return RefuseKey(name, "encryption", status.error());
  }
  v1::WrappedKey kept;
  CLEAT_TRY(Wrap(name, "encryption", *key, keys::Wrapping::kPlain, kept));
  *spec->mutable_encryption()->mutable_wrapped_key() = std::move(kept);
  return Ok{};
}

Status SpecKeys::CompareKey(const DiskRow& row, const std::optional<keys::Secret>& key) const {
  if (!row.spec.has_encryption() || !key) return Ok{};
  const std::string name = DiskName(row.id);
  const v1::WrappedKey& kept = row.spec.encryption().wrapped_key();
  if (keyring_ == nullptr) return RefuseWithoutKeyring(name);
  const auto present = keyring_->Unwrap(kept.key_encryption_key(), BytesOf(kept.data()), name);
  if (!present.ok()) return RefuseKey(name, "encryption", present.error());
  if (*present == *key) return Ok{};
  return RefuseFor(name, v1::REASON_CONTENT_DIFFERS,
                   fmt::format("{} exists with another key: choose another id, or delete it first", name),
                   {{"difference", "encryption.key"}});
}

bool SpecKeys::Rewrap(DiskRow& row, size_t& failed) const {
  bool done = false;
  for (v1::WrappedKey* const kept : WrappedKeysOf(&row.spec)) {
    const Rewrapped one = Rewrap(DiskName(row.id), keys::Wrapping::kPlain, *kept, /*log=*/failed == 0);
    failed += one == Rewrapped::kFailed ? 1 : 0;
    done |= one == Rewrapped::kDone;
  }
  return done;
}

// ---- Clusters

Result<std::optional<keys::Secret>> SpecKeys::ExtractKey(const std::string& id,
                                                         v1::ClusterSpec* asked) const {
  const std::string name = ClusterName(id);
  std::optional<keys::Secret> key;
  if (asked->has_plain_key()) {
    auto decoded = keys::DecodeCephKey(asked->plain_key());
    WipePlainKey(asked);
    if (!decoded.ok()) {
      return RefuseFor(name, v1::REASON_KEY_INVALID, fmt::format("{}: {}", name, decoded.error().message),
                       {{"field", "spec.plain_key"}});
    }
    key = std::move(*decoded);
    return key;
  }
  const v1::WrappedKey wrapped = asked->wrapped_key();
  asked->clear_key();
  if (wrapped.data().empty()) return key;
  CLEAT_ASSIGN(key, UnwrapAsked(name, "wrapped_key", wrapped, keys::Wrapping::kPadded));
  return key;
}

Status SpecKeys::SetWrappedKey(const std::string& id, const keys::Secret& key, v1::ClusterSpec* spec) const {
  v1::WrappedKey kept;
  CLEAT_TRY(Wrap(ClusterName(id), "key", key, keys::Wrapping::kPadded, kept));
  *spec->mutable_wrapped_key() = std::move(kept);
  return Ok{};
}

Result<bool> SpecKeys::HasKey(const ClusterRow& row, const std::optional<keys::Secret>& key) const {
  if (!key) return true;
  if (!row.spec.has_wrapped_key()) return false;
  return Is(ClusterName(row.id), row.spec.wrapped_key(), *key);
}

bool SpecKeys::Rewrap(ClusterRow& row) const {
  bool done = false;
  for (v1::WrappedKey* const kept : WrappedKeysOf(&row.spec))
    done |= Rewrap(ClusterName(row.id), keys::Wrapping::kPadded, *kept, /*log=*/true) == Rewrapped::kDone;
  return done;
}

// ---- Secrets of a subsystem, or of a host

template <typename Message>
Result<AskedSecrets> SpecKeys::ExtractAll(const std::string& name, const std::string& path,
                                          Message& asked) const {
  AskedSecrets secrets;
  for (size_t i = 0; i < secrets.size(); ++i) {
    CLEAT_ASSIGN(secrets[i], ExtractSecret(name, path, kSecretsOf<Message>[i], asked));
  }
  return secrets;
}

template <typename Message>
Result<AskedSecret> SpecKeys::ExtractSecret(const std::string& name, const std::string& path,
                                            const SecretField<Message>& secret, Message& asked) const {
  AskedSecret said;
  if (!(asked.*secret.has)()) return said;
  v1::Secret& given = *(asked.*secret.change)();
  const std::string field = path + secret.field;
  if (given.has_plain_key()) {
    if (given.plain_key().size() > keys::kPaddedKeyBytesMax)
      return RefuseTooLong(name, field, fmt::format("{}.plain_key", field));
    said = {.asks = Asks::kThis, .text = keys::Secret::TakeFrom(*given.mutable_plain_key())};
  } else if (!given.wrapped_key().data().empty()) {
    CLEAT_ASSIGN(said.text, UnwrapAsked(name, fmt::format("{}.wrapped_key", field), given.wrapped_key(),
                                        keys::Wrapping::kPadded));
    said.asks = Asks::kThis;
  } else {
    said.asks = given.has_wrapped_key() ? Asks::kPresent : Asks::kNone;
  }
  (asked.*secret.clear)();
  if (said.asks != Asks::kThis) return said;
  if (const Status status = secret.check(TextOf(said.text), fmt::format("{}: {}", name, field)); !status.ok())
    return RefuseKey(name, field, status.error());
  return said;
}

template <typename Message>
Result<bool> SpecKeys::HasAll(const std::string& name, const Message& kept, const AskedSecrets& asked) const {
  for (size_t i = 0; i < asked.size(); ++i) {
    CLEAT_ASSIGN(const bool same, HasSecret(name, (kept.*kSecretsOf<Message>[i].get)(), asked[i]));
    if (!same) return false;
  }
  return true;
}

Result<bool> SpecKeys::HasSecret(const std::string& name, const v1::Secret& kept,
                                 const AskedSecret& asked) const {
  switch (asked.asks) {
    case Asks::kNothing:
      return true;
    case Asks::kPresent:
      return kept.has_wrapped_key();
    case Asks::kNone:
      return !kept.has_wrapped_key();
    case Asks::kThis:
      break;
  }
  return kept.has_wrapped_key() ? Is(name, kept.wrapped_key(), asked.text) : Result<bool>(false);
}

template <typename Message>
Status SpecKeys::SetAll(const std::string& name, const std::string& path, const AskedSecrets& asked,
                        const Message& present, Message& spec) const {
  for (size_t i = 0; i < asked.size(); ++i)
    CLEAT_TRY(SetSecret(name, path, kSecretsOf<Message>[i], asked[i], present, spec));
  return CheckSecretsTogether(name, path, spec.has_dhchap_secret(), spec.has_dhchap_ctrl_secret());
}

template <typename Message>
Status SpecKeys::SetSecret(const std::string& name, const std::string& path,
                           const SecretField<Message>& secret, const AskedSecret& asked,
                           const Message& present, Message& spec) const {
  const v1::Secret& kept = (present.*secret.get)();
  const std::string field = path + secret.field;
  CLEAT_ASSIGN(const bool same, HasSecret(name, kept, asked));
  if (same) {
    if (kept.has_wrapped_key()) *(spec.*secret.change)() = kept;
    return Ok{};
  }
  if (asked.asks == Asks::kNone) return Ok{};
  if (asked.asks == Asks::kThis) {
    v1::Secret wrapped;
    CLEAT_TRY(Wrap(name, field, asked.text, keys::Wrapping::kPadded, *wrapped.mutable_wrapped_key()));
    *(spec.*secret.change)() = std::move(wrapped);
    return Ok{};
  }
  // A caller who counts on a secret is not to go on without one.
  return RefuseFor(name, v1::REASON_KEY_INVALID,
                   fmt::format("{}: {} is to stay as it is, and there is none: give plain_key (over the unix "
                               "socket), or wrapped_key with its data",
                               name, field),
                   {{"field", fmt::format("spec.{}", field)}});
}

template <typename Row>
bool SpecKeys::RewrapAll(const std::string& name, Row& row) const {
  bool done = false;
  for (v1::WrappedKey* const kept : WrappedKeysOf(&row.spec))
    done |= Rewrap(name, keys::Wrapping::kPadded, *kept, /*log=*/true) == Rewrapped::kDone;
  return done;
}

// ---- Subsystems

Result<AskedSecrets> SpecKeys::ExtractSecrets(const std::string& id, v1::SubsystemSpec* asked) const {
  auto secrets = ExtractAll(SubsystemName(id), "", *asked);
  if (!secrets.ok()) WipePlainKey(asked);
  return secrets;
}

Result<bool> SpecKeys::HasSecrets(const SubsystemRow& row, const AskedSecrets& asked) const {
  return HasAll(SubsystemName(row.id), row.spec, asked);
}

Status SpecKeys::SetSecrets(const std::string& id, const AskedSecrets& asked,
                            const v1::SubsystemSpec& present, v1::SubsystemSpec* spec) const {
  return SetAll(SubsystemName(id), "", asked, present, *spec);
}

// The secrets are checked and wrapped as a subsystem's: in a spec that has nothing else, and which nobody sees.
Status SpecKeys::WrapSecrets(const std::string& service, v1::DiscoverSubsystemsRequest* request) const {
  v1::SubsystemSpec spec;
  const auto given = SecretsOf(request);
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] != nullptr) (spec.*kSecretsOf<v1::SubsystemSpec>[i].change)()->Swap(given[i]);
  }
  const Status wrapped = WrapSecretsOf(service, spec);
  WipePlainKey(&spec);
  if (!wrapped.ok()) {
    std::string_view field = MetadataOf(wrapped.error(), "field");
    if (field.starts_with("spec.")) field.remove_prefix(5);
    return RefuseFor(service, ReasonOf(wrapped.error()), wrapped.error().message,
                     {{"field", std::string(field)}});
  }
  request->clear_dhchap_secret();
  request->clear_dhchap_ctrl_secret();
  request->clear_tls_psk();
  if (spec.has_dhchap_secret()) request->mutable_dhchap_secret()->Swap(spec.mutable_dhchap_secret());
  if (spec.has_dhchap_ctrl_secret())
    request->mutable_dhchap_ctrl_secret()->Swap(spec.mutable_dhchap_ctrl_secret());
  if (spec.has_tls_psk()) request->mutable_tls_psk()->Swap(spec.mutable_tls_psk());
  return Ok{};
}

Status SpecKeys::WrapSecretsOf(const std::string& name, v1::SubsystemSpec& spec) const {
  CLEAT_ASSIGN(const AskedSecrets asked, ExtractAll(name, "", spec));
  return SetAll(name, "", asked, /*present=*/v1::SubsystemSpec(), spec);
}

bool SpecKeys::Rewrap(SubsystemRow& row) const {
  return RewrapAll(SubsystemName(row.id), row);
}

// ---- Exports

Result<AskedHosts> SpecKeys::ExtractSecrets(const std::string& id, v1::ControllerSpec* asked) const {
  AskedHosts all;
  if (!asked->has_exported()) return all;
  auto& hosts = *asked->mutable_exported()->mutable_hosts();
  // So many are refused as such, and not looked at one by one.
  if (static_cast<size_t>(hosts.size()) > kExportHostsMax) {
    WipePlainKey(asked);
    return all;
  }
  for (int i = 0; i < hosts.size(); ++i) {
    const std::string path = fmt::format("exported.hosts[{}].", i);
    auto secrets = ExtractAll(ControllerName(id), path, hosts[i]);
    if (!secrets.ok()) {
      WipePlainKey(asked);
      return std::move(secrets).error();
    }
    all.try_emplace(hosts[i].nqn(), AskedHost{path, std::move(*secrets)});
  }
  return all;
}

Result<bool> SpecKeys::HasSecrets(const ControllerRow& row, const AskedHosts& asked) const {
  for (const v1::ExportHost& host : row.spec.exported().hosts()) {
    const auto found = asked.find(host.nqn());
    if (found == asked.end()) continue;
    CLEAT_ASSIGN(const bool same, HasAll(ControllerName(row.id), host, found->second.secrets));
    if (!same) return false;
  }
  return true;
}

Status SpecKeys::SetSecrets(const std::string& id, const AskedHosts& asked, const v1::ControllerSpec& present,
                            v1::ControllerSpec* spec) const {
  if (!spec->has_exported()) return Ok{};
  std::map<std::string_view, const v1::ExportHost*> before;
  for (const v1::ExportHost& host : present.exported().hosts()) before.emplace(host.nqn(), &host);
  const v1::ExportHost nobody;
  for (v1::ExportHost& host : *spec->mutable_exported()->mutable_hosts()) {
    const auto found = asked.find(host.nqn());
    if (found == asked.end()) continue;
    const auto known = before.find(host.nqn());
    CLEAT_TRY(SetAll(ControllerName(id), found->second.path, found->second.secrets,
                     known == before.end() ? nobody : *known->second, host));
  }
  return Ok{};
}

bool SpecKeys::Rewrap(ControllerRow& row) const {
  return RewrapAll(ControllerName(row.id), row);
}

}  // namespace cleat::control
