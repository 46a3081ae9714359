// SPDX-License-Identifier: Apache-2.0
#include "guest_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cleat::sim {
namespace wire = perf::wire;
using Op = OpenIo::Op;

namespace {

constexpr uint8_t kIdle = 0xe7;  // fills what the device has no business with

Op ChooseOp(Random& random) {
  const uint64_t dice = random.Below(100);
  if (dice < 42) return Op::kRead;
  if (dice < 84) return Op::kWrite;
  if (dice < 90) return Op::kFlush;
  return dice < 94 ? Op::kDiscard : Op::kWriteZeroes;
}

}  // namespace

GuestQueue::GuestQueue(World& world, perf::GuestMemory& memory, perf::LayoutPlanner& planner,
                       const Options& options)
    : world_(world),
      memory_(memory),
      planner_(planner),
      options_(options),
      request_(memory, options.device),
      was_reset_(options.was_reset) {
  auto ring = perf::DriverRing::Create(memory, options.ring);
  CLEAT_CHECK(ring.ok());
  ring_ = std::move(ring).value();
  CLEAT_CHECK(options.slots <= kSlotsMax);
  slots_.resize(std::min<size_t>(options.slots, options.ring.size));
  for (Slot& slot : slots_) {
    slot.area_gpa = *memory_.Allocate(request_.area_bytes(), 16);
    slot.buffer_gpa = *memory_.Allocate(buffer_bytes(), kBlockBytes);
  }
  if (options_.interrupts) ring_->EnableCalls();
}

GuestQueue::~GuestQueue() {
  CLEAT_CHECK(open_ == 0);
  for (Slot& slot : slots_) {
    memory_.Free(slot.area_gpa, request_.area_bytes());
    memory_.Free(slot.buffer_gpa, buffer_bytes());
  }
}

GuestQueue::Slot* GuestQueue::FreeSlot() {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.busy; });
  return found == slots_.end() ? nullptr : &*found;
}

OpenIo GuestQueue::Draw(const GuestDisk& disk, Random& random) const {
  OpenIo io;
  io.op = ChooseOp(random);
  io.model = disk.model;
  if (io.op == Op::kFlush) return io;
  const uint64_t units = disk.model->blocks() / disk.logical_blocks;
  const uint64_t count =
      random.Between(1, std::min<uint64_t>(units, options_.io_blocks_max / disk.logical_blocks));
  io.count = count * disk.logical_blocks;
  io.block = random.Below(units - count + 1) * disk.logical_blocks;
  if (options_.device != GuestDeviceType::kScsi || io.op != Op::kWrite || !random.Chance(1, 4)) return io;
  // Compared with what is there, if that is known.
  if (const auto holds = disk.model->OnlyContent(io.block)) {
    io.op = Op::kCompareAndWrite;
    io.count = 1;
    io.compared = *holds;
  }
  return io;
}

void GuestQueue::BeginInModel(OpenIo& io, const GuestDisk& disk) const {
  if (io.op == Op::kRead) {
    io.read = disk.model->BeginRead(io.block, io.count);
  } else if (io.op != Op::kFlush && !disk.read_only) {
    io.stamp = disk.model->BeginWrite(io.kind(), io.block, io.count);
  }
}

bool GuestQueue::Issue(const GuestDisk& disk, Random& random) {
  Slot* slot = FreeSlot();
  if (slot == nullptr) return false;
  CheckWatched(*slot);
  slot->io = Draw(disk, random);
  slot->read_only = disk.read_only;
  slot->may_fail = disk.may_fail;
  BeginInModel(slot->io, disk);
  if (Enqueue(*slot)) return true;
  slot->io.Abandon(DiskModel::Fate::kNever);
  return false;
}

bool GuestQueue::IssueGetId() {
  Slot* slot = FreeSlot();
  if (slot == nullptr) return false;
  CheckWatched(*slot);
  slot->io = OpenIo{};
  slot->io.op = Op::kGetId;
  slot->read_only = slot->may_fail = false;
  return Enqueue(*slot);
}

bool GuestQueue::Enqueue(Slot& slot) {
  const std::vector<perf::Segment> data = request_.PutData(slot.io, slot.buffer_gpa);
  const auto token = static_cast<uint64_t>(&slot - slots_.data());
  request_.PutHeader(slot.io, slot.area_gpa, token);
  if (!request_.Plan(planner_, slot.area_gpa, data, &layout_)) return false;
  if (!ring_->Add(layout_.chain, layout_.indirect, token)) return false;
  slot.bounce = layout_.bounce;
  slot.expected_written_bytes = request_.answer_bytes();
  for (const perf::Segment& segment : data) slot.expected_written_bytes += segment.writable ? segment.len : 0;
  Lend(slot);
  return true;
}

void GuestQueue::Lend(Slot& slot) {
  slot.busy = true;
  slot.survived = slot.before_reset = slot.lost_disk = false;
  slot.may_reset = resetting_;
  ++open_;
}

