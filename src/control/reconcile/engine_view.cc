// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/engine_view.h"

#include <algorithm>

#include "control/names.h"
#include "control/translate.h"

namespace cleat::control {
namespace {

bool Ready(const Backoff& backoff, uint64_t now_ns) {
  return now_ns >= backoff.not_before_ns;
}

bool Ready(const ControllerView& view, uint32_t target, uint64_t now_ns) {
  if (view.targets_busy.contains(target)) return false;
  const auto it = view.attachment_backoffs.find(target);
  return it == view.attachment_backoffs.end() || Ready(it->second, now_ns);
}

const AttachmentIntent* FindLive(const ControllerIntent& intent, uint32_t target) {
  for (const AttachmentIntent& attachment : intent.attachments) {
    if (attachment.row.spec.target() == target && !attachment.row.deleting) return &attachment;
  }
  return nullptr;
}

// Not when it is on its way out, nor the one that had the name before: that has another slot.
bool HasGroup(const EngineView& engine, const ControllerIntent& intent) {
  const std::string group = *ParseGroupName(intent.row.spec.group());
  const auto known = engine.groups.find(group);
  return known != engine.groups.end() && known->second.slot() == intent.group_slot &&
         !engine.group_busy.contains(group);
}

// A disk that will not come back by itself holds up nobody.
bool IsLost(const AttachmentIntent& intent) {
  return intent.disk_status.state() == v1::DISK_STATE_LOST;
}

bool KnowsCluster(const EngineView& engine, const AttachmentIntent& intent) {
  const std::string cluster = *ParseClusterName(intent.disk.spec.rbd().cluster());
  const auto known = engine.clusters.find(cluster);
  return known != engine.clusters.end() && known->second >= intent.cluster_revision &&
         !engine.cluster_busy.contains(cluster);
}

// False: not yet, since something is on its way first.
bool AddAttach(const AttachmentIntent& intent, const EngineView& engine, const MemoryKeeper& memory,
               std::vector<Step>& steps) {
  const uint32_t target = intent.row.spec.target();
  Step step{.kind = Step::Kind::kAttach, .target = target, .intent = &intent};
  if (intent.disk.spec.has_memory() && !engine.memories.contains(intent.disk.id)) {
    if (engine.memory_busy.contains(intent.disk.id)) return false;  // another controller's request brings it
    step.kind = memory.Has(intent.disk.id) ? Step::Kind::kKeepMemory : Step::Kind::kWaitForDisk;
  }
  if (intent.disk.spec.has_rbd() && !KnowsCluster(engine, intent)) step.kind = Step::Kind::kWaitForCluster;
  steps.push_back(step);
  return true;
}

// A SCSI controller that the engine doesn't serve yet, and none of whose disks is being asked for or has to wait for its
// last owner's writes: a guest that goes on after an engine's restart would see those as gone that are still to come.
bool IsHeldBack(const ControllerView& view) {
  return view.actual->controller().type() == engine::v1::CONTROLLER_TYPE_SCSI &&
         view.actual->state() == engine::v1::CONTROLLER_STATE_IDLE && view.targets_busy.empty() &&
         view.unproven.empty();
}

// The engine knows of last disks, and of another one than the intent says.
bool IsBehindLastDisk(const ControllerIntent& intent, const ControllerView& view) {
  const engine::v1::Controller& known = view.actual->controller();
  return known.has_last_disk() && DiskIdentity(known.last_disk()) != intent.row.last_disk;
}

// The same of one that stands by where it is to be served.
bool IsToBeTaken(const ControllerView& view) {
  return StandsBy(view) && view.targets_busy.empty();
}

// Whether one of these controllers has the disk open now, as one of which that is so.
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

std::string GroupOf(const ControllerView& view) {
  if (!view.actual) return {};
  auto group = ParseGroupName(view.actual->controller().group());
  return group.ok() ? *std::move(group) : std::string();
}

bool IsBehind(const EngineView& engine, const std::vector<std::string>& controllers, const std::string& disk,
              uint64_t size_bytes) {
  if (const auto held = engine.memories.find(disk);
      held != engine.memories.end() && held->second != 0 && held->second < size_bytes) {
    return true;
  }
  return AnyOpen(engine, controllers, disk, [size_bytes](const engine::v1::Disk& known) {
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

bool IsLeftAlone(const std::vector<LostRevisions>& lost, const ControllerIntent& intent,
                 const ControllerView& view) {
  if (StandsBy(view)) return false;  // no guest uses it: it is prepared anew
  uint64_t until = 0;                // of what was lost of it
  const auto look = [&](uint64_t revision) {
    for (const LostRevisions& range : lost) {
      if (revision >= range.first && revision < range.until) until = std::max(until, range.until);
    }
  };
  if (view.actual) {
    const uint64_t revision = view.actual->controller().revision();
    if (!intent.exists || intent.row.revision != revision) look(revision);
  }
  uint64_t spoken = intent.exists ? intent.row.intent_revision : 0;
  for (const AttachmentIntent& attachment : intent.attachments)
    spoken = std::max(spoken, attachment.row.intent_revision);
  for (const auto& [target, status] : view.attachments) {
    const uint64_t revision = status.attachment().revision();
    const bool known =
        std::any_of(intent.attachments.begin(), intent.attachments.end(), [&, t = target](const auto& one) {
          return one.row.spec.target() == t && one.row.revision == revision;
        });
    if (!known) look(revision);
  }
  return until != 0 && spoken < until;
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
  if (!StandsBy(there) || there.busy || !there.targets_busy.empty()) return false;
  if (there.actual->controller().revision() != intent.row.revision) return false;
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
      if (!there.attachment_backoffs.contains(target)) return false;
      continue;
    }
    const auto served = here->attachments.find(target);
    if (served != here->attachments.end() && served->second.state() == engine::v1::ATTACHMENT_STATE_ACTIVE)
      return false;
  }
  return true;
}

bool IsQuiet(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view) {
  if (view.busy || !view.targets_busy.empty() || !view.actual || StandsBy(view) || IsHeldBack(view))
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
  return std::any_of(intent.attachments.begin(), intent.attachments.end(),
                     [&](const auto& attachment) { return engine.resize_busy.contains(attachment.disk.id); });
}

std::vector<Step> PlanSteps(const ControllerIntent& intent, const EngineView& engine,
                            const ControllerView& view, const MemoryKeeper& memory, uint64_t now_ns) {
  const bool ours = intent.exists && intent.row.engine == engine.info.id;
  const bool standby = intent.exists && !ours && intent.prepared_on.contains(engine.info.id);
  const bool wanted = (ours || standby) && !intent.row.deleting;
  // One that stands by and is to be served is taken; one that is served and is to stand by comes from elsewhere.
  const bool fits = standby ? StandsBy(view) : !(StandsBy(view) && view.take_given_up);
  const bool right =
      wanted && fits && view.actual && view.actual->controller().revision() == intent.row.revision;
  std::vector<Step> steps;

  for (const auto& [target, status] : view.attachments) {
    const AttachmentIntent* live = right ? FindLive(intent, target) : nullptr;
    const bool keep = live != nullptr && live->row.revision == status.attachment().revision() &&
                      status.state() != engine::v1::ATTACHMENT_STATE_FAILED;
    if (!keep && Ready(view, target, now_ns))
      steps.push_back({.kind = Step::Kind::kDetach, .target = target});
  }
  if (ours) {
    for (const AttachmentIntent& attachment : intent.attachments) {
      const uint32_t target = attachment.row.spec.target();
      if (!attachment.row.deleting || view.attachments.contains(target)) continue;
      if (view.targets_busy.contains(target)) continue;
      steps.push_back({.kind = Step::Kind::kForgetAttachment, .target = target, .intent = &attachment});
    }
  }
  if (!right) {
    if (!view.targets_busy.empty()) return steps;
    const bool empty = view.attachments.empty();
    if (view.actual && empty && Ready(view.backoff, now_ns))
      steps.push_back({.kind = Step::Kind::kDeleteController});
    if (!view.actual && ours && intent.row.deleting) steps.push_back({.kind = Step::Kind::kForgetController});
    if (!view.actual && wanted && Ready(view.backoff, now_ns)) {
      const bool there = intent.row.spec.group().empty() || HasGroup(engine, intent);
      steps.push_back(
          {.kind = there ? Step::Kind::kPutController : Step::Kind::kWaitForGroup, .standby = standby});
    }
    return steps;
  }
  // The engine is told the last disk before it gets the next one.
  if (IsBehindLastDisk(intent, view)) {
    if (Ready(view.backoff, now_ns))
      steps.push_back({.kind = Step::Kind::kPutController, .standby = standby});
    return steps;
  }
  bool later = false;
  for (const AttachmentIntent& attachment : intent.attachments) {
    const uint32_t target = attachment.row.spec.target();
    if (attachment.row.deleting || view.attachments.contains(target) || !Ready(view, target, now_ns))
      continue;
    // The size of memory that the engine holds comes first.
    const bool added =
        !engine.resize_busy.contains(attachment.disk.id) && AddAttach(attachment, engine, memory, steps);
    later |= !added;
  }
  const bool complete = !later && std::all_of(steps.begin(), steps.end(), [](const Step& step) {
    return step.kind == Step::Kind::kWaitForDisk && IsLost(*step.intent);
  });
  if (standby || !complete || !Ready(view.backoff, now_ns)) return steps;
  if (IsHeldBack(view)) steps.push_back({.kind = Step::Kind::kServeController});
  if (IsToBeTaken(view)) steps.push_back({.kind = Step::Kind::kTakeController});
  return steps;
}

}  // namespace cleat::control
