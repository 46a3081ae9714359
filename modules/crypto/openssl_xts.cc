// SPDX-License-Identifier: Apache-2.0
#include "modules/crypto/openssl_xts.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "keys/traces.h"

namespace cleat::modules {
namespace {

// What OpenSSL has to say of the last failure of this thread.
std::string TakeReason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "it gives no reason";
}

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
struct FreeCipher {
  void operator()(EVP_CIPHER* cipher) const { EVP_CIPHER_free(cipher); }
};
using EvpContext = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;
using EvpCipher = std::unique_ptr<EVP_CIPHER, FreeCipher>;

constexpr size_t kTweakBytes = 16;

class OpenSslContext final : public XtsContext {
 public:
  OpenSslContext(EvpContext encrypt, EvpContext decrypt, uint32_t unit_bytes)
      : encrypt_(std::move(encrypt)), decrypt_(std::move(decrypt)), unit_bytes_(unit_bytes) {}

  bool Encrypt(const uint8_t* in, uint8_t* out, uint64_t first_sector, uint64_t units) override {
    return Run(
        *encrypt_, in, out, first_sector, units,
        [](EVP_CIPHER_CTX* context, const uint8_t* tweak, uint8_t* to, const uint8_t* from, int bytes) {
          int written = 0;
          return EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, tweak) == 1 &&
                 EVP_EncryptUpdate(context, to, &written, from, bytes) == 1 && written == bytes;
        });
  }
  bool Decrypt(const uint8_t* in, uint8_t* out, uint64_t first_sector, uint64_t units) override {
    return Run(
        *decrypt_, in, out, first_sector, units,
        [](EVP_CIPHER_CTX* context, const uint8_t* tweak, uint8_t* to, const uint8_t* from, int bytes) {
          int written = 0;
          return EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, tweak) == 1 &&
                 EVP_DecryptUpdate(context, to, &written, from, bytes) == 1 && written == bytes;
        });
  }

 private:
  template <typename Unit>
  bool Run(EVP_CIPHER_CTX& context, const uint8_t* in, uint8_t* out, uint64_t sector, uint64_t units,
           Unit unit) {
    static_assert(std::endian::native == std::endian::little);
    std::array<uint8_t, kTweakBytes> tweak{};
    for (; units > 0; --units) {
      std::memcpy(tweak.data(), &sector, sizeof(sector));
      if (!unit(&context, tweak.data(), out, in, static_cast<int>(unit_bytes_))) [[unlikely]] {
        Report();
        return false;
      }
      in += unit_bytes_;
      out += unit_bytes_;
      sector += unit_bytes_ / kSectorBytes;
    }
    return true;
  }
  // Once: whoever asks for the first failing request of a disk finds it just before in the log.
  void Report() {
    const std::string reason = TakeReason();
    if (std::exchange(reported_, true)) return;
    spdlog::error(
        "crypto: a cipher fails that had passed its self-test: {}: {}; its disk's requests fail: check "
        "libcrypto and this host's processor, then detach the disk and attach it again",
        OpenSSL_version(OPENSSL_VERSION), reason);
  }

  bool reported_ = false;
  const EvpContext encrypt_;
  const EvpContext decrypt_;
  const uint32_t unit_bytes_;
};

Error OpenSslError(const char* cipher) {
  return {ErrorCode::kInternal, std::string("OpenSSL has no ") + cipher + " for this key: " + TakeReason()};
}

class Implementation final : public XtsImplementation {
 public:
  const char* name() const override { return OpenSSL_version(OPENSSL_VERSION); }

  Result<std::unique_ptr<XtsContext>> MakeContext(keys::Cipher cipher, uint32_t unit_bytes,
                                                  const keys::Secret& key) const override {
    const EVP_CIPHER* fetched = Fetched(cipher);
    if (fetched == nullptr) return OpenSslError(keys::CipherName(cipher));
    EvpContext encrypt = Keyed(fetched, key, 1);
    EvpContext decrypt = Keyed(fetched, key, 0);
    keys::WipeTraces();
    if (encrypt == nullptr || decrypt == nullptr) return OpenSslError(keys::CipherName(cipher));
    return std::unique_ptr<XtsContext>(
        std::make_unique<OpenSslContext>(std::move(encrypt), std::move(decrypt), unit_bytes));
  }

 private:
  // Once for all disks.
  static const EVP_CIPHER* Fetched(keys::Cipher cipher) {
    static const EvpCipher aes_256(EVP_CIPHER_fetch(nullptr, "AES-256-XTS", nullptr));
    static const EvpCipher aes_128(EVP_CIPHER_fetch(nullptr, "AES-128-XTS", nullptr));
    return (cipher == keys::Cipher::kAes256Xts ? aes_256 : aes_128).get();
  }
  static EvpContext Keyed(const EVP_CIPHER* cipher, const keys::Secret& key, int encrypt) {
    EvpContext context(EVP_CIPHER_CTX_new());
    const std::array<uint8_t, kTweakBytes> tweak{};
    if (context == nullptr ||
        EVP_CipherInit_ex(context.get(), cipher, nullptr, key.bytes().data(), tweak.data(), encrypt) != 1) {
      return nullptr;
    }
    return context;
  }
};

}  // namespace

const XtsImplementation& OpenSslXts() {
  static const Implementation implementation;
  return implementation;
}

}  // namespace cleat::modules
