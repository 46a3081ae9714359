// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/controllers/controller_plan.h"

#include <algorithm>

#include "control/model/names.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

// What the engine should have of the controller.
struct Wanted {
  bool ours = false;     // the engine is the one that is to serve it
  bool standby = false;  // it is to stand by there
  bool any = false;      // one of both
  bool right = false;    // the engine has it as it should be, disks aside
};

Wanted WantedOf(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view) {
  Wanted wanted;
  wanted.ours = intent.exists && intent.row.engine == engine.info.id;
  wanted.standby = intent.exists && !wanted.ours && intent.prepared_on.contains(engine.info.id);
  wanted.any = (wanted.ours || wanted.standby) && !intent.row.deleting;
  // A controller that stands by and is to be served is taken; one that is served and is to stand by must be made anew.
  const bool fits = wanted.standby ? StandsBy(view) : !(StandsBy(view) && view.take_given_up);
  wanted.right =
      wanted.any && fits && view.actual && view.actual->controller().revision() == intent.row.revision;
  return wanted;
}

// False for a group that is being dropped, and for an earlier one of the same name, which has another slot.
bool HasGroup(const EngineView& engine, const ControllerIntent& intent) {
  const std::string group = *ParseGroupName(intent.row.spec.group());
  const auto known = engine.groups.find(group);
  return known != engine.groups.end() && known->second.slot() == intent.group_slot &&
         !engine.group_requests.IsBusy(GroupId{group});
}

bool KnowsCluster(const EngineView& engine, const AttachmentIntent& intent) {
  const std::string cluster = *ParseClusterName(ClusterOf(intent.disk.spec));
  const auto known = engine.clusters.find(cluster);
  return known != engine.clusters.end() && known->second >= intent.cluster_revision &&
         !engine.cluster_requests.IsBusy(ClusterId{cluster});
}

// The engine knows of last disks, and of another one than the intent says.
bool IsBehindLastDisk(const ControllerIntent& intent, const ControllerView& view) {
  const engine::v1::Controller& known = view.actual->controller();
  return known.has_last_disk() && DiskIdentity(known.last_disk()) != intent.row.last_disk;
}

// A controller that stands by where it is to be served, with nothing asked about its disks.
bool IsToBeTaken(const ControllerView& view) {
  return StandsBy(view) && !view.targets.AnyBusy();
}

void PlanDetaches(const ControllerIntent& intent, const ControllerView& view, bool right, uint64_t now_ns,
                  std::vector<Step>& steps) {
  for (const auto& [target, status] : view.attachments) {
    const AttachmentIntent* live = right ? FindLive(intent, target) : nullptr;
    const bool keep = live != nullptr && live->row.revision == status.attachment().revision() &&
                      status.state() != engine::v1::ATTACHMENT_STATE_FAILED;
    if (!keep && view.targets.Ready(target, now_ns))
      steps.push_back({.kind = Step::Kind::kDetach, .target = target});
  }
}

void PlanForgets(const ControllerIntent& intent, const ControllerView& view, std::vector<Step>& steps) {
  for (const AttachmentIntent& attachment : intent.attachments) {
    const uint32_t target = attachment.row.spec.target();
    if (!attachment.row.deleting || view.attachments.contains(target)) continue;
    if (view.targets.IsBusy(target)) continue;
    steps.push_back({.kind = Step::Kind::kForgetAttachment, .target = target, .intent = &attachment});
  }
}

// The engine has another controller of that name, or none.
void PlanReplacement(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view,
                     const Wanted& wanted, uint64_t now_ns, std::vector<Step>& steps) {
  if (view.targets.AnyBusy()) return;
  const bool ready = view.request.Ready(now_ns);
  if (view.actual) {
    if (view.attachments.empty() && ready) steps.push_back({.kind = Step::Kind::kDeleteController});
    return;
  }
  if (wanted.ours && intent.row.deleting) steps.push_back({.kind = Step::Kind::kForgetController});
  if (!wanted.any || !ready) return;
  const bool has_group = intent.row.spec.group().empty() || HasGroup(engine, intent);
  steps.push_back({.kind = has_group ? Step::Kind::kPutController : Step::Kind::kWaitForGroup,
                   .standby = wanted.standby});
}

// Returns false when the disk has to wait for a request about it that is on its way.
bool PlanAttach(const AttachmentIntent& intent, const EngineView& engine, const MemfdKeeper& memory,
                std::vector<Step>& steps) {
  const DiskId disk{intent.disk.id};
  // The size of memory that the engine holds comes first.
  if (engine.resize_requests.IsBusy(disk)) return false;
  Step step{.kind = Step::Kind::kAttach, .target = intent.row.spec.target(), .intent = &intent};
  if (KeepsMemory(intent.disk.spec) && !engine.memories.contains(disk.id)) {
    if (engine.memory_requests.IsBusy(disk)) return false;  // another controller's request brings it
    step.kind = memory.Has(disk.id) ? Step::Kind::kKeepMemory : Step::Kind::kWaitForDisk;
  }
  if (!ClusterOf(intent.disk.spec).empty() && !KnowsCluster(engine, intent))
    step.kind = Step::Kind::kWaitForCluster;
  steps.push_back(step);
  return true;
}

// Whether the guest may have the controller without waiting for the step: a lost disk does not come, and the engine does not have what is to
// be forgotten. When the store or another engine that has the disk keeps the row from being forgotten, that is tried again later, and the
// controller is served all the same.
bool MayServeBefore(const Step& step) {
  return step.kind == Step::Kind::kForgetAttachment ||
         (step.kind == Step::Kind::kWaitForDisk && IsLost(*step.intent));
}

// Returns whether no disk is still to come, lost ones aside.
bool PlanAttaches(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view,
                  const MemfdKeeper& memory, uint64_t now_ns, std::vector<Step>& steps) {
  bool later = false;
  for (const AttachmentIntent& attachment : intent.attachments) {
    const uint32_t target = attachment.row.spec.target();
    if (attachment.row.deleting || view.attachments.contains(target)) continue;
    if (!view.targets.Ready(target, now_ns)) continue;
    later |= !PlanAttach(attachment, engine, memory, steps);
  }
  return !later && std::ranges::all_of(steps, MayServeBefore);
}

}  // namespace

std::vector<Step> PlanSteps(const ControllerIntent& intent, const EngineView& engine,
                            const ControllerView& view, const MemfdKeeper& memory, uint64_t now_ns) {
  const Wanted wanted = WantedOf(intent, engine, view);
  std::vector<Step> steps;
  PlanDetaches(intent, view, wanted.right, now_ns, steps);
  if (wanted.ours) PlanForgets(intent, view, steps);
  if (!wanted.right) {
    PlanReplacement(intent, engine, view, wanted, now_ns, steps);
    return steps;
  }
  const bool ready = view.request.Ready(now_ns);
  // The engine is told the last disk before it gets the next one, and before anything else who is let in.
  if (IsBehindLastDisk(intent, view) || !KnowsHosts(intent, view)) {
    if (ready) steps.push_back({.kind = Step::Kind::kPutController, .standby = wanted.standby});
    return steps;
  }
  const bool complete = PlanAttaches(intent, engine, view, memory, now_ns, steps);
  if (wanted.standby || !complete || !ready) return steps;
  if (IsHeldBack(intent, view)) steps.push_back({.kind = Step::Kind::kServeController});
  if (IsToBeTaken(view)) steps.push_back({.kind = Step::Kind::kTakeController});
  return steps;
}

}  // namespace cleat::control
