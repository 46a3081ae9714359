// SPDX-License-Identifier: Apache-2.0
#include "modules/crypto/crypto_hub.h"

#include <utility>

namespace cleat::modules {

CryptoHub::CryptoHub(std::span<const XtsImplementation* const> candidates) {
  auto chosen = ChooseXts(candidates);
  if (chosen) {
    xts_ = *chosen;
  } else {
    error_ = std::move(chosen).error();
  }
}

CryptoHub::~CryptoHub() = default;

Status CryptoHub::AddReactor(const Reactor& reactor, BouncePool::Limits limits) {
  auto pool = BouncePool::Make(limits);
  if (!pool) {
    error_ = std::move(pool).error();
    return *error_;
  }
  pools_.push_back({&reactor, std::move(pool).value()});
  return Ok{};
}

Status CryptoHub::status() const {
  if (error_) return *error_;
  return Ok{};
}

BouncePool* CryptoHub::Find(const Reactor& reactor) const {
  for (const Pool& pool : pools_) {
    if (pool.reactor == &reactor) return pool.pool.get();
  }
  return nullptr;
}

}  // namespace cleat::modules
