// SPDX-License-Identifier: Apache-2.0
// Views and intents as plain data, for tests of what is planned: controller "c" and disk "d", whose revisions are kRevision.
#pragma once

#include <cstdint>
#include <string>

#include "control/model/intent.h"
#include "control/model/names.h"
#include "control/reconcile/engines/engine_view.h"

namespace cleat::control::views {

constexpr uint64_t kRevision = 7;

inline AttachmentIntent Attached(const std::string& disk, uint32_t target = 0) {
  AttachmentIntent intent;
  intent.row.controller = "c";
  intent.row.id = intent.disk.id = disk;
  intent.row.revision = kRevision;
  intent.row.spec.set_target(target);
  intent.row.spec.set_mode(v1::ATTACHMENT_MODE_ACTIVE);
  return intent;
}

// With disk "d", on that engine.
inline ControllerIntent IntentOn(const std::string& engine) {
  ControllerIntent intent;
  intent.exists = true;
  intent.row.id = "c";
  intent.row.engine = engine;
  intent.row.revision = kRevision;
  intent.attachments = {Attached("d")};
  return intent;
}

inline engine::v1::AttachmentStatus StatusOf(const std::string& disk, engine::v1::AttachmentState state,
                                             uint32_t target = 0) {
  engine::v1::AttachmentStatus status;
  status.mutable_attachment()->set_controller(ControllerName("c"));
  status.mutable_attachment()->mutable_disk()->set_name(DiskName(disk));
  status.mutable_attachment()->set_target(target);
  status.mutable_attachment()->set_revision(kRevision);
  status.set_state(state);
  return status;
}

// With disk "d" in that state.
inline ControllerView ViewOf(engine::v1::ControllerState state, engine::v1::AttachmentState disk_state) {
  ControllerView view;
  view.actual.emplace().set_state(state);
  view.actual->mutable_controller()->set_name(ControllerName("c"));
  view.actual->mutable_controller()->set_revision(kRevision);
  view.attachments[0] = StatusOf("d", disk_state);
  return view;
}
inline ControllerView Serving() {
  return ViewOf(engine::v1::CONTROLLER_STATE_READY, engine::v1::ATTACHMENT_STATE_ACTIVE);
}
inline ControllerView StandingBy() {
  return ViewOf(engine::v1::CONTROLLER_STATE_STANDBY, engine::v1::ATTACHMENT_STATE_STANDBY);
}

inline EngineView Engine(const std::string& name, PeerId peer = 1) {
  EngineView engine;
  engine.info.id = name;
  engine.info.peer = peer;
  engine.info.protocol = EngineLink::kProtocol;
  return engine;
}

}  // namespace cleat::control::views
