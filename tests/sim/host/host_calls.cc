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

using control::kMiB;
using Values = Intents::Values;

constexpr uint64_t kDisks = 5;
constexpr uint64_t kControllers = 4;
constexpr uint64_t kGroups = 2;
constexpr uint64_t kIops = 1000;  // limits are multiples

// ---- What an object is, as values

std::string LimitsOf(const std::string& name) {
  return name + " limits";
}
std::string SizeOf(const std::string& name) {
  return name + " size";
}

Values ValuesOf(const v1::Disk& disk) {
  const v1::DiskSpec& spec = disk.spec();
  const bool many = spec.access_mode() == v1::ACCESS_MODE_MANY_READERS;
  return {
      {disk.name(), fmt::format("{} of {}", spec.has_memory() ? "memory" : "null", many ? "many" : "one")},
      {LimitsOf(disk.name()), std::to_string(spec.limits().iops().per_second())},
      {SizeOf(disk.name()), std::to_string(spec.size_bytes())}};
}
Values ValuesOf(const v1::Group& group) {
  return {{group.name(), "there"},
          {LimitsOf(group.name()), std::to_string(group.spec().limits().iops().per_second())}};
}
Values ValuesOf(const v1::Controller& controller) {
  const v1::ControllerSpec& spec = controller.spec();
  return {{controller.name(), fmt::format("{} {}", static_cast<int>(spec.type()), spec.group())}};
}
Values ValuesOf(const v1::Attachment& attachment) {
  const v1::AttachmentSpec& spec = attachment.spec();
  return {{attachment.name(), fmt::format("{} {}", spec.disk(), spec.read_only())}};
}

bool IsLeaving(const v1::Disk& disk) {
  return disk.status().state() == v1::DISK_STATE_DELETING;
}
bool IsLeaving(const v1::Group& /*group*/) {
  return false;
}
bool IsLeaving(const v1::Controller& controller) {
  return controller.status().state() == v1::CONTROLLER_STATE_DELETING;
}
bool IsLeaving(const v1::Attachment& attachment) {
  return attachment.status().state() == v1::ATTACHMENT_STATE_DETACHING;
}

// Calls `each` with every resource that is shown and stays.
template <typename Each>
void ForEachThere(const Shown& shown, Each each) {
  const auto of_kind = [&](const auto& resources) {
    for (const auto& resource : resources) {
      if (!IsLeaving(resource)) each(resource);
    }
  };
  of_kind(shown.disks.disks());
  of_kind(shown.groups.groups());
  of_kind(shown.controllers.controllers());
  of_kind(shown.attachments.attachments());
}

// The same object as a request or a row has it.
template <typename Resource, typename Spec>
Values ValuesOf(const std::string& name, const Spec& spec) {
  Resource resource;
  resource.set_name(name);
  *resource.mutable_spec() = spec;
  return ValuesOf(resource);
}

// What an answer shows; that to a deletion or a detach shows nothing.
template <typename Response>
Values ShownBy(const Response& response) {
  if constexpr (requires { response.revision(); }) return ValuesOf(response);
  return {};
}
template <typename Response>
uint64_t RevisionOf(const Response& response) {
  if constexpr (requires { response.revision(); }) return response.revision();
  return 0;
}
template <typename Response>
uint64_t IntentRevisionOf(const Response& response) {
  if constexpr (requires { response.etag(); }) return control::RevisionOfEtag(response.etag());
  return 0;
}

