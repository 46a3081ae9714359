// SPDX-License-Identifier: Apache-2.0
// Limits of disks: each engine that has a disk attached with older limits is told the present ones. Reconciled whenever a disk, an
// attachment or an engine changes; one request at a time for an engine and a disk. No disk is detached for new limits, and no engine is
// told twice: its inventory and its events say what it knows. What the disk does without space (on_no_space) and with writes in doubt
// (in_doubt) goes along with its limits, here and wherever limits of a disk are told, and takes part in their revision. The reconciler owns
// it. On the link's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "cleat/engine/v1/engine.pb.h"
#include "control/model/model.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/status_reporter.h"

namespace cleat::control {

// Decides whether the engine is told the disk's limits now. `controllers` are those that have the disk.
bool PlanLimits(const EngineView& engine, const std::vector<std::string>& controllers, const DiskRow& row,
                const DiskIdentity& identity, uint64_t now_ns);

class LimitReconciler {
 public:
  LimitReconciler(const ReconcileContext& context, StatusReporter& reporter)
      : context_(context), reporter_(reporter) {}

  void ReconcileDisk(const std::string& disk);

 private:
  void AskLimit(EngineView& engine, const DiskRow& row);
  void OnAnswer(EngineView& engine, const std::string& disk, const engine::v1::Limits& limits,
                const EngineRequests::Outcome& outcome);

  const ReconcileContext& context_;
  StatusReporter& reporter_;
};

}  // namespace cleat::control
