// SPDX-License-Identifier: Apache-2.0
// Ordering: the flags of the first descriptor that was added come last and show all the others; as in the split ring,
// every store that the other side waits for and every load of what it may change in the meantime is sequentially
// consistent.
#include "perf/ring/packed_driver_ring.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace cleat::perf {
namespace {

constexpr uint64_t kEventBytes = sizeof(uint32_t);
constexpr uint16_t kAvailUsed = wire::kDescAvail | wire::kDescUsed;

// len, id and flags are read and written as one word.
uint64_t* Meta(wire::PackedDescriptor* descriptor) {
  return reinterpret_cast<uint64_t*>(descriptor) + 1;
}
template <typename T>
T Load(T* shared) {
  return std::atomic_ref<T>(*shared).load(std::memory_order_seq_cst);
}
template <typename T>
void Store(T* shared, T value) {
  std::atomic_ref<T>(*shared).store(value, std::memory_order_seq_cst);
}

}  // namespace

Status PackedDriverRing::Initialize() {
  const uint16_t size = options_.size;
  if (Status status = AllocateMemory(sizeof(wire::PackedDescriptor) * size, kEventBytes, kEventBytes);
      !status) {
    return status;
  }
  desc_ = reinterpret_cast<wire::PackedDescriptor*>(memory_.Span(desc_gpa_, desc_bytes_).data());
  driver_event_ = memory_.At<uint32_t>(avail_gpa_);
  device_event_ = memory_.At<uint32_t>(used_gpa_);
  for (uint16_t i = 0; i < size; ++i) free_ids_.push_back(static_cast<uint16_t>(size - 1 - i));
  DisableCalls();
  return Ok{};
}

uint32_t PackedDriverRing::WriteTable(std::span<const Segment> chain, uint16_t id) {
  auto* table = reinterpret_cast<wire::PackedDescriptor*>(Table(id));
  for (size_t i = 0; i < chain.size(); ++i) {
    table[i] = {chain[i].gpa, chain[i].len, 0, chain[i].writable ? wire::kDescWrite : uint16_t{0}};
  }
  return static_cast<uint32_t>(sizeof(wire::PackedDescriptor) * chain.size());
}

std::optional<uint16_t> PackedDriverRing::Add(std::span<const Segment> chain, bool indirect, uint64_t token) {
  CLEAT_DCHECK(!chain.empty());
  const size_t needed = indirect ? 1 : chain.size();
  if (needed > free_count_ || (indirect && chain.size() > options_.indirect_entries)) return std::nullopt;
  const uint16_t id = free_ids_.back();
  free_ids_.pop_back();
  bool first = unpublished_descriptors_ == 0;
  if (indirect) {
    Put({TableGpa(id), WriteTable(chain, id), id, wire::kDescIndirect}, first);
  } else {
    for (size_t i = 0; i < chain.size(); ++i, first = false) {
      const int flags =
          (chain[i].writable ? wire::kDescWrite : 0) | (i + 1 < chain.size() ? wire::kDescNext : 0);
      Put({chain[i].gpa, chain[i].len, id, static_cast<uint16_t>(flags)}, first);
    }
  }
  uint64_t writable_bytes = 0;
  for (const Segment& segment : chain) writable_bytes += segment.writable ? segment.len : 0;
  heads_[id] = {token, writable_bytes, static_cast<uint16_t>(needed)};
  free_count_ = static_cast<uint16_t>(free_count_ - needed);
  ++in_flight_;
  ++unpublished_;
  ++stats_.chains;
  return id;
}

std::optional<uint16_t> PackedDriverRing::Reserve(uint16_t segments, bool indirect) {
  const uint16_t descriptors = indirect ? uint16_t{1} : segments;
  if (segments == 0 || descriptors > free_count_ || free_ids_.empty() ||
      (indirect && segments > options_.indirect_entries)) {
    return std::nullopt;
  }
  if (descriptors > prepared_stride_) {
    // All chains of a ring are reserved alike.
    CLEAT_CHECK(std::all_of(reserved_.begin(), reserved_.end(),
                            [](const Reserved& other) { return other.descriptors == 0; }));
    prepared_stride_ = descriptors;
    prepared_.resize(size_t{options_.size} * descriptors);
  }
  const uint16_t id = free_ids_.back();
  free_ids_.pop_back();
  free_count_ = static_cast<uint16_t>(free_count_ - descriptors);
  reserved_[id] = {.descriptors = descriptors, .indirect = indirect};
  return id;
}

