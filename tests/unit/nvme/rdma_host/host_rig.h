// SPDX-License-Identifier: Apache-2.0
// Host's queues over verbs that a test plays by hand: what was posted is to be seen, and completes when the test says so; and an owner that keeps what it
// hears.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "block/memory.h"
#include "nvme/rdma/keyed_sgl.h"
#include "nvme/rdma_host/host_adapter.h"
#include "nvme/rdma_host/host_queue.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_host::host_rig {

using fabrics::CompletionEntry;
using fabrics::Reached;
using fabrics::SubmissionEntry;
using rdma::KeyedDescriptor;
using verbs::SendOp;
using verbs::WorkStatus;

inline constexpr uint32_t kNumber = 5;  // of the queue pair
inline constexpr uint32_t kSlotKey = 70;
inline constexpr uint8_t kRead = 2;
inline constexpr uint8_t kWrite = 1;
inline constexpr uint16_t kSuccess = 0;
inline constexpr uint16_t kInvalidField = 2;

struct Posted {
  verbs::SendWork work;
  verbs::WindowBinding binding;
  verbs::LocalPiece piece;
  std::vector<uint8_t> bytes;  // of the piece, when it was posted
};

class Pair final : public verbs::QueuePair {
 public:
  explicit Pair(uint32_t number, const verbs::SendLimits& limits) : number_(number), limits_(limits) {}
  uint32_t number() const override { return number_; }
  const verbs::SendLimits& limits() const override { return limits_; }
  uint32_t Post(std::span<const verbs::SendWork> works) override {
    ++doorbells;
    const auto count = std::min<size_t>(works.size(), takes);
    for (const verbs::SendWork& work : works.first(count)) {
      Posted kept{work, {}, {}, {}};
      if (work.binding != nullptr) kept.binding = *work.binding;
      if (!work.pieces.empty()) {
        kept.piece = work.pieces[0];
        const auto* const at = std::bit_cast<const uint8_t*>(kept.piece.address);
        kept.bytes.assign(at, at + kept.piece.length_bytes);
      }
      posted.push_back(std::move(kept));
    }
    return static_cast<uint32_t>(count);
  }
  void Break() override { ++breaks; }

  std::vector<Posted> posted;
  uint32_t doorbells = 0;
  uint32_t breaks = 0;
  uint32_t takes = UINT32_MAX;

 private:
  const uint32_t number_;
  const verbs::SendLimits limits_;
};

class Queues final : public verbs::CompletionQueue, public verbs::ReceiveQueue {
 public:
  uint32_t Poll(std::span<verbs::Completion> completions) override {
    uint32_t count = 0;
    for (; count < completions.size() && !pending.empty(); ++count) {
      completions[count] = pending.front();
      pending.pop_front();
    }
    return count;
  }
  uint32_t Post(std::span<const verbs::ReceiveWork> works) override {
    const auto count = std::min<size_t>(works.size(), takes);
    receives.insert(receives.end(), works.begin(), works.begin() + static_cast<ptrdiff_t>(count));
    return static_cast<uint32_t>(count);
  }
  cleat::Status Arm() override { return {}; }
  int descriptor() const override { return -1; }
  void TakeEvents() override {}

  std::deque<verbs::Completion> pending;
  std::deque<verbs::ReceiveWork> receives;
  uint32_t takes = UINT32_MAX;
};

struct Window final : verbs::MemoryWindow {
  explicit Window(uint32_t key) : MemoryWindow(key) {}
};
struct Region final : verbs::Registration {
  Region() : Registration(71, 72) {}
};

// Finds the regions that a test puts there.
struct Direct final : DirectMemory {
  const verbs::Registration* Find(const block::MemoryRegion& region) override {
    const auto known = registered.find(&region);
    return known != registered.end() ? &known->second : nullptr;
  }
  std::map<const block::MemoryRegion*, Region> registered;
};

struct Heard {
  uint64_t cookie = 0;
  std::optional<Reached> unanswered;
  uint16_t status = 0;
  uint64_t data_bytes = 0;
};

