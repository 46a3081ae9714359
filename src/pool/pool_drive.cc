// SPDX-License-Identifier: Apache-2.0
#include "pool/pool_drive.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/check.h"

namespace cleat::pool {
namespace {

using Block = std::array<uint8_t, kBlockBytes>;

constexpr uint64_t kTailBytes = uint64_t{1}
                                << 20;  // where others have signatures: backups of partition tables, RAID
constexpr int kSamples = 8;             // of an erased extent, beside its first and its last block

std::string NameOf(const Label& label) {
  return "pool " + label.name + " (" + TextOf(label.pool) + ", host " + TextOf(label.host) + ", " +
         std::to_string(label.extents) + " extents of " + std::to_string(label.extent_bytes) + " bytes)";
}

bool IsZero(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte == 0; });
}

// Reads one copy of the label; nothing where the drive is too small to have it.
Result<std::optional<Label>> ReadCopy(Drive& drive, size_t copy) {
  const uint64_t offset = kLabelOffsets[copy];
  if (drive.size_bytes() < offset + kBlockBytes) return std::optional<Label>();
  Block block;
  CLEAT_TRY(drive.Read(offset, block));
  return DecodeLabel(block, copy);
}

struct Slot {
  std::optional<Map> map;      // nullopt: none that is whole
  Block head;                  // that the map begins with, if there is one
  size_t number = 0;           // of the slot
  std::optional<Error> error;  // why it could not be read
  bool damaged = false;        // it is not empty, and not whole
};

Result<Map> ReadWhole(Drive& drive, uint64_t offset, std::span<const uint8_t> first, uint64_t size,
                      const Label& label) {
  std::vector<uint8_t> bytes(size);
  std::copy(first.begin(), first.end(), bytes.begin());
  if (size > first.size()) {
    CLEAT_TRY(drive.Read(offset + first.size(), std::span(bytes).subspan(first.size())));
  }
  return DecodeMap(bytes, label);
}

Slot ReadSlot(Drive& drive, const Label& label, size_t number) {
  Slot slot;
  slot.number = number;
  const uint64_t offset = kMapOffsets[number];
  if (drive.size_bytes() < offset + kMapBytesMax) return slot;
  if (const Status read = drive.Read(offset, slot.head); !read) {
    slot.error = read.error();
    return slot;
  }
  const auto size = MapBytes(slot.head);
  slot.damaged = !size && !IsZero(slot.head);
  if (!size) return slot;
  auto map = ReadWhole(drive, offset, slot.head, *size, label);
  if (map.ok()) {
    slot.map = *std::move(map);
  } else if (map.error().code != ErrorCode::kDataLoss) {
    slot.error = map.error();
  } else {
    slot.damaged = true;
  }
  return slot;
}

using Slots = std::array<Slot, kMapSlots>;

Slots ReadSlots(Drive& drive, const Label& label) {
  return {ReadSlot(drive, label, 0), ReadSlot(drive, label, 1)};
}

// The slot that counts; its map is nullopt when there is none.
Result<Slot> PresentOf(Slots slots) {
  for (const Slot& slot : slots) {
    if (slot.error && slot.error->code == ErrorCode::kUnimplemented) return *slot.error;
  }
  if (slots[0].map && slots[1].map) {
    return std::move(slots[slots[1].map->generation > slots[0].map->generation ? 1 : 0]);
  }
  for (Slot& slot : slots) {
    if (slot.map) return std::move(slot);
  }
  for (const Slot& slot : slots) {
    if (slot.error) return *slot.error;
  }
  return std::move(slots[1]);  // the first map goes to the first slot
}

Result<Slot> ReadPresent(Drive& drive, const Label& label) {
  return PresentOf(ReadSlots(drive, label));
}

Status CheckRoom(const Drive& drive, const Label& label, ErrorCode code) {
  const uint32_t room = ExtentsOn(drive.size_bytes(), label.extent_bytes);
  if (room >= label.extents) return Ok{};
  return Error(code, "the drive has " + std::to_string(drive.size_bytes()) + " bytes, room for " +
                         std::to_string(room) + " extents, and is too small for " + NameOf(label) +
                         ": use the drive that the pool was made for, or make the pool anew");
}

}  // namespace

