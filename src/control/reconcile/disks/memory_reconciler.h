// SPDX-License-Identifier: Apache-2.0
// Memory that is kept for disks: which engines hold it, handing it out (AttachmentRequests), getting it back.
//
//   reached_engine  durable, before the first Attach: from then on a guest may have written to it
//   held_by         durable: the engines that hold it, as they confirmed and as their inventories say
//
//   cleatd has it                              READY
//   else a connected engine has it             fetched back, then READY
//   else an engine that isn't connected may    PENDING
//   else                                       LOST
// (Memory that never reached an engine is zero by definition, and made anew when cleatd starts.)
//
// So with the log of doubt of a namespace of an NVMe-oF subsystem (docs/nvmeof.md, rule 7), but that its disk is never LOST: a new log is
// made then, which says that the one before is gone, and the engine takes the whole disk for being in doubt. cleatd's is exchanged for the
// log of an engine that has one.
//
// The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "control/model/model.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/reconcile.h"
#include "control/reconcile/moves/upgrade_coordinator.h"
#include "control/state/disks/memfd_keeper.h"

namespace cleat::control {

struct MemoryPlan {
  enum class Step : uint8_t {
    kNothing,
    kFetch,        // cleatd is to have it
    kDrop,         // the disk is gone
    kDropIfSpare,  // unless the engine needs it: another one may, and has it
  };
  bool record = false;  // first: whether the engine holds it
  Step step = Step::kNothing;
};
// Decides what to do about a disk's memory in an engine. Without a row the disk is gone; `identity` is the row's. `here`: cleatd has the
// memory. `restored`: the store was restored, so that it may not know that the disk has content.
MemoryPlan PlanMemory(const EngineView& engine, const std::string& disk, const std::optional<DiskRow>& row,
                      const DiskIdentity& identity, bool here, bool restored, uint64_t now_ns);

class MemoryReconciler {
 public:
  MemoryReconciler(const ReconcileContext& context, MemfdKeeper& memory, const UpgradeCoordinator& upgrades,
                   Reconcile& reconcile)
      : context_(context), memory_(memory), upgrades_(upgrades), reconcile_(reconcile) {}

  // The store is written here, which takes milliseconds. A guest between two engines would wait for that as well, so that the disk is put
  // off while there is such a guest.
  void ReconcileDisk(const std::string& disk);
  // Reconciles the disks that were put off. They do not wait for ever, since moves are limited in time.
  void ReconcilePutOff();

 private:
  void ReconcileOn(EngineView& engine, const std::string& disk, const std::optional<DiskRow>& row);
  bool HoldsUnrecorded(const EngineView& engine, const DiskRow& row, const DiskIdentity& identity) const;
  void ForgetDead(const std::string& disk);
  void Report(const DiskRow& row);
  void ReplaceLog(const DiskRow& row);
  bool IsSpare(const EngineView& engine, const std::string& disk);
  void AskDrop(EngineView& engine, const std::string& disk);
  void AskFetch(EngineView& engine, const DiskRow& row);
  void Ask(EngineView& engine, const std::string& disk, engine::v1::Envelope envelope,
           std::function<Status(EngineView&, const Status&, UniqueFd)> done);

  const ReconcileContext& context_;
  MemfdKeeper& memory_;
  const UpgradeCoordinator& upgrades_;
  Reconcile& reconcile_;
  std::set<std::string> put_off_;  // until no guest waits for a move
};

}  // namespace cleat::control
