// SPDX-License-Identifier: Apache-2.0
// A queue that is stopped lets what waits for a limit pass. A guest that makes that happen again and again gets no more
// than its limits and one queue's size for it, and one that was merely paused loses nothing: what tests of both kinds of
// queues expect.
#pragma once

#include <gtest/gtest.h>

#include "limited_rig.h"

namespace cleat::virtio {

inline constexpr uint64_t kIops = 100;
inline constexpr uint64_t kResetNs = 5 * kNsPerMs;  // twice as often as the limits allow requests
inline constexpr uint64_t kStepNs = kNsPerMs;
inline constexpr uint64_t kSeconds = 5;
// The tolerance, and what is too little to be called owed: a request each at that rate.
inline constexpr uint64_t kSlackRequests = 2;

inline void ExpectHeldToLimits(uint64_t done, uint64_t queue_requests) {
  EXPECT_LE(done, kIops * kSeconds + queue_requests + kSlackRequests);
  EXPECT_GE(done, kIops * kSeconds * 9 / 10);  // and it is not starved either
}

class RepeatedReset : public ::testing::TestWithParam<bool> {
 protected:
  LimitedBy by(uint64_t iops) const { return {iops, GetParam()}; }
};

}  // namespace cleat::virtio
