// SPDX-License-Identifier: Apache-2.0
// A reactor's requests as readers see them: while they are in flight, when they have become slow, when they have ended.
#include "observe/reactor_counters.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "observe/engine_counters.h"
#include "observe/reader.h"
#include "observe/recorder.h"

namespace cleat::observe::reactor_counters_test {
namespace {

class Queue final : public InFlightSource {
 public:
  explicit Queue(DiskCounters& d) : disk(d) {}
  bool any_in_flight() const override { return !requests.empty(); }
  void VisitInFlight(InFlightVisitor& visitor) override {
    ++visits;
    for (block::Request* request : requests) visitor.Visit(disk, ColumnOf(request->op), *request);
  }
  DiskCounters& disk;
  std::vector<block::Request*> requests;
  int visits = 0;
};

class ReactorCountersTest : public testing::Test {
 protected:
  ReactorCountersTest()
      : reactor_(Reactor::Make(clock_, {}).value()),
        counters_(EngineCounters::Make("engine-0", 1, {reactor_.get()}).value()),
        disk_(counters_->AddDisk("controllers/vm", "disks/a", 0, *reactor_, clock_.NowNs())),
        reader_(SegmentReader::Open(counters_->OpenForReaders().value()).value()) {}

  ReactorCounters& on() { return *counters_->On(*reactor_); }
  void Pass(uint64_t ns) {
    for (uint64_t step = 10 * kNsPerMs; ns > 0; ns -= std::min(ns, step)) {
      clock_.AdvanceBy(std::min(ns, step));
      reactor_->RunOnce();
    }
  }
  OldestSeen Oldest() { return reader_->Cells().at(0).oldest; }
  std::vector<SlowSeen> Slow() {
    uint64_t lost = 0;
    auto slow = reader_->NewSlow(&lost);
    EXPECT_EQ(lost, 0U);
    return slow;
  }

