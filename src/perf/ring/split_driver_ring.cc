// SPDX-License-Identifier: Apache-2.0
// Ordering: every store that the other side waits for and every load of what it may change in the meantime is
// sequentially consistent. "Publish, then look whether a kick is wanted" and "ask for calls, then look
// whether something has come" each need a store before a load, and the device does the same the other way
// round.
#include "perf/ring/split_driver_ring.h"

#include <fmt/format.h>

#include <atomic>
#include <cstring>

namespace cleat::perf {
namespace {

constexpr uint16_t kNoDescriptor = 0xffff;

uint64_t DescBytes(uint16_t size) {
  return sizeof(wire::Descriptor) * size;
}
uint64_t AvailBytes(uint16_t size) {
  return sizeof(uint16_t) * (uint64_t{3} + size);
}
uint64_t UsedBytes(uint16_t size) {
  return sizeof(uint16_t) * 3 + sizeof(wire::UsedElement) * size;
}

uint16_t Load(uint16_t* shared) {
  return std::atomic_ref<uint16_t>(*shared).load(std::memory_order_seq_cst);
}
void Store(uint16_t* shared, uint16_t value) {
  std::atomic_ref<uint16_t>(*shared).store(value, std::memory_order_seq_cst);
}

uint16_t* UsedFlags(uint8_t* used) {
  return reinterpret_cast<uint16_t*>(used);
}
uint16_t* UsedIdx(uint8_t* used) {
  return reinterpret_cast<uint16_t*>(used) + 1;
}
uint16_t* AvailEvent(uint8_t* used, uint16_t size) {
  return reinterpret_cast<uint16_t*>(used + 4 + sizeof(wire::UsedElement) * size);
}

}  // namespace

Status SplitDriverRing::Initialize() {
  const uint16_t size = options_.size;
  CLEAT_TRY(AllocateMemory(DescBytes(size), AvailBytes(size), UsedBytes(size)));
  desc_ = reinterpret_cast<wire::Descriptor*>(memory_.Span(desc_gpa_, desc_bytes_).data());
  avail_ = reinterpret_cast<uint16_t*>(memory_.Span(avail_gpa_, avail_bytes_).data());
  used_ = memory_.Span(used_gpa_, used_bytes_).data();
  next_.resize(size);
  for (uint16_t i = 0; i < size; ++i) next_[i] = static_cast<uint16_t>(i + 1);
  next_.back() = kNoDescriptor;
  DisableCalls();
  return Ok{};
}

uint16_t SplitDriverRing::TakeDescriptor() {
  const uint16_t index = free_head_;
  free_head_ = next_[index];
  --free_count_;
  return index;
}

void SplitDriverRing::WriteChain(std::span<const Segment> chain, uint16_t head) {
  uint16_t index = head;
  for (size_t i = 0; i < chain.size(); ++i) {
    const bool last = i + 1 == chain.size();
    const uint16_t next = last ? kNoDescriptor : TakeDescriptor();
    const auto flags =
        static_cast<uint16_t>((chain[i].writable ? wire::kDescWrite : 0) | (last ? 0 : wire::kDescNext));
    desc_[index] = {chain[i].gpa, chain[i].len, flags, last ? uint16_t{0} : next};
    next_[index] = next;
    index = next;
  }
}

void SplitDriverRing::WriteIndirect(std::span<const Segment> chain, uint16_t head) {
  auto* table = reinterpret_cast<wire::Descriptor*>(Table(head));
  for (size_t i = 0; i < chain.size(); ++i) {
    const bool last = i + 1 == chain.size();
    const auto flags =
        static_cast<uint16_t>((chain[i].writable ? wire::kDescWrite : 0) | (last ? 0 : wire::kDescNext));
    table[i] = {chain[i].gpa, chain[i].len, flags, static_cast<uint16_t>(last ? 0 : i + 1)};
  }
  const auto table_bytes = static_cast<uint32_t>(sizeof(wire::Descriptor) * chain.size());
  desc_[head] = {TableGpa(head), table_bytes, wire::kDescIndirect, 0};
  next_[head] = kNoDescriptor;
}

std::optional<uint16_t> SplitDriverRing::Add(std::span<const Segment> chain, bool indirect, uint64_t token) {
  CLEAT_DCHECK(!chain.empty());
  const size_t needed = indirect ? 1 : chain.size();
  if (needed > free_count_ || (indirect && chain.size() > options_.indirect_entries)) return std::nullopt;
  const uint16_t head = TakeDescriptor();
  if (indirect) {
    WriteIndirect(chain, head);
  } else {
    WriteChain(chain, head);
  }
  uint64_t writable_bytes = 0;
  for (const Segment& segment : chain) writable_bytes += segment.writable ? segment.len : 0;
  heads_[head] = {token, writable_bytes, static_cast<uint16_t>(needed)};
  avail_[2 + (avail_shadow_ & (options_.size - 1))] = head;
  ++avail_shadow_;
  ++in_flight_;
  ++unpublished_;
  ++stats_.chains;
  return head;
}

std::optional<uint16_t> SplitDriverRing::Reserve(uint16_t segments, bool indirect) {
  const uint16_t descriptors = indirect ? uint16_t{1} : segments;
  if (segments == 0 || descriptors > free_count_ || (indirect && segments > options_.indirect_entries)) {
    return std::nullopt;
  }
  const uint16_t id = TakeDescriptor();
  uint16_t last = id;
  for (uint16_t i = 1; i < descriptors; ++i) {
    next_[last] = TakeDescriptor();
    last = next_[last];
  }
  next_[last] = kNoDescriptor;
  reserved_[id] = {.descriptors = descriptors, .indirect = indirect};
  return id;
}

void SplitDriverRing::Prepare(uint16_t id, std::span<const Segment> chain) {
  Reserved& reserved = reserved_[id];
  CLEAT_CHECK(reserved.descriptors > 0 && heads_[id].descriptors == 0 && !chain.empty());
  uint64_t writable_bytes = 0;
  for (const Segment& segment : chain) writable_bytes += segment.writable ? segment.len : 0;
  if (reserved.indirect) {
    CLEAT_CHECK(chain.size() <= options_.indirect_entries);
    WriteIndirect(chain, id);
  } else {
    CLEAT_CHECK(chain.size() <= reserved.descriptors);
    uint16_t index = id;
    for (size_t i = 0; i < chain.size(); ++i, index = next_[index]) {
      const bool last = i + 1 == chain.size();
      const auto flags =
          static_cast<uint16_t>((chain[i].writable ? wire::kDescWrite : 0) | (last ? 0 : wire::kDescNext));
      desc_[index] = {chain[i].gpa, chain[i].len, flags, last ? uint16_t{0} : next_[index]};
    }
  }
  heads_[id] = {.token = id, .writable_bytes = writable_bytes, .descriptors = 0};
}

void SplitDriverRing::Unreserve(uint16_t id) {
  CLEAT_CHECK(reserved_[id].descriptors > 0 && heads_[id].descriptors == 0);
  uint16_t last = id;
  while (next_[last] != kNoDescriptor) last = next_[last];
  next_[last] = free_head_;
  free_head_ = id;
  free_count_ = static_cast<uint16_t>(free_count_ + reserved_[id].descriptors);
  reserved_[id] = {};
}

void SplitDriverRing::BreakUsedIndex(uint16_t index) {
  Break(fmt::format("the used index went ahead by {} with {} chains in flight",
                    static_cast<uint16_t>(index - used_seen_), in_flight_));
}

bool SplitDriverRing::Publish() {
  const uint16_t old_idx = avail_published_;
  if (avail_shadow_ == old_idx) return false;
  Store(&avail_[1], avail_shadow_);
  avail_published_ = avail_shadow_;
  unpublished_ = 0;
  if (options_.event_idx) return PassesEvent(Load(AvailEvent(used_, options_.size)), avail_shadow_, old_idx);
  return (Load(UsedFlags(used_)) & wire::kUsedNoNotify) == 0;
}

void SplitDriverRing::Release(uint16_t head) {
  uint16_t last = head;
  for (uint16_t i = 1; i < heads_[head].descriptors; ++i) last = next_[last];
  next_[last] = free_head_;
  free_head_ = head;
  free_count_ = static_cast<uint16_t>(free_count_ + heads_[head].descriptors);
  heads_[head].descriptors = 0;
  --in_flight_;
}

PopResult SplitDriverRing::Pop(UsedEntry* used) {
  if (used_seen_ == used_cached_) {
    used_cached_ = Load(UsedIdx(used_));
    if (used_seen_ == used_cached_) return broken() ? PopResult::kBroken : PopResult::kNone;
    if (static_cast<uint16_t>(used_cached_ - used_seen_) > in_flight_) {
      BreakUsedIndex(used_cached_);
      used_cached_ = used_seen_;
    }
  }
  if (broken()) return PopResult::kBroken;
  wire::UsedElement element;
  std::memcpy(&element, used_ + 4 + sizeof element * (used_seen_ & (options_.size - 1)), sizeof element);
  if (auto wrong = CheckUsed(element.id, element.len)) return Break(std::move(*wrong));
  const auto id = static_cast<uint16_t>(element.id);
  const uint64_t token = heads_[id].token;
  Release(id);
  ++used_seen_;
  *used = {token, element.len};
  return PopResult::kDone;
}

uint16_t SplitDriverRing::device_used_idx() const {
  return Load(UsedIdx(used_));
}

bool SplitDriverRing::EnableCalls() {
  Store(&avail_[2 + options_.size], used_seen_);
  Store(&avail_[0], 0);
  return Load(UsedIdx(used_)) == used_seen_;
}

void SplitDriverRing::DisableCalls() {
  // With EVENT_IDX the flag is not looked at: an event half the index space away won't be passed soon.
  Store(&avail_[2 + options_.size], static_cast<uint16_t>(used_seen_ + 0x8000));
  Store(&avail_[0], options_.event_idx ? uint16_t{0} : wire::kAvailNoInterrupt);
}

std::optional<std::vector<uint16_t>> SplitDriverRing::TakeRaw(uint16_t count) {
  if (count > free_count_) return std::nullopt;
  std::vector<uint16_t> taken;
  for (uint16_t i = 0; i < count; ++i) taken.push_back(TakeDescriptor());
  for (uint16_t i = 0; i + 1 < count; ++i) next_[taken[i]] = taken[i + 1];
  return taken;
}

wire::Descriptor& SplitDriverRing::RawDescriptor(uint16_t index) {
  CLEAT_CHECK(index < options_.size);
  return desc_[index];
}

void SplitDriverRing::PushRaw(uint16_t head, uint16_t descriptors, uint64_t token) {
  if (head < options_.size && heads_[head].descriptors == 0) heads_[head] = {token, kAnyLength, descriptors};
  avail_[2 + (avail_shadow_ & (options_.size - 1))] = head;
  ++avail_shadow_;
  ++in_flight_;
  ++unpublished_;
}

void SplitDriverRing::PublishRawIndex(uint16_t avail_idx) {
  Store(&avail_[1], avail_idx);
  avail_published_ = avail_shadow_ = avail_idx;
  unpublished_ = 0;
}

}  // namespace cleat::perf
