// SPDX-License-Identifier: Apache-2.0
// The target's end of TLS in memory, by OpenSSL: for tests of what a host does with an honest target, and with one whose bytes a test
// changes on their way.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nvme/tls/psk.h"
#include "nvme/tls/record_cipher.h"

namespace cleat::test {

using Bytes = std::vector<uint8_t>;

inline constexpr const char* kTlsHost = "nqn.2014-08.org.example:host";
inline constexpr const char* kTlsSubsystem = "nqn.2014-08.org.example:array";
inline constexpr const char* kTlsKeys[] = {
    "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:"};
// Another key of the same form as the first one.
inline constexpr const char* kOtherTlsKey =
    "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

nvme::tls::ConnectionKey TlsKey(const char* text = kTlsKeys[0],
                                nvme::tls::IdentityVersion version = nvme::tls::IdentityVersion::kV0,
                                const char* subsystem = kTlsSubsystem);

class TlsServer {
 public:
  struct Options {
    bool has_certificate = false;  // goes on with it where the key is unknown
    int newest_version = 0;        // of TLS, OpenSSL's number; 0: all
    const char* groups = "X25519";
    size_t tickets = 2;
  };

  explicit TlsServer(nvme::tls::ConnectionKey key) : TlsServer(std::move(key), Options{}) {}
  TlsServer(nvme::tls::ConnectionKey key, const Options& options);
  ~TlsServer();
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  // What the host has sent, and what is to be sent to it.
  void Give(std::span<const uint8_t> bytes);
  Bytes Take();

  // Goes on with the handshake; whether it is over.
  bool Handshake();
  bool failed() const { return failed_; }
  // What has come as data by now. nullopt: the host has closed, or broken a rule.
  std::optional<Bytes> Read();
  void Write(std::span<const uint8_t> data);
  void UpdateKey(bool asks_for_another);
  void SendTicket();
  void Close();
  std::string group() const;  // of the exchange
  // What this end's records are made with, from the handshake's end on.
  nvme::tls::RecordCipher Forge() const;

 private:
  struct Callbacks;
  struct Free {
    void operator()(SSL* ssl) const;
    void operator()(SSL_CTX* context) const;
  };

  nvme::tls::ConnectionKey key_;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;
  bool failed_ = false;
  std::string secret_;  // hexadecimal digits
};

}  // namespace cleat::test
