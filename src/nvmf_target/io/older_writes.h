// SPDX-License-Identifier: Apache-2.0
// The writes of one namespace that a newer one may have to wait for, whichever reactor has them: those whose connection has ended while they
// were in the storage, those that have been there for long (WriteOrder::kYoungNs), and those that wait here themselves. A host that has given up a
// path sends its writes again by another one, and newer ones after them: were one of the first path's to land last, it would overwrite what the host
// knows to be newer. So a write is held while an older one of another association overlaps it.
//
// No two wait for each other: a held write waits for older ones alone, and what is in the storage for none.
//
// Any thread. Where there are no such writes, as nearly always, asking costs one load of a line that nobody writes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/mutex.h"

namespace cleat::nvmf_target {

// [begin, end) of a namespace.
struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

class OlderWrites {
 public:
  // The owner of writes that are held, which is told when they may go.
  class Waiter {
   public:
    // Some of them may go, perhaps: it asks again, later. On any thread; within a lock, so that it calls nothing of the writes.
    virtual void MayGoOn() = 0;

   protected:
    ~Waiter() = default;
  };
  struct Write {
    ByteRange range;
    const void* association = nullptr;  // that has sent it; nullptr: its connection has ended
    uint64_t came_ns = 0;               // when it went to the storage, or was held, by its reactor's clock
    uint64_t number = 0;                // tells those of one time apart; given here
  };
  using Writes = std::multimap<uint64_t, Write>;  // by where they begin

  OlderWrites() = default;
  ~OlderWrites();  // none is left
  OlderWrites(const OlderWrites&) = delete;
  OlderWrites& operator=(const OlderWrites&) = delete;

  bool any() const { return count_.load(std::memory_order_acquire) > 0; }
  // A write that is in the storage. The place is for the methods below.
  Writes::iterator Add(const Write& write);
  // A write that has come just now: where it has to wait, it is added as well, and the waiter is told once when that may have changed. nullopt:
  // it may go to the storage.
  std::optional<Writes::iterator> Hold(const Write& write, Waiter& waiter);
  // Whether one that was held has to wait on. It stays here when it goes to the storage.
  bool StillHolds(Writes::iterator place, Waiter& waiter);
  // Its connection has ended: the writes of the same association wait for it, too.
  void End(Writes::iterator place);
  // The write is over.
  void Remove(Writes::iterator place);

  // How many are held, by all reactors.
  uint32_t held() const { return held_.load(std::memory_order_relaxed); }
  void CountHeld(int more) { held_.fetch_add(static_cast<uint32_t>(more), std::memory_order_relaxed); }

 private:
  static std::pair<uint64_t, uint64_t> OrderOf(const Write& write) { return {write.came_ns, write.number}; }
  bool AnyOlderThan(const Write& write) const CLEAT_REQUIRES(mutex_);
  Writes::iterator Insert(const Write& write) CLEAT_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Writes writes_ CLEAT_GUARDED_BY(mutex_);
  uint64_t last_number_ CLEAT_GUARDED_BY(mutex_) = 0;
  uint64_t longest_bytes_ CLEAT_GUARDED_BY(mutex_) = 0;  // of those that are there, or were while any was
  std::set<Waiter*> waiters_ CLEAT_GUARDED_BY(mutex_);
  std::atomic<uint32_t> held_{0};
  alignas(64) std::atomic<uint64_t> count_{0};
};

}  // namespace cleat::nvmf_target
