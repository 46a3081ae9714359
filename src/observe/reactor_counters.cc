// SPDX-License-Identifier: Apache-2.0
#include "observe/reactor_counters.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace cleat::observe {
namespace {

// The last stage that it has reached, and when that was.
RequestStage StageOf(const block::StageStamps& stamps, uint64_t* since_ns) {
  for (size_t i = kCarriedStages; i-- > 1;) {
    *since_ns = stamps.at_ns(static_cast<RequestStage>(i));
    if (*since_ns != 0) return static_cast<RequestStage>(i);
  }
  *since_ns = stamps.at_ns(RequestStage::kSeen);
  return RequestStage::kSeen;
}

}  // namespace

ReactorCounters::ReactorCounters(Segment& segment, Reactor& reactor, uint32_t index)
    : reactor_(reactor),
      head_(segment.reactor(index)),
      slow_ring_(segment.slow_ring(index)),
      index_(index),
      slow_after_ns_(segment.header().slow_after_ns) {}

void ReactorCounters::StartWatching(InFlightSource& source) {
  if (!timer_.pending()) {
    scanned_ns_ = now_ns();
    reactor_.AddTimer(timer_, scanned_ns_ + kScanNs);
  }
  watched_.PushBack(source);
}

void ReactorCounters::Scan() {
  struct Visitor final : InFlightVisitor {
    explicit Visitor(ReactorCounters& s) : counters(s) {}
    void Visit(DiskCounters& disk, OpColumn op, const block::Request& request) override {
      counters.Note(disk, op, request);
    }
    ReactorCounters& counters;
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
  for (DiskCounters* disk : scanned_) {
    oldest_ns = std::min(oldest_ns, disk->scan.seen_ns);
    disk->scan.scanned_ns = now;
    disk->SetOldest(disk->scan);
    disk->scan = {};
  }
  scanned_.clear();
  scanned_ns_ = now;
  Store(head_.oldest_ns, oldest_ns);
  Store(head_.scanned_ns, now);
  if (!watched_.empty()) reactor_.AddTimer(timer_, now + kScanNs);
}

void ReactorCounters::Note(DiskCounters& disk, OpColumn op, const block::Request& request) {
  OldestRequest& oldest = disk.scan;
  if (oldest.in_flight++ == 0) scanned_.push_back(&disk);
  const uint64_t seen_ns = request.stamps.at_ns(RequestStage::kSeen);
  if (oldest.seen_ns == 0 || seen_ns < oldest.seen_ns) {
    oldest.seen_ns = seen_ns;
    oldest.op = static_cast<uint32_t>(op);
    oldest.stage = static_cast<uint32_t>(StageOf(request.stamps, &oldest.stage_ns));
    oldest.offset_bytes = request.offset_bytes;
    oldest.length_bytes = request.length_bytes;
  }
  // Once, in the scan in which it has become slow.
  const bool slow = now_ns() - seen_ns >= slow_after_ns_;
  const bool was_slow = scanned_ns_ > seen_ns && scanned_ns_ - seen_ns >= slow_after_ns_;
  if (slow && !was_slow) {
    LogSlow(disk, {.op = op,
                   .offset_bytes = request.offset_bytes,
                   .length_bytes = request.length_bytes,
                   .stamps = request.stamps});
    if (disk.slow_listener != nullptr) disk.slow_listener->BecameSlow();
  }
}

void ReactorCounters::LogSlow(DiskCounters& disk, const SlowRequest& slow) {
  const uint64_t number = head_.slow_written;
  SlowEntry& entry = slow_ring_[number % kSlowRingCount];
  const auto set = [](auto& to, auto value) { std::atomic_ref(to).store(value, std::memory_order_release); };
  set(entry.sequence, 2 * number + 1);
  // Names don't fit a word: a reader that finds another sequence number afterwards drops what it copied.
  std::memcpy(entry.controller, disk.head().controller, kNameBytes);
  std::memcpy(entry.disk, disk.head().disk, kNameBytes);
  set(entry.target, disk.head().target);
  set(entry.op, static_cast<uint32_t>(slow.op));
  set(entry.ended, uint32_t{slow.ended});
  set(entry.failed, uint32_t{slow.failed});
  set(entry.offset_bytes, slow.offset_bytes);
  set(entry.length_bytes, slow.length_bytes);
  set(entry.noticed_ns, now_ns());
  for (size_t i = 0; i < kCarriedStages; ++i) {
    set(entry.moments_ns[i], slow.stamps.at_ns(static_cast<RequestStage>(i)));
  }
  set(entry.moments_ns[static_cast<size_t>(RequestStage::kUsed)], slow.used_ns);
  set(entry.moments_ns[static_cast<size_t>(RequestStage::kCalled)], slow.called_ns);
  set(entry.sequence, 2 * number + 2);
  std::atomic_ref(head_.slow_written).store(number + 1, std::memory_order_release);
}

}  // namespace cleat::observe
