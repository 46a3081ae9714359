// SPDX-License-Identifier: Apache-2.0
#include "control/state/controllers/stuck_attachment.h"

#include <fmt/format.h>

#include <string>

#include "control/model/names.h"

namespace cleat::control {
namespace {

v1::StuckReason ReasonIn(const v1::AttachmentStatus& status) {
  switch (status.storage_state()) {
    case v1::STORAGE_STATE_STUCK:
      return v1::STUCK_REASON_WRITES_IN_DOUBT;
    case v1::STORAGE_STATE_NOT_ANSWERING:
      return status.has_paths() && status.paths().optimized() + status.paths().non_optimized() == 0
                 ? v1::STUCK_REASON_NO_PATH
                 : v1::STUCK_REASON_NO_ANSWER;
    case v1::STORAGE_STATE_NO_SPACE:
      return v1::STUCK_REASON_NO_SPACE;
    default:
      return v1::STUCK_REASON_UNSPECIFIED;
  }
}

std::string IdOf(const std::string& name) {
  return name.substr(name.find('/') + 1);
}

std::string StuckNextStep(v1::StuckReason reason, const std::string& disk, const v1::DiskSpec& spec) {
  switch (reason) {
    case v1::STUCK_REASON_WRITES_IN_DOUBT:
      return fmt::format(
          "see that the target executes nothing of that any more, then cleatctl disk confirm-dead {}",
          IdOf(disk));
    case v1::STUCK_REASON_NO_PATH:
      return fmt::format("bring a path back: cleatctl subsystem get {} has the addresses",
                         IdOf(spec.nvme_tcp().subsystem()));
    case v1::STUCK_REASON_NO_SPACE:
      return fmt::format("make room where the disk lies: cleatctl disk get {}", IdOf(disk));
    default:
      return fmt::format("see to the storage: cleatctl disk get {} says where that is", IdOf(disk));
  }
}

}  // namespace

std::optional<v1::StuckAttachment> StuckOf(const v1::Attachment& attachment, const v1::DiskSpec& disk) {
  const v1::AttachmentStatus& status = attachment.status();
  const v1::StuckReason reason = ReasonIn(status);
  const auto ids = ParseAttachmentName(attachment.name());
  if (reason == v1::STUCK_REASON_UNSPECIFIED || !ids.ok()) return std::nullopt;
  v1::StuckAttachment stuck;
  stuck.set_attachment(attachment.name());
  stuck.set_disk(attachment.spec().disk());
  stuck.set_controller(ControllerName(ids->controller));
  stuck.set_reason(reason);
  stuck.set_message(status.message());
  stuck.set_next_step(StuckNextStep(reason, stuck.disk(), disk));
  if (reason == v1::STUCK_REASON_WRITES_IN_DOUBT) {
    stuck.set_waiting(status.paths().waiting());
    if (status.paths().has_waiting_since()) *stuck.mutable_since() = status.paths().waiting_since();
  }
  return stuck;
}

}  // namespace cleat::control
