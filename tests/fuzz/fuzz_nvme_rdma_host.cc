// SPDX-License-Identifier: Apache-2.0
// A controller over RDMA made of random bytes: messages to a host's queue, keys that they invalidate, works that complete in any mixture of success and
// failure. Whatever comes: each command ends once, before its queue's end is heard, and its memory is left alone afterwards; no memory is behind two
// windows, or changes while it is sent; the send queue's limits are kept; at last all is back.
//
// An input: a byte of options (bits 0-2 works of the send queue beyond two, 3 capsules have no data, 4 the adapter copies nothing, 5 few places); then steps:
// a byte that says what comes (0 a message, a piece, and a word, the key that it invalidates, if any; 1 an answer, a byte that says to which command, and a
// byte of bits: 0-1 its key, none, another one's, 2 an error; 2 a work completes; 3 one fails; 4-5 a command, a byte: bits 0-1 which way, 2-7 how much; 6
// the queue is aborted; 7 the queue pair is destroyed, and another one of its number comes).
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/check.h"
#include "block/memory.h"
#include "nvme/fabrics/memory/data_buffers.h"
#include "nvme/rdma_host/host_adapter.h"
#include "nvme/rdma_host/host_queue.h"
#include "tests/fuzz/input.h"

namespace cleat::nvme::rdma_host {
namespace {

constexpr uint32_t kEntries = 6;
constexpr uint32_t kInCapsuleBytes = 512;
constexpr uint32_t kStepsMax = 300;
constexpr uint32_t kNumber = 1;

struct FuzzWindow final : verbs::MemoryWindow {
  explicit FuzzWindow(uint32_t key) : MemoryWindow(key) {}
};
struct FuzzRegistration final : verbs::Registration {
  FuzzRegistration() : Registration(2, 3) {}
};

class FuzzVerbs final : public verbs::QueuePair, public verbs::ReceiveQueue, public verbs::CompletionQueue {
 public:
  uint32_t number() const override { return kNumber; }
  const verbs::SendLimits& limits() const override { return told; }
  uint32_t Post(std::span<const verbs::SendWork> works) override {
    for (const verbs::SendWork& work : works) {
      CLEAT_CHECK(++used_ <= told.works && work.pieces.size() <= 1);
      Work kept{work, {}, {}, {}};
      if (work.op == verbs::SendOp::kBindWindow) kept.binding = *work.binding;
      if (!work.pieces.empty()) {
        kept.piece = work.pieces[0];
        const auto* const bytes = std::bit_cast<const uint8_t*>(kept.piece.address);
        kept.bytes.assign(bytes, bytes + kept.piece.length_bytes);
      }
      works_.push_back(std::move(kept));
    }
    return static_cast<uint32_t>(works.size());
  }
  void Break() override { broken = true; }
  uint32_t Post(std::span<const verbs::ReceiveWork> works) override {
    receives_.insert(receives_.end(), works.begin(), works.end());
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

  void Message(std::span<const uint8_t> bytes, bool invalidates, uint32_t key) {
    if (receives_.empty() || broken) return;
    // An adapter does not deliver what invalidates a key that is not valid.
    if (invalidates && bound_.erase(key) == 0) {
      broken = true;
      return;
    }
    const verbs::ReceiveWork work = receives_.front();
    receives_.pop_front();
    const auto count = std::min<size_t>(bytes.size(), work.piece.length_bytes);
    if (count > 0) std::memcpy(std::bit_cast<void*>(work.piece.address), bytes.data(), count);
    pending_.push_back({.id = work.id,
                        .queue_pair = kNumber,
                        .received_bytes = static_cast<uint32_t>(bytes.size()),
                        .key_was_invalidated = invalidates,
                        .invalidated_key = invalidates ? key : 0});
  }
  // The first one that is to be told of.
  void Complete(bool ok) {
    while (!works_.empty()) {
      const Work work = std::move(works_.front());
      works_.pop_front();
      ++silent_;
      if (work.work.op == verbs::SendOp::kSend && !work.work.copies_data)
        CLEAT_CHECK(std::memcmp(std::bit_cast<const void*>(work.piece.address), work.bytes.data(),
                                work.bytes.size()) == 0);
      const bool good = ok && !broken && Done(work);
      if (good && !work.work.signaled) continue;
      broken = broken || !good;
      used_ -= silent_;
      silent_ = 0;
      pending_.push_back({.id = work.work.id,
                          .queue_pair = kNumber,
                          .status = good ? verbs::WorkStatus::kDone : verbs::WorkStatus::kFlushed});
      return;
    }
  }
  void Destroyed() {
    works_.clear();
    bound_.clear();
    used_ = silent_ = 0;
    broken = false;
  }
  bool is_bound(const verbs::MemoryWindow* window) const { return bound_.contains(window->key()); }
  uint32_t AnyKey(uint32_t which) const {
    if (bound_.empty()) return which;
    auto at = bound_.begin();
    std::advance(at, which % bound_.size());
    return at->first;
  }
  uint32_t receives() const { return static_cast<uint32_t>(receives_.size()); }

  verbs::SendLimits told;
  bool broken = false;

 private:
  struct Work {
    verbs::SendWork work;
    verbs::WindowBinding binding;
    verbs::LocalPiece piece;
    std::vector<uint8_t> bytes;
  };
  bool Done(const Work& work) {
    if (work.work.op == verbs::SendOp::kInvalidateWindow) return bound_.erase(work.work.key) > 0;
    if (work.work.op != verbs::SendOp::kBindWindow) return true;
    const verbs::WindowBinding& binding = work.binding;
    for (const auto& [key, other] : bound_) {
      CLEAT_CHECK(other.window != binding.window &&
                  (other.address + other.length_bytes <= binding.address ||
                   binding.address + binding.length_bytes <= other.address));
    }
    bound_[binding.key] = binding;
    return true;
  }

  std::deque<Work> works_;
  std::deque<verbs::ReceiveWork> receives_;
  std::deque<verbs::Completion> pending_;
  std::map<uint32_t, verbs::WindowBinding> bound_;
  uint32_t used_ = 0;
  uint32_t silent_ = 0;
};

// Each command's memory is its own, and freed when it comes back: what touches it later is found by AddressSanitizer.
struct Command {
  std::vector<uint8_t> bytes;
  std::shared_ptr<block::MemoryRegion> region;
  std::array<block::Segment, 2> segments;
};

class FuzzHost final : public fabrics::QueuePairOwner {
 public:
  explicit FuzzHost(uint8_t options)
      : commands_((options & 0x20) != 0 ? 2 : 8),
        in_capsule_bytes_((options & 8) != 0 ? 0 : kInCapsuleBytes),
        data_(2),
        slots_(HostAdapter::SlotMemoryBytes(commands_, in_capsule_bytes_)) {
    verbs_.told = {.works = 2U + (options & 7),
                   .pieces = 1,
                   .inline_bytes = (options & 0x10) != 0 ? 0U : 64U,
                   .read_credits = 0};
    HostAdapterOptions adapter;
    adapter.commands = commands_;
    adapter.in_capsule_bytes = in_capsule_bytes_;
    adapter.slot_memory = {reinterpret_cast<uint64_t>(slots_.data()), static_cast<uint32_t>(slots_.size()),
                           1};
    adapter.data_registration = &registration_;
    for (uint32_t i = 0; i < commands_; ++i) adapter.windows.push_back(MakeWindow());
    adapter.completions_max = 256;
    adapter_ = std::make_unique<HostAdapter>(std::move(adapter), data_, verbs_, verbs_);
    adapter_->Post();
    Connect();
  }

