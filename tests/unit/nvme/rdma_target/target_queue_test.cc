// SPDX-License-Identifier: Apache-2.0
// What a controller's queue posts to its queue pair, when memory comes back, and what becomes of hosts that break the rules.
#include "nvme/rdma_target/target_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/nvme/rdma_target/scripted_verbs.h"

namespace cleat::nvme::rdma_target::target_queue_test {
namespace {

using fabrics::CompletionEntry;
using fabrics::SubmissionEntry;
using rdma::KeyedDescriptor;
using rdma::MakeKeyed;
using verbs::SendOp;
using verbs::WorkStatus;

constexpr uint32_t kCommandBytes = 8192;
constexpr uint32_t kInCapsuleBytes = 512;
constexpr uint32_t kEntries = 4;
constexpr uint32_t kDataKey = 70;
constexpr uint32_t kOwnKey = 71;
constexpr uint32_t kStagingBytes = 1024;
constexpr nvme::Status kSuccess{0};
constexpr uint8_t kWrite = 1;
constexpr uint8_t kRead = 2;

class RdmaTargetQueueTest : public testing::Test {
 protected:
  RdmaTargetQueueTest()
      : memory_(kCommandBytes * 8),
        region_(block::MemoryRegion::Borrow(memory_.data(), memory_.size())),
        slots_(TargetAdapter::SlotMemoryBytes(16, kInCapsuleBytes)),
        own_(kStagingBytes * 2 + 64),
        owner_(8, region_, kCommandBytes),
        pair_(std::make_unique<ScriptedPair>(5)) {}
  ~RdmaTargetQueueTest() override {
    if (queue_ != nullptr) End();
  }

  static verbs::LocalPiece PieceOf(std::vector<uint8_t>& bytes, size_t from, size_t count, uint32_t key) {
    return {std::bit_cast<uint64_t>(bytes.data() + from), static_cast<uint32_t>(count), key};
  }
  // With the limits that pair_ has by now.
  void Make(bool registered = true) {
    adapter_ = std::make_unique<TargetAdapter>(
        TargetAdapterOptions{.slots = 16,
                             .in_capsule_bytes = kInCapsuleBytes,
                             .slot_memory = PieceOf(slots_, 0, slots_.size(), 1),
                             .completions_max = 256,
                             .reads_max = 64},
        queues_, queues_);
    if (registered) {
      ASSERT_TRUE(adapter_->keys().Add(region_.get(), kDataKey).ok());
    }
    adapter_->Post();
    queue_ = MakeQueue(*pair_);
    queue_->BecomeQueue(kEntries, true, kInCapsuleBytes);
  }
  std::unique_ptr<TargetQueue> MakeQueue(ScriptedPair& pair) {
    return std::make_unique<TargetQueue>(
        *adapter_, pair,
        TargetQueueOptions{.name = "10.0.0.7:41234",
                           .entries_max = kEntries,
                           .staging_in = PieceOf(own_, 64, kStagingBytes, kOwnKey),
                           .staging_out = PieceOf(own_, 64 + kStagingBytes, kStagingBytes, kOwnKey),
                           .entry_memory = PieceOf(own_, 0, 64, kOwnKey)},
        owner_);
  }
  // Of the queue; whatever runs is answered.
  void End() {
    queue_->Abort({ErrorCode::kCancelled, "the test's end"});
    while (!owner_.ran.empty()) {
      fabrics::TargetCommand* const command = owner_.ran.back();
      owner_.ran.pop_back();
      if (command->state == fabrics::TargetCommand::State::kRunning) queue_->Answer(*command, kSuccess);
    }
    if (pair_ != nullptr) Destroy();
    EXPECT_EQ(queue_->commands(), 0U);
    queue_.reset();
  }
  void Destroy() {
    pair_.reset();
    queue_->Destroyed();
  }

