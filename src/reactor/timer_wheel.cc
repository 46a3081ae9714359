// SPDX-License-Identifier: Apache-2.0
#include "reactor/timer_wheel.h"

#include <algorithm>
#include <bit>

namespace cleat {

TimerWheel::TimerWheel(uint64_t now_ns) : tick_(now_ns >> kTickShift) {}

void TimerWheel::Add(Timer& timer, uint64_t deadline_ns) {
  CLEAT_CHECK(!timer.pending());
  timer.deadline_ns_ = deadline_ns;
  Place(timer);
}

// A timer due in tick t stands on the lowest level on which t and tick_ differ only in that level's digit:
// when the wheel's time reaches the slot, either it is due or it moves down.
void TimerWheel::Place(Timer& timer) {
  constexpr uint64_t kRound = (1U << kTickShift) - 1;
  constexpr uint64_t kReach = (uint64_t{1} << (kLevels * kSlotBits)) - 1;
  uint64_t due = timer.deadline_ns_ > kNoDeadline - kRound ? kNoDeadline >> kTickShift
                                                           : (timer.deadline_ns_ + kRound) >> kTickShift;
  due = std::clamp(due, tick_ + 1, tick_ + kReach / 2);
  const uint32_t highest_bit = 63U - static_cast<uint32_t>(std::countl_zero(due ^ tick_));
  const uint32_t level = std::min(highest_bit / kSlotBits, kLevels - 1);
  const auto slot = static_cast<uint32_t>(due >> (level * kSlotBits)) & (kSlots - 1);
  levels_[level].slots[slot].PushBack(timer);
  levels_[level].occupied |= uint64_t{1} << slot;
  quiet_until_ = std::min(quiet_until_, due >> (level * kSlotBits) << (level * kSlotBits));
}

uint64_t TimerWheel::NextNs() const {
  uint64_t next = kNoDeadline;
  for (uint32_t i = 0; i < kLevels; ++i) {
    if (levels_[i].occupied == 0) continue;
    const uint32_t shift = i * kSlotBits;
    const auto here = static_cast<int>((tick_ >> shift) & (kSlots - 1));
    // The next occupied slot behind the present one, around the wheel.
    const auto ahead = static_cast<uint64_t>(std::countr_zero(std::rotr(levels_[i].occupied, here + 1))) + 1;
    const uint64_t tick = ((tick_ >> shift) + ahead) << shift;
    if (tick <= kNoDeadline >> kTickShift) next = std::min(next, tick << kTickShift);
  }
  return next;
}

uint32_t TimerWheel::Advance(uint64_t now_ns) {
  const uint64_t target = now_ns >> kTickShift;
  if (target < quiet_until_) [[likely]] {
    tick_ = std::max(tick_, target);
    return 0;
  }
  uint32_t fired = 0;
  for (;;) {
    const uint64_t next_ns = NextNs();
    quiet_until_ = next_ns == kNoDeadline ? kNoDeadline : next_ns >> kTickShift;
    if (quiet_until_ > target) break;
    fired += RunTick(quiet_until_);
  }
  tick_ = std::max(tick_, target);
  return fired;
}

uint32_t TimerWheel::RunTick(uint64_t tick) {
  tick_ = tick;
  uint32_t fired = 0;
  // From the top down, so that what comes down from a level is seen by the next.
  for (uint32_t i = kLevels; i-- > 0;) {
    const uint32_t shift = i * kSlotBits;
    if ((tick & ((uint64_t{1} << shift) - 1)) != 0) continue;
    const auto slot = static_cast<uint32_t>(tick >> shift) & (kSlots - 1);
    const uint64_t bit = uint64_t{1} << slot;
    if ((levels_[i].occupied & bit) == 0) continue;
    levels_[i].occupied &= ~bit;
    Slot due;
    due.Splice(levels_[i].slots[slot]);
    while (Timer* timer = due.PopFront()) {
      if (timer->deadline_ns_ > tick << kTickShift) {
        Place(*timer);
      } else {
        ++fired;
        timer->fire_(*timer);
      }
    }
  }
  return fired;
}

}  // namespace cleat
