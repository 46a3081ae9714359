// SPDX-License-Identifier: Apache-2.0
// One end's handshake of TLS 1.3 with a pre-shared key, by OpenSSL on plain memory. What it ends with are the two secrets that the
// connection's records are protected with (record_cipher.h); OpenSSL is not needed after it.
//
// What is spoken: TLS 1.3 alone, the key together with a Diffie-Hellman exchange (X25519, P-256, P-384), and the cipher suite that belongs
// to the key's hash (AES-128-GCM with SHA-256, AES-256-GCM with SHA-384). No certificates, no resumption, no early data. ffdhe3072, which
// the specification wants as well, is left out: it takes milliseconds, and the handshake runs where I/O does.
//
// A host has one key, and names it. A target is told the names in the host's first message and takes the first that it knows, before
// anything is computed for the host; it computes the exchange once the host has proved that it has the key. A host that names none that is
// known hears unknown_psk_identity.
//
// Memory: some 50 KiB of OpenSSL's while it lasts; no message of a target's makes it more, and of a host's OpenSSL keeps one, of as many
// bytes as the session lets it send. Source: RFC 8446; NVM Express TCP Transport Specification 1.0, 3.6.1.2. Random numbers are OpenSSL's.
// One thread at a time.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/tls/byte_queue.h"
#include "nvme/tls/psk.h"

namespace cleat::nvme::tls {

// Which end of a connection this one is.
enum class Role : uint8_t { kHost, kTarget };
// The other end's, for people: "the target" at a host.
std::string_view PeerOf(Role role);

// A target's keys, by the identities that hosts name, which may be anything. Its error says who is not known; kResourceExhausted: no memory
// for keys.
using KeyFinder = std::function<Result<ConnectionKey>(std::string_view identity)>;

class Handshake {
 public:
  // A target looks at so many of the identities that a host names. Hosts of today name one.
  static constexpr size_t kIdentitiesMax = 4;

  // Of a host. Reads from `input` and writes to `output`, which outlive it. kInternal: OpenSSL can't begin; kResourceExhausted: no memory
  // for keys.
  static Result<std::unique_ptr<Handshake>> Make(ConnectionKey key, ByteQueue& input, ByteQueue& output);
  // Of a target. `find_key` is called from within GoOn.
  static Result<std::unique_ptr<Handshake>> MakeForTarget(KeyFinder find_key, ByteQueue& input,
                                                          ByteQueue& output);
  ~Handshake();
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  // Goes on as far as the input goes. True: it is over, and the input begins with the first record behind it. After an error the output
  // may have an alert, which says to the peer what is wrong.
  //   kPermissionDenied   the two have no key in common
  //   kResourceExhausted  no memory for keys
  //   kUnavailable        whatever else is wrong
  Result<bool> GoOn();
  // After an error of a host's: what it says of the key's identity.
  IdentityRefusal refusal() const { return refusal_; }

  Role role() const { return role_; }
  // Of the key; a target has it once it is over.
  Hash hash() const { return key_.hash; }
  const std::string& identity() const { return key_.identity; }
  // Once it is over: what this end's records are made with, and the peer's.
  keys::Secret& own_secret() { return role_ == Role::kHost ? host_secret_ : target_secret_; }
  keys::Secret& peer_secret() { return role_ == Role::kHost ? target_secret_ : host_secret_; }

 private:
  struct Callbacks;
  struct Free {
    void operator()(SSL* ssl) const;
  };

  Handshake(Role role, ByteQueue& input, ByteQueue& output) : role_(role), input_(input), output_(output) {}
  Status Begin();
  void TakeSecret(std::string_view line);
  // An alert of OpenSSL's number if the host's first message has no key for this end; 0: go on.
  int ChooseKey(SSL* ssl);
  int Refuse(int alert, Error error);
  Error Refuse(unsigned long code);

  const Role role_;
  KeyFinder find_key_;  // of a target
  ConnectionKey key_;   // of a target from the host's first message on
  ByteQueue& input_;
  ByteQueue& output_;
  IdentityRefusal refusal_ = IdentityRefusal::kSilent;
  std::optional<Error> hello_refused_;  // by ChooseKey
  keys::Secret host_secret_;
  keys::Secret target_secret_;
  std::unique_ptr<SSL, Free> ssl_;
};

// An alert that has come, in words: `the target says "unknown PSK identity"`.
std::string TextOfAlert(Role role, uint8_t alert);

}  // namespace cleat::nvme::tls
