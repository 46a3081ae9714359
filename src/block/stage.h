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
  // A new request. `batch`: a number that only requests of the same queue share which have both times in common.
  void Seen(uint64_t seen_ns, uint64_t fetched_ns, uint64_t batch) {
    if constexpr (!kSight) return;
    at_ns_[static_cast<size_t>(Moment::kSeen)] = seen_ns;
    at_ns_[static_cast<size_t>(Moment::kFetched)] = fetched_ns;
    batch_and_stamps_ = batch << kMoments | kBegun;
  }
  // Of a request that takes several steps (the ranges of a discard) the last one counts.
  void Stamp(Moment moment, uint64_t now_ns) {
    if constexpr (!kSight) return;
    at_ns_[static_cast<size_t>(moment)] = now_ns;
    batch_and_stamps_ |= Bit(moment);
  }
  uint64_t at_ns(Moment moment) const {
    return (batch_and_stamps_ & Bit(moment)) != 0 ? at_ns_[static_cast<size_t>(moment)] : 0;
  }
  // Whether two requests of a queue have all moments in common. One comparison for those of a batch that the storage
  // answered at once.
  bool SameAs(const Moments& other) const {
    return batch_and_stamps_ == other.batch_and_stamps_ &&
           ((batch_and_stamps_ & kStamps) == kBegun || RestEquals(other));
  }

 private:
  static constexpr uint64_t Bit(Moment moment) { return uint64_t{1} << static_cast<uint32_t>(moment); }
  static constexpr uint64_t kBegun = 0b11;  // seen and fetched, as every request is
  static constexpr uint64_t kStamps = (uint64_t{1} << kMoments) - 1;

  bool RestEquals(const Moments& other) const {
    for (size_t i = 2; i < kMoments; ++i) {
      const auto moment = static_cast<Moment>(i);
      if (at_ns(moment) != other.at_ns(moment)) return false;
    }
    return true;
  }

  std::array<uint64_t, kMoments> at_ns_{};  // only what was stamped counts
  uint64_t batch_and_stamps_ = 0;           // a bit each; the batch above them
};

}  // namespace cleat::block