bool GuestQueue::IssueReset() {
  Slot* slot = FreeSlot();
  if (slot == nullptr) return false;
  CheckWatched(*slot);
  slot->io = OpenIo{};
  slot->io.op = Op::kResetUnit;
  const auto chain = request_.PutReset(slot->area_gpa);
  if (!ring_->Add(chain, /*indirect=*/false, static_cast<uint64_t>(slot - slots_.data()))) return false;
  slot->bounce = {};
  slot->expected_written_bytes = 1;
  Lend(*slot);
  return true;
}

void GuestQueue::BeginReset() {
  resetting_ = was_reset_ = true;
  for (Slot& slot : slots_) slot.before_reset = slot.may_reset = slot.busy;
}

uint32_t GuestQueue::EndReset() {
  resetting_ = false;
  uint32_t left = 0;
  for (Slot& slot : slots_) left += slot.busy && std::exchange(slot.before_reset, false) ? 1 : 0;
  return left;
}

void GuestQueue::Survive() {
  for (Slot& slot : slots_) slot.survived |= slot.busy;
}

void GuestQueue::LoseDisk() {
  for (Slot& slot : slots_) slot.lost_disk |= slot.busy;
}

bool GuestQueue::Collect(bool must_look) {
  if (open_ == 0 && !must_look) return false;
  if (options_.interrupts && !must_look) {
    const uint64_t calls = ring_->stats().calls;
    ring_->ClearCall();
    if (ring_->stats().calls == calls) return false;
  }
  bool any = false;
  do {
    perf::UsedEntry used;
    while (ring_->Pop(&used) == perf::PopResult::kDone) {
      any = true;
      if (used.token >= slots_.size()) continue;  // a raw chain of ours
      Slot& slot = slots_[used.token];
      ++completed_;
      if (options_.defect == Defect::kDropCompletion && completed_ % 50 == 0) {
        slot.dropped = true;
        continue;
      }
      Finish(slot, used.written_bytes);
      if (options_.defect == Defect::kDuplicateCompletion && completed_ % 50 == 0) Duplicate(0);
    }
  } while (options_.interrupts && !ring_->broken() && !ring_->EnableCalls());
  if (ring_->broken() && !reported_broken_) {
    reported_broken_ = true;
    world_.Violation(options_.name + ": the device broke the ring: " + ring_->broken_reason());
  }
  return any;
}

// Plays a device that uses a chain twice.
void GuestQueue::Duplicate(uint32_t id) {
  if (ring_->packed()) {
    const auto used_at = static_cast<uint16_t>(ring_->base_after_crash());
    const uint64_t bits = used_at >> 15 != 0 ? wire::kDescAvail | wire::kDescUsed : 0;
    const uint64_t meta = 1 | uint64_t{id} << 32 | (bits | wire::kDescWrite) << 48;
    std::memcpy(memory_.Span(ring_->desc_gpa() + 16 * (used_at & 0x7fff) + 8, 8).data(), &meta, sizeof(meta));
    return;
  }
  uint8_t* used = memory_.Span(ring_->used_gpa(), 4 + uint64_t{8} * ring_->size()).data();
  uint16_t index = ring_->device_used_idx();
  const wire::UsedElement element{id, 1};
  std::memcpy(used + 4 + sizeof(element) * (index % ring_->size()), &element, sizeof(element));
  ++index;
  std::memcpy(used + 2, &index, sizeof(index));
}

void GuestQueue::Wrong(const Slot& slot, const std::string& what) {
  world_.Violation(options_.name + ": " + slot.io.name() + " of " + std::to_string(slot.io.count) +
                   " blocks at " + std::to_string(slot.io.block) + ": " + what);
}

void GuestQueue::Finish(Slot& slot, uint32_t written_bytes) {
  using Outcome = GuestRequest::Outcome;
  if (!slot.busy) return world_.Violation(options_.name + ": a request was completed twice");
  Outcome outcome = request_.Read(slot.area_gpa);
  if (options_.defect == Defect::kSwapStatus && outcome == Outcome::kFailed) outcome = Outcome::kOk;
  if (options_.defect == Defect::kBlindCompare && outcome == Outcome::kAborted)
    outcome = Outcome::kMiscompare;
  slot.busy = false;
  --open_;
  const OpenIo& io = slot.io;
  const std::string answer = request_.Describe(slot.area_gpa);
  world_.Note(options_.name + " " + io.name() + " " + std::to_string(io.block) + "+" +
              std::to_string(io.count) + " #" + std::to_string(io.stamp) + " " + answer);
  if (io.op == Op::kResetUnit) {
    reset_answer_ = request_.AnswerByte(slot.area_gpa);
  } else if (outcome == Outcome::kOk) {
    FinishOk(slot, written_bytes);
  } else if (outcome == Outcome::kMiscompare && io.op == Op::kCompareAndWrite) {
    FinishMiscompare(slot);
  } else {
    if (!MayEndSo(slot, outcome)) {
      Wrong(slot, outcome == Outcome::kFailed ? "failed, but the storage did not" : answer);
    }
    // A unit attention is told instead of doing what was asked, by this process.
    const bool never = outcome == Outcome::kAttention && !slot.survived;
    io.Abandon(never ? DiskModel::Fate::kNever : DiskModel::Fate::kUnknown);
  }
  Watch(slot);
}