class Owner final : public fabrics::QueuePairOwner {
 public:
  void Connected() override { ADD_FAILURE() << "a queue over RDMA is connected when it is made"; }
  void Completed(uint64_t cookie, const CompletionEntry& entry, uint64_t data_bytes) override {
    heard.push_back({cookie, std::nullopt, entry.status().field(), data_bytes});
    if (on_completed) on_completed();
  }
  void Unanswered(uint64_t cookie, Reached reached) override { heard.push_back({cookie, reached, 0, 0}); }
  void Ended(const Error& reason) override {
    ends.push_back(reason.message);
    if (on_ended) on_ended();
  }

  std::vector<Heard> heard;
  std::vector<std::string> ends;
  std::vector<size_t> broken_when;  // the maker was told, with so much heard
  std::function<void()> on_completed;
  std::function<void()> on_ended;
};

class HostTest : public testing::Test {
 protected:
  static constexpr uint32_t kGuestBytes = 8 << 20;
  static constexpr uint32_t kCompletionsMax = 2048;

  HostTest() : guest_(kGuestBytes), guest_region_(block::MemoryRegion::Borrow(guest_.data(), kGuestBytes)) {
    for (uint32_t i = 0; i < kGuestBytes; ++i) guest_[i] = static_cast<uint8_t>(i * 7 + i / 251);
  }
  ~HostTest() override {
    if (queue_ != nullptr) End();
  }

  void Make(uint32_t commands = 16, uint32_t slabs = 8, uint32_t in_capsule_bytes = 0, uint32_t entries = 9,
            uint32_t windows = UINT32_MAX) {
    queues_.receives.clear();
    data_ = std::make_unique<fabrics::DataBuffers>(slabs);
    slots_.assign(HostAdapter::SlotMemoryBytes(commands, in_capsule_bytes), 0);
    HostAdapterOptions options;
    options.commands = commands;
    options.in_capsule_bytes = in_capsule_bytes;
    options.slot_memory = {reinterpret_cast<uint64_t>(slots_.data()), static_cast<uint32_t>(slots_.size()),
                           kSlotKey};
    options.data_registration = &registration_;
    for (uint32_t i = 0; i < std::min(commands, windows); ++i) options.windows.push_back(&MakeWindow());
    options.completions_max = kCompletionsMax;
    options.queues_max = queues_max_;
    options.direct = &direct_;
    adapter_ = std::make_unique<HostAdapter>(std::move(options), *data_, queues_, queues_);
    adapter_->Post();
    MakeQueue(entries, in_capsule_bytes);
  }
  Window& MakeWindow() {
    windows_.push_back(std::make_unique<Window>(static_cast<uint32_t>(windows_.size() + 1) << 8));
    return *windows_.back();
  }
  void MakeQueue(uint32_t entries, uint32_t in_capsule_bytes) {
    pair_ = std::make_unique<Pair>(kNumber, limits_ ? *limits_ : HostAdapter::LimitsFor(entries));
    queue_ = std::make_unique<HostQueue>(
        *adapter_, *pair_,
        HostQueueOptions{
            .name = "nqn, queue 1",
            .entries = entries,
            .in_capsule_bytes = in_capsule_bytes,
            .on_broken = [this](const Error&) { owner_.broken_when.push_back(owner_.heard.size()); }},
        owner_);
  }
  void End() {
    queue_->Abort({ErrorCode::kCancelled, "the test's end"});
    Destroy();
  }
  // The queue pair, and after that the queue.
  void Destroy() {
    std::vector<verbs::MemoryWindow*> fresh;
    for (size_t i = queue_->bound().size(); i > 0; --i) fresh.push_back(&MakeWindow());
    pair_.reset();
    queue_->Destroyed(fresh);
    queue_.reset();
  }

