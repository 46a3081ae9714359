// SPDX-License-Identifier: Apache-2.0
// The real time, which a test can set ahead: what waits for a time goes on by itself, and a limit of an hour has passed when
// the test says so, not when the machine is slow.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace cleat::control {

inline constexpr uint64_t kHourNs = 3600 * kNsPerSecond;

class LeapingClock final : public Clock {
 public:
  uint64_t NowNs() const override { return real_.NowNs() + ahead_ns_; }
  void Leap(uint64_t ns) { ahead_ns_ += ns; }  // any thread

 private:
  const MonotonicClock real_;
  std::atomic<uint64_t> ahead_ns_ = 0;
};

}  // namespace cleat::control
