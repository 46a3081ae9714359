// SPDX-License-Identifier: Apache-2.0
#include "nvme/tls/handshake.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "keys/traces.h"

namespace cleat::nvme::tls {
namespace {

constexpr const char* kGroups = "X25519:P-256:P-384";
// A certificate would be refused in any case; none that is longer is taken in to look at it.
constexpr long kCertificateBytesMax = 4096;

// The alerts by which a peer may say that it does not take the key (RFC 8446, 6.2). OpenSSL says illegal_parameter when the key is
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

const char* SeeToKey(Role role) {
  return role == Role::kHost
             ? "; see that it has the same pre-shared key for this host's NQN and the subsystem's"
             : "; see that it has the same pre-shared key for its NQN and the subsystem's";
}

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

constexpr const char* kDoing = "TLS handshake: ";

Error Unavailable(std::string why) {
  return {ErrorCode::kUnavailable, kDoing + std::move(why)};
}

// What OpenSSL has found wrong with what a target has sent. nullopt: nothing that has words of its own.
std::optional<Error> ErrorAtHost(int reason) {
  switch (reason) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_WRONG_SSL_VERSION:
    case SSL_R_RECORD_TOO_SMALL:
    case SSL_R_UNEXPECTED_MESSAGE:
    case SSL_R_UNEXPECTED_RECORD:
      return Unavailable("what the target sends is no TLS 1.3: see that its listener has a secure channel");
    case SSL_R_UNSUPPORTED_PROTOCOL:
      return Unavailable("the target has no TLS 1.3: update it");
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_EXCESSIVE_MESSAGE_SIZE:
      return Error(ErrorCode::kPermissionDenied,
                   std::string(kDoing) + "the target shows a certificate instead of the pre-shared key" +
                       SeeToKey(Role::kHost));
    default:
      return std::nullopt;
  }
}

// ... and a host, which has named the key of `identity`.
std::optional<Error> ErrorAtTarget(int reason, const std::string& identity) {
  switch (reason) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
      return Error(ErrorCode::kPermissionDenied, std::string(kDoing) + "the host has another key for " +
                                                     identity + SeeToKey(Role::kTarget));
    case SSL_R_UNSUPPORTED_PROTOCOL:
      return Unavailable("the host has no TLS 1.3: update it");
    case SSL_R_NO_SHARED_CIPHER:
      return Unavailable("the host does not offer the cipher suite of the key's hash, for " + identity);
    case SSL_R_NO_SUITABLE_KEY_SHARE:
      return Unavailable(
          "the host offers no group for the exchange that is known here: X25519, P-256, P-384");
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_MISSING_SIGALGS_EXTENSION:
      return Unavailable("the host does not offer the key together with an exchange (psk_dhe_ke)");
    default:
      return std::nullopt;
  }
}

Error ErrorOf(Role role, unsigned long code, const std::string& identity) {
  if (IsOfMemory(code)) return auth::NoMemoryForKeys("a TLS handshake");
  if (const auto alert = AlertOf(code)) {
    const std::string text = kDoing + TextOfAlert(role, static_cast<uint8_t>(*alert));
    if (!IsOfKey(*alert)) return {ErrorCode::kUnavailable, text};
    return {ErrorCode::kPermissionDenied, text + SeeToKey(role)};
  }
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  auto error = role == Role::kHost ? ErrorAtHost(reason) : ErrorAtTarget(reason, identity);
  if (error) return *std::move(error);
  const char* const text = ERR_reason_error_string(code);
  return Unavailable("what " + std::string(PeerOf(role)) + " has sent breaks a rule of TLS: " +
                     (text != nullptr ? text : "number " + std::to_string(code)));
}

// The identities that a host names, in its extension for pre-shared keys (RFC 8446, 4.2.11), at most as many as are looked at. nullopt: the
// extension is malformed.
std::optional<std::vector<std::string_view>> IdentitiesIn(std::span<const uint8_t> extension) {
  constexpr size_t kLengthBytes = 2;
  constexpr size_t kAgeBytes = 4;
  const auto length_at = [](std::span<const uint8_t> bytes) { return size_t{bytes[0]} << 8 | bytes[1]; };
  if (extension.size() < kLengthBytes) return std::nullopt;
  const size_t list_bytes = length_at(extension);
  if (list_bytes == 0 || list_bytes > extension.size() - kLengthBytes) return std::nullopt;
  std::span<const uint8_t> list = extension.subspan(kLengthBytes, list_bytes);
  std::vector<std::string_view> identities;
  while (!list.empty() && identities.size() < Handshake::kIdentitiesMax) {
    if (list.size() < kLengthBytes) return std::nullopt;
    const size_t bytes = length_at(list);
    if (bytes == 0 || list.size() < kLengthBytes + bytes + kAgeBytes) return std::nullopt;
    identities.emplace_back(reinterpret_cast<const char*>(list.data()) + kLengthBytes, bytes);
    list = list.subspan(kLengthBytes + bytes + kAgeBytes);
  }
  return identities;
}

}  // namespace

