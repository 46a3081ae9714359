// SPDX-License-Identifier: Apache-2.0
#include "api.h"

#include <fmt/format.h>

#include <chrono>

#include "perf/vhost_user/deadline.h"

namespace cleat::system_test {
namespace {

constexpr int kReconnectMs = 10;  // a cleatd that was restarted is found at once

std::string DiskName(const std::string& id) {
  return "disks/" + id;
}
std::string ControllerName(const std::string& id) {
  return "controllers/" + id;
}
std::string AttachmentName(const std::string& controller, const std::string& id) {
  return ControllerName(controller) + "/attachments/" + id;
}

// Collects a list page by page.
template <typename Fetch>
grpc::Status AllPages(const Fetch& fetch) {
  std::string token;
  do {
    if (grpc::Status status = fetch(&token); !status.ok()) return status;
  } while (!token.empty());
  return grpc::Status::OK;
}

template <typename Map, typename Resources>
void Insert(const Resources& resources, Map* map) {
  for (const auto& resource : resources) (*map)[resource.name()] = resource;
}

}  // namespace

void Model::Apply(const v1::WatchResponse& event) {
  switch (event.event_case()) {
    case v1::WatchResponse::kDisk:
      disks[event.disk().name()] = event.disk();
      break;
    case v1::WatchResponse::kCluster:
      clusters[event.cluster().name()] = event.cluster();
      break;
    case v1::WatchResponse::kGroup:
      groups[event.group().name()] = event.group();
      break;
    case v1::WatchResponse::kPool:
      pools[event.pool().name()] = event.pool();
      break;
    case v1::WatchResponse::kController:
      controllers[event.controller().name()] = event.controller();
      break;
    case v1::WatchResponse::kAttachment:
      attachments[event.attachment().name()] = event.attachment();
      break;
    case v1::WatchResponse::kEngine:
      engines[event.engine().name()] = event.engine();
      break;
    case v1::WatchResponse::kGone:
      disks.erase(event.gone());
      clusters.erase(event.gone());
      groups.erase(event.gone());
      pools.erase(event.gone());
      controllers.erase(event.gone());
      attachments.erase(event.gone());
      engines.erase(event.gone());
      break;
    default:
      break;
  }
}

std::string Model::ControllerMessage(const std::string& id) const {
  const auto found = controllers.find(ControllerName(id));
  return found == controllers.end() ? "" : found->second.status().message();
}

v1::ControllerState Model::ControllerStateOf(const std::string& id) const {
  const auto found = controllers.find(ControllerName(id));
  return found == controllers.end() ? v1::CONTROLLER_STATE_UNSPECIFIED : found->second.status().state();
}

v1::AttachmentState Model::AttachmentStateOf(const std::string& controller, const std::string& id) const {
  const auto found = attachments.find(AttachmentName(controller, id));
  return found == attachments.end() ? v1::ATTACHMENT_STATE_UNSPECIFIED : found->second.status().state();
}

std::string Model::ToString() const {
  std::string text;
  const auto add = [&](const std::string& name, const auto& status) {
    text += fmt::format("{}: {}\n", name, status.ShortDebugString());
  };
  for (const auto& [name, engine] : engines) add(name, engine.status());
  for (const auto& [name, cluster] : clusters) add(name, cluster.status());
  for (const auto& [name, pool] : pools) add(name, pool.status());
  for (const auto& [name, disk] : disks) add(name, disk.status());
  for (const auto& [name, controller] : controllers) add(name, controller.status());
  for (const auto& [name, attachment] : attachments) add(name, attachment.status());
  return text;
}

Api::Api(const std::string& address, bool patient) : patient_(patient) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own for each client
  stub_ =
      v1::Cleat::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

void Api::Prepare(grpc::ClientContext* context, uint64_t timeout_ns) const {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout_ns));
  context->set_wait_for_ready(patient_);
}

template <typename Request, typename Response>
Reply<Response> Api::Call(grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                  Response*),
                          const Request& request) {
  grpc::ClientContext context;
  Prepare(&context, kCallTimeoutNs);
  Reply<Response> reply;
  reply.status = (stub_.get()->*method)(&context, request, &reply.value);
  return reply;
}

Reply<v1::Disk> Api::CreateDisk(const std::string& id, const v1::DiskSpec& spec) {
  v1::CreateDiskRequest request;
  request.set_disk_id(id);
  *request.mutable_disk()->mutable_spec() = spec;
  return Call(&v1::Cleat::Stub::CreateDisk, request);
}

Reply<v1::Disk> Api::GetDisk(const std::string& id) {
  v1::GetDiskRequest request;
  request.set_name(DiskName(id));
  return Call(&v1::Cleat::Stub::GetDisk, request);
}

grpc::Status Api::DeleteDisk(const std::string& id, bool purge) {
  v1::DeleteDiskRequest request;
  request.set_name(DiskName(id));
  request.set_purge(purge);
  return Call(&v1::Cleat::Stub::DeleteDisk, request).status;
}

