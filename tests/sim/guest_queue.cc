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

const char* OpName(Op op) {
  constexpr const char* kNames[] = {"read", "write", "flush", "discard", "write zeroes", "get id"};
  return kNames[static_cast<size_t>(op)];
}

DiskModel::Kind KindOf(Op op) {
  if (op == Op::kWrite) return DiskModel::Kind::kData;
  return op == Op::kDiscard ? DiskModel::Kind::kDiscard : DiskModel::Kind::kZeroes;
}

Op ChooseOp(Random& random) {
  const uint64_t dice = random.Below(100);
  if (dice < 42) return Op::kRead;
  if (dice < 84) return Op::kWrite;
  if (dice < 90) return Op::kFlush;
  return dice < 94 ? Op::kDiscard : Op::kWriteZeroes;
}

}  // namespace

void OpenIo::Abandon(DiskModel::Fate fate) const {
  if (op == Op::kRead) model->CancelRead(read);
  if (stamp != 0) model->EndWrite(stamp, KindOf(op), block, count, fate);
}

GuestQueue::GuestQueue(World& world, perf::GuestMemory& memory, perf::LayoutPlanner& planner,
                       const Options& options)
    : world_(world), memory_(memory), planner_(planner), options_(options) {
  auto ring = perf::DriverRing::Create(memory, options.ring);
  CLEAT_CHECK(ring.ok());
  ring_ = std::move(ring).value();
  CLEAT_CHECK(options.slots <= kSlotsMax);
  slots_.resize(std::min<size_t>(options.slots, options.ring.size));
  for (Slot& slot : slots_) {
    slot.area_gpa = *memory_.Allocate(sizeof(perf::RequestArea), 16);
    slot.buffer_gpa = *memory_.Allocate(buffer_bytes(), kBlockBytes);
  }
  if (options_.interrupts) ring_->EnableCalls();
}

GuestQueue::~GuestQueue() {
  CLEAT_CHECK(open_ == 0);
  for (Slot& slot : slots_) {
    memory_.Free(slot.area_gpa, sizeof(perf::RequestArea));
    memory_.Free(slot.buffer_gpa, buffer_bytes());
  }
}

GuestQueue::Slot* GuestQueue::FreeSlot() {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.busy; });
  return found == slots_.end() ? nullptr : &*found;
}

bool GuestQueue::Issue(const GuestDisk& disk, Random& random) {
  Slot* slot = FreeSlot();
  if (slot == nullptr) return false;
  CheckWatched(*slot);
  OpenIo& io = slot->io;
  io = OpenIo{};
  io.op = ChooseOp(random);
  io.model = disk.model;
  slot->read_only = disk.read_only;
  slot->may_fail = disk.may_fail;
  if (io.op != Op::kFlush) {
    const uint64_t units = disk.model->blocks() / disk.logical_blocks;
    const uint64_t count =
        random.Between(1, std::min<uint64_t>(units, options_.io_blocks_max / disk.logical_blocks));
    io.count = count * disk.logical_blocks;
    io.block = random.Below(units - count + 1) * disk.logical_blocks;
  }
  std::vector<perf::Segment> data;
  if (io.op != Op::kFlush) data.push_back(PrepareData(*slot, disk));
  constexpr uint32_t kTypes[] = {wire::kBlkIn, wire::kBlkOut, wire::kBlkTypeFlush, wire::kBlkTypeDiscard,
                                 wire::kBlkTypeWriteZeroes};
  const bool transfer = io.op == Op::kRead || io.op == Op::kWrite;
  if (Enqueue(*slot, kTypes[static_cast<size_t>(io.op)], transfer ? io.block : 0, data)) return true;
  io.Abandon(DiskModel::Fate::kNever);
  return false;
}

// Fills the buffer and begins the access in the model.
perf::Segment GuestQueue::PrepareData(Slot& slot, const GuestDisk& disk) {
  OpenIo& io = slot.io;
  const auto bytes = static_cast<uint32_t>(io.count * kBlockBytes);
  const std::span<uint8_t> buffer = memory_.Span(slot.buffer_gpa, bytes);
  if (io.op == Op::kRead) {
    io.read = disk.model->BeginRead(io.block, io.count);
    std::memset(buffer.data(), 0xa5, buffer.size());
    return {slot.buffer_gpa, bytes, true};
  }
  if (!disk.read_only) io.stamp = disk.model->BeginWrite(KindOf(io.op), io.block, io.count);
  if (io.op == Op::kWrite) {
    for (uint64_t i = 0; i < io.count; ++i) {
      FillBlock(buffer.subspan(i * kBlockBytes, kBlockBytes), io.block + i,
                io.stamp == 0 ? UINT64_MAX : io.stamp);
    }
    return {slot.buffer_gpa, bytes, false};
  }
  const wire::BlkRange range{io.block, static_cast<uint32_t>(io.count), 0};
  std::memcpy(buffer.data(), &range, sizeof(range));
  return {slot.buffer_gpa, sizeof(range), false};
}

