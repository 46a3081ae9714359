// SPDX-License-Identifier: Apache-2.0
// A disk as the front ends see it: the stack of devices, and the entrance that checks every request before
// any layer sees it - range, alignment, access, what the disk can do. Layers below rely on these checks.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "block/compare_and_write.h"
#include "block/device.h"
#include "block/space_wait.h"
#include "reactor/sync.h"

namespace cleat::block {

// A FailureListener hears that the storage fails requests, or has no space for them. On the channel's reactor.
class FailureListener {
 public:
  // Before the front end hears of it. Not of what the entrance refused, nor of what was aborted.
  virtual void Failed(const Request& request) = 0;
  // So many requests wait for space (space_wait.h), whenever that changes.
  virtual void WaitForSpace(uint32_t requests) = 0;

 protected:
  ~FailureListener() = default;
};

// A front end says which of its requests may wait for space: not those that it has aborted, nor those of a queue that drains. On the
// channel's reactor.
class FrontEnd {
 public:
  // `request` is with the entrance, and its topmost frame the front end's.
  virtual bool MayWait(const Request& request) const = 0;

 protected:
  ~FrontEnd() = default;
};

// On one reactor. Counts what is in flight, so that a queue can be drained.
class PipelineChannel {
 public:
  // Without a pipeline around it a channel has no COMPARE AND WRITE (kUnsupported).
  PipelineChannel(const Geometry& geometry, AccessMode mode, std::unique_ptr<Channel> top)
      : PipelineChannel(geometry, mode, std::move(top), nullptr, nullptr, nullptr) {}
  ~PipelineChannel();  // nothing in flight

  const Geometry& geometry() const { return geometry_; }
  AccessMode mode() const { return mode_; }
  uint64_t in_flight() const { return in_flight_[0] + in_flight_[1] + parked_; }
  // On its reactor, with nothing in flight. `listener` outlives the channel, or is taken back (nullptr).
  void SetFailureListener(FailureListener* listener) { failures_ = listener; }
  // The front end, which has nothing in flight, or is the one that the channel has already. nullptr: every request may wait while no
  // queue drains.
  void SetFrontEnd(const FrontEnd* front_end) { front_end_ = front_end; }

  // `request` has the front end's frame pushed. A request that fails a check is completed at once with
  // kInvalid, kReadOnly or kUnsupported. A read or write of length 0 succeeds without going further.
  void Submit(Request& request);

  // A hint to the storage, which may take none. The address is the guest's, and anything.
  bool wants_prefetch() const { return wants_prefetch_; }
  void Prefetch(Op op, uint64_t offset_bytes) {
    if (offset_bytes < geometry_.size_bytes) top_->Prefetch(op, offset_bytes);
  }

  // ---- For those who want what is in flight to end soon (Channel::AbortQueued, ThrottleControl). Requests may be completed before
  // this returns.
  void AbortQueued(const Request* only);
  // Counted: several queues of a disk may be stopped at a time. Has EndWaits in it.
  void BeginBypass();
  void EndBypass();
  // Fails the requests that wait for space and may not any more (FrontEnd).
  void EndWaits() {
    if (space_wait_.any()) FailWaiting(/*all=*/false);
  }
  uint64_t throttle_debt_until_ns() const { return throttle_ == nullptr ? 0 : throttle_->DebtUntilNs(); }

  // ---- For CompareAndWrite, one at a time.
  // Holds back what touches the range from now on, until LetGo. True: nothing that was submitted before is in flight any
  // more. False: some of it waits for limits, and must not be waited for (GiveWay).
  Task<bool> Hold(uint64_t offset_bytes, uint64_t length_bytes);
  void LetGo();
  // Hold goes on with false if what it waits for waits for limits, or will; `step`, one of CompareAndWrite's own, is taken back
  // if it waits for them.
  void GiveWay(const Request* step);
  // Past the checks and what is held back. A request that is tried again has paid the limits already.
  Channel& below(const Request& request) { return space_wait_.tries_again(request) ? unlimited_ : *top_; }
  void FinishExclusive(Request& request, IoStatus status);