Result<std::optional<Label>> ReadLabel(Drive& drive) {
  std::optional<Label> found;
  std::optional<Error> error;
  for (size_t copy = 0; copy < kLabelCopies; ++copy) {
    auto read = ReadCopy(drive, copy);
    if (read.ok()) {
      if (!found) found = *std::move(read);
    } else if (!error || read.error().code == ErrorCode::kUnimplemented) {
      error = read.error();
    }
  }
  // A newer program may have been interrupted between the copies: the older one is its past.
  if (error && (!found || error->code == ErrorCode::kUnimplemented)) return *error;
  if (found) CLEAT_TRY(CheckRoom(drive, *found, ErrorCode::kDataLoss));
  return found;
}

Result<std::optional<Map>> ReadMap(Drive& drive, const Label& label) {
  CLEAT_ASSIGN(Slot present, ReadPresent(drive, label));
  return std::move(present.map);
}

Result<MapSlots> ReadMapSlots(Drive& drive, const Label& label) {
  Slots slots = ReadSlots(drive, label);
  const bool damaged = std::any_of(slots.begin(), slots.end(),
                                   [](const Slot& slot) { return slot.damaged || slot.error.has_value(); });
  CLEAT_ASSIGN(Slot present, PresentOf(std::move(slots)));
  return MapSlots{.map = std::move(present.map), .damaged = damaged};
}

Result<std::optional<FoundMap>> FindMap(Drive& drive, const Label& label) {
  CLEAT_ASSIGN(Slot present, ReadPresent(drive, label));
  if (!present.map) return std::optional<FoundMap>();
  return std::optional<FoundMap>({*std::move(present.map), present.head});
}

Status PoolDrive::Format(const Label& label) {
  label_.reset();
  CLEAT_TRY(CheckLabel(label));
  CLEAT_TRY(CheckRoom(drive_, label, ErrorCode::kFailedPrecondition));
  const Block nothing{};
  for (const uint64_t offset : kLabelOffsets) CLEAT_TRY(drive_.Write(offset, nothing));
  CLEAT_TRY(drive_.Flush());
  // With all that tells other programs what the drive is: signatures lie at its beginning and its end. Between these, extents are erased.
  CLEAT_TRY(drive_.Zero(0, kDataOffset));
  const uint64_t end = kDataOffset + label.extents * label.extent_bytes;
  const uint64_t rest = std::min(drive_.size_bytes() - end, kTailBytes);
  if (rest > 0) CLEAT_TRY(drive_.Zero(drive_.size_bytes() - rest, rest));
  CLEAT_TRY(drive_.Flush());
  for (size_t copy = 0; copy < kLabelCopies; ++copy)
    CLEAT_TRY(drive_.Write(kLabelOffsets[copy], Encode(label, copy)));
  CLEAT_TRY(drive_.Flush());
  host_ = label.host;
  label_ = label;
  generation_ = tried_generation_ = 0;
  slot_ = 0;
  return Ok{};
}

Status PoolDrive::Unlabel() {
  label_.reset();
  const Block nothing{};
  for (const uint64_t offset : kLabelOffsets) {
    if (offset + kBlockBytes <= drive_.size_bytes()) CLEAT_TRY(drive_.Write(offset, nothing));
  }
  CLEAT_TRY(drive_.Flush());
  for (const uint64_t offset : kMapOffsets) {
    if (offset + kMapBytesMax <= drive_.size_bytes()) CLEAT_TRY(drive_.Zero(offset, kMapBytesMax));
  }
  return drive_.Flush();
}

Status PoolDrive::Open(const Label& label) {
  label_.reset();
  CLEAT_ASSIGN(const std::optional<Label> found, ReadLabel(drive_));
  if (!found) {
    return Error(ErrorCode::kFailedPrecondition,
                 "the drive has no label, that of " + NameOf(label) +
                     " is wanted: name the pool's drive, or make the pool anew, without its disks");
  }
  if (found->pool != label.pool || found->extent_bytes != label.extent_bytes ||
      found->extents != label.extents) {
    return Error(ErrorCode::kFailedPrecondition, "the drive is " + NameOf(*found) + ", and " + NameOf(label) +
                                                     " is wanted: name the pool's drive");
  }
  CLEAT_ASSIGN(const Slot present, ReadPresent(drive_, label));
  host_ = found->host;
  generation_ = tried_generation_ = present.map ? present.map->generation : 0;
  slot_ = 1 - present.number;
  label_ = label;
  return Ok{};
}

