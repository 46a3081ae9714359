// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/io/older_writes.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::nvmf_target {

OlderWrites::~OlderWrites() {
  CLEAT_CHECK(count_.load(std::memory_order_relaxed) == 0);
}

OlderWrites::Writes::iterator OlderWrites::Insert(const Write& write) {
  longest_bytes_ = std::max(longest_bytes_, write.range.end - write.range.begin);
  count_.fetch_add(1, std::memory_order_release);
  return writes_.emplace(write.range.begin, write);
}

OlderWrites::Writes::iterator OlderWrites::Add(const Write& write) {
  const MutexLock lock(mutex_);
  Write numbered = write;
  numbered.number = ++last_number_;
  return Insert(numbered);
}

std::optional<OlderWrites::Writes::iterator> OlderWrites::Hold(const Write& write, Waiter& waiter) {
  const MutexLock lock(mutex_);
  Write newest = write;
  newest.number = UINT64_MAX;
  if (!AnyOlderThan(newest)) return std::nullopt;
  newest.number = ++last_number_;
  waiters_.insert(&waiter);
  return Insert(newest);
}

bool OlderWrites::StillHolds(Writes::iterator place, Waiter& waiter) {
  const MutexLock lock(mutex_);
  if (!AnyOlderThan(place->second)) return false;
  waiters_.insert(&waiter);
  return true;
}

void OlderWrites::End(Writes::iterator place) {
  const MutexLock lock(mutex_);
  place->second.association = nullptr;
}

void OlderWrites::Remove(Writes::iterator place) {
  const MutexLock lock(mutex_);
  writes_.erase(place);
  if (writes_.empty()) longest_bytes_ = 0;
  count_.fetch_sub(1, std::memory_order_release);
  for (Waiter* const waiter : std::exchange(waiters_, {})) waiter->MayGoOn();
}

// Whether one of another association overlaps it.
bool OlderWrites::AnyOlderThan(const Write& write) const {
  const ByteRange& range = write.range;
  const uint64_t first = range.begin > longest_bytes_ ? range.begin - longest_bytes_ : 0;
  for (auto at = writes_.lower_bound(first); at != writes_.end() && at->first < range.end; ++at) {
    const Write& other = at->second;
    const bool is_others = other.association == nullptr || other.association != write.association;
    if (is_others && other.range.end > range.begin && OrderOf(other) < OrderOf(write)) return true;
  }
  return false;
}

}  // namespace cleat::nvmf_target
