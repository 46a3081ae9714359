// SPDX-License-Identifier: Apache-2.0
// Where a disk of a pool lies on its drive, and whether the drive agrees. Values; what looks at a drive blocks on it, and belongs on a
// BlockingPool's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "base/result.h"
#include "pool/extent_map.h"
#include "pool/extents.h"
#include "pool/layout.h"

namespace cleat::pool {
class MapCache;
}  // namespace cleat::pool

namespace cleat::modules {

struct UringFile;

struct Placement {
  pool::Uid pool{};
  uint64_t extent_bytes = 0;  // the pool's
  pool::ExtentRuns runs;      // in the disk's order; none twice
  DiskIdentity identity;      // not known: whoever has these extents is the disk
};

// Gives `file`, which is open, its place on the drive (UringFile::extents), once the drive's label and its copy of the map were read and have
// it so. `size_bytes`: the disk's. `maps`, which outlives the file, spares the map's reading where it is known. `what` begins errors.
//   kFailedPrecondition  no pool's drive, another pool's, or other extents than the pool's; the disk is larger than its extents
//   kUnavailable         the map on the drive does not have the disk, with these extents first: it is not written yet; try again
//   kDataLoss, kIo, kUnimplemented  as pool::ReadLabel and pool::ReadMap say
Status PlaceOnDrive(const Placement& placement, uint64_t size_bytes, const std::string& what,
                    pool::MapCache& maps, UringFile& file);
// Whether the drive still has it so, of a file that was placed; any other one has. To be asked once its extents are locked: before, the disk
// may have been purged, and its extents be another one's. Errors as PlaceOnDrive's.
Status CheckPlacement(const UringFile& file, const std::string& what);

// A placed disk's next placement, when it grows.
struct Growth {
  Placement placement;
  pool::ExtentMap extents;             // all
  std::vector<pool::DriveRange> more;  // what it did not have before; nothing: the placement is as it was
};
// kInvalidArgument: `runs` do not begin with the extents that it has now.
Result<Growth> GrowthOf(const Placement& now, const pool::ExtentRuns& runs, const std::string& what);
// Whether the drive that `file` leads to has it so. To be asked once `more` is locked. Errors as PlaceOnDrive's.
Status CheckGrowth(const Growth& growth, const UringFile& file, const std::string& what);

}  // namespace cleat::modules
