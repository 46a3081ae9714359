// SPDX-License-Identifier: Apache-2.0
// Groups of controllers. One is gone from the store as soon as no controller is in it; engines that still have it are told
// by the reconciler to drop it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/page.h"
#include "control/refusals.h"
#include "control/spec_rules.h"

namespace cleat::control {

Status HostState::FillGroups(std::vector<GroupRow> rows) {
  std::set<uint32_t> slots;
  for (GroupRow& row : rows) {
    if (!slots.insert(row.slot).second) {
      return Refuse(v1::REASON_STORE_DAMAGED,
                    fmt::format("store: {} has the slot of another group", GroupName(row.id)));
    }
    last_slot_ = std::max(last_slot_, row.slot);
    const std::string id = row.id;
    GroupEntry entry{.row = std::move(row), .controllers = {}, .engines = {}, .revision = revision_ + 1};
    groups_.emplace(id, std::move(entry));
  }
  return Ok{};
}

// The next one that is free, so that the slot of a group that was deleted is used as late as can be: an engine that is
// about to drop that group may still count in it.
Result<uint32_t> HostState::FreeSlot(const std::string& name) {
  if (groups_.size() >= kGroupsMax) {
    return RefuseFor(name, v1::REASON_TOO_MANY_RESOURCES,
                     fmt::format("{}: there are {} groups, which is the most: delete one", name, kGroupsMax),
                     {{"limit", std::to_string(kGroupsMax)}});
  }
  std::set<uint32_t> taken;
  for (const auto& [id, entry] : groups_) taken.insert(entry.row.slot);
  uint32_t slot = (last_slot_ + 1) % kGroupsMax;
  while (taken.contains(slot)) slot = (slot + 1) % kGroupsMax;
  return slot;
}

Result<v1::Group> HostState::CreateGroup(const v1::CreateGroupRequest& request) {
  const std::string& id = request.group_id();
  CLEAT_TRY(CheckId("group_id", id));
  const std::string name = GroupName(id);
  CLEAT_ASSIGN(auto spec, CompleteGroupSpec(id, request.group().spec()));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.group().labels()));

  const MutexLock lock(mutex_);
  if (const GroupEntry* existing = FindGroup(id)) {
    if (!SameSpec(existing->row.spec, spec)) return TakenByOther(name, existing->row.spec, spec);
    if (existing->row.labels != labels) return TakenByOtherLabels(name);
    return Show(*existing);
  }
  CLEAT_ASSIGN(auto slot, FreeSlot(name));
  GroupEntry entry;
  entry.row.id = id;
  entry.row.spec = std::move(spec);
  entry.row.labels = std::move(labels);
  entry.row.revision = entry.row.intent_revision = entry.row.limits_revision = NextRevision();
  entry.row.slot = slot;
  CLEAT_TRY(store_.Put(entry.row));
  last_slot_ = slot;
  GroupEntry& kept = groups_.emplace(id, std::move(entry)).first->second;
  Publish(kept);
  spdlog::info("{}: created", name);
  return Show(kept);
}

Result<v1::Group> HostState::GetGroup(const v1::GetGroupRequest& request) {
  CLEAT_ASSIGN(auto id, ParseGroupName(request.name()));
  const MutexLock lock(mutex_);
  const GroupEntry* entry = FindGroup(id);
  if (entry == nullptr) return NotThere(request.name());
  return Show(*entry);
}

