// SPDX-License-Identifier: Apache-2.0
// Time is passed in, never reached for: code that wants to know it takes a Clock, so that a test can run it
// in virtual time. All times are nanoseconds since an arbitrary start (CLOCK_MONOTONIC for the real one).
#pragma once

#include <cstdint>

#include "base/check.h"

namespace cleat {

inline constexpr uint64_t kNsPerUs = 1'000;
inline constexpr uint64_t kNsPerMs = 1'000'000;
inline constexpr uint64_t kNsPerSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t NowNs() const = 0;  // any thread
};

class MonotonicClock final : public Clock {
 public:
  uint64_t NowNs() const override;
};

// Stands still until it is told to advance. One thread.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(uint64_t start_ns = kNsPerSecond) : now_ns_(start_ns) {}
  uint64_t NowNs() const override { return now_ns_; }
  void AdvanceTo(uint64_t now_ns) {
    CLEAT_CHECK(now_ns >= now_ns_);
    now_ns_ = now_ns;
  }
  void AdvanceBy(uint64_t delta_ns) { now_ns_ += delta_ns; }

 private:
  uint64_t now_ns_;
};

// The wall clock's time, for people and for what lasts longer than a process.
uint64_t SecondsSince1970();

}  // namespace cleat
