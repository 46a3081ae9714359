// SPDX-License-Identifier: Apache-2.0
#include "control/service.h"

#include <chrono>
#include <utility>

namespace cleat::control {
namespace {

// How often a watcher that hears nothing looks whether its caller is still there.
constexpr std::chrono::milliseconds kWatchTurn{500};

grpc::StatusCode CodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case ErrorCode::kNotFound:
      return grpc::StatusCode::NOT_FOUND;
    case ErrorCode::kAlreadyExists:
      return grpc::StatusCode::ALREADY_EXISTS;
    case ErrorCode::kPermissionDenied:
      return grpc::StatusCode::PERMISSION_DENIED;
    case ErrorCode::kFailedPrecondition:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case ErrorCode::kAborted:
      return grpc::StatusCode::ABORTED;
    case ErrorCode::kResourceExhausted:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case ErrorCode::kUnavailable:
      return grpc::StatusCode::UNAVAILABLE;
    case ErrorCode::kDeadlineExceeded:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case ErrorCode::kCancelled:
      return grpc::StatusCode::CANCELLED;
    case ErrorCode::kDataLoss:
      return grpc::StatusCode::DATA_LOSS;
    case ErrorCode::kUnimplemented:
      return grpc::StatusCode::UNIMPLEMENTED;
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      break;
  }
  return grpc::StatusCode::INTERNAL;
}

template <typename Reply>
grpc::Status Answer(Result<Reply> result, Reply* reply) {
  if (!result.ok()) return ToGrpc(result.error());
  *reply = std::move(*result);
  return grpc::Status::OK;
}

}  // namespace

grpc::Status ToGrpc(const Error& error) {
  // gRPC drops a status whose headers exceed 8 KiB, and triples each byte that is not ASCII.
  constexpr size_t kMessageBytesMax = 2400;
  if (error.message.size() <= kMessageBytesMax) return {CodeOf(error.code), error.message};
  return {CodeOf(error.code), error.message.substr(0, kMessageBytesMax) + " ..."};
}

grpc::Status Service::CreateDisk(grpc::ServerContext*, const v1::CreateDiskRequest* request,
                                 v1::Disk* reply) {
  return Answer(state_.CreateDisk(*request), reply);
}

grpc::Status Service::GetDisk(grpc::ServerContext*, const v1::GetDiskRequest* request, v1::Disk* reply) {
  return Answer(state_.GetDisk(*request), reply);
}

grpc::Status Service::ListDisks(grpc::ServerContext*, const v1::ListDisksRequest* request,
                                v1::ListDisksResponse* reply) {
  return Answer(state_.ListDisks(*request), reply);
}

grpc::Status Service::DeleteDisk(grpc::ServerContext*, const v1::DeleteDiskRequest* request,
                                 v1::DeleteDiskResponse* reply) {
  return Answer(state_.DeleteDisk(*request), reply);
}

grpc::Status Service::CreateController(grpc::ServerContext*, const v1::CreateControllerRequest* request,
                                       v1::Controller* reply) {
  return Answer(state_.CreateController(*request), reply);
}

grpc::Status Service::GetController(grpc::ServerContext*, const v1::GetControllerRequest* request,
                                    v1::Controller* reply) {
  return Answer(state_.GetController(*request), reply);
}

grpc::Status Service::ListControllers(grpc::ServerContext*, const v1::ListControllersRequest* request,
                                      v1::ListControllersResponse* reply) {
  return Answer(state_.ListControllers(*request), reply);
}

grpc::Status Service::DeleteController(grpc::ServerContext*, const v1::DeleteControllerRequest* request,
                                       v1::DeleteControllerResponse* reply) {
  return Answer(state_.DeleteController(*request), reply);
}

grpc::Status Service::AttachDisk(grpc::ServerContext*, const v1::AttachDiskRequest* request,
                                 v1::Attachment* reply) {
  return Answer(state_.AttachDisk(*request), reply);
}

grpc::Status Service::DetachDisk(grpc::ServerContext*, const v1::DetachDiskRequest* request,
                                 v1::DetachDiskResponse* reply) {
  return Answer(state_.DetachDisk(*request), reply);
}

grpc::Status Service::GetAttachment(grpc::ServerContext*, const v1::GetAttachmentRequest* request,
                                    v1::Attachment* reply) {
  return Answer(state_.GetAttachment(*request), reply);
}

grpc::Status Service::ListAttachments(grpc::ServerContext*, const v1::ListAttachmentsRequest* request,
                                      v1::ListAttachmentsResponse* reply) {
  return Answer(state_.ListAttachments(*request), reply);
}

grpc::Status Service::GetEngine(grpc::ServerContext*, const v1::GetEngineRequest* request,
                                v1::Engine* reply) {
  return Answer(state_.GetEngine(*request), reply);
}

grpc::Status Service::ListEngines(grpc::ServerContext*, const v1::ListEnginesRequest* request,
                                  v1::ListEnginesResponse* reply) {
  return Answer(state_.ListEngines(*request), reply);
}

grpc::Status Service::Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                            grpc::ServerWriter<v1::WatchResponse>* writer) {
  const auto watcher = state_.Watch();
  if (!watcher.ok()) return ToGrpc(watcher.error());
  while (!context->IsCancelled()) {
    auto event = (*watcher)->Next(kWatchTurn);
    if (!event.ok()) return ToGrpc(event.error());
    if (*event != nullptr && !writer->Write(**event)) break;
  }
  return grpc::Status::CANCELLED;
}

}  // namespace cleat::control
