// SPDX-License-Identifier: Apache-2.0
// Writes that wait for space: what waits, in which order it goes on, and every way out of waiting. In virtual time.
#include "block/space_wait.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "block/filter_device.h"
#include "block/pipeline.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::block::space_wait_test {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kBlocks = 64;

// Storage of `kBlocks` blocks, of which each takes space when it is written first.
class FullDevice final : public Device {
 public:
  explicit FullDevice(const Geometry& geometry) : Device("disks/a", geometry) {}
  uint32_t frames() const override { return 1; }
  Result<std::unique_ptr<Channel>> OpenChannel(Reactor& /*reactor*/) override {
    struct FullChannel final : Channel {
      explicit FullChannel(FullDevice& d) : device(d) {}
      void Submit(Request& request) override { device.Submit(request); }
      FullDevice& device;
    };
    return std::unique_ptr<Channel>(std::make_unique<FullChannel>(*this));
  }

  void Submit(Request& request) {
    ++submitted;
    if (hold) return held.PushBack(request);
    Answer(request);
  }
  void Answer(Request& request) {
    const uint64_t block = request.offset_bytes / kBlock;
    if (request.op == Op::kRead) {
      std::memset(request.segments.front().data(), stored.at(block), request.length_bytes);
      return request.Complete(IoStatus::kOk);
    }
    if (request.op == Op::kFlush && !flush_fails) return request.Complete(IoStatus::kOk);
    if (stored.at(block) == 0 && free_blocks == 0) return request.Fail(IoStatus::kNoSpace, why);
    if (request.op == Op::kWrite) {
      free_blocks -= stored.at(block) == 0 ? 1 : 0;
      stored.at(block) = *request.segments.front().data();
      written.push_back(block);
    }
    request.Complete(IoStatus::kOk);
  }
  void AnswerAll() {
    hold = false;
    while (Request* request = held.PopFront()) Answer(*request);
  }

  uint64_t free_blocks = 0;
  int why = ENOSPC;
  bool hold = false;
  bool flush_fails = false;
  uint64_t submitted = 0;
  RequestList held;
  std::array<uint8_t, kBlocks> stored{};
  std::vector<uint64_t> written;  // blocks, as they were
};

// Counts what passes, as limits do, and lets what has paid go below.
class CountingFilter final : public FilterDevice {
 public:
  CountingFilter(std::unique_ptr<Device> below, uint64_t& passed)
      : FilterDevice(std::move(below)), passed_(passed) {}
  Result<std::unique_ptr<Channel>> OpenChannel(Reactor& reactor) override {
    struct Counting final : FilterChannel {
      Counting(std::unique_ptr<Channel> below, uint64_t& p) : FilterChannel(std::move(below)), passed(p) {}
      void Submit(Request& request) override {
        ++passed;
        below().Submit(request);
      }
      Channel& unlimited() override { return below(); }
      uint64_t& passed;
    };
    auto channel = below().OpenChannel(reactor);
    return std::unique_ptr<Channel>(std::make_unique<Counting>(std::move(channel).value(), passed_));
  }

 private:
  uint64_t& passed_;
};

struct Io {
  Request request;
  std::vector<uint8_t> bytes = std::vector<uint8_t>(2 * kBlock);
  std::shared_ptr<MemoryRegion> region = MemoryRegion::Borrow(bytes.data(), bytes.size());
  Segment segment;
  std::optional<IoStatus> done;
};

class SpaceWaitTest : public testing::Test, private FailureListener, private FrontEnd {
 protected:
  SpaceWaitTest() {
    Geometry geometry;
    geometry.size_bytes = kBlocks * kBlock;
    geometry.discard = geometry.write_zeroes = true;
    geometry.discard_granularity_bytes = kBlock;
    geometry.discard_max_bytes = geometry.write_zeroes_max_bytes = geometry.size_bytes;
    auto owned = std::make_unique<FullDevice>(geometry);
    storage_ = owned.get();
    auto counting = std::make_unique<CountingFilter>(std::move(owned), passed_limits_);
    pipeline_ = std::move(Pipeline::Make(std::move(counting), AccessMode::kReadWrite)).value();
    On([this] { channel_ = std::move(pipeline_->OpenChannel(reactors_[0])).value(); });
    channel_->SetFailureListener(this);
    channel_->SetFrontEnd(this);
    pipeline_->SetWaitsForSpace(true);
  }
  ~SpaceWaitTest() override {
    On([this] { channel_.reset(); });
  }

  template <typename Function>
  void On(Function function) {
    reactors_[0].PostCall(std::move(function));
    reactors_.RunUntilIdle();
  }

