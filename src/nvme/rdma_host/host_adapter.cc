// SPDX-License-Identifier: Apache-2.0
#include "nvme/rdma_host/host_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "nvme/rdma_host/host_queue.h"

namespace cleat::nvme::rdma_host {
namespace {

// Large commands leave so many parts of the places to small ones: as of the memory, and for the same reason.
constexpr uint32_t kPlacesLeftParts = DataShares::kLeftParts;
constexpr uint32_t kWorksMin = 2;  // that are posted together

// Each large command has a window, of which there may be fewer than places.
uint32_t LargePlacesMax(uint32_t windows) {
  return windows > 1 ? windows - std::max(windows / kPlacesLeftParts, 1U) : windows;
}

}  // namespace

struct HostAdapter::Turns {
  IntrusiveList<HostQueue, &HostQueue::turn> queues;
};

HostAdapter::HostAdapter(HostAdapterOptions options, fabrics::DataBuffers& data,
                         verbs::CompletionQueue& completions, verbs::ReceiveQueue& receives)
    : options_(std::move(options)),
      data_(data),
      completions_(completions),
      receives_(receives),
      all_places_(std::make_unique<Place[]>(options_.commands)),
      free_windows_(options_.windows),
      windows_free_(static_cast<uint32_t>(options_.windows.size())),
      windows_(windows_free_),
      is_posted_(ReceiveEntries(options_.commands)),
      turns_(std::make_unique<Turns>()) {
  const uint32_t entries = ReceiveEntries(options_.commands);
  CLEAT_CHECK(windows_ > 0 && windows_ <= options_.commands);
  CLEAT_CHECK(options_.data_registration != nullptr &&
              options_.completions_max >= CompletionEntries(options_.commands, windows_));
  CLEAT_CHECK(options_.slot_memory.length_bytes >=
              SlotMemoryBytes(options_.commands, options_.in_capsule_bytes));
  for (uint32_t i = 0; i < options_.commands; ++i) {
    Place& place = all_places_[i];
    place.index = i;
    free_places_.PushBack(place);
  }
  places_free_ = options_.commands;
  free_receives_.reserve(entries);
  for (uint32_t i = entries; i-- > 0;) free_receives_.push_back(i);
}

HostAdapter::~HostAdapter() {
  CLEAT_CHECK(queues_.empty());
}

verbs::SendLimits HostAdapter::LimitsFor(uint32_t entries) {
  CLEAT_CHECK(entries > 1);
  return {.works = (entries - 1) * kWorksOfCommand,
          .pieces = 1,
          .inline_bytes = sizeof(fabrics::SubmissionEntry),
          .read_credits = 0};
}

cleat::Status HostAdapter::CheckRoom(uint32_t entries, const verbs::SendLimits& limits) const {
  if (windows_ == 0) {
    return Error(
        ErrorCode::kResourceExhausted,
        fmt::format("an NVMe/RDMA queue of {} entries: the adapter has no memory window left, as none "
                    "could be made in the place of those that were destroyed",
                    entries));
  }
  if (queues_.size() >= options_.queues_max) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("an NVMe/RDMA queue of {} entries: the adapter has room for the commands of {} "
                             "queues, and has them: reach some targets by another adapter, or over TCP",
                             entries, options_.queues_max));
  }
  if (limits.works < kWorksMin || limits.pieces == 0) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("an NVMe/RDMA queue of {} entries: the adapter gives its queue pair room for {} "
                             "works of {} pieces; {} of one are needed",
                             entries, limits.works, limits.pieces, kWorksMin));
  }
  return {};
}

// ---- For queues

uint32_t HostAdapter::Attach(HostQueue& queue, const std::string& target) {
  CLEAT_CHECK(queues_.emplace(queue.number(), &queue).second);
  queue.SetTarget(waiting_.Join(target));
  if (++attached_ == 0) ++attached_;  // DataShares has a use of its own for it
  return attached_;
}

