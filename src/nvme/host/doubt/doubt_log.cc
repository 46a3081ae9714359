// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/doubt/doubt_log.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <string>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::host {
namespace {

constexpr uint64_t kMagic = 0x3130'474f'4c54'4244;  // "DBTLOG01"
constexpr uint64_t kLostMagic = std::bit_cast<uint64_t>(kDoubtLogLost);
static_assert(std::endian::native == std::endian::little, "kMagic is text");

// The word that makes a place valid, or not, comes after all that was stored before it, for whoever reads the memory once this engine is
// dead.
void StoreLast(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

uint64_t Load(const uint64_t& word) {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

bool IsZero(std::span<const uint8_t> memory) {
  return std::all_of(memory.begin(), memory.end(), [](uint8_t byte) { return byte == 0; });
}

Error Refuse(const std::string& why) {
  return {ErrorCode::kFailedPrecondition,
          "the log of writes in doubt " + why +
              ": all of the disk counts as in doubt; confirm that its targets have dropped what the engine "
              "before sent"};
}

}  // namespace

DoubtLog::DoubtLog(std::span<uint8_t> memory, const Shape& shape)
    : header_(reinterpret_cast<Header*>(memory.data())),
      places_(reinterpret_cast<BlockRange*>(memory.data() + kHeaderBytes)),
      shape_(shape) {
  CLEAT_CHECK(memory.size() >= BytesFor(shape));
  CLEAT_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % alignof(uint64_t) == 0);
  CLEAT_CHECK(shape.reactors > 0 && shape.attempts > 0 && shape.ghosts > 0);
}

// An engine that is killed in between leaves a lost log behind, never one that looks new.
DoubtLog DoubtLog::Format(std::span<uint8_t> memory, const Shape& shape, std::span<const BlockRange> ghosts) {
  DoubtLog log(memory, shape);
  // The operator's word for a log that is lost comes before any engine finds that out.
  const uint64_t confirmed = log.header_->magic == kLostMagic ? Load(log.header_->confirmed) : 0;
  StoreLast(log.header_->magic, kLostMagic);
  std::fill(memory.begin() + sizeof(uint64_t), memory.begin() + BytesFor(shape), uint8_t{0});
  log.header_->shape = shape;
  log.header_->confirmed = confirmed;
  log.Store(ghosts);
  StoreLast(log.header_->magic, kMagic);
  return log;
}

// A header of zeroes has zeroes behind it: Format marks the memory before it touches anything else.
Result<DoubtLog> DoubtLog::Open(std::span<uint8_t> memory, const Shape& shape) {
  const DoubtLog log(memory, shape);
  Header& header = *log.header_;
  if (IsZero(memory.first(kHeaderBytes))) {
    StoreLast(header.magic, kLostMagic);
    header.shape = shape;
    StoreLast(header.magic, kMagic);
    return log;
  }
  if (header.magic == kLostMagic) return Refuse("is lost");
  if (header.magic != kMagic) return Refuse("is damaged: there is no header");
  if (header.shape != shape) return Refuse("is another version's, or damaged");
  if ((header.ghosts & kCountMask) > shape.ghosts || header.rows > shape.reactors)
    return Refuse("is damaged: its header has more than there is room for");
  return log;
}

BlockRange& DoubtLog::AttemptAt(uint32_t reactor, uint32_t slot) const {
  CLEAT_CHECK(reactor < shape_.reactors && slot < shape_.attempts);
  return places_[size_t{reactor} * shape_.attempts + slot];
}

BlockRange* DoubtLog::GhostsAt(uint64_t list) const {
  return places_ + size_t{shape_.reactors} * shape_.attempts + list * shape_.ghosts;
}

// A range that no disk can have is one that is in doubt from its first block on, and at least the last one of all.
std::vector<BlockRange> DoubtLog::Read() const {
  std::vector<BlockRange> ranges;
  const auto take = [&ranges](BlockRange range) {
    if (range.blocks == 0) return;
    range.first = std::min(range.first, UINT64_MAX - 1);
    range.blocks = std::min(range.blocks, UINT64_MAX - range.first);
    ranges.push_back(range);
  };
  for (uint32_t reactor = 0; reactor < header_->rows; ++reactor)
    for (uint32_t slot = 0; slot < shape_.attempts; ++slot) take(AttemptAt(reactor, slot));
  const BlockRange* const ghosts = GhostsOf(header_->ghosts);
  const uint64_t count = header_->ghosts & kCountMask;
  for (uint64_t i = 0; i < count; ++i) take(ghosts[i]);
  return ranges;
}

void DoubtLog::ForgetAttempts() {
  for (uint32_t reactor = 0; reactor < header_->rows; ++reactor)
    for (uint32_t slot = 0; slot < shape_.attempts; ++slot) StoreLast(AttemptAt(reactor, slot).blocks, 0);
}

void DoubtLog::OpenRow(uint32_t reactor) {
  CLEAT_CHECK(reactor < shape_.reactors);
  if (reactor >= header_->rows) StoreLast(header_->rows, reactor + 1);
}

void DoubtLog::Begin(uint32_t reactor, uint32_t slot, const BlockRange& range) {
  BlockRange& place = AttemptAt(reactor, slot);
  CLEAT_CHECK(place.blocks == 0 && range.blocks > 0);
  place.first = range.first;
  StoreLast(place.blocks, range.blocks);
}

void DoubtLog::End(uint32_t reactor, uint32_t slot) {
  StoreLast(AttemptAt(reactor, slot).blocks, 0);
}

void DoubtLog::Store(std::span<const BlockRange> ghosts) {
  CLEAT_CHECK(ghosts.size() <= shape_.ghosts);
  const uint64_t list = 1 - ((header_->ghosts >> kListShift) & 1);
  const uint64_t number = std::max(uint64_t{1}, ((header_->ghosts >> kNumberShift) + 1) & kNumberMask);
  std::copy(ghosts.begin(), ghosts.end(), GhostsAt(list));
  StoreLast(header_->ghosts, number << kNumberShift | list << kListShift | ghosts.size());
}

bool DoubtLog::IsConfirmed() const {
  const uint64_t number = header_->ghosts >> kNumberShift;
  return number != 0 && Load(header_->confirmed) == number;
}

// The list is whole if no other one has become valid while it was copied: only then is this one written again.
DoubtLog::Doubt DoubtLog::Look(std::span<const uint8_t> memory, const Shape& shape) {
  const DoubtLog log({const_cast<uint8_t*>(memory.data()), memory.size()}, shape);
  const uint64_t magic = Load(log.header_->magic);
  Doubt doubt;
  if (magic == 0) return doubt;
  for (uint64_t word = Load(log.header_->ghosts);;) {
    const uint64_t count = word & kCountMask;
    if (magic != kMagic || count > shape.ghosts) return {.number = 1, .ranges = {{0, UINT64_MAX}}};
    doubt.number = static_cast<uint32_t>(word >> kNumberShift);
    doubt.ranges.assign(log.GhostsOf(word), log.GhostsOf(word) + count);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (const uint64_t now = Load(log.header_->ghosts); now != std::exchange(word, now)) continue;
    return doubt;
  }
}

void DoubtLog::Confirm(std::span<uint8_t> memory, uint32_t number) {
  CLEAT_CHECK(memory.size() >= kHeaderBytes && number != 0);
  StoreLast(reinterpret_cast<Header*>(memory.data())->confirmed, number);
}

}  // namespace cleat::nvme::host
