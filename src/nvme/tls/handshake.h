// SPDX-License-Identifier: Apache-2.0
// A host's handshake of TLS 1.3 with one pre-shared key, by OpenSSL on plain memory. What it ends with are the two secrets that the
// connection's records are protected with (record_cipher.h); OpenSSL is not needed after it.
//
// What is spoken: TLS 1.3 alone, the key together with a Diffie-Hellman exchange (X25519, P-256, P-384), and the cipher suite that belongs
// to the key's hash (AES-128-GCM with SHA-256, AES-256-GCM with SHA-384). No certificates, no resumption, no early data. ffdhe3072, which
// the specification wants as well, is left out: it takes milliseconds, and the handshake runs where I/O does.
//
// Memory: some 50 KiB of OpenSSL's while it lasts; no message of a target's makes it more. Source: RFC 8446; NVM Express TCP Transport
// Specification 1.0, 3.6.1.2. Random numbers are OpenSSL's. One thread at a time.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/tls/byte_queue.h"
#include "nvme/tls/psk.h"

namespace cleat::nvme::tls {

class Handshake {
 public:
  // Reads from `input` and writes to `output`, which outlive it. kInternal: OpenSSL can't begin; kResourceExhausted: no memory for
  // keys.
  static Result<std::unique_ptr<Handshake>> Make(ConnectionKey key, ByteQueue& input, ByteQueue& output);
  ~Handshake();
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  // Goes on as far as the input goes. True: it is over, and the input begins with the first record behind it. After an error the output
  // may have an alert, which says to the target what is wrong.
  //   kPermissionDenied   the target does not take the key
  //   kResourceExhausted  no memory for keys
  //   kUnavailable        whatever else is wrong
  Result<bool> GoOn();
  // After an error: what it says of the key's identity.
  IdentityRefusal refusal() const { return refusal_; }

  Hash hash() const { return key_.hash; }
  // Once it is over.
  keys::Secret& host_secret() { return host_secret_; }
  keys::Secret& target_secret() { return target_secret_; }

 private:
  struct Callbacks;
  struct Free {
    void operator()(SSL* ssl) const;
  };

  Handshake(ConnectionKey key, ByteQueue& input, ByteQueue& output);
  void TakeSecret(std::string_view line);
  Error Refuse(unsigned long code);

  const ConnectionKey key_;
  ByteQueue& input_;
  ByteQueue& output_;
  IdentityRefusal refusal_ = IdentityRefusal::kSilent;
  keys::Secret host_secret_;
  keys::Secret target_secret_;
  std::unique_ptr<SSL, Free> ssl_;
};

// An alert that has come, in words: `the target says "unknown PSK identity"`.
std::string TextOfAlert(uint8_t alert);

}  // namespace cleat::nvme::tls