  Io& Submit(Op op, uint64_t block, uint8_t byte = 1) {
    Io& io = *ios_.emplace_back(std::make_unique<Io>());
    const uint64_t length = op == Op::kFlush ? 0 : kBlock;
    io.request.op = op;
    io.request.offset_bytes = op == Op::kFlush ? 0 : block * kBlock;
    io.request.length_bytes = length;
    std::memset(io.bytes.data(), byte, io.bytes.size());
    io.segment = {io.region.get(), 0,
                  static_cast<uint32_t>(op == Op::kCompareAndWrite ? 2 * length : length)};
    io.request.segments = {&io.segment, length == 0 ? 0U : 1U};
    io.request.Push([](Request& r, const Frame& frame) { static_cast<Io*>(frame.layer)->done = r.status; },
                    &io);
    On([&] { channel_->Submit(io.request); });
    return io;
  }
  Io& Write(uint64_t block, uint8_t byte = 1) { return Submit(Op::kWrite, block, byte); }

  void Pass(uint64_t ns) {
    const uint64_t until_ns = reactors_.clock().NowNs() + ns;
    (void)reactors_.RunUntil([&] { return reactors_.clock().NowNs() >= until_ns; });
    if (reactors_.clock().NowNs() < until_ns) reactors_.clock().AdvanceTo(until_ns);
    reactors_.RunUntilIdle();
  }
  // The next try, and what comes of it.
  void PassRetry() { Pass(SpaceWait::kRetryNs + kNsPerMs); }

  void Failed(const Request& request) override { failed_errnos_.push_back(request.error_number); }
  void WaitForSpace(uint32_t requests) override { waiting_ = requests; }
  bool MayWait(const Request& request) const override { return !unwanted_.contains(&request); }

  test::VirtualReactors reactors_;
  FullDevice* storage_ = nullptr;
  uint64_t passed_limits_ = 0;
  std::vector<int> failed_errnos_;
  uint32_t waiting_ = 0;
  std::set<const Request*> unwanted_;
  std::deque<std::unique_ptr<Io>> ios_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<PipelineChannel> channel_;
};

TEST_F(SpaceWaitTest, WritesWaitInOrderAndGoOnWhenThereIsSpace) {
  for (const uint64_t block : {7U, 3U, 5U})
    EXPECT_EQ(Write(block, static_cast<uint8_t>(block)).done, std::nullopt);
  EXPECT_EQ(waiting_, 3U);
  EXPECT_EQ(channel_->in_flight(), 3U);
  storage_->free_blocks = 10;
  PassRetry();
  for (const auto& io : ios_) EXPECT_EQ(io->done, IoStatus::kOk);
  EXPECT_EQ(storage_->written, (std::vector<uint64_t>{7, 3, 5}));
  EXPECT_EQ(storage_->stored[3], 3);
  EXPECT_EQ(waiting_, 0U);
  EXPECT_EQ(failed_errnos_, std::vector<int>{}) << "nothing failed";
  EXPECT_EQ(reactors_[0].NextTimerNs(), kNoDeadline) << "nothing is tried any more";
}

TEST_F(SpaceWaitTest, OneIsTriedEachSecondAndTheOthersStayBehindIt) {
  for (uint64_t block = 0; block < 20; ++block) Write(block);
  const uint64_t first = storage_->submitted;
  Pass(10 * SpaceWait::kRetryNs + kNsPerMs);
  EXPECT_EQ(storage_->submitted - first, 10U);
  storage_->free_blocks = 2;
  PassRetry();
  EXPECT_EQ(storage_->written, (std::vector<uint64_t>{0, 1})) << "there was space for two";
  EXPECT_EQ(waiting_, 18U);
  storage_->free_blocks = 64;
  PassRetry();
  EXPECT_EQ(waiting_, 0U);
  EXPECT_EQ(storage_->written.back(), 19U);
}

TEST_F(SpaceWaitTest, WhatNeedsNoSpaceGoesPastThoseThatWait) {
  storage_->free_blocks = 1;
  EXPECT_EQ(Write(0).done, IoStatus::kOk);
  EXPECT_EQ(Write(1).done, std::nullopt);
  EXPECT_EQ(Write(0, 9).done, IoStatus::kOk) << "its block has space";
  EXPECT_EQ(Submit(Op::kRead, 0).done, IoStatus::kOk);
  EXPECT_EQ(Submit(Op::kFlush, 0).done, IoStatus::kOk);
  EXPECT_EQ(waiting_, 1U);
  unwanted_ = {&ios_[1]->request};
  On([this] { channel_->BeginBypass(); });
  EXPECT_EQ(ios_[1]->done, IoStatus::kNoSpace);
  channel_->EndBypass();
}

