// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/context/unclaimed.h"

#include <algorithm>

#include "control/link/translate.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/validate/backends.h"

namespace cleat::control {

bool IsUnclaimed(const std::vector<LostRevisions>& lost, const ControllerIntent& intent,
                 const ControllerView& view) {
  if (StandsBy(view)) return false;  // no guest uses it: it is prepared anew
  uint64_t until = 0;                // of what was lost of it
  const auto note = [&](uint64_t revision) {
    for (const LostRevisions& range : lost) {
      if (revision >= range.first && revision < range.until) until = std::max(until, range.until);
    }
  };
  if (view.actual) {
    const uint64_t revision = view.actual->controller().revision();
    if (!intent.exists || intent.row.revision != revision) note(revision);
    if (intent.exists && !KnowsHosts(intent, view))
      note(view.actual->controller().exported().hosts_revision());
  }
  uint64_t spoken = intent.exists ? intent.row.intent_revision : 0;
  for (const AttachmentIntent& attachment : intent.attachments)
    spoken = std::max(spoken, attachment.row.intent_revision);
  for (const auto& [target, status] : view.attachments) {
    const uint64_t revision = status.attachment().revision();
    const bool known = std::any_of(
        intent.attachments.begin(), intent.attachments.end(), [&, t = target](const auto& attachment) {
          return attachment.row.spec.target() == t && attachment.row.revision == revision;
        });
    if (!known) note(revision);
  }
  return until != 0 && spoken < until;
}

v1::ControllerStatus StatusOf(const EngineView& engine, const std::string& controller,
                              const ControllerView& view) {
  v1::ControllerStatus status = FromEngine(*view.actual);
  if (engine.unclaimed.contains(controller)) AddNote(kWhyUnclaimed, *status.mutable_message());
  return status;
}

v1::ControllerSpec SpecOf(const ControllerView& view) {
  v1::ControllerSpec spec;
  if (!view.actual) return spec;
  const engine::v1::Controller& known = view.actual->controller();
  spec.set_socket_path(known.socket_path());
  spec.set_queues(known.queues());
  spec.set_memory_pinned(known.memory_pinned());
  spec.set_type(FromEngine(known.type()));
  if (!known.has_exported()) return spec;
  spec.mutable_exported()->set_nqn(known.exported().nqn());  // its hosts are not reported
  *spec.mutable_exported()->mutable_addresses() = known.exported().addresses();
  *spec.mutable_exported()->mutable_standby_addresses() = known.exported().standby_addresses();
  spec.mutable_exported()->set_dscp(known.exported().dscp());
  return spec;
}

const engine::v1::Attachment* UnclaimedHolderOf(const EngineView& engine, const std::string& disk) {
  const std::string name = DiskName(disk);
  for (const std::string& controller : engine.unclaimed) {
    const ControllerView* view = engine.FindController(controller);
    if (view == nullptr) continue;
    for (const auto& [target, status] : view->attachments) {
      if (status.attachment().disk().name() == name) return &status.attachment();
    }
  }
  return nullptr;
}

bool HoldsAnother(const EngineView& engine, const std::string& disk, const DiskIdentity& identity) {
  const engine::v1::Attachment* held = UnclaimedHolderOf(engine, disk);
  if (held == nullptr || !held->disk().has_identity()) return false;
  return DiskIdentity(held->disk().identity()) != identity;
}

bool UsesClusterUnclaimed(const EngineView& engine, const std::string& cluster) {
  const std::string name = ClusterName(cluster);
  return std::any_of(engine.unclaimed.begin(), engine.unclaimed.end(), [&](const std::string& controller) {
    const ControllerView* view = engine.FindController(controller);
    return view != nullptr &&
           std::any_of(view->attachments.begin(), view->attachments.end(),
                       [&](const auto& a) { return ClusterOf(a.second.attachment().disk()) == name; });
  });
}

}  // namespace cleat::control
