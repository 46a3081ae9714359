// SPDX-License-Identifier: Apache-2.0
#include "control/state/settings/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/model/page.h"
#include "control/state/settings/adopt_report.h"
#include "control/state/writes/update_mask.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

// Among the names of a new group's write: the groups that are there are counted, and a slot is taken.
constexpr char kSlots[] = "slots of groups";

}  // namespace

Status Groups::Fill(std::vector<GroupRow> rows) {
  std::set<uint32_t> slots;
  for (GroupRow& row : rows) {
    if (!slots.insert(row.slot).second) {
      return Refuse(v1::REASON_STORE_DAMAGED,
                    fmt::format("store: {} has the slot of another group", GroupName(row.id)));
    }
    last_slot_ = std::max(last_slot_, row.slot);
    const std::string id = row.id;
    GroupEntry entry{
        .row = std::move(row), .controllers = {}, .engines = {}, .revision = core_.publisher.newest() + 1};
    core_.tables.groups.Insert(id, std::move(entry));
  }
  return Ok{};
}

// The next one that is free, so that the slot of a group that was deleted is used as late as can be: an engine that is
// about to drop that group may still count in it.
Result<uint32_t> Groups::FreeSlot(const std::string& name) {
  if (core_.tables.groups.size() >= kGroupsMax) {
    return RefuseFor(name, v1::REASON_TOO_MANY_RESOURCES,
                     fmt::format("{}: there are {} groups, which is the most: delete one", name, kGroupsMax),
                     {{"limit", std::to_string(kGroupsMax)}});
  }
  std::set<uint32_t> taken;
  for (const auto& [id, entry] : core_.tables.groups) taken.insert(entry.row.slot);
  uint32_t slot = (last_slot_ + 1) % kGroupsMax;
  while (taken.contains(slot)) slot = (slot + 1) % kGroupsMax;
  return slot;
}

Result<v1::Group> Groups::Create(const v1::CreateGroupRequest& request) {
  const std::string& id = request.group_id();
  CLEAT_TRY(CheckId("group_id", id));
  const std::string name = GroupName(id);
  CLEAT_ASSIGN(auto spec, CompleteGroupSpec(id, request.group().spec()));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.group().labels()));

  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name, kSlots}};
  core_.writes.Await(names);
  if (const GroupEntry* existing = core_.tables.groups.Find(id)) {
    if (!SameSpec(existing->row.spec, spec)) return AlreadyExists(name, existing->row.spec, spec);
    if (existing->row.labels != labels) return AlreadyExistsWithOtherLabels(name);
    return core_.view.Show(*existing);
  }
  CLEAT_ASSIGN(auto slot, FreeSlot(name));
  GroupEntry entry;
  entry.row.id = id;
  entry.row.spec = std::move(spec);
  entry.row.labels = std::move(labels);
  entry.row.revision = entry.row.intent_revision = entry.row.limits_revision = core_.publisher.NextRevision();
  entry.row.slot = slot;
  CLEAT_TRY(core_.writes.Write(names, {entry.row}));
  last_slot_ = slot;
  GroupEntry& kept = core_.tables.groups.Insert(id, std::move(entry));
  core_.publisher.Publish(kept);
  spdlog::info("{}: created", name);
  return core_.view.Show(kept);
}

Result<v1::Group> Groups::Get(const v1::GetGroupRequest& request) {
  CLEAT_ASSIGN(auto id, ParseGroupName(request.name()));
  const StateLock lock(core_.mutex);
  const GroupEntry* entry = core_.tables.groups.Find(id);
  if (entry == nullptr) return NotFound(request.name());
  return core_.view.Show(*entry);
}

Result<v1::ListGroupsResponse> Groups::List(const v1::ListGroupsRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  v1::ListGroupsResponse response;
  const StateLock lock(core_.mutex);
  for (auto it = core_.tables.groups.After(request.page_token()); it != core_.tables.groups.end(); ++it) {
    v1::Group group = core_.view.Show(it->second);
    if (!page.Take(group.ByteSizeLong())) {
      response.set_next_page_token(std::prev(it)->first);
      break;
    }
    *response.add_groups() = std::move(group);
  }
  return response;
}

