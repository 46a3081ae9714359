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

keys::Cipher CipherOf(const v1::DiskSpec& spec) {
  return spec.encryption().cipher() == v1::CIPHER_AES_128_XTS ? keys::Cipher::kAes128Xts
                                                              : keys::Cipher::kAes256Xts;
}

std::span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The errors of src/keys name the disk and what to do, and nothing of a key.
Error RefuseKey(const std::string& name, const Error& error) {
  const bool unknown = error.code == ErrorCode::kFailedPrecondition;
  return RefuseFor(name, unknown ? v1::REASON_KEY_UNKNOWN : v1::REASON_KEY_INVALID, error.message,
                   {{"field", "spec.encryption"}});
}

void SetWrapped(const keys::WrappedKey& wrapped, v1::WrappedKey& kept) {
  kept.set_key_encryption_key(wrapped.kek_id);
  kept.set_data(wrapped.bytes.data(), wrapped.bytes.size());
}

}  // namespace

// ---- Disks

Result<std::optional<keys::Secret>> SpecKeys::ExtractKey(const std::string& id, v1::DiskSpec* asked) const {
  const std::string name = DiskName(id);
  std::optional<keys::Secret> key;
  if (!asked->has_encryption()) return key;
  v1::Encryption& encryption = *asked->mutable_encryption();
  if (encryption.has_plain_key()) {
    if (encryption.plain_key().size() > keys::kSecretBytesMax) {
      WipePlainKey(asked);
      return RefuseFor(name, v1::REASON_KEY_INVALID, fmt::format("{}: its key is far too long", name),
                       {{"field", "spec.encryption.plain_key"}});
    }
    key = keys::Secret::TakeFrom(*encryption.mutable_plain_key());
    encryption.clear_plain_key();
    return key;
  }
  const v1::WrappedKey wrapped = encryption.wrapped_key();
  encryption.clear_wrapped_key();
  if (wrapped.data().empty()) return key;
  if (!keys::IsKekId(wrapped.key_encryption_key())) {
    return RefuseFor(
        name, v1::REASON_KEY_INVALID,
        fmt::format("{}: encryption.wrapped_key.key_encryption_key must be the id of a key-encryption key: "
                    "{} hexadecimal digits",
                    name, keys::kKekIdDigits),
        {{"field", "spec.encryption.wrapped_key.key_encryption_key"}});
  }
  if (keyring_ == nullptr) {
    return RefuseFor(name, v1::REASON_KEY_UNKNOWN, name + ": this cleatd has no key-encryption key");
  }
  auto unwrapped = keyring_->Unwrap(wrapped.key_encryption_key(), BytesOf(wrapped.data()), name);
  if (!unwrapped.ok()) return RefuseKey(name, unwrapped.error());
  key = std::move(*unwrapped);
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
    return RefuseKey(name, status.error());
  }
  if (keyring_ == nullptr) {
    return RefuseFor(name, v1::REASON_KEY_UNKNOWN, name + ": this cleatd has no key-encryption key");
  }
  const auto wrapped = keyring_->Wrap(*key);
  if (!wrapped.ok()) return RefuseKey(name, wrapped.error());
  v1::WrappedKey& kept = *spec->mutable_encryption()->mutable_wrapped_key();
  kept.set_key_encryption_key(wrapped->kek_id);
  kept.set_data(wrapped->bytes.data(), wrapped->bytes.size());
  return Ok{};
}

Status SpecKeys::CompareKey(const DiskRow& row, const std::optional<keys::Secret>& key) const {
  if (!row.spec.has_encryption() || !key) return Ok{};
  const std::string name = DiskName(row.id);
  const v1::WrappedKey& kept = row.spec.encryption().wrapped_key();
  if (keyring_ == nullptr) {
    return RefuseFor(name, v1::REASON_KEY_UNKNOWN, name + ": this cleatd has no key-encryption key");
  }
  const auto present = keyring_->Unwrap(kept.key_encryption_key(), BytesOf(kept.data()), name);
  if (!present.ok()) return RefuseKey(name, present.error());
  if (*present == *key) return Ok{};
  return RefuseFor(name, v1::REASON_CONTENT_DIFFERS,
                   fmt::format("{} exists with another key: choose another id, or delete it first", name),
                   {{"difference", "encryption.key"}});
}

