// SPDX-License-Identifier: Apache-2.0
#include "control/engine_view.h"

#include <algorithm>

#include "control/names.h"

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

void AddAttach(const AttachmentIntent& intent, const EngineView& engine, const MemoryKeeper& memory,
               std::vector<Step>& steps) {
  const uint32_t target = intent.row.spec.target();
  Step step{.kind = Step::Kind::kAttach, .target = target, .intent = &intent};
  if (intent.disk.spec.has_memory() && !engine.memories.contains(intent.disk.id)) {
    if (engine.memory_busy.contains(intent.disk.id)) return;  // another controller's request brings it
    step.kind = memory.Has(intent.disk.id) ? Step::Kind::kKeepMemory : Step::Kind::kWaitForDisk;
  }
  steps.push_back(step);
}

// A SCSI controller that the engine doesn't serve yet, and none of whose disks is being asked for or has to wait for its
// last owner's writes: a guest that goes on after an engine's restart would see those as gone that are still to come.
bool IsHeldBack(const ControllerView& view) {
  return view.actual->controller().type() == engine::v1::CONTROLLER_TYPE_SCSI &&
         view.actual->state() == engine::v1::CONTROLLER_STATE_IDLE && view.targets_busy.empty() &&
         view.unproven.empty();
}

}  // namespace

bool IsBehind(const EngineView& engine, const std::vector<std::string>& controllers, const std::string& disk,
              uint64_t size_bytes) {
  if (const auto held = engine.memories.find(disk);
      held != engine.memories.end() && held->second != 0 && held->second < size_bytes) {
    return true;
  }
  const std::string name = DiskName(disk);
  for (const std::string& controller : controllers) {
    const auto view = engine.controllers.find(controller);
    if (view == engine.controllers.end()) continue;
    for (const auto& [target, status] : view->second.attachments) {
      const engine::v1::Disk& known = status.attachment().disk();
      if (status.state() == engine::v1::ATTACHMENT_STATE_ACTIVE && known.name() == name &&
          known.has_size_bytes() && known.size_bytes() < size_bytes) {
        return true;
      }
    }
  }
  return false;
}

std::vector<Step> StepsFor(const ControllerIntent& intent, const EngineView& engine,
                           const ControllerView& view, const MemoryKeeper& memory, uint64_t now_ns) {
  const bool ours = intent.exists && intent.row.engine == engine.info.id;
  const bool wanted = ours && !intent.row.deleting;
  const bool right = wanted && view.actual && view.actual->controller().revision() == intent.row.revision;
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
    if (!view.actual && wanted && Ready(view.backoff, now_ns))
      steps.push_back({.kind = Step::Kind::kPutController});
    return steps;
  }
  for (const AttachmentIntent& attachment : intent.attachments) {
    const uint32_t target = attachment.row.spec.target();
    if (attachment.row.deleting || view.attachments.contains(target) || !Ready(view, target, now_ns))
      continue;
    // The size of memory that the engine holds comes first.
    if (engine.resize_busy.contains(attachment.disk.id)) continue;
    AddAttach(attachment, engine, memory, steps);
  }
  if (steps.empty() && IsHeldBack(view) && Ready(view.backoff, now_ns)) {
    steps.push_back({.kind = Step::Kind::kServeController});
  }
  return steps;
}

}  // namespace cleat::control
