// SPDX-License-Identifier: Apache-2.0
// A host over RDMA made of random bytes: what it says when it connects, then capsules to a target's queue, whose works complete in any mixture of success and
// failure. Whatever it sends: what is posted names memory of commands that are not given back, within the send queue's limits; each command comes back once;
// an end is heard once.
//
// An input: a piece with its length (a word), the private data; a byte of options (bits 0-1 read credits, 2-4 works beyond them, 5 pieces of a work are one,
// 6 the adapter copies no entries, 7 memory is not registered); then steps: a byte that says what comes (0-1 a capsule, a piece; 2 a work completes; 3 one
// fails; 4 the storage answers; 5 it asks for data; 6 the queue is aborted; 7 the queue pair is destroyed, and another one of its number comes).
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "base/check.h"
#include "block/memory.h"
#include "nvme/rdma/connect_data.h"
#include "nvme/rdma_target/target_adapter.h"
#include "nvme/rdma_target/target_queue.h"
#include "tests/fuzz/input.h"

namespace cleat::nvme::rdma_target {
namespace {

constexpr uint32_t kEntries = 4;
constexpr uint32_t kSlots = 8;
constexpr uint32_t kInCapsuleBytes = 512;
constexpr uint32_t kStepsMax = 300;
constexpr uint32_t kCommandsMax = 5;
constexpr uint32_t kDataBytesMax = 6000;  // of a command; what asks for more is answered with an error
constexpr Status kSuccess{0};
constexpr Status kInvalidField{2};

class FuzzVerbs final : public verbs::QueuePair, public verbs::ReceiveQueue, public verbs::CompletionQueue {
 public:
  uint32_t number() const override { return 1; }
  const verbs::SendLimits& limits() const override { return told; }
  uint32_t Post(std::span<const verbs::SendWork> works) override {
    for (const verbs::SendWork& work : works) {
      CLEAT_CHECK(works_.size() < told.works && work.pieces.size() <= told.pieces);
      works_.push_back({work, {work.pieces.begin(), work.pieces.end()}});
      if (work.op == verbs::SendOp::kRead) CLEAT_CHECK(++reads_ <= told.read_credits);
      if (work.copies_data) works_.back().pieces.clear();
    }
    return static_cast<uint32_t>(works.size());
  }
  void Break() override { broken = true; }
  uint32_t Post(std::span<const verbs::ReceiveWork> works) override {
    receives_.insert(receives_.end(), works.begin(), works.end());
    CLEAT_CHECK(receives_.size() <= kSlots);
    return static_cast<uint32_t>(works.size());
  }
  uint32_t Poll(std::span<verbs::Completion> completions) override {
    if (pending_.empty()) return 0;
    completions[0] = pending_.front();
    pending_.pop_front();
    return 1;
  }
  cleat::Status Arm() override { return {}; }
  int descriptor() const override { return -1; }
  void TakeEvents() override {}

  void Capsule(std::span<const uint8_t> bytes) {
    if (receives_.empty() || broken) return;
    const verbs::ReceiveWork slot = receives_.front();
    receives_.pop_front();
    bytes = bytes.first(std::min<size_t>(bytes.size(), slot.piece.length_bytes));
    if (!bytes.empty()) std::memcpy(std::bit_cast<uint8_t*>(slot.piece.address), bytes.data(), bytes.size());
    pending_.push_back(
        {.id = slot.id, .queue_pair = 1, .received_bytes = static_cast<uint32_t>(bytes.size())});
  }
  // The first one that is to be told of: its memory is touched once more.
  void Complete(bool ok) {
    while (!works_.empty()) {
      const Work work = works_.front();
      works_.pop_front();
      for (const verbs::LocalPiece& piece : work.pieces) {
        auto* const memory = std::bit_cast<uint8_t*>(piece.address);
        if (work.work.op == verbs::SendOp::kRead) {
          std::memset(memory, 0x5a, piece.length_bytes);
        } else {
          for (uint32_t i = 0; i < piece.length_bytes; ++i) seen_ ^= memory[i];
        }
      }
      if (work.work.op == verbs::SendOp::kRead) --reads_;
      const bool good = ok && !broken;
      if (good && !work.work.signaled) continue;
      pending_.push_back({.id = work.work.id,
                          .queue_pair = 1,
                          .status = good ? verbs::WorkStatus::kDone : verbs::WorkStatus::kFlushed});
      return;
    }
  }
  void Destroyed() {
    works_.clear();
    reads_ = 0;
    broken = false;
  }

