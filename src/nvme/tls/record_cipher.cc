// SPDX-License-Identifier: Apache-2.0
#include "nvme/tls/record_cipher.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::tls {
namespace {

// What a record says that it is to whoever can't decrypt it (RFC 8446, 5.2): data of TLS 1.2.
constexpr uint8_t kOuterType = 23;
constexpr uint8_t kOuterVersion = 3;

const char* CipherOf(Hash hash) {
  return hash == Hash::kSha256 ? "AES-128-GCM" : "AES-256-GCM";
}
size_t KeyBytesOf(Hash hash) {
  return hash == Hash::kSha256 ? 16 : 32;
}

}  // namespace

void RecordCipher::Free::operator()(EVP_CIPHER_CTX* context) const {
  EVP_CIPHER_CTX_free(context);
}

RecordCipher::RecordCipher(Hash hash, keys::Secret secret, Use use)
    : hash_(hash), use_(use), secret_(std::move(secret)), context_(EVP_CIPHER_CTX_new()) {
  EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, CipherOf(hash), nullptr);
  // The handshake has used both before.
  CLEAT_CHECK(context_ != nullptr && cipher != nullptr);
  CLEAT_CHECK(
      EVP_CipherInit_ex2(context_.get(), cipher, nullptr, nullptr, use == Use::kSeal ? 1 : 0, nullptr) == 1);
  EVP_CIPHER_free(cipher);
  SetKeys();
}

RecordCipher::~RecordCipher() = default;

void RecordCipher::SetKeys() {
  const keys::Secret key = ExpandLabel(hash_, secret_, "key", "", KeyBytesOf(hash_));
  nonce_base_ = ExpandLabel(hash_, secret_, "iv", "", kNonceBytes);
  CLEAT_CHECK(EVP_CipherInit_ex2(context_.get(), nullptr, key.bytes().data(), nullptr, -1, nullptr) == 1);
  sequence_ = 0;
}

void RecordCipher::Update() {
  secret_ = ExpandLabel(hash_, secret_, "traffic upd", "", secret_.size());
  SetKeys();
}

// The nonce of the next record, and its header, which is authenticated with it.
void RecordCipher::Begin(std::span<const uint8_t> header) {
  std::array<uint8_t, kNonceBytes> nonce;
  std::copy_n(nonce_base_.bytes().begin(), kNonceBytes, nonce.begin());
  for (size_t i = 0; i < sizeof(sequence_); ++i)
    nonce[kNonceBytes - 1 - i] ^= static_cast<uint8_t>(sequence_ >> (8 * i));
  ++sequence_;
  int done = 0;
  CLEAT_CHECK(EVP_CipherInit_ex2(context_.get(), nullptr, nullptr, nonce.data(), -1, nullptr) == 1);
  CLEAT_CHECK(
      EVP_CipherUpdate(context_.get(), nullptr, &done, header.data(), static_cast<int>(header.size())) == 1);
}

void RecordCipher::Seal(std::span<uint8_t> record, ContentType type) {
  CLEAT_CHECK(use_ == Use::kSeal && record.size() >= kRecordOverheadBytes &&
              record.size() <= kRecordDataBytesMax + kRecordOverheadBytes);
  const size_t payload_bytes = record.size() - kRecordHeaderBytes;
  const std::span<uint8_t> content = record.subspan(kRecordHeaderBytes, payload_bytes - kRecordTagBytes);
  content.back() = static_cast<uint8_t>(type);
  record[0] = kOuterType;
  record[1] = record[2] = kOuterVersion;
  record[3] = static_cast<uint8_t>(payload_bytes >> 8);
  record[4] = static_cast<uint8_t>(payload_bytes);
  Begin(record.first(kRecordHeaderBytes));
  int done = 0;
  CLEAT_CHECK(EVP_CipherUpdate(context_.get(), content.data(), &done, content.data(),
                               static_cast<int>(content.size())) == 1);
  int more = 0;
  CLEAT_CHECK(EVP_CipherFinal_ex(context_.get(), content.data() + done, &more) == 1);
  CLEAT_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kRecordTagBytes,
                                  record.last(kRecordTagBytes).data()) == 1);
}

bool RecordCipher::Open(std::span<uint8_t> record) {
  CLEAT_CHECK(use_ == Use::kOpen && record.size() >= kRecordHeaderBytes + kRecordTagBytes);
  const std::span<uint8_t> content =
      record.subspan(kRecordHeaderBytes, record.size() - kRecordHeaderBytes - kRecordTagBytes);
  Begin(record.first(kRecordHeaderBytes));
  int done = 0;
  CLEAT_CHECK(EVP_CipherUpdate(context_.get(), content.data(), &done, content.data(),
                               static_cast<int>(content.size())) == 1);
  CLEAT_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kRecordTagBytes,
                                  record.last(kRecordTagBytes).data()) == 1);
  int more = 0;
  return EVP_CipherFinal_ex(context_.get(), content.data() + done, &more) == 1;
}

}  // namespace cleat::nvme::tls
