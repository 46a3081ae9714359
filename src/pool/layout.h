// SPDX-License-Identifier: Apache-2.0
// What a drive carries that is a pool: a label, which says whose it is, and a copy of the map, which says whose each extent is. Little-endian,
// in blocks of 4096 bytes. docs/local-nvme.md has it as a table. Pure code on plain memory; any thread.
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
#include <vector>

#include "base/result.h"
#include "pool/extents.h"

namespace cleat::pool {

inline constexpr uint64_t kBlockBytes = 4096;  // that the drive is read and written in, whatever its own
inline constexpr uint64_t kLabelOffsets[] = {0, uint64_t{1} << 20};
inline constexpr uint64_t kMapOffsets[] = {uint64_t{16} << 20, uint64_t{32} << 20};
inline constexpr uint64_t kMapBytesMax = uint64_t{16} << 20;
inline constexpr uint64_t kDataOffset = uint64_t{64} << 20;
inline constexpr uint64_t kExtentBytesMin = uint64_t{64} << 20;
inline constexpr uint64_t kExtentBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kExtentBytesDefault = uint64_t{256} << 20;
inline constexpr uint32_t kExtentsMax = 65536;
inline constexpr size_t kDescriptionBytesMax = 1024;
inline constexpr size_t kMapDisksMax = 8192;  // deleted ones included

using Uid = std::array<uint8_t, 16>;
// 32 hexadecimal digits.
std::string TextOf(const Uid& uid);
std::optional<Uid> UidOf(std::string_view text);

struct Label {
  Uid pool{};                 // no other pool's, of any host
  Uid host{};                 // whose cleatd made it
  uint64_t extent_bytes = 0;  // a power of two, kExtentBytesMin to kExtentBytesMax
  uint32_t extents = 0;       // 1 to kExtentsMax
  std::string name;           // the pool's, "nvme0": at most 63 bytes

  bool operator==(const Label&) const = default;
};

// How many extents of that size fit on a drive; 0: none.
uint32_t ExtentsOn(uint64_t drive_bytes, uint64_t extent_bytes);
// The default, or as much as it takes for kExtentsMax; 0: the drive is too large for kExtentBytesMax, or too small for one extent.
uint64_t DefaultExtentBytes(uint64_t drive_bytes);

std::array<uint8_t, kBlockBytes> Encode(const Label& label);
// nullopt: no label of a pool is there (another magic). kDataLoss: one is, and it is damaged or makes no sense; kUnimplemented: it is of a
// newer version.
Result<std::optional<Label>> DecodeLabel(std::span<const uint8_t, kBlockBytes> block);

// A disk, as the map has it.
struct MapDisk {
  uint64_t identity = 0;  // base/disk_identity.h
  bool deleted = false;   // and kept
  ExtentRuns extents;     // in the disk's order
  std::string
      description;  // for who makes the store anew: cleatd's own, without a key; at most kDescriptionBytesMax

  bool operator==(const MapDisk&) const = default;
};

struct Map {
  Uid pool{};
  uint64_t generation = 0;  // 1 and up: of two slots the higher one is the map
  std::vector<MapDisk> disks;

  bool operator==(const Map&) const = default;
};

// Whole blocks, at most kMapBytesMax: an error names the pool's limit.
Result<std::vector<uint8_t>> Encode(const Map& map);
// How many bytes a map has whose first block this is; nullopt: no map begins like this.
std::optional<uint64_t> MapBytes(std::span<const uint8_t, kBlockBytes> first_block);
// kDataLoss: damaged, or not that pool's, or an extent beyond `label`'s, or one with two owners.
Result<Map> DecodeMap(std::span<const uint8_t> bytes, const Label& label);

}  // namespace cleat::pool
