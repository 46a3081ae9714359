// SPDX-License-Identifier: Apache-2.0
// Writes of several threads that share one durable commit. Whoever comes while nobody writes writes at once; those who
// come meanwhile wait, and the first of them then writes for all. So a call alone takes one commit's time, and a hundred
// at once take two, however long the storage below takes to sync. No thread of its own.
//
// Any thread. Outlives the calls.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"

namespace cleat::control {

template <typename Row>
class GroupCommit {
 public:
  static constexpr size_t kCallsMax = 256;  // of one commit

  // A row is what one call writes, however much that is. All rows are durable when it returns OK, none is there otherwise. Called by one
  // thread at a time.
  using Commit = std::function<Status(std::span<const Row* const> rows)>;
  explicit GroupCommit(Commit commit) : commit_(std::move(commit)) {}

  // Returns when the row is durable, or why its commit failed.
  Status Write(const Row& row) {
    Call call{.row = &row};
    const MutexLock lock(mutex_);
    queue_.push_back(&call);
    if (busy_) {
      while (!call.done && !call.leads) call.turn.Wait(mutex_);
    }
    if (call.done) return std::move(call.status);
    busy_ = true;
    const std::vector<Call*> batch = TakeBatch();
    CommitBatch(batch);
    for (Call* of : batch) {
      of->done = true;
      of->turn.NotifyOne();
    }
    busy_ = !queue_.empty();
    if (busy_) {
      queue_.front()->leads = true;
      queue_.front()->turn.NotifyOne();
    }
    return std::move(call.status);
  }

  // How many wait for the next commit.
  size_t waiting() const {
    const MutexLock lock(mutex_);
    return queue_.size();
  }

 private:
  struct Call {
    const Row* row;
    Status status = {};
    bool done = false;
    bool leads = false;
    CondVar turn = {};
  };

  // With the one who asks: it is the first.
  std::vector<Call*> TakeBatch() CLEAT_REQUIRES(mutex_) {
    std::vector<Call*> batch;
    while (!queue_.empty() && batch.size() < kCallsMax) {
      batch.push_back(queue_.front());
      queue_.pop_front();
    }
    return batch;
  }

  // Without the mutex meanwhile: others come and wait. A row that can't be written, for it is large and the disk almost full, takes none
  // of the others with it.
  void CommitBatch(const std::vector<Call*>& batch) CLEAT_REQUIRES(mutex_) {
    const MutexUnlock unlocked(mutex_);
    std::vector<const Row*> rows;
    for (const Call* of : batch) rows.push_back(of->row);
    Status together = commit_(rows);
    const bool alone = !together.ok() && batch.size() > 1;
    for (size_t i = 0; i < batch.size(); ++i)
      batch[i]->status = alone ? commit_(std::span(&rows[i], 1)) : together;
  }

  const Commit commit_;
  mutable Mutex mutex_;
  std::deque<Call*> queue_ CLEAT_GUARDED_BY(mutex_);  // without those that are being written
  bool busy_ CLEAT_GUARDED_BY(mutex_) = false;        // somebody writes, or was told to
};

}  // namespace cleat::control