bool SpecKeys::Rewrap(DiskRow& row, size_t& failed) const {
  if (!row.spec.has_encryption()) return false;
  v1::WrappedKey& kept = *row.spec.mutable_encryption()->mutable_wrapped_key();
  if (kept.key_encryption_key() == keyring_->current_id()) return false;
  const auto wrapped = keyring_->Rewrap(kept.key_encryption_key(), BytesOf(kept.data()), DiskName(row.id));
  if (!wrapped.ok()) {
    if (failed++ == 0) spdlog::error("{}; the key stays wrapped as it is", wrapped.error().message);
    return false;
  }
  SetWrapped(*wrapped, kept);
  return true;
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
  if (!keys::IsKekId(wrapped.key_encryption_key())) {
    return RefuseFor(name, v1::REASON_KEY_INVALID,
                     fmt::format("{}: wrapped_key.key_encryption_key must be the id of a key-encryption key: "
                                 "{} hexadecimal digits",
                                 name, keys::kKekIdDigits),
                     {{"field", "spec.wrapped_key.key_encryption_key"}});
  }
  if (keyring_ == nullptr) {
    return RefuseFor(name, v1::REASON_KEY_UNKNOWN, name + ": this cleatd has no key-encryption key");
  }
  auto unwrapped =
      keyring_->Unwrap(wrapped.key_encryption_key(), BytesOf(wrapped.data()), name, keys::Wrapping::kPadded);
  if (!unwrapped.ok()) return RefuseKey(name, unwrapped.error());
  key = std::move(*unwrapped);
  return key;
}

Status SpecKeys::SetWrappedKey(const std::string& id, const keys::Secret& key, v1::ClusterSpec* spec) const {
  const std::string name = ClusterName(id);
  if (keyring_ == nullptr) {
    return RefuseFor(name, v1::REASON_KEY_UNKNOWN, name + ": this cleatd has no key-encryption key");
  }
  const auto wrapped = keyring_->Wrap(key, keys::Wrapping::kPadded);
  if (!wrapped.ok()) return RefuseKey(name, wrapped.error());
  v1::WrappedKey& kept = *spec->mutable_wrapped_key();
  kept.set_key_encryption_key(wrapped->kek_id);
  kept.set_data(wrapped->bytes.data(), wrapped->bytes.size());
  return Ok{};
}

Result<bool> SpecKeys::HasKey(const ClusterRow& row, const std::optional<keys::Secret>& key) const {
  if (!key) return true;
  if (!row.spec.has_wrapped_key()) return false;
  const std::string name = ClusterName(row.id);
  if (keyring_ == nullptr) {
    return RefuseFor(name, v1::REASON_KEY_UNKNOWN, name + ": this cleatd has no key-encryption key");
  }
  const v1::WrappedKey& kept = row.spec.wrapped_key();
  const auto present =
      keyring_->Unwrap(kept.key_encryption_key(), BytesOf(kept.data()), name, keys::Wrapping::kPadded);
  // A key that can't be unwrapped any more is mended by another one.
  return present.ok() && *present == *key;
}

bool SpecKeys::Rewrap(ClusterRow& row) const {
  if (!row.spec.has_wrapped_key()) return false;
  v1::WrappedKey& kept = *row.spec.mutable_wrapped_key();
  if (kept.key_encryption_key() == keyring_->current_id()) return false;
  const auto wrapped = keyring_->Rewrap(kept.key_encryption_key(), BytesOf(kept.data()), ClusterName(row.id),
                                        keys::Wrapping::kPadded);
  if (!wrapped.ok()) {
    spdlog::error("{}; the key stays wrapped as it is", wrapped.error().message);
    return false;
  }
  SetWrapped(*wrapped, kept);
  return true;
}

}  // namespace cleat::control
