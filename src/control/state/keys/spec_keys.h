// SPDX-License-Identifier: Apache-2.0
// Keys and secrets in the specs of disks, clusters, subsystems and exports: taken out of a request, wrapped, compared, wrapped anew when the
// key-encryption key changes. They are kept, and sent to engines, only wrapped; a plain one lives for the length of a call, in
// keys::Secret. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/validate/spec_secrets.h"
#include "keys/keyring.h"

namespace cleat::control {

// What a request says of one secret of a subsystem, or of a host of an export.
struct AskedSecret {
  enum class Asks : uint8_t {
    kNothing,
    kPresent,  // that there is one, as answers do: the present one
    kNone,
    kThis,
  };
  Asks asks = Asks::kNothing;
  keys::Secret text;  // of kThis
};
// In the order of kSecretsOf.
using AskedSecrets = std::array<AskedSecret, kNvmfSecrets>;
// Of an export's hosts, by their NQN. `path`: where the host was in the request, for errors: "exported.hosts[0]."
struct AskedHost {
  std::string path;
  AskedSecrets secrets;
};
using AskedHosts = std::map<std::string, AskedHost>;

class SpecKeys {
 public:
  // `keyring` outlives it; null: cleatd has no key-encryption key, and takes no keys.
  explicit SpecKeys(keys::Keyring* keyring) : keyring_(keyring) {}

  // Takes the key out of what was asked for; nothing when there is none.
  Result<std::optional<keys::Secret>> ExtractKey(const std::string& id, v1::DiskSpec* asked) const;
  Result<std::optional<keys::Secret>> ExtractKey(const std::string& id, v1::ClusterSpec* asked) const;
  // Takes all secrets out. Checks each.
  Result<AskedSecrets> ExtractSecrets(const std::string& id, v1::SubsystemSpec* asked) const;
  Result<AskedHosts> ExtractSecrets(const std::string& id, v1::ControllerSpec* asked) const;
  // Puts it there, wrapped; the spec is complete. Checks it.
  Status SetWrappedKey(const std::string& id, const std::optional<keys::Secret>& key,
                       v1::DiskSpec* spec) const;
  Status SetWrappedKey(const std::string& id, const keys::Secret& key, v1::ClusterSpec* spec) const;
  // Puts them there, wrapped: those of `present` as they are unless others are asked for. Checks that they go together.
  Status SetSecrets(const std::string& id, const AskedSecrets& asked, const v1::SubsystemSpec& present,
                    v1::SubsystemSpec* spec) const;
  // The same of each host: those of the host of that NQN in `present` unless others are asked for. `spec` is complete.
  Status SetSecrets(const std::string& id, const AskedHosts& asked, const v1::ControllerSpec& present,
                    v1::ControllerSpec* spec) const;

  // Leaves the request's secrets wrapped, and without those that it does not name. Checks each, and that they go together. `service` begins errors.
  Status WrapSecrets(const std::string& service, v1::DiscoverSubsystemsRequest* request) const;

  // kAlreadyExists when the disk has another one.
  Status CompareKey(const DiskRow& row, const std::optional<keys::Secret>& key) const;
  // Whether the row's key is that one; true when there is none to compare.
  Result<bool> HasKey(const ClusterRow& row, const std::optional<keys::Secret>& key) const;
  // Whether the row has what is asked for.
  Result<bool> HasSecrets(const SubsystemRow& row, const AskedSecrets& asked) const;
  // ... of the hosts that both have.
  Result<bool> HasSecrets(const ControllerRow& row, const AskedHosts& asked) const;

  // Wraps the row's keys under the current key-encryption key. False when that was so already, when there is no key, and when none can be
  // unwrapped, which is logged; disks' are counted in `failed`, and only the first is logged. There is a keyring.
  bool Rewrap(DiskRow& row, size_t& failed) const;
  bool Rewrap(ClusterRow& row) const;
  bool Rewrap(SubsystemRow& row) const;
  bool Rewrap(ControllerRow& row) const;

  const keys::Keyring* keyring() const { return keyring_; }

 private:
  // Of a key that came wrapped, at `path` in the spec.
  Result<keys::Secret> UnwrapAsked(const std::string& name, const std::string& path,
                                   const v1::WrappedKey& wrapped, keys::Wrapping wrapping) const;
  // For `path` in the spec.
  Status Wrap(const std::string& name, const std::string& path, const keys::Secret& key,
              keys::Wrapping wrapping, v1::WrappedKey& kept) const;
  // False: it is another one, or can't be unwrapped any more, and is then mended by the one that is asked for.
  Result<bool> Is(const std::string& name, const v1::WrappedKey& kept, const keys::Secret& key) const;
  enum class Rewrapped : uint8_t { kDone, kWasSo, kFailed };
  Rewrapped Rewrap(const std::string& name, keys::Wrapping wrapping, v1::WrappedKey& kept, bool log) const;

  // Of a spec, or of a host; `path` as in AskedHost, "" for a spec itself.
  template <typename Message>
  Result<AskedSecrets> ExtractAll(const std::string& name, const std::string& path, Message& asked) const;
  template <typename Message>
  Result<AskedSecret> ExtractSecret(const std::string& name, const std::string& path,
                                    const SecretField<Message>& secret, Message& asked) const;
  template <typename Message>
  Result<bool> HasAll(const std::string& name, const Message& kept, const AskedSecrets& asked) const;
  Result<bool> HasSecret(const std::string& name, const v1::Secret& kept, const AskedSecret& asked) const;
  Status WrapSecretsOf(const std::string& name, v1::SubsystemSpec& spec) const;
  template <typename Message>
  Status SetAll(const std::string& name, const std::string& path, const AskedSecrets& asked,
                const Message& present, Message& spec) const;
  template <typename Message>
  Status SetSecret(const std::string& name, const std::string& path, const SecretField<Message>& secret,
                   const AskedSecret& asked, const Message& present, Message& spec) const;
  template <typename Row>
  bool RewrapAll(const std::string& name, Row& row) const;

  keys::Keyring* const keyring_;
};

}  // namespace cleat::control
