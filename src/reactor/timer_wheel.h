// SPDX-License-Identifier: Apache-2.0
// A hierarchical timer wheel: 8 levels of 64 slots, the lowest slot 1,024 ns wide, so deadlines up to 2^58 ns
// (nine years) ahead. Add, cancel and "when is the next one" are O(1) (a 64-bit map of occupied slots a
// level); a timer moves down a level at most 7 times in its life. It never fires early, and at most one
// slot's width late. One thread. Idle timers cost nothing.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "base/intrusive_list.h"

namespace cleat {

inline constexpr uint64_t kNoDeadline = std::numeric_limits<uint64_t>::max();

// Embedded in what waits. Cancelled by its destructor. `fire` may add or cancel any timer, and destroy this
// one.
class Timer {
 public:
  using FireFn = void (*)(Timer&);
  explicit Timer(FireFn fire) : fire_(fire) {}

  bool pending() const { return hook_.linked(); }
  uint64_t deadline_ns() const { return deadline_ns_; }
  void Cancel() { hook_.Unlink(); }  // O(1); nothing when it is not pending

 private:
  friend class TimerWheel;
  ListHook hook_;
  uint64_t deadline_ns_ = 0;
  FireFn fire_;
};

class TimerWheel {
 public:
  explicit TimerWheel(uint64_t now_ns);

  // Not pending before. A deadline in the past fires when the time reaches the next slot.
  void Add(Timer& timer, uint64_t deadline_ns);

  // Fires what is due at `now_ns`, which must not go back. Returns how many fired.
  uint32_t Advance(uint64_t now_ns);

  // A time at or before which nothing fires, and at which Advance makes progress; kNoDeadline when empty. It
  // may be earlier than the first deadline (when that one still has to move down a level).
  uint64_t NextNs() const;

 private:
  static constexpr uint32_t kLevels = 8;
  static constexpr uint32_t kSlotBits = 6;
  static constexpr uint32_t kSlots = 1U << kSlotBits;
  static constexpr uint32_t kTickShift = 10;

  using Slot = IntrusiveList<Timer, &Timer::hook_>;
  struct Level {
    uint64_t occupied = 0;  // bit n: slot n may hold timers (cancelled ones leave the bit behind)
    std::array<Slot, kSlots> slots;
  };

  void Place(Timer& timer);
  uint32_t RunTick(uint64_t tick);

  uint64_t tick_;             // all slots up to this tick were run
  uint64_t quiet_until_ = 0;  // no slot before this tick is occupied
  std::array<Level, kLevels> levels_;
};

}  // namespace cleat
