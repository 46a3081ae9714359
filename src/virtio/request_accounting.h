// SPDX-License-Identifier: Apache-2.0
// When a queue's requests were seen and fetched, and what they are counted in once they have ended. A batch is what one
// fetch took from the ring; chains that did not fit into it are the backlog, and were seen when that batch was.
//
// Belongs to one RingQueue, on its reactor. Inline, for it is part of each request's way; allocates a Recorder when the
// first request ends that is counted, and frees it by ForgetRecorder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "block/request.h"
#include "observe/recorder.h"

namespace cleat::virtio {

class RequestAccounting {
 public:
  // The reactor's, which outlives the queue. Without: nobody looks at what is in flight, and nothing is counted.
  void UseCounters(observe::ReactorCounters* counters) {
    if (counters != nullptr) counters_ = counters;
  }

  // ---- For the device. A chain's request begins within HandleChain, and ends before the chain is given back; `disk`:
  // nullptr or one that outlives the queue's Publish, see Flush.
  void Began(block::Request& request) const { request.stamps.Seen(seen_ns_, fetched_ns_, batch_); }
  void Ended(observe::DiskCounters* disk, const block::Request& request, observe::OpColumn op, uint64_t bytes,
             bool failed) {
    if (!block::kCountersOn || disk == nullptr) return;
    if (recorder_ == nullptr) [[unlikely]]
      recorder_ = std::make_unique<observe::Recorder>(*counters_);
    recorder_->Ended(*disk, request, op, bytes, failed);
  }
  // What has ended is counted now: its answers were shown to the guest at `used_ns`, or the counters of some disk are about to go.
  void Flush(uint64_t used_ns, uint64_t called_ns) {
    if (recorder_ != nullptr) recorder_->Flush(used_ns, called_ns);
  }

  // ---- For the queue.
  void BeginBatch(uint64_t now_ns) {
    fetched_ns_ = now_ns;
    seen_ns_ = backlog_ > 0 ? backlog_seen_ns_ : fetched_ns_;
    ++batch_;
  }
  // A batch of what is run again has been seen by a predecessor, nobody knows when.
  void BeginReplay(uint64_t now_ns) {
    fetched_ns_ = seen_ns_ = now_ns;
    ++batch_;
  }
  // A chain of the batch was handled.
  void Handled() {
    if (backlog_ > 0 && --backlog_ == 0) [[unlikely]] {
      seen_ns_ = fetched_ns_;
      ++batch_;
    }
  }
  // At the batch's end `left` chains are still in the ring. They have been seen by now; what comes to them is seen when
  // the ring is looked at again.
  void EndBatch(uint32_t left) {
    if (backlog_ == 0) backlog_seen_ns_ = fetched_ns_;
    backlog_ = backlog_ == 0 ? left : std::min(backlog_, left);
  }
  void ForgetBacklog() { backlog_ = 0; }
  void Watch(observe::InFlightSource& source) {
    if (counters_ != nullptr) counters_->Watch(source);
  }
  // Whether requests have ended that Flush would count.
  bool has_ended() const { return recorder_ != nullptr && !recorder_->empty(); }
  void ForgetRecorder() { recorder_.reset(); }

 private:
  observe::ReactorCounters* counters_ = nullptr;
  // Of the chain being handled. Those that did not fit into the last batch had been seen then.
  uint64_t seen_ns_ = 0;
  uint64_t fetched_ns_ = 0;
  uint64_t batch_ = 0;  // counts how often the two have changed
  uint64_t backlog_seen_ns_ = 0;
  uint32_t backlog_ = 0;
  std::unique_ptr<observe::Recorder> recorder_;
};

}  // namespace cleat::virtio