Status PoolDrive::WriteMap(Map map) {
  CLEAT_CHECK(label_.has_value());
  map.pool = label_->pool;
  map.generation = std::max({map.generation, generation_ + 1, tried_generation_ + 1});
  if (Status status = CheckMap(map, *label_); !status) {
    if (status.error().code == ErrorCode::kResourceExhausted) return status;
    const std::string what =
        "the map of pool " + label_->name + " is wrong and was not written, a bug of Cleat: ";
    return Error(ErrorCode::kInternal, what + status.error().message);
  }
  CLEAT_ASSIGN(const std::vector<uint8_t> bytes, Encode(map));
  tried_generation_ = map.generation;
  CLEAT_TRY(drive_.Write(kMapOffsets[slot_], bytes));
  CLEAT_TRY(drive_.Flush());
  generation_ = map.generation;
  slot_ = 1 - slot_;
  return Ok{};
}

Status PoolDrive::Relabel(const Label& label) {
  CLEAT_CHECK(label_.has_value() && label_->pool == label.pool);
  std::array<std::optional<Label>, kLabelCopies> present;
  for (size_t copy = 0; copy < kLabelCopies; ++copy) {
    auto read = ReadCopy(drive_, copy);
    if (read.ok() && *read && (**read).pool == label.pool) present[copy] = **read;
  }
  // The copy that is not whole is written first, so that one whole copy is there at any time.
  for (const bool whole : {false, true}) {
    for (size_t copy = 0; copy < kLabelCopies; ++copy) {
      if (present[copy].has_value() != whole || present[copy] == label) continue;
      CLEAT_TRY(drive_.Write(kLabelOffsets[copy], Encode(label, copy)));
      CLEAT_TRY(drive_.Flush());
    }
  }
  host_ = label.host;
  label_ = label;
  return Ok{};
}

Status PoolDrive::ReplaceMap(Map map) {
  const uint64_t former = std::exchange(generation_, 0);
  const uint64_t tried = std::exchange(tried_generation_, 0);
  if (Status written = WriteMap(std::move(map)); !written.ok()) {
    generation_ = former;
    tried_generation_ = tried;
    return written;
  }
  if (former < generation_) return Ok{};
  const Block nothing{};
  CLEAT_TRY(drive_.Write(kMapOffsets[slot_], nothing));
  return drive_.Flush();
}

Status PoolDrive::EraseStep(uint32_t extent, uint64_t& done_bytes) {
  CLEAT_CHECK(label_.has_value() && extent < label_->extents);
  CLEAT_CHECK(done_bytes < label_->extent_bytes && done_bytes % kBlockBytes == 0);
  Status status = EraseNext(extent, done_bytes);
  // A flush that failed may have lost any of it.
  if (!status) done_bytes = 0;
  return status;
}

Status PoolDrive::EraseNext(uint32_t extent, uint64_t& done_bytes) {
  const uint64_t start = kDataOffset + extent * label_->extent_bytes;
  const uint64_t length = std::min(kEraseStepBytes, label_->extent_bytes - done_bytes);
  CLEAT_TRY(drive_.Zero(start + done_bytes, length));
  if (done_bytes + length == label_->extent_bytes) {
    CLEAT_TRY(drive_.Flush());
    CLEAT_TRY(CheckErased(extent));
  }
  done_bytes += length;
  return Ok{};
}

Status PoolDrive::CheckErased(uint32_t extent) {
  const uint64_t blocks = label_->extent_bytes / kBlockBytes;
  const uint64_t start = kDataOffset + extent * label_->extent_bytes;
  std::vector<uint64_t> samples{0, blocks - 1};
  for (int i = 0; i < kSamples; ++i) samples.push_back(random_.Below(blocks));
  Block block;
  for (const uint64_t sample : samples) {
    const uint64_t offset = start + sample * kBlockBytes;
    CLEAT_TRY(drive_.Read(offset, block));
    if (IsZero(block)) continue;
    return Error(ErrorCode::kIo,
                 "extent " + std::to_string(extent) + " of pool " + label_->name +
                     " was erased, and the drive still has other bytes than zeroes, at byte " +
                     std::to_string(offset) +
                     ": the extent stays in use; replace the drive if this happens again");
  }
  return Ok{};
}

}  // namespace cleat::pool
