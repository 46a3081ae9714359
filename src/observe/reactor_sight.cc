// SPDX-License-Identifier: Apache-2.0
#include "observe/reactor_sight.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cleat::observe {
namespace {

// The last moment that it has reached, and when that was.
Stage StageOf(const block::Moments& moments, uint64_t* since_ns) {
  for (size_t i = block::kMoments; i-- > 1;) {
    *since_ns = moments.at_ns(static_cast<block::Moment>(i));
    if (*since_ns != 0) return static_cast<Stage>(i);
  }
  *since_ns = moments.at_ns(block::Moment::kSeen);
  return Stage::kSeen;
}

}  // namespace

ReactorSight::ReactorSight(Segment& segment, Reactor& reactor, uint32_t index)
    : reactor_(reactor),
      head_(segment.reactor(index)),
      slow_ring_(segment.slow_ring(index)),
      index_(index),
      slow_after_ns_(segment.header().slow_after_ns) {}

void ReactorSight::StartWatching(InFlightSource& source) {
  if (!timer_.pending()) {
    scanned_ns_ = now_ns();
    reactor_.AddTimer(timer_, scanned_ns_ + kScanNs);
  }
  watched_.PushBack(source);
}

void ReactorSight::Scan() {
  struct Visitor final : InFlightVisitor {
    explicit Visitor(ReactorSight& s) : sight(s) {}
    void Visit(Cell& cell, OpColumn op, const block::Request& request) override {
      sight.Note(cell, op, request);
    }
    ReactorSight& sight;
  } visitor(*this);

  const uint64_t now = now_ns();
  InFlightSource* next = nullptr;
  for (InFlightSource* source = watched_.front(); source != nullptr; source = next) {
    next = watched_.Next(*source);
    if (source->any_in_flight()) {
      source->VisitInFlight(visitor);
    } else {
      source->watched_.Unlink();
    }
  }
  uint64_t oldest_ns = kNothingInFlight;
  for (Cell* cell : scanned_) {
    oldest_ns = std::min(oldest_ns, cell->scan.seen_ns);
    cell->scan.scanned_ns = now;
    cell->SetOldest(cell->scan);
    cell->scan = {};
  }
  scanned_.clear();
  scanned_ns_ = now;
  Store(head_.oldest_ns, oldest_ns);
  Store(head_.scanned_ns, now);
  if (!watched_.empty()) reactor_.AddTimer(timer_, now + kScanNs);
}

void ReactorSight::Note(Cell& cell, OpColumn op, const block::Request& request) {
  OldestRequest& oldest = cell.scan;
  if (oldest.in_flight++ == 0) scanned_.push_back(&cell);
  const uint64_t seen_ns = request.moments.at_ns(block::Moment::kSeen);
  if (oldest.seen_ns == 0 || seen_ns < oldest.seen_ns) {
    oldest.seen_ns = seen_ns;
    oldest.op = static_cast<uint32_t>(op);
    oldest.stage = static_cast<uint32_t>(StageOf(request.moments, &oldest.stage_ns));
    oldest.offset_bytes = request.offset_bytes;
    oldest.length_bytes = request.length_bytes;
  }
  // Once, in the scan in which it has become slow.
  const bool slow = now_ns() - seen_ns >= slow_after_ns_;
  const bool was_slow = scanned_ns_ > seen_ns && scanned_ns_ - seen_ns >= slow_after_ns_;
  if (slow && !was_slow) {
    LogSlow(cell, {.op = op,
                   .offset_bytes = request.offset_bytes,
                   .length_bytes = request.length_bytes,
                   .moments = request.moments});
  }
}

void ReactorSight::LogSlow(Cell& cell, const SlowRequest& slow) {
  const uint64_t number = head_.slow_written;
  SlowEntry& entry = slow_ring_[number % kSlowRingCount];
  const auto set = [](auto& to, auto value) { std::atomic_ref(to).store(value, std::memory_order_release); };
  set(entry.sequence, 2 * number + 1);
  // Names don't fit a word: a reader that finds another sequence number afterwards drops what it copied.
  std::memcpy(entry.controller, cell.head().controller, kNameBytes);
  std::memcpy(entry.disk, cell.head().disk, kNameBytes);
  set(entry.target, cell.head().target);
  set(entry.op, static_cast<uint32_t>(slow.op));
  set(entry.ended, uint32_t{slow.ended});
  set(entry.failed, uint32_t{slow.failed});
  set(entry.offset_bytes, slow.offset_bytes);
  set(entry.length_bytes, slow.length_bytes);
  set(entry.noticed_ns, now_ns());
  for (size_t i = 0; i < block::kMoments; ++i) {
    set(entry.moments_ns[i], slow.moments.at_ns(static_cast<block::Moment>(i)));
  }
  set(entry.moments_ns[static_cast<size_t>(Stage::kUsed)], slow.used_ns);
  set(entry.moments_ns[static_cast<size_t>(Stage::kCalled)], slow.called_ns);
  set(entry.sequence, 2 * number + 2);
  std::atomic_ref(head_.slow_written).store(number + 1, std::memory_order_release);
}

}  // namespace cleat::observe
