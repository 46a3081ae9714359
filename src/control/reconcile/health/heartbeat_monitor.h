// SPDX-License-Identifier: Apache-2.0
// Asks every engine whether it goes on, and reports those that do not: NOT_ANSWERING, within a second. Where the operator has set a limit and
// a standby is there, an engine that stays so is killed; the standby takes its controllers as those of any engine that died. One that
// SIGKILL does not end keeps its disks, and the standby's status says so.
//
// The reconciler owns the HeartbeatMonitor. On the link's thread.
#pragma once

#include <cstdint>
#include <string>

#include "control/link/engine_link.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/reconcile.h"
#include "control/reconcile/context/status_reporter.h"

namespace cleat::control {

class HeartbeatMonitor {
 public:
  // All of them outlive it.
  HeartbeatMonitor(const ReconcileContext& context, EngineLink& link, StatusReporter& reporter,
                   Reconcile& reconcile)
      : context_(context), link_(link), reporter_(reporter), reconcile_(reconcile) {}

  // All that came before `read_until_ns` was read. Returns when to call it again at the latest.
  uint64_t OnTimer(uint64_t read_until_ns);
  // The connection of an engine of that name has ended.
  void OnGone(const std::string& engine);

 private:
  // Adds the time since the last call to cleatd's own, as far as cleatd ran.
  void CountOwnTime(uint64_t read_until_ns);
  void Look(EngineView& engine);
  void Ask(EngineView& engine);
  void Report(EngineView& engine, const std::string& problem);
  void KillIfLate(EngineView& engine);
  void ReportNotEnded(EngineView& engine);
  // The engine that stands by for this one and answers; null when there is none.
  EngineView* StandbyOf(const EngineView& engine);

  const ReconcileContext& context_;
  EngineLink& link_;
  StatusReporter& reporter_;
  Reconcile& reconcile_;
  uint64_t own_ns_ = 0;
  uint64_t counted_until_ns_ = 0;
  uint64_t planned_ns_ = 0;  // when it wanted to be called
};

}  // namespace cleat::control
