// SPDX-License-Identifier: Apache-2.0
// A reactor's requests as readers see them: while they are in flight, when they have become slow, when they have ended.
#include "observe/reactor_sight.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "observe/reader.h"
#include "observe/recorder.h"
#include "observe/sight.h"

namespace cleat::observe::reactor_sight_test {
namespace {

using block::Moment;

class Queue final : public InFlightSource {
 public:
  explicit Queue(Cell& c) : cell(c) {}
  bool any_in_flight() const override { return !requests.empty(); }
  void VisitInFlight(InFlightVisitor& visitor) override {
    ++visits;
    for (block::Request* request : requests) visitor.Visit(cell, ColumnOf(request->op), *request);
  }
  Cell& cell;
  std::vector<block::Request*> requests;
  int visits = 0;
};

class ReactorSightTest : public testing::Test {
 protected:
  ReactorSightTest()
      : reactor_(Reactor::Make(clock_, {}).value()),
        sight_(Sight::Make("engine-0", 1, {reactor_.get()}).value()),
        cell_(sight_->AddCell("controllers/vm", "disks/a", 0, *reactor_, clock_.NowNs())),
        reader_(SegmentReader::Open(sight_->OpenForReaders().value()).value()) {}

  ReactorSight& on() { return *sight_->On(*reactor_); }
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
  std::unique_ptr<Sight> sight_;
  std::unique_ptr<Cell> cell_;
  std::unique_ptr<SegmentReader> reader_;
};

TEST_F(ReactorSightTest, TheOldestRequestIsShownWithItsStage) {
  Queue queue(*cell_);
  block::Request old, young;
  reactor_->RunOnce();
  const uint64_t start_ns = reactor_->now_ns();
  old.op = block::Op::kWrite;
  old.offset_bytes = 8192;
  old.length_bytes = 4096;
  old.moments.Seen(start_ns, start_ns + 5, /*batch=*/0);
  old.moments.Stamp(Moment::kSubmitted, start_ns + 10);
  young.moments.Seen(start_ns + 1000, start_ns + 1000, /*batch=*/0);
  queue.requests = {&young, &old};
  on().Watch(queue);
  const auto oldest_of_all_ns = [&] { return reader_->Reactors().at(0).oldest_ns; };
  EXPECT_EQ(Oldest().in_flight, 0U) << "nobody has looked yet";
  EXPECT_EQ(oldest_of_all_ns(), kNothingInFlight);
  Pass(ReactorSight::kScanNs + 20 * kNsPerMs);
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
  Pass(ReactorSight::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(Oldest().in_flight, 1U);
  EXPECT_EQ(Oldest().seen_ns, start_ns + 1000);
  EXPECT_EQ(oldest_of_all_ns(), start_ns + 1000);
  queue.requests.clear();
  Pass(ReactorSight::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(Oldest().in_flight, 0U);
  EXPECT_EQ(oldest_of_all_ns(), kNothingInFlight);
  EXPECT_EQ(reader_->Cells(SegmentReader::Which::kInFlight).size(), 0U);
  EXPECT_EQ(reader_->Cells().size(), 1U);
}

TEST_F(ReactorSightTest, AnIdleReactorLooksNoMore) {
  Queue queue(*cell_);
  block::Request request;
  request.moments.Seen(1, 1, /*batch=*/0);
  queue.requests = {&request};
  on().Watch(queue);
  Pass(ReactorSight::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(queue.visits, 1);
  queue.requests.clear();
  Pass(ReactorSight::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(reactor_->NextTimerNs(), kNoDeadline) << "nothing wakes it";
  queue.requests = {&request};
  on().Watch(queue);
  Pass(ReactorSight::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(queue.visits, 2);
}

TEST_F(ReactorSightTest, ARequestThatBecomesSlowIsLoggedOnceAndAgainAtItsEnd) {
  Queue queue(*cell_);
  block::Request request;
  reactor_->RunOnce();
  const uint64_t start_ns = reactor_->now_ns();
  request.offset_bytes = 512;
  request.length_bytes = 1024;
  request.moments.Seen(start_ns, start_ns, /*batch=*/0);
  request.moments.Stamp(Moment::kSubmitted, start_ns + 7);
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
  EXPECT_LE(slow[0].noticed_ns - start_ns, kSlowAfterNs + ReactorSight::kScanNs + 20 * kNsPerMs);
  EXPECT_EQ(slow[0].moments_ns.at(static_cast<size_t>(Stage::kSubmitted)), start_ns + 7);
  EXPECT_EQ(slow[0].moments_ns.at(static_cast<size_t>(Stage::kDone)), 0U);

  Recorder recorder(on());
  request.moments.Stamp(Moment::kDone, reactor_->now_ns());
  recorder.Ended(*cell_, request, OpColumn::kRead, 1024, false);
  recorder.Flush(reactor_->now_ns() + 3, 0);
  queue.requests.clear();
  slow = Slow();
  ASSERT_EQ(slow.size(), 1U);
  EXPECT_TRUE(slow[0].ended);
  EXPECT_EQ(slow[0].moments_ns.at(static_cast<size_t>(Stage::kUsed)), reactor_->now_ns() + 3);
  Pass(ReactorSight::kScanNs * 2);
}

TEST_F(ReactorSightTest, AReaderThatIsLateHearsHowManyItMissed) {
  for (uint64_t i = 0; i < kSlowRingCount + 10; ++i) on().LogSlow(*cell_, {.offset_bytes = i});
  uint64_t lost = 0;
  const auto slow = reader_->NewSlow(&lost);
  EXPECT_EQ(lost, 10U);
  ASSERT_EQ(slow.size(), kSlowRingCount);
  EXPECT_EQ(slow.front().offset_bytes, 10U);
  EXPECT_EQ(slow.back().offset_bytes, kSlowRingCount + 9);
}

uint64_t Count(const SegmentReader& reader, OpColumn op, Stage stage) {
  const auto histograms = reader.Histograms(reader.Cells().at(0));
  return histograms.at(static_cast<size_t>(op)).at(static_cast<size_t>(stage)).count();
}

TEST_F(ReactorSightTest, RequestsThatEndedAlikeAreCountedTogether) {
  Recorder recorder(on());
  block::Request request;
  request.moments.Seen(100, 100, /*batch=*/0);
  for (int i = 0; i < 31; ++i) recorder.Ended(*cell_, request, OpColumn::kRead, 4096, false);
  recorder.Ended(*cell_, request, OpColumn::kRead, 0, true);
  recorder.Ended(*cell_, request, OpColumn::kOther, 0, false);
  EXPECT_EQ(reader_->Cells().at(0).ops.at(0).requests, 0U) << "not shown to the guest yet";
  recorder.Flush(1100, 1500);
  EXPECT_TRUE(recorder.empty());
  const auto cell = reader_->Cells().at(0);
  EXPECT_EQ(cell.ops.at(0).requests, 32U);
  EXPECT_EQ(cell.ops.at(0).bytes, 31U * 4096);
  EXPECT_EQ(cell.ops.at(0).errors, 1U);
  EXPECT_EQ(cell.ops.at(static_cast<size_t>(OpColumn::kOther)).requests, 1U);
  EXPECT_EQ(Count(*reader_, OpColumn::kRead, Stage::kTotal), 32U);
  EXPECT_EQ(Count(*reader_, OpColumn::kRead, Stage::kFetched), 32U);
  EXPECT_EQ(Count(*reader_, OpColumn::kRead, Stage::kSubmitted), 0U) << "a stage that it did not come to";
  EXPECT_EQ(Count(*reader_, OpColumn::kRead, Stage::kCalled), 32U);
  EXPECT_EQ(Count(*reader_, OpColumn::kOther, Stage::kTotal), 1U);
}

TEST_F(ReactorSightTest, WhatDiffersInOneMomentIsCountedApart) {
  Recorder recorder(on());
  const auto ended = [&](uint64_t fetched_ns, uint64_t batch, uint64_t submitted_ns) {
    block::Request request;
    request.moments.Seen(100, fetched_ns, batch);
    if (submitted_ns != 0) request.moments.Stamp(block::Moment::kSubmitted, submitted_ns);
    recorder.Ended(*cell_, request, OpColumn::kRead, 512, false);
  };
  ended(200, 1, 0);
  ended(200, 1, 0);
  ended(200, 1, 300);
  ended(200, 1, 90'000);
  ended(90'000, 2, 0);
  recorder.Flush(100'000, 0);
  const auto of = [&](Stage stage) {
    return reader_->Histograms(reader_->Cells().at(0)).at(0).at(static_cast<size_t>(stage));
  };
  EXPECT_EQ(of(Stage::kFetched).count(), 5U);
  EXPECT_LT(of(Stage::kFetched).PercentileNs(0.5), 110U);
  EXPECT_GT(of(Stage::kFetched).PercentileNs(0.99), 80'000U);
  EXPECT_EQ(of(Stage::kSubmitted).count(), 2U);
  EXPECT_LT(of(Stage::kSubmitted).PercentileNs(0.1), 110U);
  EXPECT_GT(of(Stage::kSubmitted).PercentileNs(0.99), 80'000U);
}

TEST_F(ReactorSightTest, MoreDifferentEndsThanThereIsRoomForAreCountedToo) {
  Recorder recorder(on());
  block::Request request;
  for (uint64_t i = 1; i <= 100; ++i) {
    request.moments.Seen(i, i, /*batch=*/i);
    recorder.Ended(*cell_, request, OpColumn::kWrite, 512, false);
  }
  recorder.Flush(reactor_->now_ns(), 0);
  EXPECT_EQ(reader_->Cells().at(0).ops.at(1).requests, 100U);
  EXPECT_EQ(Count(*reader_, OpColumn::kWrite, Stage::kTotal), 100U);
}

}  // namespace
}  // namespace cleat::observe::reactor_sight_test
