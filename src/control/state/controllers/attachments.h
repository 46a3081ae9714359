// SPDX-License-Identifier: Apache-2.0
// Attachments of disks to controllers. Any thread; what needs the state's mutex says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/own_files.h"
#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/model/model.h"
#include "control/state/controllers/reservation_folder.h"
#include "control/state/disks/disks.h"
#include "control/state/publish/state_core.h"
#include "control/state/settings/cluster_faults.h"
#include "nvme/fabrics/names.h"

namespace cleat::control {

class Attachments {
 public:
  // All outlive it.
  Attachments(StateCore& core, DiskStorages& storages, Disks& disks, ClusterFaults& cluster_faults)
      : core_(core),
        storages_(storages),
        disks_(disks),
        cluster_faults_(cluster_faults),
        reservations_(core.store.folder() + "/" + OwnFiles::kReservationsName) {}

  // From the store, after the disks and the controllers.
  Status Fill(std::vector<AttachmentRow> rows) CLEAT_REQUIRES(holds_state);

  // ---- The API
  Result<v1::Attachment> Attach(const v1::AttachDiskRequest& request);
  Result<v1::DetachDiskResponse> Detach(const v1::DetachDiskRequest& request);
  Result<v1::Attachment> Get(const v1::GetAttachmentRequest& request);
  Result<v1::ListAttachmentsResponse> List(const v1::ListAttachmentsRequest& request);
  // The attachments whose engines say how their paths do.
  std::vector<v1::Attachment> OverPaths() const;
  // Attachments whose requests wait at their storage, as far as the status says (stuck_attachment.h).
  std::vector<v1::StuckAttachment> Stuck() const;

  // ---- The reconciler's reports. Those about things that are gone meanwhile, or aren't that engine's, are ignored.
  void Report(const std::string& engine, const AttachmentKey& key, const AttachmentReport& report);
  // Removes a tombstone, of which no engine has anything; and first, of an export, the namespace's reservation. kUnavailable when the store can't
  // be written: try again.
  Status Forget(const std::string& controller_id, const std::string& id);

 private:
  // What an attachment contends for. Attachments of different disks to different targets are written side by side.
  WriteNames NamesOf(const AttachmentRow& row, const v1::AttachmentSpec& asked,
                     const std::string& disk_id) const CLEAT_REQUIRES(holds_state);
  // Awaits them.
  WriteNames AwaitNames(const AttachmentRow& row, const v1::AttachmentSpec& asked, const std::string& disk_id)
      CLEAT_REQUIRES(holds_state);
  // The attachment that is there already; nullptr, and `row` is complete, when it can be made.
  Result<const AttachmentEntry*> CheckNew(AttachmentRow& row, const v1::AttachmentSpec& asked)
      CLEAT_REQUIRES(holds_state);
  Result<uint32_t> FreeTarget(const ControllerEntry& controller, const std::string& name) const
      CLEAT_REQUIRES(holds_state);
  Status CheckTarget(const ControllerEntry& controller, const AttachmentRow& row) const
      CLEAT_REQUIRES(holds_state);
  Status CheckDisk(const std::string& name, const v1::AttachmentSpec& spec) CLEAT_REQUIRES(holds_state);
  bool IsOfSubsystemWithReservations(const v1::DiskSpec& spec) const CLEAT_REQUIRES(holds_state);
  // An attachment that the store has; shows it to everybody.
  AttachmentEntry& Add(AttachmentRow row, const std::string& disk_id) CLEAT_REQUIRES(holds_state);

  // Of the attachment of that name, which may not be there.
  std::optional<nvme::fabrics::Uuid> NamespaceOf(const AttachmentIds& ids) const CLEAT_REQUIRES(holds_state);
  // Blocks on the file system; with the mutex only where no engine has the controller, which is rare.
  void RemoveReservation(const AttachmentIds& ids, const nvme::fabrics::Uuid& namespace_uuid) const;

  // What follows lets go of the mutex meanwhile.
  Status EraseUnplaced(const AttachmentIds& ids, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  Status MakeTombstone(const AttachmentIds& ids, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  Status Erase(const AttachmentIds& ids, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  // Before the blk controller lets go of the disk: its guest has that one under way. Nothing when the controller knows already.
  std::optional<ControllerRow> WithLastDisk(const ControllerRow& controller, const DiskRow& disk) const
      CLEAT_REQUIRES(holds_state);
  // An attachment that goes leaves no row that would tell, after a restore, that its controller was changed since.
  std::optional<ControllerRow> Touched(const ControllerRow& controller) CLEAT_REQUIRES(holds_state);
  void SetController(ControllerRow row) CLEAT_REQUIRES(holds_state);

  AttachmentEntry* FindReported(const std::string& engine, const AttachmentKey& key)
      CLEAT_REQUIRES(holds_state);
  void ReportTo(AttachmentEntry& entry, const AttachmentReport& report) CLEAT_REQUIRES(holds_state);
  // A migration moves the ownership of a disk: the intent follows what engines report, `state` after `before`.
  void AdoptMode(const AttachmentRow& row, v1::AttachmentState before, v1::AttachmentState state)
      CLEAT_REQUIRES(holds_state);
  // Of the attachment of that revision, unless it is being detached.
  void SetMode(const AttachmentIds& ids, uint64_t revision, v1::AttachmentMode mode)
      CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  DiskStorages& storages_;
  Disks& disks_;
  ClusterFaults& cluster_faults_;
  const ReservationFolder reservations_;
};

}  // namespace cleat::control
