// SPDX-License-Identifier: Apache-2.0
#include "pool/layout.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "base/check.h"

namespace cleat::pool {
namespace {

using Magic = std::array<uint8_t, 8>;
constexpr Magic kLabelMagic = {'C', 'L', 'E', 'A', 'T', 'P', 'L', 0};
constexpr Magic kMapMagic = {'C', 'L', 'E', 'A', 'T', 'P', 'M', 0};
constexpr uint32_t kVersion = 1;  // of both

// Where both have these, in any version.
constexpr size_t kVersionAt = 8;
constexpr size_t kCrcAt = 12;
constexpr size_t kCrcBytes = 4;
constexpr size_t kAfterCrc = kCrcAt + kCrcBytes;
constexpr size_t kMapBytesAt = 16;  // a map's length

constexpr size_t kGenerationAt = 40;  // of a map

constexpr size_t kDiskBytes = 24;  // of a disk in the map, without its runs and its description
constexpr size_t kRunBytes = 8;
constexpr size_t kMapHeaderBytes = 64;
constexpr uint32_t kDeletedFlag = 1;

static_assert(kMapHeaderBytes + kMapDisksMax * (kDiskBytes + kDescriptionBytesMax) +
                  kExtentsMax * kRunBytes <=
              kMapBytesMax);

std::string Text(uint64_t number) {
  return std::to_string(number);
}

Error Invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

Error TooMany(std::string message) {
  return {ErrorCode::kResourceExhausted, std::move(message)};
}

uint64_t RoundedUp(uint64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

// The checksum of all bytes but those of the checksum itself.
uint32_t CrcOf(std::span<const uint8_t> bytes) {
  const auto rest = bytes.subspan(kAfterCrc);
  return static_cast<uint32_t>(crc32_z(crc32_z(0, bytes.data(), kCrcAt), rest.data(), rest.size()));
}

bool HasMagic(std::span<const uint8_t> bytes, const Magic& magic) {
  return std::equal(magic.begin(), magic.end(), bytes.begin());
}

// Numbers and bytes at the end of what was written before.
class Writer {
 public:
  explicit Writer(std::vector<uint8_t>& to) : to_(to) {}

  void U32(uint32_t value) { Number(value, 4); }
  void U64(uint64_t value) { Number(value, 8); }
  void Bytes(std::span<const uint8_t> bytes) { to_.insert(to_.end(), bytes.begin(), bytes.end()); }
  void Text(std::string_view text) { to_.insert(to_.end(), text.begin(), text.end()); }
  void PadTo(size_t size) { to_.resize(size); }

  // Magic and version; the checksum comes last, by Seal.
  void Begin(const Magic& magic) {
    Bytes(magic);
    U32(kVersion);
    U32(0);
  }
  void Seal() {
    const uint32_t crc = CrcOf(to_);
    for (size_t i = 0; i < kCrcBytes; ++i) to_[kCrcAt + i] = static_cast<uint8_t>(crc >> 8 * i);
  }

 private:
  void Number(uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) to_.push_back(static_cast<uint8_t>(value >> 8 * i));
  }

  std::vector<uint8_t>& to_;
};

// Reads one after the other. Beyond the end there are zeroes, and ok() is false from then on.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> from, size_t at = 0) : from_(from), at_(at) {}

  uint32_t U32() { return static_cast<uint32_t>(Number(4)); }
  uint64_t U64() { return Number(8); }
  void Bytes(std::span<uint8_t> to) {
    if (Have(to.size())) std::copy_n(from_.begin() + static_cast<ptrdiff_t>(at_), to.size(), to.begin());
    Skip(to.size());
  }
  std::string String(size_t bytes) {
    std::string text;
    if (Have(bytes)) text.assign(reinterpret_cast<const char*>(from_.data()) + at_, bytes);
    Skip(bytes);
    return text;
  }
  void Skip(size_t bytes) {
    ok_ = Have(bytes);
    if (ok_) at_ += bytes;
  }

  bool ok() const { return ok_; }
  bool Have(size_t bytes) const { return ok_ && bytes <= from_.size() - at_; }
  size_t at() const { return at_; }

 private:
  uint64_t Number(size_t bytes) {
    uint64_t value = 0;
    if (Have(bytes)) {
      for (size_t i = 0; i < bytes; ++i) value |= uint64_t{from_[at_ + i]} << 8 * i;
    }
    Skip(bytes);
    return value;
  }

