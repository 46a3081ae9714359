// SPDX-License-Identifier: Apache-2.0
// The other end of a session in memory, by OpenSSL: an honest target for tests of a host, an honest host for tests of a target, and either with
// bytes that a test changes on their way.
#pragma once

#include <openssl/ssl.h>

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

class TlsPeer {
 public:
  TlsPeer(const TlsPeer&) = delete;
  TlsPeer& operator=(const TlsPeer&) = delete;

  // What the session has sent, and what is to be sent to it.
  void Give(std::span<const uint8_t> bytes);
  Bytes Take();

  // Goes on with the handshake; whether it is over.
  bool Handshake();
  bool failed() const { return failed_; }
  // Why, in OpenSSL's words.
  const std::string& why() const { return why_; }
  // What has come as data by now. nullopt: the session has closed, or broken a rule.
  std::optional<Bytes> Read();
  void Write(std::span<const uint8_t> data);
  void UpdateKey(bool asks_for_another);
  void Close();
  // What this end's records are made with, from the handshake's end on.
  nvme::tls::RecordCipher Forge() const;

 protected:
  struct Free {
    void operator()(SSL* ssl) const;
    void operator()(SSL_CTX* context) const;
  };

  // `secret_label`: of this end's secret in OpenSSL's lines.
  TlsPeer(nvme::tls::ConnectionKey key, const SSL_METHOD* method, const char* secret_label);
  ~TlsPeer();
  void Begin();  // the context is as it is to be
  static int FindPsk(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** result);
  static int UsePsk(SSL* ssl, const EVP_MD* hash, const unsigned char** identity, size_t* bytes,
                    SSL_SESSION** result);

  nvme::tls::ConnectionKey key_;
  const char* const secret_label_;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;

 private:
  static void KeepSecret(const SSL* ssl, const char* line);
  static SSL_SESSION* SessionOf(SSL* ssl, const nvme::tls::ConnectionKey& key);

  bool failed_ = false;
  std::string why_;
  std::string secret_;  // hexadecimal digits
};

class TlsServer final : public TlsPeer {
 public:
  struct Options {
    bool has_certificate = false;  // goes on with it where the key is unknown
    int newest_version = 0;        // of TLS, OpenSSL's number; 0: all
    const char* groups = "X25519";
    size_t tickets = 2;
  };

  explicit TlsServer(nvme::tls::ConnectionKey key) : TlsServer(std::move(key), Options{}) {}
  TlsServer(nvme::tls::ConnectionKey key, const Options& options);

  void SendTicket();
  std::string group() const;  // of the exchange
};

// As hosts are that OpenSSL makes, with all that it offers by itself.
class TlsClient final : public TlsPeer {
 public:
  struct Options {
    bool has_key = true;     // else certificates alone
    int newest_version = 0;  // of TLS, OpenSSL's number; 0: all
    const char* groups = "X25519";
    const char* suites = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384";
  };

  explicit TlsClient(nvme::tls::ConnectionKey key) : TlsClient(std::move(key), Options{}) {}
  TlsClient(nvme::tls::ConnectionKey key, const Options& options);
};

}  // namespace cleat::test
