// SPDX-License-Identifier: Apache-2.0
// What the kernel was told of a region of memory beforehand (io_uring's registered buffers). Only a region whose owner vouches that its pages
// stay the same as long as it is mapped has one: registered pages are the ones that were there, whatever the mapping shows later.
//
// Shared by the region and by who registers it, so that either may end first. One registrar asks for a region in its life.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/check.h"

namespace cleat::block {

class MemoryRegistration {
 public:
  // What state() says. kUnasked: no command needed the region yet. kPlain: it is used unregistered, at least for now. Else: kFirst + its first place.
  static constexpr uint32_t kUnasked = 0;
  static constexpr uint32_t kPlain = 1;
  static constexpr uint32_t kFirst = 2;

  // `owner`: whose memory it is, for messages.
  explicit MemoryRegistration(std::string owner) : owner_(std::move(owner)) {}
  MemoryRegistration(const MemoryRegistration&) = delete;
  MemoryRegistration& operator=(const MemoryRegistration&) = delete;

  const std::string& owner() const { return owner_; }

  // Any thread that keeps the region.
  uint32_t state() const { return state_.load(std::memory_order_acquire); }
  // True for one caller alone: it is to be registered.
  bool Ask() {
    uint32_t unasked = kUnasked;
    return state_.compare_exchange_strong(unasked, kPlain, std::memory_order_relaxed);
  }

  // Called by the registrar, on a thread that keeps the region; commands may name the places at once. `ended`: called when the region is
  // no more, and nothing that uses it, on whatever thread that is.
  void Publish(uint32_t first_place, std::function<void()> ended) {
    CLEAT_CHECK(!ended_);
    ended_ = std::move(ended);
    state_.store(first_place + kFirst, std::memory_order_release);
  }

  // Called by the region, at its end.
  void End() {
    if (ended_) ended_();
  }

 private:
  const std::string owner_;
  std::atomic<uint32_t> state_{kUnasked};
  std::function<void()> ended_;
};

}  // namespace cleat::block
