// SPDX-License-Identifier: Apache-2.0
// A pool's drive, as the one process that looks after it sees it: gives it its label, keeps its copy of the map, erases extents. Every method
// may take as long as the drive does. On one thread; owns nothing but memory, and `drive` outlives it. Errors say "the drive": which one, the
// caller knows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/random.h"
#include "base/result.h"
#include "pool/drive.h"
#include "pool/layout.h"

namespace cleat::pool {

// The label that is on the drive: the first copy, or the second where the first is gone or damaged. nullopt: there is none.
// Errors: kIo; DecodeLabel's, when no copy is good and one of them was a label, or when one is of a newer version; kDataLoss: the drive is
// smaller than the label says.
Result<std::optional<Label>> ReadLabel(Drive& drive);
// The newer of the two slots that are whole; nullopt: none is. kIo when a slot can't be read and the other one is not whole;
// kUnimplemented when one is of a newer version.
Result<std::optional<Map>> ReadMap(Drive& drive, const Label& label);
// The same, with the block that the map begins with: its length, its generation and the checksum of all its blocks are in there.
struct FoundMap {
  Map map;
  std::array<uint8_t, kBlockBytes> head;
};
Result<std::optional<FoundMap>> FindMap(Drive& drive, const Label& label);

// The same, for whoever takes the drive's word for what is on it, and has to know whether it may have lost some.
struct MapSlots {
  std::optional<Map> map;
  bool damaged =
      false;  // a slot that is not empty is not whole: a write of it was interrupted, or it was written over
};
// kIo only when a slot can't be read and the other one is not whole; kUnimplemented as ReadMap.
Result<MapSlots> ReadMapSlots(Drive& drive, const Label& label);

class PoolDrive {
 public:
  // How many bytes one call of EraseStep erases, so that a pool's other work comes in between.
  static constexpr uint64_t kEraseStepBytes = uint64_t{32} << 20;

  // `seed`: of which places are read back.
  PoolDrive(Drive& drive, uint64_t seed) : drive_(drive), random_(seed) {}

  // Makes the drive that pool's, whatever is on it, and writes over what other programs may know it by. What was a label is none any more before the maps are touched, and these are none before
  // the first label is written, so that no old map ever belongs to a new label. Durable when it returns; before that a crash leaves what was
  // there, or no label, or this one and no map. kInvalidArgument: the label has numbers that no label may have;
  // kFailedPrecondition: the drive is too small for it; kIo.
  Status Format(const Label& label);
  // Takes the label for done, and writes over labels and maps, also of a drive that was not opened: nobody finds a pool here any more.
  Status Unlabel();
  // Finds the drive as it was left; writes nothing. kFailedPrecondition: no label, or another one, wherever it was written: the error names both; else as ReadLabel
  // and ReadMap.
  Status Open(const Label& label);
  // Whose host's the label is: after Format or Open.
  const Uid& host() const { return host_; }

  // Writes the map, whose pool need not be set, to the slot that is not the present one. Its generation is the one after the present one, or
  // the map's own if that is higher. Durable when it returns OK; after an error, or a crash, the drive has the map of before or this one. No two maps have the same
  // generation: after kIo the next one skips a number. After Format or Open. kResourceExhausted: it is more than a map has room for;
  // kInternal: no engine would accept it (CheckMap); nothing was written then.
  Status WriteMap(Map map);
  uint64_t generation() const { return generation_; }

  // ---- For a pool that goes on under another store. After Open; at any moment the drive has a label and a map of the pool.
  // Gives the drive that label, which differs in its host alone from the one that Open has found: one copy after the other, a damaged one
  // first. kIo.
  Status Relabel(const Label& label);
  // As WriteMap, but with the map's own generation, also where the present one's is higher: that one goes, once the new one is durable. After
  // an error, or a crash, the drive has either.
  Status ReplaceMap(Map map);

  // Erases the next kEraseStepBytes of `extent`, from `done_bytes` on, which it moves; at the extent's end flushes, reads samples back, and
  // is done when `done_bytes` is the extent's size. What was done before that is not durable: after an error, which sets `done_bytes` to 0,
  // and after a crash an extent is erased from its beginning again. kIo: the drive can't, or does not read as zeroes afterwards.
  // After Format or Open.
  Status EraseStep(uint32_t extent, uint64_t& done_bytes);

 private:
  Status EraseNext(uint32_t extent, uint64_t& done_bytes);
  Status CheckErased(uint32_t extent);

  Drive& drive_;
  Random random_;
  std::optional<Label> label_;  // after Format or Open
  Uid host_{};
  uint64_t generation_ = 0;        // of the present map; 0: there is none
  uint64_t tried_generation_ = 0;  // the highest that a write was begun for
  size_t slot_ = 0;                // for the next map
};

}  // namespace cleat::pool
