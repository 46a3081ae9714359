// SPDX-License-Identifier: Apache-2.0
// When a request passed which point of its way: each layer stamps the moment at which it hands it on, with its reactor's
// time. Front ends begin with Seen(); what is not on the way (no limits, no encryption, storage that answers at once)
// stays 0. Made into histograms by src/observe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace cleat::block {

// Compiled out (CLEAT_SIGHT=OFF) only to measure what it costs.
#if defined(CLEAT_NO_SIGHT)
inline constexpr bool kSight = false;
#else
inline constexpr bool kSight = true;
#endif

enum class Moment : uint8_t {
  kSeen,       // the front end noticed that it is there
  kFetched,    // ... and took it
  kQosOut,     // limits let it pass
  kCryptoOut,  // encrypted
  kSubmitted,  // given to the storage
  kDone,       // answered by the storage
  kCryptoIn,   // decrypted
};
inline constexpr size_t kMoments = 7;

class Moments {
 public:
  // A new request.
  void Seen(uint64_t seen_ns, uint64_t fetched_ns) {
    if constexpr (!kSight) return;
    at_ns_[static_cast<size_t>(Moment::kSeen)] = seen_ns;
    at_ns_[static_cast<size_t>(Moment::kFetched)] = fetched_ns;
    stamped_ = kBegun;
  }
  // Of a request that takes several steps (the ranges of a discard) the last one counts.
  void Stamp(Moment moment, uint64_t now_ns) {
    if constexpr (!kSight) return;
    at_ns_[static_cast<size_t>(moment)] = now_ns;
    stamped_ |= Bit(moment);
  }
  uint64_t at_ns(Moment moment) const {
    return (stamped_ & Bit(moment)) != 0 ? at_ns_[static_cast<size_t>(moment)] : 0;
  }
  bool operator==(const Moments& other) const {
    // One branch for the two that every request has.
    const uint64_t differs =
        (stamped_ ^ other.stamped_) | (at_ns_[0] ^ other.at_ns_[0]) | (at_ns_[1] ^ other.at_ns_[1]);
    return differs == 0 && (stamped_ <= kBegun || RestEquals(other));
  }

 private:
  static constexpr uint32_t Bit(Moment moment) { return 1U << static_cast<uint32_t>(moment); }
  static constexpr uint32_t kBegun = 0b11;  // seen and fetched, as every request is

  bool RestEquals(const Moments& other) const {
    for (size_t i = 2; i < kMoments; ++i) {
      const auto moment = static_cast<Moment>(i);
      if (at_ns(moment) != other.at_ns(moment)) return false;
    }
    return true;
  }

  std::array<uint64_t, kMoments> at_ns_{};  // only what was stamped counts
  uint32_t stamped_ = 0;
};

}  // namespace cleat::block