  const std::span<const uint8_t> from_;
  size_t at_;
  bool ok_ = true;
};

uint32_t VersionOf(std::span<const uint8_t> bytes) {
  return Reader(bytes, kVersionAt).U32();
}

// Magic aside. `what` begins errors.
Status CheckSeal(std::span<const uint8_t> bytes, const std::string& what) {
  if (Reader(bytes, kCrcAt).U32() != CrcOf(bytes)) {
    return Error(ErrorCode::kDataLoss,
                 what + " is damaged: its checksum is another one than its content's. Nothing was changed");
  }
  const uint32_t version = VersionOf(bytes);
  if (version > kVersion) {
    return Error(ErrorCode::kUnimplemented, what + " is of version " + Text(version) +
                                                ", this program knows " + Text(kVersion) +
                                                ": upgrade Cleat on this host");
  }
  if (version != kVersion)
    return Error(ErrorCode::kDataLoss, what + " is of version " + Text(version) + ", which never was one");
  return Ok{};
}

// What a check says of something that lies on a drive.
Error AsDataLoss(const Error& error, const std::string& what) {
  return {ErrorCode::kDataLoss, what + " is whole and makes no sense: " + error.message};
}

// Which disk has one of the extents already, of those before `end` and of `end` itself.
const MapDisk* OwnerOf(const std::vector<MapDisk>& disks, const MapDisk* end, ExtentRun run) {
  for (const MapDisk& disk : disks) {
    if (&disk == end) return end;
    for (const ExtentRun& its : disk.extents) {
      if (its.first < run.end() && run.first < its.end()) return &disk;
    }
  }
  return end;
}

std::string RunText(ExtentRun run) {
  return "extents " + Text(run.first) + " to " + Text(run.end() - 1);
}

Status CheckSizes(const Map& map) {
  if (map.disks.size() > kMapDisksMax) {
    return TooMany("a pool's map has " + Text(map.disks.size()) +
                   " disks, deleted ones included, and room for " + Text(kMapDisksMax) +
                   ": purge deleted disks, or make the disk in another pool");
  }
  size_t runs = 0;
  for (const MapDisk& disk : map.disks) {
    runs += disk.extents.size();
    if (disk.description.size() > kDescriptionBytesMax) {
      return TooMany("disk " + Text(disk.identity) + " is described in " + Text(disk.description.size()) +
                     " bytes, a pool's map has room for " + Text(kDescriptionBytesMax));
    }
  }
  if (runs > kExtentsMax) {
    return TooMany("a pool's map has " + Text(runs) + " runs of extents, and a pool at most " +
                   Text(kExtentsMax) + " extents");
  }
  return Ok{};
}

Status CheckExtents(const Map& map, const Label& label) {
  ExtentSet owned;
  for (const MapDisk& disk : map.disks) {
    for (const ExtentRun& run : disk.extents) {
      const std::string name = "disk " + Text(disk.identity);
      if (run.count == 0) return Invalid(name + " has a run without extents, at " + Text(run.first));
      if (run.end() > label.extents)
        return Invalid(name + " has " + RunText(run) + ", the pool only " + Text(label.extents));
      if (!owned.IsFree(run)) {
        return Invalid(RunText(run) + " are, in part at least, disk " +
                       Text(OwnerOf(map.disks, &disk, run)->identity) + "'s and " + name + "'s");
      }
      owned.Add(run);
    }
  }
  return Ok{};
}

void Append(const MapDisk& disk, Writer& to) {
  to.U64(disk.identity);
  to.U32(disk.deleted ? kDeletedFlag : 0);
  to.U32(static_cast<uint32_t>(disk.extents.size()));
  to.U32(static_cast<uint32_t>(disk.description.size()));
  to.U32(0);
  for (const ExtentRun& run : disk.extents) {
    to.U32(run.first);
    to.U32(run.count);
  }
  to.Text(disk.description);
}

// nullopt: it goes beyond the map's end or a limit, or has a flag that nobody knows.
std::optional<MapDisk> ReadDisk(Reader& from) {
  MapDisk disk;
  disk.identity = from.U64();
  const uint32_t flags = from.U32();
  const uint32_t runs = from.U32();
  const uint32_t description_bytes = from.U32();
  const uint32_t reserved = from.U32();
  if (!from.ok() || (flags & ~kDeletedFlag) != 0 || reserved != 0) return std::nullopt;
  if (runs > kExtentsMax || description_bytes > kDescriptionBytesMax) return std::nullopt;
  if (!from.Have(runs * kRunBytes + description_bytes)) return std::nullopt;
  disk.deleted = (flags & kDeletedFlag) != 0;
  disk.extents.resize(runs);
  for (ExtentRun& run : disk.extents) {
    run.first = from.U32();
    run.count = from.U32();
  }
  disk.description = from.String(description_bytes);
  return disk;
}

}  // namespace

