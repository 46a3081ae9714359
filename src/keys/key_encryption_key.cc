// SPDX-License-Identifier: Apache-2.0
#include "keys/key_encryption_key.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/check.h"
#include "keys/traces.h"

namespace cleat::keys {
namespace {

constexpr std::string_view kIdPurpose = "cleat key-encryption key";

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
struct FreeCipher {
  void operator()(EVP_CIPHER* cipher) const { EVP_CIPHER_free(cipher); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

Error OpenSslError(std::string_view what) {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return {ErrorCode::kInternal,
          std::string(what) + " failed in OpenSSL: " + (reason != nullptr ? reason : "no reason given")};
}

// A context for AES-256 key wrap under `key`.
Result<Context> MakeContext(const Secret& key, Wrapping wrapping, bool wrap) {
  const char* name = wrapping == Wrapping::kPadded ? "AES-256-WRAP-PAD" : "AES-256-WRAP";
  const std::unique_ptr<EVP_CIPHER, FreeCipher> cipher(EVP_CIPHER_fetch(nullptr, name, nullptr));
  Context context(EVP_CIPHER_CTX_new());
  if (cipher == nullptr || context == nullptr) return OpenSslError("AES key wrap");
  EVP_CIPHER_CTX_set_flags(context.get(), EVP_CIPHER_CTX_FLAG_WRAP_ALLOW);
  if (EVP_CipherInit_ex(context.get(), cipher.get(), nullptr, key.bytes().data(), nullptr, wrap ? 1 : 0) !=
      1) {
    return OpenSslError("AES key wrap");
  }
  return context;
}

std::string IdOf(const Secret& bytes) {
  std::array<uint8_t, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  const auto* purpose = reinterpret_cast<const unsigned char*>(kIdPurpose.data());
  CLEAT_CHECK(HMAC(EVP_sha256(), bytes.bytes().data(), static_cast<int>(bytes.size()), purpose,
                   kIdPurpose.size(), digest.data(), &size) != nullptr);
  std::string id;
  WipeTraces();
  for (size_t i = 0; i < kKekIdDigits / 2; ++i) id += fmt::format("{:02x}", digest[i]);
  return id;
}

}  // namespace

Result<Kek> Kek::Make(Secret bytes) {
  if (bytes.size() != kKekBytes) {
    return Error(ErrorCode::kInvalidArgument, "a key-encryption key has " + std::to_string(kKekBytes) +
                                                  " bytes, not " + std::to_string(bytes.size()));
  }
  std::string id = IdOf(bytes);
  return Kek(std::move(bytes), std::move(id));
}

Kek Kek::Random() {
  Secret bytes = Secret::Zeroes(kKekBytes);
  // Without randomness there is nothing that could be done safely.
  CLEAT_CHECK(RAND_priv_bytes(bytes.mutable_bytes().data(), static_cast<int>(kKekBytes)) == 1);
  std::string id = IdOf(bytes);
  return {std::move(bytes), std::move(id)};
}

Result<std::vector<uint8_t>> Kek::Wrap(const Secret& key, Wrapping wrapping) const {
  const size_t bytes = key.size();
  size_t wrapped_bytes = bytes + kWrapExtraBytes;
  if (wrapping == Wrapping::kPadded) {
    if (bytes == 0 || bytes > kPaddedKeyBytesMax) {
      return Error(ErrorCode::kInvalidArgument, "a key of " + std::to_string(bytes) +
                                                    " bytes can't be wrapped: 1 to " +
                                                    std::to_string(kPaddedKeyBytesMax));
    }
    wrapped_bytes = (bytes + 7) / 8 * 8 + kWrapExtraBytes;
  } else if (bytes % 8 != 0 || wrapped_bytes < kWrappedBytesMin || wrapped_bytes > kWrappedBytesMax) {
    return Error(ErrorCode::kInvalidArgument,
                 "a key of " + std::to_string(bytes) + " bytes can't be wrapped: 16 to 64, by steps of 8");
  }
  CLEAT_ASSIGN(auto context, MakeContext(bytes_, wrapping, /*wrap=*/true));
  std::vector<uint8_t> wrapped(wrapped_bytes);
  int written = 0;
  if (EVP_CipherUpdate(context.get(), wrapped.data(), &written, key.bytes().data(),
                       static_cast<int>(bytes)) != 1 ||
      static_cast<size_t>(written) != wrapped.size()) {
    return OpenSslError("AES key wrap");
  }
  WipeTraces();
  return wrapped;
}

Result<Secret> Kek::Unwrap(std::span<const uint8_t> wrapped, std::string_view object,
                           Wrapping wrapping) const {
  const bool padded = wrapping == Wrapping::kPadded;
  const std::string what = padded ? "key" : "data key";
  const size_t bytes_min = padded ? kPaddedWrappedBytesMin : kWrappedBytesMin;
  const size_t bytes_max = padded ? kPaddedWrappedBytesMax : kWrappedBytesMax;
  if (wrapped.size() % 8 != 0 || wrapped.size() < bytes_min || wrapped.size() > bytes_max) {
    return Error(ErrorCode::kInvalidArgument, std::string(object) + ": its wrapped " + what + " has " +
                                                  std::to_string(wrapped.size()) +
                                                  " bytes: a wrapped key is 8 bytes longer than the key" +
                                                  (padded ? ", padded to a multiple of 8" : ""));
  }
  CLEAT_ASSIGN(auto context, MakeContext(bytes_, wrapping, /*wrap=*/false));
  // OpenSSL may use all of the input's length, and wipes what it wrote when the check fails.
  Secret room = Secret::Zeroes(wrapped.size());
  int written = 0;
  const int done = EVP_CipherUpdate(context.get(), room.mutable_bytes().data(), &written, wrapped.data(),
                                    static_cast<int>(wrapped.size()));
  const size_t longest = wrapped.size() - kWrapExtraBytes;
  const size_t shortest = padded ? longest - 7 : longest;
  const auto bytes = static_cast<size_t>(written);
  if (done != 1 || written < 0 || bytes < shortest || bytes > longest) {
    ERR_clear_error();
    return Error(ErrorCode::kDataLoss, std::string(object) + ": its " + what +
                                           " can't be unwrapped with key-encryption key " + id_ +
                                           ": it was wrapped under another key or is damaged");
  }
  return Secret::Copy(room.bytes().first(bytes));
}

bool IsKekId(std::string_view id) {
  return id.size() == kKekIdDigits && std::all_of(id.begin(), id.end(), [](char digit) {
           return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
         });
}

}  // namespace cleat::keys