TEST_F(SpaceWaitTest, ZeroesDiscardsAndCompareAndWriteWaitToo) {
  const Io& zeroes = Submit(Op::kWriteZeroes, 1);
  const Io& discard = Submit(Op::kDiscard, 2);
  const Io& compare = Submit(Op::kCompareAndWrite, 3, 0);
  EXPECT_EQ(waiting_, 3U);
  EXPECT_EQ(channel_->in_flight(), 3U);
  PassRetry();
  EXPECT_EQ(waiting_, 3U);
  storage_->free_blocks = 10;
  PassRetry();
  for (const Io* io : {&zeroes, &discard, &compare}) EXPECT_EQ(io->done, IoStatus::kOk);
  EXPECT_EQ(channel_->in_flight(), 0U);
}

// The storage tells of what it has lost only once, so a second flush would report what did not happen.
TEST_F(SpaceWaitTest, AFlushThatFailsForWantOfSpaceIsAnswered) {
  storage_->flush_fails = true;
  EXPECT_EQ(Submit(Op::kFlush, 0).done, IoStatus::kNoSpace);
  EXPECT_EQ(failed_errnos_, std::vector<int>{ENOSPC});
}

TEST_F(SpaceWaitTest, WhatFitsIntoNoFileFailsAtOnce) {
  storage_->why = EFBIG;
  EXPECT_EQ(Write(0).done, IoStatus::kNoSpace);
  storage_->why = EDQUOT;
  EXPECT_EQ(Write(0).done, std::nullopt);
  On([this] { channel_->AbortQueued(nullptr); });
}

TEST_F(SpaceWaitTest, TheLimitsArePaidOnce) {
  Write(0);
  Pass(5 * SpaceWait::kRetryNs);
  storage_->free_blocks = 1;
  PassRetry();
  EXPECT_EQ(ios_[0]->done, IoStatus::kOk);
  EXPECT_EQ(passed_limits_, 1U);
  EXPECT_GE(storage_->submitted, 6U);
}

// The command's read and its write paid when it came.
TEST_F(SpaceWaitTest, ACompareAndWritePaysTheLimitsOnceToo) {
  const Io& compare = Submit(Op::kCompareAndWrite, 3, 0);
  Pass(5 * SpaceWait::kRetryNs);
  EXPECT_EQ(passed_limits_, 2U);
  storage_->free_blocks = 1;
  PassRetry();
  EXPECT_EQ(compare.done, IoStatus::kOk);
  EXPECT_EQ(passed_limits_, 2U);
}

TEST_F(SpaceWaitTest, WithoutTheSettingWritesFail) {
  pipeline_->SetWaitsForSpace(false);
  EXPECT_EQ(Write(0).done, IoStatus::kNoSpace);
  EXPECT_EQ(failed_errnos_, std::vector<int>{ENOSPC});
}

TEST_F(SpaceWaitTest, WhenTheSettingEndsWhatWaitsFails) {
  Write(0);
  Write(1);
  pipeline_->SetWaitsForSpace(false);
  PassRetry();
  for (const auto& io : ios_) EXPECT_EQ(io->done, IoStatus::kNoSpace);
  EXPECT_EQ(failed_errnos_, (std::vector<int>{ENOSPC, ENOSPC}))
      << "told as a failure now, in the storage's words";
  EXPECT_EQ(waiting_, 0U);
}

// The front end says which requests are of a queue that drains.
TEST_F(SpaceWaitTest, WhatIsOfAQueueThatDrainsWaitsNoLonger) {
  Write(0);
  Write(1);
  storage_->hold = true;
  PassRetry();  // the storage has the first one now
  unwanted_ = {&ios_[0]->request, &ios_[1]->request};
  On([this] { channel_->BeginBypass(); });
  EXPECT_EQ(ios_[1]->done, IoStatus::kNoSpace);
  EXPECT_EQ(ios_[0]->done, std::nullopt);
  On([this] { storage_->AnswerAll(); });
  EXPECT_EQ(ios_[0]->done, IoStatus::kNoSpace);
  EXPECT_EQ(waiting_, 0U);
  channel_->EndBypass();
  EXPECT_EQ(channel_->in_flight(), 0U);
}