void HostAdapter::Detach(HostQueue& queue) {
  queue.turn.Unlink();
  CLEAT_CHECK(queues_.erase(queue.number()) == 1);
  if (last_ == &queue) last_ = nullptr;
  waiting_.Leave(queue.target_name());
  // What has been polled already and not been looked at.
  for (uint32_t i = batch_at_ + 1; i < batch_end_; ++i) {
    verbs::Completion& completion = batch_[i];
    if (completion.queue_pair != queue.number()) continue;
    // The memory of a message is free all the same.
    if (WorkId::Of(completion.id).kind == WorkKind::kReceive) completion.status = verbs::WorkStatus::kFlushed;
    completion.queue_pair = UINT32_MAX;
  }
}

void HostAdapter::Line(HostQueue& queue) {
  wants_to_post_ = true;
  if (!queue.turn.linked()) turns_->queues.PushBack(queue);
}

void HostAdapter::Wait(HostCommand& command) {
  wants_to_post_ = true;
  waiting_.Add(command, command.queue->target());
}

void HostAdapter::Give(HostCommand& command) {
  if (command.waits.linked()) command.waits.Unlink();
  if (command.place == nullptr) {
    wants_to_post_ = true;  // what stands behind it may need less
    return;
  }
  Give(command, command.place->window);
}

void HostAdapter::Give(HostCommand& command, verbs::MemoryWindow* window) {
  Place& place = *std::exchange(command.place, nullptr);
  if (window != nullptr) free_windows_[AtRing(first_window_ + windows_free_++)] = window;
  Target& target = command.queue->target();
  const uint32_t kind = WaitingLines::KindOf(command);
  if (place.window != nullptr) --target.windows[kind];
  if (window == nullptr && place.window != nullptr) {
    // Commands would wait for ever without any window.
    if (--windows_ == 0) failed_ = true;
  }
  --target.places[kind];
  place.window = nullptr;
  // The one that came back last is used first: it is in the cache.
  free_places_.PushFront(place);
  ++places_free_;
  if (command.is_large) --places_large_;
  if (command.needs_piece()) {
    target.bytes[kind] -= DataShares::PieceBytes(command.data_bytes);
    data_.Give(std::exchange(command.piece, {}));
  }
  if (!waiting_.empty()) wants_to_post_ = true;
}

uint8_t* HostAdapter::CapsuleOf(const Place& place) const {
  return std::bit_cast<uint8_t*>(options_.slot_memory.address +
                                 place.index * CapsuleBytes(options_.in_capsule_bytes));
}

// ---- Completions

uint32_t HostAdapter::Poll(uint32_t budget) {
  CLEAT_CHECK(batch_end_ == 0);
  uint32_t polled = 0;
  while (polled < budget) {
    const uint32_t wanted = std::min(kBatch, budget - polled);
    batch_end_ = completions_.Poll(std::span(batch_).first(wanted));
    CLEAT_CHECK(batch_end_ <= wanted);
    const uint32_t count = batch_end_;
    for (batch_at_ = 0; batch_at_ < count; ++batch_at_) Dispatch(batch_[batch_at_]);
    batch_end_ = 0;
    polled += count;
    if (count < wanted) break;
  }
  if (wants_to_post_) Post();
  return polled;
}

HostQueue* HostAdapter::Find(uint32_t queue_pair) {
  if (last_ != nullptr && last_->number() == queue_pair) return last_;
  const auto found = queues_.find(queue_pair);
  if (found != queues_.end()) last_ = found->second;
  return found == queues_.end() ? nullptr : found->second;
}

void HostAdapter::Dispatch(const verbs::Completion& completion) {
  const WorkId id = WorkId::Of(completion.id);
  if (id.kind == WorkKind::kReceive) return Received(completion);
  HostQueue* const queue = Find(completion.queue_pair);
  if (queue == nullptr || queue->generation() != id.generation) {
    ++ignored_;
    return;
  }
  queue->Completed(id.kind, id.number, completion.status);
}

uint64_t HostAdapter::AnswerAddress(uint32_t receive) const {
  return options_.slot_memory.address + options_.commands * CapsuleBytes(options_.in_capsule_bytes) +
         uint64_t{receive} * kAnswerBytes;
}

