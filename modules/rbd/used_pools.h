// SPDX-License-Identifier: Apache-2.0
// The pools that a client's images are in, those for their data included: that one of them is full concerns somebody here. Each image
// holds a Use of each of its pools, from before it is opened, which waits when its pool is full, until it is closed or can't be opened.
//
// Owned by the client's connection and by each Use. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"

namespace cleat::modules {

class UsedPools : public std::enable_shared_from_this<UsedPools> {
 public:
  // Given back when it goes. One thread at a time.
  class Use {
   public:
    ~Use() {
      if (pools_ != nullptr) pools_->Remove(pool_);
    }
    Use(Use&& other) noexcept = default;
    Use& operator=(Use&&) = delete;
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    friend class UsedPools;
    Use(std::shared_ptr<UsedPools> pools, std::string pool)
        : pools_(std::move(pools)), pool_(std::move(pool)) {}
    std::shared_ptr<UsedPools> pools_;  // nullptr: another one has it now
    std::string pool_;
  };

  Use Add(const std::string& pool) {
    const MutexLock lock(mutex_);
    ++uses_[pool];
    return {shared_from_this(), pool};
  }
  std::set<std::string> Copy() const {
    const MutexLock lock(mutex_);
    std::set<std::string> pools;
    for (const auto& [pool, uses] : uses_) pools.insert(pool);
    return pools;
  }

 private:
  void Remove(const std::string& pool) {
    const MutexLock lock(mutex_);
    const auto use = uses_.find(pool);
    CLEAT_CHECK(use != uses_.end());
    if (--use->second == 0) uses_.erase(use);
  }

  mutable Mutex mutex_;
  std::map<std::string, uint32_t> uses_ CLEAT_GUARDED_BY(mutex_);  // of each pool; none is 0
};

}  // namespace cleat::modules
