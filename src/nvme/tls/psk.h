// SPDX-License-Identifier: Apache-2.0
// The pre-shared key of TLS for NVMe/TCP as people hand it on, "NVMeTLSkey-1:HH:BASE64:", where HH says by which hash the key becomes the
// one that is retained for a host (00: it is retained as it is) and BASE64 stands for the key and its CRC-32; and what a connection is made
// with: a key that is derived of the retained one, and the name (identity) by which a target finds it.
//
// Two forms of the identity are in use: version 0 of the TCP transport specification 1.0, and version 1 (TP 8018), which has a digest of
// the key. OpenSSL offers one key per handshake, so that which of the two a target knows is found out by trying (Psk::choice).
//
// Source: NVM Express TCP Transport Specification 1.0, 3.6.1.3 and 3.6.1.5; TP 8018 for version 1. Move-only value; any thread, but no I/O:
// OpenSSL allocates, for some microseconds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/auth/algorithms.h"

namespace cleat::nvme::tls {

using auth::Hash;

// The longest form: of a key of 48 bytes.
inline constexpr size_t kPskTextBytesMax = 16 + 72 + 1;

enum class IdentityVersion : uint8_t { kV0 = 0, kV1 = 1 };

// Which identity a target knows, as far as connections have found out. Any thread.
class IdentityChoice {
 public:
  IdentityVersion next() const;
  void Accepted(IdentityVersion version);
  // Whether the other one has not been refused yet: with it there may be a connection. A target that does not say so, and has ended the
  // connection for some reason, counts only until one of the two was taken.
  bool Refused(IdentityVersion version, bool says_so);

 private:
  std::atomic<uint8_t> state_{0};  // a bit for each version that was refused, and one for that any was taken
};

// What a TLS connection between one host and one subsystem is made with.
struct ConnectionKey {
  Hash hash = Hash::kSha256;  // that of the cipher suite
  std::string identity;
  keys::Secret key;
};

class Psk {
 public:
  // kInvalidArgument; the error begins with `what` ("the pre-shared key") and says nothing of what was given.
  static Result<Psk> Parse(std::string_view text, std::string_view what);

  Psk(Psk&& other) noexcept
      : configured_(std::move(other.configured_)), hash_(other.hash_), transformed_(other.transformed_) {}
  Psk& operator=(Psk&&) = delete;

  Hash hash() const { return hash_; }
  // kInvalidArgument: the two names are too long for an identity of version 0.
  Result<ConnectionKey> KeyFor(std::string_view host_nqn, std::string_view subsystem_nqn,
                               IdentityVersion version) const;

  // Shared by all connections with this key.
  IdentityChoice& choice() const { return choice_; }

 private:
  Psk(keys::Secret configured, Hash hash, bool transformed)
      : configured_(std::move(configured)), hash_(hash), transformed_(transformed) {}
  keys::Secret Retained(std::string_view host_nqn) const;

  keys::Secret configured_;
  Hash hash_;
  bool transformed_;  // into the retained key
  mutable IdentityChoice choice_;
};

}  // namespace cleat::nvme::tls
