// SPDX-License-Identifier: Apache-2.0
#include "store_order.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "base/check.h"

namespace cleat::sim {
namespace {

constexpr uint64_t kDescriptorBytes = 16;

// One queue's part of the log, rounded up to a cache line.
uint64_t PartBytes(const RingPlaces& places) {
  const uint64_t bytes = places.packed ? 32 + 32 * uint64_t{places.size} : 16 + 16 * uint64_t{places.size};
  return (bytes + 63) / 64 * 64;
}

}  // namespace

void SharedStore::Do() const {
  std::memcpy(at, &value, bytes);  // little-endian
}

StoreOrder::Rule StoreOrder::RuleOf() const {
  switch (defect_) {
    case Defect::kLogWhenUsed:
      return {Field::kInflightSet, Field::kRingUsed};
    case Defect::kBatchAfterUsed:
      return {Field::kBatch, Field::kRingUsed};
    case Defect::kClearBeforeUsed:
      return {Field::kRingUsed, Field::kLogUsedIndex};
    case Defect::kClearAfterDone:
      return {Field::kInflightClear, Field::kLogUsedIndex};
    case Defect::kNoteAfterUsed:
      return {Field::kUsing, Field::kRingUsed};
    case Defect::kPackedClearBeforeUsed:
      return {Field::kRingUsed, Field::kUsed};
    case Defect::kTakenBeforeNoted:
      return {Field::kInflightSet, Field::kOldFreeHead};
    default:
      return {Field::kOther, Field::kOther};
  }
}

bool StoreOrder::Hold(const SharedStore& store, std::vector<SharedStore>& released) {
  released.clear();
  const Rule rule = RuleOf();
  if (places_ == nullptr || rule.held == Field::kOther) return false;
  const Place place = Find(store);
  if (place.field == Field::kOther) return false;
  if (place.field == rule.held) {
    held_[place.queue].push_back(store);
    return true;
  }
  if (place.field == rule.until) released = std::exchange(held_[place.queue], {});
  return false;
}

void StoreOrder::Forget() {
  held_.clear();
  mappings_.clear();
}

StoreOrder::Place StoreOrder::Find(const SharedStore& store) {
  const Mapping* mapping = FindMapping(store.at);
  if (mapping == nullptr) return {};
  const uint64_t offset = reinterpret_cast<uint64_t>(store.at) - mapping->begin + mapping->offset;
  return mapping->log ? FindInLog(store, offset) : FindInRing(offset);
}

StoreOrder::Place StoreOrder::FindInLog(const SharedStore& store, uint64_t offset) const {
  const uint64_t queue = offset / PartBytes(known_);
  const uint64_t at = offset % PartBytes(known_);
  const uint64_t header_bytes = known_.packed ? 32 : 16;
  const uint64_t entry_bytes = header_bytes;
  Field field = Field::kOther;
  if (at >= header_bytes) {
    const uint64_t in_entry = (at - header_bytes) % entry_bytes;
    if (in_entry == 0) field = store.value != 0 ? Field::kInflightSet : Field::kInflightClear;
    if (in_entry == 6 && !known_.packed) field = Field::kBatch;
  } else if (known_.packed) {
    if (at == 14) field = Field::kOldFreeHead;
    // used_idx, old_used_idx, used_wrap_counter, old_used_wrap_counter
    const bool same = (store.value & 0xffff) == (store.value >> 16 & 0xffff) &&
                      (store.value >> 32 & 0xff) == (store.value >> 40 & 0xff);
    if (at == 16) field = same ? Field::kUsed : Field::kUsing;
  } else {
    if (at == 12) field = Field::kBatch;
    if (at == 14) field = Field::kLogUsedIndex;
  }
  return {field, queue};
}

StoreOrder::Place StoreOrder::FindInRing(uint64_t gpa) const {
  for (uint64_t queue = 0; queue < known_.used_gpa.size(); ++queue) {
    const uint64_t descriptors = known_.descriptors_gpa[queue];
    const bool used = known_.packed ? gpa >= descriptors && gpa < descriptors + kDescriptorBytes * known_.size
                                    : gpa == known_.used_gpa[queue] + 2;
    if (used) return {Field::kRingUsed, queue};
  }
  return {};
}

const StoreOrder::Mapping* StoreOrder::FindMapping(const uint8_t* at) {
  const auto address = reinterpret_cast<uint64_t>(at);
  const auto find = [&]() -> const Mapping* {
    const auto found = std::find_if(mappings_.begin(), mappings_.end(), [&](const Mapping& mapping) {
      return address >= mapping.begin && address < mapping.end;
    });
    return found == mappings_.end() ? nullptr : &*found;
  };
  if (const Mapping* known = find()) return known;
  known_ = places_();
  ReadMappings();
  return find();
}

// The files by the names that their makers give them: src/perf for memory, vhost::Session for logs.
void StoreOrder::ReadMappings() {
  mappings_.clear();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const bool log = line.find("/memfd:cleat-inflight") != std::string::npos;
    if (!log && line.find("/memfd:cleat-perf-guest") == std::string::npos) continue;
    Mapping mapping{0, 0, 0, log};
    const int fields = std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64, &mapping.begin,
                                   &mapping.end, &mapping.offset);
    CLEAT_CHECK(fields == 3);
    mappings_.push_back(mapping);
  }
}

}  // namespace cleat::sim
