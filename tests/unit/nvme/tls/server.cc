// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvme/tls/server.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <string_view>
#include <utility>

#include "base/check.h"

namespace cleat::test {

using nvme::tls::ConnectionKey;
using nvme::tls::IdentityVersion;
using nvme::tls::Psk;

ConnectionKey TlsKey(const char* text, IdentityVersion version, const char* subsystem) {
  const auto psk = Psk::Parse(text, "the key");
  return psk.value().KeyFor(kTlsHost, subsystem, version).value();
}

namespace {

// A key and a certificate that it has signed itself.
void MakeCertificate(SSL_CTX* context) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  CLEAT_CHECK(key != nullptr && certificate != nullptr);
  X509_set_version(certificate, 2);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* const name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("target"), -1,
                             -1, 0);
  X509_set_issuer_name(certificate, name);
  CLEAT_CHECK(X509_sign(certificate, key, EVP_sha256()) > 0);
  CLEAT_CHECK(SSL_CTX_use_certificate(context, certificate) == 1);
  CLEAT_CHECK(SSL_CTX_use_PrivateKey(context, key) == 1);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace

// ---- What both have

void TlsPeer::Free::operator()(SSL* ssl) const {
  SSL_free(ssl);
}
void TlsPeer::Free::operator()(SSL_CTX* context) const {
  SSL_CTX_free(context);
}

TlsPeer::TlsPeer(ConnectionKey key, const SSL_METHOD* method, const char* secret_label)
    : key_(std::move(key)), secret_label_(secret_label), context_(SSL_CTX_new(method)) {
  SSL_CTX_set_keylog_callback(context_.get(), KeepSecret);
}

TlsPeer::~TlsPeer() = default;

void TlsPeer::Begin() {
  ssl_.reset(SSL_new(context_.get()));
  SSL_set_bio(ssl_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_set_app_data(ssl_.get(), this);
}

void TlsPeer::KeepSecret(const SSL* ssl, const char* line) {
  auto& peer = *static_cast<TlsPeer*>(SSL_get_app_data(ssl));
  const std::string_view text = line;
  if (text.starts_with(peer.secret_label_)) peer.secret_ = text.substr(text.rfind(' ') + 1);
}

SSL_SESSION* TlsPeer::SessionOf(SSL* ssl, const ConnectionKey& key) {
  const unsigned char suite[] = {0x13,
                                 static_cast<unsigned char>(key.hash == nvme::tls::Hash::kSha256 ? 1 : 2)};
  SSL_SESSION* const psk = SSL_SESSION_new();
  const auto bytes = key.key.bytes();
  CLEAT_CHECK(SSL_SESSION_set1_master_key(psk, bytes.data(), bytes.size()) == 1);
  CLEAT_CHECK(SSL_SESSION_set_cipher(psk, SSL_CIPHER_find(ssl, suite)) == 1);
  CLEAT_CHECK(SSL_SESSION_set_protocol_version(psk, TLS1_3_VERSION) == 1);
  return psk;
}

int TlsPeer::FindPsk(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** result) {
  const auto& key = static_cast<const TlsPeer*>(SSL_get_app_data(ssl))->key_;
  const bool is_it = std::string_view(reinterpret_cast<const char*>(identity), bytes) == key.identity;
  *result = is_it ? SessionOf(ssl, key) : nullptr;
  return 1;
}

int TlsPeer::UsePsk(SSL* ssl, const EVP_MD* hash, const unsigned char** identity, size_t* bytes,
                    SSL_SESSION** result) {
  const auto& key = static_cast<const TlsPeer*>(SSL_get_app_data(ssl))->key_;
  *result = nullptr;
  if (hash != nullptr && EVP_MD_get_size(hash) != static_cast<int>(key.key.size())) return 1;
  *identity = reinterpret_cast<const unsigned char*>(key.identity.data());
  *bytes = key.identity.size();
  *result = SessionOf(ssl, key);
  return 1;
}

// ---- The two

TlsServer::TlsServer(ConnectionKey key, const Options& options)
    : TlsPeer(std::move(key), TLS_server_method(), "SERVER_TRAFFIC_SECRET_0 ") {
  SSL_CTX_set_psk_find_session_callback(context_.get(), FindPsk);
  SSL_CTX_set_num_tickets(context_.get(), options.tickets);
  CLEAT_CHECK(SSL_CTX_set1_groups_list(context_.get(), options.groups) == 1);
  if (options.newest_version != 0)
    CLEAT_CHECK(SSL_CTX_set_max_proto_version(context_.get(), options.newest_version) == 1);
  if (options.has_certificate) MakeCertificate(context_.get());
  Begin();
  SSL_set_accept_state(ssl_.get());
}

TlsClient::TlsClient(ConnectionKey key, const Options& options)
    : TlsPeer(std::move(key), TLS_client_method(), "CLIENT_TRAFFIC_SECRET_0 ") {
  if (options.has_key) SSL_CTX_set_psk_use_session_callback(context_.get(), UsePsk);
  CLEAT_CHECK(SSL_CTX_set1_groups_list(context_.get(), options.groups) == 1);
  CLEAT_CHECK(SSL_CTX_set_ciphersuites(context_.get(), options.suites) == 1);
  if (options.newest_version != 0)
    CLEAT_CHECK(SSL_CTX_set_max_proto_version(context_.get(), options.newest_version) == 1);
  Begin();
  SSL_set_connect_state(ssl_.get());
}

// ---- What both do

void TlsPeer::Give(std::span<const uint8_t> bytes) {
  if (!bytes.empty()) BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(bytes.size()));
}

Bytes TlsPeer::Take() {
  BIO* const out = SSL_get_wbio(ssl_.get());
  Bytes bytes(BIO_ctrl_pending(out));
  if (!bytes.empty()) BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

bool TlsPeer::Handshake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_.get());
  if (done != 1 && SSL_get_error(ssl_.get(), done) != SSL_ERROR_WANT_READ) {
    failed_ = true;
    const char* const text = ERR_reason_error_string(ERR_peek_error());
    why_ = text != nullptr ? text : "";
  }
  ERR_clear_error();
  return done == 1;
}

