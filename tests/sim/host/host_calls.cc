// SPDX-License-Identifier: Apache-2.0
#include "host_calls.h"

#include <fmt/format.h>

#include <utility>

#include "control/model/errors.h"
#include "control/model/names.h"
#include "shown.h"
#include "tests/unit/control/requests.h"

namespace cleat::sim {
namespace {

constexpr uint64_t kDisks = 5;
constexpr uint64_t kControllers = 4;
constexpr uint64_t kGroups = 2;
constexpr uint64_t kIops = 1000;  // limits are multiples

std::string LimitsOf(const std::string& name) {
  return name + " limits";
}
std::string LimitText(const v1::Limits& limits) {
  return std::to_string(limits.iops().per_second());
}
std::string DiskValue(const v1::DiskSpec& spec) {
  return fmt::format("{} of {}", spec.has_memory() ? "memory" : "null",
                     spec.access_mode() == v1::ACCESS_MODE_MANY_READERS ? "many" : "one");
}
std::string ControllerValue(const v1::ControllerSpec& spec) {
  return fmt::format("{} {}", static_cast<int>(spec.type()), spec.group());
}
std::string AttachmentValue(const v1::AttachmentSpec& spec) {
  return fmt::format("{} {}", spec.disk(), spec.read_only());
}

// A disk for many readers is attached to be read alone, any other one is attached once: the first attachment of which that is not so.
std::string WhatMayNotBe(const Intents::Values& found) {
  std::set<std::string> attached;
  for (const auto& [name, value] : found) {
    if (name.find("/attachments/") == std::string::npos) continue;
    const auto disk = found.find(value.substr(0, value.find(' ')));
    if (disk == found.end()) return name + " has a disk that is not there";
    const bool many = disk->second.ends_with(" of many");
    if (many && value.ends_with(" false")) return name + " may write to a disk for many readers";
    if (!many && !attached.insert(disk->first).second) return name + " is the second one of its disk";
  }
  return {};
}

// Of an error: whether the store may have taken the change all the same.
bool MayBeDone(const Error& error) {
  switch (error.code) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

}  // namespace

HostCalls::HostCalls(World& world, CleatdProcess& cleatd, uint64_t seed, std::function<bool()> before_answer)
    : world_(world), cleatd_(cleatd), random_(seed), before_answer_(std::move(before_answer)) {}

void HostCalls::Draw() {
  if (!cleatd_.up() || under_way_ >= kCallsMax) return;
  struct Choice {
    uint32_t weight;
    void (HostCalls::*make)();
  };
  static constexpr Choice kChoices[] = {
      {10, &HostCalls::CreateDisk},   {8, &HostCalls::LimitDisk},         {4, &HostCalls::DeleteDisk},
      {4, &HostCalls::ReplaceDisk},   {10, &HostCalls::CreateController}, {4, &HostCalls::DeleteController},
      {3, &HostCalls::CreateGroup},   {3, &HostCalls::LimitGroup},        {2, &HostCalls::DeleteGroup},
      {20, &HostCalls::AttachDisk},   {10, &HostCalls::DetachDisk},       {8, &HostCalls::Upgrade},
      {2, &HostCalls::CancelUpgrade},
  };
  uint32_t sum = 0;
  for (const Choice& choice : kChoices) sum += choice.weight;
  uint64_t drawn = random_.Below(sum);
  for (const Choice& choice : kChoices) {
    if (drawn < choice.weight) return (this->*choice.make)();
    drawn -= choice.weight;
  }
}

std::string HostCalls::DrawDisk() {
  return "d" + std::to_string(random_.Below(kDisks));
}
std::string HostCalls::DrawController() {
  return "c" + std::to_string(random_.Below(kControllers));
}
std::string HostCalls::DrawGroup() {
  return "g" + std::to_string(random_.Below(kGroups));
}

// ---- One call

void HostCalls::Call(const std::string& name, Answer call) {
  ++under_way_;
  cleatd_.Call(name, [this, name, call = std::move(call)](control::HostState& state) {
    world_.Note("asked: " + name);
    call(state);
    if (cleatd_.dead()) return;
    world_.Note("answered: " + name);
    --under_way_;
  });
}

template <typename Response>
void HostCalls::Note(const Intents::Attempt& attempt, const Result<Response>& response,
                     const std::string& value, uint64_t revision) {
  if ((before_answer_ && !before_answer_()) || cleatd_.dead()) return;
  if (response.ok()) {
    ++acknowledged_;
    intents_.Done(attempt, value, revision);
  } else if (!MayBeDone(response.error())) {
    intents_.Refused(attempt);
  }
}

// A change of an object's being there or, with another name, of a value of its; the answer shows the object.
template <typename Request, typename Ask, typename ValueOf>
void HostCalls::Change(control::HostState& state, const std::string& name, const std::string& value,
                       const Request& request, Ask ask, ValueOf value_of) {
  const Intents::Attempt attempt = intents_.Begin(name, value);
  const auto response = ask(state, request);
  Note(attempt, response, response.ok() ? value_of(*response) : value,
       response.ok() ? response->revision() : 0);
  if (response.ok() && !cleatd_.dead()) durable_.insert(control::RevisionOfEtag(response->etag()));
}

// ---- Disks

// The first is a memory disk, the last one may be attached to many controllers.
void HostCalls::CreateDisk() {
  const std::string id = DrawDisk();
  v1::CreateDiskRequest request = id == "d0" ? control::MemoryDisk(id) : control::NullDisk(id);
  if (id == "d4") request.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  Call("create " + id, [this, request](control::HostState& state) {
    const std::string name = control::DiskName(request.disk_id());
    const v1::DiskSpec& spec = request.disk().spec();
    const Intents::Attempt limits = intents_.Begin(LimitsOf(name), LimitText(spec.limits()));
    const Intents::Attempt there = intents_.Begin(name, DiskValue(spec));
    const Result<v1::Disk> made = state.disks().Create(request);
    const v1::Disk& shown = made.ok() ? *made : request.disk();
    Note(limits, made, LimitText(shown.spec().limits()), shown.revision());
    Note(there, made, made.ok() ? DiskValue(shown.spec()) : DiskValue(spec), shown.revision());
  });
}

void HostCalls::LimitDisk() {
  const std::string id = DrawDisk();
  const auto request = control::LimitDisk(id, kIops * random_.Between(1, 9));
  Call("limit " + id, [this, request](control::HostState& state) {
    Change(
        state, LimitsOf(request.disk().name()), LimitText(request.disk().spec().limits()), request,
        [](control::HostState& of, const auto& asked) { return of.disks().Update(asked); },
        [](const v1::Disk& disk) { return LimitText(disk.spec().limits()); });
  });
}

void HostCalls::DeleteDisk() {
  const auto request = control::DeleteDisk(DrawDisk());
  Call("delete " + request.name(), [this, request](control::HostState& state) {
    const Intents::Attempt attempt = intents_.Begin(request.name(), kAbsent);
    Note(attempt, state.disks().Delete(request), kAbsent, 0);
  });
}

// Deletes one and makes another one of its name, while somebody attaches it: which of the two does he get?
void HostCalls::ReplaceDisk() {
  const std::string id = DrawDisk();
  v1::CreateDiskRequest request = control::NullDisk(id);
  if (random_.Chance(1, 2))
    request.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  Call("replace " + id, [this, request](control::HostState& state) {
    const std::string name = control::DiskName(request.disk_id());
    const Intents::Attempt gone = intents_.Begin(name, kAbsent);
    const auto deleted = state.disks().Delete(control::DeleteDisk(request.disk_id()));
    Note(gone, deleted, kAbsent, 0);
    if (!deleted.ok() || cleatd_.dead()) return;
    const v1::DiskSpec& spec = request.disk().spec();
    const Intents::Attempt limits = intents_.Begin(LimitsOf(name), LimitText(spec.limits()));
    const Intents::Attempt there = intents_.Begin(name, DiskValue(spec));
    const Result<v1::Disk> made = state.disks().Create(request);
    const v1::Disk& shown = made.ok() ? *made : request.disk();
    Note(limits, made, LimitText(shown.spec().limits()), shown.revision());
    Note(there, made, DiskValue(shown.spec()), shown.revision());
  });
  if (under_way_ < kCallsMax && random_.Chance(1, 2)) AttachDisk();
}

// ---- Controllers

// Even ones are SCSI, the last one is in a group, the first one has to be on the first engine.
void HostCalls::CreateController() {
  const std::string id = DrawController();
  v1::CreateControllerRequest request =
      id == "c3" ? control::ControllerIn(id, "g0") : control::NewController(id);
  v1::ControllerSpec& spec = *request.mutable_controller()->mutable_spec();
  spec.set_type(id == "c0" || id == "c2" ? v1::CONTROLLER_TYPE_SCSI : v1::CONTROLLER_TYPE_BLK);
  if (id == "c0") spec.set_engine("engines/engine-0");
  Call("create " + id, [this, request](control::HostState& state) {
    Change(
        state, control::ControllerName(request.controller_id()), ControllerValue(request.controller().spec()),
        request, [](control::HostState& of, const auto& asked) { return of.controllers().Create(asked); },
        [](const v1::Controller& controller) { return ControllerValue(controller.spec()); });
  });
}

void HostCalls::DeleteController() {
  const auto request = control::DeleteController(DrawController());
  if (!intents_.IsThere(request.name())) return;
  Call("delete " + request.name(), [this, request](control::HostState& state) {
    const Intents::Attempt attempt = intents_.Begin(request.name(), kAbsent);
    Note(attempt, state.controllers().Delete(request), kAbsent, 0);
  });
}

// ---- Groups

void HostCalls::CreateGroup() {
  const auto request = control::NewGroup(DrawGroup(), kIops);
  Call("create " + request.group_id(), [this, request](control::HostState& state) {
    const std::string name = control::GroupName(request.group_id());
    const Intents::Attempt limits =
        intents_.Begin(LimitsOf(name), LimitText(request.group().spec().limits()));
    const Intents::Attempt there = intents_.Begin(name, "there");
    const Result<v1::Group> made = state.groups().Create(request);
    const v1::Group& shown = made.ok() ? *made : request.group();
    Note(limits, made, LimitText(shown.spec().limits()), shown.revision());
    Note(there, made, "there", shown.revision());
  });
}

void HostCalls::LimitGroup() {
  const auto request = control::LimitGroup(DrawGroup(), kIops * random_.Between(1, 9));
  Call("limit " + request.group().name(), [this, request](control::HostState& state) {
    Change(
        state, LimitsOf(request.group().name()), LimitText(request.group().spec().limits()), request,
        [](control::HostState& of, const auto& asked) { return of.groups().Update(asked); },
        [](const v1::Group& group) { return LimitText(group.spec().limits()); });
  });
}

void HostCalls::DeleteGroup() {
  const auto request = control::DeleteGroup(DrawGroup());
  Call("delete " + request.name(), [this, request](control::HostState& state) {
    const Intents::Attempt attempt = intents_.Begin(request.name(), kAbsent);
    Note(attempt, state.groups().Delete(request), kAbsent, 0);
  });
}

// ---- Attachments

void HostCalls::AttachDisk() {
  const std::string disk = DrawDisk();
  const std::string controller = DrawController();
  const auto request = control::Attach(disk, controller, disk == "d4" || random_.Chance(1, 8));
  Call("attach " + disk + " " + controller, [this, request, disk, controller](control::HostState& state) {
    Change(
        state, control::AttachmentName(controller, disk), AttachmentValue(request.attachment().spec()),
        request, [](control::HostState& of, const auto& asked) { return of.attachments().Attach(asked); },
        [](const v1::Attachment& attachment) { return AttachmentValue(attachment.spec()); });
  });
}

void HostCalls::DetachDisk() {
  const auto request = control::Detach(DrawController(), DrawDisk());
  // So that each attachment that was durable was seen to be so: Restart, or its answer.
  if (!intents_.IsThere(request.name())) return;
  Call("detach " + request.name(), [this, request](control::HostState& state) {
    const Intents::Attempt attempt = intents_.Begin(request.name(), kAbsent);
    Note(attempt, state.attachments().Detach(request), kAbsent, 0);
  });
}

// ---- Upgrades

void HostCalls::Upgrade() {
  v1::UpgradeEngineRequest request;
  const bool forth = random_.Chance(1, 2);
  request.set_name(forth ? "engines/engine-0" : "engines/engine-1");
  request.set_to(forth ? "engines/engine-1" : "engines/engine-0");
  Call("upgrade " + request.name(),
       [request](control::HostState& state) { (void)state.upgrades().Begin(request); });
}

void HostCalls::CancelUpgrade() {
  v1::CancelUpgradeRequest request;
  request.set_name(random_.Chance(1, 2) ? "engines/engine-0" : "engines/engine-1");
  Call("cancel upgrade " + request.name(),
       [request](control::HostState& state) { (void)state.upgrades().Cancel(request); });
}

// ---- What was promised

std::string HostCalls::Restart(const control::Rows& rows) {
  Intents::Values found;
  for (const control::DiskRow& row : rows.disks) {
    if (row.deleting) continue;
    found[control::DiskName(row.id)] = DiskValue(row.spec);
    found[LimitsOf(control::DiskName(row.id))] = LimitText(row.spec.limits());
  }
  for (const control::GroupRow& row : rows.groups) {
    found[control::GroupName(row.id)] = "there";
    found[LimitsOf(control::GroupName(row.id))] = LimitText(row.spec.limits());
  }
  for (const control::ControllerRow& row : rows.controllers) {
    durable_.insert(row.revision);
    if (!row.deleting) found[control::ControllerName(row.id)] = ControllerValue(row.spec);
  }
  for (const control::AttachmentRow& row : rows.attachments) {
    durable_.insert(row.revision);
    if (!row.deleting) found[control::AttachmentName(row.controller, row.id)] = AttachmentValue(row.spec);
  }
  if (std::string wrong = WhatMayNotBe(found); !wrong.empty()) return wrong;
  return intents_.Restart(found);
}

std::string HostCalls::CheckShown(control::HostState& state) const {
  const Shown shown(state);
  Intents::Values found;
  for (const v1::Disk& disk : shown.disks.disks()) {
    if (disk.status().state() == v1::DISK_STATE_DELETING) continue;
    found[disk.name()] = DiskValue(disk.spec());
    found[LimitsOf(disk.name())] = LimitText(disk.spec().limits());
  }
  for (const v1::Group& group : shown.groups.groups()) {
    found[group.name()] = "there";
    found[LimitsOf(group.name())] = LimitText(group.spec().limits());
  }
  for (const v1::Controller& controller : shown.controllers.controllers()) {
    if (controller.status().state() != v1::CONTROLLER_STATE_DELETING)
      found[controller.name()] = ControllerValue(controller.spec());
  }
  for (const v1::Attachment& attachment : shown.attachments.attachments()) {
    if (attachment.status().state() != v1::ATTACHMENT_STATE_DETACHING)
      found[attachment.name()] = AttachmentValue(attachment.spec());
  }
  if (std::string wrong = WhatMayNotBe(found); !wrong.empty()) return wrong;
  return intents_.Check(found, "");
}

}  // namespace cleat::sim
