// SPDX-License-Identifier: Apache-2.0
#include "keys/data_key.h"

#include <string>

#include "keys/secret.h"

namespace cleat::keys {

const char* CipherName(Cipher cipher) {
  return cipher == Cipher::kAes256Xts ? "AES-256-XTS" : "AES-128-XTS";
}

size_t DataKeyBytes(Cipher cipher) {
  return cipher == Cipher::kAes256Xts ? 64 : 32;
}

Status CheckDataKey(Cipher cipher, std::span<const uint8_t> key, std::string_view object) {
  const size_t wanted = DataKeyBytes(cipher);
  if (key.size() != wanted) {
    return Error(ErrorCode::kInvalidArgument, std::string(object) + ": its data key has " +
                                                  std::to_string(key.size()) + " bytes, " +
                                                  CipherName(cipher) + " takes " + std::to_string(wanted) +
                                                  ": two keys of " + std::to_string(wanted / 2));
  }
  if (EqualInConstantTime(key.first(wanted / 2), key.subspan(wanted / 2))) {
    return Error(ErrorCode::kInvalidArgument,
                 std::string(object) +
                     ": the two halves of its data key are the same, which XTS forbids: draw " +
                     std::to_string(wanted) + " random bytes");
  }
  return Ok{};
}

}  // namespace cleat::keys
