// SPDX-License-Identifier: Apache-2.0
// What is known of each resource: its row, which is durable, and what was reported of it since cleatd started. `revision` is the one that
// the API shows; `status` what was reported last: a tombstone is shown as DELETING or DETACHING whatever that says. Plain values, under the
// state's mutex.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/model/model.h"
#include "control/paths/engine_paths.h"
#include "control/paths/storage_identity.h"
#include "control/pools/drive_health.h"
#include "control/state/tables/cluster_fault.h"
#include "pool/extents.h"
#include "pool/layout.h"

namespace cleat::control {

// What a disk knows of an attachment of it.
struct DiskUse {
  bool detaching = false;
  uint64_t size_bytes = 0;  // as AttachmentStatus.size_bytes
  uint64_t limits_revision = 0;
  std::string io_path = {};  // as AttachmentStatus.io_path
};

struct DiskEntry {
  DiskRow row;
  v1::DiskStatus status;
  std::map<std::string, DiskUse> attachments;  // by name
  uint64_t revision = 0;
};

struct AttachmentEntry {
  AttachmentRow row;
  v1::AttachmentStatus status;
  uint64_t revision = 0;
  bool fenced = false;
};

struct ControllerEntry {
  ControllerRow row;
  v1::ControllerStatus status;
  std::map<std::string, AttachmentEntry> attachments;
  uint64_t revision = 0;
  std::string moving_to =
      {};  // the engine on which it is to stand by for a move; empty: it is not being moved
};

// The API (Pools) and disks (PoolExtents) change the first part, the pool's thread (PoolWork) the second one, and both what is free.
struct PoolEntry {
  PoolRow row;
  std::set<std::string> disks;  // ids
  uint64_t of_disks = 0;        // extents
  uint64_t of_deleted = 0;      // ... of deleted disks that are kept
  uint64_t revision = 0;
  uint64_t map_changes = 0;  // how often the map has changed since cleatd's start

  // ---- What is known of the drive since then
  v1::PoolState state = v1::POOL_STATE_OPENING;
  std::string message = {};
  uint64_t map_found = 0;       // the generation of the map that it had when it was opened last
  bool used_elsewhere = false;  // ... and that it was refused, since another store had used it
  bool opened = false;          // that map was compared with the store, and the next one is written
  pool::ExtentSet free = {};    // from then on: erased, and nobody's
  std::optional<StorageIdentity> identity = {};  // which drive it is
  uint64_t map_changes_written = 0;              // what of map_changes the drive's copy has
  KnownHealth health = {};
};

struct GroupEntry {
  GroupRow row;
  std::set<std::string> controllers;           // ids, tombstones too
  std::map<std::string, GroupReport> engines;  // that have it, or should and can't
  uint64_t revision = 0;
};

struct ClusterEntry {
  ClusterRow row;
  std::set<std::string> disks;                   // ids
  std::map<std::string, ClusterReport> engines;  // that have it, or should and can't
  uint64_t revision = 0;
  // ClusterFaults':
  bool told = false;                      // an engine reaches it, or tries to
  FaultEpisodes faults = {};              // that last
  std::set<std::string> unanswered = {};  // attachments, by name, whose storage does not answer
  std::set<std::string> failing = {};     // ... or fails requests
};

struct SubsystemEntry {
  SubsystemRow row;
  std::set<std::string> disks;  // ids
  uint64_t revision = 0;
};

// An engine has no row: it is known since it connected, or since a row named it.
struct EngineEntry {
  std::string id;
  v1::EngineStatus status;
  uint64_t revision = 0;
  std::optional<v1::UpgradeStatus> upgrade = std::nullopt;  // the last one away from it
  bool interrupted = false;  // by the end of the cleatd before this one; until EndRecovery
  bool unseen =
      false;  // an earlier cleatd's rows name it, and it has not connected to this one: it may serve
  std::optional<PathLists> paths = std::nullopt;  // that it takes for listed; nothing: it is of before
};

inline v1::ClusterState StateOf(const ClusterEntry& entry) {
  if (!entry.faults.empty()) return StateOf(entry.faults.begin()->first);
  return entry.told ? v1::CLUSTER_STATE_OK : v1::CLUSTER_STATE_UNSPECIFIED;
}

// Whether something was asked of the attachment's storage, and is not done.
inline bool WaitsForStorage(const AttachmentEntry& attachment) {
  return attachment.row.deleting || attachment.status.state() == v1::ATTACHMENT_STATE_OPENING ||
         attachment.status.storage_state() == v1::STORAGE_STATE_NOT_ANSWERING;
}

inline bool IsNotAnswering(const EngineEntry& engine) {
  return engine.status.state() == v1::ENGINE_STATE_NOT_ANSWERING;
}

}  // namespace cleat::control
