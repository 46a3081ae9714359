// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/memory/data_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::fabrics {

static_assert(DataBuffers::kSlabBytes / DataBuffers::kPieceMinBytes == 256);

DataBuffers::DataBuffers(uint32_t slabs) : slabs_(slabs) {
  CLEAT_CHECK(slabs > 0 && slabs <= kSlabsMax);
  void* const base = mmap(nullptr, uint64_t{slabs} * kSlabBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CLEAT_CHECK(base != MAP_FAILED);  // address space alone
  base_ = static_cast<uint8_t*>(base);
  region_ = block::MemoryRegion::Borrow(base, uint64_t{slabs} * kSlabBytes);
  with_room_.fill(kNone);
  for (uint32_t number = slabs; number-- > 0;) Insert(free_, static_cast<uint16_t>(number));
}

DataBuffers::~DataBuffers() {
  CLEAT_CHECK(slabs_in_use_ == 0);
  region_.reset();
  munmap(base_, slabs_.size() * kSlabBytes);
}

uint32_t DataBuffers::SizeOf(uint32_t bytes) {
  const uint32_t piece = std::bit_ceil(std::max(bytes, kPieceMinBytes));
  return static_cast<uint32_t>(std::countr_zero(piece) - std::countr_zero(kPieceMinBytes));
}

void DataBuffers::Insert(uint16_t& list, uint16_t number) {
  Slab& slab = slabs_[number];
  slab.before = kNone;
  slab.next = list;
  if (list != kNone) slabs_[list].before = number;
  list = number;
}

void DataBuffers::Remove(uint16_t& list, uint16_t number) {
  const Slab& slab = slabs_[number];
  (slab.before == kNone ? list : slabs_[slab.before].next) = slab.next;
  if (slab.next != kNone) slabs_[slab.next].before = slab.before;
}

void DataBuffers::Cut(Slab& slab, uint32_t size) {
  slab.size = static_cast<uint8_t>(size);
  slab.free_count = static_cast<uint16_t>(kSlabBytes / kPieceMinBytes >> size);
  for (uint32_t i = 0; i < slab.free_count; ++i) slab.free[i] = static_cast<uint8_t>(slab.free_count - 1 - i);
}

// A slab that is free was cut before, as nearly always for the same size: with one request at a time each would cut it anew.
bool DataBuffers::Take(uint32_t bytes, block::Segment& piece) {
  CLEAT_CHECK(bytes > 0 && bytes <= kSlabBytes);
  const uint32_t size = SizeOf(bytes);
  uint16_t& list = with_room_[size];
  if (list == kNone) {
    if (free_ == kNone) return false;
    const uint16_t number = free_;
    Remove(free_, number);
    Slab& fresh = slabs_[number];
    if (fresh.free_count == 0 || fresh.size != size) Cut(fresh, size);
    fresh.dirty = true;
    slabs_most_ = std::max(slabs_most_, ++slabs_in_use_);
    Insert(list, number);
  }
  const uint16_t number = list;
  Slab& slab = slabs_[number];
  const uint64_t at = slab.free[--slab.free_count];
  if (slab.free_count == 0) Remove(list, number);
  piece = {region_.get(), uint64_t{number} * kSlabBytes + at * (uint64_t{kPieceMinBytes} << size), bytes};
  return true;
}

void DataBuffers::Give(const block::Segment& piece) {
  const auto number = static_cast<uint16_t>(piece.offset_bytes / kSlabBytes);
  Slab& slab = slabs_[number];
  const uint64_t piece_bytes = uint64_t{kPieceMinBytes} << slab.size;
  const uint32_t pieces = kSlabBytes / kPieceMinBytes >> slab.size;
  CLEAT_CHECK(slab.free_count < pieces);
  if (slab.free_count == 0) Insert(with_room_[slab.size], number);
  slab.free[slab.free_count++] = static_cast<uint8_t>(piece.offset_bytes % kSlabBytes / piece_bytes);
  if (slab.free_count < pieces) return;
  Remove(with_room_[slab.size], number);
  Insert(free_, number);
  --slabs_in_use_;
}

// Pieces begin and end at pages. Were the old pages to stay, what is read for the next command would leave in an older one's answer.
void DataBuffers::ReplacePages(const block::Segment& piece) {
  const uint64_t bytes = uint64_t{kPieceMinBytes} << SizeOf(piece.length_bytes);
  CLEAT_CHECK(madvise(piece.data(), bytes, MADV_DONTNEED) == 0);
}

bool DataBuffers::Trim() {
  const uint32_t needed = std::max(std::exchange(slabs_most_, slabs_in_use_), kSlabsKept);
  uint32_t kept = slabs_in_use_;
  for (uint16_t number = free_; number != kNone; number = slabs_[number].next) {
    Slab& slab = slabs_[number];
    if (!slab.dirty || ++kept <= needed) continue;
    slab.dirty = false;
    madvise(base_ + uint64_t{number} * kSlabBytes, kSlabBytes, MADV_DONTNEED);
  }
  return std::min(kept, needed) > std::max(slabs_in_use_, kSlabsKept);
}

}  // namespace cleat::nvme::fabrics