 private:
  friend class Pipeline;
  friend class SpaceWait;
  PipelineChannel(const Geometry& geometry, AccessMode mode, std::unique_ptr<Channel> top,
                  ChannelRegistry* registry, CompareAndWrite* compare_and_write,
                  std::shared_ptr<const std::atomic<bool>> waits_for_space);
  IoStatus Check(const Request& request) const;
  bool IsPlain(const Request& request) const;
  void SubmitChecked(Request& request);
  bool Holds(const Request& request) const;
  Task<bool> WaitForOldEpoch();
  void WithdrawHeld(const Request* only, RequestList& out);
  void SubmitRarely(Request& request);
  void Forward(Request& request);
  void SetGeometry(const Geometry& geometry);
  static void Done(Request& request, const Frame& frame);
  void CompleteFailed(Request& request);
  void AnswerFailed(Request& request);
  // ---- For SpaceWait
  bool MayWait(const Request& request) const;
  bool HeldBack(const Request& request) const { return holding_ && Holds(request); }
  void Retry(Request& request);
  void FailWaiting(bool all);
  void WaitingChanged(uint32_t requests) const;
  static void RetryDone(Request& request, const Frame& frame);

  Geometry geometry_;
  uint64_t transfer_max_bytes_;  // of this disk: kTransferBytesMax, or its size
  const AccessMode mode_;
  const bool wants_prefetch_;
  // A request is counted in the epoch in which it was submitted. Hold begins a new one; the old one's count
  // can then only fall. A Hold that gives way leaves some behind, for which the next one waits first.
  uint32_t epoch_ = 0;
  bool holding_ = false;
  std::array<uint64_t, 2> in_flight_{};
  uint64_t parked_ = 0;  // held back, a COMPARE AND WRITE, or waiting for space
  uint32_t bypass_ = 0;
  uint64_t hold_offset_bytes_ = 0;
  uint64_t hold_length_bytes_ = 0;
  RequestList held_;
  Event* drained_ = nullptr;
  std::unique_ptr<Channel> top_;
  Channel& unlimited_;               // of the stack, below its limits
  ThrottleControl* const throttle_;  // of the stack; nullptr: nothing limits it
  ChannelRegistry* const registry_;
  CompareAndWrite* const compare_and_write_;
  FailureListener* failures_ = nullptr;
  const FrontEnd* front_end_ = nullptr;
  SpaceWait space_wait_;
};

// On the control reactor. Owns the stack.
class Pipeline {
 public:
  // Refuses a stack that needs more frames than a request has (two are kept for the front end and this
  // entrance); `top`, which is closed by whoever opened it, is left alone then.
  static Result<std::unique_ptr<Pipeline>> Make(std::unique_ptr<Device>&& top, AccessMode mode);
  ~Pipeline();

  const std::string& name() const { return top_->name(); }
  const Geometry& geometry() const { return top_->geometry(); }
  AccessMode mode() const { return mode_; }
  Device& device() { return *top_; }

  Result<std::unique_ptr<PipelineChannel>> OpenChannel(Reactor& reactor);  // on `reactor`
  Task<Status> Acquire() { return top_->Acquire(mode_); }
  Task<Status> Release() { return top_->Release(); }
  // Whether writes wait while the storage has no space for them, rather than fail. Any thread, at any time; what waits when
  // that ends hears of it within SpaceWait::kRetryNs.
  void SetWaitsForSpace(bool waits) { waits_for_space_->store(waits, std::memory_order_relaxed); }
  // Gives a disk of a pool more of its drive, before Resize: Device::Extend.
  Task<Status> Extend(const std::vector<pool::ExtentRun>& extents) { return top_->Extend(extents); }
  // Grows the disk: the devices first, then every channel on its reactor. Only a size above the present one
  // is an error-free request; back on control when it has taken effect. On an error nothing has changed.
  Task<Status> Resize(uint64_t size_bytes);
  Task<Status> Close();  // every channel is gone

 private:
  Pipeline(std::unique_ptr<Device> top, AccessMode mode) : top_(std::move(top)), mode_(mode) {}
  std::unique_ptr<Device> top_;
  const AccessMode mode_;
  ChannelRegistry channels_;
  CompareAndWrite compare_and_write_{channels_};
  const std::shared_ptr<std::atomic<bool>> waits_for_space_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace cleat::block
