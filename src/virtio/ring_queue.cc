// SPDX-License-Identifier: Apache-2.0
#include "virtio/ring_queue.h"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/no_stack_buffer.h"

namespace cleat::virtio {

RingQueue::~RingQueue() {
  CLEAT_CHECK(state_ == State::kStopped);
}

void RingQueue::Start(const QueueSetup& setup, BrokenFn on_broken) {
  CLEAT_CHECK(state_ == State::kStopped && setup.memory != nullptr);
  state_ = State::kRunning;
  left_behind_ = leaving_ = false;
  broken_ = broken_reported_ = false;
  broken_reason_.clear();
  accounting_.ForgetBacklog();
  features_ = setup.features;
  started_ns_ = now_ns();
  notifier_ = setup.notifier;
  on_broken_ = std::move(on_broken);
  epochs_.Begin(setup.memory);
  dirty_log_.Attach(setup.dirty_log);
  const Status started = StartRing(setup);
  if (!started) Break(started.error().message);  // told in the first Poll
  Hold();
  reactor_.AddPoller(*this);
  // A predecessor may have died between its last used index and the notification.
  if (notifier_ != nullptr) notifier_->Call();
}

Status RingQueue::StartRing(const QueueSetup& setup) {
  packed_ = IsPacked(setup.features);
  if (!packed_) {
    split_ring_.Start(setup.ring, setup.features, static_cast<uint16_t>(setup.next_available), &dirty_log_);
    Status attached = inflight_log_.Attach(setup.inflight, setup.ring.size, split_ring_.shown_index());
    if (!attached || !inflight_log_.resumed()) return attached;
    std::vector<uint16_t> heads = inflight_log_.InFlight();
    if (!split_ring_.Resume(static_cast<uint16_t>(heads.size()))) {
      return Error(ErrorCode::kInvalidArgument, split_ring_.fault());
    }
    replays_ = std::move(heads);
    return Ok{};
  }
  const auto told = PackedPosition::FromWord(setup.next_available);
  const auto position = packed_inflight_log_.Attach(setup.inflight, setup.ring, told);
  packed_ring_.Start(setup.ring, setup.features, position ? *position : told, &dirty_log_,
                     &packed_inflight_log_);
  if (!position) return Status(position.error());
  replays_ = packed_inflight_log_.InFlight();
  return Ok{};
}

void RingQueue::Hold() {
  held_until_ns_ = kNoDeadline;
  CheckHold();
}

// The time that it was told first holds, or an earlier one: others may go on to use what it shares with them.
void RingQueue::CheckHold() {
  const uint64_t until_ns = std::min(held_until_ns_, hold_until_ns());
  if (until_ns <= now_ns()) {
    held_until_ns_ = 0;
    usual_ = !broken_ && !replaying();
    if (added()) reactor_.Activate(*this);
    return;
  }
  held_until_ns_ = until_ns;
  usual_ = false;
  reactor_.AddTimer(hold_timer_, std::min(until_ns, now_ns() + kHoldPollNs));
}

void RingQueue::Stop(std::function<void()> on_drained) {
  CLEAT_CHECK(state_ == State::kRunning);
  while (replaying() && !broken_) Replay();
  left_behind_ = replaying() || offered();
  state_ = State::kDraining;
  hold_timer_.Cancel();
  held_until_ns_ = 0;
  on_drained_ = std::move(on_drained);
  reactor_.RemovePoller(*this);
  if (in_poll_) return;  // from on_broken: Poll ends it
  Publish();
  if (in_flight_ == 0) return FinishStop();
  LetDrain();
}

void RingQueue::Resume() {
  CLEAT_CHECK(state_ == State::kDraining && !in_poll_);
  state_ = State::kRunning;
  left_behind_ = leaving_ = false;
  on_drained_ = nullptr;
  if (std::exchange(bypass_, false)) BypassLimits(false);
  RunLeftAgain();
  Hold();  // what was let pass is paid for first
  reactor_.AddPoller(*this);
}

// No successor came: what was left to it is this queue's again.
void RingQueue::RunLeftAgain() {
  if (left_.empty()) return;
  replays_.erase(replays_.begin(), replays_.begin() + static_cast<std::ptrdiff_t>(replayed_));
  replays_.insert(replays_.end(), left_.begin(), left_.end());
  replayed_ = 0;
  left_.clear();
}

// The guest stands still while its queue is stopped, so requests in flight no longer wait for limits. Outside of Poll, the
// queue may be gone afterwards.
void RingQueue::LetDrain() {
  bypass_ = true;
  BypassLimits(true);
}

void RingQueue::FinishStop() {
  state_ = State::kStopped;
  if (std::exchange(bypass_, false)) BypassLimits(false);
  on_broken_ = nullptr;
  notifier_ = nullptr;
  inflight_log_.Detach();
  packed_inflight_log_.Detach();
  replays_.clear();
  left_.clear();
  replayed_ = 0;
  dirty_log_.Attach({});
  epochs_.Clear();
  trim_timer_.Cancel();
  accounting_.ForgetRecorder();
  Trim();
  std::function<void()> on_drained = std::exchange(on_drained_, nullptr);
  if (in_poll_) {
    // The reactor still uses this poller, which must not die in the callback.
    reactor_.PostCall(std::move(on_drained));
  } else {
    on_drained();
  }
}

void RingQueue::SetMemory(std::shared_ptr<const block::MemoryMap> memory, const RingMemory& ring) {
  CLEAT_CHECK(state_ != State::kStopped && !in_poll_);
  Publish();  // what was pushed lies in the old mapping
  if (packed_) {
    packed_ring_.Move(ring);
  } else {
    split_ring_.Move(ring);
  }
  epochs_.Begin(std::move(memory));
}

void RingQueue::SetNotifier(Notifier* notifier) {
  notifier_ = notifier;
  // What went to the old one may have been lost; one notification too many does no harm (2.7.7.1).
  if (notifier_ != nullptr && state_ != State::kStopped) notifier_->Call();
}

void RingQueue::SetDirtyLog(const DirtyLogMemory& dirty_log) {
  CLEAT_CHECK(state_ != State::kStopped && !in_poll_);
  Publish();  // marked in the log under which it was written
  dirty_log_.Attach(dirty_log);
}

bool RingQueue::Poll() {
  in_poll_ = true;
  bool worked = Publish();
  if (usual_) [[likely]] {
    worked |= Fetch() > 0;
    worked |= Publish();
  } else if (replaying() && !broken_) {
    worked |= Replay() > 0;
    worked |= Publish();
  }
  if (broken_ && !broken_reported_) [[unlikely]]
    ReportBroken();
  if (state_ == State::kDraining) [[unlikely]] {
    if (in_flight_ > 0) LetDrain();
    Publish();
    if (in_flight_ == 0) FinishStop();
  }
  in_poll_ = false;
  return worked;
}

void RingQueue::Hint(bool near) {
  if (state_ != State::kRunning) [[unlikely]]
    return;
  hinted_ = true;
  if (packed_) {
    packed_ring_.HintIndex();
  } else if (near) {
    split_ring_.HintFirst();
  } else {
    split_ring_.HintIndex();
  }
}

// The next batch of what is to be run again.
uint32_t RingQueue::Replay() {
  accounting_.BeginReplay(now_ns());
  uint32_t count = 0;
  uint64_t bytes = 0;
  Chain chain;
  for (; count < kFetchBatchMax && bytes < kFetchBytesMax && replaying() && !broken_; ++count) {
    if (packed_ ? ReplayOne(packed_ring_, chain, bytes) : ReplayOne(split_ring_, chain, bytes)) continue;
    Break("request " + std::to_string(replayed_) + " of " + std::to_string(replays_.size()) +
          " that were in flight when this ring was last served can't be run again: " + fault());
  }
  if (!replaying() && !broken_) usual_ = !held();
  if (in_flight_ > 0) accounting_.Watch(*this);
  return count;
}

// A replayed chain was taken by a predecessor: the ring counts it already, and the log has it.
template <typename Ring>
bool RingQueue::ReplayOne(Ring& ring, Chain& chain, uint64_t& bytes) {
  const uint16_t head = replays_[replayed_++];
  if constexpr (std::is_same_v<Ring, PackedRing>) {
    if (!ring.Refetch(head)) return false;
  }
  if (!ring.Read(head, *epochs_.current()->map, chain)) return false;
  bytes += chain.bytes();
  ++in_flight_;
  const uint32_t tag = packed_ ? packed_inflight_log_.TagOf(head) : inflight_log_.TagOf(head);
  HandleReplayed(chain, Ticket{epochs_.Enter(), head}, tag);
  return true;
}

CLEAT_NO_STACK_BUFFER uint32_t RingQueue::Fetch() {
  const uint32_t fetched = packed_ ? FetchFrom(packed_ring_) : FetchFrom(split_ring_);
  if (!fault().empty()) [[unlikely]]
    Break(fault());
  return fetched;
}

template <typename Ring>
uint32_t RingQueue::FetchFrom(Ring& ring) {
  if (fetches_allowed_ == 0) [[unlikely]]
    return 0;
  const uint32_t available = ring.Available();
  if (available == 0) return 0;
  uint32_t count = std::min(available, kFetchBatchMax);
  const block::MemoryMap& map = *epochs_.current()->map;
  accounting_.BeginBatch(now_ns());
  // Alone, the queue has its lines in the cache as far as the guest lets it, and hints cost more than they save.
  const uint32_t hinted = std::exchange(hinted_, false) ? count : 0;
  for (uint32_t ahead = 0; ahead < std::min(hinted, kDescriptorAhead); ++ahead) ring.HintDescriptor(ahead);
  for (uint32_t ahead = 0; ahead < std::min(hinted, kTableAhead); ++ahead) ring.HintTable(ahead, map);
  // A ring of the chains that were read and are still to be handled.
  std::array<Chain, kReadAhead> chains;
  uint32_t read = 0;
  uint64_t read_bytes = 0;
  uint32_t handled = 0;
  uint32_t prefetched = 1;  // for the first one it is too late
  for (bool more = true;;) {
    while (more && read < count && read - handled < kReadAhead) {
      if (read + kDescriptorAhead < hinted) ring.HintDescriptor(kDescriptorAhead);
      if (read + kTableAhead < hinted) ring.HintTable(kTableAhead, map);
      Chain& chain = chains[read % kReadAhead];
      more = ReadOne(ring, chain);
      if (!more) break;
      ++read;
      read_bytes += chain.bytes();
      if (read_bytes >= kFetchBytesMax) [[unlikely]]
        count = read;
    }
    // All that were taken are handled, also when one of them breaks or stops the queue.
    if (handled == read) break;
    if (prefetches_) {
      for (; prefetched < std::min(read, handled + kPrefetchAhead); ++prefetched)
        Prefetch(chains[prefetched % kReadAhead]);
    }
    HandleRead(chains[handled++ % kReadAhead]);
    if (handled % kReadAhead == 0 && handled < count)
      PublishUsed();  // a guest that polls need not wait for the rest
  }
  // Fewer than were looked for: there are no more, whatever a packed ring's Available() thought possible.
  accounting_.EndBatch(read < count ? 0 : available - read);
  if (in_flight_ > 0) accounting_.Watch(*this);
  return read;
}

// Takes the next chain, if there is one that makes sense.
template <typename Ring>
inline bool RingQueue::ReadOne(Ring& ring, Chain& chain) {
  if (broken_ || state_ != State::kRunning || fetches_allowed_ == 0) [[unlikely]]
    return false;
  uint16_t head = 0;
  if (!ring.TakeHead(head)) [[unlikely]]
    return false;
  // Also one that turns out broken: it was taken, and never given back.
  if constexpr (std::is_same_v<Ring, PackedRing>) {
    packed_inflight_log_.Fetched(head, ring.taken());
  } else {
    inflight_log_.Fetched(head);
  }
  if (!ring.Read(head, *epochs_.current()->map, chain)) [[unlikely]]
    return false;
  chain.Prefetch();
  ++in_flight_;
  if (fetches_allowed_ != kUnlimited) [[unlikely]]
    --fetches_allowed_;
  return true;
}

inline void RingQueue::HandleRead(const Chain& chain) {
  HandleChain(chain, Ticket{epochs_.Enter(), chain.head()});
  accounting_.Handled();
}

void RingQueue::Complete(Ticket ticket, uint32_t written_bytes) {
  if (packed_) {
    packed_ring_.Push(ticket.head, written_bytes);
  } else {
    inflight_log_.Used(ticket.head);
    split_ring_.Push(ticket.head, written_bytes);
  }
  epochs_.Leave(ticket.epoch);
  CLEAT_CHECK(in_flight_ > 0);
  --in_flight_;
  if (in_poll_) return;
  if (state_ == State::kDraining) [[unlikely]] {
    Publish();
    if (in_flight_ == 0) FinishStop();
  } else if (unpublished() == 1) {
    reactor_.Activate(*this);
  }
}

void RingQueue::Leave(const Ticket& ticket) {
  CLEAT_CHECK(leaves() && in_flight_ > 0);
  left_.push_back(ticket.head);
  if (packed_) packed_ring_.Leave(ticket.head);
  epochs_.Leave(ticket.epoch);
  --in_flight_;
  if (in_poll_) return;
  Publish();
  if (in_flight_ == 0) FinishStop();
}

void RingQueue::Abandon(const Ticket& ticket, std::string reason) {
  epochs_.Leave(ticket.epoch);
  --in_flight_;
  Break(std::move(reason));
}

void RingQueue::PublishUsed() {
  if (packed_) {
    packed_ring_.PublishUsed();
  } else {
    split_ring_.PublishUsed();
    inflight_log_.Published(split_ring_.shown_index());
  }
}

CLEAT_NO_STACK_BUFFER bool RingQueue::Publish() {
  if (unpublished() == 0) return false;
  PublishUsed();
  const bool call = packed_ ? packed_ring_.Publish() : split_ring_.Publish();
  Record(call);
  if (dirty_log_.overrun()) [[unlikely]] {
    Break("dirty log of " + std::to_string(dirty_log_.size_bytes()) + " bytes has no bit for guest address " +
          std::to_string(dirty_log_.overrun_address()));
  }
  return true;
}

// Notifies, and counts what was published.
void RingQueue::Record(bool call) {
  const bool record = accounting_.has_ended();
  if (record) reactor_.RefreshNow();
  const uint64_t used_ns = now_ns();
  uint64_t called_ns = 0;
  if (call && notifier_ != nullptr) {
    notifier_->Call();
    if (record) reactor_.RefreshNow();
    called_ns = now_ns();
  }
  if (record) accounting_.Flush(used_ns, called_ns);
}

void RingQueue::Break(std::string reason) {
  usual_ = false;
  if (std::exchange(broken_, true)) return;
  broken_reason_ = std::move(reason);
}

void RingQueue::ReportBroken() {
  broken_reported_ = true;
  const BrokenFn on_broken = std::exchange(on_broken_, nullptr);
  if (on_broken != nullptr) on_broken(broken_reason_);
}

void RingQueue::AllowFetches(uint32_t count) {
  fetches_allowed_ = count;
  if (count > 0 && state_ == State::kRunning && !in_poll_) reactor_.Activate(*this);
}

bool RingQueue::Arm() {
  if (unpublished() > 0) return false;
  if (!usual_)
    // Nothing is fetched: only a completion wakes it up, or the end of the hold.
    return broken_ ? broken_reported_ : !replaying();
  SetNotifications(true);
  if ((fetches_allowed_ > 0 && Available() > 0) || !fault().empty()) {
    SetNotifications(false);
    return false;  // a fault is told by the Poll that follows
  }
  armed_ns_ = now_ns();
  if (in_flight_ == 0 && !trim_timer_.pending()) reactor_.AddTimer(trim_timer_, armed_ns_ + kTrimAfterNs);
  return true;
}

void RingQueue::TrimTimer::Fire(Timer& timer) {
  RingQueue& queue = static_cast<TrimTimer&>(timer).queue;
  if (queue.in_flight_ > 0 || queue.armed_ns_ == kNoDeadline) return;  // the next Arm sets it again
  const uint64_t due_ns = queue.armed_ns_ + kTrimAfterNs;
  if (queue.now_ns() < due_ns) return queue.reactor_.AddTimer(timer, due_ns);
  queue.accounting_.ForgetRecorder();
  queue.Trim();
}

void RingQueue::Disarm() {
  armed_ns_ = kNoDeadline;
  if (!broken_) SetNotifications(false);
}

void RingQueue::SetNotifications(bool enabled) {
  const auto set = [enabled](auto& ring) {
    enabled ? ring.EnableNotifications() : ring.DisableNotifications();
  };
  if (packed_) {
    set(packed_ring_);
  } else {
    set(split_ring_);
  }
}

}  // namespace cleat::virtio
