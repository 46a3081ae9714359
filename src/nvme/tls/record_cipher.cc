// SPDX-License-Identifier: Apache-2.0
#include "nvme/tls/record_cipher.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "keys/traces.h"

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
    : hash_(hash), use_(use), secret_(std::move(secret)), context_(EVP_CIPHER_CTX_new()) {}

RecordCipher::RecordCipher(RecordCipher&& other) noexcept = default;
RecordCipher::~RecordCipher() = default;

// The handshake has used the cipher before, so that what fails here lacks memory.
Result<RecordCipher> RecordCipher::Make(Hash hash, keys::Secret secret, Use use) {
  RecordCipher made(hash, std::move(secret), use);
  EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, CipherOf(hash), nullptr);
  const bool begun = made.context_ != nullptr && cipher != nullptr &&
                     EVP_CipherInit_ex2(made.context_.get(), cipher, nullptr, nullptr,
                                        use == Use::kSeal ? 1 : 0, nullptr) == 1;
  EVP_CIPHER_free(cipher);
  if (!begun) return auth::NoMemoryForKeys("a TLS connection's cipher");
  CLEAT_TRY(made.SetKeys());
  return made;
}

Status RecordCipher::SetKeys() {
  CLEAT_ASSIGN(const keys::Secret key, ExpandLabel(hash_, secret_, "key", "", KeyBytesOf(hash_)));
  CLEAT_ASSIGN(nonce_base_, ExpandLabel(hash_, secret_, "iv", "", kNonceBytes));
  const bool set = EVP_CipherInit_ex2(context_.get(), nullptr, key.bytes().data(), nullptr, -1, nullptr) == 1;
  keys::WipeTraces();
  if (!set) return auth::NoMemoryForKeys("a TLS connection's keys");
  sequence_ = 0;
  blocks_ = 0;
  return Ok{};
}

Result<RecordCipher> RecordCipher::Next() const {
  CLEAT_ASSIGN(keys::Secret secret, ExpandLabel(hash_, secret_, "traffic upd", "", secret_.size()));
  return Make(hash_, std::move(secret), use_);
}

Result<RecordKeys> RecordCipher::keys() const {
  RecordKeys keys;
  keys.hash = hash_;
  keys.nonce_base = nonce_base_.Copy();
  keys.sequence = sequence_;
  CLEAT_ASSIGN(keys.key, ExpandLabel(hash_, secret_, "key", "", KeyBytesOf(hash_)));
  return keys;
}

// The nonce of the next record, and its header, which is authenticated with it. A block more than the content has makes the tag.
void RecordCipher::Begin(std::span<const uint8_t> header, size_t content_bytes) {
  blocks_ += (content_bytes + kBlockBytes - 1) / kBlockBytes + 1;
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
  Begin(record.first(kRecordHeaderBytes), content.size());
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
  Begin(record.first(kRecordHeaderBytes), content.size());
  int done = 0;
  CLEAT_CHECK(EVP_CipherUpdate(context_.get(), content.data(), &done, content.data(),
                               static_cast<int>(content.size())) == 1);
  CLEAT_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kRecordTagBytes,
                                  record.last(kRecordTagBytes).data()) == 1);
  int more = 0;
  return EVP_CipherFinal_ex(context_.get(), content.data() + done, &more) == 1;
}

}  // namespace cleat::nvme::tls