  void Arrives(const std::vector<uint8_t>& capsule, uint32_t number = 5) {
    ASSERT_FALSE(queues_.receives.empty());
    const verbs::ReceiveWork slot = queues_.receives.front();
    queues_.receives.pop_front();
    ASSERT_LE(capsule.size(), slot.piece.length_bytes);
    if (!capsule.empty())
      std::memcpy(std::bit_cast<uint8_t*>(slot.piece.address), capsule.data(), capsule.size());
    queues_.pending.push_back(
        {.id = slot.id, .queue_pair = number, .received_bytes = static_cast<uint32_t>(capsule.size())});
    adapter_->Poll(64);
  }
  static std::vector<uint8_t> CapsuleOf(uint8_t opcode, uint16_t cid,
                                        const std::vector<KeyedDescriptor>& data) {
    SubmissionEntry entry;
    entry.opcode = opcode;
    entry.cid = cid;
    std::vector<uint8_t> bytes(sizeof(entry));
    if (data.size() == 1) {
      entry.data = rdma::EntryDescriptorOf(data[0]);
    } else if (!data.empty()) {
      entry.data.type = rdma::kSglLastInCapsule;
      entry.data.length_bytes = static_cast<uint32_t>(data.size()) * rdma::kDescriptorBytes;
      bytes.resize(sizeof(entry) + entry.data.length_bytes);
      std::memcpy(bytes.data() + sizeof(entry), data.data(), entry.data.length_bytes);
    }
    std::memcpy(bytes.data(), &entry, sizeof(entry));
    return bytes;
  }
  fabrics::TargetCommand& Ran(const std::vector<uint8_t>& capsule) {
    Arrives(capsule);
    CLEAT_CHECK(!owner_.ran.empty());
    return *owner_.ran.back();
  }

  void Completes(size_t work, WorkStatus status = WorkStatus::kDone) {
    queues_.pending.push_back({.id = pair_->posted[work].work.id, .queue_pair = 5, .status = status});
    adapter_->Poll(64);
  }
  CompletionEntry EntryAt(size_t work) const {
    CompletionEntry entry;
    CLEAT_CHECK(pair_->posted[work].bytes.size() == sizeof(entry));
    std::memcpy(&entry, pair_->posted[work].bytes.data(), sizeof(entry));
    return entry;
  }
  SendOp OpAt(size_t work) const { return pair_->posted[work].work.op; }

  std::vector<uint8_t> memory_;
  std::shared_ptr<block::MemoryRegion> region_;
  std::vector<uint8_t> slots_;
  std::vector<uint8_t> own_;
  KeepingOwner owner_;
  ScriptedQueues queues_;
  std::unique_ptr<ScriptedPair> pair_;
  std::unique_ptr<TargetAdapter> adapter_;
  std::unique_ptr<TargetQueue> queue_;
};

TEST_F(RdmaTargetQueueTest, ReadsTheDataOfAWriteAndAnswersOnceAllOfItHasCome) {
  Make();
  auto& command =
      Ran(CapsuleOf(kWrite, 9, {MakeKeyed(0x1000, 4096, 11, false), MakeKeyed(0x9000, 1024, 12, false)}));
  EXPECT_EQ(command.data_bytes, 5120U);
  queue_->Ask(command);
  EXPECT_TRUE(pair_->posted.empty()) << "with the turn's other works";
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 2U);
  EXPECT_EQ(pair_->doorbells, 1U);
  EXPECT_EQ(OpAt(0), SendOp::kRead);
  EXPECT_EQ(pair_->posted[0].work.remote_address, 0x1000U);
  EXPECT_EQ(pair_->posted[0].work.key, 11U);
  EXPECT_EQ(pair_->posted[1].work.remote_address, 0x9000U);
  EXPECT_EQ(pair_->posted[1].work.key, 12U);
  ASSERT_EQ(pair_->posted[0].pieces.size(), 2U) << "its memory is in two pieces";
  EXPECT_EQ(pair_->posted[0].pieces[0].address, std::bit_cast<uint64_t>(command.data[0].data()));
  EXPECT_EQ(pair_->posted[0].pieces[0].length_bytes, 2048U);
  EXPECT_EQ(pair_->posted[0].pieces[1].length_bytes, 2048U);
  EXPECT_EQ(pair_->posted[0].pieces[1].local_key, kDataKey);
  EXPECT_EQ(pair_->posted[1].pieces[0].address, std::bit_cast<uint64_t>(command.data[1].data() + 2048));
  Completes(0);
  EXPECT_TRUE(owner_.came.empty());
  Completes(1);
  ASSERT_EQ(owner_.came.size(), 1U);
  queue_->Answer(command, kSuccess, 0x1122, 0);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 3U);
  EXPECT_EQ(OpAt(2), SendOp::kSend);
  EXPECT_EQ(EntryAt(2).cid, 9);
  EXPECT_EQ(EntryAt(2).result, 0x1122U);
  EXPECT_EQ(EntryAt(2).sq_head, 1);
  EXPECT_TRUE(owner_.given.empty());
  Completes(2);
  EXPECT_EQ(owner_.given.size(), 1U);
}

