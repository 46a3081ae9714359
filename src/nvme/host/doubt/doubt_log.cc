// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/doubt/doubt_log.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <iterator>
#include <string>
#include <type_traits>

#include "base/check.h"

namespace cleat::nvme::host {
namespace {

constexpr uint64_t kMagic = 0x3130'474f'4c54'4244;  // "DBTLOG01"
constexpr uint64_t kLostMagic = std::bit_cast<uint64_t>(kDoubtLogLost);
static_assert(std::endian::native == std::endian::little, "kMagic is text");

// The word that makes a place valid, or not, comes after all that was stored before it, for whoever reads the memory once this engine is
// dead.
template <typename Word>
void StoreLast(Word& word, std::type_identity_t<Word> value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

template <typename Word>
Word Load(const Word& word) {
  return std::atomic_ref(const_cast<Word&>(word)).load(std::memory_order_acquire);
}

bool IsZero(std::span<const uint8_t> memory) {
  return std::all_of(memory.begin(), memory.end(), [](uint8_t byte) { return byte == 0; });
}

// What is checked of a copy stays as it is.
template <typename Header>
Header CopyOf(std::span<const uint8_t> memory) {
  Header header;
  std::memcpy(&header, memory.data(), sizeof(header));
  return header;
}

// A range that no disk can have is in doubt from its first block on, and at least the last one of all.
void Append(BlockRange range, std::vector<BlockRange>& ranges) {
  if (range.blocks == 0) return;
  range.first = std::min(range.first, UINT64_MAX - 1);
  range.blocks = std::min(range.blocks, UINT64_MAX - range.first);
  ranges.push_back(range);
}

}  // namespace

DoubtLog::DoubtLog(std::span<uint8_t> memory, const Shape& shape)
    : header_(reinterpret_cast<Header*>(memory.data())),
      lives_(reinterpret_cast<LifeId*>(memory.data() + kHeaderBytes), shape.lives),
      places_(reinterpret_cast<BlockRange*>(lives_.data() + lives_.size())),
      shape_(shape) {
  CLEAT_CHECK(memory.size() >= BytesFor(shape));
  CLEAT_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % alignof(uint64_t) == 0);
  CLEAT_CHECK(shape.reactors > 0 && shape.attempts > 0 && shape.ghosts > 0 && shape.lives > 0);
}

const char* DoubtLog::WhyBad(const Header& header, const Shape& shape) {
  if (header.magic == kLostMagic) return "is lost";
  if (header.magic != kMagic) return "is damaged: there is no header";
  if (header.shape != shape) return "is another version's, or damaged";
  if ((header.ghosts & kCountMask) > shape.ghosts || header.rows > shape.reactors)
    return "is damaged: its header has more than there is room for";
  if (header.ghosts >> kNumberShift == 0) return "is damaged: what it has is without a number";
  return nullptr;
}

// An engine that is killed in between leaves a lost log behind, never one that looks new, and no word that was for another one.
DoubtLog DoubtLog::Format(std::span<uint8_t> memory, const Shape& shape, std::span<const BlockRange> ghosts,
                          uint32_t first_number) {
  CLEAT_CHECK(ghosts.size() <= shape.ghosts);
  DoubtLog log(memory, shape);
  Header& header = *log.header_;
  const auto before = CopyOf<Header>(memory);
  const bool has_number = before.magic == kLostMagic && before.ghosts >> kNumberShift != 0;
  const uint64_t number = has_number ? before.ghosts >> kNumberShift : NumberOf(first_number);
  StoreLast(header.confirmed, 0);
  StoreLast(header.magic, kLostMagic);
  std::fill(memory.begin() + sizeof(uint64_t), memory.begin() + kNewBytes, uint8_t{0});
  std::fill(memory.begin() + kHeaderBytes, memory.begin() + BytesFor(shape), uint8_t{0});
  header.shape = shape;
  std::copy(ghosts.begin(), ghosts.end(), log.GhostsAt(0));
  header.ghosts = number << kNumberShift | ghosts.size();
  StoreLast(header.magic, kMagic);
  return log;
}

// A header of zeroes has zeroes behind it: Format marks the memory before it touches anything else.
Result<DoubtLog> DoubtLog::Open(std::span<uint8_t> memory, const Shape& shape, uint32_t first_number) {
  const DoubtLog log(memory, shape);
  if (IsZero(memory.first(kNewBytes))) {
    StoreLast(log.header_->magic, kLostMagic);
    log.header_->shape = shape;
    log.header_->ghosts = NumberOf(first_number) << kNumberShift;
    StoreLast(log.header_->magic, kMagic);
    return log;
  }
  if (const char* const why = WhyBad(CopyOf<Header>(memory), shape)) {
    return Error(ErrorCode::kFailedPrecondition,
                 std::string("the log of writes in doubt ") + why +
                     ": all of the disk counts as in doubt; confirm that its targets have dropped what the "
                     "engine before sent");
  }
  return log;
}

BlockRange& DoubtLog::AttemptAt(uint32_t reactor, uint32_t slot) const {
  CLEAT_CHECK(reactor < shape_.reactors && slot < shape_.attempts);
  return places_[size_t{reactor} * shape_.attempts + slot];
}

BlockRange* DoubtLog::GhostsAt(uint64_t list) const {
  return places_ + size_t{shape_.reactors} * shape_.attempts + list * shape_.ghosts;
}

std::vector<BlockRange> DoubtLog::ReadAttempts() const {
  std::vector<BlockRange> ranges;
  const uint64_t rows = std::min<uint64_t>(Load(header_->rows), shape_.reactors);
  for (uint32_t reactor = 0; reactor < rows; ++reactor)
    for (uint32_t slot = 0; slot < shape_.attempts; ++slot) Append(AttemptAt(reactor, slot), ranges);
  return ranges;
}

std::vector<BlockRange> DoubtLog::Read() const {
  std::vector<BlockRange> ranges = ReadAttempts();
  const uint64_t word = Load(header_->ghosts);
  const uint64_t count = std::min<uint64_t>(word & kCountMask, shape_.ghosts);
  for (uint64_t i = 0; i < count; ++i) Append(GhostsOf(word)[i], ranges);
  return ranges;
}

std::vector<LifeId> DoubtLog::ReadLives() const {
  std::vector<LifeId> lives;
  if (Load(header_->lives_unknown) != 0) return lives;
  std::copy_if(lives_.begin(), lives_.end(), std::back_inserter(lives),
               [](LifeId life) { return life != 0; });
  return lives;
}

// An engine that is killed in between leaves no lives behind, rather than some of them.
void DoubtLog::StoreLives(std::span<const LifeId> lives) {
  StoreLast(header_->lives_unknown, 1);
  if (lives.size() > lives_.size()) return;
  for (size_t i = 0; i < lives_.size(); ++i) StoreLast(lives_[i], i < lives.size() ? lives[i] : 0);
  StoreLast(header_->lives_unknown, 0);
}

void DoubtLog::ClearRow(uint32_t reactor) {
  for (uint32_t slot = 0; slot < shape_.attempts; ++slot) StoreLast(AttemptAt(reactor, slot).blocks, 0);
}

void DoubtLog::ForgetAttempts() {
  const uint64_t rows = std::min<uint64_t>(Load(header_->rows), shape_.reactors);
  for (uint32_t reactor = 0; reactor < rows; ++reactor) ClearRow(reactor);
}

// What lies in rows that nobody has used is nobody's word: others may have written the memory.
void DoubtLog::OpenRow(uint32_t reactor) {
  CLEAT_CHECK(reactor < shape_.reactors);
  const uint64_t rows = std::min<uint64_t>(Load(header_->rows), shape_.reactors);
  if (reactor < rows) return;
  for (auto unused = static_cast<uint32_t>(rows); unused <= reactor; ++unused) ClearRow(unused);
  StoreLast(header_->rows, reactor + 1);
}

void DoubtLog::Begin(uint32_t reactor, uint32_t slot, const BlockRange& range) {
  CLEAT_CHECK(range.blocks > 0);
  BlockRange& place = AttemptAt(reactor, slot);
  place.first = range.first;
  StoreLast(place.blocks, range.blocks);
}

void DoubtLog::End(uint32_t reactor, uint32_t slot) {
  StoreLast(AttemptAt(reactor, slot).blocks, 0);
}

void DoubtLog::Store(std::span<const BlockRange> ghosts, Number number) {
  CLEAT_CHECK(ghosts.size() <= shape_.ghosts);
  const uint64_t before = Load(header_->ghosts);
  const uint64_t list = 1 - ((before >> kListShift) & 1);
  const auto present = static_cast<uint32_t>(before >> kNumberShift);
  std::copy(ghosts.begin(), ghosts.end(), GhostsAt(list));
  StoreLast(header_->ghosts, NumberOf(number == Number::kNew ? present + 1 : present) << kNumberShift |
                                 list << kListShift | ghosts.size());
}

bool DoubtLog::IsConfirmed() const {
  const uint64_t number = Load(header_->ghosts) >> kNumberShift;
  return number != 0 && Load(header_->confirmed) == number;
}

DoubtLog::Claimed DoubtLog::Claim() {
  std::atomic_ref claims(header_->claims);
  const uint32_t before = claims.load(std::memory_order_acquire);
  const uint32_t number = (before + 1) & kClaimMask;
  const bool is_first = (before & kSomebodys) == 0;
  if (is_first) StoreLast(header_->leaving, 0);
  claims.store(number | kSomebodys, std::memory_order_release);
  return {.number = number, .is_first = is_first};
}

void DoubtLog::GiveUp() {
  std::atomic_ref(header_->claims).fetch_and(kClaimMask, std::memory_order_acq_rel);
  StoreLast(header_->leaving, 0);
}

void DoubtLog::SetLeaving(uint32_t attachment) {
  StoreLast(header_->leaving, attachment);
}

uint32_t DoubtLog::leaving() const {
  return (Load(header_->claims) & kSomebodys) != 0 ? Load(header_->leaving) : 0;
}

void DoubtLog::HoldReservationUntil(uint32_t second) {
  std::atomic_ref(header_->held_until_s).store(second, std::memory_order_release);
}

uint32_t DoubtLog::reservation_held_until() const {
  return std::atomic_ref(header_->held_until_s).load(std::memory_order_acquire);
}

// The list is whole if no other one has become valid while it was copied: only then is this one written again.
DoubtLog::Doubt DoubtLog::Look(std::span<const uint8_t> memory, const Shape& shape) {
  constexpr int kTriesMax = 16;
  const DoubtLog log({const_cast<uint8_t*>(memory.data()), memory.size()}, shape);
  if (IsZero(memory.first(kNewBytes))) return {};
  Doubt whole{.number = 0, .ranges = {{.first = 0, .blocks = UINT64_MAX}}};
  for (int i = 0; i < kTriesMax; ++i) {
    const auto header = CopyOf<Header>(memory);
    const auto number = static_cast<uint32_t>(header.ghosts >> kNumberShift);
    if (header.magic == kLostMagic) return {.number = number, .ranges = whole.ranges};
    if (WhyBad(header, shape) != nullptr) return whole;
    Doubt doubt{.number = number, .ranges = {}};
    for (uint64_t at = 0; at < (header.ghosts & kCountMask); ++at)
      Append(log.GhostsOf(header.ghosts)[at], doubt.ranges);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (Load(log.header_->ghosts) == header.ghosts) return doubt;
  }
  return whole;
}

void DoubtLog::Confirm(std::span<uint8_t> memory, uint32_t number) {
  CLEAT_CHECK(memory.size() >= kHeaderBytes && number != 0);
  StoreLast(reinterpret_cast<Header*>(memory.data())->confirmed, number);
}

std::array<uint8_t, DoubtLog::kHeaderBytes> DoubtLog::LostHeader(uint32_t number) {
  Header header{};
  header.magic = kLostMagic;
  header.ghosts = NumberOf(number) << kNumberShift;
  header.claims = kSomebodys;
  std::array<uint8_t, kHeaderBytes> bytes{};
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

bool DoubtLog::IsLostAndConfirmed(std::span<const uint8_t> memory) {
  const auto header = CopyOf<Header>(memory);
  const uint64_t number = header.ghosts >> kNumberShift;
  return header.magic == kLostMagic && number != 0 && header.confirmed == number;
}

}  // namespace cleat::nvme::host
