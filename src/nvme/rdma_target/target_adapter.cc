// SPDX-License-Identifier: Apache-2.0
#include "nvme/rdma_target/target_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>

#include "base/check.h"
#include "nvme/rdma_target/command_wire.h"
#include "nvme/rdma_target/target_queue.h"

namespace cleat::nvme::rdma_target {

struct TargetAdapter::Turns {
  IntrusiveList<TargetQueue, &TargetQueue::turn> queues;
};

TargetAdapter::TargetAdapter(const TargetAdapterOptions& options, verbs::CompletionQueue& completions,
                             verbs::ReceiveQueue& receives)
    : options_(options),
      completions_(completions),
      receives_(receives),
      scheduler_(options.reads_max),
      slots_(std::make_unique<ReceiveSlot[]>(options.slots)),
      turns_(std::make_unique<Turns>()) {
  CLEAT_CHECK(options.slots > 0 && options.completions_max >= options.slots);
  CLEAT_CHECK(options.slot_memory.length_bytes >= SlotMemoryBytes(options.slots, options.in_capsule_bytes));
  for (uint32_t i = 0; i < options.slots; ++i) {
    slots_[i].index = i;
    free_slots_.PushBack(slots_[i]);
  }
}

TargetAdapter::~TargetAdapter() {
  CLEAT_CHECK(queues_.empty());
}

cleat::Status TargetAdapter::CheckRoom(uint32_t entries, const verbs::SendLimits& limits) const {
  if (entries > options_.slots - entries_) {
    return Error(
        ErrorCode::kResourceExhausted,
        fmt::format("an NVMe/RDMA queue of {} entries: {} of the {} capsules for which there is memory "
                    "are other queues'",
                    entries, entries_, options_.slots));
  }
  if (limits.works > options_.completions_max - options_.slots - works_) {
    return Error(
        ErrorCode::kResourceExhausted,
        fmt::format("an NVMe/RDMA queue of {} works: the completion queue has room for {}, of which {} "
                    "are other queues'",
                    limits.works, options_.completions_max - options_.slots, works_));
  }
  return {};
}

// ---- For queues

uint16_t TargetAdapter::Attach(TargetQueue& queue) {
  CLEAT_CHECK(CheckRoom(queue.entries_max(), queue.limits()).ok());
  CLEAT_CHECK(queues_.emplace(queue.number(), &queue).second);
  entries_ += queue.entries_max();
  works_ += queue.limits().works;
  return ++generation_;
}

void TargetAdapter::Detach(TargetQueue& queue) {
  queue.turn.Unlink();
  wants_to_post_ = true;  // others may have READs in the place of its own
  CLEAT_CHECK(queues_.erase(queue.number()) == 1);
  TargetQueue*& recent = recent_[queue.number() % kRecent];
  if (recent == &queue) recent = nullptr;
  entries_ -= queue.entries_max();
  works_ -= queue.limits().works;
  // What has been polled already and not been looked at.
  for (uint32_t i = batch_at_ + 1; i < batch_end_; ++i) {
    verbs::Completion& completion = batch_[i];
    if (completion.queue_pair != queue.number()) continue;
    // The memory of a capsule is free all the same.
    if (WorkId::KindOf(completion.id) == WorkKind::kReceive) completion.status = verbs::WorkStatus::kFlushed;
    completion.queue_pair = UINT32_MAX;
  }
}

void TargetAdapter::Line(TargetQueue& queue) {
  wants_to_post_ = true;
  if (!queue.turn.linked()) turns_->queues.PushBack(queue);
}

const uint8_t* TargetAdapter::BytesOf(const ReceiveSlot& slot) const {
  return std::bit_cast<const uint8_t*>(options_.slot_memory.address +
                                       slot.index * SlotBytes(options_.in_capsule_bytes));
}

void TargetAdapter::Return(ReceiveSlot& slot) {
  CLEAT_CHECK(!slot.posted);
  wants_to_post_ = true;
  free_slots_.PushBack(slot);
}

// ---- Completions

uint32_t TargetAdapter::Poll(uint32_t budget) {
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

TargetQueue* TargetAdapter::Find(uint32_t queue_pair) {
  TargetQueue*& recent = recent_[queue_pair % kRecent];
  if (recent != nullptr && recent->number() == queue_pair) [[likely]]
    return recent;
  const auto found = queues_.find(queue_pair);
  if (found == queues_.end()) return nullptr;
  recent = found->second;
  return recent;
}

void TargetAdapter::Dispatch(const verbs::Completion& completion) {
  const WorkKind kind = WorkId::KindOf(completion.id);
  if (kind == WorkKind::kReceive) return Received(completion);
  TargetQueue* const queue = Find(completion.queue_pair);
  if (queue == nullptr || queue->generation() != WorkId::GenerationOf(completion.id)) {
    ++ignored_;
    return;
  }
  switch (kind) {
    case WorkKind::kRead:
    case WorkKind::kAnswer:
      return queue->Completed(kind, *WorkId::WireOf(completion.id), completion.status);
    case WorkKind::kWrite:
      return queue->Failed("a WRITE of data", completion.status);
    case WorkKind::kReceive:
      break;
  }
  queue->Failed("a completion of nothing that was posted", completion.status);
}

void TargetAdapter::Received(const verbs::Completion& completion) {
  const uint64_t index = WorkId::SlotOf(completion.id);
  if (index >= options_.slots || !slots_[index].posted) {
    ++ignored_;
    return;
  }
  ReceiveSlot& slot = slots_[index];
  slot.posted = false;
  --slots_posted_;
  TargetQueue* const queue = Find(completion.queue_pair);
  if (completion.status != verbs::WorkStatus::kDone) {
    Return(slot);
    if (queue != nullptr) queue->Failed("a capsule", completion.status);
    return;
  }
  if (queue == nullptr) {
    ++ignored_;
    return Return(slot);
  }
  slot.received_bytes = completion.received_bytes;
  queue->Received(slot);
}

// ---- Works

void TargetAdapter::Post() {
  PostSlots();
  for (;;) {
    for (Read read; scheduler_.Next(read);) {
      auto& wire = static_cast<CommandWire&>(*read.request);
      wire.queue->Due(wire);
      Line(*wire.queue);
    }
    TargetQueue* const queue = turns_->queues.PopFront();
    if (queue == nullptr) break;
    queue->Post(chain_);
  }
  // An end while they were posted has given some back.
  PostSlots();
  wants_to_post_ = false;
}

void TargetAdapter::PostSlots() {
  while (!free_slots_.empty() && !failed_) {
    const uint32_t slot_bytes =
        static_cast<uint32_t>(sizeof(fabrics::SubmissionEntry)) + options_.in_capsule_bytes;
    uint32_t count = 0;
    for (ReceiveSlot* slot = free_slots_.front(); slot != nullptr && count < kBatch;
         slot = free_slots_.Next(*slot)) {
      receives_to_post_[count++] = {
          WorkId::OfReceive(slot->index),
          {std::bit_cast<uint64_t>(BytesOf(*slot)), slot_bytes, options_.slot_memory.local_key}};
    }
    const uint32_t posted = receives_.Post(std::span(receives_to_post_).first(count));
    for (uint32_t i = 0; i < posted; ++i) free_slots_.PopFront()->posted = true;
    slots_posted_ += posted;
    failed_ = posted < count;
  }
}

}  // namespace cleat::nvme::rdma_target
