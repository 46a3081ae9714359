// SPDX-License-Identifier: Apache-2.0
// A queue that one reactor has and another one decides about, in turns of one thread: what comes arrives whole and in order, and what has ended at one end
// ends at the other, whatever was on its way.
#include "nvmf_target/rdma/relay_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "block/segments.h"
#include "nvmf_target/rdma/relay_end.h"

namespace cleat::nvmf_target::relay_test {
namespace {

using nvme::fabrics::SubmissionEntry;
using nvme::fabrics::TargetCommand;
using Bytes = std::vector<uint8_t>;

// The transport's queue: hosts' commands come by Come, and what is answered is given back with Sent.
class FakeQueue final : public nvme::fabrics::TargetQueue {
 public:
  // False: it waits.
  bool Come(uint16_t cid, uint32_t data_bytes, const Bytes& in_capsule = {}) {
    coming_.push_back({cid, data_bytes, in_capsule});
    if (coming_.size() == 1) Resume();
    return coming_.empty();
  }
  void Resume() override {
    while (!coming_.empty() && !ended_) {
      const Coming& next = coming_.front();
      SubmissionEntry entry;
      entry.cid = next.cid;
      TargetCommand* const command = owner_->Take(entry, static_cast<uint32_t>(next.in_capsule.size()));
      if (command == nullptr) return;
      command->entry = entry;
      command->in_capsule = !next.in_capsule.empty();
      command->data_bytes = next.data_bytes;
      if (command->in_capsule)
        block::Scatter(next.in_capsule.data(), next.in_capsule.size(), command->data, 0);
      command->state = TargetCommand::State::kRunning;
      coming_.pop_front();
      Begin(*command);
      owner_->Run(*command);
    }
  }
  bool waits() const override { return !coming_.empty(); }
  using TargetQueue::Answer;
  void Ask(TargetCommand& command) override {
    command.state = TargetCommand::State::kAsked;
    asked.push_back(&command);
  }
  void DataComes(const Bytes& data) {
    TargetCommand& command = *std::exchange(asked.front(), nullptr);
    asked.pop_front();
    block::Scatter(data.data(), data.size(), command.data, 0);
    command.state = TargetCommand::State::kRunning;
    owner_->DataCame(command);
  }
  void Answer(TargetCommand& command, nvme::Status status, uint64_t result, uint32_t data_bytes) override {
    if (ended_) return GiveBack(command);
    Bytes data(data_bytes);
    if (data_bytes > 0) block::Gather(command.data, 0, data.data(), data_bytes);
    command.state = TargetCommand::State::kAnswering;
    answered.push_back({command.entry.cid, status.field(), result, std::move(data)});
    sending_.push_back(&command);
  }
  void Sent() {
    while (!sending_.empty()) {
      TargetCommand* const command = sending_.front();
      sending_.pop_front();
      GiveBack(*command);
    }
  }
  // What the adapter has comes back with Sent.
  void Abort(const Error& reason) override {
    if (std::exchange(ended_, true)) return;
    for (TargetCommand* const command : asked) sending_.push_back(command);
    asked.clear();
    owner_->Ended(reason);
  }

  struct Answered {
    uint16_t cid;
    uint16_t status;
    uint64_t result;
    Bytes data;
  };
  std::vector<Answered> answered;
  std::deque<TargetCommand*> asked;

 private:
  struct Coming {
    uint16_t cid;
    uint32_t data_bytes;
    Bytes in_capsule;
  };
  std::deque<Coming> coming_;
  std::deque<TargetCommand*> sending_;
};

// Whoever decides, as an AdminQueue does.
class Decider final : public nvme::fabrics::TargetQueueOwner, public TransportOwner {
 public:
  struct Command : TargetCommand {
    Bytes memory;
    std::shared_ptr<block::MemoryRegion> region;
    block::Segment segment;
    void Resize(size_t bytes) {
      memory.assign(bytes, 0);
      region = bytes == 0 ? nullptr : block::MemoryRegion::Borrow(memory.data(), bytes);
      segment = {region.get(), 0, static_cast<uint32_t>(bytes)};
      data = {&segment, bytes == 0 ? 0U : 1U};
    }
  };
  TargetCommand* Take(const SubmissionEntry& /*entry*/, uint32_t in_capsule_bytes) override {
    if (!takes) return nullptr;
    commands.push_back(std::make_unique<Command>());
    commands.back()->Resize(in_capsule_bytes);
    return commands.back().get();
  }
  TargetCommand* Find(uint16_t /*tag*/) override { return nullptr; }
  void Run(TargetCommand& command) override { ran.push_back(static_cast<Command*>(&command)); }
  void DataCame(TargetCommand& command) override { came.push_back(static_cast<Command*>(&command)); }
  void Give(TargetCommand& /*command*/) override { ++given; }
  void Ended(const Error& reason) override { ends.push_back(reason.message); }
  std::span<uint8_t> ReceiveBuffer() override { return {}; }
  void EndTurn() override { ++turns; }

