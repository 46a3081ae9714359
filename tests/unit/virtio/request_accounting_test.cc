// SPDX-License-Identifier: Apache-2.0
// When a queue's requests were seen and fetched: those of a batch together, and what did not fit into it since then.
#include "virtio/request_accounting.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/clock.h"
#include "observe/engine_counters.h"
#include "observe/reader.h"
#include "reactor/reactor.h"

namespace cleat::virtio::request_accounting_test {
namespace {

using observe::OpColumn;

struct Times {
  uint64_t seen_ns = 0;
  uint64_t fetched_ns = 0;
  bool operator==(const Times&) const = default;
};

// The next chain of the batch: its request begins, and the chain is handled.
Times Next(RequestAccounting& accounting) {
  block::Request request;
  accounting.Began(request);
  accounting.Handled();
  return {request.stamps.at_ns(RequestStage::kSeen), request.stamps.at_ns(RequestStage::kFetched)};
}

TEST(RequestAccountingTest, WhatABatchLeftWasSeenWithIt) {
  RequestAccounting accounting;
  accounting.BeginBatch(100);
  EXPECT_EQ(Next(accounting), (Times{100, 100}));
  accounting.EndBatch(3);
  accounting.BeginBatch(200);
  EXPECT_EQ(Next(accounting), (Times{100, 200}));
  accounting.EndBatch(7);  // two of them were there at 100
  accounting.BeginBatch(300);
  EXPECT_EQ(Next(accounting), (Times{100, 300}));
  EXPECT_EQ(Next(accounting), (Times{100, 300}));
  EXPECT_EQ(Next(accounting), (Times{300, 300})) << "came after the first batch";
  accounting.EndBatch(0);
  accounting.BeginBatch(400);
  EXPECT_EQ(Next(accounting), (Times{400, 400}));
}

TEST(RequestAccountingTest, AReplayAndAStartForgetWhatWasLeft) {
  RequestAccounting accounting;
  accounting.BeginBatch(100);
  accounting.EndBatch(1);
  accounting.BeginReplay(200);
  block::Request replayed;
  accounting.Began(replayed);
  EXPECT_EQ(replayed.stamps.at_ns(RequestStage::kSeen), 200U);
  accounting.ForgetBacklog();
  accounting.BeginBatch(300);
  EXPECT_EQ(Next(accounting), (Times{300, 300}));
}

TEST(RequestAccountingTest, WhatHasEndedIsCountedWhenItIsShown) {
  ManualClock clock;
  const std::unique_ptr<Reactor> reactor = Reactor::Make(clock, {}).value();
  const auto engine = observe::EngineCounters::Make("engine-0", 1, {reactor.get()}).value();
  const auto disk = engine->AddDisk("controllers/vm", "disks/a", 0, *reactor, clock.NowNs());
  const auto reader = observe::SegmentReader::Open(engine->OpenForReaders().value()).value();
  const auto reads = [&] { return reader->Cells().at(0).ops.at(static_cast<size_t>(OpColumn::kRead)); };

  RequestAccounting accounting;
  accounting.UseCounters(engine->On(*reactor));
  accounting.BeginBatch(100);
  block::Request request;
  accounting.Began(request);
  accounting.Ended(nullptr, request, OpColumn::kRead, 512, false);
  EXPECT_FALSE(accounting.has_ended()) << "a disk that is not counted";
  accounting.Ended(disk.get(), request, OpColumn::kRead, 512, false);
  accounting.Ended(disk.get(), request, OpColumn::kRead, 512, false);
  EXPECT_TRUE(accounting.has_ended());
  EXPECT_EQ(reads().requests, 0U);
  accounting.Flush(200, 0);
  EXPECT_FALSE(accounting.has_ended());
  EXPECT_EQ(reads().requests, 2U);
  EXPECT_EQ(reads().bytes, 1024U);
}

}  // namespace
}  // namespace cleat::virtio::request_accounting_test
