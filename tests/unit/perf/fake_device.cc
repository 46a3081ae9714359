// SPDX-License-Identifier: Apache-2.0
#include "fake_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "perf/wire/virtqueue.h"

namespace cleat::perf {
namespace {

constexpr char kDiskId[] = "fake-disk-0123456789";  // 20 characters, so without an end in the answer

uint16_t Load(const uint8_t* at) {
  return std::atomic_ref<uint16_t>(*reinterpret_cast<uint16_t*>(const_cast<uint8_t*>(at))).load();
}
void Store(uint8_t* at, uint16_t value) {
  std::atomic_ref<uint16_t>(*reinterpret_cast<uint16_t*>(at)).store(value);
}

}  // namespace

bool FakeDisk::Inside(uint64_t sector, uint64_t length_bytes) const {
  const uint64_t sectors = bytes_.size() / wire::kSectorBytes;
  return sector <= sectors && length_bytes <= (sectors - sector) * wire::kSectorBytes;
}

wire::BlkConfig FakeDisk::Config(uint16_t queues) const {
  wire::BlkConfig config{};
  config.capacity_sectors = bytes_.size() / wire::kSectorBytes;
  config.seg_max = 30;
  config.blk_size = wire::kSectorBytes;
  config.num_queues = queues;
  config.max_discard_sectors = config.max_write_zeroes_sectors = UINT32_MAX;
  config.max_discard_seg = config.max_write_zeroes_seg = 1;
  return config;
}

uint8_t FakeDisk::Execute(const wire::BlkHeader& header, std::span<const uint8_t> out,
                          std::span<uint8_t> in) {
  const std::lock_guard lock(mutex_);
  switch (header.type) {
    case wire::kBlkIn:
      if (in.size() % wire::kSectorBytes != 0 || !Inside(header.sector, in.size())) return wire::kBlkIoError;
      std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(header.sector * wire::kSectorBytes), in.size(),
                  in.begin());
      return wire::kBlkOk;
    case wire::kBlkOut:
      if (out.size() % wire::kSectorBytes != 0 || !Inside(header.sector, out.size()))
        return wire::kBlkIoError;
      if (--writes_until_loss_ == 0) return wire::kBlkOk;
      std::copy(out.begin(), out.end(),
                bytes_.begin() + static_cast<ptrdiff_t>(header.sector * wire::kSectorBytes));
      return wire::kBlkOk;
    case wire::kBlkTypeFlush:
      ++flushes_;
      return wire::kBlkOk;
    case wire::kBlkGetId:
      if (in.size() != wire::kBlkIdBytes) return wire::kBlkIoError;
      std::copy_n(kDiskId, in.size(), in.begin());
      return wire::kBlkOk;
    case wire::kBlkTypeDiscard:
    case wire::kBlkTypeWriteZeroes: {
      wire::BlkRange range;
      if (out.size() != sizeof range) return wire::kBlkIoError;
      std::memcpy(&range, out.data(), sizeof range);
      if ((range.flags & ~wire::kBlkRangeUnmap) != 0) return wire::kBlkUnsupported;
      const uint64_t length = uint64_t{range.sectors} * wire::kSectorBytes;
      if (!Inside(range.sector, length)) return wire::kBlkIoError;
      std::fill_n(bytes_.begin() + static_cast<ptrdiff_t>(range.sector * wire::kSectorBytes), length,
                  uint8_t{0});
      return wire::kBlkOk;
    }
    default:
      return wire::kBlkUnsupported;
  }
}

std::optional<uint32_t> FakeDisk::Serve(uint16_t /*queue*/, std::span<const uint8_t> out,
                                        std::span<uint8_t> in) {
  wire::BlkHeader header;
  if (in.empty() || out.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, out.data(), sizeof header);
  in.back() = Execute(header, out.subspan(sizeof header), in.first(in.size() - 1));
  return static_cast<uint32_t>(in.size());
}

void FakeRing::Start(const Layout& layout, uint16_t base, bool event_idx) {
  *this = FakeRing();
  layout_ = layout;
  event_idx_ = event_idx;
  last_avail_ = base;
  used_idx_ = used_signalled_ = Load(layout_.used + 2);
}

uint16_t FakeRing::AvailIdx() const {
  return Load(layout_.avail + 2);
}

