// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/engines/engine_view.h"

#include <algorithm>

#include "control/link/translate.h"
#include "control/model/names.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

// Whether one of these controllers has the disk open, and the disk as the engine knows it satisfies the predicate.
template <typename Predicate>
bool AnyOpen(const EngineView& engine, const std::vector<std::string>& controllers, const std::string& disk,
             Predicate is_so) {
  const std::string name = DiskName(disk);
  for (const std::string& controller : controllers) {
    const auto view = engine.controllers.find(controller);
    if (view == engine.controllers.end()) continue;
    for (const auto& [target, status] : view->second.attachments) {
      const engine::v1::Disk& known = status.attachment().disk();
      const bool open = IsOpen(status.state()) || status.state() == engine::v1::ATTACHMENT_STATE_STANDBY;
      if (open && known.name() == name && is_so(known)) return true;
    }
  }
  return false;
}

}  // namespace

const ControllerView* EngineView::FindController(const std::string& controller) const {
  const auto found = controllers.find(controller);
  return found == controllers.end() ? nullptr : &found->second;
}

const AttachmentIntent* FindLive(const ControllerIntent& intent, uint32_t target) {
  for (const AttachmentIntent& attachment : intent.attachments) {
    if (attachment.row.spec.target() == target && !attachment.row.deleting) return &attachment;
  }
  return nullptr;
}

bool IsLost(const AttachmentIntent& intent) {
  return intent.disk_status.state() == v1::DISK_STATE_LOST;
}

bool IsHeldBack(const ControllerIntent& intent, const ControllerView& view) {
  const bool unproven = std::ranges::any_of(view.unproven, [&](uint32_t target) {
    return FindLive(intent, target) != nullptr || view.attachments.contains(target);
  });
  const engine::v1::ControllerType type = view.actual->controller().type();
  return (type == engine::v1::CONTROLLER_TYPE_SCSI || type == engine::v1::CONTROLLER_TYPE_NVMF) &&
         view.actual->state() == engine::v1::CONTROLLER_STATE_IDLE && !view.targets.AnyBusy() && !unproven;
}

bool KnowsHosts(const ControllerIntent& intent, const ControllerView& view) {
  if (!intent.row.spec.has_exported() || !view.actual) return true;
  return view.actual->controller().exported().hosts_revision() == intent.row.hosts_revision;
}

std::string GroupOf(const ControllerView& view) {
  if (!view.actual) return {};
  auto group = ParseGroupName(view.actual->controller().group());
  return group.ok() ? *std::move(group) : std::string();
}

bool IsBehind(const EngineView& engine, const std::vector<std::string>& controllers, const DiskRow& row) {
  const uint64_t size_bytes = row.spec.size_bytes();
  // A log of doubt does not grow with its disk.
  if (const auto held = engine.memories.find(row.id); held != engine.memories.end() &&
                                                      KeptMemoryOf(row.spec) != KeptMemory::kDoubtLog &&
                                                      held->second != 0 && held->second < size_bytes) {
    return true;
  }
  return AnyOpen(engine, controllers, row.id, [size_bytes](const engine::v1::Disk& known) {
    return known.has_size_bytes() && known.size_bytes() < size_bytes;
  });
}

bool IsBehindLimits(const EngineView& engine, const std::vector<std::string>& controllers,
                    const std::string& disk, uint64_t limits_revision) {
  return AnyOpen(engine, controllers, disk, [limits_revision](const engine::v1::Disk& known) {
    return known.limits().revision() < limits_revision;
  });
}

DiskIdentity NextDiskOf(const ControllerIntent& intent, const EngineView& engine,
                        const ControllerView& view) {
  if (!view.actual || !intent.exists || intent.row.engine != engine.info.id) return {};
  if (engine.info.protocol >= kProtocolIdentities) return DiskIdentity(view.actual->next_disk());
  if (!intent.row.last_disk.known() || view.actual->state() != engine::v1::CONTROLLER_STATE_READY) return {};
  const AttachmentIntent* served = FindLive(intent, 0);
  if (served == nullptr || !view.attachments.contains(0)) return {};
  const bool known = served->row.revision == view.attachments.at(0).attachment().revision();
  return known && served->disk_identity != intent.row.last_disk ? served->disk_identity : DiskIdentity();
}

bool HasControllersOf(const EngineView& engine, const std::string& group) {
  const std::string name = GroupName(group);
  return std::any_of(engine.controllers.begin(), engine.controllers.end(), [&](const auto& controller) {
    const ControllerView& view = controller.second;
    return view.actual && view.actual->controller().group() == name;
  });
}

bool StandsBy(const ControllerView& view) {
  return view.actual && view.actual->state() == engine::v1::CONTROLLER_STATE_STANDBY;
}

bool Serves(const ControllerView& view) {
  if (!view.actual) return false;
  switch (view.actual->state()) {
    case engine::v1::CONTROLLER_STATE_CONNECTING:
    case engine::v1::CONTROLLER_STATE_HANDSHAKE:
    case engine::v1::CONTROLLER_STATE_READY:
    case engine::v1::CONTROLLER_STATE_BROKEN:
      return true;
    default:
      return false;
  }
}

bool IsPrepared(const ControllerIntent& intent, const ControllerView* here, const ControllerView& there) {
  if (!StandsBy(there) || there.request.busy() || there.targets.AnyBusy()) return false;
  if (there.actual->controller().revision() != intent.row.revision || !KnowsHosts(intent, there))
    return false;
  for (const auto& [target, status] : there.attachments) {
    const AttachmentIntent* live = FindLive(intent, target);
    if (live == nullptr || live->row.revision != status.attachment().revision()) return false;
  }
  for (const AttachmentIntent& attachment : intent.attachments) {
    if (attachment.row.deleting || IsLost(attachment)) continue;
    const uint32_t target = attachment.row.spec.target();
    const auto known = there.attachments.find(target);
    if (known != there.attachments.end() && known->second.state() == engine::v1::ATTACHMENT_STATE_STANDBY)
      continue;
    if (here == nullptr) {
      if (there.targets.Failures(target) == 0) return false;
      continue;
    }
    const auto served = here->attachments.find(target);
    if (served != here->attachments.end() && served->second.state() == engine::v1::ATTACHMENT_STATE_ACTIVE)
      return false;
  }
  return true;
}

bool IsQuiet(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view) {
  if (view.request.busy() || view.targets.AnyBusy() || !view.actual || StandsBy(view) ||
      IsHeldBack(intent, view))
    return false;
  for (const auto& [target, status] : view.attachments) {
    const AttachmentIntent* live = FindLive(intent, target);
    if (live == nullptr || live->row.revision != status.attachment().revision()) return false;
    if (status.state() == engine::v1::ATTACHMENT_STATE_OPENING ||
        status.state() == engine::v1::ATTACHMENT_STATE_CLOSING) {
      return false;
    }
  }
  return !IsResizing(intent, engine);
}

bool IsResizing(const ControllerIntent& intent, const EngineView& engine) {
  return std::any_of(intent.attachments.begin(), intent.attachments.end(), [&](const auto& attachment) {
    return engine.resize_requests.IsBusy(DiskId{attachment.disk.id});
  });
}

}  // namespace cleat::control
