// SPDX-License-Identifier: Apache-2.0
// What cleatd has to know of a disk's back end, whatever its kind: backends.cc alone knows the kinds. Pure functions, any thread.
//
// A spec without a back end, or with one of a kind that this version does not know, has none of all this; CompleteBackend refuses it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cleat/engine/v1/engine.pb.h"
#include "cleat/v1/cleat.pb.h"
#include "cleat/v1/reason.pb.h"
#include "control/model/model.h"
#include "pool/extents.h"

namespace cleat::control {

// Storage that no two disks may have, unless both are MANY_READERS.
struct StorageClaim {
  const char* noun;       // "file"
  const char* with_an;    // "a file"
  std::string which;      // its path, say; the same text for the same storage
  v1::Reason when_taken;  // why another disk is refused

  std::string Key() const { return std::string(noun) + " " + which; }
};

// Fills in the defaults of its fields and refuses what can't be: kInvalidArgument, with the disk, the field, the value and the range.
Status CompleteBackend(std::string_view disk, v1::DiskSpec* spec);

// nullopt: it has no storage that another disk could have.
std::optional<StorageClaim> ClaimOf(const v1::DiskSpec& spec);
// Its key; empty without a claim.
std::string ClaimOfStorage(const v1::DiskSpec& spec);

// The path of the file or device that it is on this host; empty: it is none.
const std::string& FileOf(const v1::DiskSpec& spec);
// Its storage is a cluster's.
bool IsInCluster(const v1::DiskSpec& spec);
// The cluster that it is in, "clusters/ID", which engines must know first; empty: in none.
const std::string& ClusterOf(const v1::DiskSpec& spec);
const std::string& ClusterOf(const engine::v1::Disk& disk);

// The subsystem that it is a namespace of, "subsystems/ID"; empty: of none.
const std::string& SubsystemOf(const v1::DiskSpec& spec);
// What of these two it is in; empty: in neither.
const std::string& RemoteOf(const v1::DiskSpec& spec);

// The pool that it has extents of, "pools/ID"; empty: of none.
const std::string& PoolOf(const v1::DiskSpec& spec);
// The extents that it has, in its order; none where it is of no pool.
pool::ExtentRuns ExtentsOf(const v1::DiskSpec& spec);
void SetExtents(const pool::ExtentRuns& runs, v1::DiskSpec& spec);
// Why a disk that was made has no extents any more; nothing: it has them, or is of no pool.
std::optional<std::string> WhyLost(const v1::DiskSpec& spec);

// Memory that cleatd makes under a disk's name (memfd_keeper.h) and holds together with the engines.
enum class KeptMemory : uint8_t {
  kNone,
  kContent,  // the disk's content, as large as the disk
  kDoubtLog,  // of writes that a target may still execute (docs/nvmeof.md, rule 7); the same size for each disk
};
KeptMemory KeptMemoryOf(const v1::DiskSpec& spec);
inline bool KeepsMemory(const v1::DiskSpec& spec) {
  return KeptMemoryOf(spec) != KeptMemory::kNone;
}
uint64_t KeptBytes(const v1::DiskSpec& spec);  // 0: none
// Engines let its storage grow, and hear of it when somebody else did; cleatd takes over the size that they report. Otherwise
// cleatd sees to the size before an engine hears of it.
bool GrowsInEngine(const v1::DiskSpec& spec);

// What comes after the disk's name in a refusal; empty: it is none.
// "is ..., which nobody can write": attached read-only alone.
std::string WhyReadOnly(const v1::DiskSpec& spec);
// "is ..., which a VM can't migrate with": its content stays on this host, or another host could not be kept out of it. `has_reservations`:
// its subsystem has (HasReservations).
std::string WhyItStays(const v1::DiskSpec& spec, bool has_reservations);

// The back end as an engine is told of it. `path_checked`: its path was looked at when the disk was made, and the engine knows what
// that means.
void PutBackend(const DiskRow& row, bool path_checked, engine::v1::Disk* disk);

}  // namespace cleat::control
