// SPDX-License-Identifier: Apache-2.0
// Clusters: an engine knows the clusters whose disks are attached there, or are to be, with their present spec. A cluster is put before
// its first disk, and dropped when it was deleted, which takes that no disk of it is left.
//
//   the engine needs it and has none, or has an older spec   PutCluster
//   the engine has it, and it was deleted                    DropCluster
//
// The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "control/model/model.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/controller_requests.h"
#include "control/reconcile/context/reconcile.h"

namespace cleat::control {

enum class ClusterStep : uint8_t { kNothing, kDrop, kPut, kReport };
// Decides what to do about a cluster in an engine. `used`: a disk of the cluster is attached there, or is to be. No row: it was deleted.
ClusterStep PlanCluster(const EngineView& engine, const std::string& cluster,
                        const std::optional<ClusterRow>& row, bool used, uint64_t now_ns);

class ClusterReconciler {
 public:
  ClusterReconciler(const ReconcileContext& context, ControllerRequests& controllers, Reconcile& reconcile)
      : context_(context), controllers_(controllers), reconcile_(reconcile) {}

  void ReconcileEverywhere(const std::string& cluster);
  void ReconcileOn(EngineView& engine, const std::string& cluster);
  void ReconcileAllOn(EngineView& engine);

 private:
  void AskPut(EngineView& engine, const ClusterRow& row);
  void AskDrop(EngineView& engine, const std::string& cluster);
  void Ask(EngineView& engine, const std::string& cluster, engine::v1::Envelope envelope,
           std::function<void(EngineView&)> done);
  void OnFailed(EngineView& engine, const std::string& cluster, const EngineRequests::Outcome& outcome);
  // Fails the attachments that wait for the cluster.
  void FailWaiting(EngineView& engine, const std::string& cluster, const Status& why);

  const ReconcileContext& context_;
  ControllerRequests& controllers_;
  Reconcile& reconcile_;
};

}  // namespace cleat::control
