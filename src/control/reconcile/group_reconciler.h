// SPDX-License-Identifier: Apache-2.0
// Groups: an engine has those that a controller of it is in, with the present limits. A group comes before its first
// controller and goes after the last one.
//
//   no memory given in this connection     ShareGroups, once there is any group
//   wanted, not there or with old limits   PutGroup, unless its slot is another's that is to go first
//   there, not wanted, no controller left  DropGroup
//
// The memory in which groups count is made anew by each cleatd: a group's count of what it has used starts again then, which gives it
// nothing, for nothing is saved up at the start. The reconciler owns this one. On the link's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "control/model.h"
#include "control/reconcile/context.h"
#include "control/reconcile/reconcile.h"

namespace cleat::control {

enum class GroupStep : uint8_t { kNothing, kShareMemory, kDrop, kPut, kReport };
// What to do about a group in an engine. Without a row, the engine is not to have it.
GroupStep PlanGroup(const EngineView& engine, const std::string& group, const std::optional<GroupRow>& row,
                    uint64_t now_ns);

class GroupReconciler {
 public:
  GroupReconciler(const ReconcileContext& context, Reconcile& reconcile)
      : context_(context), reconcile_(reconcile) {}

  void ReconcileEverywhere(const std::string& group);
  void ReconcileOn(EngineView& engine, const std::string& group);
  void ReconcileAllOn(EngineView& engine);

 private:
  void AskShareMemory(EngineView& engine);
  void OnMemoryShared(EngineView& engine, const Status& status);
  void AskPut(EngineView& engine, const GroupRow& row);
  void AskDrop(EngineView& engine, const std::string& group);
  void Ask(EngineView& engine, const std::string& group, engine::v1::Envelope envelope,
           std::function<void(EngineView&)> done);

  const ReconcileContext& context_;
  Reconcile& reconcile_;
  UniqueFd memory_;  // made when the first group needs it
};

}  // namespace cleat::control