std::string_view PeerOf(Role role) {
  return role == Role::kHost ? "the target" : "the host";
}

std::string TextOfAlert(Role role, uint8_t alert) {
  return std::string(PeerOf(role)) + " says \"" + SSL_alert_desc_string_long(alert) + "\"";
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

  // A session as OpenSSL wants it, of the key: the suite is part of it. nullptr: OpenSSL says no.
  static SSL_SESSION* SessionOf(SSL* ssl, const ConnectionKey& key) {
    SSL_SESSION* const psk = SSL_SESSION_new();
    if (psk == nullptr) return nullptr;
    const SSL_CIPHER* const suite = SSL_CIPHER_find(ssl, SuiteOf(key.hash).id.data());
    const auto bytes = key.key.bytes();
    if (suite != nullptr && SSL_SESSION_set1_master_key(psk, bytes.data(), bytes.size()) == 1 &&
        SSL_SESSION_set_cipher(psk, suite) == 1 && SSL_SESSION_set_protocol_version(psk, TLS1_3_VERSION) == 1)
      return psk;
    SSL_SESSION_free(psk);
    return nullptr;
  }

  // At a host.
  static int UsePsk(SSL* ssl, const EVP_MD* hash, const unsigned char** identity, size_t* identity_bytes,
                    SSL_SESSION** result) {
    const Handshake& handshake = Of(ssl);
    *result = nullptr;
    // After a HelloRetryRequest the hash stands already; a key of another one is left out.
    const int wanted = static_cast<int>(auth::BytesOf(handshake.key_.hash));
    if (hash != nullptr && EVP_MD_get_size(hash) != wanted) return 1;
    *result = SessionOf(ssl, handshake.key_);
    if (*result == nullptr) return 0;
    *identity = auth::AsBytes(handshake.key_.identity).data();
    *identity_bytes = handshake.key_.identity.size();
    return 1;
  }

  // At a target: before anything else of the host's first message is looked at.
  static int TakeHello(SSL* ssl, int* alert, void* /*unused*/) {
    *alert = Of(ssl).ChooseKey(ssl);
    return *alert == 0 ? SSL_CLIENT_HELLO_SUCCESS : SSL_CLIENT_HELLO_ERROR;
  }

  // ... and for each identity in it, until one has a key.
  static int FindPsk(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** result) {
    const ConnectionKey& key = Of(ssl).key_;
    *result = nullptr;
    if (key.key.empty() || std::string_view(reinterpret_cast<const char*>(identity), bytes) != key.identity)
      return 1;
    *result = SessionOf(ssl, key);
    return *result != nullptr ? 1 : 0;
  }

  static void Secret(const SSL* ssl, const char* line) { Of(ssl).TakeSecret(line); }

  // What all handshakes share is made by the first one, for as long as the process lives. Where that fails, for want of memory perhaps, the
  // next one tries again.
  struct Shared {
    Mutex mutex;
    BIO_METHOD* method CLEAT_GUARDED_BY(mutex) = nullptr;
    SSL_CTX* of_hosts CLEAT_GUARDED_BY(mutex) = nullptr;
    SSL_CTX* of_targets CLEAT_GUARDED_BY(mutex) = nullptr;
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
  static SSL_CTX* Context(Role role) {
    Shared& shared = GetShared();
    const MutexLock lock(shared.mutex);
    SSL_CTX*& context = role == Role::kHost ? shared.of_hosts : shared.of_targets;
    if (context == nullptr) context = MakeContext(role);
    return context;
  }

  static SSL_CTX* MakeContext(Role role) {
    SSL_CTX* const made = SSL_CTX_new(role == Role::kHost ? TLS_client_method() : TLS_server_method());
    if (made == nullptr) return nullptr;
    SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_clear_options(made, SSL_OP_ENABLE_MIDDLEBOX_COMPAT | SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_keylog_callback(made, Secret);
    if (role == Role::kTarget) {
      SSL_CTX_set_num_tickets(made, 0);
      SSL_CTX_set_client_hello_cb(made, TakeHello, nullptr);
      SSL_CTX_set_psk_find_session_callback(made, FindPsk);
      return made;
    }
    // No certificate is trusted: a target that shows a certificate instead of taking the key ends the handshake.
    SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_max_cert_list(made, kCertificateBytesMax);
    SSL_CTX_set_psk_use_session_callback(made, UsePsk);
    return made;
  }
};

void Handshake::Free::operator()(SSL* ssl) const {
  SSL_free(ssl);
}

Handshake::~Handshake() = default;

Result<std::unique_ptr<Handshake>> Handshake::Make(ConnectionKey key, ByteQueue& input, ByteQueue& output) {
  std::unique_ptr<Handshake> handshake(new Handshake(Role::kHost, input, output));
  handshake->key_ = std::move(key);
  CLEAT_TRY(handshake->Begin());
  if (SSL_set_ciphersuites(handshake->ssl_.get(), SuiteOf(handshake->key_.hash).name) != 1)
    return CannotBegin();
  return handshake;
}

Result<std::unique_ptr<Handshake>> Handshake::MakeForTarget(KeyFinder find_key, ByteQueue& input,
                                                            ByteQueue& output) {
  std::unique_ptr<Handshake> handshake(new Handshake(Role::kTarget, input, output));
  handshake->find_key_ = std::move(find_key);
  CLEAT_TRY(handshake->Begin());
  return handshake;
}

Status Handshake::Begin() {
  ERR_clear_error();
  SSL_CTX* const context = Callbacks::Context(role_);
  BIO_METHOD* const method = Callbacks::Method();
  if (context == nullptr || method == nullptr) return CannotBegin();
  ssl_.reset(SSL_new(context));
  BIO* const bio = BIO_new(method);
  if (ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return CannotBegin();
  }
  SSL* const ssl = ssl_.get();
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl, bio, bio);
  SSL_set_app_data(ssl, this);
  if (role_ == Role::kHost) {
    SSL_set_connect_state(ssl);
  } else {
    SSL_set_accept_state(ssl);
  }
  // After the configuration of OpenSSL, which may have set other ones.
  if (SSL_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_set_max_proto_version(ssl, TLS1_3_VERSION) != 1 || SSL_set1_groups_list(ssl, kGroups) != 1)
    return CannotBegin();
  return Ok{};
}

// ---- The host's first message, at a target

int Handshake::Refuse(int alert, Error error) {
  hello_refused_ = std::move(error);
  return alert;
}

// The second one after a HelloRetryRequest, too, which has to name the key again.
int Handshake::ChooseKey(SSL* ssl) {
  const auto says = [ssl](unsigned type, std::span<const uint8_t>& extension) {
    const unsigned char* at = nullptr;
    size_t bytes = 0;
    const bool is_there = SSL_client_hello_get0_ext(ssl, type, &at, &bytes) == 1;
    if (is_there) extension = {at, bytes};
    return is_there;
  };
  std::span<const uint8_t> extension;
  // Of an older version of TLS: OpenSSL says so.
  if (!says(TLSEXT_TYPE_supported_versions, extension)) return 0;
  if (!says(TLSEXT_TYPE_psk, extension)) {
    return Refuse(SSL_AD_HANDSHAKE_FAILURE,
                  {ErrorCode::kPermissionDenied, std::string(kDoing) + "the host offers no pre-shared key"});
  }
  const auto identities = IdentitiesIn(extension);
  if (!identities) return Refuse(SSL_AD_DECODE_ERROR, Unavailable("the host names a key as no host may"));
  if (!key_.key.empty()) {
    const bool is_again =
        std::find(identities->begin(), identities->end(), key_.identity) != identities->end();
    return is_again ? 0
                    : Refuse(SSL_AD_ILLEGAL_PARAMETER, Unavailable("the host names another key than before"));
  }
  std::optional<Error> unknown;
  for (const std::string_view identity : *identities) {
    Result<ConnectionKey> found = find_key_(identity);
    if (found.ok()) {
      key_ = std::move(found).value();
      const bool set = SSL_set_ciphersuites(ssl, SuiteOf(key_.hash).name) == 1;
      return set ? 0 : Refuse(SSL_AD_INTERNAL_ERROR, CannotBegin());
    }
    if (found.error().code == ErrorCode::kResourceExhausted)
      return Refuse(SSL_AD_INTERNAL_ERROR, found.error());
    if (!unknown) unknown = found.error();
  }
  return Refuse(SSL_AD_UNKNOWN_PSK_IDENTITY,
                {ErrorCode::kPermissionDenied, kDoing + (unknown ? unknown->message : "no key is named")});
}

// ---- The rest

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
  if (hello_refused_) return *hello_refused_;
  Error error = ErrorOf(role_, code, key_.identity);
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
    return Error(ErrorCode::kPermissionDenied, kDoing + std::string(PeerOf(role_)) +
                                                   " goes on without the pre-shared key" + SeeToKey(role_));
  }
  CLEAT_CHECK(!host_secret_.empty() && !target_secret_.empty());
  return true;
}

}  // namespace cleat::nvme::tls
