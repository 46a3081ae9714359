// SPDX-License-Identifier: Apache-2.0
// The maps that drives were seen to have, so that a process which looks at a drive's map for each of its disks reads it once per change.
// Thread-safe; what a drive takes its time for is waited for, by those too who ask for the same drive meanwhile.
//
// Each look reads the block that each slot begins with, at that time and from the drive. A map that is whole begins with its length, its
// generation and the checksum of all its blocks; so a slot that begins, bit for bit, as a map that was read whole before had that map when
// it was last written to the end. That map is the present one if no slot claims a generation as high: the next map always goes to the other slot,
// with a higher one. In all other cases both slots are read whole, as ReadMap does, and what they say is what counts:
//
//   another map was written          its first block differs, in its checksum if in nothing else
//   another one is being written     it claims a higher generation, as soon as its first block is there; before that it has not begun
//   its writing was cut              the same, at each look until it is written again
//   a slot can't be read, has another version, or claims the same generation
//
// Only that a block behind the first is damaged later, or is no more readable, is not noticed: then the map is still the one that cleatd has
// written last, where ReadMap would take the one before, or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "base/disk_identity.h"
#include "base/mutex.h"
#include "base/result.h"
#include "pool/drive.h"
#include "pool/extents.h"
#include "pool/layout.h"

namespace cleat::pool {

// A map, for asking which disk has which extents. Immutable.
class MapIndex {
 public:
  explicit MapIndex(const Map& map);

  uint64_t generation() const { return generation_; }
  // Whether that disk, or any one where it is not known which, has these extents in this order and perhaps, since it has grown, more behind
  // them, and is not deleted.
  bool Has(DiskIdentity identity, const ExtentRuns& extents) const;

 private:
  struct Disk {
    uint64_t identity = 0;
    ExtentRuns extents;  // Joined
  };

  uint64_t generation_;
  std::vector<Disk> disks_;  // in their identities' order; without the deleted ones
};

// The numbers by which the system tells a drive from others at present: another drive may have the same ones later.
struct DriveId {
  uint64_t device = 0;  // a block device's number, or that of the file system
  uint64_t file = 0;    // a regular file's number there; 0: a block device

  bool operator==(const DriveId&) const = default;
};

class MapCache {
 public:
  // As many drives as a host may have pools. Beyond that, the drive that nobody has asked for for longest is forgotten. The cache has one map
  // of each, without descriptions: 2 MiB at most, 200 KiB for 3,000 disks of one run.
  static constexpr size_t kDrivesMax = 64;

  MapCache();
  ~MapCache();
  MapCache(const MapCache&) = delete;
  MapCache& operator=(const MapCache&) = delete;

  // The map that ReadMap(drive, label) would find, read after this call began; nullptr: there is none. `label` was read from the drive just
  // now. Errors as ReadMap's.
  Result<std::shared_ptr<const MapIndex>> Read(const DriveId& id, Drive& drive, const Label& label);

 private:
  class Entry;
  std::shared_ptr<Entry> EntryOf(const DriveId& id, const Uid& pool);

  Mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_ CLEAT_GUARDED_BY(mutex_);  // the last that was asked for first
};

}  // namespace cleat::pool