bool GuestQueue::IssueGetId() {
  Slot* slot = FreeSlot();
  if (slot == nullptr) return false;
  CheckWatched(*slot);
  slot->io = OpenIo{};
  slot->io.op = Op::kGetId;
  slot->read_only = slot->may_fail = false;
  return Enqueue(*slot, wire::kBlkGetId, 0, {{slot->buffer_gpa, wire::kBlkIdBytes, true}});
}

bool GuestQueue::Enqueue(Slot& slot, uint32_t type, uint64_t sector, const std::vector<perf::Segment>& data) {
  auto* area = memory_.At<perf::RequestArea>(slot.area_gpa);
  area->header = {type, 0, sector};
  area->status = 0xff;
  if (!planner_.Plan(memory_, slot.area_gpa, data, &layout_)) return false;
  if (!ring_->Add(layout_.chain, layout_.indirect, static_cast<uint64_t>(&slot - slots_.data())))
    return false;
  slot.busy = true;
  slot.bounce = layout_.bounce;
  slot.expected_written_bytes = 1;
  for (const perf::Segment& segment : data) slot.expected_written_bytes += segment.writable ? segment.len : 0;
  ++open_;
  return true;
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
  world_.Violation(options_.name + ": " + OpName(slot.io.op) + " of " + std::to_string(slot.io.count) +
                   " blocks at " + std::to_string(slot.io.block) + ": " + what);
}

void GuestQueue::Finish(Slot& slot, uint32_t written_bytes) {
  if (!slot.busy) return world_.Violation(options_.name + ": a request was completed twice");
  auto* area = memory_.At<perf::RequestArea>(slot.area_gpa);
  if (options_.defect == Defect::kSwapStatus && area->status == wire::kBlkIoError)
    area->status = wire::kBlkOk;
  slot.busy = false;
  --open_;
  const OpenIo& io = slot.io;
  world_.Note(options_.name + " " + OpName(io.op) + " " + std::to_string(io.block) + "+" +
              std::to_string(io.count) + " #" + std::to_string(io.stamp) + " status " +
              std::to_string(area->status));
  if (area->status == wire::kBlkOk) {
    FinishOk(slot, written_bytes);
    return Watch(slot);
  }
  const bool refused = slot.read_only && io.op != Op::kRead && io.op != Op::kFlush;
  if (area->status != wire::kBlkIoError && !refused) {
    Wrong(slot, "status " + std::to_string(area->status));
  } else if (!slot.may_fail && !refused) {
    Wrong(slot, "failed, but the storage did not");
  }
  io.Abandon(DiskModel::Fate::kUnknown);
  Watch(slot);
}

// What a request that ran again after its answer would leave in memory that is the guest's again.
void GuestQueue::Watch(Slot& slot) {
  if (!options_.watch_idle) return;
  slot.watched = true;
  std::memset(memory_.Span(slot.buffer_gpa, buffer_bytes()).data(), kIdle, buffer_bytes());
  memory_.At<perf::RequestArea>(slot.area_gpa)->status = kIdle;
}

void GuestQueue::CheckWatched(Slot& slot) {
  if (!std::exchange(slot.watched, false)) return;
  const auto buffer = memory_.Span(slot.buffer_gpa, buffer_bytes());
  const bool whole = std::all_of(buffer.begin(), buffer.end(), [](uint8_t byte) { return byte == kIdle; }) &&
                     memory_.At<perf::RequestArea>(slot.area_gpa)->status == kIdle;
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
    io.model->EndWrite(io.stamp, KindOf(io.op), io.block, io.count, DiskModel::Fate::kDone);
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
      text += std::string(", ") + OpName(slot.io.op) + (slot.dropped ? " (dropped)" : "");
      break;
    }
  }
  return text;
}

}  // namespace cleat::sim