std::string TextOf(const Uid& uid) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : uid) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<Uid> UidOf(std::string_view text) {
  Uid uid{};
  if (text.size() != uid.size() * 2) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    uint8_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint8_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint8_t>(c - 'a' + 10);
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint8_t>(c - 'A' + 10);
    } else {
      return std::nullopt;
    }
    uid[i / 2] = static_cast<uint8_t>(uid[i / 2] << 4 | digit);
  }
  return uid;
}

uint32_t ExtentsOn(uint64_t drive_bytes, uint64_t extent_bytes) {
  if (!std::has_single_bit(extent_bytes) || extent_bytes < kExtentBytesMin || extent_bytes > kExtentBytesMax)
    return 0;
  if (drive_bytes < kDataOffset) return 0;
  return static_cast<uint32_t>(std::min<uint64_t>((drive_bytes - kDataOffset) / extent_bytes, kExtentsMax));
}

uint64_t DefaultExtentBytes(uint64_t drive_bytes) {
  if (ExtentsOn(drive_bytes, kExtentBytesDefault) == 0) return 0;
  for (uint64_t bytes = kExtentBytesDefault; bytes <= kExtentBytesMax; bytes *= 2) {
    if ((drive_bytes - kDataOffset) / bytes <= kExtentsMax) return bytes;
  }
  return 0;
}

