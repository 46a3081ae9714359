// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/model_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace cleat::sim::rdma {
namespace {

using verbs::SendOp;
using verbs::WorkStatus;

constexpr uint64_t kHopNs = 1'000;        // at most, to the other end
constexpr uint64_t kReadNs = 8'000;       // at most, to all of a READ's data
constexpr uint64_t kFlushNs = 6'000;      // at most, from Break to the flush
constexpr uint64_t kAgainNs = 2'000;      // to the next try where there is no memory for a message
constexpr uint64_t kSilenceNs = 300'000;  // until the adapter gives a peer up that does not answer
constexpr uint32_t kTriesMax = 200;

uint8_t* MemoryAt(uint64_t address) {
  return std::bit_cast<uint8_t*>(address);
}

// Calls `move` for the first `bytes` of the pieces.
template <typename Move>
void ForFirst(const std::vector<verbs::LocalPiece>& pieces, uint32_t bytes, Move move) {
  uint32_t at = 0;
  for (const verbs::LocalPiece& piece : pieces) {
    const uint32_t part = std::min(piece.length_bytes, bytes - at);
    if (part > 0) move(MemoryAt(piece.address), at, part);
    at += part;
  }
}

}  // namespace

// ---- ModelWorld

void ModelWorld::After(uint64_t ns, std::function<void()> what) {
  events_.push({now_ns_ + ns, events_count_++, std::move(what)});
}

bool ModelWorld::Step() {
  if (events_.empty()) return false;
  const std::function<void()> what = std::move(const_cast<Event&>(events_.top()).what);
  now_ns_ = events_.top().at_ns;
  events_.pop();
  what();
  return true;
}

// ---- ModelQueuePair

ModelQueuePair::ModelQueuePair(ModelAdapter& adapter, uint32_t number, const verbs::SendLimits& limits,
                               HostEnd& host)
    : adapter_(adapter),
      world_(adapter.world_),
      number_(number),
      limits_(limits),
      told_(limits),
      host_(host) {
  if (adapter.defect_ == AdapterDefect::kOneCreditTooMany) ++told_.read_credits;
}

ModelQueuePair::~ModelQueuePair() {
  *alive_ = false;
  if (!broken_) world_.Wrong("a queue pair is destroyed that goes on");
  for (const WorkPtr& work : works_) {
    if (!work->over) CheckUnchanged(*work);
  }
  auto& completions = adapter_.completions_;
  for (const ModelAdapter::Entry& entry : completions)
    adapter_.lost_receives_ += entry.pair == this && entry.receive ? 1 : 0;
  std::erase_if(completions, [&](const ModelAdapter::Entry& entry) { return entry.pair == this; });
}

void ModelQueuePair::After(uint64_t ns, std::function<void()> what) {
  world_.After(ns, [alive = alive_, what = std::move(what)] {
    if (*alive) what();
  });
}

uint32_t ModelQueuePair::Post(std::span<const verbs::SendWork> works) {
  uint32_t count = static_cast<uint32_t>(works.size());
  if (count > 0 && world_.Chance(adapter_.short_post_percent))
    count = static_cast<uint32_t>(world_.random.Below(count));
  for (const verbs::SendWork& posted : works.first(count)) {
    auto work = std::make_shared<Work>();
    work->id = posted.id;
    work->op = posted.op;
    work->signaled = posted.signaled;
    work->copied = posted.copies_data;
    work->pieces.assign(posted.pieces.begin(), posted.pieces.end());
    work->remote_address = posted.remote_address;
    work->key = posted.key;
    if (++used_ > limits_.works) world_.Wrong("more works than the send queue has room for");
    if (posted.pieces.size() > limits_.pieces) world_.Wrong("a work with more pieces than it may have");
    for (const verbs::LocalPiece& piece : posted.pieces) {
      work->length += piece.length_bytes;
      if (!posted.copies_data && !adapter_.Registered(piece))
        world_.Wrong("a work with memory that is not registered");
    }
    if (posted.copies_data && work->length > limits_.inline_bytes)
      world_.Wrong("more bytes to be copied than may be");
    if (posted.op == SendOp::kRead) {
      if (!posted.signaled) world_.Wrong("a READ that is not signaled");
      if (++reads_ > limits_.read_credits) world_.Wrong("more READs than there are credits");
    } else {
      work->bytes.resize(work->length);
      ForFirst(work->pieces, work->length, [&](const uint8_t* memory, uint32_t at, uint32_t part) {
        std::memcpy(work->bytes.data() + at, memory, part);
      });
    }
    works_.push_back(work);
    to_land_.push_back(work);
    if (adapter_.defect_ == AdapterDefect::kSendOvertakesData && to_land_.size() > 1 &&
        work->op != SendOp::kRead && work->op != SendOp::kWrite)
      std::swap(to_land_[to_land_.size() - 1], to_land_[to_land_.size() - 2]);
  }
  if (broken_) {
    Flush();
  } else {
    PumpSends();
  }
  return count;
}

