// SPDX-License-Identifier: Apache-2.0
// A request queue on a stage: queue pairs that keep commands until a test answers them, a guest's requests, and the disk's real ledger with
// one more reactor, whose mail a test delivers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "block/segments.h"
#include "nvme/host/doubt/doubt_ledger.h"
#include "nvme/host/doubt/doubt_log.h"
#include "nvme/host/requests/request_queue.h"

namespace cleat::nvme::host::requests_test {

using block::IoStatus;
using block::Op;
using block::Request;
using block::Segment;
using fabrics::Reached;

inline constexpr uint64_t kBlockBytes = 512;

class FakePair final : public fabrics::QueuePair {
 public:
  explicit FakePair(LifeId id, uint32_t most = 128) : life(id), depth(most) {}

  const LifeId life;
  uint32_t depth;
  std::deque<fabrics::QueuedCommand> sent;  // and not answered
  std::function<void(const fabrics::QueuedCommand&)> on_submit;
  std::function<void(const Error&)> on_abort;  // none: the queue has no reason to

  uint32_t room() const override { return depth - static_cast<uint32_t>(sent.size()); }
  void Submit(const fabrics::QueuedCommand& command) override {
    ASSERT_GT(room(), 0U);
    if (on_submit) on_submit(command);
    sent.push_back(command);
  }
  void Abort(const Error& reason) override {
    ASSERT_TRUE(on_abort) << reason.message;
    on_abort(reason);
  }

  fabrics::QueuedCommand Take(size_t index) {
    const fabrics::QueuedCommand command = sent.at(index);
    sent.erase(sent.begin() + static_cast<std::ptrdiff_t>(index));
    return command;
  }
};

// What a command is on, "3+8": the first block and how many.
inline std::string RangeOf(const fabrics::QueuedCommand& command) {
  const uint64_t first = command.entry.cdw10 | uint64_t{command.entry.cdw11} << 32;
  return std::to_string(first) + "+" + std::to_string((command.entry.cdw12 & 0xffff) + 1);
}

inline Opcode OpcodeOf(const fabrics::QueuedCommand& command) {
  return static_cast<Opcode>(command.entry.opcode);
}

inline constexpr DoubtLog::Shape kLogShape{
    .reactors = 2, .attempts = RequestQueue::kCommandsMax, .ghosts = kGhostsMax, .lives = 8};

// A log of doubt on memory that outlives an engine.
class LogMemory {
 public:
  LogMemory() {
    for (uint32_t reactor = 0; reactor < kLogShape.reactors; ++reactor) log().OpenRow(reactor);
  }
  DoubtLog log() { return DoubtLog::Open(bytes(), kLogShape, 1).value(); }
  // What an engine would find that starts now.
  std::vector<BlockRange> Found() { return log().Read(); }

 private:
  std::span<uint8_t> bytes() {
    return {reinterpret_cast<uint8_t*>(words_.data()), words_.size() * sizeof(uint64_t)};
  }

  std::vector<uint64_t> words_ = std::vector<uint64_t>(DoubtLog::BytesFor(kLogShape) / sizeof(uint64_t));
};

// A guest's request with its memory, in segments of `segment_bytes`.
struct Io {
  Io(Op op, uint64_t first_block, uint64_t blocks, uint64_t segment_bytes = 1 << 20) {
    request.op = op;
    request.offset_bytes = first_block * kBlockBytes;
    request.length_bytes = blocks * kBlockBytes;
    if (op == Op::kRead || op == Op::kWrite) {
      memory.resize(request.length_bytes);
      region = block::MemoryRegion::Borrow(memory.data(), memory.size());
      for (uint64_t at = 0; at < memory.size(); at += segment_bytes)
        segments.push_back(
            {region.get(), at, static_cast<uint32_t>(std::min<uint64_t>(segment_bytes, memory.size() - at))});
      request.segments = segments;
    }
    request.Push(
        [](Request& ended, const block::Frame& frame) {
          Io& io = *static_cast<Io*>(frame.layer);
          EXPECT_FALSE(io.done);
          io.done = true;
          io.status = ended.status;
          if (io.then) io.then();
        },
        this);
  }
  Io(const Io&) = delete;
  Io& operator=(const Io&) = delete;
  std::vector<uint8_t> memory;
  std::shared_ptr<block::MemoryRegion> region;
  std::vector<Segment> segments;
  Request request;
  bool done = false;
  IoStatus status = IoStatus::kOk;
  std::function<void()> then;
};

struct FormatOptions {
  uint64_t transfer_bytes_max = 0;
  uint32_t boundary_blocks = 0;
  uint32_t block_bytes = 512;
  bool write_zeroes = true;
  bool discards = true;
  uint32_t discard_blocks_max = 0;
};

inline PathFormat MakeFormat(const FormatOptions& options = {}) {
  ControllerInfo controller;
  controller.transfer_bytes_max = options.transfer_bytes_max;
  controller.write_zeroes = options.write_zeroes;
  controller.dataset_management = options.discards;
  NamespaceInfo space;
  space.block_bytes = options.block_bytes;
  space.boundary_blocks = options.boundary_blocks;
  CommandSetLimits command_set;
  command_set.discard_blocks_max = options.discard_blocks_max;
  return {.nsid = 7, .limits = Limits(controller, space, command_set, {}), .write_zeroes_deallocates = true};
}

inline fabrics::CompletionEntry EntryOfStatus(uint16_t status) {
  fabrics::CompletionEntry entry;
  entry.status_field = static_cast<uint16_t>(status << 1);
  return entry;
}

inline constexpr uint16_t kGone = 0x00b | 1 << 14;  // Invalid Namespace or Format, not to be tried again
inline constexpr uint16_t kOutOfRange = 0x080;      // generic: won't do better
inline constexpr uint16_t kNotReady = 0x082;        // generic: may do better
inline constexpr uint16_t kInternalPath = 0x300;    // of the path, as the next one
inline constexpr uint16_t kInaccessible = 0x302;
inline constexpr uint16_t kAbortedByHost = 0x371;  // no controller may say so
inline constexpr uint16_t kDoNotRetry = 1 << 14;

// Reactor 0 has the queue; reactor 1 is a view alone, of which a test says what it has under way.
class RequestQueueTest : public testing::Test, public RequestQueueOwner {
 protected:
  RequestQueueTest() {
    EXPECT_EQ(ledger_.Joined(), 0U);
    EXPECT_EQ(ledger_.Joined(), 1U);
  }

