// SPDX-License-Identifier: Apache-2.0
#include "nvme/tls/handshake.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "keys/traces.h"

namespace cleat::nvme::tls {
namespace {

constexpr const char* kGroups = "X25519:P-256:P-384";
// A certificate would be refused in any case; none that is longer is taken in to look at it.
constexpr long kCertificateBytesMax = 4096;

// The alerts by which a target may say that it does not take the key (RFC 8446, 6.2). OpenSSL says illegal_parameter when the key is
// another one, and handshake_failure or internal_error when it knows no such identity.
constexpr int kAlertsOfKey[] = {SSL_AD_UNKNOWN_PSK_IDENTITY, SSL_AD_DECRYPT_ERROR,  SSL_AD_HANDSHAKE_FAILURE,
                                SSL_AD_ILLEGAL_PARAMETER,    SSL_AD_BAD_RECORD_MAC, SSL_AD_ACCESS_DENIED,
                                SSL_AD_INTERNAL_ERROR};

bool IsOfKey(int alert) {
  return std::find(std::begin(kAlertsOfKey), std::end(kAlertsOfKey), alert) != std::end(kAlertsOfKey);
}

// The suite's two bytes and its name (RFC 8446, B.4).
struct Suite {
  std::array<uint8_t, 2> id;
  const char* name;
};
Suite SuiteOf(Hash hash) {
  if (hash == Hash::kSha256) return {{0x13, 0x01}, "TLS_AES_128_GCM_SHA256"};
  return {{0x13, 0x02}, "TLS_AES_256_GCM_SHA384"};
}

// The oldest error in the thread's queue, which is emptied: whoever looks there next would take these for its own.
unsigned long TakeError() {
  const unsigned long code = ERR_peek_error();
  ERR_clear_error();
  return code;
}

bool IsOfMemory(unsigned long code) {
  return ERR_GET_REASON(code) == ERR_R_MALLOC_FAILURE;
}

Error CannotBegin() {
  const unsigned long code = TakeError();
  if (IsOfMemory(code)) return auth::NoMemoryForKeys("a TLS handshake");
  const char* const text = ERR_reason_error_string(code);
  const std::string why = text != nullptr ? text : "no reason given";
  return {ErrorCode::kInternal, "OpenSSL can't begin TLS 1.3 with a pre-shared key: " + why +
                                    "; look whether its configuration (openssl.cnf) allows it"};
}

const char* const kSeeToKey =
    "; see that it has the same pre-shared key for this host's NQN and the subsystem's";

// OpenSSL's lines for the connection's secrets: a label, the host's random bytes, the secret, both in hexadecimal digits.
constexpr std::string_view kHostSecret = "CLIENT_TRAFFIC_SECRET_0 ";
constexpr std::string_view kTargetSecret = "SERVER_TRAFFIC_SECRET_0 ";

uint8_t DigitOf(char digit) {
  return static_cast<uint8_t>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
}

// An alert that has come is an error of OpenSSL's with a number of its own. nullopt: `code` is none. Each of OpenSSL's libraries numbers
// its reasons by itself, and those of another one may have an alert's number.
std::optional<int> AlertOf(unsigned long code) {
  const int alert = ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET;
  if (ERR_GET_LIB(code) != ERR_LIB_SSL || alert < 0 || alert > UINT8_MAX) return std::nullopt;
  return alert;
}

Error ErrorOf(unsigned long code) {
  const std::string doing = "TLS handshake: ";
  if (IsOfMemory(code)) return auth::NoMemoryForKeys("a TLS handshake");
  if (const auto alert = AlertOf(code)) {
    const std::string text = doing + TextOfAlert(static_cast<uint8_t>(*alert));
    if (!IsOfKey(*alert)) return {ErrorCode::kUnavailable, text};
    return {ErrorCode::kPermissionDenied, text + kSeeToKey};
  }
  switch (ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_WRONG_SSL_VERSION:
    case SSL_R_RECORD_TOO_SMALL:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_UNEXPECTED_RECORD:
      return {ErrorCode::kUnavailable,
              doing + "what the target sends is no TLS 1.3: see that its listener has a secure channel"};
    case SSL_R_UNSUPPORTED_PROTOCOL:
      return {ErrorCode::kUnavailable, doing + "the target has no TLS 1.3: update it"};
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_EXCESSIVE_MESSAGE_SIZE:
      return {ErrorCode::kPermissionDenied,
              doing + "the target shows a certificate instead of the pre-shared key" + kSeeToKey};
    default:
      break;
  }
  const char* const text = ERR_reason_error_string(code);
  return {ErrorCode::kUnavailable, doing + "what the target has sent breaks a rule of TLS: " +
                                       (text != nullptr ? text : "number " + std::to_string(code))};
}

}  // namespace

std::string TextOfAlert(uint8_t alert) {
  return std::string("the target says \"") + SSL_alert_desc_string_long(alert) + "\"";
}

// What OpenSSL calls.
struct Handshake::Callbacks {
  static Handshake& Of(BIO* bio) { return *static_cast<Handshake*>(BIO_get_data(bio)); }
  static Handshake& Of(const SSL* ssl) { return *static_cast<Handshake*>(SSL_get_app_data(ssl)); }