  ManualClock clock_;
  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<EngineCounters> counters_;
  std::unique_ptr<DiskCounters> disk_;
  std::unique_ptr<SegmentReader> reader_;
};

TEST_F(ReactorCountersTest, TheOldestRequestIsShownWithItsStage) {
  Queue queue(*disk_);
  block::Request old, young;
  reactor_->RunOnce();
  const uint64_t start_ns = reactor_->now_ns();
  old.op = block::Op::kWrite;
  old.offset_bytes = 8192;
  old.length_bytes = 4096;
  old.stamps.Seen(start_ns, start_ns + 5, /*batch=*/0);
  old.stamps.Stamp(RequestStage::kSubmitted, start_ns + 10);
  young.stamps.Seen(start_ns + 1000, start_ns + 1000, /*batch=*/0);
  queue.requests = {&young, &old};
  on().Watch(queue);
  const auto oldest_of_all_ns = [&] { return reader_->Reactors().at(0).oldest_ns; };
  EXPECT_EQ(Oldest().in_flight, 0U) << "nobody has looked yet";
  EXPECT_EQ(oldest_of_all_ns(), kNothingInFlight);
  Pass(ReactorCounters::kScanNs + 20 * kNsPerMs);
  const OldestSeen oldest = Oldest();
  EXPECT_EQ(oldest.in_flight, 2U);
  EXPECT_EQ(oldest.seen_ns, start_ns);
  EXPECT_EQ(reader_->op_names().at(oldest.op), "write");
  EXPECT_EQ(reader_->stage_names().at(oldest.stage), "submitted");
  EXPECT_EQ(oldest.stage_ns, start_ns + 10);
  EXPECT_EQ(oldest.offset_bytes, 8192U);
  EXPECT_EQ(oldest.length_bytes, 4096U);
  EXPECT_EQ(oldest_of_all_ns(), start_ns);
  EXPECT_EQ(reader_->Cells(SegmentReader::Which::kInFlight).size(), 1U);

  queue.requests = {&young};
  Pass(ReactorCounters::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(Oldest().in_flight, 1U);
  EXPECT_EQ(Oldest().seen_ns, start_ns + 1000);
  EXPECT_EQ(oldest_of_all_ns(), start_ns + 1000);
  queue.requests.clear();
  Pass(ReactorCounters::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(Oldest().in_flight, 0U);
  EXPECT_EQ(oldest_of_all_ns(), kNothingInFlight);
  EXPECT_EQ(reader_->Cells(SegmentReader::Which::kInFlight).size(), 0U);
  EXPECT_EQ(reader_->Cells().size(), 1U);
}

TEST_F(ReactorCountersTest, AnIdleReactorLooksNoMore) {
  Queue queue(*disk_);
  block::Request request;
  request.stamps.Seen(1, 1, /*batch=*/0);
  queue.requests = {&request};
  on().Watch(queue);
  Pass(ReactorCounters::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(queue.visits, 1);
  queue.requests.clear();
  Pass(ReactorCounters::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(reactor_->NextTimerNs(), kNoDeadline) << "nothing wakes it";
  queue.requests = {&request};
  on().Watch(queue);
  Pass(ReactorCounters::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(queue.visits, 2);
}

TEST_F(ReactorCountersTest, ARequestThatBecomesSlowIsLoggedOnceAndAgainAtItsEnd) {
  Queue queue(*disk_);
  block::Request request;
  reactor_->RunOnce();
  const uint64_t start_ns = reactor_->now_ns();
  request.offset_bytes = 512;
  request.length_bytes = 1024;
  request.stamps.Seen(start_ns, start_ns, /*batch=*/0);
  request.stamps.Stamp(RequestStage::kSubmitted, start_ns + 7);
  queue.requests = {&request};
  on().Watch(queue);
  Pass(kSlowAfterNs - 100 * kNsPerMs);
  EXPECT_TRUE(Slow().empty());
  Pass(5 * kNsPerSecond);
  auto slow = Slow();
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_FALSE(slow[0].ended);
  EXPECT_EQ(slow[0].disk, "disks/a");
  EXPECT_EQ(slow[0].offset_bytes, 512U);
  EXPECT_LE(slow[0].noticed_ns - start_ns, kSlowAfterNs + ReactorCounters::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(slow[0].moments_ns.at(static_cast<size_t>(RequestStage::kSubmitted)), start_ns + 7);
  EXPECT_EQ(slow[0].moments_ns.at(static_cast<size_t>(RequestStage::kDone)), 0U);

  Recorder recorder(on());
  request.stamps.Stamp(RequestStage::kDone, reactor_->now_ns());
  recorder.Ended(*disk_, request, OpColumn::kRead, 1024, false);
  recorder.Flush(reactor_->now_ns() + 3, 0);
  queue.requests.clear();
  slow = Slow();
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_TRUE(slow[0].ended);
  EXPECT_EQ(slow[0].moments_ns.at(static_cast<size_t>(RequestStage::kUsed)), reactor_->now_ns() + 3);
  Pass(ReactorCounters::kScanNs * 2);
}

TEST_F(ReactorCountersTest, AReaderThatIsLateHearsHowManyItMissed) {
  for (uint64_t i = 0; i < kSlowRingCount + 10; ++i) on().LogSlow(*disk_, {.offset_bytes = i});
  uint64_t lost = 0;
  const auto slow = reader_->NewSlow(&lost);
  EXPECT_EQ(lost, 10U);
  ASSERT_EQ(slow.size(), kSlowRingCount);
  EXPECT_EQ(slow.front().offset_bytes, 10U);
  EXPECT_EQ(slow.back().offset_bytes, kSlowRingCount + 9);
}

uint64_t Count(const SegmentReader& reader, OpColumn op, RequestStage stage) {
  const auto histograms = reader.Histograms(reader.Cells().at(0));
  return histograms.at(static_cast<size_t>(op)).at(static_cast<size_t>(stage)).count();
}

TEST_F(ReactorCountersTest, RequestsThatEndedAlikeAreCountedTogether) {
  Recorder recorder(on());
  block::Request request;
  request.stamps.Seen(100, 100, /*batch=*/0);
  for (int i = 0; i < 31; ++i) recorder.Ended(*disk_, request, OpColumn::kRead, 4096, false);
  recorder.Ended(*disk_, request, OpColumn::kRead, 0, true);
  recorder.Ended(*disk_, request, OpColumn::kOther, 0, false);
  EXPECT_EQ(reader_->Cells().at(0).ops.at(0).requests, 0U) << "not shown to the guest yet";
  recorder.Flush(1100, 1500);
  EXPECT_TRUE(recorder.empty());
  const auto cell = reader_->Cells().at(0);
  EXPECT_EQ(cell.ops.at(0).requests, 32U);
  EXPECT_EQ(cell.ops.at(0).bytes, 31U * 4096);
  EXPECT_EQ(cell.ops.at(0).errors, 1U);
  EXPECT_EQ(cell.ops.at(static_cast<size_t>(OpColumn::kOther)).requests, 1U);
  EXPECT_EQ(Count(*reader_, OpColumn::kRead, RequestStage::kTotal), 32U);
  EXPECT_EQ(Count(*reader_, OpColumn::kRead, RequestStage::kFetched), 32U);
  EXPECT_EQ(Count(*reader_, OpColumn::kRead, RequestStage::kSubmitted), 0U)
      << "a stage that it did not come to";
  EXPECT_EQ(Count(*reader_, OpColumn::kRead, RequestStage::kCalled), 32U);
  EXPECT_EQ(Count(*reader_, OpColumn::kOther, RequestStage::kTotal), 1U);
}

TEST_F(ReactorCountersTest, WhatDiffersInOneMomentIsCountedApart) {
  Recorder recorder(on());
  const auto ended = [&](uint64_t fetched_ns, uint64_t batch, uint64_t submitted_ns) {
    block::Request request;
    request.stamps.Seen(100, fetched_ns, batch);
    if (submitted_ns != 0) request.stamps.Stamp(RequestStage::kSubmitted, submitted_ns);
    recorder.Ended(*disk_, request, OpColumn::kRead, 512, false);
  };
  ended(200, 1, 0);
  ended(200, 1, 0);
  ended(200, 1, 300);
  ended(200, 1, 90'000);
  ended(90'000, 2, 0);
  recorder.Flush(100'000, 0);
  const auto of = [&](RequestStage stage) {
    return reader_->Histograms(reader_->Cells().at(0)).at(0).at(static_cast<size_t>(stage));
  };
  EXPECT_EQ(of(RequestStage::kFetched).count(), 5U);
  EXPECT_LT(of(RequestStage::kFetched).PercentileNs(0.5), 110U);
  EXPECT_GT(of(RequestStage::kFetched).PercentileNs(0.99), 80'000U);
  EXPECT_EQ(of(RequestStage::kSubmitted).count(), 2U);
  EXPECT_LT(of(RequestStage::kSubmitted).PercentileNs(0.1), 110U);
  EXPECT_GT(of(RequestStage::kSubmitted).PercentileNs(0.99), 80'000U);
}

TEST_F(ReactorCountersTest, MoreDifferentEndsThanThereIsRoomForAreCountedToo) {
  Recorder recorder(on());
  block::Request request;
  for (uint64_t i = 1; i <= 100; ++i) {
    request.stamps.Seen(i, i, /*batch=*/i);
    recorder.Ended(*disk_, request, OpColumn::kWrite, 512, false);
  }
  recorder.Flush(reactor_->now_ns(), 0);
  EXPECT_EQ(reader_->Cells().at(0).ops.at(1).requests, 100U);
  EXPECT_EQ(Count(*reader_, OpColumn::kWrite, RequestStage::kTotal), 100U);
}

}  // namespace
}  // namespace cleat::observe::reactor_counters_test