void HostAdapter::Received(const verbs::Completion& completion) {
  const uint32_t receive = WorkId::Of(completion.id).number;
  if (receive >= is_posted_.size() || !is_posted_[receive]) {
    ++ignored_;
    return;
  }
  is_posted_[receive] = false;
  --receives_posted_;
  free_receives_.push_back(receive);
  wants_to_post_ = true;
  HostQueue* const queue = Find(completion.queue_pair);
  if (queue == nullptr) {
    ++ignored_;
    return;
  }
  if (completion.status != verbs::WorkStatus::kDone) return queue->Failed("a message", completion.status);
  fabrics::CompletionEntry entry;
  std::memcpy(&entry, std::bit_cast<const void*>(AnswerAddress(receive)), sizeof(entry));
  queue->Received(entry, completion);
}

// ---- Works

void HostAdapter::Post() {
  if (posting_ || batch_end_ > 0) return;
  posting_ = true;
  while (wants_to_post_) {
    wants_to_post_ = false;
    // First, so that no answer finds less memory than there may be answers.
    PostReceives();
    Serve();
    while (HostQueue* const queue = turns_->queues.PopFront()) queue->Post(chain_);
    // An end while they were posted has given some back: once more.
  }
  posting_ = false;
}

void HostAdapter::Serve() {
  for (;;) {
    if (ServeFirst(turn_)) {
      turn_ = 1 - turn_;
    } else if (!ServeFirst(1 - turn_)) {
      return;
    }
  }
}

// A command that its target's share does not allow for lets those of others by; one that the adapter has nothing for gets what comes back first.
bool HostAdapter::ServeFirst(uint32_t kind) {
  Target::Line* line = waiting_.First(kind);
  while (line != nullptr && !MayServe(*line->commands.front(), *line->target))
    line = waiting_.Next(kind, *line);
  if (line == nullptr || free_places_.empty()) return false;
  HostCommand& command = *line->commands.front();
  if (command.is_large && places_large_ >= LargePlacesMax(windows_)) return false;
  if (command.needs_window() && windows_free_ == 0) return false;
  if (command.needs_piece() && !data_.Take(command.data_bytes, command.piece)) return false;
  Target& target = *line->target;
  waiting_.Take(kind, *line);
  command.place = free_places_.PopFront();
  --places_free_;
  ++target.places[kind];
  if (command.needs_window()) {
    command.place->window = free_windows_[first_window_];
    first_window_ = AtRing(first_window_ + 1);
    --windows_free_;
    ++target.windows[kind];
  }
  if (command.needs_piece()) target.bytes[kind] += DataShares::PieceBytes(command.data_bytes);
  if (command.is_large) ++places_large_;
  command.queue->Placed(command);
  return true;
}

bool HostAdapter::MayServe(const HostCommand& command, const Target& target) const {
  const uint32_t kind = WaitingLines::KindOf(command);
  if (!MayTake(target.places[kind], places_free_)) return false;
  if (command.needs_window() && !MayTake(target.windows[kind], windows_free_)) return false;
  return !command.needs_piece() || MayTake(target.bytes[kind], data_.BytesFree(kind));
}

void HostAdapter::PostReceives() {
  if (free_receives_.empty()) return;
  std::array<verbs::ReceiveWork, kBatch> works;
  while (!free_receives_.empty() && !failed_) {
    const auto count = static_cast<uint32_t>(std::min<size_t>(free_receives_.size(), kBatch));
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t receive = free_receives_[free_receives_.size() - 1 - i];
      works[i] = {WorkId{WorkKind::kReceive, 0, receive}.Pack(),
                  {AnswerAddress(receive), kAnswerBytes, options_.slot_memory.local_key}};
    }
    const uint32_t posted = receives_.Post(std::span(works).first(count));
    for (uint32_t i = 0; i < posted; ++i) {
      is_posted_[free_receives_.back()] = true;
      free_receives_.pop_back();
    }
    receives_posted_ += posted;
    failed_ = posted < count;
  }
}

}  // namespace cleat::nvme::rdma_host