TEST_F(RdmaTargetQueueTest, WritesTheDataOfAReadBeforeItsEntryByOneDoorbell) {
  Make();
  auto& command = Ran(CapsuleOf(kRead, 3, {MakeKeyed(0x5000, 8192, 21, true)}));
  std::fill(memory_.begin(), memory_.end(), 0x6b);
  queue_->Answer(command, kSuccess, 0, 8192);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 2U);
  EXPECT_EQ(pair_->doorbells, 1U);
  EXPECT_EQ(OpAt(0), SendOp::kWrite);
  EXPECT_FALSE(pair_->posted[0].work.signaled);
  EXPECT_EQ(pair_->posted[0].bytes, std::vector<uint8_t>(8192, 0x6b));
  EXPECT_EQ(OpAt(1), SendOp::kSendAndInvalidate);
  EXPECT_EQ(pair_->posted[1].work.key, 21U);
  EXPECT_TRUE(pair_->posted[1].work.signaled);
  EXPECT_TRUE(pair_->posted[1].work.copies_data);
  Completes(1);
  EXPECT_EQ(owner_.given.size(), 1U);
}

TEST_F(RdmaTargetQueueTest, MemoryComesBackWithItsLastCompletionHoweverTheQueueEnded) {
  Make();
  auto& asked = Ran(CapsuleOf(kWrite, 1, {MakeKeyed(0, 100, 1, false), MakeKeyed(0, 100, 1, false)}));
  auto& answered = Ran(CapsuleOf(kRead, 2, {MakeKeyed(0, 100, 1, false)}));
  auto& runs = Ran(CapsuleOf(kRead, 3, {MakeKeyed(0, 100, 1, false)}));
  queue_->Ask(asked);
  queue_->Answer(answered, kSuccess, 0, 100);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 4U);
  queue_->Abort({ErrorCode::kDeadlineExceeded, "keep alive"});
  queue_->Abort({ErrorCode::kDeadlineExceeded, "again"});
  EXPECT_EQ(owner_.ends, std::vector<std::string>{"keep alive"});
  EXPECT_EQ(pair_->breaks, 1U);
  EXPECT_TRUE(owner_.given.empty());
  EXPECT_EQ(queue_->with_adapter(), 2U);
  Completes(0, WorkStatus::kFlushed);  // the WRITE, which says nothing of what is behind it
  EXPECT_TRUE(owner_.given.empty());
  Completes(1, WorkStatus::kFlushed);
  EXPECT_EQ(owner_.given, std::vector{&answered});
  Completes(2);
  EXPECT_EQ(owner_.given.size(), 1U);
  Completes(3, WorkStatus::kFlushed);
  EXPECT_EQ(owner_.given, (std::vector{&answered, &asked}));
  EXPECT_TRUE(owner_.came.empty()) << "nothing comes behind the end";
  queue_->Answer(runs, kSuccess, 0, 100);
  EXPECT_EQ(owner_.given.size(), 3U) << "at once";
}

TEST_F(RdmaTargetQueueTest, WhatNeverCompletesComesBackWithTheQueuePair) {
  Make();
  auto& asked = Ran(CapsuleOf(kWrite, 1, {MakeKeyed(0, 100, 1, false)}));
  auto& answered = Ran(CapsuleOf(kRead, 2, {MakeKeyed(0, 100, 1, false)}));
  queue_->Ask(asked);
  queue_->Answer(answered, kSuccess, 0, 100);
  pair_->takes = 1;
  adapter_->Post();
  EXPECT_EQ(owner_.ends.size(), 1U) << "the adapter has not taken all of it";
  EXPECT_TRUE(owner_.given.empty());
  Destroy();
  EXPECT_EQ(owner_.given.size(), 2U);
  EXPECT_EQ(adapter_->scheduler().outstanding(), 0U);
}