  bool takes = true;
  std::vector<std::unique_ptr<Command>> commands;
  std::vector<Command*> ran, came;
  std::vector<std::string> ends;
  int given = 0;
  int turns = 0;
};

class RelayTest : public ::testing::Test, public RelayedQueue {
 protected:
  // As RdmaLink has it, where the two are on two reactors.
  void Make(uint32_t commands_max) {
    relay_ = std::make_shared<RelayQueue>(*reactor_, *this);
    end_ = std::make_unique<RelayEnd>(*reactor_, relay_, commands_max);
    nvme::fabrics::TargetQueueOwner& owner = *end_;
    queue_.SetOwner(owner);
    end_->SetQueue(queue_);
    relay_->SetOwner(decider_);
    relay_->Start(decider_);
    Turn();
  }
  void TearDown() override {
    relay_->Abort({ErrorCode::kUnavailable, "the test is over"});
    for (const auto& command : decider_.commands) {
      if (command->state == TargetCommand::State::kRunning) relay_->Answer(*command, nvme::Status(0));
    }
    Turn();
    queue_.Sent();
    Turn();
    EXPECT_EQ(relay_->commands() + queue_.commands(), 0U);
    relay_->Stop();
  }
  void Turn() {
    for (int i = 0; i < 8; ++i) {
      clock_.AdvanceBy(kNsPerUs);
      reactor_->RunOnce();
    }
  }
  void BecomeQueue(uint32_t /*entries*/, bool /*flow_control*/, uint32_t /*in_capsule_bytes*/) override {}
  void Ask(uint16_t tag, uint32_t bytes) override {
    reactor_->PostCall([=, this] { end_->Ask(tag, bytes); });
  }
  void Answer(uint16_t tag, nvme::Status status, uint64_t result, Bytes data) override {
    reactor_->PostCall([=, this, data = std::move(data)] { end_->Answer(tag, status, result, data); });
  }
  void Abort(const Error& reason) override {
    reactor_->PostCall([this, reason] { queue_.Abort(reason); });
  }
  void TakeNext() override {
    reactor_->PostCall([this] { end_->TakeNext(); });
  }