Status CheckLabel(const Label& label) {
  if (!std::has_single_bit(label.extent_bytes) || label.extent_bytes < kExtentBytesMin ||
      label.extent_bytes > kExtentBytesMax) {
    return Invalid("extents of " + Text(label.extent_bytes) + " bytes: a power of two from " +
                   Text(kExtentBytesMin) + " to " + Text(kExtentBytesMax) + " is wanted");
  }
  if (label.extents == 0 || label.extents > kExtentsMax)
    return Invalid(Text(label.extents) + " extents: a pool has 1 to " + Text(kExtentsMax));
  const bool printable =
      std::all_of(label.name.begin(), label.name.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (label.name.size() > kNameBytesMax || !printable)
    return Invalid("a name that no pool has: at most " + Text(kNameBytesMax) + " printable characters");
  return Ok{};
}

std::array<uint8_t, kBlockBytes> Encode(const Label& label, size_t copy) {
  CLEAT_CHECK(copy < kLabelCopies && CheckLabel(label).ok());
  std::vector<uint8_t> bytes;
  bytes.reserve(kBlockBytes);
  Writer to(bytes);
  to.Begin(kLabelMagic);
  to.U64(kLabelOffsets[copy]);
  to.Bytes(label.pool);
  to.Bytes(label.host);
  to.U64(label.extent_bytes);
  to.U32(label.extents);
  to.U32(static_cast<uint32_t>(label.name.size()));
  to.Text(label.name);
  to.PadTo(kBlockBytes);
  to.Seal();
  std::array<uint8_t, kBlockBytes> block;
  std::copy(bytes.begin(), bytes.end(), block.begin());
  return block;
}

Result<std::optional<Label>> DecodeLabel(std::span<const uint8_t, kBlockBytes> block, size_t copy) {
  CLEAT_CHECK(copy < kLabelCopies);
  if (!HasMagic(block, kLabelMagic)) return std::optional<Label>();
  const std::string what = "a pool's label, at byte " + Text(kLabelOffsets[copy]) + " of its drive,";
  CLEAT_TRY(CheckSeal(block, what));
  Reader from(block, kAfterCrc);
  const uint64_t offset = from.U64();
  if (offset != kLabelOffsets[copy]) {
    return Error(
        ErrorCode::kDataLoss,
        what + " was written for byte " + Text(offset) +
            ": this is a part of what was the pool's drive, or a copy of such a part. Name the whole drive");
  }
  Label label;
  from.Bytes(label.pool);
  from.Bytes(label.host);
  label.extent_bytes = from.U64();
  label.extents = from.U32();
  const uint32_t name_bytes = from.U32();
  // A longer one is refused for its length.
  label.name = from.String(std::min<size_t>(name_bytes, kNameBytesMax + 1));
  if (const Status status = CheckLabel(label); !status) return AsDataLoss(status.error(), what);
  return std::optional<Label>(std::move(label));
}

Status CheckMap(const Map& map, const Label& label) {
  if (map.pool != label.pool)
    return Invalid("it is the map of pool " + TextOf(map.pool) + ", not of " + TextOf(label.pool));
  if (map.generation == 0 || map.generation > kGenerationMax)
    return Invalid("no map has the generation " + Text(map.generation));
  CLEAT_TRY(CheckSizes(map));
  std::unordered_set<uint64_t> identities;
  for (const MapDisk& disk : map.disks) {
    if (disk.identity == 0) return Invalid("a disk has no identity");
    if (!identities.insert(disk.identity).second)
      return Invalid("disk " + Text(disk.identity) + " is named twice");
  }
  return CheckExtents(map, label);
}

Result<std::vector<uint8_t>> Encode(const Map& map) {
  CLEAT_TRY(CheckSizes(map));
  uint64_t size = kMapHeaderBytes;
  for (const MapDisk& disk : map.disks)
    size += kDiskBytes + disk.extents.size() * kRunBytes + disk.description.size();
  size = RoundedUp(size);
  CLEAT_CHECK(size <= kMapBytesMax);
  std::vector<uint8_t> bytes;
  bytes.reserve(size);
  Writer to(bytes);
  to.Begin(kMapMagic);
  to.U64(size);
  to.Bytes(map.pool);
  to.U64(map.generation);
  to.U32(static_cast<uint32_t>(map.disks.size()));
  to.PadTo(kMapHeaderBytes);
  for (const MapDisk& disk : map.disks) Append(disk, to);
  to.PadTo(size);
  to.Seal();
  return bytes;
}

std::optional<uint64_t> MapBytes(std::span<const uint8_t, kBlockBytes> first_block) {
  if (!HasMagic(first_block, kMapMagic)) return std::nullopt;
  const uint64_t bytes = Reader(first_block, kMapBytesAt).U64();
  if (bytes == 0 || bytes > kMapBytesMax || bytes % kBlockBytes != 0) return std::nullopt;
  return bytes;
}

Result<std::optional<uint64_t>> ClaimedGeneration(std::span<const uint8_t, kBlockBytes> first_block) {
  if (!MapBytes(first_block)) return std::optional<uint64_t>();
  const uint32_t version = VersionOf(first_block);
  if (version != kVersion)
    return Error(ErrorCode::kUnimplemented, "a pool's map begins as one of version " + Text(version));
  return std::optional<uint64_t>(Reader(first_block, kGenerationAt).U64());
}

Result<Map> DecodeMap(std::span<const uint8_t> bytes, const Label& label) {
  const std::string what = "the copy of the map of pool " + label.name;
  const auto broken = [&what](const char* why) {
    return Error(ErrorCode::kDataLoss, what + " is damaged: " + why);
  };
  if (bytes.size() < kBlockBytes) return broken("it is shorter than a block");
  const auto size = MapBytes(bytes.first<kBlockBytes>());
  if (!size) return broken("it does not begin as one");
  if (*size != bytes.size()) return broken("its length is another one than it says");
  CLEAT_TRY(CheckSeal(bytes, what));

  Reader from(bytes, kMapBytesAt + 8);
  Map map;
  from.Bytes(map.pool);
  map.generation = from.U64();
  const uint32_t disks = from.U32();
  if (disks > kMapDisksMax) return broken("it has more disks than a map has room for");
  from.Skip(kMapHeaderBytes - from.at());
  for (uint32_t i = 0; i < disks; ++i) {
    auto disk = ReadDisk(from);
    if (!disk) return broken("one of its disks makes no sense");
    map.disks.push_back(*std::move(disk));
  }
  const auto rest = bytes.subspan(from.at());
  const bool padded = std::all_of(rest.begin(), rest.end(), [](uint8_t byte) { return byte == 0; });
  if (RoundedUp(from.at()) != *size || !padded) return broken("something follows its last disk");
  if (const Status status = CheckMap(map, label); !status) return AsDataLoss(status.error(), what);
  return map;
}

}  // namespace cleat::pool