Result<v1::Group> Groups::Update(const v1::UpdateGroupRequest& request) {
  const std::string& name = request.group().name();
  CLEAT_ASSIGN(auto id, ParseGroupName(name));
  const auto& mask = request.update_mask();
  CLEAT_TRY(CheckMask(name, mask, {kLimitsPath, kLabelsPath}));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.group().labels()));
  CLEAT_ASSIGN(auto spec, CompleteGroupSpec(id, request.group().spec()));

  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name}};
  core_.writes.Await(names);
  GroupEntry* entry = core_.tables.groups.Find(id);
  if (entry == nullptr) return NotFound(name);
  CLEAT_TRY(CheckEtag(name, request.group().etag(), entry->row.intent_revision));
  const bool limited = Names(mask, kLimitsPath) && !SameSpec(spec.limits(), entry->row.spec.limits());
  const bool labelled = Names(mask, kLabelsPath) && labels != entry->row.labels;
  if (!limited && !labelled) return core_.view.Show(*entry);
  GroupRow row = entry->row;
  row.intent_revision = core_.publisher.NextRevision();
  if (limited) SetLimits(spec, row);
  if (labelled) row.labels = std::move(labels);
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  core_.publisher.Publish(*entry);
  if (limited) {
    core_.publisher.GroupChanged(id);
    spdlog::info("{}: limits changed", name);
  }
  return core_.view.Show(*entry);
}

Result<v1::DeleteGroupResponse> Groups::Delete(const v1::DeleteGroupRequest& request) {
  CLEAT_ASSIGN(auto id, ParseGroupName(request.name()));
  const std::string& name = request.name();
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {name}};
  core_.writes.Await(names);
  const GroupEntry* entry = core_.tables.groups.Find(id);
  if (entry == nullptr) return v1::DeleteGroupResponse();
  CLEAT_TRY(CheckEtag(name, request.etag(), entry->row.intent_revision));
  for (const std::string& controller : entry->controllers) {
    if (core_.tables.controllers.At(controller).row.deleting) continue;
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
  CLEAT_TRY(core_.writes.Write(names, {EraseGroupRow{id}}));
  core_.tables.groups.Erase(id);
  core_.publisher.PublishGone(name);
  core_.publisher.GroupChanged(id);
  spdlog::info("{}: deleted", name);
  return v1::DeleteGroupResponse();
}

// ---- For controllers

void Groups::Join(const ControllerRow& row) {
  if (row.spec.group().empty()) return;
  GroupEntry& group = *core_.tables.groups.Find(*ParseGroupName(row.spec.group()));
  group.controllers.insert(row.id);
  core_.publisher.Publish(group);
  core_.publisher.GroupChanged(group.row.id);
}

void Groups::Leave(const ControllerRow& row) {
  if (row.spec.group().empty()) return;
  GroupEntry& group = *core_.tables.groups.Find(*ParseGroupName(row.spec.group()));
  group.controllers.erase(row.id);
  core_.publisher.Publish(group);
  core_.publisher.GroupChanged(group.row.id);
}

void Groups::MarkGroupOf(const ControllerRow& row) {
  if (!row.spec.group().empty()) core_.publisher.GroupChanged(*ParseGroupName(row.spec.group()));
}

// ---- The reconciler's side

std::optional<GroupRow> Groups::RowOn(const std::string& engine, const std::string& group_id) {
  const StateLock lock(core_.mutex);
  const GroupEntry* entry = core_.tables.groups.Find(group_id);
  if (entry == nullptr) return std::nullopt;
  const bool used = std::any_of(entry->controllers.begin(), entry->controllers.end(),
                                [&](const auto& id) CLEAT_REQUIRES(holds_state) {
                                  const ControllerEntry& controller = core_.tables.controllers.At(id);
                                  return !controller.row.deleting && core_.roles.IsFor(controller, engine);
                                });
  return used ? std::optional(entry->row) : std::nullopt;
}

std::vector<std::string> Groups::On(const std::string& engine) {
  const StateLock lock(core_.mutex);
  std::set<std::string> ids;
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (entry.row.spec.group().empty() || entry.row.deleting || !core_.roles.IsFor(entry, engine)) continue;
    ids.insert(*ParseGroupName(entry.row.spec.group()));
  }
  return {ids.begin(), ids.end()};
}

std::vector<std::string> Groups::Controllers(const std::string& group_id) {
  const StateLock lock(core_.mutex);
  const GroupEntry* entry = core_.tables.groups.Find(group_id);
  if (entry == nullptr) return {};
  return {entry->controllers.begin(), entry->controllers.end()};
}

void Groups::Report(const std::string& engine, const std::string& id,
                    const std::optional<GroupReport>& report) {
  const StateLock lock(core_.mutex);
  GroupEntry* const entry = core_.tables.groups.Find(id);
  if (entry != nullptr && AdoptReport(entry->engines, engine, report)) core_.publisher.Publish(*entry);
}

}  // namespace cleat::control
