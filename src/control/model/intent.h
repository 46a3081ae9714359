// SPDX-License-Identifier: Apache-2.0
// What should be, and what is reported of it: the plain values that HostState gives to the reconciler and takes from it. Copies, taken
// at one moment; no behaviour, no threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/change_recorder.h"
#include "control/model/model.h"

namespace cleat::control {

// What was seen of an engine at its last hello, whatever store it serves.
struct HeldByEngine {
  uint64_t newest_revision = 0;            // of all that it has
  std::map<std::string, uint64_t> serves;  // controllers' ids, and their revisions
};

// Where a disk of a pool lies.
struct PoolPlace {
  std::string device;
  pool::Uid uid{};
  uint64_t extent_bytes = 0;
};

// What an engine should have for one controller: a copy, taken at one moment.
struct AttachmentIntent {
  AttachmentRow row;
  DiskRow disk;
  DiskIdentity disk_identity;
  bool path_checked = false;  // when the disk was made: Rows::paths_checked_from
  v1::DiskStatus disk_status;
  uint64_t cluster_revision = 0;     // of the spec of the disk's cluster, when it is in one
  PoolPlace pool = {};               // of the disk's pool, when it is in one
  v1::SubsystemSpec subsystem = {};  // of the disk's subsystem, when it is a namespace of one
  uint64_t reservation_family = 0;   // that subsystem's
};
struct ControllerIntent {
  bool exists = false;
  ControllerRow row;
  uint32_t group_slot = 0;                    // when it is in a group
  std::vector<AttachmentIntent> attachments;  // tombstones too
  std::set<std::string> prepared_on;          // engines on which it is to stand by
  std::string serial;                         // of an NVMF controller: its subsystem's serial number
};

// How an engine names an attachment. Revision 0 means any.
struct AttachmentKey {
  std::string controller;
  uint32_t target = 0;
  uint64_t revision = 0;
};

// What the reconciler knows of an attachment.
struct AttachmentReport {
  v1::AttachmentState state = v1::ATTACHMENT_STATE_PENDING;
  std::string message = {};
  uint64_t size_bytes = 0;       // that the guest is told; 0: not open
  uint32_t failures = 0;         // in a row
  uint64_t limits_revision = 0;  // of the disk's limits that hold
  bool fenced = false;           // open, and shut out of its storage
  v1::StorageState storage = v1::STORAGE_STATE_UNSPECIFIED;
  v1::OnNoSpace on_no_space = v1::ON_NO_SPACE_UNSPECIFIED;  // what the engine does
  std::string io_path = {};                                 // as AttachmentStatus.io_path
  std::optional<v1::InDoubt> in_doubt = {};                 // what the engine does
  std::optional<v1::PathsStatus> paths = {};
};

// What the reconciler knows of a group in one engine.
struct GroupReport {
  uint64_t limits_revision = 0;  // of the limits that hold
  std::string message = {};      // why it has no newer ones
  bool operator==(const GroupReport&) const = default;
};

// What the reconciler knows of a cluster in one engine.
struct ClusterReport {
  uint64_t spec_revision = 0;
  std::string message = {};
  bool operator==(const ClusterReport&) const = default;
};

// An upgrade that is under way: ids.
struct UpgradeIntent {
  std::string from;
  std::string to;
  uint32_t drain_ms = 0;
  bool cancelled = false;
  std::vector<std::string> controllers;  // that were on `from` when it was asked for
  v1::UpgradeStatus status;              // as it was then
  AskedBy asked_by = {};
};

// A controller that goes to another engine: ids.
struct Placement {
  std::string controller;
  std::string engine;
};

// What changed since the reconciler last asked: ids.
struct ChangedIntent {
  std::set<std::string> controllers;
  std::set<std::string> disks;
  std::set<std::string> groups;
  std::set<std::string> clusters;
  std::map<std::string, uint64_t> forgotten;  // engines, with the incarnation of their last process; 0: none
  bool upgrade = false;
  bool paths = false;        // the lists of paths were read again
  bool discoveries = false;  // a call waits for a discovery (Discoveries::TakeAsked)
};

}  // namespace cleat::control
