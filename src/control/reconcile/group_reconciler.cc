// SPDX-License-Identifier: Apache-2.0
// Groups: an engine has those that a controller of it is in, with the present limits. A group comes before its first
// controller and goes after the last one.
//
//   no memory given in this connection     ShareGroups, once there is any group
//   wanted, not there or with old limits   PutGroup, unless its slot is another's that is to go first
//   there, not wanted, no controller left  DropGroup
//
// The memory is made anew by each cleatd: a group's count of what it has used starts again then, which gives it nothing,
// for nothing is saved up at the start.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/group_memory.h"
#include "base/log.h"
#include "control/names.h"
#include "control/reconcile/reconciler.h"
#include "control/translate.h"

namespace cleat::control {

void Reconciler::LookAtGroup(const std::string& group) {
  for (auto& [peer, engine] : engines_) LookAtGroup(engine, group);
}

void Reconciler::LookAtGroups(EngineView& engine) {
  std::set<std::string> groups;
  for (const auto& [group, known] : engine.groups) groups.insert(group);
  for (std::string& group : state_.GroupsOn(engine.info.id)) groups.insert(std::move(group));
  for (const std::string& group : groups) LookAtGroup(engine, group);
}

void Reconciler::LookAtGroup(EngineView& engine, const std::string& group) {
  if (engine.foreign || engine.group_busy.contains(group)) return;
  const std::optional<GroupRow> row = state_.GroupOn(engine.info.id, group);
  const auto known = engine.groups.find(group);
  const bool there = known != engine.groups.end();
  if (!row && !there) return;
  if (engine.group_memory != EngineView::GroupMemory::kGiven) return AskShareGroups(engine);
  if (const auto work = engine.group_work.find(group);
      work != engine.group_work.end() && clock_.NowNs() < work->second.not_before_ns) {
    return;
  }
  // A group that was deleted and made anew has another slot.
  const bool wrong = there && (!row || known->second.slot() != row->slot);
  if (wrong) {
    if (!HasControllersOf(engine, group)) AskDropGroup(engine, group);
    return;
  }
  if (there && known->second.limits().revision() >= row->limits_revision) {
    return state_.ReportGroup(engine.info.id, group,
                              GroupReport{.limits_revision = known->second.limits().revision()});
  }
  const bool taken = std::any_of(engine.groups.begin(), engine.groups.end(), [&](const auto& other) {
    return other.first != group && other.second.slot() == row->slot;
  });
  if (!taken) AskPutGroup(engine, *row);
}

void Reconciler::AskShareGroups(EngineView& engine) {
  if (engine.group_memory == EngineView::GroupMemory::kAsked) return;
  if (clock_.NowNs() < engine.group_memory_work.not_before_ns) return;
  if (!group_memory_.valid()) {
    auto memory = MakeGroupMemory();
    if (memory.ok()) group_memory_ = std::move(*memory);
    if (!memory.ok()) spdlog::error("{}", memory.error().message);
  }
  engine::v1::Envelope envelope;
  envelope.mutable_share_groups();
  engine.group_memory = EngineView::GroupMemory::kAsked;
  const PeerId peer = engine.info.peer;
  link_.Request(peer, std::move(envelope), group_memory_.Duplicate(),
                [this, peer](const engine::v1::Reply& reply, const UniqueFd&) {
                  EngineView& answered = *Find(peer);
                  const Status status = FromEngine(reply);
                  answered.group_memory =
                      status.ok() ? EngineView::GroupMemory::kGiven : EngineView::GroupMemory::kNotGiven;
                  if (!status.ok()) {
                    // Any group of it: all of them wait.
                    const auto groups = state_.GroupsOn(answered.info.id);
                    const std::string group = !groups.empty()           ? groups.front()
                                              : answered.groups.empty() ? std::string()
                                                                        : answered.groups.begin()->first;
                    Fail(answered.group_memory_work, {.controller = {}, .disk = {}, .group = group});
                    spdlog::warn("{}: groups can't be shared with it: {}", EngineName(answered.info.id),
                                 status.error().message);
                    for (const std::string& id : groups) {
                      state_.ReportGroup(answered.info.id, id,
                                         GroupReport{.message = status.error().message});
                    }
                    return;
                  }
                  answered.group_memory_work = {};
                  LookAtGroups(answered);
                });
}

void Reconciler::AskPutGroup(EngineView& engine, const GroupRow& row) {
  engine::v1::Envelope envelope;
  *envelope.mutable_put_group()->mutable_group() = ToEngine(row);
  AskAboutGroup(
      engine, row.id, std::move(envelope), [this, id = row.id, group = ToEngine(row)](EngineView& answered) {
        answered.groups[id] = group;
        state_.ReportGroup(answered.info.id, id, GroupReport{.limits_revision = group.limits().revision()});
        for (const std::string& controller : state_.ControllersIn(id)) LookAt(answered, controller);
      });
}

void Reconciler::AskDropGroup(EngineView& engine, const std::string& group) {
  engine::v1::Envelope envelope;
  envelope.mutable_drop_group()->set_name(GroupName(group));
  AskAboutGroup(engine, group, std::move(envelope), [this, group](EngineView& answered) {
    answered.groups.erase(group);
    state_.ReportGroup(answered.info.id, group, std::nullopt);
    LookAtGroups(answered);  // its slot is free for another one
  });
}

void Reconciler::AskAboutGroup(EngineView& engine, const std::string& group, engine::v1::Envelope envelope,
                               std::function<void(EngineView&)> done) {
  engine.group_busy.insert(group);
  const PeerId peer = engine.info.peer;
  link_.Request(peer, std::move(envelope), {},
                [this, peer, group, done = std::move(done)](const engine::v1::Reply& reply, const UniqueFd&) {
                  EngineView& answered = *Find(peer);
                  answered.group_busy.erase(group);
                  if (const Status status = FromEngine(reply); status.ok()) {
                    answered.group_work.erase(group);
                    done(answered);
                  } else {
                    const double wait_s =
                        Fail(answered.group_work[group], {.controller = {}, .disk = {}, .group = group});
                    const auto known = answered.groups.find(group);
                    const uint64_t limits_revision =
                        known == answered.groups.end() ? 0 : known->second.limits().revision();
                    spdlog::warn("{}: {}: {}", EngineName(answered.info.id), GroupName(group),
                                 status.error().message);
                    state_.ReportGroup(answered.info.id, group,
                                       GroupReport{.limits_revision = limits_revision,
                                                   .message = fmt::format("{} (tried again in {:.3g} s)",
                                                                          status.error().message, wait_s)});
                  }
                  LookAtGroup(answered, group);
                });
}

}  // namespace cleat::control
