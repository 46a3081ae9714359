// SPDX-License-Identifier: Apache-2.0
#include "qos/meters.h"

#include <algorithm>
#include <utility>

namespace cleat::qos {
namespace {

constexpr bool InBytes(size_t meter) {
  return meter >= static_cast<size_t>(Meter::kBytes);
}

}  // namespace

void Meters::Add(Meter meter, const Limits& limits) {
  const BucketPair buckets = BucketsOf(limits[meter]);
  const auto add = [&](size_t of_pair, uint64_t price, uint64_t tolerance) {
    if (price == 0) return;
    const size_t index = AccountOf(meter) + of_pair;
    const uint64_t empty = accounts_->accounts[index].paid_until.load(std::memory_order_relaxed);
    leases_[count_] = {empty, empty, price, tolerance};
    behind_others_[count_] = false;
    if (InBytes(static_cast<size_t>(meter))) in_bytes_ |= static_cast<uint16_t>(1U << count_);
    index_[count_] = static_cast<uint8_t>(index);
    meter_[count_] = meter;
    ++count_;
  };
  add(0, buckets.average_price, buckets.average_tolerance);
  add(1, buckets.peak_price, kToleranceUnits);
}

void Meters::SetLimits(const Limits& limits, std::shared_ptr<Accounts> accounts) {
  for (uint32_t i = 0; i < count_; ++i) {
    const size_t index = index_[i];
    const BucketPair buckets = BucketsOf(limits[meter_[i]]);
    // In accounts that this moves away from nothing has changed its price.
    const uint64_t new_price = accounts != accounts_ ? leases_[i].price
                               : (index % 2) == 0    ? buckets.average_price
                                                     : buckets.peak_price;
    leases_[i].End(accounts_->accounts[index], new_price);
  }
  accounts_ = std::move(accounts);
  count_ = 0;
  in_bytes_ = 0;
  Add(Meter::kReadIops, limits);
  Add(Meter::kReadBytes, limits);
  shared_.begin = count_;
  Add(Meter::kIops, limits);
  Add(Meter::kBytes, limits);
  shared_.end = count_;
  Add(Meter::kWriteIops, limits);
  Add(Meter::kWriteBytes, limits);
  ranges_[static_cast<size_t>(Kind::kRead)] = {0, shared_.end};
  ranges_[static_cast<size_t>(Kind::kWrite)] = {shared_.begin, count_};
}

uint64_t Meters::TakeOne(uint32_t i, const Cost& cost, const LeaseDemand& demand, uint64_t now) {
  Lease& lease = leases_[i];
  const uint64_t units = CostOn(i, cost);
  if (lease.Covers(units, now)) return 0;
  uint64_t share = kLeaseUnits;
  if (demand.waiting > 0) {
    const uint64_t one = std::max(kTurnUnitsMin, CostOn(i, Cost{demand.bytes}));
    const uint64_t waiting = IsShared(i) ? demand.waiting : demand.waiting_of_kind;
    share = one < kCostUnitsMax / waiting ? one * waiting : kCostUnitsMax;
  }
  return lease.Extend(accounts_->accounts[index_[i]], units, share, now, behind_others_[i]);
}

Meters::Wait Meters::Take(const Cost& cost, const LeaseDemand& demand, uint64_t now) {
  const Range range = ranges_[static_cast<size_t>(cost.kind)];
  for (uint32_t n = 0; n < uint32_t{range.end} - range.begin; ++n) {
    // Reads have their own limits at the beginning, writes at the end.
    const uint32_t i = cost.kind == Kind::kRead ? range.begin + n : range.end - 1 - n;
    const uint64_t at = TakeOne(i, cost, demand, now);
    if (at != 0) return {at, IsShared(i)};
  }
  for (uint32_t i = range.begin; i < range.end; ++i) leases_[i].Use(CostOn(i, cost));
  return {};
}

void Meters::Return(const Cost& cost) {
  const Range range = ranges_[static_cast<size_t>(cost.kind)];
  for (uint32_t i = range.begin; i < range.end; ++i) leases_[i].Return(CostOn(i, cost));
}

void Meters::ChargeDebt(const Cost& cost, uint64_t now) {
  const Range range = ranges_[static_cast<size_t>(cost.kind)];
  for (uint32_t i = range.begin; i < range.end; ++i) {
    accounts_->accounts[index_[i]].ChargeDebt(CostOn(i, cost), leases_[i].tolerance, now);
  }
}

uint64_t Meters::PaidUntil(uint64_t now) const {
  uint64_t latest = now;
  for (uint32_t i = 0; i < count_; ++i) {
    latest = Later(latest, accounts_->accounts[index_[i]].paid_until.load(std::memory_order_relaxed));
  }
  return latest;
}

void Meters::GiveBackAhead(uint64_t now) {
  for (uint32_t i = 0; i < count_; ++i) {
    // What is little is kept for the next request.
    const Lease& lease = leases_[i];
    if (lease.end - lease.paid > kLeaseUnitsMax || Before(now + 2 * kLeaseUnits, lease.end)) {
      leases_[i].End(accounts_->accounts[index_[i]], leases_[i].price);
    }
  }
}

uint64_t Meters::DearestCost(const Cost& cost) const {
  const Range range = ranges_[static_cast<size_t>(cost.kind)];
  uint64_t dearest = 0;
  for (uint32_t i = range.begin; i < range.end; ++i) dearest = std::max(dearest, CostOn(i, cost));
  return dearest;
}

}  // namespace cleat::qos