void ModelQueuePair::PumpSends() {
  if (landing_ || to_land_.empty() || broken_) return;
  landing_ = true;
  const WorkPtr work = to_land_.front();
  const uint64_t ns = 1 + world_.random.Below(kHopNs);
  // A part of the data may be there long before.
  if (work->op == SendOp::kWrite && world_.Chance(50)) {
    After(world_.random.Below(ns), [this, work] {
      if (!work->over && !host_.silent()) MoveWrite(*work, work->length / 2);
    });
  }
  After(ns, [this, work] { Land(work, 0); });
}

void ModelQueuePair::Land(const WorkPtr& work, uint32_t tries) {
  if (broken_) return;
  if (host_.silent()) {
    After(kSilenceNs, [this, work] { Fail(work, WorkStatus::kRetriesExceeded); });
    return;
  }
  if (work->op == SendOp::kSend || work->op == SendOp::kSendAndInvalidate) return LandSend(work, tries);
  if (work->op == SendOp::kWrite) {
    if (!MoveWrite(*work, work->length)) return Fail(work, WorkStatus::kRemoteRefused);
    After(world_.random.Below(kHopNs), [this, work] { LetGo(work, WorkStatus::kDone); });
  } else if (work->op == SendOp::kRead) {
    if (host_.Access(work->key, work->remote_address, work->length, false) == nullptr)
      return Fail(work, WorkStatus::kRemoteRefused);
    LandRead(work);
  } else {
    world_.Wrong("a work of a kind that the target has no use for");
  }
  to_land_.pop_front();
  landing_ = false;
  PumpSends();
}

void ModelQueuePair::LandSend(const WorkPtr& work, uint32_t tries) {
  if (!host_.TakeReceive()) {
    if (tries == kTriesMax) return Fail(work, WorkStatus::kRetriesExceeded);
    return After(kAgainNs, [this, work, tries] { Land(work, tries + 1); });
  }
  std::vector<uint8_t> message = work->bytes;
  if (!work->copied) {
    ForFirst(work->pieces, work->length, [&](const uint8_t* memory, uint32_t at, uint32_t part) {
      std::memcpy(message.data() + at, memory, part);
    });
  }
  to_land_.pop_front();
  landing_ = false;
  After(world_.random.Below(kHopNs), [this, work] { LetGo(work, WorkStatus::kDone); });
  const bool invalidates =
      work->op == SendOp::kSendAndInvalidate && adapter_.defect_ != AdapterDefect::kKeyNotInvalidated;
  PumpSends();
  host_.Arrived(message, invalidates ? work->key : 0);
}

// The request has arrived.
void ModelQueuePair::LandRead(const WorkPtr& work) {
  const uint64_t ns = 1 + world_.random.Below(kReadNs);
  read_done_ns_ = std::max(read_done_ns_, world_.now() + ns);
  const uint64_t done_ns = read_done_ns_ - world_.now();
  After(world_.random.Below(done_ns), [this, work] {
    if (!work->over) MoveRead(*work, work->length / 2);
  });
  const bool early = adapter_.defect_ == AdapterDefect::kReadCompletesBeforeItsData;
  After(done_ns, [this, work, early] {
    if (!early && work->over) return;
    MoveRead(*work, work->length);
    if (!early) LetGo(work, WorkStatus::kDone);
  });
  if (early) After(0, [this, work] { LetGo(work, WorkStatus::kDone); });
}

void ModelQueuePair::MoveRead(Work& work, uint32_t bytes) {
  const uint8_t* const from = host_.Access(work.key, work.remote_address, work.length, false);
  if (from == nullptr) return;
  ForFirst(work.pieces, bytes,
           [&](uint8_t* memory, uint32_t at, uint32_t part) { std::memcpy(memory, from + at, part); });
}

bool ModelQueuePair::MoveWrite(Work& work, uint32_t bytes) {
  uint8_t* const to = host_.Access(work.key, work.remote_address, work.length, true);
  if (to == nullptr) return false;
  ForFirst(work.pieces, bytes,
           [&](const uint8_t* memory, uint32_t at, uint32_t part) { std::memcpy(to + at, memory, part); });
  return true;
}

// A packet that is lost is sent again from the same memory, until it is acknowledged.
void ModelQueuePair::CheckUnchanged(const Work& work) {
  if (work.op == SendOp::kRead || work.copied) return;
  ForFirst(work.pieces, work.length, [&](const uint8_t* memory, uint32_t at, uint32_t part) {
    if (std::memcmp(memory, work.bytes.data() + at, part) != 0)
      world_.Wrong("memory changes while the adapter may send it again");
  });
}