bool FakeRing::Walk(uint16_t head, const Translate& translate, std::vector<Piece>* pieces) {
  const uint8_t* table = layout_.desc;
  uint32_t entries = layout_.size;
  uint32_t index = head;
  bool in_table = false;
  for (uint32_t steps = 0; steps <= std::max<uint32_t>(layout_.size, entries); ++steps) {
    if (index >= entries) return false;
    wire::Descriptor descriptor;
    std::memcpy(&descriptor, table + sizeof descriptor * index, sizeof descriptor);
    if ((descriptor.flags & wire::kDescIndirect) != 0) {
      if (in_table || (descriptor.flags & wire::kDescNext) != 0) return false;
      if (descriptor.len == 0 || descriptor.len % sizeof descriptor != 0) return false;
      table = translate(descriptor.gpa, descriptor.len);
      if (table == nullptr) return false;
      entries = descriptor.len / sizeof descriptor;
      index = 0;
      in_table = true;
      continue;
    }
    const bool writable = (descriptor.flags & wire::kDescWrite) != 0;
    if (!writable && !pieces->empty() && pieces->back().writable) return false;
    uint8_t* bytes = translate(descriptor.gpa, descriptor.len);
    if (bytes == nullptr) return false;
    pieces->push_back({bytes, descriptor.len, writable});
    if ((descriptor.flags & wire::kDescNext) == 0) return true;
    index = descriptor.next;
  }
  return false;  // a loop
}

bool FakeRing::Serve(uint16_t queue, uint16_t head, FakeDevice& device, const Translate& translate) {
  std::vector<Piece> pieces;
  if (!Walk(head, translate, &pieces)) return false;
  longest_chain_ = std::max(longest_chain_, pieces.size());
  std::vector<uint8_t> out;
  size_t in_bytes = 0;
  for (const Piece& piece : pieces) {
    if (piece.writable) {
      in_bytes += piece.len;
    } else {
      out.insert(out.end(), piece.bytes, piece.bytes + piece.len);
    }
  }
  std::vector<uint8_t> in(in_bytes);
  const std::optional<uint32_t> written = device.Serve(queue, out, in);
  if (!written) return false;
  size_t done = 0;
  for (const Piece& piece : pieces) {
    if (!piece.writable || done == *written) continue;
    const size_t bytes = std::min<size_t>(piece.len, *written - done);
    std::memcpy(piece.bytes, in.data() + done, bytes);
    done += bytes;
  }
  PushUsed(head, *written);
  return true;
}

void FakeRing::PushUsed(uint32_t id, uint32_t len) {
  const wire::UsedElement element{id, len};
  std::memcpy(layout_.used + 4 + sizeof element * (used_idx_ % layout_.size), &element, sizeof element);
  Store(layout_.used + 2, ++used_idx_);
}

size_t FakeRing::Process(FakeDevice& device, const Translate& translate, size_t count, uint16_t queue) {
  size_t served = 0;
  while (!broken_ && served < count && device.Answers(queue) && last_avail_ != AvailIdx()) {
    const auto ahead = static_cast<uint16_t>(AvailIdx() - last_avail_);
    if (ahead > layout_.size) {
      broken_ = true;
      break;
    }
    const uint16_t head = Load(layout_.avail + 4 + sizeof(uint16_t) * (last_avail_ % layout_.size));
    ++last_avail_;
    if (!Serve(queue, head, device, translate)) broken_ = true;
    ++served;
  }
  return served;
}

bool FakeRing::Rearm() {
  if (event_idx_) Store(layout_.used + 4 + sizeof(wire::UsedElement) * layout_.size, last_avail_);
  return !broken_ && last_avail_ != AvailIdx();
}

bool FakeRing::WantsCall() {
  const uint16_t old_idx = used_signalled_;
  used_signalled_ = used_idx_;
  if (old_idx == used_idx_) return false;
  if (!event_idx_) return (Load(layout_.avail) & wire::kAvailNoInterrupt) == 0;
  const uint16_t event = Load(layout_.avail + 4 + sizeof(uint16_t) * layout_.size);
  return static_cast<uint16_t>(used_idx_ - event - 1) < static_cast<uint16_t>(used_idx_ - old_idx);
}

}  // namespace cleat::perf