grpc::Status Api::UndeleteDisk(const std::string& id) {
  v1::UndeleteDiskRequest request;
  request.set_name(DiskName(id));
  return Call(&v1::Cleat::Stub::UndeleteDisk, request).status;
}

grpc::Status Api::PurgeDisk(const std::string& id) {
  v1::PurgeDiskRequest request;
  request.set_name(DiskName(id));
  return Call(&v1::Cleat::Stub::PurgeDisk, request).status;
}

Reply<v1::Controller> Api::CreateController(const std::string& id, const v1::ControllerSpec& spec) {
  v1::CreateControllerRequest request;
  request.set_controller_id(id);
  *request.mutable_controller()->mutable_spec() = spec;
  return Call(&v1::Cleat::Stub::CreateController, request);
}

Reply<v1::Controller> Api::GetController(const std::string& id) {
  v1::GetControllerRequest request;
  request.set_name(ControllerName(id));
  return Call(&v1::Cleat::Stub::GetController, request);
}

grpc::Status Api::DeleteController(const std::string& id) {
  v1::DeleteControllerRequest request;
  request.set_name(ControllerName(id));
  return Call(&v1::Cleat::Stub::DeleteController, request).status;
}

Reply<v1::Disk> Api::ResizeDisk(const std::string& id, uint64_t size_bytes) {
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(DiskName(id));
  request.mutable_disk()->mutable_spec()->set_size_bytes(size_bytes);
  request.mutable_update_mask()->add_paths("spec.size_bytes");
  return Call(&v1::Cleat::Stub::UpdateDisk, request);
}

Reply<v1::Disk> Api::LimitDisk(const std::string& id, const v1::Limits& limits) {
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name(DiskName(id));
  *request.mutable_disk()->mutable_spec()->mutable_limits() = limits;
  request.mutable_update_mask()->add_paths("spec.limits");
  return Call(&v1::Cleat::Stub::UpdateDisk, request);
}

Reply<v1::Group> Api::CreateGroup(const std::string& id, const v1::Limits& limits) {
  v1::CreateGroupRequest request;
  request.set_group_id(id);
  *request.mutable_group()->mutable_spec()->mutable_limits() = limits;
  return Call(&v1::Cleat::Stub::CreateGroup, request);
}

Reply<v1::Group> Api::LimitGroup(const std::string& id, const v1::Limits& limits) {
  v1::UpdateGroupRequest request;
  request.mutable_group()->set_name("groups/" + id);
  *request.mutable_group()->mutable_spec()->mutable_limits() = limits;
  request.mutable_update_mask()->add_paths("spec.limits");
  return Call(&v1::Cleat::Stub::UpdateGroup, request);
}

grpc::Status Api::DeleteGroup(const std::string& id) {
  v1::DeleteGroupRequest request;
  request.set_name("groups/" + id);
  return Call(&v1::Cleat::Stub::DeleteGroup, request).status;
}

Reply<v1::Pool> Api::CreatePool(const std::string& id, const std::string& device, uint64_t extent_bytes) {
  v1::CreatePoolRequest request;
  request.set_pool_id(id);
  request.mutable_pool()->mutable_spec()->set_device(device);
  request.mutable_pool()->mutable_spec()->set_extent_bytes(extent_bytes);
  return Call(&v1::Cleat::Stub::CreatePool, request);
}

Reply<v1::Subsystem> Api::CreateSubsystem(const std::string& id, const v1::SubsystemSpec& spec) {
  v1::CreateSubsystemRequest request;
  request.set_subsystem_id(id);
  *request.mutable_subsystem()->mutable_spec() = spec;
  return Call(&v1::Cleat::Stub::CreateSubsystem, request);
}

Reply<v1::Controller> Api::UpdateController(const v1::Controller& controller, const std::string& field) {
  v1::UpdateControllerRequest request;
  *request.mutable_controller() = controller;
  request.mutable_update_mask()->add_paths(field);
  return Call(&v1::Cleat::Stub::UpdateController, request);
}

grpc::Status Api::WaitReady(const std::string& name) {
  grpc::ClientContext context;
  Prepare(&context, kWaitTimeoutNs + kCallTimeoutNs);
  v1::WaitRequest request;
  request.set_name(name);
  request.mutable_timeout()->set_seconds(static_cast<int64_t>(kWaitTimeoutNs / kNsPerSecond));
  v1::WaitResponse response;
  return stub_->Wait(&context, request, &response);
}

Reply<v1::Attachment> Api::Attach(const std::string& controller, const std::string& disk, bool read_only,
                                  std::optional<uint32_t> target) {
  v1::AttachDiskRequest request;
  request.set_parent(ControllerName(controller));
  request.mutable_attachment()->mutable_spec()->set_disk(DiskName(disk));
  request.mutable_attachment()->mutable_spec()->set_read_only(read_only);
  if (target) request.mutable_attachment()->mutable_spec()->set_target(*target);
  return Call(&v1::Cleat::Stub::AttachDisk, request);
}

