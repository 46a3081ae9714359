// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/dh_exchange.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <memory>
#include <string>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::auth {
namespace {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using KeyContext = std::unique_ptr<EVP_PKEY_CTX, Freed<EVP_PKEY_CTX_free>>;
using Number = std::unique_ptr<BIGNUM, Freed<BN_clear_free>>;
using Builder = std::unique_ptr<OSSL_PARAM_BLD, Freed<OSSL_PARAM_BLD_free>>;
using Params = std::unique_ptr<OSSL_PARAM, Freed<OSSL_PARAM_free>>;

// The thread's queue of OpenSSL's errors is emptied: the next one to look there would take these for its own.
Error DhError(DhGroup group, const char* what) {
  ERR_clear_error();
  return {ErrorCode::kInternal,
          std::string("OpenSSL can't ") + what + " for the Diffie-Hellman group " + NameOf(group) +
              ": look whether its configuration (FIPS) allows the group, or leave it out at the target"};
}

Error BadValue(DhGroup group) {
  ERR_clear_error();
  return {ErrorCode::kInvalidArgument,
          std::string("the Diffie-Hellman value is no good one of ") + NameOf(group)};
}

Result<Key> Generate(DhGroup group) {
  const KeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, "DH", nullptr));
  const Builder builder(OSSL_PARAM_BLD_new());
  if (context == nullptr || builder == nullptr ||
      OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, NameOf(group), 0) != 1) {
    return DhError(group, "begin");
  }
  const Params params(OSSL_PARAM_BLD_to_param(builder.get()));
  EVP_PKEY* key = nullptr;
  if (params == nullptr || EVP_PKEY_keygen_init(context.get()) != 1 ||
      EVP_PKEY_CTX_set_params(context.get(), params.get()) != 1 ||
      EVP_PKEY_generate(context.get(), &key) != 1) {
    return DhError(group, "make a key");
  }
  return Key(key);
}

// A public key alone. The number is checked where it is used.
Result<Key> KeyOfPeer(DhGroup group, std::span<const uint8_t> peer) {
  if (peer.empty() || peer.size() > BytesOf(group)) return BadValue(group);
  const KeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, "DH", nullptr));
  const Builder builder(OSSL_PARAM_BLD_new());
  const Number number(BN_bin2bn(peer.data(), static_cast<int>(peer.size()), nullptr));
  if (context == nullptr || builder == nullptr || number == nullptr ||
      OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, NameOf(group), 0) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, number.get()) != 1) {
    return DhError(group, "take a value");
  }
  const Params params(OSSL_PARAM_BLD_to_param(builder.get()));
  EVP_PKEY* key = nullptr;
  if (params == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1) {
    return BadValue(group);
  }
  return Key(key);
}

Result<std::vector<uint8_t>> ValueOf(DhGroup group, const EVP_PKEY* key) {
  BIGNUM* number = nullptr;
  if (EVP_PKEY_get_bn_param(key, OSSL_PKEY_PARAM_PUB_KEY, &number) != 1)
    return DhError(group, "give its value");
  const Number owned(number);
  std::vector<uint8_t> value(BytesOf(group));
  const int written = BN_bn2binpad(number, value.data(), static_cast<int>(value.size()));
  CLEAT_CHECK(written == static_cast<int>(value.size()));
  return value;
}

Result<keys::Secret> DeriveOf(DhGroup group, EVP_PKEY* own, EVP_PKEY* peer) {
  const KeyContext context(EVP_PKEY_CTX_new_from_pkey(nullptr, own, nullptr));
  if (context == nullptr || EVP_PKEY_derive_init(context.get()) != 1) return DhError(group, "begin");
  unsigned pad = 1;
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_uint(OSSL_EXCHANGE_PARAM_PAD, &pad),
                               OSSL_PARAM_construct_end()};
  if (EVP_PKEY_CTX_set_params(context.get(), params) != 1) return DhError(group, "keep leading zeros");
  // 1: whether the value is one of the group, so that the result cannot be one of a few that the peer has chosen.
  if (EVP_PKEY_derive_set_peer_ex(context.get(), peer, 1) != 1) return BadValue(group);
  keys::Secret shared = keys::Secret::Zeroes(BytesOf(group));
  size_t written = shared.size();
  if (EVP_PKEY_derive(context.get(), shared.mutable_bytes().data(), &written) != 1) return BadValue(group);
  CLEAT_CHECK(written == shared.size());
  return shared;
}

}  // namespace

void DhKey::Free::operator()(EVP_PKEY* key) const {
  EVP_PKEY_free(key);
}

Result<DhKey> DhKey::Make(DhGroup group) {
  CLEAT_CHECK(group != DhGroup::kNull);
  CLEAT_ASSIGN(auto key, Generate(group));
  CLEAT_ASSIGN(std::vector<uint8_t> value, ValueOf(group, key.get()));
  return DhKey(group, Key(key.release()), std::move(value));
}

Result<keys::Secret> DhKey::Derive(std::span<const uint8_t> peer) const {
  CLEAT_ASSIGN(const auto other, KeyOfPeer(group_, peer));
  return DeriveOf(group_, key_.get(), other.get());
}

// The peer's value is looked at first: one of the wrong length costs nothing.
Result<DhExchange> ExchangeDh(DhGroup group, std::span<const uint8_t> peer) {
  CLEAT_CHECK(group != DhGroup::kNull);
  CLEAT_ASSIGN(const Key other, KeyOfPeer(group, peer));
  CLEAT_ASSIGN(const Key own, Generate(group));
  DhExchange exchange;
  CLEAT_ASSIGN(exchange.value, ValueOf(group, own.get()));
  CLEAT_ASSIGN(exchange.shared, DeriveOf(group, own.get(), other.get()));
  return exchange;
}

}  // namespace cleat::nvme::auth