void PackedDriverRing::Prepare(uint16_t id, std::span<const Segment> chain) {
  Reserved& reserved = reserved_[id];
  CLEAT_CHECK(reserved.descriptors > 0 && heads_[id].descriptors == 0 && !chain.empty());
  uint64_t writable_bytes = 0;
  for (const Segment& segment : chain) writable_bytes += segment.writable ? segment.len : 0;
  wire::PackedDescriptor* prepared = &prepared_[size_t{id} * prepared_stride_];
  if (reserved.indirect) {
    CLEAT_CHECK(chain.size() <= options_.indirect_entries);
    *prepared = {TableGpa(id), WriteTable(chain, id), id, wire::kDescIndirect};
    reserved.used_descriptors = 1;
  } else {
    CLEAT_CHECK(chain.size() <= reserved.descriptors);
    for (size_t i = 0; i < chain.size(); ++i) {
      const int flags =
          (chain[i].writable ? wire::kDescWrite : 0) | (i + 1 < chain.size() ? wire::kDescNext : 0);
      prepared[i] = {chain[i].gpa, chain[i].len, id, static_cast<uint16_t>(flags)};
    }
    reserved.used_descriptors = static_cast<uint16_t>(chain.size());
  }
  heads_[id] = {.token = id, .writable_bytes = writable_bytes, .descriptors = 0};
}

void PackedDriverRing::Unreserve(uint16_t id) {
  CLEAT_CHECK(reserved_[id].descriptors > 0 && heads_[id].descriptors == 0);
  free_count_ = static_cast<uint16_t>(free_count_ + reserved_[id].descriptors);
  free_ids_.push_back(id);
  reserved_[id] = {};
}

void PackedDriverRing::AddRaw(std::span<const wire::PackedDescriptor> chain, uint16_t id, uint64_t token) {
  CLEAT_CHECK(chain.size() <= options_.size);
  if (id < options_.size && heads_[id].descriptors == 0) {
    heads_[id] = {token, kAnyLength, static_cast<uint16_t>(chain.size())};
    std::erase(free_ids_, id);
  }
  for (const wire::PackedDescriptor& descriptor : chain) Put(descriptor, unpublished_descriptors_ == 0);
  free_count_ = static_cast<uint16_t>(free_count_ > chain.size() ? free_count_ - chain.size() : 0);
  ++in_flight_;
  ++unpublished_;
}

bool PackedDriverRing::Publish() {
  const uint16_t added = std::exchange(unpublished_descriptors_, uint16_t{0});
  unpublished_ = 0;
  if (added == 0) return false;
  Store(&desc_[first_index_].flags, first_flags_);
  const uint32_t event = Load(device_event_);
  if ((event & wire::kEventFlagsMask) != wire::kEventDesc) {
    return (event & wire::kEventFlagsMask) != wire::kEventDisable;
  }
  const bool same_wrap = ((event & kWrapBit) != 0) == avail_.wrap;
  const auto event_index = static_cast<uint16_t>((event & (kWrapBit - 1)) - (same_wrap ? 0 : options_.size));
  return PassesEvent(event_index, avail_.index, static_cast<uint16_t>(avail_.index - added));
}

bool PackedDriverRing::UsedIsThere(const Index& at) const {
  const auto flags = static_cast<uint16_t>(Load(Meta(&desc_[at.index])) >> 48);
  return (flags & kAvailUsed) == (at.wrap ? kAvailUsed : 0);
}

uint32_t PackedDriverRing::base_after_crash() const {
  Index at = used_;
  for (uint16_t left = in_flight_; left > 0 && UsedIsThere(at); --left) {
    const uint16_t id = IdOf(Load(Meta(&desc_[at.index])));
    if (id < options_.size) at.Advance(heads_[id].descriptors, options_.size);
  }
  return uint32_t{at.word()} << 16 | at.word();
}

PopResult PackedDriverRing::Pop(UsedEntry* used) {
  if (broken()) return PopResult::kBroken;
  if (!UsedIsThere(used_)) return PopResult::kNone;
  const uint64_t meta = Load(Meta(&desc_[used_.index]));
  const uint16_t id = IdOf(meta);
  const bool wrote = (static_cast<uint16_t>(meta >> 48) & wire::kDescWrite) != 0;
  const uint32_t written_bytes = wrote ? static_cast<uint32_t>(meta) : 0;  // 2.8.4
  if (auto wrong = CheckUsed(id, written_bytes)) return Break(std::move(*wrong));
  Head& head = heads_[id];
  *used = {head.token, written_bytes};
  used_.Advance(head.descriptors, options_.size);
  free_count_ = static_cast<uint16_t>(free_count_ + head.descriptors);
  head.descriptors = 0;
  free_ids_.push_back(id);
  --in_flight_;
  return PopResult::kDone;
}

bool PackedDriverRing::EnableCalls() {
  Store(driver_event_, options_.event_idx ? used_.word() | wire::kEventDesc : wire::kEventEnable);
  return !UsedIsThere(used_);
}

void PackedDriverRing::DisableCalls() {
  Store(driver_event_, wire::kEventDisable);
}

}  // namespace cleat::perf
