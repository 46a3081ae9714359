// SPDX-License-Identifier: Apache-2.0
// Unclaimed controllers: those that a restored store knows nothing of. A controller that an engine has with lost revisions (model.h)
// - its own, or one of its attachments' - was made or changed after the backup. A guest may be using it, so it is left alone until
// somebody claims it by name:
//
//   the store does not know it     until it is made again, or deleted, which then has a row for it (HostState::DeleteLeftAlone)
//   the store knows it             until its row, or one of its attachments', is newer than what was lost
//
// Until then what it uses stays as well: its group (HasControllersOf), its clusters, memory that it has attached; and no other controller
// gets a disk that it has. Pure functions; UnclaimedControllers keeps EngineView::unclaimed.
#pragma once

#include <string>
#include <vector>

#include "base/disk_identity.h"
#include "cleat/engine/v1/engine.pb.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/model/model.h"
#include "control/reconcile/engines/engine_view.h"

namespace cleat::control {

// Shown in the status of such a controller.
inline constexpr const char* kWhyUnclaimed =
    "it was made or changed after the backup that the store was restored from: it is served as it is, and "
    "left alone "
    "until it is changed, deleted or made again";

// Whether the controller, as an engine has it, was made or changed after the backup from which the store was restored, and nobody has
// changed it by name since. A controller that has just the revision of its row is known, whatever was lost.
bool IsUnclaimed(const std::vector<LostRevisions>& lost, const ControllerIntent& intent,
                 const ControllerView& view);

// The status of the controller as the engine has it, with a note when it is left alone.
v1::ControllerStatus StatusOf(const EngineView& engine, const std::string& controller,
                              const ControllerView& view);
// The spec, as far as the engine knows it.
v1::ControllerSpec SpecOf(const ControllerView& view);

// An attachment of the disk, or of another one of its name, to an unclaimed controller there; null when there is none.
const engine::v1::Attachment* UnclaimedHolderOf(const EngineView& engine, const std::string& disk);
// Whether an unclaimed controller there has a disk of that name which is another one: what is asked by name would reach it.
bool HoldsAnother(const EngineView& engine, const std::string& disk, const DiskIdentity& identity);
// Whether a disk of the cluster is attached to an unclaimed controller there.
bool UsesClusterUnclaimed(const EngineView& engine, const std::string& cluster);

}  // namespace cleat::control
