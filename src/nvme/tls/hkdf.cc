// SPDX-License-Identifier: Apache-2.0
#include "nvme/tls/hkdf.h"

#include <array>
#include <cstdint>
#include <span>

#include "base/check.h"

namespace cleat::nvme::tls {

using auth::AsBytes;
using auth::BytesOf;
using auth::HmacOf;

// No salt stands for as many zeroes as the hash has bytes.
Result<keys::Secret> Extract(Hash hash, const keys::Secret& key) {
  constexpr std::array<uint8_t, auth::kHashBytesMax> kNoSalt{};
  return HmacOf(hash, std::span(kNoSalt).first(BytesOf(hash)), {key.bytes()});
}

// The output is one block of HKDF-Expand, or the beginning of it.
Result<keys::Secret> ExpandLabel(Hash hash, const keys::Secret& key, std::string_view label,
                                 std::string_view context, size_t size_bytes) {
  constexpr std::string_view kTls = "tls13 ";
  CLEAT_CHECK(context.size() <= kContextBytesMax && size_bytes <= BytesOf(hash));
  const std::array<uint8_t, 3> sizes = {0, static_cast<uint8_t>(size_bytes),
                                        static_cast<uint8_t>(kTls.size() + label.size())};
  const std::array<uint8_t, 1> context_size = {static_cast<uint8_t>(context.size())};
  const std::array<uint8_t, 1> block_number = {1};
  CLEAT_ASSIGN(keys::Secret block,
               HmacOf(hash, key.bytes(),
                      {sizes, AsBytes(kTls), AsBytes(label), context_size, AsBytes(context), block_number}));
  if (size_bytes == block.size()) return block;
  return keys::Secret::Copy(block.bytes().first(size_bytes));
}

}  // namespace cleat::nvme::tls
