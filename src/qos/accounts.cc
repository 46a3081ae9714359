// SPDX-License-Identifier: Apache-2.0
#include "qos/accounts.h"

#include <algorithm>

namespace cleat::qos {

// A burst of burst_per_second for burst_ms beyond what comes in meanwhile: that much work, as time of the average.
BucketPair BucketsOf(const Rate& rate) {
  BucketPair buckets;
  if (rate.per_second == 0) return buckets;
  buckets.average_price = PriceOf(rate.per_second);
  if (rate.burst_per_second == 0) return buckets;
  buckets.peak_price = PriceOf(rate.burst_per_second);
  const Wide saved = static_cast<Wide>(UnitsOf(rate.burst_ms * kNsPerMs)) *
                     (rate.burst_per_second - rate.per_second) / rate.per_second;
  const uint64_t capped = saved < kSpanUnitsMax ? static_cast<uint64_t>(saved) : kSpanUnitsMax;
  buckets.average_tolerance = std::max(capped, kToleranceUnits);
  return buckets;
}

void SetPrices(Accounts& accounts, const Limits& limits, uint64_t now, const Accounts* fresh) {
  for (size_t meter = 0; meter < kMeters; ++meter) {
    const BucketPair buckets = BucketsOf(limits.rates[meter]);
    const uint64_t prices[2] = {buckets.average_price, buckets.peak_price};
    for (size_t i = 0; i < 2; ++i) {
      const size_t index = AccountOf(static_cast<Meter>(meter)) + i;
      uint64_t begin = now;
      if (fresh != nullptr && fresh->accounts[index].price.load(std::memory_order_relaxed) == prices[i]) {
        begin = fresh->accounts[index].paid_until.load(std::memory_order_relaxed);
      }
      accounts.accounts[index].SetPrice(prices[i], now, begin);
    }
  }
}

std::vector<uint64_t> SaveAccounts(const Accounts& accounts) {
  std::vector<uint64_t> words;
  for (const Account& account : accounts.accounts) {
    words.push_back(account.paid_until.load(std::memory_order_relaxed));
    words.push_back(account.price.load(std::memory_order_relaxed));
  }
  return words;
}

void RestoreAccounts(Accounts& accounts, std::span<const uint64_t> words, uint64_t now) {
  if (words.size() != 2 * kAccounts) return;
  for (size_t i = 0; i < kAccounts; ++i) {
    Account& account = accounts.accounts[i];
    const uint64_t price = account.price.load(std::memory_order_relaxed);
    Account before;
    before.SetPrice(words[2 * i + 1], now, words[2 * i]);
    if (price == 0 || words[2 * i + 1] == 0) continue;
    before.SetPrice(price, now);  // scales what is saved or owed
    account.paid_until.store(before.paid_until.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
}

}  // namespace cleat::qos