TEST_F(SpaceWaitTest, OneQueueThatDrainsEndsNoWaitOfAnother) {
  for (uint64_t block = 0; block < 4; ++block) Write(block);
  unwanted_ = {&ios_[0]->request, &ios_[2]->request};
  On([this] { channel_->BeginBypass(); });
  EXPECT_EQ(ios_[0]->done, IoStatus::kNoSpace);
  EXPECT_EQ(ios_[1]->done, std::nullopt);
  EXPECT_EQ(ios_[2]->done, IoStatus::kNoSpace);
  EXPECT_EQ(Write(4).done, std::nullopt) << "what comes meanwhile waits too";
  // Another one drains before the first has.
  unwanted_ = {&ios_[3]->request};
  On([this] { channel_->BeginBypass(); });
  EXPECT_EQ(ios_[3]->done, IoStatus::kNoSpace);
  EXPECT_EQ(waiting_, 2U);
  storage_->free_blocks = 2;
  PassRetry();
  EXPECT_EQ(storage_->written, (std::vector<uint64_t>{1, 4})) << "tried while the others drain";
  channel_->EndBypass();
  channel_->EndBypass();
}

TEST_F(SpaceWaitTest, WithoutAFrontEndNothingWaitsWhileAQueueDrains) {
  channel_->SetFrontEnd(nullptr);
  Write(0);
  On([this] { channel_->BeginBypass(); });
  EXPECT_EQ(ios_[0]->done, IoStatus::kNoSpace);
  EXPECT_EQ(Write(1).done, IoStatus::kNoSpace);
  channel_->EndBypass();
  EXPECT_EQ(Write(2).done, std::nullopt);
  On([this] { channel_->AbortQueued(nullptr); });
}

TEST_F(SpaceWaitTest, AnAbortTakesOneOrAll) {
  for (uint64_t block = 0; block < 4; ++block) Write(block);
  On([this] { channel_->AbortQueued(&ios_[2]->request); });
  EXPECT_EQ(ios_[2]->done, IoStatus::kAborted);
  EXPECT_EQ(waiting_, 3U);
  On([this] { channel_->AbortQueued(&ios_[2]->request); });
  EXPECT_EQ(waiting_, 3U) << "it is not here any more";
  On([this] { channel_->AbortQueued(nullptr); });
  for (const auto& io : ios_) EXPECT_EQ(io->done, IoStatus::kAborted);
  EXPECT_EQ(waiting_, 0U);
  EXPECT_EQ(channel_->in_flight(), 0U);
}

// Aborted while the storage has it, for the first time or again: whoever aborts waits for its end.
TEST_F(SpaceWaitTest, WhatItsFrontEndHasGivenUpDoesNotWait) {
  storage_->hold = true;
  Io& fresh = Write(0);
  unwanted_ = {&fresh.request};
  On([&] { channel_->AbortQueued(&fresh.request); });
  On([this] { storage_->AnswerAll(); });
  EXPECT_EQ(fresh.done, IoStatus::kNoSpace);

  Io& again = Write(1);
  Write(2);
  storage_->hold = true;
  PassRetry();
  unwanted_ = {&again.request};
  On([&] { channel_->AbortQueued(&again.request); });
  On([this] { storage_->AnswerAll(); });
  EXPECT_EQ(again.done, IoStatus::kNoSpace);
  EXPECT_EQ(waiting_, 1U);
  storage_->free_blocks = 1;
  PassRetry();
  EXPECT_EQ(ios_[2]->done, IoStatus::kOk) << "the next one is tried all the same";
}

TEST_F(SpaceWaitTest, OfTwoChannelsEachGoesOnByItself) {
  std::unique_ptr<PipelineChannel> other;
  On([&] { other = std::move(pipeline_->OpenChannel(reactors_[0])).value(); });
  Write(0);
  std::swap(channel_, other);
  Write(1);
  storage_->free_blocks = 2;
  PassRetry();
  EXPECT_EQ(ios_[0]->done, IoStatus::kOk);
  EXPECT_EQ(ios_[1]->done, IoStatus::kOk);
  On([&] { other.reset(); });
}

// A COMPARE AND WRITE does not wait for what waits for space, and what it holds back is not written under it.
TEST_F(SpaceWaitTest, ACompareAndWriteGoesPastAWriteThatWaits) {
  storage_->free_blocks = 1;
  EXPECT_EQ(Write(4, 0).done, IoStatus::kOk);
  storage_->stored[4] = 1;
  Write(5);
  EXPECT_EQ(Submit(Op::kCompareAndWrite, 4, 1).done, IoStatus::kOk);
  EXPECT_EQ(waiting_, 1U);
  storage_->free_blocks = 1;
  PassRetry();
  EXPECT_EQ(waiting_, 0U);
}

}  // namespace
}  // namespace cleat::block::space_wait_test