std::optional<Bytes> TlsPeer::Read() {
  Bytes all;
  for (;;) {
    Bytes part(16384);
    size_t got = 0;
    ERR_clear_error();
    if (SSL_read_ex(ssl_.get(), part.data(), part.size(), &got) != 1) {
      const int why = SSL_get_error(ssl_.get(), 0);
      ERR_clear_error();
      if (why == SSL_ERROR_WANT_READ) return all;
      failed_ = true;
      if (!all.empty()) return all;
      return std::nullopt;
    }
    all.insert(all.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(got));
  }
}

void TlsPeer::Write(std::span<const uint8_t> data) {
  size_t written = 0;
  if (data.empty()) return;
  CLEAT_CHECK(SSL_write_ex(ssl_.get(), data.data(), data.size(), &written) == 1 && written == data.size());
}

void TlsPeer::UpdateKey(bool asks_for_another) {
  CLEAT_CHECK(SSL_key_update(ssl_.get(), asks_for_another ? SSL_KEY_UPDATE_REQUESTED
                                                          : SSL_KEY_UPDATE_NOT_REQUESTED) == 1);
  (void)SSL_do_handshake(ssl_.get());
}

void TlsServer::SendTicket() {
  CLEAT_CHECK(SSL_new_session_ticket(ssl_.get()) == 1);
  (void)SSL_do_handshake(ssl_.get());
}

void TlsPeer::Close() {
  SSL_shutdown(ssl_.get());
}

std::string TlsServer::group() const {
  const int id = static_cast<int>(SSL_get_shared_group(ssl_.get(), 0));
  const char* const name = SSL_group_to_name(ssl_.get(), id);
  return name != nullptr ? name : "";
}

nvme::tls::RecordCipher TlsPeer::Forge() const {
  keys::Secret secret = keys::Secret::Zeroes(secret_.size() / 2);
  for (size_t i = 0; i < secret.size(); ++i)
    secret.mutable_bytes()[i] = static_cast<uint8_t>(std::stoi(secret_.substr(2 * i, 2), nullptr, 16));
  return nvme::tls::RecordCipher::Make(key_.hash, std::move(secret), nvme::tls::RecordCipher::Use::kSeal)
      .value();
}

}  // namespace cleat::test