  // Mail both ways until there is nothing left to say.
  void Deliver() {
    do {
      while (!mail_.empty()) {
        const auto take = std::move(mail_.front());
        mail_.pop_front();
        take();
      }
      if (told_ == ledger_.version()) continue;
      told_ = ledger_.version();
      log_memory_.log().Store(ledger_.ranges(), DoubtLog::Number::kNew);
      queue_.Adopt(ledger_.TableFor(0));
      ledger_.Take(other_.Adopt(ledger_.TableFor(1), others_under_way_));
    } while (!mail_.empty() || told_ != ledger_.version());
  }
  // A path with the first table obeyed.
  void Open(FakePair& pair, const PathFormat& format = MakeFormat(),
            PathState state = PathState::kOptimized) {
    Deliver();
    queue_.PathReady(pair.life, pair, format, state);
  }
  void Answer(FakePair& pair, size_t index = 0, uint16_t status = 0) {
    const fabrics::QueuedCommand command = pair.Take(index);
    queue_.Completed(pair.life, command.cookie, EntryOfStatus(status), block::SumBytes(command.from_target));
  }
  void Lose(FakePair& pair, Reached reached) {
    while (!pair.sent.empty()) queue_.Unanswered(pair.life, pair.Take(0).cookie, reached);
  }
  // The path ends on both reactors; the mail is not delivered.
  void Break(FakePair& pair, Reached reached) {
    Lose(pair, reached);
    queue_.PathEnded(pair.life);
    ledger_.Over(pair.life);
    ledger_.Take(other_.EndLife(pair.life, {}));
  }
  Io& Submit(Op op, uint64_t first_block, uint64_t blocks, uint64_t segment_bytes = 1 << 20) {
    Io& io = ios_.emplace_back(op, first_block, blocks, segment_bytes);
    queue_.Submit(io.request);
    return io;
  }
  // Until every pause is over.
  void WaitForPause() {
    queue_.Tick(now_ns_);
    now_ns_ += RequestQueue::kPauseNs;
    queue_.Tick(now_ns_);
  }

  void Report(LifeReport report) override {
    log_.push_back("report " + std::to_string(report.perhaps.size()));
    mail_.emplace_back([this, report = std::move(report)] { ledger_.Take(report); });
  }
  void Acked(DoubtAck ack) override {
    barriers_ = ack.barriers;
    mail_.emplace_back([this, ack = std::move(ack)] { ledger_.Take(ack); });
  }
  void BarrierOver(BarrierEnded ended) override {
    log_.emplace_back("barrier over");
    mail_.emplace_back([this, ended] { ledger_.Take(ended); });
  }
  void GivenUp(OriginId origin) override {
    log_.emplace_back("given up");
    mail_.emplace_back([this, origin] { ledger_.Disown(origin); });
  }
  void PathRefused(LifeId life) override { log_.push_back("refused " + std::to_string(life)); }
  void Conflicted(LifeId life) override { log_.push_back("conflicted " + std::to_string(life)); }

  DoubtLedger ledger_{{.controller_reset = true}};
  std::vector<std::string> log_;
  std::deque<std::function<void()>> mail_;
  std::vector<Attempt> barriers_;  // of the queue's last answer
  std::vector<Attempt> others_under_way_;
  uint64_t told_ = 0;
  uint64_t now_ns_ = kNsPerSecond;
  std::deque<Io> ios_;
  LogMemory log_memory_;
  DoubtWaits waits_;
  RequestQueue queue_{
      {.reactor = 0, .first_origin = 100, .write_cache = true, .log = log_memory_.log(), .waits = &waits_},
      *this};
  DoubtView other_{1};
};

}  // namespace cleat::nvme::host::requests_test
