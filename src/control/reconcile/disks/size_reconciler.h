// SPDX-License-Identifier: Apache-2.0
// Sizes of disks: each engine that knows a smaller size of a disk that grew - for a guest, or of memory that it holds - is told. Reconciled
// whenever a disk, an attachment or an engine changes; one request at a time for an engine and a disk. The reconciler owns it. On the
// link's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "control/model/model.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/reconcile.h"
#include "control/reconcile/context/status_reporter.h"
#include "control/reconcile/moves/move_coordinator.h"

namespace cleat::control {

// Decides whether the engine is told the disk's size now. `controllers` are those that have the disk.
bool PlanSize(const EngineView& engine, const std::vector<std::string>& controllers, const DiskRow& row,
              const DiskIdentity& identity, uint64_t now_ns);

class SizeReconciler {
 public:
  SizeReconciler(const ReconcileContext& context, const MoveCoordinator& moves, StatusReporter& reporter,
                 Reconcile& reconcile)
      : context_(context), moves_(moves), reporter_(reporter), reconcile_(reconcile) {}

  void ReconcileDisk(const std::string& disk);

 private:
  void AskResize(EngineView& engine, const DiskRow& row);
  void OnAnswer(EngineView& engine, const std::string& disk, uint64_t size_bytes,
                const EngineRequests::Outcome& outcome);

  const ReconcileContext& context_;
  const MoveCoordinator& moves_;
  StatusReporter& reporter_;
  Reconcile& reconcile_;
};

}  // namespace cleat::control