// A disk for many readers is attached to be read alone, any other one is attached once: the first attachment of which that is not so.
std::string WhatMayNotBe(const Values& found) {
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

// Of an error: whether the store could not be written. All others refuse.
bool IsOfStore(const Error& error) {
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
      {10, &HostCalls::CreateDisk},      {8, &HostCalls::LimitDisk},     {3, &HostCalls::GrowDisk},
      {4, &HostCalls::DeleteDisk},       {4, &HostCalls::ReplaceDisk},   {10, &HostCalls::CreateController},
      {3, &HostCalls::DeleteController}, {3, &HostCalls::CreateGroup},   {3, &HostCalls::LimitGroup},
      {2, &HostCalls::DeleteGroup},      {20, &HostCalls::AttachDisk},   {10, &HostCalls::DetachDisk},
      {8, &HostCalls::Upgrade},          {2, &HostCalls::CancelUpgrade}, {6, &HostCalls::LookAtAll},
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
std::string HostCalls::DrawFrom(const std::vector<std::string>& names) {
  return names.empty() ? std::string() : names[random_.Below(names.size())];
}

// ---- One call

void HostCalls::Call(const std::string& name, Run run) {
  ++under_way_;
  cleatd_.Call(name, [this, name, run = std::move(run)](control::HostState& state) {
    if (cleatd_.dead()) return;
    world_.Note("asked: " + name);
    run(state);
    if (cleatd_.dead()) return;
    world_.Note("answered: " + name);
    --under_way_;
  });
}

template <typename Ask>
void HostCalls::Change(control::HostState& state, const Values& values, Ask ask) {
  if (cleatd_.dead()) return;
  std::vector<std::pair<Intents::Change, std::string>> changes;
  for (const auto& [name, value] : values) changes.emplace_back(intents_.Begin(name, value), value);
  const auto response = ask(state);
  if (!IsAnswered()) return;
  if (response.ok()) {
    ++acknowledged_;
    durable_.insert(IntentRevisionOf(*response));
  }
  const Values shown = response.ok() ? ShownBy(*response) : Values();
  auto asked = values.begin();
  for (const auto& [change, value] : changes) {
    const auto now = shown.find((asked++)->first);
    if (response.ok()) {
      intents_.Acknowledged(change, now == shown.end() ? value : now->second, RevisionOf(*response));
    } else if (IsOfStore(response.error())) {
      intents_.Failed(change);
    } else {
      intents_.Refused(change);
    }
  }
}

// What anybody has seen stays.
void HostCalls::Look(control::HostState& state) {
  const uint64_t since = intents_.Now();
  const Shown shown(state);
  if (!IsAnswered()) return;
  ForEachThere(shown, [&](const auto& resource) {
    durable_.insert(IntentRevisionOf(resource));
    for (const auto& [name, value] : ValuesOf(resource))
      intents_.Seen(name, value, resource.revision(), since);
  });
}

void HostCalls::LookAtAll() {
  Call("look at all", [this](control::HostState& state) { Look(state); });
}

// ---- Disks

// The first is a memory disk, the last one may be attached to many controllers.
void HostCalls::CreateDisk() {
  const std::string id = DrawDisk();
  v1::CreateDiskRequest request = id == "d0" ? control::MemoryDisk(id) : control::NullDisk(id);
  if (id == "d4") request.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  Call("create " + id, [this, request](control::HostState& state) {
    Change(state, ValuesOf<v1::Disk>(control::DiskName(request.disk_id()), request.disk().spec()),
           [&](control::HostState& of) { return of.disks().Create(request); });
  });
}

void HostCalls::LimitDisk() {
  const std::string id = DrawDisk();
  const auto request = control::LimitDisk(id, kIops * random_.Between(1, 9));
  Call("limit " + id, [this, request](control::HostState& state) {
    const std::string& name = request.disk().name();
    const Values all = ValuesOf<v1::Disk>(name, request.disk().spec());
    Change(state, {{LimitsOf(name), all.at(LimitsOf(name))}},
           [&](control::HostState& of) { return of.disks().Update(request); });
  });
}

void HostCalls::GrowDisk() {
  const std::string id = DrawDisk();
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(control::DiskName(id));
  request.mutable_disk()->mutable_spec()->set_size_bytes(kMiB * random_.Between(1, 9));
  request.mutable_update_mask()->add_paths("spec.size_bytes");
  Call("grow " + id, [this, request](control::HostState& state) {
    const std::string& name = request.disk().name();
    const Values all = ValuesOf<v1::Disk>(name, request.disk().spec());
    Change(state, {{SizeOf(name), all.at(SizeOf(name))}},
           [&](control::HostState& of) { return of.disks().Update(request); });
  });
}

void HostCalls::DeleteDisk() {
  const auto request = control::DeleteDisk(DrawDisk());
  Call("delete " + request.name(), [this, request](control::HostState& state) {
    Change(state, {{request.name(), kAbsent}},
           [&](control::HostState& of) { return of.disks().Delete(request); });
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
    Change(state, {{name, kAbsent}},
           [&](control::HostState& of) { return of.disks().Delete(control::DeleteDisk(request.disk_id())); });
    Change(state, ValuesOf<v1::Disk>(name, request.disk().spec()),
           [&](control::HostState& of) { return of.disks().Create(request); });
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
    Change(state,
           ValuesOf<v1::Controller>(control::ControllerName(request.controller_id()),
                                    request.controller().spec()),
           [&](control::HostState& of) { return of.controllers().Create(request); });
  });
}

// Here and at detaching: what is not known to be durable is not taken away, so that CheckTold of the run knows what was.
void HostCalls::DeleteController() {
  std::vector<std::string> names = intents_.There("controllers/");
  std::erase_if(names,
                [](const std::string& name) { return name.find("/attachments/") != std::string::npos; });
  v1::DeleteControllerRequest request;
  request.set_name(DrawFrom(names));
  if (names.empty()) return;
  Call("delete " + request.name(), [this, request](control::HostState& state) {
    Change(state, {{request.name(), kAbsent}},
           [&](control::HostState& of) { return of.controllers().Delete(request); });
  });
}

// ---- Groups

void HostCalls::CreateGroup() {
  const auto request = control::NewGroup(DrawGroup(), kIops);
  Call("create " + request.group_id(), [this, request](control::HostState& state) {
    Change(state, ValuesOf<v1::Group>(control::GroupName(request.group_id()), request.group().spec()),
           [&](control::HostState& of) { return of.groups().Create(request); });
  });
}

void HostCalls::LimitGroup() {
  const std::string id = DrawGroup();
  const auto request = control::LimitGroup(id, kIops * random_.Between(1, 9));
  Call("limit " + id, [this, request](control::HostState& state) {
    const std::string& name = request.group().name();
    const Values all = ValuesOf<v1::Group>(name, request.group().spec());
    Change(state, {{LimitsOf(name), all.at(LimitsOf(name))}},
           [&](control::HostState& of) { return of.groups().Update(request); });
  });
}

void HostCalls::DeleteGroup() {
  const auto request = control::DeleteGroup(DrawGroup());
  Call("delete " + request.name(), [this, request](control::HostState& state) {
    Change(state, {{request.name(), kAbsent}},
           [&](control::HostState& of) { return of.groups().Delete(request); });
  });
}

// ---- Attachments

void HostCalls::AttachDisk() {
  const std::string disk = DrawDisk();
  const std::string controller = DrawController();
  const auto request = control::Attach(disk, controller, disk == "d4" || random_.Chance(1, 8));
  Call("attach " + disk + " " + controller, [this, request, disk, controller](control::HostState& state) {
    Change(state,
           ValuesOf<v1::Attachment>(control::AttachmentName(controller, disk), request.attachment().spec()),
           [&](control::HostState& of) { return of.attachments().Attach(request); });
  });
}

void HostCalls::DetachDisk() {
  const std::vector<std::string> names = intents_.There("/attachments/");
  if (names.empty()) return;
  v1::DetachDiskRequest request;
  request.set_name(DrawFrom(names));
  Call("detach " + request.name(), [this, request](control::HostState& state) {
    Change(state, {{request.name(), kAbsent}},
           [&](control::HostState& of) { return of.attachments().Detach(request); });
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
  Values found;
  for (const control::DiskRow& row : rows.disks) {
    if (!row.deleting) found.merge(ValuesOf<v1::Disk>(control::DiskName(row.id), row.spec));
  }
  for (const control::GroupRow& row : rows.groups)
    found.merge(ValuesOf<v1::Group>(control::GroupName(row.id), row.spec));
  for (const control::ControllerRow& row : rows.controllers) {
    durable_.insert(row.revision);
    if (!row.deleting) found.merge(ValuesOf<v1::Controller>(control::ControllerName(row.id), row.spec));
  }
  for (const control::AttachmentRow& row : rows.attachments) {
    durable_.insert(row.revision);
    if (!row.deleting)
      found.merge(ValuesOf<v1::Attachment>(control::AttachmentName(row.controller, row.id), row.spec));
  }
  if (std::string wrong = WhatMayNotBe(found); !wrong.empty()) return wrong;
  return intents_.Restart(found);
}

std::string HostCalls::CheckShown(control::HostState& state) const {
  Values found;
  ForEachThere(Shown(state), [&](const auto& resource) { found.merge(ValuesOf(resource)); });
  if (std::string wrong = WhatMayNotBe(found); !wrong.empty()) return wrong;
  return intents_.CheckShown(found);
}

}  // namespace cleat::sim