Reply<v1::Attachment> Api::GetAttachment(const std::string& controller, const std::string& disk) {
  v1::GetAttachmentRequest request;
  request.set_name(AttachmentName(controller, disk));
  return Call(&v1::Cleat::Stub::GetAttachment, request);
}

grpc::Status Api::Detach(const std::string& controller, const std::string& disk) {
  v1::DetachDiskRequest request;
  request.set_name(AttachmentName(controller, disk));
  return Call(&v1::Cleat::Stub::DetachDisk, request).status;
}

Reply<Model> Api::List() {
  Reply<Model> reply;
  Model& model = reply.value;
  const auto list = [&](auto call, auto request, auto response, auto take) {
    if (!reply.status.ok()) return;
    reply.status = AllPages([&](std::string* token) {
      grpc::ClientContext context;
      Prepare(&context, kCallTimeoutNs);
      request.set_page_token(*token);
      response.Clear();
      grpc::Status status = ((*stub_).*call)(&context, request, &response);
      take(response);
      *token = response.next_page_token();
      return status;
    });
  };
  list(&v1::Cleat::Stub::ListDisks, v1::ListDisksRequest(), v1::ListDisksResponse(),
       [&](const auto& response) { Insert(response.disks(), &model.disks); });
  list(&v1::Cleat::Stub::ListControllers, v1::ListControllersRequest(), v1::ListControllersResponse(),
       [&](const auto& response) { Insert(response.controllers(), &model.controllers); });
  v1::ListAttachmentsRequest all;
  all.set_parent("controllers/-");
  list(&v1::Cleat::Stub::ListAttachments, all, v1::ListAttachmentsResponse(),
       [&](const auto& response) { Insert(response.attachments(), &model.attachments); });
  list(&v1::Cleat::Stub::ListEngines, v1::ListEnginesRequest(), v1::ListEnginesResponse(),
       [&](const auto& response) { Insert(response.engines(), &model.engines); });
  return reply;
}

bool Api::WaitUntil(const Condition& done, Model* last, uint64_t timeout_ns) {
  const perf::Deadline deadline(timeout_ns);
  while (!deadline.passed()) {
    grpc::ClientContext context;
    Prepare(&context, static_cast<uint64_t>(deadline.LeftMs()) * kNsPerMs);
    context.set_wait_for_ready(true);
    const auto stream = stub_->Watch(&context, v1::WatchRequest());
    Model model;
    bool synced = false;
    bool satisfied = false;
    v1::WatchResponse event;
    while (!satisfied && stream->Read(&event)) {
      model.Apply(event);
      synced = synced || event.has_synced();
      satisfied = synced && done(model);
    }
    if (last != nullptr && synced) *last = model;
    context.TryCancel();
    stream->Finish();
    if (satisfied) return true;
  }
  return false;
}

v1::Limits Iops(uint64_t per_second, uint64_t burst_per_second, int64_t burst_s) {
  v1::Limits limits;
  limits.mutable_iops()->set_per_second(per_second);
  limits.mutable_iops()->set_burst_per_second(burst_per_second);
  if (burst_s > 0) limits.mutable_iops()->mutable_burst_duration()->set_seconds(burst_s);
  return limits;
}

v1::DiskSpec NullDisk(uint64_t size_bytes) {
  v1::DiskSpec spec;
  spec.set_size_bytes(size_bytes);
  spec.mutable_null();
  return spec;
}

v1::DiskSpec MemoryDisk(uint64_t size_bytes) {
  v1::DiskSpec spec;
  spec.set_size_bytes(size_bytes);
  spec.mutable_memory();
  return spec;
}

v1::DiskSpec FileDisk(uint64_t size_bytes, const std::string& path, bool create) {
  v1::DiskSpec spec;
  spec.set_size_bytes(size_bytes);
  spec.mutable_file()->set_path(path);
  spec.mutable_file()->set_create(create);
  return spec;
}

v1::DiskSpec PoolDisk(uint64_t size_bytes, const std::string& pool) {
  v1::DiskSpec spec;
  spec.set_size_bytes(size_bytes);
  spec.mutable_pool()->set_pool("pools/" + pool);
  return spec;
}

v1::ControllerSpec BlkController(const std::string& socket_path, uint32_t queues, v1::SocketMode mode) {
  v1::ControllerSpec spec;
  spec.set_socket_path(socket_path);
  spec.set_queues(queues);
  spec.set_socket_mode(mode);
  return spec;
}

v1::ControllerSpec ScsiController(const std::string& socket_path, uint32_t queues) {
  v1::ControllerSpec spec;
  spec.set_type(v1::CONTROLLER_TYPE_SCSI);
  spec.set_socket_path(socket_path);
  spec.set_queues(queues);
  return spec;
}

}  // namespace cleat::system_test