TEST_F(RdmaTargetQueueTest, EndsForEachRuleThatAHostBreaksAndSaysWhich) {
  struct Case {
    std::vector<uint8_t> capsule;
    uint32_t before;  // commands that run
    const char* rule;
  };
  const auto good = CapsuleOf(kRead, 1, {MakeKeyed(0, 100, 1, false)});
  const Case cases[] = {
      {{}, 0, "a capsule of 0 bytes, 64 at least"},
      {std::vector<uint8_t>(63), 0, "a capsule of 63 bytes, 64 at least"},
      {std::vector<uint8_t>(64 + 257), 0, "a capsule with 257 bytes behind its entry, 256 at most"},
      {good, 4, "a command more than the 4 for which its queue has entries"}};
  for (const Case& one : cases) {
    pair_ = std::make_unique<ScriptedPair>(5);
    owner_.ends.clear();
    queues_.receives.clear();
    Make();
    queue_->BecomeQueue(kEntries, true, 256);
    for (uint32_t i = 0; i < one.before; ++i) Ran(good);
    Arrives(one.capsule);
    ASSERT_EQ(owner_.ends.size(), 1U) << one.rule;
    EXPECT_EQ(owner_.ends[0], std::string("10.0.0.7:41234: the host has sent what it may not: ") + one.rule);
    EXPECT_EQ(queues_.receives.size(), 16U) << "memory for capsules is there again";
    End();
  }
}

TEST_F(RdmaTargetQueueTest, AHostMaySendAgainOnceItsAnswerIsPosted) {
  Make();
  const auto good = CapsuleOf(kRead, 1, {});
  for (uint32_t i = 0; i < kEntries; ++i) Ran(good);
  queue_->Answer(*owner_.ran[0], kSuccess);
  adapter_->Post();
  Arrives(good);
  EXPECT_TRUE(owner_.ends.empty()) << "the host may have the answer before its completion is here";
  EXPECT_EQ(owner_.ran.size(), kEntries + 1U);
}

TEST_F(RdmaTargetQueueTest, AnswersWrongDescriptorsAndRunsNothing) {
  Make();
  Arrives(CapsuleOf(kWrite, 6, {MakeKeyed(0, fabrics::kTransferBytesMax + 1, 1, true)}));
  EXPECT_TRUE(owner_.ran.empty());
  ASSERT_EQ(pair_->posted.size(), 1U);
  EXPECT_EQ(EntryAt(0).status().code(), 0x0f);
  EXPECT_EQ(EntryAt(0).cid, 6);
  EXPECT_EQ(OpAt(0), SendOp::kSend);
}

TEST_F(RdmaTargetQueueTest, AnswersWaitForRoomInTheirOrder) {
  pair_->told = {.works = 4, .pieces = 1, .inline_bytes = 16, .read_credits = 1};
  Make();
  // Two WRITEs each, since a work has one piece.
  auto& first = Ran(CapsuleOf(kRead, 1, {MakeKeyed(0, 8192, 1, false)}));
  auto& second = Ran(CapsuleOf(kRead, 2, {MakeKeyed(0, 8192, 1, false)}));
  auto& third = Ran(CapsuleOf(kWrite, 3, {MakeKeyed(0, 100, 1, false)}));
  queue_->Answer(first, kSuccess, 0, 8192);
  queue_->Answer(second, kSuccess, 0, 8192);
  queue_->Ask(third);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 4U);
  EXPECT_EQ(OpAt(2), SendOp::kSend);
  EXPECT_EQ(OpAt(3), SendOp::kRead) << "which has a place of its own";
  Completes(2);
  ASSERT_EQ(pair_->posted.size(), 7U);
  EXPECT_EQ(EntryAt(6).cid, 2);
  EXPECT_EQ(owner_.given.size(), 1U);
}

TEST_F(RdmaTargetQueueTest, AnAnswerThatIsLargerThanTheSendQueueGoesInParts) {
  pair_->told = {.works = 4, .pieces = 1, .inline_bytes = 16, .read_credits = 1};
  Make();
  std::vector<KeyedDescriptor> descriptors;
  for (uint32_t i = 0; i < 4; ++i) descriptors.push_back(MakeKeyed(i * 512, 512, 1, false));
  auto& command = Ran(CapsuleOf(kRead, 1, descriptors));
  queue_->Answer(command, kSuccess, 0, 2048);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 3U);
  EXPECT_TRUE(pair_->posted[2].work.signaled) << "else its room would never come back";
  Completes(2);
  ASSERT_EQ(pair_->posted.size(), 5U);
  EXPECT_TRUE(owner_.given.empty());
  Completes(4);
  EXPECT_EQ(owner_.given.size(), 1U);
}

