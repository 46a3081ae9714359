// SPDX-License-Identifier: Apache-2.0
// Requests of the API in a line each.
#pragma once

#include <string>
#include <vector>

#include "cleat/v1/cleat.pb.h"
#include "control/model/names.h"

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

inline v1::CreateSubsystemRequest NewSubsystem(const std::string& id,
                                               const std::string& nqn = "nqn.2014-08.org.example:array") {
  v1::CreateSubsystemRequest request;
  request.set_subsystem_id(id);
  request.mutable_subsystem()->mutable_spec()->set_nqn(nqn);
  request.mutable_subsystem()->mutable_spec()->add_addresses("10.0.0.1");
  return request;
}

// Secrets made by nobody.
inline constexpr char kChapSecret[] = "DHHC-1:01:QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl9YjiZe:";
inline constexpr char kOtherChapSecret[] = "DHHC-1:00:YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8x9qY5:";
inline constexpr char kTlsPsk[] = "NVMeTLSkey-1:01:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:";

// A subsystem that this host proves itself to.
inline v1::CreateSubsystemRequest SecretSubsystem(const std::string& id,
                                                  const std::string& secret = kChapSecret) {
  v1::CreateSubsystemRequest request = NewSubsystem(id, "nqn.2014-08.org.example:" + id);
  request.mutable_subsystem()->mutable_spec()->mutable_dhchap_secret()->set_plain_key(secret);
  return request;
}

inline v1::UpdateSubsystemRequest Update(const v1::CreateSubsystemRequest& wanted) {
  v1::UpdateSubsystemRequest request;
  request.mutable_subsystem()->set_name("subsystems/" + wanted.subsystem_id());
  *request.mutable_subsystem()->mutable_spec() = wanted.subsystem().spec();
  request.mutable_update_mask()->add_paths("spec");
  return request;
}

inline v1::CreateDiskRequest NvmeDisk(const std::string& id,
                                      const std::string& uuid = "4c0f7d1e-8a55-4d0b-9a53-0b6b0f4d2f11",
                                      const std::string& subsystem = "subsystems/array") {
  v1::CreateDiskRequest request = NullDisk(id);
  v1::NvmeTcpBackend& nvme = *request.mutable_disk()->mutable_spec()->mutable_nvme_tcp();
  nvme.set_subsystem(subsystem);
  nvme.set_namespace_uuid(uuid);
  return request;
}

inline v1::CreateControllerRequest NewController(const std::string& id, const std::string& socket = {}) {
  v1::CreateControllerRequest request;
  request.set_controller_id(id);
  request.mutable_controller()->mutable_spec()->set_socket_path(socket.empty() ? "/run/vm/" + id : socket);
  return request;
}

inline constexpr char kHostOne[] = "nqn.2014-08.org.example:host1";
inline constexpr char kHostTwo[] = "nqn.2014-08.org.example:host2";

// An export that lets in kHostOne.
inline v1::CreateControllerRequest NewExport(const std::string& id, const std::string& nqn = {}) {
  v1::CreateControllerRequest request;
  request.set_controller_id(id);
  v1::ControllerSpec& spec = *request.mutable_controller()->mutable_spec();
  spec.set_type(v1::CONTROLLER_TYPE_NVMF);
  spec.mutable_exported()->set_nqn(nqn);
  spec.mutable_exported()->add_addresses("10.0.0.1");
  spec.mutable_exported()->add_hosts()->set_nqn(kHostOne);
  return request;
}

inline v1::UpdateControllerRequest LetIn(const std::string& id, const std::vector<std::string>& hosts) {
  v1::UpdateControllerRequest request;
  request.mutable_controller()->set_name(ControllerName(id));
  v1::ExportSpec& spec = *request.mutable_controller()->mutable_spec()->mutable_exported();
  for (const std::string& host : hosts) spec.add_hosts()->set_nqn(host);
  request.mutable_update_mask()->add_paths("spec.exported.hosts");
  return request;
}

inline v1::RateLimit Rate(uint64_t per_second, uint64_t burst_per_second = 0, int64_t burst_s = 0) {
  v1::RateLimit rate;
  rate.set_per_second(per_second);
  rate.set_burst_per_second(burst_per_second);
  if (burst_s != 0) rate.mutable_burst_duration()->set_seconds(burst_s);
  return rate;
}

inline v1::CreateGroupRequest NewGroup(const std::string& id, uint64_t iops = 0) {
  v1::CreateGroupRequest request;
  request.set_group_id(id);
  if (iops != 0) *request.mutable_group()->mutable_spec()->mutable_limits()->mutable_iops() = Rate(iops);
  return request;
}

inline v1::UpdateGroupRequest LimitGroup(const std::string& id, uint64_t iops) {
  v1::UpdateGroupRequest request;
  request.mutable_group()->set_name(GroupName(id));
  if (iops != 0) *request.mutable_group()->mutable_spec()->mutable_limits()->mutable_iops() = Rate(iops);
  request.mutable_update_mask()->add_paths("spec.limits");
  return request;
}

inline v1::DeleteGroupRequest DeleteGroup(const std::string& id) {
  v1::DeleteGroupRequest request;
  request.set_name(GroupName(id));
  return request;
}

inline v1::GetGroupRequest GetGroup(const std::string& id) {
  v1::GetGroupRequest request;
  request.set_name(GroupName(id));
  return request;
}

inline v1::UpdateDiskRequest LimitDisk(const std::string& id, uint64_t iops) {
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(DiskName(id));
  if (iops != 0) *request.mutable_disk()->mutable_spec()->mutable_limits()->mutable_iops() = Rate(iops);
  request.mutable_update_mask()->add_paths("spec.limits");
  return request;
}

inline v1::UpdateDiskRequest SetOnNoSpace(const std::string& id, v1::OnNoSpace on_no_space) {
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(DiskName(id));
  request.mutable_disk()->mutable_spec()->set_on_no_space(on_no_space);
  request.mutable_update_mask()->add_paths("spec.on_no_space");
  return request;
}

inline v1::CreateControllerRequest ControllerIn(const std::string& id, const std::string& group) {
  v1::CreateControllerRequest request;
  request.set_controller_id(id);
  request.mutable_controller()->mutable_spec()->set_socket_path("/run/vm/" + id);
  request.mutable_controller()->mutable_spec()->set_group(GroupName(group));
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
