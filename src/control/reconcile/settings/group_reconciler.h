// SPDX-License-Identifier: Apache-2.0
// Groups: an engine has the groups of its controllers, with their present limits. A group is put before its first controller and dropped
// after the last one.
//
//   the engine was not given the memory in this connection   ShareGroups, once there is any group
//   the engine needs it and has none, or old limits          PutGroup, unless another group still has the slot
//   the engine needs it no more, and no controller is left   DropGroup
//
// Each cleatd makes the memory in which groups count anew. A group's count of what it has used starts again then, which gives it nothing,
// for a count starts with nothing saved up. The reconciler owns the GroupReconciler. On the link's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "control/model/model.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/reconcile.h"

namespace cleat::control {

enum class GroupStep : uint8_t { kNothing, kShareMemory, kDrop, kPut, kReport };
// Decides what to do about a group in an engine. Without a row, the engine is not to have the group.
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