TEST_F(RdmaTargetQueueTest, CapsulesThatFindNoCommandWaitInOrder) {
  Make();
  auto taken = std::move(owner_.free);
  owner_.free = {taken[0]};
  for (uint16_t cid = 1; cid <= 3; ++cid) Arrives(CapsuleOf(kRead, cid, {}));
  EXPECT_EQ(owner_.ran.size(), 1U);
  EXPECT_TRUE(queue_->waits());
  owner_.free = {taken[1]};
  Arrives(CapsuleOf(kRead, 4, {}));
  EXPECT_EQ(owner_.ran.size(), 1U) << "behind the others";
  queue_->Resume();
  ASSERT_EQ(owner_.ran.size(), 2U);
  EXPECT_EQ(owner_.ran[1]->entry.cid, 2);
  adapter_->Post();
  EXPECT_EQ(queues_.receives.size(), 14U) << "two wait";
  queue_->Abort({ErrorCode::kCancelled, "end"});
  adapter_->Post();
  EXPECT_EQ(queues_.receives.size(), 16U);
}

TEST_F(RdmaTargetQueueTest, DataInACapsuleIsThereWhenTheCommandRuns) {
  Make();
  SubmissionEntry entry;
  entry.opcode = kWrite;
  entry.data = {.address = 4, .length_bytes = 300, .reserved = {}, .type = fabrics::kSglInCapsule};
  std::vector<uint8_t> capsule(64 + 304, 0x77);
  std::memcpy(capsule.data(), &entry, sizeof(entry));
  std::fill_n(capsule.begin() + 68, 300, 0x12);
  auto& command = Ran(capsule);
  EXPECT_TRUE(command.in_capsule);
  EXPECT_EQ(command.data_bytes, 300U);
  EXPECT_TRUE(
      std::all_of(command.data[0].data(), command.data[0].data() + 300, [](uint8_t b) { return b == 0x12; }));
  EXPECT_EQ(queues_.receives.size(), 16U) << "posted anew";
}

TEST_F(RdmaTargetQueueTest, DataOfMemoryThatIsNotRegisteredIsCopiedRoundByRound) {
  Make(false);
  auto& asked = Ran(CapsuleOf(kWrite, 1, {MakeKeyed(0x4000, 1500, 1, false)}));
  auto& next = Ran(CapsuleOf(kWrite, 2, {MakeKeyed(0x8000, 10, 1, false)}));
  queue_->Ask(asked);
  queue_->Ask(next);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 1U) << "the other one waits for the memory";
  EXPECT_EQ(pair_->posted[0].pieces[0].local_key, kOwnKey);
  std::fill_n(own_.begin() + 64, kStagingBytes, 0x31);
  Completes(0);
  ASSERT_EQ(pair_->posted.size(), 2U);
  EXPECT_EQ(pair_->posted[1].work.remote_address, 0x4000U + kStagingBytes);
  std::fill_n(own_.begin() + 64, kStagingBytes, 0x32);
  Completes(1);
  EXPECT_EQ(owner_.came.size(), 1U);
  EXPECT_EQ(asked.data[0].data()[kStagingBytes - 1], 0x31);
  EXPECT_EQ(asked.data[0].data()[kStagingBytes], 0x32);
  ASSERT_EQ(pair_->posted.size(), 3U);
  EXPECT_EQ(pair_->posted[2].work.remote_address, 0x8000U);
  // And back.
  auto& read = Ran(CapsuleOf(kRead, 3, {MakeKeyed(0x6000, 1500, 1, false)}));
  std::fill_n(read.data[0].data(), 2000, 0x41);
  queue_->Answer(read, kSuccess, 0, 1500);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 4U);
  EXPECT_EQ(pair_->posted[3].bytes, std::vector<uint8_t>(kStagingBytes, 0x41));
  EXPECT_TRUE(pair_->posted[3].work.signaled);
  Completes(3);
  ASSERT_EQ(pair_->posted.size(), 6U);
  EXPECT_EQ(pair_->posted[4].bytes, std::vector<uint8_t>(1500 - kStagingBytes, 0x41));
  EXPECT_EQ(EntryAt(5).cid, 3);
}

