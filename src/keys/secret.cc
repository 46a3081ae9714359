// SPDX-License-Identifier: Apache-2.0
#include "keys/secret.h"

#include <openssl/crypto.h>

#include <cstring>

#include "base/check.h"
#include "keys/secret_arena.h"
#include "keys/traces.h"

namespace cleat::keys {

static_assert(kSecretBytesMax <= kSecretBlockBytesMax);

Secret::~Secret() {
  FreeSecret(bytes_);
}

Secret Secret::Zeroes(size_t size_bytes) {
  CLEAT_CHECK(size_bytes <= kSecretBytesMax);
  Secret secret;
  if (size_bytes == 0) return secret;
  secret.bytes_ = static_cast<uint8_t*>(AllocateSecret(size_bytes));
  secret.size_ = size_bytes;
  return secret;
}

Secret Secret::Copy(std::span<const uint8_t> bytes) {
  Secret secret = Zeroes(bytes.size());
  if (!bytes.empty()) std::memcpy(secret.bytes_, bytes.data(), bytes.size());
  WipeTraces();
  return secret;
}

Secret Secret::TakeFrom(std::string& text) {
  Secret secret = Zeroes(text.size());
  if (!text.empty()) std::memcpy(secret.bytes_, text.data(), text.size());
  Wipe(text);
  WipeTraces();
  return secret;
}

bool Secret::operator==(const Secret& other) const {
  return size_ == other.size_ && EqualInConstantTime(bytes(), other.bytes());
}

bool EqualInConstantTime(std::span<const uint8_t> one, std::span<const uint8_t> other) {
  CLEAT_CHECK(one.size() == other.size());
  return one.empty() || CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

void Wipe(std::string& text) {
  text.resize(text.capacity());  // what a longer text left behind its end
  OPENSSL_cleanse(text.data(), text.size());
  text.clear();
}

}  // namespace cleat::keys
