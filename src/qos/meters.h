// SPDX-License-Identifier: Apache-2.0
// The limits of one disk or group as one reactor keeps them: its copy of the rates, and its leases of the shared
// accounts. Only limits that are set are in it, and a request looks only at those that count it.
//
// On one reactor. What it has taken and not used is given back by Close, or with SetLimits.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "qos/accounts.h"
#include "qos/cost.h"
#include "qos/token_bucket.h"

namespace cleat::qos {

// Decides how much a lease takes from the accounts at a time.
struct LeaseDemand {
  // Disks that wait, each for a turn as large as the largest request: with a request of this kind, and all. 0: none, and
  // kLeaseUnits are taken.
  uint64_t waiting_of_kind = 0;
  uint64_t waiting = 0;
  uint64_t bytes = 0;  // of the largest request
};

class Meters {
 public:
  // Ask again at `at` (units), 0 when the request may pass.
  struct Wait {
    uint64_t at = 0;
    bool shared = false;  // for a limit that counts reads and writes
    explicit operator bool() const { return at != 0; }
  };
  // A turn of that many disks must be worth the trouble of taking it.
  static constexpr uint64_t kTurnUnitsMin = UnitsOf(50 * kNsPerUs);

  void SetLimits(const Limits& limits, std::shared_ptr<Accounts> accounts);
  bool any() const { return count_ > 0; }

  // ---- The hot path: whether all limits let it pass, without asking anybody. If so, it is counted.
  bool TryUse(const Cost& cost, uint64_t now) {
    const Range range = ranges_[static_cast<size_t>(cost.kind)];
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const uint64_t units = CostOn(i, cost);
      if (!leases_[i].Covers(units, now)) [[unlikely]] {
        while (i-- > range.begin) leases_[i].Return(CostOn(i, cost));
        return false;
      }
      leases_[i].Use(units);
    }
    return true;
  }

  // Takes more from the accounts where it must. A limit of reads or writes alone is asked first: while it lets nothing
  // pass, nothing is taken from those that others share.
  Wait Take(const Cost& cost, const LeaseDemand& demand, uint64_t now);
  void Return(const Cost& cost);                    // it was used, and then was not needed
  void ChargeDebt(const Cost& cost, uint64_t now);  // passes without asking, and is paid later
  void GiveBackAhead(uint64_t now);                 // nothing waits any more
  // When all that anybody has taken of these limits so far will have been paid for; not before `now`.
  uint64_t PaidUntil(uint64_t now) const;
  void Close() { SetLimits({}, nullptr); }

  // The time that it takes of the limit on which it takes longest.
  uint64_t DearestCost(const Cost& cost) const;

 private:
  struct Range {
    uint8_t begin = 0;
    uint8_t end = 0;
  };
  uint64_t CostOn(uint32_t i, const Cost& cost) const {
    return CostOf((in_bytes_ >> i & 1) != 0 ? cost.bytes : 1, leases_[i].price);
  }
  uint64_t TakeOne(uint32_t i, const Cost& cost, const LeaseDemand& demand, uint64_t now);
  bool IsShared(uint32_t i) const { return i >= shared_.begin && i < shared_.end; }
  void Add(Meter meter, const Limits& limits);

  // In this order: limits of reads, of both, of writes; so each kind has a range. The first 24 bytes are of the cache
  // line of whoever owns this (limited_channel.h), then come the leases, two to a line; most disks have no more.
  std::array<Range, 2> ranges_;  // by Kind
  uint16_t in_bytes_ = 0;        // a bit each: a limit of bytes, not of requests
  Range shared_;                 // what the two ranges have in common
  std::shared_ptr<Accounts> accounts_;
  std::array<Lease, kAccounts> leases_;
  uint8_t count_ = 0;
  std::array<Meter, kAccounts> meter_{};
  std::array<uint8_t, kAccounts> index_{};       // in the accounts
  std::array<bool, kAccounts> behind_others_{};  // of each lease
};

}  // namespace cleat::qos