void ModelQueuePair::LetGo(const WorkPtr& work, WorkStatus status) {
  if (work->over) return;
  CheckUnchanged(*work);
  work->over = true;
  work->status = status;
  if (work->op == SendOp::kRead) --reads_;
  EmitDone();
}

void ModelQueuePair::Fail(const WorkPtr& work, WorkStatus status) {
  if (work->over) return;
  Enter();
  LetGo(work, status);
}

void ModelQueuePair::Break() {
  Enter();
}

// The error state.
void ModelQueuePair::Enter() {
  if (broken_) return;
  broken_ = true;
  // It may have taken memory for a message that does not come any more.
  auto& receives = adapter_.receives_;
  if (!receives.empty() && world_.Chance(30)) {
    const uint64_t id = receives.front().id;
    receives.pop_front();
    adapter_.Push({{.id = id, .queue_pair = number_, .status = WorkStatus::kFlushed}, this, 0, true});
  }
  Flush();
  After(1 + world_.random.Below(kHopNs), [this] { host_.Broken(); });
}

void ModelQueuePair::Flush() {
  After(1 + world_.random.Below(kFlushNs), [this] {
    // Data of READs may come to the last moment.
    const auto works = works_;
    for (const WorkPtr& work : works) {
      if (work->over) continue;
      if (work->op == SendOp::kRead && world_.Chance(50)) MoveRead(*work, work->length);
      LetGo(work, WorkStatus::kFlushed);
    }
  });
}

void ModelQueuePair::EmitDone() {
  while (!works_.empty() && works_.front()->over) {
    const WorkPtr work = works_.front();
    works_.pop_front();
    ++silent_works_;
    if (!work->signaled && work->status == WorkStatus::kDone) continue;
    adapter_.Push({{.id = work->id, .queue_pair = number_, .status = work->status},
                   this,
                   std::exchange(silent_works_, 0),
                   false});
  }
}

void ModelQueuePair::HostSends(std::vector<uint8_t> message) {
  messages_.push_back(std::move(message));
  PumpMessages();
}

void ModelQueuePair::PumpMessages() {
  if (delivering_ || messages_.empty()) return;
  delivering_ = true;
  After(1 + world_.random.Below(kHopNs), [this] { Deliver(0); });
}

void ModelQueuePair::Deliver(uint32_t tries) {
  if (broken_) return;
  auto& receives = adapter_.receives_;
  if (receives.empty()) {
    if (tries == kTriesMax) return Enter();
    return After(kAgainNs, [this, tries] { Deliver(tries + 1); });
  }
  const verbs::ReceiveWork work = receives.front();
  receives.pop_front();
  const std::vector<uint8_t> message = std::move(messages_.front());
  messages_.pop_front();
  delivering_ = false;
  const bool fits = message.size() <= work.piece.length_bytes;
  if (fits) std::memcpy(MemoryAt(work.piece.address), message.data(), message.size());
  adapter_.Push({{.id = work.id,
                  .queue_pair = number_,
                  .status = fits ? WorkStatus::kDone : WorkStatus::kLocalError,
                  .received_bytes = static_cast<uint32_t>(message.size())},
                 this,
                 0,
                 true});
  if (!fits) return Enter();
  PumpMessages();
}

// ---- ModelAdapter

void ModelAdapter::Register(const void* base, uint64_t bytes, uint32_t key) {
  regions_[key] = {std::bit_cast<uint64_t>(base), bytes};
}

bool ModelAdapter::Registered(const verbs::LocalPiece& piece) const {
  const auto found = regions_.find(piece.local_key);
  return found != regions_.end() && piece.address >= found->second.address &&
         piece.address + piece.length_bytes <= found->second.address + found->second.bytes;
}

uint32_t ModelAdapter::Post(std::span<const verbs::ReceiveWork> works) {
  for (const verbs::ReceiveWork& work : works) {
    if (!Registered(work.piece)) world_.Wrong("memory for messages that is not registered");
    receives_.push_back(work);
  }
  if (receives_.size() > receives_max_) world_.Wrong("more memory for messages than the queue has room for");
  return static_cast<uint32_t>(works.size());
}

void ModelAdapter::Push(const Entry& entry) {
  completions_.push_back(entry);
  if (completions_.size() > completions_max_) world_.Wrong("more completions than their queue has room for");
  if (entry.completion.status == WorkStatus::kDone) return;
  // Of failed work nothing else is valid.
  completions_.back().completion.received_bytes = static_cast<uint32_t>(world_.random.Next());
  completions_.back().completion.invalidated_key = static_cast<uint32_t>(world_.random.Next());
}

uint32_t ModelAdapter::Poll(std::span<verbs::Completion> completions) {
  uint32_t count = 0;
  while (count < completions.size() && !completions_.empty()) {
    completions[count++] = completions_.front().completion;
    completions_.front().pair->used_ -= completions_.front().frees;
    completions_.pop_front();
  }
  return count;
}

}  // namespace cleat::sim::rdma
