// SPDX-License-Identifier: Apache-2.0
// Requests of the API in a line each.
#pragma once

#include <string>

#include "cleat/v1/cleat.pb.h"
#include "control/names.h"

namespace cleat::control {

inline constexpr uint64_t kMiB = 1024 * 1024;

inline v1::CreateDiskRequest NullDisk(const std::string& id, uint64_t size_bytes = kMiB) {
  v1::CreateDiskRequest request;
  request.set_disk_id(id);
  request.mutable_disk()->mutable_spec()->set_size_bytes(size_bytes);
  request.mutable_disk()->mutable_spec()->mutable_null();
  return request;
}

inline v1::CreateDiskRequest MemoryDisk(const std::string& id, uint64_t size_bytes = kMiB) {
  v1::CreateDiskRequest request = NullDisk(id, size_bytes);
  request.mutable_disk()->mutable_spec()->mutable_memory();
  return request;
}

inline v1::CreateDiskRequest FileDisk(const std::string& id, const std::string& path, bool create,
                                      uint64_t size_bytes = kMiB) {
  v1::CreateDiskRequest request = NullDisk(id, size_bytes);
  request.mutable_disk()->mutable_spec()->mutable_file()->set_path(path);
  request.mutable_disk()->mutable_spec()->mutable_file()->set_create(create);
  return request;
}

inline v1::CreateControllerRequest NewController(const std::string& id, const std::string& socket = {}) {
  v1::CreateControllerRequest request;
  request.set_controller_id(id);
  request.mutable_controller()->mutable_spec()->set_socket_path(socket.empty() ? "/run/vm/" + id : socket);
  return request;
}

inline v1::AttachDiskRequest Attach(const std::string& disk, const std::string& controller,
                                    bool read_only = false) {
  v1::AttachDiskRequest request;
  request.set_parent(ControllerName(controller));
  request.mutable_attachment()->mutable_spec()->set_disk(DiskName(disk));
  request.mutable_attachment()->mutable_spec()->set_read_only(read_only);
  return request;
}

inline v1::DetachDiskRequest Detach(const std::string& controller, const std::string& attachment) {
  v1::DetachDiskRequest request;
  request.set_name(AttachmentName(controller, attachment));
  return request;
}

inline v1::DeleteDiskRequest DeleteDisk(const std::string& id) {
  v1::DeleteDiskRequest request;
  request.set_name(DiskName(id));
  return request;
}

inline v1::DeleteControllerRequest DeleteController(const std::string& id) {
  v1::DeleteControllerRequest request;
  request.set_name(ControllerName(id));
  return request;
}

inline v1::GetDiskRequest GetDisk(const std::string& id) {
  v1::GetDiskRequest request;
  request.set_name(DiskName(id));
  return request;
}

inline v1::GetControllerRequest GetController(const std::string& id) {
  v1::GetControllerRequest request;
  request.set_name(ControllerName(id));
  return request;
}

inline v1::GetAttachmentRequest GetAttachment(const std::string& controller, const std::string& id) {
  v1::GetAttachmentRequest request;
  request.set_name(AttachmentName(controller, id));
  return request;
}

inline v1::GetEngineRequest GetEngine(const std::string& id) {
  v1::GetEngineRequest request;
  request.set_name(EngineName(id));
  return request;
}

}  // namespace cleat::control