Result<v1::ListGroupsResponse> HostState::ListGroups(const v1::ListGroupsRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListGroupsResponse response;
  const MutexLock lock(mutex_);
  for (auto it = groups_.upper_bound(request.page_token()); it != groups_.end(); ++it) {
    v1::Group group = Show(it->second);
    if (!page.Take(group.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_groups() = std::move(group);
  }
  return response;
}

Result<v1::DeleteGroupResponse> HostState::DeleteGroup(const v1::DeleteGroupRequest& request) {
  CLEAT_ASSIGN(auto id, ParseGroupName(request.name()));
  const std::string& name = request.name();
  const MutexLock lock(mutex_);
  GroupEntry* entry = FindGroup(id);
  if (entry == nullptr) return v1::DeleteGroupResponse();
  CLEAT_TRY(CheckEtag(name, request.etag(), entry->row.intent_revision));
  for (const std::string& controller : entry->controllers) {
    if (FindController(controller)->row.deleting) continue;
    return RefuseFor(
        name, v1::REASON_GROUP_IN_USE,
        fmt::format("{} has {} controller(s), {} among them: delete them first (cleatctl controller "
                    "delete {})",
                    name, entry->controllers.size(), ControllerName(controller), controller),
        {{"conflict", ControllerName(controller)}});
  }
  if (!entry->controllers.empty()) {
    const std::string conflict = ControllerName(*entry->controllers.begin());
    return Busy(name, fmt::format("{}: {} is still being removed", name, conflict), conflict);
  }
  CLEAT_TRY(store_.EraseGroup(id));
  groups_.erase(id);
  PublishGone(name);
  GroupChanged(id);
  spdlog::info("{}: deleted", name);
  return v1::DeleteGroupResponse();
}

void HostState::JoinGroup(const ControllerRow& row) {
  if (row.spec.group().empty()) return;
  GroupEntry& group = *FindGroup(*ParseGroupName(row.spec.group()));
  group.controllers.insert(row.id);
  Publish(group);
  GroupChanged(group.row.id);
}

void HostState::LeaveGroup(const ControllerRow& row) {
  if (row.spec.group().empty()) return;
  GroupEntry& group = *FindGroup(*ParseGroupName(row.spec.group()));
  group.controllers.erase(row.id);
  Publish(group);
  GroupChanged(group.row.id);
}

std::string HostState::BehindLimits(const GroupEntry& entry) const {
  std::set<std::string> engines;
  for (const std::string& id : entry.controllers) {
    const auto found = controllers_.find(id);
    if (found == controllers_.end() || found->second.row.deleting || found->second.row.engine.empty())
      continue;
    engines.insert(found->second.row.engine);
  }
  std::string behind;
  for (const std::string& engine : engines) {
    const auto report = entry.engines.find(engine);
    const bool there = report != entry.engines.end();
    if (there && report->second.limits_revision >= entry.row.limits_revision) continue;
    behind += fmt::format("{}{} does not know the present limits yet", behind.empty() ? "" : "; ",
                          EngineName(engine));
    if (there && !report->second.message.empty()) behind += fmt::format(" ({})", report->second.message);
  }
  return behind;
}

// ---- The reconciler's side ----

std::optional<GroupRow> HostState::GroupOn(const std::string& engine, const std::string& group_id) {
  const MutexLock lock(mutex_);
  const GroupEntry* entry = FindGroup(group_id);
  if (entry == nullptr) return std::nullopt;
  const bool used = std::any_of(entry->controllers.begin(), entry->controllers.end(),
                                [&](const auto& id) CLEAT_REQUIRES(mutex_) {
                                  const ControllerEntry& controller = *FindController(id);
                                  return !controller.row.deleting && IsFor(controller, engine);
                                });
  return used ? std::optional(entry->row) : std::nullopt;
}

std::vector<std::string> HostState::GroupsOn(const std::string& engine) {
  const MutexLock lock(mutex_);
  std::set<std::string> ids;
  for (const auto& [id, entry] : controllers_) {
    if (entry.row.spec.group().empty() || entry.row.deleting || !IsFor(entry, engine)) continue;
    ids.insert(*ParseGroupName(entry.row.spec.group()));
  }
  return {ids.begin(), ids.end()};
}

std::vector<std::string> HostState::ControllersIn(const std::string& group_id) {
  const MutexLock lock(mutex_);
  const GroupEntry* entry = FindGroup(group_id);
  if (entry == nullptr) return {};
  return {entry->controllers.begin(), entry->controllers.end()};
}

}  // namespace cleat::control