TEST_F(RdmaTargetQueueTest, WithoutReadCreditsDataComesInCapsulesAlone) {
  pair_->told.read_credits = 0;
  Make();
  queue_->Ask(Ran(CapsuleOf(kWrite, 1, {MakeKeyed(0, 100, 1, false)})));
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 1U);
  EXPECT_EQ(EntryAt(0).status().code(), 0x04) << "Data Transfer Error";
}

TEST_F(RdmaTargetQueueTest, EntriesThatTheAdapterDoesNotCopyHaveMemoryUntilTheyAreSent) {
  pair_->told.inline_bytes = 15;
  Make();
  for (uint32_t i = 0; i < kEntries; ++i) queue_->Answer(Ran(CapsuleOf(kRead, 1, {})), kSuccess);
  adapter_->Post();
  queue_->Answer(Ran(CapsuleOf(kRead, 1, {})), kSuccess);
  adapter_->Post();
  ASSERT_EQ(pair_->posted.size(), 4U) << "there is memory for four";
  EXPECT_FALSE(pair_->posted[0].work.copies_data);
  EXPECT_EQ(pair_->posted[0].pieces[0].local_key, kOwnKey);
  EXPECT_NE(pair_->posted[0].pieces[0].address, pair_->posted[1].pieces[0].address);
  Completes(0);
  ASSERT_EQ(pair_->posted.size(), 5U);
  EXPECT_EQ(pair_->posted[4].pieces[0].address, pair_->posted[0].pieces[0].address);
}

TEST_F(RdmaTargetQueueTest, AFailedWorkEndsTheQueueAndNamesIt) {
  Make();
  queue_->Ask(Ran(CapsuleOf(kWrite, 1, {MakeKeyed(0, 100, 1, false)})));
  adapter_->Post();
  Completes(0, WorkStatus::kRemoteRefused);
  ASSERT_EQ(owner_.ends.size(), 1U);
  EXPECT_NE(owner_.ends[0].find("a READ of data: refused by the peer's adapter"), std::string::npos)
      << owner_.ends[0];
  EXPECT_EQ(owner_.given.size(), 1U);
  EXPECT_TRUE(owner_.came.empty());
}

TEST_F(RdmaTargetQueueTest, ACompletionOfNothingEndsTheQueue) {
  Make();
  const uint64_t generation = uint64_t{queue_->generation()} << kGenerationShift;
  queues_.pending.push_back({.id = generation | 7, .queue_pair = 5});
  adapter_->Poll(64);
  ASSERT_EQ(owner_.ends.size(), 1U);
  EXPECT_NE(owner_.ends[0].find("a completion of nothing that was posted"), std::string::npos);
}

TEST_F(RdmaTargetQueueTest, LateCompletionsOfAQueuePairThatIsGoneAreIgnored) {
  Make();
  queue_->Ask(Ran(CapsuleOf(kWrite, 1, {MakeKeyed(0, 100, 1, false)})));
  adapter_->Post();
  const uint64_t id = pair_->posted[0].work.id;
  End();
  queues_.pending.push_back({.id = id, .queue_pair = 5});
  adapter_->Poll(64);
  EXPECT_EQ(adapter_->ignored(), 1U);
  // The number is another one's now.
  pair_ = std::make_unique<ScriptedPair>(5);
  queue_ = MakeQueue(*pair_);
  owner_.ends.clear();
  queues_.pending.push_back({.id = id, .queue_pair = 5});
  adapter_->Poll(64);
  EXPECT_EQ(adapter_->ignored(), 2U);
  EXPECT_TRUE(owner_.ends.empty());
}

// An owner that destroys another queue pair when it hears of a command.
class DestroyingOwner final : public fabrics::TargetQueueOwner {
 public:
  explicit DestroyingOwner(std::function<void()> destroy) : destroy_(std::move(destroy)) {}
  fabrics::TargetCommand* Take(const SubmissionEntry&, uint32_t) override {
    destroy_();
    return nullptr;
  }
  fabrics::TargetCommand* Find(uint16_t) override { return nullptr; }
  void Run(fabrics::TargetCommand&) override {}
  void DataCame(fabrics::TargetCommand&) override {}
  void Give(fabrics::TargetCommand&) override {}
  void Ended(const Error&) override {}

