// SPDX-License-Identifier: Apache-2.0
// What all encrypted disks of an engine share: the implementation of AES-XTS that was chosen at its start, and each I/O
// reactor's pool for encrypted writes. Owned by the engine, beside the reactors.
//
// Life: AddReactor for each I/O reactor before its thread starts (or on it); destroyed after the threads have ended and
// before the reactors, with no disk open. Disks and channels only look things up, from any thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "modules/crypto/bounce_pool.h"
#include "modules/crypto/xts_cipher.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class CryptoHub {
 public:
  // Tests the implementations (a millisecond or so).
  explicit CryptoHub(std::span<const XtsImplementation* const> candidates = XtsImplementations());
  ~CryptoHub();
  CryptoHub(const CryptoHub&) = delete;
  CryptoHub& operator=(const CryptoHub&) = delete;

  // Makes the reactor's pool. An error is kept and given to whoever opens an encrypted disk later, so that an engine
  // without encryption can still serve disks without.
  Status AddReactor(const Reactor& reactor) { return AddReactor(reactor, BouncePool::Limits{}); }
  Status AddReactor(const Reactor& reactor, BouncePool::Limits limits);

  // Ok when encrypted disks can be served on every reactor that was added.
  Status status() const;
  const XtsImplementation& xts() const { return *xts_; }  // when status() is Ok
  BouncePool* Find(const Reactor& reactor) const;         // nullptr when it has none

 private:
  struct Pool {
    const Reactor* reactor;
    std::unique_ptr<BouncePool> pool;
  };
  const XtsImplementation* xts_ = nullptr;
  std::vector<Pool> pools_;
  std::optional<Error> error_;
};

}  // namespace cleat::modules
