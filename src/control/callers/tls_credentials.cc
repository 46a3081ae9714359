// SPDX-License-Identifier: Apache-2.0
#include "control/callers/tls_credentials.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "base/mutex.h"

namespace cleat::control {
namespace {

constexpr size_t kPemBytesMax = size_t{1024} * 1024;

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Error Bad(const std::string& path, std::string_view why) {
  ERR_clear_error();
  return {ErrorCode::kInvalidArgument, fmt::format("TLS file '{}': {}", path, why)};
}

Result<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Bad(path, "it can't be read");
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.size() > kPemBytesMax) return Bad(path, "it is too large");
  return text;
}

Bio BioOf(const std::string& pem) {
  return {BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), &BIO_free};
}

// The first certificate; all in the file must be well-formed and valid now.
Result<std::shared_ptr<X509>> CheckCertificates(const std::string& path, const std::string& pem) {
  const Bio bio = BioOf(pem);
  std::shared_ptr<X509> first;
  for (;;) {
    std::shared_ptr<X509> certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), &X509_free);
    if (certificate == nullptr) break;
    if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0)
      return Bad(path, "a certificate has expired");
    if (first == nullptr) first = std::move(certificate);
  }
  const unsigned long error = ERR_peek_last_error();
  const bool at_end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  if (first == nullptr || !at_end) return Bad(path, "it is not a certificate in PEM, or damaged");
  ERR_clear_error();
  return first;
}

struct Pem {
  std::string certificate;
  std::string key;
  std::string client_ca;
};

Result<Pem> ReadAndCheck(const TlsFiles& files) {
  auto certificate = ReadPem(files.certificate);
  CLEAT_TRY(certificate);
  CLEAT_ASSIGN(auto key_text, ReadPem(files.key));
  CLEAT_ASSIGN(auto client_ca, ReadPem(files.client_ca));

  CLEAT_ASSIGN(auto own, CheckCertificates(files.certificate, *certificate));
  CLEAT_TRY(CheckCertificates(files.client_ca, client_ca));
  const Bio bio = BioOf(key_text);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr), &EVP_PKEY_free);
  if (key == nullptr) return Bad(files.key, "it is not a private key in PEM (without a passphrase)");
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    return Bad(files.key, fmt::format("it is not the key of the certificate in '{}'", files.certificate));
  }
  return Pem{
      .certificate = std::move(*certificate), .key = std::move(key_text), .client_ca = std::move(client_ca)};
}

}  // namespace

struct TlsCertificates::State {
  Mutex mutex;
  Pem pem CLEAT_GUARDED_BY(mutex);
  bool fresh CLEAT_GUARDED_BY(mutex) = true;  // gRPC has not taken it yet
};

// gRPC asks at each handshake whether there is something newer (its C API has that; its C++ API only polls files, and
// takes them unchecked).
class ReloadingCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingCredentials(std::shared_ptr<TlsCertificates> certificates)
      : certificates_(std::move(certificates)) {
    auto* options = grpc_ssl_server_credentials_create_options_using_config_fetcher(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &Fetch, certificates_->state_.get());
    credentials_ = grpc_ssl_server_credentials_create_with_options(options);
  }
  ~ReloadingCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status Fetch(void* user_data,
                                                         grpc_ssl_server_certificate_config** config) {
    auto& state = *static_cast<TlsCertificates::State*>(user_data);
    const MutexLock lock(state.mutex);
    if (!state.fresh) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{.private_key = state.pem.key.c_str(),
                                          .cert_chain = state.pem.certificate.c_str()};
    *config = grpc_ssl_server_certificate_config_create(state.pem.client_ca.c_str(), &pair, 1);
    state.fresh = false;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  std::shared_ptr<TlsCertificates> certificates_;
  grpc_server_credentials* credentials_;
};

TlsCertificates::TlsCertificates(TlsFiles files)
    : files_(std::move(files)), state_(std::make_unique<State>()) {}
TlsCertificates::~TlsCertificates() = default;

Result<std::shared_ptr<TlsCertificates>> TlsCertificates::Load(const TlsFiles& files) {
  std::shared_ptr<TlsCertificates> certificates(new TlsCertificates(files));
  CLEAT_TRY(certificates->Reload());
  return certificates;
}

Status TlsCertificates::Reload() {
  CLEAT_ASSIGN(auto pem, ReadAndCheck(files_));
  const MutexLock lock(state_->mutex);
  state_->pem = std::move(pem);
  state_->fresh = true;
  return Ok{};
}

std::shared_ptr<grpc::ServerCredentials> TlsCertificates::CredentialsOf(
    std::shared_ptr<TlsCertificates> certificates) {
  return std::make_shared<ReloadingCredentials>(std::move(certificates));
}

}  // namespace cleat::control