 private:
  std::function<void()> destroy_;
};

TEST_F(RdmaTargetQueueTest, WhatWasPolledAlreadyOfAQueuePairThatGoesIsDroppedAndItsCapsulesKept) {
  Make();
  queue_->Ask(Ran(CapsuleOf(kWrite, 1, {MakeKeyed(0, 100, 1, false)})));
  adapter_->Post();
  const uint64_t read = pair_->posted[0].work.id;
  DestroyingOwner destroying([&] {
    if (pair_ == nullptr) return;
    queue_->Abort({ErrorCode::kCancelled, "gone"});
    Destroy();
  });
  ScriptedPair other_pair(6);
  TargetQueue other(
      *adapter_, other_pair,
      {.name = "other", .entries_max = kEntries, .staging_in = {}, .staging_out = {}, .entry_memory = {}},
      destroying);
  const auto other_slot = queues_.receives[0];
  const auto slot = queues_.receives[1];
  queues_.receives.erase(queues_.receives.begin(), queues_.receives.begin() + 2);
  queues_.pending = {{.id = other_slot.id, .queue_pair = 6, .received_bytes = 64},
                     {.id = read, .queue_pair = 5},
                     {.id = slot.id, .queue_pair = 5, .received_bytes = 64}};
  adapter_->Poll(64);
  EXPECT_EQ(owner_.given.size(), 1U) << "once, with its queue pair";
  EXPECT_TRUE(owner_.came.empty());
  EXPECT_EQ(adapter_->ignored(), 1U);
  other.Abort({ErrorCode::kCancelled, "end"});
  other.Destroyed();
  adapter_->Post();
  EXPECT_EQ(adapter_->slots_posted(), 16U);
}

TEST_F(RdmaTargetQueueTest, ReadsThatHadTheirTurnAndAreNotPostedComeBackAtTheEnd) {
  Make();
  auto& command = Ran(CapsuleOf(kWrite, 1, {MakeKeyed(0, 100, 1, false)}));
  KeepingOwner other_owner(1, region_, kCommandBytes);
  ScriptedPair other_pair(6);
  TargetQueue other(
      *adapter_, other_pair,
      {.name = "other", .entries_max = 1, .staging_in = {}, .staging_out = {}, .entry_memory = {}},
      other_owner);
  Arrives(CapsuleOf(kRead, 1, {}), 6);
  // The other queue is posted first, fails, and takes this one along.
  other.Answer(*other_owner.ran[0], kSuccess);
  other_pair.takes = 0;
  other_owner.on_end = [&] { queue_->Abort({ErrorCode::kCancelled, "with the other one"}); };
  queue_->Ask(command);
  adapter_->Post();
  EXPECT_EQ(owner_.ends.size(), 1U);
  EXPECT_EQ(owner_.given, std::vector{&command}) << "the adapter has nothing of it";
  EXPECT_TRUE(pair_->posted.empty());
  EXPECT_EQ(adapter_->scheduler().outstanding(), 0U);
  other.Destroyed();
}

TEST_F(RdmaTargetQueueTest, AnAdapterThatTakesNoMemoryForCapsulesHasFailed) {
  Make();
  EXPECT_FALSE(adapter_->failed());
  queues_.takes = 0;
  Arrives(CapsuleOf(kRead, 1, {}));
  EXPECT_TRUE(adapter_->failed());
  EXPECT_EQ(adapter_->slots_posted(), 15U);
}

TEST_F(RdmaTargetQueueTest, NoMoreQueuesThanTheirCapsulesAndCompletionsHaveRoom) {
  Make();
  EXPECT_TRUE(adapter_->CheckRoom(12, pair_->told).ok());
  EXPECT_FALSE(adapter_->CheckRoom(13, pair_->told).ok());
  verbs::SendLimits limits = pair_->told;
  limits.works = 256 - 16 - 16;
  EXPECT_TRUE(adapter_->CheckRoom(1, limits).ok());
  ++limits.works;
  EXPECT_FALSE(adapter_->CheckRoom(1, limits).ok());
  End();
  EXPECT_TRUE(adapter_->CheckRoom(16, pair_ == nullptr ? verbs::SendLimits{} : pair_->told).ok());
}

}  // namespace
}  // namespace cleat::nvme::rdma_target::target_queue_test
