// SPDX-License-Identifier: Apache-2.0
// A direction of an established TLS 1.3 connection: makes records of what is sent, or data of records that have come, in place. At a KeyUpdate
// the cipher with the next keys takes its place.
//
// Memory: OpenSSL's context of one cipher. Nothing is allocated for a record. Source: RFC 8446, 5.2, 5.3 and 7.2. One thread at a time.
#pragma once

#include <openssl/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/tls/hkdf.h"

namespace cleat::nvme::tls {

// What the last byte of a record's content says that the content is (RFC 8446, 5.1).
enum class ContentType : uint8_t { kChangeCipherSpec = 20, kAlert = 21, kHandshake = 22, kData = 23 };

inline constexpr size_t kRecordHeaderBytes = 5;
inline constexpr size_t kRecordTagBytes = 16;
// The most data of a record, and the most that a record has behind its header.
inline constexpr size_t kRecordDataBytesMax = 16 * 1024;
inline constexpr size_t kRecordPayloadBytesMax = kRecordDataBytesMax + 256;
// How much longer than its data a record of ours is: header, type, tag.
inline constexpr size_t kRecordOverheadBytes = kRecordHeaderBytes + 1 + kRecordTagBytes;

inline constexpr size_t kBlockBytes = 16;
inline constexpr size_t kNonceBytes = 12;

// What a direction's records are made with from the next one on: for a kernel that is to make them (RFC 8446, 5.3 and 7.3).
struct RecordKeys {
  Hash hash = Hash::kSha256;  // AES-128-GCM, or AES-256-GCM with SHA-384
  keys::Secret key;
  keys::Secret nonce_base;  // kNonceBytes
  uint64_t sequence = 0;
};

class RecordCipher {
 public:
  enum class Use : uint8_t { kSeal, kOpen };

  // `secret`: the direction's first traffic secret, of the hash's size. kResourceExhausted: no memory for keys.
  static Result<RecordCipher> Make(Hash hash, keys::Secret secret, Use use);
  RecordCipher(RecordCipher&& other) noexcept;
  ~RecordCipher();
  RecordCipher(const RecordCipher&) = delete;
  RecordCipher& operator=(const RecordCipher&) = delete;

  // A whole record: the data stands behind the place of the header, and before those of type and tag. All of them are filled in, and the
  // data encrypted.
  void Seal(std::span<uint8_t> record, ContentType type);
  // A whole record, as it has come, of at least header and tag. What is between them is decrypted: data, type, padding. False: that is not
  // what the peer has sent, and means nothing.
  bool Open(std::span<uint8_t> record);
  // A cipher with the keys that follow these (KeyUpdate). This one stays as it is. kResourceExhausted: no memory for keys.
  Result<RecordCipher> Next() const;
  // This cipher's, which stays as it is: whoever goes on with them makes its next record. kResourceExhausted: no memory for keys.
  Result<RecordKeys> keys() const;
  // Blocks of AES, of kBlockBytes, that the present key has been used for.
  uint64_t blocks() const { return blocks_; }

 private:
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const;
  };
  RecordCipher(Hash hash, keys::Secret secret, Use use);
  Status SetKeys();
  void Begin(std::span<const uint8_t> header, size_t content_bytes);

  const Hash hash_;
  const Use use_;
  keys::Secret secret_;
  keys::Secret nonce_base_;
  uint64_t sequence_ = 0;  // of records with these keys
  uint64_t blocks_ = 0;
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
};

}  // namespace cleat::nvme::tls