  static int Read(BIO* bio, char* to, int size) {
    ByteQueue& input = Of(bio).input_;
    BIO_clear_retry_flags(bio);
    const size_t bytes = std::min(static_cast<size_t>(std::max(size, 0)), input.bytes().size());
    if (bytes == 0) {
      BIO_set_retry_read(bio);
      return -1;
    }
    std::memcpy(to, input.bytes().data(), bytes);
    input.Take(bytes);
    return static_cast<int>(bytes);
  }

  static int Write(BIO* bio, const char* from, int size) {
    ByteQueue& output = Of(bio).output_;
    BIO_clear_retry_flags(bio);
    const auto bytes = static_cast<size_t>(std::max(size, 0));
    if (output.space().size() < bytes) output.Pack();
    if (output.space().size() < bytes) {
      BIO_set_retry_write(bio);
      return -1;
    }
    std::memcpy(output.space().data(), from, bytes);
    output.Add(bytes);
    return size;
  }

  static long Control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
    return command == BIO_CTRL_FLUSH ? 1 : 0;
  }

  // A session as OpenSSL wants it, of the key: the suite is part of it.
  static int UsePsk(SSL* ssl, const EVP_MD* hash, const unsigned char** identity, size_t* identity_bytes,
                    SSL_SESSION** result) {
    const Handshake& handshake = Of(ssl);
    *result = nullptr;
    // After a HelloRetryRequest the hash stands already; a key of another one is left out.
    const int wanted = static_cast<int>(auth::BytesOf(handshake.key_.hash));
    if (hash != nullptr && EVP_MD_get_size(hash) != wanted) return 1;
    SSL_SESSION* const psk = SSL_SESSION_new();
    if (psk == nullptr) return 0;
    const SSL_CIPHER* const suite = SSL_CIPHER_find(ssl, SuiteOf(handshake.key_.hash).id.data());
    const auto key = handshake.key_.key.bytes();
    if (suite == nullptr || SSL_SESSION_set1_master_key(psk, key.data(), key.size()) != 1 ||
        SSL_SESSION_set_cipher(psk, suite) != 1 ||
        SSL_SESSION_set_protocol_version(psk, TLS1_3_VERSION) != 1) {
      SSL_SESSION_free(psk);
      return 0;
    }
    *identity = auth::AsBytes(handshake.key_.identity).data();
    *identity_bytes = handshake.key_.identity.size();
    *result = psk;
    return 1;
  }

  static void Secret(const SSL* ssl, const char* line) { Of(ssl).TakeSecret(line); }

  // What all handshakes share is made by the first one, for as long as the process lives. Where that fails, for want of memory perhaps, the
  // next one tries again.
  struct Shared {
    Mutex mutex;
    BIO_METHOD* method CLEAT_GUARDED_BY(mutex) = nullptr;
    SSL_CTX* context CLEAT_GUARDED_BY(mutex) = nullptr;
  };
  static Shared& GetShared() {
    static Shared shared;
    return shared;
  }

