// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "perf/driver/blk_driver.h"
#include "perf/hostile/hostile.h"
#include "perf/ring/packed_driver_ring.h"
#include "perf/wire/virtio_blk.h"
#include "perf/wire/virtqueue.h"

namespace cleat::perf {
namespace {

using wire::Descriptor;
using wire::kDescIndirect;
using wire::kDescNext;
using wire::kDescWrite;
using wire::PackedDescriptor;
using enum RingOutcome;

constexpr RingAbuseCase kCases[] = {
    {RingAbuse::kSelfLoop, "SelfLoop", kRingBroken, false, false},
    {RingAbuse::kChainLoop, "ChainLoop", kRingBroken, false, false},
    {RingAbuse::kNextOutOfRange, "NextOutOfRange", kRingBroken, false, false},
    {RingAbuse::kHeadOutOfRange, "HeadOutOfRange", kRingBroken, false, false},
    {RingAbuse::kAvailIndexJump, "AvailIndexJump", kRingBroken, false, false},
    {RingAbuse::kDuplicateHead, "DuplicateHead", kTolerated, false, false},
    {RingAbuse::kIndirectInIndirect, "IndirectInIndirect", kRingBroken, true, false},
    {RingAbuse::kIndirectZeroLength, "IndirectZeroLength", kRingBroken, true, false},
    {RingAbuse::kIndirectOddLength, "IndirectOddLength", kRingBroken, true, false},
    {RingAbuse::kIndirectTooLarge, "IndirectTooLarge", kRingBroken, true, false},
    {RingAbuse::kIndirectOutsideMemory, "IndirectOutsideMemory", kRingBroken, true, false},
    {RingAbuse::kIndirectWithNext, "IndirectWithNext", kRingBroken, true, false},
    {RingAbuse::kIndirectWritable, "IndirectWritable", kTolerated, true, false},
    {RingAbuse::kIndirectLoop, "IndirectLoop", kRingBroken, true, false},
    {RingAbuse::kIndirectNextOutOfRange, "IndirectNextOutOfRange", kRingBroken, true, false},
    {RingAbuse::kAddressOutsideMemory, "AddressOutsideMemory", kErrorOrBroken, false, false},
    {RingAbuse::kAddressWraps, "AddressWraps", kErrorOrBroken, false, false},
    {RingAbuse::kCrossesRegionEnd, "CrossesRegionEnd", kErrorOrBroken, false, false},
    {RingAbuse::kLengthHuge, "LengthHuge", kErrorOrBroken, false, false},
    {RingAbuse::kHeaderOutsideMemory, "HeaderOutsideMemory", kErrorOrBroken, false, false},
    {RingAbuse::kStatusOutsideMemory, "StatusOutsideMemory", kRingBroken, false, false},
    {RingAbuse::kZeroLengthDescriptor, "ZeroLengthDescriptor", kTolerated, false, false},
    {RingAbuse::kWritableBeforeReadable, "WritableBeforeReadable", kErrorOrBroken, false, false},
    {RingAbuse::kNoStatus, "NoStatus", kRingBroken, false, false},
    {RingAbuse::kNothingReadable, "NothingReadable", kErrorOrBroken, false, false},
    {RingAbuse::kHeaderTooShort, "HeaderTooShort", kErrorOrBroken, false, false},
    {RingAbuse::kUnknownType, "UnknownType", kErrorStatus, false, false},
    {RingAbuse::kDataNotWholeSectors, "DataNotWholeSectors", kErrorStatus, false, false},
    {RingAbuse::kSectorBeyondEnd, "SectorBeyondEnd", kErrorStatus, false, false},
    {RingAbuse::kSectorWraps, "SectorWraps", kErrorStatus, false, false},
    {RingAbuse::kDiscardRangeShort, "DiscardRangeShort", kErrorStatus, false, true},
    {RingAbuse::kDiscardBeyondEnd, "DiscardBeyondEnd", kErrorStatus, false, true},
    {RingAbuse::kDiscardUnknownFlags, "DiscardUnknownFlags", kErrorStatus, false, true},
};

// What a packed ring can't have: links (loops, a next out of range). What it makes of the others: a table's entries
// have no flag but WRITE, so that an indirect one there is a buffer, the last one as it has no NEXT.
bool InPackedRing(RingAbuse abuse) {
  switch (abuse) {
    case RingAbuse::kSelfLoop:
    case RingAbuse::kChainLoop:
    case RingAbuse::kNextOutOfRange:
    case RingAbuse::kIndirectLoop:
    case RingAbuse::kIndirectNextOutOfRange:
      return false;
    default:
      return true;
  }
}

std::vector<RingAbuseCase> MakePackedCases() {
  std::vector<RingAbuseCase> cases = {{RingAbuse::kNotAvailable, "NotAvailable", kRingBroken, false, false},
                                      {RingAbuse::kIndirectLast, "IndirectLast", kRingBroken, true, false}};
  std::copy_if(std::begin(kCases), std::end(kCases), std::back_inserter(cases),
               [](const RingAbuseCase& abuse) { return InPackedRing(abuse.abuse); });
  return cases;
}

// The scratch page: header, discard range, status, an indirect table, data.
constexpr uint64_t kRangeOffset = 64;
constexpr uint64_t kTableOffset = 1536;
constexpr uint64_t kDataOffset = 2048;
constexpr uint32_t kDataBytes = 1024;
constexpr uint16_t kChainLength = 4;
constexpr uint32_t kAlmost4GiB = 0xffff'fff0;

// What the abuses start from: a good read of two sectors, as four descriptors (header, data, data, status).
struct Draft {
  std::array<Descriptor, kChainLength> chain;
  uint16_t length = kChainLength;
  bool in_table = false;     // the chain goes to the table, one descriptor of the ring points at it
  Descriptor table_pointer;  // that descriptor
  wire::BlkHeader header{wire::kBlkIn, 0, 0};
  wire::BlkRange range{0, 8, 0};
};

struct Addresses {
  uint64_t scratch;
  uint64_t nowhere;     // no memory there
  uint64_t region_end;  // 512 bytes before the end of memory
};

Draft GoodRead(const Addresses& at) {
  Draft draft;
  draft.chain = {{{at.scratch, sizeof(wire::BlkHeader), kDescNext, 1},
                  {at.scratch + kDataOffset, kDataBytes / 2, kDescNext | kDescWrite, 2},
                  {at.scratch + kDataOffset + kDataBytes / 2, kDataBytes / 2, kDescNext | kDescWrite, 3},
                  {at.scratch + kAbuseStatusOffset, 1, kDescWrite, 0}}};
  draft.table_pointer = {at.scratch + kTableOffset, kChainLength * sizeof(Descriptor), kDescIndirect, 0};
  return draft;
}

void MakeDiscard(const Addresses& at, Draft* draft) {
  draft->header.type = wire::kBlkTypeDiscard;
  draft->chain[1] = {at.scratch + kRangeOffset, sizeof(wire::BlkRange), kDescNext, 3};
}

// Links in `chain` are positions in the chain; Apply turns them into the ring's indices, except those that
// are out of any range already.
void SpoilChain(RingAbuse abuse, const Addresses& at, Draft* draft) {
  auto& chain = draft->chain;
  switch (abuse) {
    case RingAbuse::kSelfLoop:
      chain[1].next = 1;
      break;
    case RingAbuse::kChainLoop:
      chain[2].next = 1;
      break;
    case RingAbuse::kNextOutOfRange:
      chain[1].next = 0xfff0;
      break;
    case RingAbuse::kAddressOutsideMemory:
      chain[1].gpa = at.nowhere;
      break;
    case RingAbuse::kAddressWraps:
      chain[1].gpa = UINT64_MAX - 255;
      break;
    case RingAbuse::kCrossesRegionEnd:
      chain[1].gpa = at.region_end;
      chain[1].len = 2 * wire::kSectorBytes;
      break;
    case RingAbuse::kLengthHuge:
      chain[1].len = UINT32_MAX;
      break;
    case RingAbuse::kHeaderOutsideMemory:
      chain[0].gpa = at.nowhere;
      break;
    case RingAbuse::kStatusOutsideMemory:
      chain[3].gpa = at.nowhere;
      break;
    case RingAbuse::kZeroLengthDescriptor:
      chain[1].len = 0;
      break;
    case RingAbuse::kWritableBeforeReadable:
      chain[2].flags = kDescNext;
      break;
    case RingAbuse::kNoStatus:
      chain[0] = {at.scratch, sizeof(wire::BlkHeader), 0, 0};
      break;
    case RingAbuse::kNothingReadable:
      chain[0].flags |= kDescWrite;
      break;
    case RingAbuse::kHeaderTooShort:
      chain[0].len = sizeof(wire::BlkHeader) / 2;
      chain[0].next = 3;
      break;
    case RingAbuse::kDataNotWholeSectors:
      chain[1].len = 100;
      chain[1].next = 3;
      break;
    default:
      break;
  }
}

void SpoilRequest(RingAbuse abuse, const Addresses& at, uint64_t capacity_sectors, Draft* draft) {
  switch (abuse) {
    case RingAbuse::kUnknownType:
      draft->header.type = 0x7fff;
      break;
    case RingAbuse::kSectorBeyondEnd:
      draft->header.sector = capacity_sectors - 1;  // the second of its two sectors is behind the end
      break;
    case RingAbuse::kSectorWraps:
      draft->header.sector = UINT64_MAX;
      break;
    case RingAbuse::kDiscardRangeShort:
      MakeDiscard(at, draft);
      draft->chain[1].len = sizeof(wire::BlkRange) - 1;
      break;
    case RingAbuse::kDiscardBeyondEnd:
      MakeDiscard(at, draft);
      draft->range.sector = 1ULL << 63;
      break;
    case RingAbuse::kDiscardUnknownFlags:
      MakeDiscard(at, draft);
      draft->range.flags = 0xffff'fffe;
      break;
    default:
      break;
  }
}

void SpoilIndirect(RingAbuse abuse, const Addresses& at, Draft* draft) {
  draft->in_table = true;
  switch (abuse) {
    case RingAbuse::kIndirectInIndirect:
      draft->chain[1] = {at.scratch + kTableOffset, sizeof(Descriptor), kDescIndirect, 0};
      break;
    case RingAbuse::kIndirectZeroLength:
      draft->table_pointer.len = 0;
      break;
    case RingAbuse::kIndirectOddLength:
      draft->table_pointer.len = 24;
      break;
    case RingAbuse::kIndirectTooLarge:
      draft->table_pointer.len = kAlmost4GiB;
      break;
    case RingAbuse::kIndirectOutsideMemory:
      draft->table_pointer.gpa = at.nowhere;
      break;
    case RingAbuse::kIndirectWithNext:
      draft->table_pointer.flags |= kDescNext;
      break;
    case RingAbuse::kIndirectWritable:
      draft->table_pointer.flags |= kDescWrite;
      break;
    case RingAbuse::kIndirectLoop:
      draft->chain[2].next = 1;
      break;
    case RingAbuse::kIndirectNextOutOfRange:
      draft->chain[1].next = kChainLength;
      break;
    default:
      draft->in_table = false;
      break;
  }
}

void WriteScratch(const Draft& draft, const GuestMemory& memory, uint64_t scratch_gpa) {
  uint8_t* scratch = memory.Span(scratch_gpa, kAbuseScratchBytes).data();
  std::memcpy(scratch, &draft.header, sizeof draft.header);
  std::memcpy(scratch + kRangeOffset, &draft.range, sizeof draft.range);
  scratch[kAbuseStatusOffset] = BlkCompletion::kNoStatus;
}

// Writes the draft to memory and returns its descriptors' indices, the head first.
Result<std::vector<uint16_t>> Place(const Draft& draft, DriverRing& ring, const GuestMemory& memory,
                                    uint64_t scratch_gpa) {
  std::optional<std::vector<uint16_t>> taken = ring.TakeRaw(kChainLength);
  if (!taken) return Error(ErrorCode::kResourceExhausted, "an abuse needs four free descriptors");
  WriteScratch(draft, memory, scratch_gpa);
  if (draft.in_table) {
    std::memcpy(memory.Span(scratch_gpa + kTableOffset, sizeof draft.chain).data(), draft.chain.data(),
                sizeof draft.chain);
    ring.RawDescriptor((*taken)[0]) = draft.table_pointer;
    ring.RawDescriptor((*taken)[0]).next = (*taken)[1];
    ring.RawDescriptor((*taken)[1]) = draft.chain[3];
    return *taken;
  }
  for (uint16_t i = 0; i < kChainLength; ++i) {
    Descriptor descriptor = draft.chain[i];
    if (descriptor.next < kChainLength) descriptor.next = (*taken)[descriptor.next];
    ring.RawDescriptor((*taken)[i]) = descriptor;
  }
  return *taken;
}

// The chain as a packed ring has it: one after the other.
std::vector<PackedDescriptor> InARow(const Draft& draft, uint16_t id) {
  std::vector<PackedDescriptor> row;
  for (uint16_t at = 0;; at = draft.chain[at].next) {
    const Descriptor& from = draft.chain[at];
    row.push_back({from.gpa, from.len, id, from.flags});
    if ((from.flags & kDescNext) == 0) return row;
  }
}

Status ApplyPacked(RingAbuse abuse, const Draft& draft, PackedDriverRing& ring, const GuestMemory& memory,
                   uint64_t scratch_gpa) {
  if (ring.free_descriptors() < kChainLength) {
    return Error(ErrorCode::kResourceExhausted, "an abuse needs four free descriptors");
  }
  WriteScratch(draft, memory, scratch_gpa);
  const auto id = static_cast<uint16_t>(abuse == RingAbuse::kHeadOutOfRange ? ring.size() : ring.size() - 1);
  std::vector<PackedDescriptor> chain = InARow(draft, id);
  const PackedDescriptor pointer{draft.table_pointer.gpa, draft.table_pointer.len, id,
                                 draft.table_pointer.flags};
  if (draft.in_table) {
    const size_t bytes = chain.size() * sizeof(PackedDescriptor);
    std::memcpy(memory.Span(scratch_gpa + kTableOffset, bytes).data(), chain.data(), bytes);
    const PackedDescriptor behind = chain.back();
    chain = {pointer};
    if ((pointer.flags & kDescNext) != 0) chain.push_back(behind);
  }
  if (abuse == RingAbuse::kNotAvailable) chain[1].flags ^= wire::kDescAvail | wire::kDescUsed;
  if (abuse == RingAbuse::kIndirectLast) chain.back() = pointer;
  if (abuse == RingAbuse::kAvailIndexJump) {
    chain[0].flags |= kDescNext;
    chain.assign(ring.free_descriptors(), chain[0]);
  }
  ring.AddRaw(chain, id, kAbuseToken);
  if (abuse == RingAbuse::kDuplicateHead) ring.AddRaw(chain, id, kAbuseToken);
  return Ok{};
}

}  // namespace

std::span<const RingAbuseCase> RingAbuseCases() {
  return kCases;
}

std::span<const RingAbuseCase> PackedRingAbuseCases() {
  static const std::vector<RingAbuseCase> cases = MakePackedCases();
  return cases;
}

Status Apply(RingAbuse abuse, DriverRing& ring, const GuestMemory& memory, uint64_t scratch_gpa,
             uint64_t capacity_sectors) {
  const Addresses at{.scratch = scratch_gpa,
                     .nowhere = memory.EndGpa() + (1ULL << 40),
                     .region_end = memory.EndGpa() - wire::kSectorBytes};
  Draft draft = GoodRead(at);
  SpoilChain(abuse, at, &draft);
  SpoilRequest(abuse, at, capacity_sectors, &draft);
  SpoilIndirect(abuse, at, &draft);
  if (PackedDriverRing* packed = ring.AsPacked()) {
    CLEAT_TRY(ApplyPacked(abuse, draft, *packed, memory, scratch_gpa));
    ring.Publish();
    ring.Kick();
    return Ok{};
  }
  CLEAT_ASSIGN(auto taken, Place(draft, ring, memory, scratch_gpa));
  const uint16_t head = taken.front();
  ring.PushRaw(abuse == RingAbuse::kHeadOutOfRange ? ring.size() : head, kChainLength, kAbuseToken);
  if (abuse == RingAbuse::kDuplicateHead) ring.PushRaw(head, kChainLength, kAbuseToken);
  if (abuse == RingAbuse::kAvailIndexJump) {
    ring.PublishRawIndex(static_cast<uint16_t>(ring.avail_idx() + ring.size() + 1));
  } else {
    ring.Publish();
  }
  ring.Kick();
  return Ok{};
}

}  // namespace cleat::perf
