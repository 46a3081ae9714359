// SPDX-License-Identifier: Apache-2.0
// What the queues of all devices have in common: serving a ring. It fetches chains in batches and hands them
// to the device (HandleChain), gives them back (Complete), publishes and notifies once a batch, keeps the
// in-flight log and the dirty log, holds guest memory for what is in flight, starts, stops and drains.
//
// A ring that starts with an in-flight log in which requests are in flight runs these again (HandleReplayed), in the
// order in which they were fetched, before it fetches anything; they stay in the log until they are given back. A queue
// that is stopped meanwhile has run all of them again before it drains: the front end is told that nothing is left. A queue that
// is stopped for a successor may leave some in the log (LeaveToSuccessor).
//
// States:  stopped --Start--> running --Stop--> draining --last request given back--> stopped
//          draining --Resume--> running
//          running, but held: fetches nothing yet (hold_until_ns)
//          running, but broken: fetches nothing more, still gives back; Stop and Start make it whole.
//
// When used chains are shown to the guest:
//   - given back within Poll (the storage answered at once): after every few (kReadAhead), so that a guest that polls
//     works on them meanwhile, and at the end of that Poll, with one notification for all of them;
//   - given back at another time while running: in the next Poll, which is at most a turn of the reactor
//     away; an armed queue is activated for it. One index update and one notification for all that came in
//     the meantime;
//   - while draining: at once; the queue is not polled any more.
//
// A ring is split or packed, as negotiated: both are members, and each use is a branch that always goes the same way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "observe/reactor_counters.h"
#include "reactor/reactor.h"
#include "virtio/chain.h"
#include "virtio/device_queue.h"
#include "virtio/dirty_log.h"
#include "virtio/inflight_log.h"
#include "virtio/memory_epochs.h"
#include "virtio/packed_inflight_log.h"
#include "virtio/packed_ring.h"
#include "virtio/request_accounting.h"
#include "virtio/split_ring.h"

namespace cleat::virtio {

class RingQueue : public DeviceQueue, public observe::InFlightSource {
 public:
  static constexpr uint64_t kTrimAfterNs = kNsPerSecond;
  // A held queue looks so often whether it still has to be: limits may have been lifted.
  static constexpr uint64_t kHoldPollNs = 100 * kNsPerMs;
  // Chains that one Poll fetches at most, so that a busy queue lets others have their turn.
  static constexpr uint32_t kFetchBatchMax = 64;
  // ... and when what it has fetched is so much, it fetches no more: storage that answers at once copies it all.
  static constexpr uint64_t kFetchBytesMax = 4 << 20;
  // So many chains are read ahead of the one that is handled, so that what they point to is on its way from the guest's
  // core's cache in the meantime.
  static constexpr uint32_t kReadAhead = 8;
  // So many chains before it is handled, the storage is told of a request (Prefetch).
  static constexpr uint32_t kPrefetchAhead = 4;
  // So many chains before it is read, a chain's descriptor and then its table come into this core's cache.
  static constexpr uint32_t kTableAhead = 6;
  static constexpr uint32_t kDescriptorAhead = 12;

  ~RingQueue() override;

  void Start(const QueueSetup& setup, BrokenFn on_broken) final;
  void Stop(std::function<void()> on_drained) final;
  void LeaveToSuccessor() final { leaving_ = true; }
  void Resume() final;
  void SetMemory(std::shared_ptr<const block::MemoryMap> memory, const RingMemory& ring) final;
  void SetNotifier(Notifier* notifier) final;
  void SetDirtyLog(const DirtyLogMemory& dirty_log) final;
  uint32_t next_available() const final {
    return packed_ ? packed_ring_.next_available() : split_ring_.next_available();
  }
  uint32_t in_flight() const final { return in_flight_; }

  bool Poll() final;
  void Hint(bool near) final;
  bool Arm() final;
  void Disarm() final;

  // ---- observe::InFlightSource
  bool any_in_flight() const final { return in_flight_ > 0; }
  void VisitInFlight(observe::InFlightVisitor& /*visitor*/) override {
  }  // control and event queues: nothing to tell

 protected:
  // What identifies a chain that was taken from the ring, until it is given back.
  struct Ticket {
    MemoryEpoch* epoch = nullptr;  // whose map the chain's segments are of
    uint16_t head = 0;
  };

  explicit RingQueue(Reactor& reactor) : reactor_(reactor) {}

  // For the device: which requests have begun and ended, and who looks at what is in flight.
  RequestAccounting& accounting() { return accounting_; }

  // Takes the chain until Complete(ticket), possibly called before this returns. `chain` is gone afterwards, its
  // segments' memory is not. A device that has no way to answer it calls Abandon instead.
  virtual void HandleChain(const Chain& chain, Ticket ticket) = 0;
  // A chain that was taken by a predecessor which did not live to give it back: what it asks for may have been done, in
  // part, or not at all. `tag`: of the disk that it was submitted to (DiskIdentity), which has to be the disk that it
  // goes to now; 0: it was not yet, or nobody knows.
  virtual void HandleReplayed(const Chain& chain, Ticket ticket, uint32_t /*tag*/) {
    HandleChain(chain, ticket);
  }
  // For a device with several disks, before it submits a request: which one it is for.
  void NoteDisk(uint16_t head, uint32_t tag) {
    if (packed_) {
      packed_inflight_log_.SubmittedTo(head, tag);
    } else {
      inflight_log_.SubmittedTo(head, tag);
    }
  }
  // For a device whose storage takes hints (UsePrefetch): the chain will be handled a few chains later, and its header
  // should be in the cache by now.
  virtual void Prefetch(const Chain& /*chain*/) const {}
  void UsePrefetch(bool use) { prefetches_ = use; }
  // No request was in flight or waiting for kTrimAfterNs: memory that was kept for speed may go.
  virtual void Trim() {}
  // `on`: the queue drains, and its requests must not wait for limits any more (block::ThrottleControl); false: it has
  // drained. Requests may be completed, and the queue be gone, before it returns.
  virtual void BypassLimits(bool /*on*/) {}
  // A queue that is started before what it was let pass has been paid for fetches nothing until then
  // (block::ThrottleControl; 0: at once). Whatever may be let pass is thus paid for before it can be once more.
  virtual uint64_t hold_until_ns() const { return 0; }

