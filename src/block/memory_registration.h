// SPDX-License-Identifier: Apache-2.0
// What others were told of a region of memory beforehand: the kernel (io_uring's registered buffers), and RDMA adapters. Only a region whose owner vouches that its
// pages stay the same as long as it is mapped has one: registered pages are the ones that were there, whatever the mapping shows later.
//
// Shared by the region and by those who register it, so that either may end first. Each registrar has a number of its own as long as it lives.
#pragma once

#include <array>
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
  // Registrars of a process at a time: the one for its io_urings, and from kFirstAdapter on one for each RDMA adapter by which disks are reached.
  static constexpr uint32_t kRegistrarsMax = 8;
  static constexpr uint32_t kRings = 0;
  static constexpr uint32_t kFirstAdapter = 1;

  // `owner`: whose memory it is, for messages.
  explicit MemoryRegistration(std::string owner) : owner_(std::move(owner)) {}
  MemoryRegistration(const MemoryRegistration&) = delete;
  MemoryRegistration& operator=(const MemoryRegistration&) = delete;

  const std::string& owner() const { return owner_; }

  // Any thread that keeps the region.
  uint32_t state(uint32_t registrar) const {
    return places_[registrar].state.load(std::memory_order_acquire);
  }
  // True for one caller alone: it is to be registered.
  bool Ask(uint32_t registrar) {
    uint32_t unasked = kUnasked;
    return places_[registrar].state.compare_exchange_strong(unasked, kPlain, std::memory_order_relaxed);
  }

  // Called by the registrar, on a thread that keeps the region; commands may name the places at once. `ended`: called when the region is
  // no more, and nothing that uses it, on whatever thread that is.
  void Publish(uint32_t registrar, uint32_t first_place, std::function<void()> ended) {
    Place& place = places_[registrar];
    CLEAT_CHECK(!place.ended);
    place.ended = std::move(ended);
    place.state.store(first_place + kFirst, std::memory_order_release);
  }
  // Called by the registrar at its own end, on a thread that keeps the region, when no command names the places any more: `ended` is not called, and
  // another registrar may have the number.
  void Withdraw(uint32_t registrar) {
    Place& place = places_[registrar];
    place.ended = nullptr;
    place.state.store(kUnasked, std::memory_order_release);
  }

  // Called by the region, at its end.
  void End() {
    for (const Place& place : places_) {
      if (place.ended) place.ended();
    }
  }

 private:
  const std::string owner_;
  struct Place {
    std::atomic<uint32_t> state{kUnasked};
    std::function<void()> ended;
  };
  std::array<Place, kRegistrarsMax> places_;
};

}  // namespace cleat::block
