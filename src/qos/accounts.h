// SPDX-License-Identifier: Apache-2.0
// The shared words of one disk or group: an account for the average and one for the peak of each of its limits. Zero
// bytes are a good beginning. Of a disk it is in the engine's heap, of a group in memory that all engines of the host
// share (group_table.h), where its layout is part of the format.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "qos/limits.h"
#include "qos/token_bucket.h"

namespace cleat::qos {

inline constexpr size_t kAccounts = 2 * kMeters;

// Where a limit's average (per_second) has its account; its peak (burst_per_second) is the next one. Those of reads and
// writes together are on one cache line, as are those of reads, and of writes.
constexpr size_t AccountOf(Meter meter) {
  constexpr size_t kOrder[kMeters] = {0, 2, 4, 1, 3, 5};
  return 2 * kOrder[static_cast<size_t>(meter)];
}

struct alignas(256) Accounts {
  // By AccountOf.
  std::array<Account, kAccounts> accounts;
  // The largest request that was seen waiting lately. Advice: everybody who shares the accounts takes turns of that size.
  std::atomic<uint64_t> turn_bytes{0};
  // Whose slot it is: a hash of the group's name.
  std::atomic<uint64_t> owner{0};
};
static_assert(sizeof(Accounts) == 256);

// The two buckets of a limit, in time. Prices of 0: there is none.
struct BucketPair {
  uint64_t average_price = 0;
  uint64_t average_tolerance = kToleranceUnits;  // with a burst: what may be saved up
  uint64_t peak_price = 0;
};
BucketPair BucketsOf(const Rate& rate);

// Control: the accounts get the prices of these limits, see Account::SetPrice. `fresh`: the accounts whose place these
// take, or nullptr.
void SetPrices(Accounts& accounts, const Limits& limits, uint64_t now, const Accounts* fresh);

// The accounts as plain words, for those of another process on this host to go on from: of each, by AccountOf, until when
// it is paid and its price. Restored into accounts that were not used yet; at another price it is the same amount of
// work. Words of another number are nobody's, and ignored.
std::vector<uint64_t> SaveAccounts(const Accounts& accounts);
void RestoreAccounts(Accounts& accounts, std::span<const uint64_t> words, uint64_t now);

}  // namespace cleat::qos