  // `written_bytes`: of the chain's writable ones (2.7.8). When draining, the queue may be gone afterwards.
  void Complete(Ticket ticket, uint32_t written_bytes);
  // For the dirty log: the device wrote these segments, which are of the ticket's chain. Before Complete.
  void MarkWritten(const Ticket& ticket, std::span<const block::Segment> segments) {
    dirty_log_.Mark(*ticket.epoch->map, segments);
  }
  // The guest broke the rules of the device in a way that has no answer: the chain is not given back, the
  // queue is broken. Within HandleChain.
  void Abandon(const Ticket& ticket, std::string reason);

  // Whether what the storage has no space for is left to a successor (LeaveToSuccessor): Leave instead of Complete.
  bool leaves() const {
    return leaving_ && draining() && (packed_ ? packed_inflight_log_.enabled() : inflight_log_.enabled());
  }
  // The chain stays in the in-flight log and is not given back. The queue may be gone afterwards.
  void Leave(const Ticket& ticket);

  // How many chains may be taken from now on, for a device that answers a chain only when it has something to say
  // (virtio-scsi's event queue): what is not taken is no request in flight, and stays the guest's. Counted down
  // before each chain is handled; kept over Stop and Start. Raising it wakes the queue.
  void AllowFetches(uint32_t count);
  static constexpr uint32_t kUnlimited = UINT32_MAX;
  uint32_t fetches_allowed() const { return fetches_allowed_; }

  // Whether the guest has offered chains that are still to be fetched, or run again.
  bool offered() { return state_ == State::kRunning && !broken_ && (replaying() || Available() > 0); }
  // Whether there were such chains when the queue was stopped: a successor will fetch them.
  bool left_behind() const { return left_behind_; }

  uint64_t features() const { return features_; }
  uint64_t now_ns() const { return reactor_.now_ns(); }
  uint64_t started_ns() const { return started_ns_; }
  bool draining() const { return state_ == State::kDraining; }

 private:
  enum class State : uint8_t { kStopped, kRunning, kDraining };
  struct TrimTimer : Timer {
    explicit TrimTimer(RingQueue& q) : Timer(&Fire), queue(q) {}
    static void Fire(Timer& timer);
    RingQueue& queue;
  };
  struct HoldTimer : Timer {
    explicit HoldTimer(RingQueue& q)
        : Timer([](Timer& timer) { static_cast<HoldTimer&>(timer).queue.CheckHold(); }), queue(q) {}
    RingQueue& queue;
  };

  void CheckHold();
  bool held() const { return held_until_ns_ != 0; }
  Status StartRing(const QueueSetup& setup);
  uint32_t Available() { return packed_ ? packed_ring_.Available() : split_ring_.Available(); }
  uint32_t unpublished() const { return packed_ ? packed_ring_.unpublished() : split_ring_.unpublished(); }
  const std::string& fault() const { return packed_ ? packed_ring_.fault() : split_ring_.fault(); }
  void SetNotifications(bool enabled);
  bool replaying() const { return replayed_ < replays_.size(); }
  uint32_t Replay();
  template <typename Ring>
  bool ReplayOne(Ring& ring, Chain& chain, uint64_t& bytes);
  uint32_t Fetch();
  template <typename Ring>
  uint32_t FetchFrom(Ring& ring);
  template <typename Ring>
  bool ReadOne(Ring& ring, Chain& chain);
  void HandleRead(const Chain& chain);
  void PublishUsed();
  bool Publish();
  void Record(bool call);
  void Break(std::string reason);
  void ReportBroken();
  void Hold();
  void LetDrain();
  void FinishStop();
  void RunLeftAgain();

  Reactor& reactor_;
  State state_ = State::kStopped;
  bool in_poll_ = false;
  bool packed_ = false;  // which of the rings
  bool usual_ = true;    // nothing to run again, not held, not broken: new chains are fetched
  bool broken_ = false;
  bool broken_reported_ = false;
  bool left_behind_ = false;
  bool leaving_ = false;
  bool bypass_ = false;
  bool prefetches_ = false;
  bool hinted_ = false;  // since the last Fetch
  uint32_t in_flight_ = 0;
  uint32_t fetches_allowed_ = kUnlimited;
  uint64_t features_ = 0;
  uint64_t started_ns_ = 0;
  uint64_t armed_ns_ = kNoDeadline;  // since when it sleeps
  RequestAccounting accounting_;
  TrimTimer trim_timer_{*this};
  HoldTimer hold_timer_{*this};
  uint64_t held_until_ns_ = 0;  // 0: it is not
  Notifier* notifier_ = nullptr;
  SplitRing split_ring_;
  PackedRing packed_ring_;
  MemoryEpochs epochs_;
  InflightLog inflight_log_;
  PackedInflightLog packed_inflight_log_;
  DirtyLog dirty_log_;
  std::vector<uint16_t> replays_;  // heads, or buffer ids, of what is to be run again
  size_t replayed_ = 0;            // ... of which so many were
  std::vector<uint16_t> left_;     // likewise, of what is left to a successor
  std::string broken_reason_;
  BrokenFn on_broken_;
  std::function<void()> on_drained_;
};

}  // namespace cleat::virtio
