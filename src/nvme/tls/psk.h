// SPDX-License-Identifier: Apache-2.0
// The pre-shared key of TLS for NVMe/TCP as people hand it on, "NVMeTLSkey-1:HH:BASE64:", where HH says by which hash the key becomes the
// one that is retained for a host (00: it is retained as it is) and BASE64 stands for the key and its CRC-32; and what a connection is made
// with: a key that is derived of the retained one, and the name (identity) by which a target finds it.
//
// Two forms of the identity are in use: version 0 of the TCP transport specification 1.0, and version 1 (TP 8018), which has a digest of
// the key. OpenSSL offers one key per handshake, so that which of the two a target knows is found out by trying (Psk::choice). Names that
// are too long for version 0 have version 1 alone.
//
// Source: NVM Express TCP Transport Specification 1.0, 3.6.1.3 and 3.6.1.5; TP 8018 for version 1. Move-only value; any thread, but no I/O:
// OpenSSL allocates, for some microseconds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"
#include "keys/secret.h"
#include "nvme/auth/algorithms.h"

namespace cleat::nvme::tls {

using auth::Hash;

// The longest form: of a key of 48 bytes.
inline constexpr size_t kPskTextBytesMax = 16 + 72 + 1;

enum class IdentityVersion : uint8_t { kV0 = 0, kV1 = 1 };

// What the end of a handshake says of the identity that was offered.
enum class IdentityRefusal : uint8_t {
  kSilent,   // nothing: the connection has ended, or something else is wrong
  kPerhaps,  // an alert that some targets send for it, and for troubles of their own as well
  kUnknown,  // that the target knows no such identity
};

// Which identity the target at one address knows, as far as admin queues have found out; I/O queues use it, and say nothing of it. Any
// thread.
//
// Until one was taken, every refusal counts against the one that was offered. From then on a target in trouble does not change what it
// knows: only kUnknown counts, or kPerhaps time after time, as a target that was exchanged for another one may say no more.
class IdentityChoice {
 public:
  // Refusals in a row by kPerhaps of what was taken, until the other one is tried.
  static constexpr uint32_t kRefusalsOfTakenMax = 3;
  // And by kSilent, since the last time that it was taken: a target that is stopped looks like one that says nothing of a key.
  static constexpr uint32_t kSilencesOfTakenMax = 16;

  IdentityVersion next() const;
  void Accepted(IdentityVersion version);
  // Whether there may be a connection by the next try: the one that was taken stays, or the other one has not been refused yet.
  bool Refused(IdentityVersion version, IdentityRefusal refusal);

  // Beside the identity: this target's records can't be made by the kernel, so that connections from now on make them themselves.
  void KeepFromKernel() { kept_from_kernel_.store(true, std::memory_order_relaxed); }
  bool is_kept_from_kernel() const { return kept_from_kernel_.load(std::memory_order_relaxed); }

 private:
  mutable Mutex mutex_;
  std::optional<IdentityVersion> taken_ CLEAT_GUARDED_BY(mutex_);
  std::optional<IdentityVersion> refused_ CLEAT_GUARDED_BY(mutex_);  // the last one, since none is taken
  uint32_t refusals_of_taken_ CLEAT_GUARDED_BY(mutex_) = 0;
  uint32_t silences_of_taken_ CLEAT_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> kept_from_kernel_{false};
};

// What a TLS connection between one host and one subsystem is made with.
struct ConnectionKey {
  Hash hash = Hash::kSha256;  // that of the cipher suite
  std::string identity;
  keys::Secret key;
};

// An identity in its parts, which lie in it. The names are an NQN each, and the hash is what the digits say.
struct PskIdentity {
  IdentityVersion version = IdentityVersion::kV0;
  Hash hash = Hash::kSha256;
  std::string_view host_nqn;
  std::string_view subsystem_nqn;
};
// What a host has sent, and may be anything. nullopt: it is no identity; so is one whose names have a space. A digest is not looked at: whoever
// has the key compares the identity that Psk::KeyFor makes.
std::optional<PskIdentity> ParseIdentity(std::string_view identity);

class Psk {
 public:
  // kInvalidArgument; the error begins with `what` ("the pre-shared key") and says nothing of what was given.
  static Result<Psk> Parse(std::string_view text, std::string_view what);

  Psk(Psk&& other) noexcept
      : configured_(std::move(other.configured_)), hash_(other.hash_), transformed_(other.transformed_) {}
  Psk& operator=(Psk&&) = delete;

  Hash hash() const { return hash_; }
  // Whether it is the same one as it was handed on. In a time that says nothing of the keys but their sizes.
  bool operator==(const Psk& other) const;
  // kInvalidArgument: the two names are too long for an identity of version 0; kResourceExhausted: no memory for keys.
  Result<ConnectionKey> KeyFor(std::string_view host_nqn, std::string_view subsystem_nqn,
                               IdentityVersion version) const;

  // Whether the two names are short enough for an identity of version 0.
  static bool HasVersion0For(std::string_view host_nqn, std::string_view subsystem_nqn);

  // Shared by all connections with this key to one address, each of which may lead to another controller. As many as the subsystem has
  // addresses; lives as long as the key.
  IdentityChoice& choice(std::string_view address) const;

 private:
  Psk(keys::Secret configured, Hash hash, bool transformed)
      : configured_(std::move(configured)), hash_(hash), transformed_(transformed) {}
  Result<keys::Secret> Retained(std::string_view host_nqn) const;

  keys::Secret configured_;
  Hash hash_;
  bool transformed_;  // into the retained key
  mutable Mutex mutex_;
  mutable std::map<std::string, IdentityChoice, std::less<>> choices_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat::nvme::tls
