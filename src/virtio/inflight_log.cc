// SPDX-License-Identifier: Apache-2.0
#include "virtio/inflight_log.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cleat::virtio {

// The last `count` entries of the batch list are not in flight any more. The list is in memory that others
// can write: an index outside ends the walk.
void InflightLog::ClearBatch(uint8_t* base, uint16_t descriptors, uint16_t head, uint32_t count) {
  for (; count > 0 && head < descriptors; --count) {
    uint8_t* entry = EntryAt(base, head);
    Store<uint8_t>(entry + kInflightAt, 0);
    head = Load<uint16_t>(entry + kNextAt);
  }
}

void InflightLog::ClearAll(uint8_t* base, uint16_t descriptors) {
  for (uint16_t head = 0; head < descriptors; ++head) Store<uint8_t>(EntryAt(base, head) + kInflightAt, 0);
}

Status InflightLog::Attach(const InflightMemory& memory, uint16_t queue_size, uint16_t used_index) {
  Detach();
  if (memory.base == nullptr) return Ok{};
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "in-flight log: " + why);
  };
  if (memory.size_bytes < Bytes(queue_size)) {
    return refuse("it has " + std::to_string(memory.size_bytes) + " bytes, a queue of " +
                  std::to_string(queue_size) + " needs " + std::to_string(Bytes(queue_size)));
  }
  if (reinterpret_cast<uintptr_t>(memory.base) % alignof(uint64_t) != 0)
    return refuse("it is not 8-byte aligned");
  const auto version = Load<uint16_t>(memory.base + kVersionAt);
  if (version > kVersion) return refuse("its version " + std::to_string(version) + " is not known here");
  // What the peer sized it for, which may be more than the guest uses; 0 when nobody said.
  const auto desc_num = Load<uint16_t>(memory.base + kDescNumAt);
  if (desc_num != 0 && desc_num < queue_size) {
    return refuse("it was made for a queue of " + std::to_string(desc_num) + ", this one has " +
                  std::to_string(queue_size) + " entries");
  }

  if (version != 0) {
    CLEAT_TRY(CheckInflightOwner(memory.base, memory.disk));
  }

  if (desc_num == 0) Store<uint16_t>(memory.base + kDescNumAt, queue_size);
  TakeOver(memory, queue_size);
  if (version == 0) {
    ClearAll(memory.base, queue_size);
    // Not 0, which looks like a batch that was cut short when the ring is not at its start: the request that
    // last_batch_head names, 0 as well, would be lost.
    Store<uint16_t>(memory.base + kUsedIndexAt, used_index);
    Store<uint16_t>(memory.base + kVersionAt, kVersion);  // last: what is before it is valid now
  } else {
    Recover(memory.base, queue_size, used_index);
  }
  base_ = memory.base;
  resumed_ = version != 0;
  size_ = queue_size;
  keep_ = memory.keep;
  batch_head_ = Load<uint16_t>(base_ + kLastBatchHeadAt);
  tagged_ = memory.disk.known();
  tag_ = memory.disk == DiskIdentity::Several() ? 0 : memory.disk.tag();
  if (const auto requests = Requests(); !requests.empty()) serial_ = requests.back().serial + 1;
  return Ok{};
}

// Killed in between: the successor does the same again.
void InflightLog::TakeOver(const InflightMemory& memory, uint16_t descriptors) {
  if (!memory.disk.known()) return;
  if (DiskIdentity(Load<uint64_t>(memory.base + kInflightOwnerAt)) == memory.disk) return;
  for (uint16_t head = 0; head < descriptors; ++head)
    Store<uint32_t>(EntryAt(memory.base, head) + kCounterAt + kCounterTagAt, 0);
  Store<uint64_t>(memory.base + kInflightOwnerAt, memory.disk.value());
}

void InflightLog::Detach() {
  *this = InflightLog();
}

void InflightLog::Recover(uint8_t* base, uint16_t descriptors, uint16_t used_index) {
  const auto finished = Load<uint16_t>(base + kUsedIndexAt);
  const auto batch = static_cast<uint16_t>(used_index - finished);
  if (batch == 0) return;
  // More than the queue holds: not a batch that was cut short but another life of the ring, whose requests would
  // be looked for in a table that has others now.
  if (batch <= descriptors) {
    ClearBatch(base, descriptors, Load<uint16_t>(base + kLastBatchHeadAt), batch);
  } else {
    ClearAll(base, descriptors);
  }
  Store<uint16_t>(base + kUsedIndexAt, used_index);
}

void InflightLog::StorePublished(uint16_t used_index) {
  ClearBatch(base_, size_, batch_head_, batch_count_);
  Store<uint16_t>(base_ + kUsedIndexAt, used_index);
  batch_count_ = 0;
}

std::vector<InflightRequest> InflightLog::Requests() const {
  std::vector<InflightRequest> found;
  for (uint16_t head = 0; head < size_; ++head) {
    const uint8_t* entry = EntryAt(base_, head);
    if (Load<uint8_t>(entry + kInflightAt) == 0) continue;
    found.push_back({.serial = static_cast<uint32_t>(Load<uint64_t>(entry + kCounterAt)), .head = head});
  }
  SortByAge(found);
  return found;
}

std::vector<uint16_t> InflightLog::InFlight() const {
  std::vector<uint16_t> heads;
  for (const InflightRequest& request : Requests()) heads.push_back(request.head);
  return heads;
}

uint32_t InflightLog::TagOf(uint16_t head) const {
  if (!tagged_) return 0;
  return Load<uint32_t>(EntryAt(base_, head) + kCounterAt + kCounterTagAt);
}

// Killed in between: a fresh log, which whoever takes it clears.
void ForgetInflight(const InflightMemory& memory) {
  if (memory.base == nullptr || memory.size_bytes < InflightLog::kHeaderBytes) return;
  if (reinterpret_cast<uintptr_t>(memory.base) % alignof(uint64_t) != 0) return;  // no ring took it
  StoreShared<uint16_t>(memory.base + kInflightVersionAt, 0, std::memory_order_release);
}

}  // namespace cleat::virtio
