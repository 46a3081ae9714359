// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/uring_hub.h"

#include <utility>

#include "modules/uring/uring_ring.h"

namespace cleat::modules {

UringHub::UringHub(const IoLifetime* lifetime) : lifetime_(lifetime) {}
UringHub::~UringHub() = default;

Status UringHub::AddReactor(Reactor& reactor) {
  auto ring = UringRing::Make(reactor, lifetime_);
  if (!ring) {
    error_ = ring.error();
    return std::move(ring).error();
  }
  rings_.push_back(std::move(ring).value());
  return Ok{};
}

Status UringHub::status() const {
  if (error_) return *error_;
  return Ok{};
}

UringRing* UringHub::Find(const Reactor& reactor) const {
  for (const auto& ring : rings_) {
    if (&ring->reactor() == &reactor) return ring.get();
  }
  return nullptr;
}

}  // namespace cleat::modules