  verbs::SendLimits told;
  bool broken = false;

 private:
  struct Work {
    verbs::SendWork work;
    std::vector<verbs::LocalPiece> pieces;
  };
  std::deque<Work> works_;
  std::deque<verbs::ReceiveWork> receives_;
  std::deque<verbs::Completion> pending_;
  uint32_t reads_ = 0;
  uint8_t seen_ = 0;
};

// Each command's memory is its own, and freed when it comes back: what touches it later is found by AddressSanitizer.
struct Command {
  fabrics::TargetCommand command;
  std::vector<uint8_t> bytes;
  std::shared_ptr<block::MemoryRegion> region;
  std::array<block::Segment, 2> segments;
  bool taken = false;
};

class FuzzTarget final : public fabrics::TargetQueueOwner {
 public:
  explicit FuzzTarget(uint8_t options)
      : registered_((options & 0x80) == 0),
        slots_(TargetAdapter::SlotMemoryBytes(kSlots, kInCapsuleBytes)),
        own_(64 + 2 * 1000) {
    verbs_.told.read_credits = options & 3;
    verbs_.told.works = verbs_.told.read_credits + 1 + (options >> 2 & 7);
    verbs_.told.pieces = (options & 0x20) != 0 ? 1 : 3;
    verbs_.told.inline_bytes = (options & 0x40) != 0 ? 0 : 16;
    adapter_ =
        std::make_unique<TargetAdapter>(TargetAdapterOptions{.slots = kSlots,
                                                             .in_capsule_bytes = kInCapsuleBytes,
                                                             .slot_memory = PieceOf(slots_, 0, slots_.size()),
                                                             .completions_max = 64,
                                                             .reads_max = 3},
                                        verbs_, verbs_);
    adapter_->Post();
    Connect();
  }

  fabrics::TargetCommand* Take(const fabrics::SubmissionEntry&, uint32_t in_capsule_bytes) override {
    CLEAT_CHECK(in_capsule_bytes <= kInCapsuleBytes);
    for (Command& command : commands_) {
      if (command.taken) continue;
      command.taken = true;
      command.bytes.assign(kDataBytesMax, 0x11);
      command.region = block::MemoryRegion::Borrow(command.bytes.data(), kDataBytesMax);
      command.segments = {block::Segment{command.region.get(), 0, 700},
                          block::Segment{command.region.get(), 700, kDataBytesMax - 700}};
      command.command.data = command.segments;
      if (registered_) CLEAT_CHECK(adapter_->keys().Add(command.region.get(), 7).ok());
      return &command.command;
    }
    return nullptr;
  }
  fabrics::TargetCommand* Find(uint16_t) override { return nullptr; }
  void Run(fabrics::TargetCommand& command) override {
    CLEAT_CHECK(command.data_bytes <= fabrics::kTransferBytesMax && !ended_);
    runs_.push_back(&command);
  }
  void DataCame(fabrics::TargetCommand& command) override {
    CLEAT_CHECK(!ended_);
    for (uint32_t i = 0; i < command.data_bytes; ++i)
      CLEAT_CHECK((i < 700 ? command.data[0].data()[i] : command.data[1].data()[i - 700]) == 0x5a);
    runs_.push_back(&command);
  }
  void Give(fabrics::TargetCommand& command) override {
    for (Command& one : commands_) {
      if (&one.command != &command) continue;
      CLEAT_CHECK(one.taken);
      one.taken = false;
      adapter_->keys().Remove(one.region.get());
      one.region.reset();
      one.bytes = std::vector<uint8_t>();
    }
  }
  void Ended(const Error& reason) override {
    CLEAT_CHECK(!ended_ && !reason.message.empty());
    ended_ = true;
  }

