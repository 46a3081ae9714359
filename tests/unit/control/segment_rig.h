// SPDX-License-Identifier: Apache-2.0
// An engine's counters as its writer makes them, with a test in the place of the reactors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "observe/disk_counters.h"
#include "observe/segment.h"

namespace cleat::control {

class SegmentRig {
 public:
  explicit SegmentRig(const Clock& clock, const std::string& engine = "engine-0", uint64_t incarnation = 1)
      : clock_(clock) {
    observe::SegmentOptions options;
    options.engine = engine;
    options.incarnation = incarnation;
    options.reactors = {"reactor-0", "reactor-1"};
    options.now_ns = clock.NowNs();
    auto segment = observe::Segment::Make(options);
    CLEAT_CHECK(segment.ok());
    segment_ = std::move(*segment);
  }

  UniqueFd Fd() const {
    auto fd = segment_->OpenForReaders();
    CLEAT_CHECK(fd.ok());
    return std::move(*fd);
  }
  observe::DiskCounters& Add(const std::string& controller, const std::string& disk, uint32_t reactor = 0,
                             uint32_t target = 0) {
    auto cell = segment_->Add(controller, disk, target, reactor, clock_.NowNs());
    CLEAT_CHECK(cell.ok());
    cells_.push_back(std::move(*cell));
    return *cells_.back();
  }
  // The reactor's look at what is in flight, now: of this cell one request, seen then; of the others nothing.
  void Look(uint32_t reactor, observe::DiskCounters* cell = nullptr, uint64_t seen_ns = 0) {
    if (cell != nullptr) {
      observe::OldestRequest oldest{};
      oldest.scanned_ns = clock_.NowNs();
      oldest.seen_ns = seen_ns;
      oldest.in_flight = 3;
      oldest.op = static_cast<uint32_t>(observe::OpColumn::kRead);
      oldest.stage = static_cast<uint32_t>(RequestStage::kSubmitted);
      oldest.offset_bytes = 8192;
      oldest.length_bytes = 4096;
      oldest.stage_ns = seen_ns + 1000;
      cell->SetOldest(oldest);
    }
    observe::Store(segment_->reactor(reactor).oldest_ns,
                   cell != nullptr ? seen_ns : observe::kNothingInFlight);
    observe::Store(segment_->reactor(reactor).scanned_ns, clock_.NowNs());
  }
  // A write of 512 bytes at 1024 that took so long: 1 us to be fetched, 1 us to be submitted, the rest in the storage.
  void AddSlow(const std::string& controller, const std::string& disk, uint64_t duration_ns, bool ended) {
    observe::ReactorHead& head = segment_->reactor(0);
    observe::SlowEntry& entry = segment_->slow_ring(0)[head.slow_written % observe::kSlowRingCount];
    entry = {};
    std::strncpy(entry.controller, controller.c_str(), observe::kNameBytes - 1);
    std::strncpy(entry.disk, disk.c_str(), observe::kNameBytes - 1);
    entry.op = static_cast<uint32_t>(observe::OpColumn::kWrite);
    entry.ended = ended ? 1 : 0;
    entry.offset_bytes = 1024;
    entry.length_bytes = 512;
    entry.noticed_ns = clock_.NowNs();
    const uint64_t seen_ns = entry.noticed_ns - duration_ns;
    const auto moment = [&](RequestStage stage) -> uint64_t& {
      return entry.moments_ns[static_cast<uint32_t>(stage)];
    };
    moment(RequestStage::kSeen) = seen_ns;
    moment(RequestStage::kFetched) = seen_ns + 1000;
    moment(RequestStage::kSubmitted) = seen_ns + 2000;
    if (ended) {
      moment(RequestStage::kDone) = entry.noticed_ns;
      moment(RequestStage::kUsed) = entry.noticed_ns;
    }
    entry.sequence = 2 * head.slow_written + 2;
    ++head.slow_written;
  }
  // What the reactor says of its oldest request, in the place of what Look wrote.
  void SetOldestOf(uint32_t reactor, uint64_t oldest_ns) {
    observe::Store(segment_->reactor(reactor).oldest_ns, oldest_ns);
  }
  void Detach() { cells_.clear(); }

 private:
  const Clock& clock_;
  std::unique_ptr<observe::Segment> segment_;
  std::vector<std::unique_ptr<observe::DiskCounters>> cells_;  // go first
};

}  // namespace cleat::control
