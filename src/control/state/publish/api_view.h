// SPDX-License-Identifier: Apache-2.0
// Resources as the API shows them: spec and status from the tables, without keys, and with notes of what is amiss. Under the state's mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/disk_identity.h"
#include "cleat/v1/cleat.pb.h"
#include "control/paths/path_policy.h"
#include "control/state/publish/engine_roles.h"
#include "control/state/publish/propagation.h"
#include "control/state/tables/state_lock.h"
#include "control/state/tables/tables.h"
#include "nvme/fabrics/names.h"

namespace cleat::control {

class ApiView {
 public:
  // All outlive it. `store_number`: Store::number().
  ApiView(const Tables& tables, const EngineRoles& roles, const Propagation& propagation,
          const PathPolicy* const& paths, uint64_t store_number)
      : tables_(tables),
        roles_(roles),
        propagation_(propagation),
        paths_(paths),
        store_number_(store_number) {}

  v1::Disk Show(const DiskEntry& entry) const CLEAT_REQUIRES(holds_state);
  v1::Disk Show(const DeletedDiskRow& row) const CLEAT_REQUIRES(holds_state);
  v1::Cluster Show(const ClusterEntry& entry) const CLEAT_REQUIRES(holds_state);
  v1::Subsystem Show(const SubsystemEntry& entry) const CLEAT_REQUIRES(holds_state);
  v1::Pool Show(const PoolEntry& entry) const CLEAT_REQUIRES(holds_state);
  v1::Group Show(const GroupEntry& entry) const CLEAT_REQUIRES(holds_state);
  v1::Controller Show(const ControllerEntry& entry) const CLEAT_REQUIRES(holds_state);
  v1::Attachment Show(const AttachmentEntry& entry) const CLEAT_REQUIRES(holds_state);
  v1::Engine Show(const EngineEntry& entry) const CLEAT_REQUIRES(holds_state);

  DiskIdentity IdentityOf(const DiskRow& row) const { return DiskIdentity::Of(store_number_, row.revision); }
  std::string UidOf(const DiskRow& row) const;
  // What an export's hosts know the disk by; nothing of another controller's attachment.
  std::optional<nvme::fabrics::Uuid> NamespaceOf(const AttachmentRow& row) const CLEAT_REQUIRES(holds_state);
  // The serial number of an export's subsystem, of 20 characters: the same as long as the controller is there, and no other one's.
  std::string SerialOf(const ControllerRow& row) const;

  // Why callers may not name the path in that row, though it is served; nothing when they may.
  std::optional<std::string> WhyUnlisted(const DiskRow& row) const;
  std::optional<std::string> WhyUnlisted(const ControllerRow& row) const;
  std::optional<std::string> WhyUnlisted(const ClusterRow& row) const;
  // Of an export whose engine is too old for hosts with secrets.
  std::optional<std::string> WhyHostsAreLeftOut(const ControllerRow& row) const;
  // Of an export with addresses over RDMA beside others, whose engine is too old for these.
  std::optional<std::string> WhyAddressesAreLeftOut(const ControllerRow& row) const;
  // Of an export with standby addresses, for which an engine stands by that is too old to listen there, or at those over RDMA.
  std::optional<std::string> WhyNoStandbyPath(const ControllerRow& row) const CLEAT_REQUIRES(holds_state);
  // For an export with a DSCP, whose engine is too old for one.
  std::optional<std::string> WhyNotMarked(const ControllerRow& row) const;

 private:
  // What of its subsystem's paths is missing, or not as asked for, as the engine is too old.
  void AddPathNotes(const AttachmentRow& row, std::string& message) const CLEAT_REQUIRES(holds_state);
  void AddPathNotes(const DiskEntry& entry, std::string& message) const CLEAT_REQUIRES(holds_state);
  // What of its Ceph cluster the attachment, or the disk, waits for; nothing when it does not wait, or for something else.
  std::optional<std::string> WhyHeldUp(const AttachmentEntry& entry) const CLEAT_REQUIRES(holds_state);
  std::optional<std::string> WhyHeldUp(const DiskEntry& entry) const CLEAT_REQUIRES(holds_state);
  std::optional<std::string> WhyHeldUp(const ClusterEntry& cluster, const std::string& controller) const
      CLEAT_REQUIRES(holds_state);
  // The disk's cluster, if something is wrong with it.
  const ClusterEntry* FindFaulty(const v1::DiskSpec& disk) const CLEAT_REQUIRES(holds_state);
  void ShowStatus(const ClusterEntry& entry, v1::ClusterStatus& status) const CLEAT_REQUIRES(holds_state);
  void ShowStatus(const PoolEntry& entry, v1::PoolStatus& status) const CLEAT_REQUIRES(holds_state);
  // The engine of that name, if it is known not to answer; null otherwise.
  const EngineEntry* FindNotAnswering(const std::string& engine) const CLEAT_REQUIRES(holds_state);

  const Tables& tables_;
  const EngineRoles& roles_;
  const Propagation& propagation_;
  const PathPolicy* const& paths_;
  const uint64_t store_number_;
};

}  // namespace cleat::control
