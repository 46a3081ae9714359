// SPDX-License-Identifier: Apache-2.0
// What a drive carries that is a pool: a label, which says whose it is, and a copy of the map, which says whose each extent is. Little-endian,
// in blocks of 4096 bytes. docs/local-nvme.md has it as a table. Pure code on plain memory; any thread.
//
// Label and map begin alike, whatever their version: magic (8 bytes), version (4), crc32 of all the other bytes (4). What is decoded may
// come from a drive that is damaged or malicious.
//
//   0           label                          4096 bytes
//   1 MiB       the label again                a tool that writes over a drive's beginning leaves this one
//   16 MiB      map, slot 0                    at most kMapBytesMax
//   32 MiB      map, slot 1                    the two are written in turn, so that one is whole at any time
//   64 MiB      extents, one behind the other
//
// The truth is cleatd's store. The copy is for an engine, which gives a guest no extent that the drive has down as another disk's, and for the
// day on which the store is lost. It has no key, wrapped or not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "pool/extents.h"

namespace cleat::pool {

inline constexpr uint64_t kBlockBytes = 4096;  // that the drive is read and written in, whatever its own
inline constexpr size_t kLabelCopies = 2;
inline constexpr uint64_t kLabelOffsets[kLabelCopies] = {0, uint64_t{1} << 20};
inline constexpr size_t kMapSlots = 2;
inline constexpr uint64_t kMapOffsets[kMapSlots] = {uint64_t{16} << 20, uint64_t{32} << 20};
inline constexpr uint64_t kMapBytesMax = uint64_t{16} << 20;
inline constexpr uint64_t kDataOffset = uint64_t{64} << 20;
inline constexpr uint64_t kExtentBytesMin = uint64_t{64} << 20;
inline constexpr uint64_t kExtentBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kExtentBytesDefault = uint64_t{256} << 20;
inline constexpr uint32_t kExtentsMax = 65536;
inline constexpr size_t kNameBytesMax = 63;
inline constexpr size_t kDescriptionBytesMax = 1024;
inline constexpr size_t kMapDisksMax = 8192;  // deleted ones included
inline constexpr uint64_t kGenerationMax = uint64_t{1} << 62;

using Uid = std::array<uint8_t, 16>;
// 32 hexadecimal digits, in lower case; read in either.
std::string TextOf(const Uid& uid);
std::optional<Uid> UidOf(std::string_view text);

struct Label {
  Uid pool{};                 // no other pool's, of any host
  Uid host{};                 // whose cleatd made it
  uint64_t extent_bytes = 0;  // a power of two, kExtentBytesMin to kExtentBytesMax
  uint32_t extents = 0;       // 1 to kExtentsMax
  std::string name;           // the pool's, "nvme0": at most kNameBytesMax printable ASCII characters

  bool operator==(const Label&) const = default;
};

// How many extents of that size a drive has room for, at most kExtentsMax; 0: for none, or it is no size of extents.
uint32_t ExtentsOn(uint64_t drive_bytes, uint64_t extent_bytes);
// The default, or as much as it takes for kExtentsMax; 0: the drive is too large for kExtentBytesMax, or too small for one extent.
uint64_t DefaultExtentBytes(uint64_t drive_bytes);
// kInvalidArgument, and why: numbers or a name that no label may have.
Status CheckLabel(const Label& label);

// The label's copy for kLabelOffsets[copy]; each says where it lies, so that what begins elsewhere on the drive (a partition at 1 MiB) does
// not find a label of its own. CheckLabel has nothing against the label.
std::array<uint8_t, kBlockBytes> Encode(const Label& label, size_t copy);
// What was read at kLabelOffsets[copy]. nullopt: no label of a pool is there (another magic). kDataLoss: one is, and it is damaged, lies
// where it does not belong, or makes no sense; kUnimplemented: it is of a newer version.
Result<std::optional<Label>> DecodeLabel(std::span<const uint8_t, kBlockBytes> block, size_t copy);

// A disk, as the map has it.
struct MapDisk {
  uint64_t identity = 0;  // base/disk_identity.h; known, and no other disk's of the map
  bool deleted = false;   // and kept
  ExtentRuns extents;     // in the disk's order
  // For whoever makes the store anew: cleatd's own, without a key; any bytes, at most kDescriptionBytesMax.
  std::string description;

  bool operator==(const MapDisk&) const = default;
};

struct Map {
  Uid pool{};
  uint64_t generation = 0;  // 1 to kGenerationMax: of two slots the higher one is the map
  std::vector<MapDisk> disks;

  bool operator==(const Map&) const = default;
};

// kInvalidArgument, and why, if the map is not that pool's, or has an extent beyond `label`'s, an extent or identity twice, or a number that
// no map has; kResourceExhausted: it has more than a map has room for, and which limit that is.
Status CheckMap(const Map& map, const Label& label);

// Whole blocks, at most kMapBytesMax, which is more than the limits of CheckMap let a map have; kResourceExhausted beyond these.
Result<std::vector<uint8_t>> Encode(const Map& map);
// How many bytes a map has whose first block this is; nullopt: no map begins like this.
std::optional<uint64_t> MapBytes(std::span<const uint8_t, kBlockBytes> first_block);
// The generation that a map claims whose first block this is, whether it is whole or not. nullopt: no map begins like this. kUnimplemented:
// one of another version does, which may have that number elsewhere.
Result<std::optional<uint64_t>> ClaimedGeneration(std::span<const uint8_t, kBlockBytes> first_block);
// As many bytes as MapBytes says. kDataLoss: damaged, cut, or CheckMap has something against it; kUnimplemented: whole, and of a newer
// version.
Result<Map> DecodeMap(std::span<const uint8_t> bytes, const Label& label);

}  // namespace cleat::pool