  void Step(FuzzInput& input) {
    switch (input.Byte() & 7) {
      case 0:
      case 1:
        verbs_.Capsule(input.Piece());
        break;
      case 2:
        verbs_.Complete(true);
        break;
      case 3:
        verbs_.Complete(false);
        break;
      case 4:
        AnswerOne();
        break;
      case 5:
        AskOne();
        break;
      case 6:
        queue_->Abort({ErrorCode::kCancelled, "aborted"});
        break;
      case 7:
        Disconnect();
        Connect();
        break;
    }
    adapter_->Poll(8);
    queue_->Resume();
    adapter_->Post();
  }
  void Finish() {
    Disconnect();
    adapter_->Post();
    CLEAT_CHECK(adapter_->slots_posted() == kSlots && adapter_->scheduler().outstanding() == 0);
    for (const Command& command : commands_) CLEAT_CHECK(!command.taken);
  }

 private:
  static verbs::LocalPiece PieceOf(std::vector<uint8_t>& bytes, size_t from, size_t count) {
    return {std::bit_cast<uint64_t>(bytes.data() + from), static_cast<uint32_t>(count), 1};
  }
  static bool ToHost(const fabrics::TargetCommand& command) { return (command.entry.opcode & 3) == 2; }

  void Connect() {
    ended_ = false;
    queue_ = std::make_unique<TargetQueue>(*adapter_, verbs_,
                                           TargetQueueOptions{.name = "fuzz",
                                                              .entries_max = kEntries,
                                                              .staging_in = PieceOf(own_, 64, 1000),
                                                              .staging_out = PieceOf(own_, 1064, 1000),
                                                              .entry_memory = PieceOf(own_, 0, 64)},
                                           *this);
    queue_->BecomeQueue(kEntries, true, kInCapsuleBytes);
  }
  void Disconnect() {
    queue_->Abort({ErrorCode::kCancelled, "the connection's end"});
    while (adapter_->Poll(8) > 0) {
    }
    verbs_.Destroyed();
    queue_->Destroyed();
    while (!runs_.empty()) AnswerOne();
    CLEAT_CHECK(queue_->commands() == 0);
    queue_.reset();
  }
  void AnswerOne() {
    if (runs_.empty()) return;
    fabrics::TargetCommand& command = *runs_.front();
    runs_.pop_front();
    if (command.data_bytes > kDataBytesMax) return queue_->Answer(command, kInvalidField);
    queue_->Answer(command, kSuccess, 0, ToHost(command) && !command.in_capsule ? command.data_bytes : 0);
  }
  void AskOne() {
    if (runs_.empty()) return;
    fabrics::TargetCommand& command = *runs_.front();
    if (queue_->ended() || command.in_capsule || command.data_bytes == 0 ||
        command.data_bytes > kDataBytesMax)
      return AnswerOne();
    runs_.pop_front();
    queue_->Ask(command);
  }

  const bool registered_;
  FuzzVerbs verbs_;
  std::vector<uint8_t> slots_;
  std::vector<uint8_t> own_;
  std::unique_ptr<TargetAdapter> adapter_;
  std::unique_ptr<TargetQueue> queue_;
  std::array<Command, kCommandsMax> commands_;
  std::deque<fabrics::TargetCommand*> runs_;
  bool ended_ = false;
};

void Run(FuzzInput input) {
  const auto private_data = input.Piece();
  rdma::AskedQueue asked;
  const rdma::QueueLimits limits{.admin_entries_max = 32, .io_entries_max = 128, .queue_id_max = 16};
  if (!rdma::ParseRequest(private_data, limits, asked)) {
    CLEAT_CHECK(asked.entries >= rdma::kQueueEntriesMin && asked.entries <= 128 && asked.queue_id <= 16 &&
                asked.answers_max > 0);
  }
  static_cast<void>(rdma::ParseReply(private_data).ok());
  CLEAT_CHECK(!rdma::ParseReject(private_data).message.empty());
  FuzzTarget target(input.Byte());
  for (uint32_t steps = 0; !input.empty() && steps < kStepsMax; ++steps) target.Step(input);
  target.Finish();
}

}  // namespace
}  // namespace cleat::nvme::rdma_target

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cleat::nvme::rdma_target::Run(cleat::FuzzInput(data, size));
  return 0;
}
