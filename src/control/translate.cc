// SPDX-License-Identifier: Apache-2.0
#include "control/translate.h"

#include "control/names.h"
#include "control/spec_rules.h"

namespace cleat::control {

engine::v1::Disk ToEngine(const DiskRow& row) {
  engine::v1::Disk disk;
  disk.set_name(DiskName(row.id));
  disk.set_size_bytes(row.spec.size_bytes());
  disk.set_logical_block_bytes(row.spec.logical_block_bytes());
  disk.set_physical_block_bytes(row.spec.physical_block_bytes());
  disk.set_serial(row.spec.serial());
  disk.set_wwn(WwnNumber(row.spec.wwn()));
  if (row.spec.has_null()) disk.mutable_null()->set_skip_reads(row.spec.null().skip_reads());
  if (row.spec.has_memory()) disk.mutable_memory();
  if (row.spec.has_file()) disk.mutable_file()->set_path(row.spec.file().path());
  if (row.spec.has_fault()) {
    disk.mutable_fault()->set_seed(row.spec.fault().seed());
    disk.mutable_fault()->set_delay_ns_max(row.spec.fault().delay_ns_max());
    disk.mutable_fault()->set_fail_per_million(row.spec.fault().fail_per_million());
  }
  return disk;
}

engine::v1::Controller ToEngine(const ControllerRow& row) {
  engine::v1::Controller controller;
  controller.set_name(ControllerName(row.id));
  controller.set_type(row.spec.type() == v1::CONTROLLER_TYPE_SCSI ? engine::v1::CONTROLLER_TYPE_SCSI
                                                                  : engine::v1::CONTROLLER_TYPE_BLK);
  controller.set_socket_path(row.spec.socket_path());
  controller.set_socket_mode(row.spec.socket_mode() == v1::SOCKET_MODE_SERVER
                                 ? engine::v1::SOCKET_MODE_SERVER
                                 : engine::v1::SOCKET_MODE_CLIENT);
  controller.set_queues(row.spec.queues());
  controller.set_revision(row.revision);
  return controller;
}

engine::v1::Attachment ToEngine(const AttachmentIntent& intent) {
  engine::v1::Attachment attachment;
  attachment.set_controller(ControllerName(intent.row.controller));
  attachment.set_target(intent.row.spec.target());
  *attachment.mutable_disk() = ToEngine(intent.disk);
  attachment.set_read_only(intent.row.spec.read_only());
  attachment.set_revision(intent.row.revision);
  return attachment;
}

Status FromEngine(const engine::v1::Reply& reply) {
  if (reply.ok()) return Ok{};
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    if (ErrorCodeName(static_cast<ErrorCode>(code)) == reply.code()) {
      return Error(static_cast<ErrorCode>(code), reply.message());
    }
  }
  return Error(ErrorCode::kInternal, reply.message());
}

v1::ControllerStatus FromEngine(const engine::v1::ControllerStatus& status) {
  v1::ControllerStatus result;
  result.set_message(status.message());
  result.set_rings_up(status.rings_up());
  result.set_connections(status.connections());
  switch (status.state()) {
    case engine::v1::CONTROLLER_STATE_IDLE:
      result.set_state(v1::CONTROLLER_STATE_IDLE);
      break;
    case engine::v1::CONTROLLER_STATE_CONNECTING:
      result.set_state(v1::CONTROLLER_STATE_CONNECTING);
      break;
    case engine::v1::CONTROLLER_STATE_HANDSHAKE:
      result.set_state(v1::CONTROLLER_STATE_HANDSHAKE);
      break;
    case engine::v1::CONTROLLER_STATE_READY:
      result.set_state(v1::CONTROLLER_STATE_READY);
      break;
    case engine::v1::CONTROLLER_STATE_BROKEN:
      result.set_state(v1::CONTROLLER_STATE_BROKEN);
      break;
    case engine::v1::CONTROLLER_STATE_CLOSING:
      result.set_state(v1::CONTROLLER_STATE_DELETING);
      break;
    case engine::v1::CONTROLLER_STATE_UNSPECIFIED:
      result.set_state(v1::CONTROLLER_STATE_PENDING);
      break;
  }
  return result;
}

v1::AttachmentState FromEngine(engine::v1::AttachmentState state) {
  switch (state) {
    case engine::v1::ATTACHMENT_STATE_OPENING:
      return v1::ATTACHMENT_STATE_OPENING;
    case engine::v1::ATTACHMENT_STATE_ACTIVE:
      return v1::ATTACHMENT_STATE_READY;
    case engine::v1::ATTACHMENT_STATE_FAILED:
      return v1::ATTACHMENT_STATE_FAILED;
    case engine::v1::ATTACHMENT_STATE_CLOSING:
      return v1::ATTACHMENT_STATE_DETACHING;
    case engine::v1::ATTACHMENT_STATE_UNSPECIFIED:
      break;
  }
  return v1::ATTACHMENT_STATE_PENDING;
}

}  // namespace cleat::control
