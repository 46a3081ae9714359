// SPDX-License-Identifier: Apache-2.0
// What cleatd remembers: one row a resource, as the store keeps it. Plain values without behaviour, threads
// or gRPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "cleat/v1/cleat.pb.h"
#include "pool/layout.h"

namespace cleat::control {

// A limit on everything.
inline constexpr size_t kDisksMax = 4096;
inline constexpr size_t kDeletedDisksMax = 4096;  // that are kept
inline constexpr uint32_t kKeepDeletedDaysDefault = 7;
inline constexpr uint32_t kKeepDeletedDaysMax = 365;
inline constexpr size_t kLostRangesMax = 64;  // of revisions; beyond that the oldest two become one
inline constexpr size_t kControllersMax = 1024;
inline constexpr size_t kGroupsMax = 1024;
inline constexpr size_t kClustersMax = 64;
inline constexpr size_t kSubsystemsMax = 64;
inline constexpr uint32_t kKeepAliveMsDefault = 5000;
inline constexpr size_t kPoolsMax = 64;
inline constexpr uint32_t kImagesPerClientMax = 64;
inline constexpr uint32_t kConnectTimeoutMsMax = 300'000;
inline constexpr uint32_t kConnectTimeoutMsMin = 1000;
inline constexpr size_t kMonitorsBytesMax = 1024;
inline constexpr size_t kCephNameBytesMax = 255;  // of a user, pool, namespace, image or snapshot
// Of limits: src/qos/limits.h has the same numbers, for the engine checks what it is told.
inline constexpr uint64_t kIopsMax = 100'000'000;
inline constexpr uint64_t kBytesPerSecondMax = 1'000'000'000'000;
inline constexpr uint64_t kBytesPerSecondMin = 512;
inline constexpr uint32_t kBurstMsMax = 3'600'000;
inline constexpr uint32_t kQueuesMax = 64;
inline constexpr uint64_t kDiskBytesMax = uint64_t{1} << 50;
inline constexpr uint32_t kPhysicalBlockBytesMax = 65536;
inline constexpr size_t kSerialBytesMax = 20;       // virtio 1.2, 5.2.6: VIRTIO_BLK_T_GET_ID
inline constexpr size_t kSocketPathBytesMax = 107;  // sockaddr_un.sun_path without its final zero
inline constexpr size_t kFilePathBytesMax = 4095;
inline constexpr uint64_t kFaultDelayNsMax = 10'000'000'000;
inline constexpr int kPageSizeMax = 1000;
inline constexpr size_t kMessageBytesMax = size_t{4} * 1024 * 1024;
inline constexpr size_t kPageBytesMax = kMessageBytesMax / 2;
inline constexpr size_t kLabelsMax = 32;
inline constexpr size_t kLabelKeyBytesMax = 63;
inline constexpr size_t kLabelValueBytesMax = 256;
inline constexpr uint32_t kScsiTargets = 8;
inline constexpr uint32_t kExportTargets = 64;  // of an NVMF controller: namespaces
inline constexpr uint32_t kExportQueuesDefault = 8;
inline constexpr size_t kExportAddressesMax = 8;
inline constexpr size_t kExportHostsMax = 64;
inline constexpr int kUpgradeFailuresMax = 64;  // that an UpgradeStatus names
// Versions of the protocol with the engines, from which on
inline constexpr uint32_t kProtocolMoves = 2;       // controllers can be moved
inline constexpr uint32_t kProtocolHeartbeats = 5;  // it says that it goes on
inline constexpr uint32_t kProtocolIdentities = 3;  // engines know which disk a guest had before
inline constexpr uint32_t kProtocolPathLists =
    4;  // engines say which paths are listed, and read them again when told
inline constexpr uint32_t kProtocolSecrets = 6;       // engines know that subsystems have secrets
inline constexpr uint32_t kProtocolReservations = 7;  // disks keep other hosts from writing
inline constexpr uint32_t kProtocolDiscovery = 8;     // engines ask discovery services
inline constexpr uint32_t kProtocolWatching = 9;      // with secrets; watch them; and end when told to
inline constexpr uint32_t kProtocolExports = 10;      // hosts reach disks over NVMe/TCP
inline constexpr uint32_t kProtocolHostSecrets = 11;  // ... and may have secrets
inline constexpr uint32_t kProtocolHandOver =
    12;  // ... stay connected when the export goes to another engine, and reach the one that stands by
inline constexpr uint32_t kProtocolRdma = 13;       // ... and come over NVMe/RDMA as well
inline constexpr uint32_t kProtocolRdmaDisks = 14;  // disks and discovery services are reached over NVMe/RDMA
inline constexpr uint32_t kProtocolPaths = 15;      // connections have a DSCP, and paths a source

using Labels = std::map<std::string, std::string>;

// `revision` is given when the resource is made and never changed, so that a resource that was deleted and made
// anew can be told from its predecessor. It travels to the engine and comes back in the inventory.
// `intent_revision` changes with everything that the row says; the etag is made of it. `limits_revision` is the
// intent_revision of the last change of the limits, 0 when there were none yet: the engine says which ones it knows.

struct DiskRow {
  std::string id;
  v1::DiskSpec spec;  // complete: defaults are filled in
  Labels labels;
  uint64_t revision = 0;
  uint64_t intent_revision = 0;
  bool deleting = false;  // a tombstone: acknowledged as deleted, an engine may still hold its memory
  // Memory disks. `reached_engine` is set, durably, before the first Attach that can write to it: from then
  // on the content can't be replaced by zeroes. `held_by`: the engines that hold the memory too.
  bool reached_engine = false;
  std::set<std::string> held_by;
  uint64_t limits_revision = 0;
  // RBD disks that have become larger: what an owner has last seen its image have. 0: as much as the spec says.
  uint64_t image_bytes = 0;
};

// A deleted disk that is kept, to be brought back: known by `disk.revision`, since many may have had the same id. Times are
// seconds since 1970.
struct DeletedDiskRow {
  DiskRow disk;  // its intent_revision: of the deletion
  uint64_t delete_time_s = 0;
  uint64_t purge_time_s = 0;
};

struct GroupRow {
  std::string id;
  v1::GroupSpec spec;
  Labels labels;
  uint64_t revision = 0;
  uint64_t intent_revision = 0;
  uint64_t limits_revision = 0;
  uint32_t slot = 0;  // in the memory that engines share: no other group's
};

// `spec_revision`: the intent_revision of the last change of the spec, or of what its key is wrapped under.
struct ClusterRow {
  std::string id;
  v1::ClusterSpec spec;  // its key, if it has one, wrapped
  Labels labels;
  uint64_t revision = 0;
  uint64_t intent_revision = 0;
  uint64_t spec_revision = 0;
};

// How much of its spec changes while it has disks: Subsystems::CheckChange.
struct SubsystemRow {
  std::string id;
  v1::SubsystemSpec spec;  // complete: says who this host is, too
  Labels labels;
  uint64_t revision = 0;
  uint64_t intent_revision = 0;
  // Identifies this host in reservations of the subsystem's namespaces. Random, since machine identifiers are copied with machines; 0: not yet
  // drawn.
  uint64_t reservation_family = 0;
};

// A drive that is cut into disks. The specs of its disks (DiskSpec.pool.extents), and of deleted disks that are kept, say which extents are
// whose. Every extent that no disk has, neither one of the store nor one of `unknown`, and that is not in `to_erase`, is free: it reads as zeroes.
struct PoolRow {
  std::string id;
  v1::PoolSpec spec;  // complete
  Labels labels;
  uint64_t revision = 0;
  uint64_t intent_revision = 0;
  pool::Uid uid{};
  uint32_t extents = 0;       // that the drive has
  bool labelled = false;      // the drive has this pool's label: until then it may have anything
  pool::ExtentRuns to_erase;  // in the extents' order
  // Disks that the drive has and the store does not: they were made after the backup that it was restored from. Their extents are left alone.
  std::vector<pool::MapDisk> unknown;
};

struct ControllerRow {
  std::string id;
  v1::ControllerSpec spec;
  Labels labels;
  uint64_t revision = 0;
  uint64_t intent_revision = 0;
  bool deleting = false;
  std::string engine;  // the engine's id, once chosen
  // Of a blk controller: the disk that its guest's driver may still remember, which another one is not to follow under it
  // (engine/guest_devices/swap_guard.h). Not known: none but the one that is attached.
  DiskIdentity last_disk;
  std::string last_disk_name;  // "disks/ID", as it was then; empty: not known
  // Of an NVMF controller: the revision of the last change of its hosts, or of what their secrets are wrapped under. The engine says which
  // ones it knows. 0: of another type.
  uint64_t hosts_revision = 0;
};

struct AttachmentRow {
  std::string controller;  // the controller's id
  std::string id;
  v1::AttachmentSpec spec;
  uint64_t revision = 0;
  uint64_t intent_revision = 0;
  bool deleting = false;
};

// The last upgrade away from that engine. RUNNING in the store means that it was interrupted.
struct UpgradeRow {
  std::string engine;
  v1::UpgradeStatus status;
};

// Revisions that were handed out, or may have been, and of which the store knows nothing since it was restored from a backup: from `first`
// up to `until`, exclusive.
struct LostRevisions {
  uint64_t first = 0;
  uint64_t until = 0;
  bool operator==(const LostRevisions&) const = default;
};

struct Rows {
  std::vector<DiskRow> disks;
  std::vector<DeletedDiskRow> deleted_disks;
  std::vector<GroupRow> groups;
  std::vector<ClusterRow> clusters;
  std::vector<SubsystemRow> subsystems;
  std::vector<PoolRow> pools;
  std::vector<ControllerRow> controllers;
  std::vector<AttachmentRow> attachments;
  std::vector<UpgradeRow> upgrades;
  std::vector<LostRevisions> lost;
  // Disks with a smaller revision were made before anybody looked where their paths lead: an operator's link may be on the way.
  uint64_t paths_checked_from = 0;
};

}  // namespace cleat::control
