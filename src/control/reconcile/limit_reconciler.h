// SPDX-License-Identifier: Apache-2.0
// Disks with other limits: each engine that has one attached with older limits is told. Looked at whenever a disk, an
// attachment or an engine changes; one request at a time for an engine and a disk. Nothing is detached for it, and nothing
// asked twice: what an engine knows stands in its inventory and its events. The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "cleat/engine/v1/engine.pb.h"
#include "control/model.h"
#include "control/reconcile/context.h"
#include "control/reconcile/status_reporter.h"

namespace cleat::control {

// Whether the engine is to be told the disk's limits now. `controllers` are those that have the disk.
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
