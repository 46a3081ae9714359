// SPDX-License-Identifier: Apache-2.0
// From which size on it is worth it for one connection to let the kernel send data from where it is (MSG_ZEROCOPY) in place of a copy. That costs
// another system call, the pinning of pages, and a notification when the kernel is through with them; a copy costs by the byte. Which is cheaper
// depends on the machine, on its network card, and on how busy its memory is. So each connection tries both, on its first large sends and on one
// now and then, and goes by what they have cost. Where the kernel copies all the same, as it does on loopback, or refuses, zero copy is left alone
// for a while.
//
// Pure: time is passed in. One thread.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "base/random.h"

namespace cleat::nvmf_target {

class ZeroCopyChoice {
 public:
  static constexpr uint32_t kLeastBytes = 16 * 1024;  // below that it is not tried
  static constexpr uint32_t kNever = UINT32_MAX;
  static constexpr uint32_t kTrialsAtFirst = 64;
  static constexpr uint64_t kTrialNs = 10 * kNsPerMs;  // from one trial to the next, once those are over
  static constexpr uint64_t kForgetNs =
      5 * kNsPerSecond;                       // what is known of a size of which nothing was tried meanwhile
  static constexpr uint32_t kInVainMost = 4;  // in a row
  static constexpr uint64_t kPauseNs = 10 * kNsPerSecond;
  static constexpr uint64_t kPauseMaxNs = 640 * kNsPerSecond;

  enum class Way : uint8_t { kCopy, kZeroCopy };

  // From which size on the next data is to be sent by itself, in the way that WayOf says.
  uint32_t AloneFrom(uint64_t now_ns) {
    if (trials_left_ == 0 && now_ns >= next_trial_ns_) [[unlikely]]
      trials_left_ = 1;
    return trials_left_ > 0 ? kLeastBytes : from_bytes_;
  }
  Way WayOf(uint32_t bytes) const;
  // Whether the next send of data by itself is a trial, whose cost Tried is to be told.
  bool tries() const { return trials_left_ > 0; }
  // A trial has sent `bytes`. `cost_ns`: the time that it took the thread; for zero copy with the system call that sent the header before.
  void Tried(Way way, uint32_t bytes, uint64_t cost_ns, uint64_t now_ns);
  // The kernel has said that `sends` without a copy are over, one at least, and that it has copied the data of `copied` of them all the same.
  // `cost_ns`: the time that it took to hear that.
  void Notified(uint32_t sends, uint32_t copied, uint64_t cost_ns, uint64_t now_ns);
  // The kernel has not taken such a send, for want of memory that it may lock.
  void Refused(uint64_t now_ns) { InVain(now_ns); }
  // The size from which on zero copy was found to be cheaper. kNever: for no size, or nothing is known yet.
  uint32_t from_bytes() const { return from_bytes_; }

 private:
  static constexpr uint32_t kClasses = 7;  // by size: 16 KiB, 32 KiB, ... 1 MiB
  static constexpr uint32_t kSamplesLeast = 8;
  // An average, of which a new sample is an eighth. A sample that an interrupt or another thread has made much dearer counts as one of twice the
  // average.
  struct Cost {
    uint64_t scaled = 0;  // by kScale
    uint32_t samples = 0;
    void Add(uint64_t sample);
  };
  static constexpr uint64_t kScale = 64;
  struct Class {
    std::array<Cost, 2> by_way;  // nanoseconds a KiB
    uint64_t tried_ns = 0;
  };
  static uint32_t ClassOf(uint32_t bytes);
  void Learn(uint64_t now_ns);
  void InVain(uint64_t now_ns);

  std::array<Class, kClasses> classes_;
  Cost notification_;  // nanoseconds a send
  uint32_t from_bytes_ = kNever;
  uint32_t trials_left_ = kTrialsAtFirst;
  Way trial_way_ = Way::kCopy;
  Random random_{1};
  uint32_t in_vain_ = 0;          // in a row
  uint64_t paused_until_ns_ = 0;  // 0: no pause has begun since zero copy was last of use
  uint64_t next_trial_ns_ = 0;
  uint64_t pause_ns_ = kPauseNs;
};

}  // namespace cleat::nvmf_target
