// SPDX-License-Identifier: Apache-2.0
// When a request reached which stage of its way: each layer stamps its own as it hands the request on, with its reactor's
// time. Front ends begin with Seen(); what is not on the way (no limits, no encryption, storage that answers at once)
// stays 0. Made into histograms by src/observe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/request_stage.h"

namespace cleat::block {

// Compiled out (CLEAT_COUNTERS=OFF) only to measure what it costs.
#if defined(CLEAT_NO_COUNTERS)
inline constexpr bool kCountersOn = false;
#else
inline constexpr bool kCountersOn = true;
#endif

class StageStamps {
 public:
  // A new request. `batch`: a number that only requests of the same queue share which have both times in common.
  void Seen(uint64_t seen_ns, uint64_t fetched_ns, uint64_t batch) {
    if constexpr (!kCountersOn) return;
    at_ns_[static_cast<size_t>(RequestStage::kSeen)] = seen_ns;
    at_ns_[static_cast<size_t>(RequestStage::kFetched)] = fetched_ns;
    batch_and_stamps_ = batch << kCarriedStages | kBegun;
  }
  // Of a request that takes several steps (the ranges of a discard) the last one counts.
  void Stamp(RequestStage stage, uint64_t now_ns) {
    if constexpr (!kCountersOn) return;
    at_ns_[static_cast<size_t>(stage)] = now_ns;
    batch_and_stamps_ |= Bit(stage);
  }
  uint64_t at_ns(RequestStage stage) const {
    return (batch_and_stamps_ & Bit(stage)) != 0 ? at_ns_[static_cast<size_t>(stage)] : 0;
  }
  // Whether two requests of a queue have all stamps in common. One comparison for those of a batch that the storage
  // answered at once.
  bool SameAs(const StageStamps& other) const {
    return batch_and_stamps_ == other.batch_and_stamps_ &&
           ((batch_and_stamps_ & kStamps) == kBegun || RestEquals(other));
  }

 private:
  static constexpr uint64_t Bit(RequestStage stage) { return uint64_t{1} << static_cast<uint32_t>(stage); }
  static constexpr uint64_t kBegun = 0b11;  // seen and fetched, as every request is
  static constexpr uint64_t kStamps = (uint64_t{1} << kCarriedStages) - 1;

  bool RestEquals(const StageStamps& other) const {
    for (size_t i = 2; i < kCarriedStages; ++i) {
      const auto stage = static_cast<RequestStage>(i);
      if (at_ns(stage) != other.at_ns(stage)) return false;
    }
    return true;
  }

  std::array<uint64_t, kCarriedStages> at_ns_{};  // only what was stamped counts
  uint64_t batch_and_stamps_ = 0;                 // a bit each; the batch above them
};

}  // namespace cleat::block
