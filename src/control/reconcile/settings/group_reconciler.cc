// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/settings/group_reconciler.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/group_memory.h"
#include "base/log.h"
#include "base/log_request.h"
#include "control/link/translate.h"
#include "control/model/names.h"

namespace cleat::control {
namespace {

uint64_t LimitsKnown(const EngineView& engine, const std::string& group) {
  const auto known = engine.groups.find(group);
  return known == engine.groups.end() ? 0 : known->second.limits().revision();
}

// Whether another group has the slot in that engine, and has to be dropped first.
bool IsSlotTaken(const EngineView& engine, const GroupRow& row) {
  return std::any_of(engine.groups.begin(), engine.groups.end(), [&](const auto& other) {
    return other.first != row.id && other.second.slot() == row.slot;
  });
}

}  // namespace

GroupStep PlanGroup(const EngineView& engine, const std::string& group, const std::optional<GroupRow>& row,
                    uint64_t now_ns) {
  if (engine.foreign || engine.group_requests.IsBusy(GroupId{group})) return GroupStep::kNothing;
  const auto known = engine.groups.find(group);
  const bool there = known != engine.groups.end();
  if (!row && !there) return GroupStep::kNothing;
  if (!engine.has_group_memory) {
    return engine.group_memory_request.Ready(now_ns) ? GroupStep::kShareMemory : GroupStep::kNothing;
  }
  if (!engine.group_requests.Ready(GroupId{group}, now_ns)) return GroupStep::kNothing;
  // A group that was deleted and made anew has another slot.
  if (there && (!row || known->second.slot() != row->slot)) {
    return HasControllersOf(engine, group) ? GroupStep::kNothing : GroupStep::kDrop;
  }
  if (there && known->second.limits().revision() >= row->limits_revision) return GroupStep::kReport;
  return IsSlotTaken(engine, *row) ? GroupStep::kNothing : GroupStep::kPut;
}

void GroupReconciler::ReconcileEverywhere(const std::string& group) {
  for (auto& [peer, engine] : context_.engines.all()) ReconcileOn(engine, group);
}

void GroupReconciler::ReconcileAllOn(EngineView& engine) {
  std::set<std::string> groups;
  for (const auto& [group, known] : engine.groups) groups.insert(group);
  for (std::string& group : context_.state.groups().On(engine.info.id)) groups.insert(std::move(group));
  for (const std::string& group : groups) ReconcileOn(engine, group);
}

void GroupReconciler::ReconcileOn(EngineView& engine, const std::string& group) {
  const log::RequestScope request(context_.LastRequest(GroupName(group)));
  const std::optional<GroupRow> row = context_.state.groups().RowOn(engine.info.id, group);
  switch (PlanGroup(engine, group, row, context_.now_ns())) {
    case GroupStep::kNothing:
      return;
    case GroupStep::kShareMemory:
      return AskShareMemory(engine);
    case GroupStep::kDrop:
      return AskDrop(engine, group);
    case GroupStep::kPut:
      return AskPut(engine, *row);
    case GroupStep::kReport:
      return context_.state.groups().Report(engine.info.id, group,
                                            GroupReport{.limits_revision = LimitsKnown(engine, group)});
  }
}

void GroupReconciler::AskShareMemory(EngineView& engine) {
  if (!memory_.valid()) {
    auto memory = MakeGroupMemory();
    if (memory.ok()) memory_ = std::move(*memory);
    if (!memory.ok())
      spdlog::error(
          "groups: no memory for their counts: {}; controllers with a group wait: see to this host's memory",
          memory.error().message);
  }
  engine::v1::Envelope envelope;
  envelope.mutable_share_groups();
  engine.group_memory_request.Begin();
  context_.requests.Ask(engine, std::move(envelope), FdsOf(memory_.Duplicate()),
                        [this](EngineView& answered, const engine::v1::Reply& reply, const UniqueFd&) {
                          OnMemoryShared(answered, FromEngine(reply));
                        });
}

void GroupReconciler::OnMemoryShared(EngineView& engine, const Status& status) {
  if (status.ok()) {
    engine.group_memory_request.Done();
    engine.has_group_memory = true;
    return ReconcileAllOn(engine);
  }
  // All groups that the engine has when it is tried again: a group of today may be unused by then.
  context_.requests.Fail(engine.group_memory_request, GroupsOfEngine{engine.info.id});
  spdlog::warn("{}: memory of groups not shared with it: {}; tried again", EngineName(engine.info.id),
               status.error().message);
  for (const std::string& id : context_.state.groups().On(engine.info.id))
    context_.state.groups().Report(engine.info.id, id, GroupReport{.message = status.error().message});
}

void GroupReconciler::AskPut(EngineView& engine, const GroupRow& row) {
  engine::v1::Envelope envelope;
  *envelope.mutable_put_group()->mutable_group() = ToEngine(row);
  Ask(engine, row.id, std::move(envelope), [this, id = row.id, group = ToEngine(row)](EngineView& answered) {
    answered.groups[id] = group;
    context_.state.groups().Report(answered.info.id, id,
                                   GroupReport{.limits_revision = group.limits().revision()});
    for (const std::string& controller : context_.state.groups().Controllers(id))
      reconcile_.ControllerOn(answered, controller);
  });
}

void GroupReconciler::AskDrop(EngineView& engine, const std::string& group) {
  engine::v1::Envelope envelope;
  envelope.mutable_drop_group()->set_name(GroupName(group));
  Ask(engine, group, std::move(envelope), [this, group](EngineView& answered) {
    answered.groups.erase(group);
    context_.state.groups().Report(answered.info.id, group, std::nullopt);
    ReconcileAllOn(answered);  // its slot is free for another one
  });
}

void GroupReconciler::Ask(EngineView& engine, const std::string& group, engine::v1::Envelope envelope,
                          std::function<void(EngineView&)> done) {
  context_.requests.AskOnce<GroupId>(
      engine, &EngineView::group_requests, GroupId{group}, std::move(envelope),
      [this, group, done = std::move(done)](EngineView& answered, const EngineRequests::Outcome& outcome) {
        if (outcome.status.ok()) {
          done(answered);
        } else {
          const std::string& why = outcome.status.error().message;
          spdlog::warn("{}: limits not applied on {}: {}; tried again in {:.3g} s", GroupName(group),
                       EngineName(answered.info.id), why, outcome.retry_s);
          context_.state.groups().Report(
              answered.info.id, group,
              GroupReport{.limits_revision = LimitsKnown(answered, group),
                          .message = fmt::format("{} (tried again in {:.3g} s)", why, outcome.retry_s)});
        }
        ReconcileOn(answered, group);
      });
}

}  // namespace cleat::control
