// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/engines/inventory.h"

#include <algorithm>

#include "control/model/names.h"

namespace cleat::control {

bool IsForeign(const engine::v1::Inventory& inventory, const OwnStore& own) {
  const uint64_t newest_revision = own.newest_revision;
  const auto is_others = [&own](const engine::v1::AttachmentStatus& status) {
    const DiskIdentity disk(status.attachment().disk().identity());
    return !own.restored && disk.known() && disk.store() != own.number;
  };
  const auto& attachments = inventory.attachments();
  return std::any_of(attachments.begin(), attachments.end(), is_others) ||
         std::any_of(inventory.controllers().begin(), inventory.controllers().end(),
                     [&](const auto& c) {
                       return std::max(c.controller().revision(),
                                       c.controller().exported().hosts_revision()) > newest_revision;
                     }) ||
         std::any_of(inventory.groups().begin(), inventory.groups().end(),
                     [&](const auto& g) { return g.limits().revision() > newest_revision; }) ||
         std::any_of(inventory.clusters().begin(), inventory.clusters().end(),
                     [&](const auto& c) { return c.revision() > newest_revision; }) ||
         std::any_of(inventory.attachments().begin(), inventory.attachments().end(),
                     [&](const auto& a) { return a.attachment().revision() > newest_revision; });
}

HeldByEngine HeldIn(const engine::v1::Inventory& inventory) {
  HeldByEngine held;
  const auto note = [&held](uint64_t revision) {
    held.newest_revision = std::max(held.newest_revision, revision);
  };
  for (const auto& status : inventory.controllers()) {
    note(status.controller().revision());
    note(status.controller().exported().hosts_revision());
    const auto id = ParseControllerName(status.controller().name());
    ControllerView view;
    view.actual = status;
    if (id.ok() && Serves(view)) held.serves[*id] = status.controller().revision();
  }
  for (const auto& status : inventory.attachments()) {
    note(status.attachment().revision());
    note(status.attachment().disk().limits().revision());
  }
  for (const auto& group : inventory.groups()) note(group.limits().revision());
  for (const auto& cluster : inventory.clusters()) note(cluster.revision());
  return held;
}

void FillView(const engine::v1::Inventory& inventory, EngineView& engine) {
  for (const auto& status : inventory.controllers()) {
    if (const auto id = ParseControllerName(status.controller().name()); id.ok())
      engine.controllers[*id].actual = status;
  }
  for (const auto& status : inventory.attachments()) {
    if (const auto id = ParseControllerName(status.attachment().controller()); id.ok())
      engine.controllers[*id].attachments[status.attachment().target()] = status;
  }
  for (const auto& memory : inventory.memories()) {
    if (const auto id = ParseDiskName(memory.disk()); id.ok()) engine.memories[*id] = memory.size_bytes();
  }
  for (const auto& group : inventory.groups()) {
    if (const auto id = ParseGroupName(group.name()); id.ok()) engine.groups[*id] = group;
  }
  for (const auto& cluster : inventory.clusters()) {
    if (const auto id = ParseClusterName(cluster.name()); id.ok()) engine.clusters[*id] = cluster.revision();
  }
}

}  // namespace cleat::control
