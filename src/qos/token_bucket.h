// SPDX-License-Identifier: Apache-2.0
// The arithmetic of a limit: the generic cell rate algorithm (virtual scheduling; ITU-T I.371, annex A), i.e. a token
// bucket that is one word of time. docs/qos.md has the mathematics.
//
//   Account  the word, shared by all reactors (and, of a group, all engines): until when the work that was taken so far
//            is paid for. In the past: so much is saved; in the future: so much is owed, or taken in advance.
//   Lease    a reactor's part of it: a stretch of that time, taken from the account in one step and used up request by
//            request without touching shared memory.
//
// Reserve() moves an account on by a stretch; whoever asked may use it when the time has come to its beginning. A
// stretch is thus a ticket as well: those who wait are served in the order in which they asked, wherever they are, and
// the account needs no list of them. Nothing is refilled and nothing walks: what is saved is the distance to the clock.
//
// Any process may die between any two instructions: what is in an account is always valid, and the dead one's stretch
// (at most one for each of its reactors and limits) is lost to everybody.
//
// The unit is 1/64 ns. A request of 512 bytes at 100 GB/s costs 327.68 units, rounded to the nearest: 0.1 % off, and
// proportionally less for dearer ones (at 1,000,000 IOPS less than 1e-5). Nothing else rounds, so nothing drifts.
// Times are compared by the sign of their difference. They wrap after 9 years of the host's uptime, which the
// comparison does not notice; an account that nobody has used for 4.5 years is taken for one in debt. Nothing is owed
// for longer than kSpanUnitsMax, 1.1 years, so that sums stay in between.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/random.h"  // Wide

namespace cleat::qos {

// ---- Time

inline constexpr uint64_t kUnitsPerNs = 64;
constexpr uint64_t UnitsOf(uint64_t ns) {
  return ns * kUnitsPerNs;
}
constexpr uint64_t NsOf(uint64_t units) {  // rounded up
  return units / kUnitsPerNs + (units % kUnitsPerNs != 0 ? 1 : 0);
}
constexpr bool Before(uint64_t a, uint64_t b) {
  return static_cast<int64_t>(a - b) < 0;
}
constexpr uint64_t Later(uint64_t a, uint64_t b) {
  return Before(a, b) ? b : a;
}

// What a limit without a burst forgives: so long may a reactor be late (busy with other disks, or not scheduled by the
// host) without losing any of the rate. As small as that allows, since it is also what a disk that idled may take at
// once: 0.1 % of ten seconds. A request that costs more than it is let pass nevertheless, into debt, so that one is
// always possible.
inline constexpr uint64_t kToleranceUnits = UnitsOf(10 * kNsPerMs);
// The longest saving and debt: 417 days.
inline constexpr uint64_t kSpanUnitsMax = uint64_t{1} << 61;
// The dearest request: 208 days.
inline constexpr uint64_t kCostUnitsMax = uint64_t{1} << 60;
// What a reactor takes ahead when nobody waits: so much at least, a quarter of what is saved, so much at most.
inline constexpr uint64_t kLeaseUnits = UnitsOf(100 * kNsPerUs);
inline constexpr uint64_t kLeaseUnitsMax = UnitsOf(2'500 * kNsPerUs);
// When others are ahead, it is looked after so long (or a quarter of the rest) whether they have given back.
inline constexpr uint64_t kLookAgainUnits = UnitsOf(10 * kNsPerMs);

// ---- Work in time

// More than this is not taken at a time, nor counted of a request.
inline constexpr uint64_t kAmountMax = uint64_t{1} << 33;

// Units that one request, or one byte, takes at that rate; 28 bits behind the point. From 1 to 10^12 a second.
inline constexpr uint32_t kPriceShift = 28;
constexpr uint64_t PriceOf(uint64_t per_second) {
  constexpr Wide kSecond = static_cast<Wide>(UnitsOf(kNsPerSecond)) << kPriceShift;
  return static_cast<uint64_t>((kSecond + per_second / 2) / per_second);
}
// At most kCostUnitsMax: of kAmountMax bytes at 512 a second, or of a request at 1 a second.
constexpr uint64_t CostOf(uint64_t amount, uint64_t price) {
  constexpr Wide kHalf = Wide{1} << (kPriceShift - 1);
  return static_cast<uint64_t>((static_cast<Wide>(amount) * price + kHalf) >> kPriceShift);
}

// ---- The shared word

// All zero: no limit was ever set here. Lock-free; only the word itself is told to others, so the order is relaxed.
struct alignas(16) Account {
  struct Stretch {
    uint64_t begin;
    uint64_t end;
  };

  // Takes a stretch of at least `need` and `share` units, which may be used from its beginning on. Of what is saved no
  // more than `tolerance` counts. When much is saved it takes more, so that the next time is later.
  Stretch Reserve(uint64_t need, uint64_t share, uint64_t tolerance, uint64_t now) {
    uint64_t paid = paid_until.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t begin = Later(paid, now - tolerance);
      const uint64_t saved = Before(begin, now) ? now - begin : 0;
      const uint64_t ahead = std::min(saved / 4, kLeaseUnitsMax);
      const uint64_t end = begin + std::max({need, share, ahead});
      if (paid_until.compare_exchange_weak(paid, end, std::memory_order_relaxed)) return {begin, end};
    }
  }
  // Of what was reserved and not used.
  void GiveBack(uint64_t units) { paid_until.fetch_sub(units, std::memory_order_relaxed); }

  // Work that was not asked for: done at once, paid later.
  void ChargeDebt(uint64_t units, uint64_t tolerance, uint64_t now) {
    uint64_t paid = paid_until.load(std::memory_order_relaxed);
    for (;;) {
      uint64_t end = Later(paid, now - tolerance) + units;
      if (Before(now + kSpanUnitsMax, end)) end = now + kSpanUnitsMax;
      if (paid_until.compare_exchange_weak(paid, end, std::memory_order_relaxed)) return;
    }
  }

  // Any process, in no hurry: from now on a request (a byte) costs `price`; 0: no limit. What is saved or owed stays
  // the same amount of work, i.e. gets longer or shorter with the price; a limit that is new begins with nothing of
  // either (or with `fresh`, of an account that this one takes the place of). Several that set the same price change it
  // once: word and price are exchanged in one step.
  void SetPrice(uint64_t new_price, uint64_t now) { SetPrice(new_price, now, now); }
  void SetPrice(uint64_t new_price, uint64_t now, uint64_t fresh);

  std::atomic<uint64_t> paid_until{0};
  std::atomic<uint64_t> price{0};  // of the last SetPrice; reactors have their own copies
};
static_assert(sizeof(Account) == 16 && std::atomic<uint64_t>::is_always_lock_free);

// `units` of time at one price, as time at another.
uint64_t Rescale(uint64_t units, uint64_t from_price, uint64_t to_price);

// ---- A reactor's part

// On one reactor. Made empty.
struct Lease {
  uint64_t paid = 0;  // what was used of it; the next request may pass from then on
  uint64_t end = 0;   // never before `paid`
  uint64_t price = 0;
  uint64_t tolerance = kToleranceUnits;

