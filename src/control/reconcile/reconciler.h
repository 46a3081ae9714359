// SPDX-License-Identifier: Apache-2.0
// Brings what is to what should be. cleatd owns what should be (HostState); each engine owns what is, and says so at its hello (the
// inventory) and in status events. The Reconciler compares the two, and asks the engine for the difference, never for a blind replay:
// an engine that serves on while cleatd restarts is not asked for anything.
//
// Levels drive the Reconciler, not events: whatever happens - a changed intent, a reply, an event, a lost connection - the things
// concerned are reconciled anew: a pure function plans (PlanSteps, PlanGroup, PlanTaking...), and the class of that kind executes
// every step that can be done. One request at a time a target, and none beside one for the whole controller; different controllers at
// once. What failed is tried again with back-off, and its status says why.
//
// The Reconciler itself owns one class for each kind and gives them the events. Kinds that concern one another know the narrow interfaces
// Reconcile and MoveEvents, which it implements, or, further down in the order of its members, one another.
//
// cleatd owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "control/link/engine_link.h"
#include "control/observe/counters.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/controller_requests.h"
#include "control/reconcile/context/reconcile.h"
#include "control/reconcile/context/status_reporter.h"
#include "control/reconcile/controllers/attachment_requests.h"
#include "control/reconcile/controllers/controller_reconciler.h"
#include "control/reconcile/controllers/unclaimed_controllers.h"
#include "control/reconcile/discovery/discovery_requests.h"
#include "control/reconcile/disks/limit_reconciler.h"
#include "control/reconcile/disks/memory_reconciler.h"
#include "control/reconcile/disks/size_reconciler.h"
#include "control/reconcile/engines/connected_engines.h"
#include "control/reconcile/engines/engine_requests.h"
#include "control/reconcile/engines/pending_requests.h"
#include "control/reconcile/health/heartbeat_monitor.h"
#include "control/reconcile/moves/move_coordinator.h"
#include "control/reconcile/moves/take_over_coordinator.h"
#include "control/reconcile/moves/upgrade_coordinator.h"
#include "control/reconcile/moves/upgrade_recovery.h"
#include "control/reconcile/settings/cluster_reconciler.h"
#include "control/reconcile/settings/group_reconciler.h"
#include "control/reconcile/settings/path_list_reconciler.h"
#include "control/state/disks/memfd_keeper.h"
#include "control/state/host_state.h"

namespace cleat::control {

class Reconciler final : public EngineLink::Events, private Reconcile, private MoveEvents {
 public:
  // All of them outlive it. Without `counters`, those of a controller begin anew when it was moved.
  Reconciler(HostState& state, MemfdKeeper& memory, EngineLink& link, const Clock& clock,
             const ReconcilerOptions& options, Counters* counters = nullptr);

  void OnEngine(const EngineInfo& info, engine::v1::Inventory inventory) override;
  void OnStatus(PeerId peer, const engine::v1::StatusEvent& event) override;
  void OnGone(PeerId peer, const std::string& why) override;
  void OnDead(const std::string& engine, uint64_t incarnation) override;
  void OnWake() override;
  uint64_t OnTimer(uint64_t read_until_ns) override;

 private:
  // Reconcile
  void Controller(const std::string& controller) override;
  void ControllerOn(EngineView& engine, const std::string& controller) override;
  void Disk(const std::string& disk) override;
  void DiskMemory(const std::string& disk) override;
  void DiskSize(const std::string& disk) override;
  void DiskLimits(const std::string& disk) override;
  void GroupOn(EngineView& engine, const std::string& group) override;
  void ClusterOn(EngineView& engine, const std::string& cluster) override;
  void ClustersOn(EngineView& engine) override;
  void AnsweringOf(EngineView& engine) override;
  // MoveEvents
  void OnPrepared(const std::string& controller) override;
  void OnMoved(const std::string& controller, const Move& move, const Status& status) override;
  void OnTakenOver(const std::string& controller, const Move& move, bool taken) override;

  void OnForeignEngine(const EngineInfo& info);
  // The engine is not waited for any more, nor is its end.
  void OnForgotten(const std::string& engine, uint64_t incarnation);
  // The process of that name that was connected last has ended.
  void OnLastDead(const std::string& engine);
  void ReconcileDisksOf(const EngineView& engine, const engine::v1::Inventory& inventory);
  void ReconcileControllersOf(EngineView& engine);
  void ReconcileAllMemory();
  // Begins the take-overs from all engines that have died and not come back.
  void BeginTakeOvers();
  // The controllers that are the engine's by their rows.
  void ReconcileControllersOn(const std::string& engine);
  void OnPathLists(EngineView& engine, const std::string& text);
  void ReconcileDue();

  HostState& state_;
  EngineLink& link_;
  const ReconcilerOptions options_;
  ConnectedEngines engines_;
  RetryQueue retries_;
  EngineRequests requests_;
  ReconcileContext context_;
  StatusReporter reporter_;
  HeartbeatMonitor heartbeats_;
  PathListReconciler path_lists_;
  DiscoveryRequests discoveries_;
  UnclaimedControllers unclaimed_;
  UpgradeRecovery recovery_;
  ControllerRequests controller_requests_;
  AttachmentRequests attachments_;
  MoveCoordinator moves_;
  UpgradeCoordinator upgrades_;
  TakeOverCoordinator take_overs_;
  ControllerReconciler controllers_;
  GroupReconciler groups_;
  ClusterReconciler clusters_;
  LimitReconciler limits_;
  SizeReconciler sizes_;
  MemoryReconciler memories_;
};

}  // namespace cleat::control
