// SPDX-License-Identifier: Apache-2.0
#include "engine/secrets/unwrap.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <utility>

namespace cleat::engine {
namespace {

template <typename Parsed>
Result<Parsed> UnwrapOne(keys::Keyring& keyring, const WrappedSecret& secret, const std::string& whose,
                         const char* field) {
  const std::string what = fmt::format("{}: {}", whose, field);
  CLEAT_ASSIGN(const auto text,
               keyring.Unwrap(secret.key_encryption_key, secret.data, what, keys::Wrapping::kPadded));
  return Parsed::Parse({reinterpret_cast<const char*>(text.bytes().data()), text.size()}, what);
}

Result<NvmfKeys> UnwrapAll(keys::Keyring& keyring, const NvmfSecrets& secrets, const std::string& whose) {
  NvmfKeys keys;
  if (secrets.tls_psk.there()) {
    CLEAT_ASSIGN(auto psk, UnwrapOne<nvme::tls::Psk>(keyring, secrets.tls_psk, whose, "tls_psk"));
    keys.psk = std::make_shared<const nvme::tls::Psk>(std::move(psk));
  }
  if (!secrets.dhchap_secret.there()) return keys;
  CLEAT_ASSIGN(auto own,
               UnwrapOne<nvme::auth::ChapSecret>(keyring, secrets.dhchap_secret, whose, "dhchap_secret"));
  nvme::auth::ChapSecrets chap{std::move(own), std::nullopt};
  if (secrets.dhchap_ctrl_secret.there()) {
    CLEAT_ASSIGN(chap.controller, UnwrapOne<nvme::auth::ChapSecret>(keyring, secrets.dhchap_ctrl_secret,
                                                                    whose, "dhchap_ctrl_secret"));
  }
  keys.chap = std::make_shared<const nvme::auth::ChapSecrets>(std::move(chap));
  return keys;
}

}  // namespace

Task<Result<NvmfKeys>> Unwrap(const NvmfSecrets& secrets, std::string whose, keys::Keyring& keyring,
                              BlockingPool& blocking) {
  const std::function<Result<NvmfKeys>()> unwrap = [&] { return UnwrapAll(keyring, secrets, whose); };
  co_return co_await blocking.Run<Result<NvmfKeys>>(unwrap);
}

}  // namespace cleat::engine