  // The hot path: a request of that cost may pass now, and nobody has to be asked. What was taken ahead stays good when
  // it gets older than may be saved: so much, kLeaseUnitsMax at most, may be used on top. Otherwise each request of a
  // disk that uses little of what it may would have to ask.
  bool Covers(uint64_t cost, uint64_t now) const {
    return !Before(now, paid) && static_cast<int64_t>(end - paid - cost) >= 0;
  }
  void Use(uint64_t cost) { paid += cost; }
  // Was used, and then was not needed.
  void Return(uint64_t cost) { paid -= cost; }

  // When it does not: makes it so if the account allows. 0: it does now. Else when to ask again: at the latest when the
  // request may pass. `behind_others` is the lease's too, but not hot: whether stretches of others come before it.
  uint64_t Extend(Account& account, uint64_t cost, uint64_t share, uint64_t now, bool& behind_others) {
    const uint64_t oldest = now - tolerance;
    paid = Later(paid, oldest);
    end = Later(end, paid);
    if (end - paid < cost) {
      Lengthen(account, cost, share, now, behind_others);
    } else if (behind_others && Before(now, paid) &&
               Before(account.paid_until.load(std::memory_order_relaxed), end)) {
      // Another reactor gave back a stretch that may be before this one: to the end of the line, which is nearer now.
      const uint64_t length = end - paid;
      account.GiveBack(length);
      const Account::Stretch stretch = account.Reserve(length, 0, tolerance, now);
      paid = stretch.begin;
      end = stretch.end;
    }
    if (!Before(now, paid)) return 0;
    if (!behind_others) return paid;
    const uint64_t again = now + std::max(kLookAgainUnits, (paid - now) / 4);
    return Before(again, paid) ? again : paid;
  }

  // Leaves nothing behind. `new_price`: of the account, if it was changed meanwhile (0: it is not limited any more).
  void End(Account& account, uint64_t new_price) {
    if (end != paid) {
      account.GiveBack(new_price == 0 || price == 0 ? end - paid : Rescale(end - paid, price, new_price));
    }
    end = paid;
  }

 private:
  // What is left of it goes along with the new stretch; of that, again, nothing is older than may be saved.
  void Lengthen(Account& account, uint64_t cost, uint64_t share, uint64_t now, bool& behind_others) {
    do {
      const uint64_t rest = end - paid;
      const Account::Stretch stretch = account.Reserve(cost - rest, share, tolerance, now);
      behind_others = stretch.begin != end && Before(now, stretch.begin);
      paid = Later(stretch.begin - rest, now - tolerance);
      end = stretch.end;
    } while (end - paid < cost);
  }
};
static_assert(sizeof(Lease) == 32);

}  // namespace cleat::qos
