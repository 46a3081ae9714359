// SPDX-License-Identifier: Apache-2.0
// A point in real time after which a wait gives up. Sockets and eventfds are the kernel's, so this time is
// too.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace cleat::perf {

class Deadline {
 public:
  explicit Deadline(uint64_t timeout_ns) : end_ns_(MonotonicClock().NowNs() + timeout_ns) {}

  bool passed() const { return MonotonicClock().NowNs() >= end_ns_; }

  // What is left for poll(2), in whole milliseconds, rounded up; 0 when it has passed.
  int LeftMs() const {
    const uint64_t now_ns = MonotonicClock().NowNs();
    if (now_ns >= end_ns_) return 0;
    const uint64_t left_ms = (end_ns_ - now_ns + kNsPerMs - 1) / kNsPerMs;
    return left_ms > kPollMsMax ? static_cast<int>(kPollMsMax) : static_cast<int>(left_ms);
  }

 private:
  static constexpr uint64_t kPollMsMax = 1'000'000;
  uint64_t end_ns_;
};

}  // namespace cleat::perf