  ManualClock clock_;
  std::unique_ptr<Reactor> reactor_ = std::move(Reactor::Make(clock_, {})).value();
  FakeQueue queue_;
  Decider decider_;
  std::shared_ptr<RelayQueue> relay_;
  std::unique_ptr<RelayEnd> end_;
};

TEST_F(RelayTest, ACommandComesWithItsDataAndIsAnswered) {
  Make(32);
  EXPECT_TRUE(queue_.Come(7, 4, {1, 2, 3, 4}));
  EXPECT_TRUE(queue_.Come(8, 3));
  Turn();
  ASSERT_EQ(decider_.ran.size(), 2U);
  EXPECT_EQ(decider_.ran[0]->memory, Bytes({1, 2, 3, 4}));
  EXPECT_TRUE(decider_.ran[0]->in_capsule);
  relay_->Answer(*decider_.ran[0], nvme::Status(0x4002), 5, 0);
  decider_.ran[1]->Resize(3);
  relay_->Ask(*decider_.ran[1]);
  Turn();
  queue_.DataComes({9, 8, 7});
  Turn();
  ASSERT_EQ(decider_.came.size(), 1U);
  EXPECT_EQ(decider_.came[0]->memory, Bytes({9, 8, 7}));
  decider_.came[0]->Resize(2);
  decider_.came[0]->memory = {42, 43};
  relay_->Answer(*decider_.came[0], nvme::Status(0), 0, 2);
  Turn();
  ASSERT_EQ(queue_.answered.size(), 2U);
  EXPECT_EQ(queue_.answered[0].cid, 7);
  EXPECT_EQ(queue_.answered[0].status, 0x4002);
  EXPECT_EQ(queue_.answered[0].result, 5U);
  EXPECT_EQ(queue_.answered[1].data, Bytes({42, 43}));
  EXPECT_EQ(decider_.given, 0);
  queue_.Sent();
  Turn();
  EXPECT_EQ(decider_.given, 2);
}

TEST_F(RelayTest, OneByOneTheNextCommandComesOnceTheOneBeforeIsAnsweredAndTheOwnerIsThereStill) {
  Make(1);
  EXPECT_TRUE(queue_.Come(1, 0));
  EXPECT_FALSE(queue_.Come(2, 0));
  Turn();
  ASSERT_EQ(decider_.ran.size(), 1U);
  relay_->Answer(*decider_.ran[0], nvme::Status(0));
  Turn();
  EXPECT_TRUE(queue_.waits());
  queue_.Sent();
  Turn();
  ASSERT_EQ(decider_.ran.size(), 2U);
  EXPECT_FALSE(queue_.Come(3, 0));
  relay_->Answer(*decider_.ran[1], nvme::Status(0));
  Turn();
  // The queue moves with that: what comes behind waits for whom it moves to.
  relay_->Stop();
  queue_.Sent();
  Turn();
  EXPECT_EQ(decider_.ran.size(), 2U);
  EXPECT_TRUE(queue_.waits());
}

TEST_F(RelayTest, WhatTheOwnerHasNoRoomForWaitsInOrder) {
  Make(32);
  decider_.takes = false;
  for (uint16_t cid = 0; cid < 3; ++cid) EXPECT_TRUE(queue_.Come(cid, 0));
  Turn();
  EXPECT_TRUE(relay_->waits());
  decider_.takes = true;
  relay_->Resume();
  ASSERT_EQ(decider_.ran.size(), 3U);
  for (uint16_t cid = 0; cid < 3; ++cid) EXPECT_EQ(decider_.ran[cid]->entry.cid, cid);
}

TEST_F(RelayTest, TheHostsEndIsHeardAndAnswersToItGoNowhere) {
  Make(32);
  queue_.Come(1, 0);
  queue_.Come(2, 8);
  Turn();
  decider_.ran[1]->Resize(8);
  relay_->Ask(*decider_.ran[1]);
  Turn();
  queue_.Abort({ErrorCode::kUnavailable, "the host has left"});
  Turn();
  EXPECT_EQ(decider_.ends, std::vector<std::string>{"the host has left"});
  EXPECT_EQ(decider_.given, 1);  // the one whose data was awaited
  relay_->Answer(*decider_.ran[0], nvme::Status(0));
  EXPECT_EQ(decider_.given, 2);
  Turn();
  EXPECT_TRUE(queue_.answered.empty());
  // The adapter may have the memory of the other one still.
  EXPECT_EQ(queue_.commands(), 1U);
}

TEST_F(RelayTest, TheOwnersEndIsHeardByTheQueueBehindWhatItWasTold) {
  Make(32);
  queue_.Come(1, 0);
  queue_.Come(2, 0);
  Turn();
  relay_->Answer(*decider_.ran[0], nvme::Status(0));
  relay_->Abort({ErrorCode::kUnavailable, "closed"});
  EXPECT_EQ(decider_.ends, std::vector<std::string>{"closed"});
  Turn();
  EXPECT_TRUE(queue_.ended());
  ASSERT_EQ(queue_.answered.size(), 1U);
  EXPECT_EQ(queue_.answered[0].cid, 1);
  EXPECT_EQ(decider_.ends.size(), 1U);
}

TEST_F(RelayTest, MoreDataThanTheHostHasMemoryForIsNotSent) {
  Make(32);
  queue_.Come(1, 2);
  Turn();
  decider_.ran[0]->Resize(3);
  relay_->Answer(*decider_.ran[0], nvme::Status(0), 0, 3);
  Turn();
  ASSERT_EQ(queue_.answered.size(), 1U);
  EXPECT_NE(queue_.answered[0].status, 0);
  EXPECT_TRUE(queue_.answered[0].data.empty());
}

}  // namespace
}  // namespace cleat::nvmf_target::relay_test