  // `bytes` of the guest's memory, from `offset` on, in up to three segments.
  std::span<const block::Segment> Memory(uint32_t offset, uint32_t bytes) {
    auto& segments = segments_.emplace_back();
    const uint32_t first = bytes / 3;
    if (first > 0) segments.push_back({guest_region_.get(), offset, first});
    segments.push_back({guest_region_.get(), 0, 0});
    segments.push_back({guest_region_.get(), uint64_t{offset} + first, bytes - first});
    return segments;
  }
  void Submit(uint64_t cookie, uint32_t to_bytes, uint32_t from_bytes, uint32_t offset = 0) {
    fabrics::QueuedCommand command;
    command.entry.opcode = from_bytes > 0 ? kRead : to_bytes > 0 ? kWrite : 0;
    command.entry.cdw10 = static_cast<uint32_t>(cookie);
    command.cookie = cookie;
    if (to_bytes > 0) command.to_target = Memory(offset, to_bytes);
    if (from_bytes > 0) command.from_target = Memory(offset, from_bytes);
    queue_->Submit(command);
  }
  // ... and posts it. Returns which work its capsule is.
  size_t Send(uint64_t cookie, uint32_t to_bytes, uint32_t from_bytes, uint32_t offset = 0) {
    Submit(cookie, to_bytes, from_bytes, offset);
    adapter_->Post();
    CLEAT_CHECK(!pair_->posted.empty() && CapsuleAt(pair_->posted.size() - 1).cdw10 == cookie);
    return pair_->posted.size() - 1;
  }

  const Posted& At(size_t work) const { return pair_->posted.at(work); }
  SendOp OpAt(size_t work) const { return At(work).work.op; }
  SubmissionEntry CapsuleAt(size_t work) const {
    SubmissionEntry entry;
    CLEAT_CHECK(OpAt(work) == SendOp::kSend && At(work).bytes.size() >= sizeof(entry));
    std::memcpy(&entry, At(work).bytes.data(), sizeof(entry));
    return entry;
  }
  KeyedDescriptor DescriptorAt(size_t work) const {
    return std::bit_cast<KeyedDescriptor>(CapsuleAt(work).data);
  }
  // What the capsule's descriptor shows.
  uint8_t* DataAt(size_t work) const { return std::bit_cast<uint8_t*>(DescriptorAt(work).address); }

  void Completes(size_t work, WorkStatus status = WorkStatus::kDone) {
    queues_.pending.push_back({.id = At(work).work.id, .queue_pair = kNumber, .status = status});
    adapter_->Poll(64);
  }
  void ArrivesBytes(const void* bytes, uint32_t count, std::optional<uint32_t> key = std::nullopt,
                    uint32_t number = kNumber) {
    ASSERT_FALSE(queues_.receives.empty());
    const verbs::ReceiveWork receive = queues_.receives.front();
    queues_.receives.pop_front();
    std::memcpy(std::bit_cast<void*>(receive.piece.address), bytes,
                std::min(count, receive.piece.length_bytes));
    queues_.pending.push_back({.id = receive.id,
                               .queue_pair = number,
                               .received_bytes = count,
                               .key_was_invalidated = key.has_value(),
                               .invalidated_key = key.value_or(0)});
    adapter_->Poll(64);
  }
  void Arrives(uint16_t cid, std::optional<uint32_t> key = std::nullopt, uint16_t status = kSuccess) {
    CompletionEntry entry;
    entry.cid = cid;
    entry.status_field = static_cast<uint16_t>(status << 1);
    ArrivesBytes(&entry, sizeof(entry), key);
  }
  // To the command of that capsule, as its descriptor asks for.
  void Answers(size_t work, uint16_t status = kSuccess) {
    const KeyedDescriptor descriptor = DescriptorAt(work);
    const bool keyed = descriptor.type == rdma::kSglKeyedInvalidate;
    Arrives(CapsuleAt(work).cid, keyed ? std::optional(descriptor.key_value()) : std::nullopt, status);
  }
  std::vector<uint64_t> cookies() const {
    std::vector<uint64_t> cookies;
    for (const Heard& heard : owner_.heard) cookies.push_back(heard.cookie);
    return cookies;
  }

  std::vector<uint8_t> guest_;
  std::shared_ptr<block::MemoryRegion> guest_region_;
  std::deque<std::vector<block::Segment>> segments_;
  std::optional<verbs::SendLimits> limits_;
  Region registration_;
  Direct direct_;
  std::deque<std::unique_ptr<Window>> windows_;
  uint32_t queues_max_ = UINT32_MAX;
  std::unique_ptr<fabrics::DataBuffers> data_;
  std::vector<uint8_t> slots_;
  Owner owner_;
  Queues queues_;
  std::unique_ptr<HostAdapter> adapter_;
  std::unique_ptr<Pair> pair_;
  std::unique_ptr<HostQueue> queue_;
};

}  // namespace cleat::nvme::rdma_host::host_rig