  // nullptr: OpenSSL says no.
  static BIO_METHOD* Method() {
    Shared& shared = GetShared();
    const MutexLock lock(shared.mutex);
    if (shared.method != nullptr) return shared.method;
    BIO_METHOD* const made =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "memory of a handshake");
    if (made == nullptr) return nullptr;
    BIO_meth_set_read(made, Read);
    BIO_meth_set_write(made, Write);
    BIO_meth_set_ctrl(made, Control);
    return shared.method = made;
  }

  // nullptr: OpenSSL says no.
  static SSL_CTX* Context() {
    Shared& shared = GetShared();
    const MutexLock lock(shared.mutex);
    if (shared.context != nullptr) return shared.context;
    SSL_CTX* const made = SSL_CTX_new(TLS_client_method());
    if (made == nullptr) return nullptr;
    SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_clear_options(made, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    // No certificate is trusted: a target that shows a certificate instead of taking the key ends the handshake.
    SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_max_cert_list(made, kCertificateBytesMax);
    SSL_CTX_set_psk_use_session_callback(made, UsePsk);
    SSL_CTX_set_keylog_callback(made, Secret);
    return shared.context = made;
  }
};

void Handshake::Free::operator()(SSL* ssl) const {
  SSL_free(ssl);
}

Handshake::Handshake(ConnectionKey key, ByteQueue& input, ByteQueue& output)
    : key_(std::move(key)), input_(input), output_(output) {}

Handshake::~Handshake() = default;

Result<std::unique_ptr<Handshake>> Handshake::Make(ConnectionKey key, ByteQueue& input, ByteQueue& output) {
  ERR_clear_error();
  SSL_CTX* const context = Callbacks::Context();
  BIO_METHOD* const method = Callbacks::Method();
  if (context == nullptr || method == nullptr) return CannotBegin();
  std::unique_ptr<Handshake> handshake(new Handshake(std::move(key), input, output));
  handshake->ssl_.reset(SSL_new(context));
  BIO* const bio = BIO_new(method);
  if (handshake->ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return CannotBegin();
  }
  SSL* const ssl = handshake->ssl_.get();
  BIO_set_data(bio, handshake.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, handshake.get());
  SSL_set_connect_state(ssl);
  // After the configuration of OpenSSL, which may have set other ones.
  if (SSL_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_set_max_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_set_ciphersuites(ssl, SuiteOf(handshake->key_.hash).name) != 1 ||
      SSL_set1_groups_list(ssl, kGroups) != 1) {
    return CannotBegin();
  }
  return handshake;
}

void Handshake::TakeSecret(std::string_view line) {
  const bool is_host = line.starts_with(kHostSecret);
  if (!is_host && !line.starts_with(kTargetSecret)) return;
  const std::string_view digits = line.substr(line.rfind(' ') + 1);
  const size_t size_bytes = auth::BytesOf(key_.hash);
  CLEAT_CHECK(digits.size() == 2 * size_bytes);
  keys::Secret secret = keys::Secret::Zeroes(size_bytes);
  for (size_t i = 0; i < size_bytes; ++i)
    secret.mutable_bytes()[i] =
        static_cast<uint8_t>(DigitOf(digits[2 * i]) << 4 | DigitOf(digits[2 * i + 1]));
  (is_host ? host_secret_ : target_secret_) = std::move(secret);
}

Error Handshake::Refuse(unsigned long code) {
  Error error = ErrorOf(code);
  if (error.code != ErrorCode::kPermissionDenied) return error;
  refusal_ =
      AlertOf(code) == SSL_AD_UNKNOWN_PSK_IDENTITY ? IdentityRefusal::kUnknown : IdentityRefusal::kPerhaps;
  return error;
}

Result<bool> Handshake::GoOn() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_.get());
  const int why = SSL_get_error(ssl_.get(), done);
  const unsigned long code = TakeError();
  keys::WipeTraces();
  if (done != 1) {
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return false;
    return Refuse(code);
  }
  // A key that was given counts as a session that is taken up again.
  if (SSL_session_reused(ssl_.get()) != 1) {
    refusal_ = IdentityRefusal::kPerhaps;
    return Error(ErrorCode::kPermissionDenied,
                 std::string("TLS handshake: the target goes on without the pre-shared key") + kSeeToKey);
  }
  CLEAT_CHECK(!host_secret_.empty() && !target_secret_.empty());
  return true;
}

}  // namespace cleat::nvme::tls
