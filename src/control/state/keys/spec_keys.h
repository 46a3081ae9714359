// SPDX-License-Identifier: Apache-2.0
// Keys in the specs of disks and clusters: taken out of a request, wrapped, compared, wrapped anew when the key-encryption key changes. They
// are kept, and sent to engines, only wrapped; a plain one lives for the length of a call, in keys::Secret. Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "keys/keyring.h"

namespace cleat::control {

class SpecKeys {
 public:
  // `keyring` outlives it; null: cleatd has no key-encryption key, and takes no keys.
  explicit SpecKeys(keys::Keyring* keyring) : keyring_(keyring) {}

  // Takes the key out of what was asked for; nothing when there is none.
  Result<std::optional<keys::Secret>> ExtractKey(const std::string& id, v1::DiskSpec* asked) const;
  Result<std::optional<keys::Secret>> ExtractKey(const std::string& id, v1::ClusterSpec* asked) const;
  // Puts it there, wrapped; the spec is complete. Checks it.
  Status SetWrappedKey(const std::string& id, const std::optional<keys::Secret>& key,
                       v1::DiskSpec* spec) const;
  Status SetWrappedKey(const std::string& id, const keys::Secret& key, v1::ClusterSpec* spec) const;

  // kAlreadyExists when the disk has another one.
  Status CompareKey(const DiskRow& row, const std::optional<keys::Secret>& key) const;
  // Whether the row's key is that one; true when there is none to compare.
  Result<bool> HasKey(const ClusterRow& row, const std::optional<keys::Secret>& key) const;

  // Wraps the row's key under the current key-encryption key. False when that was so already, when there is no key, and when it can't be
  // unwrapped, which is counted in `failed`. There is a keyring.
  bool Rewrap(DiskRow& row, size_t& failed) const;
  bool Rewrap(ClusterRow& row) const;

  const keys::Keyring* keyring() const { return keyring_; }

 private:
  keys::Keyring* const keyring_;
};

}  // namespace cleat::control