bool GuestQueue::MayEndSo(const Slot& slot, GuestRequest::Outcome outcome) const {
  using Outcome = GuestRequest::Outcome;
  if (slot.read_only && slot.io.op != Op::kRead && slot.io.op != Op::kFlush) return true;  // refused
  switch (outcome) {
    case Outcome::kFailed:
      return slot.may_fail;
    case Outcome::kAborted:  // not to be done blindly again
      return slot.io.op == Op::kCompareAndWrite && slot.survived;
    case Outcome::kReset:
      return slot.may_reset;
    case Outcome::kAttention:
      return was_reset_;
    case Outcome::kNoTarget:
      return slot.lost_disk;
    default:
      return false;
  }
}

void GuestQueue::FinishMiscompare(const Slot& slot) {
  const OpenIo& io = slot.io;
  if (io.model->OnlyChangedBy(io.block, io.stamp, io.compared)) {
    Wrong(slot, "something else was there, but nobody else wrote");
  }
  io.Abandon(DiskModel::Fate::kNever);
}

// What a request that ran again after its answer would leave in memory that is the guest's again.
void GuestQueue::Watch(Slot& slot) {
  if (!options_.watch_idle) return;
  slot.watched = true;
  std::memset(memory_.Span(slot.buffer_gpa, buffer_bytes()).data(), kIdle, buffer_bytes());
  request_.AnswerByte(slot.area_gpa) = kIdle;
}

void GuestQueue::CheckWatched(Slot& slot) {
  if (!std::exchange(slot.watched, false)) return;
  const auto buffer = memory_.Span(slot.buffer_gpa, buffer_bytes());
  const bool whole = std::all_of(buffer.begin(), buffer.end(), [](uint8_t byte) { return byte == kIdle; }) &&
                     request_.AnswerByte(slot.area_gpa) == kIdle;
  if (!whole) Wrong(slot, "its memory was written to after it had been answered");
}

void GuestQueue::CheckIdle() {
  for (Slot& slot : slots_) CheckWatched(slot);
}

void GuestQueue::FinishOk(Slot& slot, uint32_t written_bytes) {
  const OpenIo& io = slot.io;
  if (written_bytes != slot.expected_written_bytes) {
    Wrong(slot, "the used entry says " + std::to_string(written_bytes) + " bytes instead of " +
                    std::to_string(slot.expected_written_bytes));
  }
  perf::Unbounce(memory_, slot.bounce);
  if (io.op == Op::kRead) {
    const std::string wrong =
        io.model->EndRead(io.read, memory_.Span(slot.buffer_gpa, io.count * kBlockBytes));
    if (!wrong.empty()) Wrong(slot, wrong);
  } else if (io.op == Op::kGetId) {
    const auto* id = reinterpret_cast<const char*>(memory_.Span(slot.buffer_gpa, wire::kBlkIdBytes).data());
    identity_ = std::string(id, strnlen(id, wire::kBlkIdBytes));
  } else if (io.stamp != 0) {
    io.model->EndWrite(io.stamp, io.kind(), io.block, io.count, DiskModel::Fate::kDone);
  } else if (io.op != Op::kFlush) {
    Wrong(slot, "succeeded on a read-only disk");
  }
}

std::optional<std::string> GuestQueue::TakeIdentity() {
  return std::exchange(identity_, std::nullopt);
}

std::vector<OpenIo> GuestQueue::TakeOpen() {
  std::vector<OpenIo> open;
  for (Slot& slot : slots_) {
    if (std::exchange(slot.busy, false)) open.push_back(slot.io);
  }
  open_ = 0;
  return open;
}

void GuestQueue::ForgetOpen() {
  using Fate = DiskModel::Fate;
  for (Slot& slot : slots_) {
    if (std::exchange(slot.busy, false)) slot.io.Abandon(slot.survived ? Fate::kUnknown : Fate::kNever);
  }
  open_ = 0;
}

bool GuestQueue::MoveBuffers(uint64_t region_gpa) {
  bool all = true;
  for (Slot& slot : slots_) {
    if (slot.busy) {
      all = false;
      continue;
    }
    const auto moved = memory_.AllocateIn(region_gpa, buffer_bytes(), kBlockBytes);
    if (!moved) return false;
    memory_.Free(slot.buffer_gpa, buffer_bytes());
    slot.buffer_gpa = *moved;
  }
  return all;
}

std::string GuestQueue::Describe() const {
  std::string text = options_.name + ": " + std::to_string(open_) + " open";
  for (const Slot& slot : slots_) {
    if (slot.busy) {
      text += std::string(", ") + slot.io.name() + (slot.dropped ? " (dropped)" : "");
      break;
    }
  }
  return text;
}

}  // namespace cleat::sim
