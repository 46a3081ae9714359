// SPDX-License-Identifier: Apache-2.0
// COMPARE AND WRITE for back ends that have none of their own (SBC-4, 5.3: one uninterrupted step). Those of
// one disk happen one after the other, in the order in which they came, whatever reactors they come from:
//
//   lock -> on every channel: hold back new requests that touch the range, wait for those in flight
//        -> read, compare, write -> on every channel: let go -> unlock
//
// While a channel holds back, requests beside the range go on. Nothing of this is on the path of other
// requests but one test of a flag.
//
// A queue of the disk that drains waits for no limits (block::ThrottleControl), neither those of its own requests nor, by
// way of a COMPARE AND WRITE, those of another reactor's. So meanwhile a COMPARE AND WRITE gives way that waits for limits, by way
// of requests that it waits for or with its own read or write: it lets go, nothing was written, and it ends with kAborted, to be
// tried again. One that is aborted itself (Abort) gives way likewise.
//
// One for each pipeline. Started on the reactor of the channel that got the request; the coroutine visits the
// other channels' reactors. A pipeline's channels stay while any of them has a request in flight (the queues
// of all reactors are drained before the first channel closes), so they stay while this runs.
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "block/request.h"
#include "reactor/reactor.h"
#include "reactor/task.h"

namespace cleat::block {

class Channel;
class PipelineChannel;

// What one request may compare; its segments hold twice as much.
inline constexpr uint64_t kCompareAndWriteBytesMax = 64 * 1024;

// The channels of a pipeline, one a reactor. Any thread; a lock that only opening, closing, resizing and
// COMPARE AND WRITE take.
class ChannelRegistry {
 public:
  struct Member {
    Reactor* reactor;
    PipelineChannel* channel;
  };
  void Add(Reactor& reactor, PipelineChannel& channel);
  void Remove(PipelineChannel& channel);
  std::vector<Member> Members() const;

 private:
  mutable Mutex mutex_;
  std::vector<Member> members_ CLEAT_GUARDED_BY(mutex_);
};

class CompareAndWrite {
 public:
  explicit CompareAndWrite(const ChannelRegistry& channels) : channels_(channels) {}

  // On `origin`'s reactor. Ends with origin.FinishExclusive(request, status) there.
  void Start(PipelineChannel& origin, Request& request);

  // A channel begins to bypass its limits, or has ended it. On its reactor; counted.
  void BeginGivingWay();
  void EndGivingWay();
  // Whether the one whose turn it is must wait for no limits.
  bool gives_way() const {
    return giving_way_.load(std::memory_order_acquire) > 0 || aborting_.load(std::memory_order_acquire);
  }
  // On `origin`'s reactor: those of it are not wanted any more; `only`: that one, if it is here. They end later.
  void Abort(const PipelineChannel& origin, const Request* only);

 private:
  // First come, first served, over several reactors. The mutex guards a flag and a list for some
  // instructions, never across a wait.
  class Turn {
   public:
    bool await_ready() const { return false; }
    CLEAT_AWAIT_SUSPEND bool await_suspend(std::coroutine_handle<> awaiting);  // false: it is ours at once
    bool await_resume() const { return !given_up_; }  // false: it never comes, the request was aborted
    Turn(CompareAndWrite& owner, const PipelineChannel& origin, const Request& request)
        : owner_(owner), origin_(&origin), request_(&request) {}

   private:
    friend class CompareAndWrite;
    bool IsFor(const PipelineChannel& origin, const Request* only) const {
      return origin_ == &origin && (only == nullptr || only == request_);
    }
    void GoOn() const {
      reactor_->PostCall([handle = handle_] { handle.resume(); });
    }
    CompareAndWrite& owner_;
    const PipelineChannel* const origin_;
    const Request* const request_;
    Reactor* const reactor_ = Reactor::Current();
    std::coroutine_handle<> handle_;
    bool given_up_ = false;
  };
  // What the one whose turn it is waits for: requests that a channel had before it was held, or a read or write of its own.
  struct Wait {
    ChannelRegistry::Member member;
    const Request* step = nullptr;  // of its own
    bool over = false;              // on the member's reactor; the channel may be gone then
  };

  Task<void> Run(PipelineChannel& origin, Request& request);
  Task<IoStatus> TakeTurn(PipelineChannel& origin, Request& request);
  Task<size_t> HoldAll(const std::vector<ChannelRegistry::Member>& members, const Request& request);
  Task<IoStatus> ReadCompareWrite(PipelineChannel& origin, Request& request);
  Task<IoStatus> DoStep(PipelineChannel& origin, Channel& below, Request& step);
  std::shared_ptr<Wait> BeginWait(const ChannelRegistry::Member& member, const Request* step);
  void GiveWay() CLEAT_REQUIRES(mutex_);
  void EndTurn();

  const ChannelRegistry& channels_;
  Mutex mutex_;
  // Of whose turn it is, and of those that wait for theirs. They live in their coroutines, as long as Run.
  const Turn* present_ CLEAT_GUARDED_BY(mutex_) = nullptr;
  std::deque<Turn*> waiting_ CLEAT_GUARDED_BY(mutex_);
  std::shared_ptr<Wait> wait_ CLEAT_GUARDED_BY(mutex_);  // the latest
  // Changed under the mutex.
  std::atomic<uint32_t> giving_way_{0};
  std::atomic<bool> aborting_{false};  // of the present one
};

}  // namespace cleat::block