  void Connected() override { CLEAT_CHECK(false); }
  void Completed(uint64_t cookie, const fabrics::CompletionEntry&, uint64_t) override { Over(cookie); }
  void Unanswered(uint64_t cookie, fabrics::Reached) override { Over(cookie); }
  void Ended(const Error& reason) override {
    CLEAT_CHECK(!ended_ && !reason.message.empty() && under_way_.empty());
    ended_ = true;
  }

  void Step(FuzzInput& input) {
    switch (input.Byte() & 7) {
      case 0: {
        const auto bytes = input.Piece();
        const uint16_t key = input.Word();
        verbs_.Message(bytes, key != 0, verbs_.AnyKey(key));
        break;
      }
      case 1:
        Answer(input.Byte(), input.Byte());
        break;
      case 2:
        verbs_.Complete(true);
        break;
      case 3:
        verbs_.Complete(false);
        break;
      case 4:
      case 5:
        Submit(input.Byte());
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
    adapter_->Post();
  }
  void Finish() {
    Disconnect();
    adapter_->Post();
    CLEAT_CHECK(adapter_->places_free() == commands_ && data_.slabs_in_use() == 0);
    CLEAT_CHECK(adapter_->receives_posted() == HostAdapter::ReceiveEntries(commands_));
    CLEAT_CHECK(verbs_.receives() == adapter_->receives_posted());
  }

 private:
  verbs::MemoryWindow* MakeWindow() {
    windows_.push_back(std::make_unique<FuzzWindow>(static_cast<uint32_t>(windows_.size() + 1) << 8));
    return windows_.back().get();
  }
  void Connect() {
    ended_ = false;
    next_cid_ = 0;
    queue_ = std::make_unique<HostQueue>(
        *adapter_, verbs_,
        HostQueueOptions{.name = "fuzz", .entries = kEntries, .in_capsule_bytes = in_capsule_bytes_}, *this);
  }
  void Disconnect() {
    queue_->Abort({ErrorCode::kCancelled, "the connection's end"});
    CLEAT_CHECK(ended_ && queue_->room() == 0);
    while (adapter_->Poll(8) > 0) {
    }
    std::vector<verbs::MemoryWindow*> fresh;
    const auto bound = queue_->bound();
    for (size_t i = 0; i < bound.size(); ++i) fresh.push_back(MakeWindow());
    for (const auto& window : windows_) {
      const bool is_told = std::find(bound.begin(), bound.end(), window.get()) != bound.end();
      CLEAT_CHECK(is_told || !verbs_.is_bound(window.get()));
    }
    verbs_.Destroyed();
    queue_->Destroyed(fresh);
    queue_.reset();
  }
  void Submit(uint8_t what) {
    if (queue_->room() == 0) return;
    const uint32_t size = what >> 2;
    const uint32_t bytes = size < 32 ? size * 100 : size * 1000;
    auto command = std::make_unique<Command>();
    command->bytes.assign(std::max(bytes, 1U), 0x11);
    command->region = block::MemoryRegion::Borrow(command->bytes.data(), command->bytes.size());
    command->segments = {block::Segment{command->region.get(), 0, bytes / 3},
                         block::Segment{command->region.get(), bytes / 3, bytes - bytes / 3}};
    fabrics::QueuedCommand queued;
    queued.cookie = ++cookies_;
    if ((what & 1) != 0) queued.to_target = command->segments;
    if ((what & 3) == 2) queued.from_target = command->segments;
    under_way_[queued.cookie] = std::move(command);
    ++next_cid_;
    queue_->Submit(queued);
  }
  // CIDs are given out in turn.
  void Answer(uint8_t which, uint8_t how) {
    fabrics::CompletionEntry entry;
    entry.cid = next_cid_ == 0
                    ? which
                    : static_cast<uint16_t>(next_cid_ - 1 - which % std::min<uint16_t>(next_cid_, 8));
    entry.status_field = (how & 4) != 0 ? 4 : 0;
    std::array<uint8_t, sizeof(entry)> bytes;
    std::memcpy(bytes.data(), &entry, sizeof(entry));
    verbs_.Message(bytes, (how & 3) == 1 || (how & 3) == 3, verbs_.AnyKey(which + (how >> 3)));
  }
  void Over(uint64_t cookie) { CLEAT_CHECK(!ended_ && under_way_.erase(cookie) == 1); }

  const uint32_t commands_;
  const uint32_t in_capsule_bytes_;
  FuzzVerbs verbs_;
  FuzzRegistration registration_;
  std::vector<std::unique_ptr<FuzzWindow>> windows_;
  fabrics::DataBuffers data_;
  std::vector<uint8_t> slots_;
  std::unique_ptr<HostAdapter> adapter_;
  std::unique_ptr<HostQueue> queue_;
  std::map<uint64_t, std::unique_ptr<Command>> under_way_;
  uint64_t cookies_ = 0;
  uint16_t next_cid_ = 0;
  bool ended_ = false;
};

void Run(FuzzInput input) {
  FuzzHost host(input.Byte());
  for (uint32_t steps = 0; !input.empty() && steps < kStepsMax; ++steps) host.Step(input);
  host.Finish();
}

}  // namespace
}  // namespace cleat::nvme::rdma_host

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cleat::nvme::rdma_host::Run(cleat::FuzzInput(data, size));
  return 0;
}
