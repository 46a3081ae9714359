// SPDX-License-Identifier: Apache-2.0
// The one place that every call goes through: finds the caller and the role, refuses what the role does not allow,
// records changes, logs with the request's id, and gives errors their form. gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <google/rpc/status.pb.h>
#include "base/log_request.h"
#include "base/result.h"
#include "control/callers/access.h"
#include "control/callers/audit_log.h"
#include "control/callers/audited_call.h"
#include "control/callers/unix_listener.h"
#include "control/model/change_recorder.h"

namespace cleat::control {

struct Method {
  const char* name;
  Role role;    // that it takes
  bool change;  // leaves an audit record
};

// With an ErrorInfo in its details; the second has the first in its own.
google::rpc::Status ToRpcStatus(const Error& error);
grpc::Status ToGrpc(const Error& error);

class CallGuard {
 public:
  // All outlive it.
  CallGuard(const Grants& grants, const UnixListener& listener, AuditLog& audit)
      : grants_(grants), listener_(listener), audit_(audit) {}

  // Calls `serve` (which returns Result<Reply>, and may want to know the caller) if the caller may.
  template <typename Reply, typename Serve>
  grpc::Status Handle(const grpc::ServerContext& context, const Method& method, const std::string& resource,
                      Reply* reply, Serve serve) {
    const Admission admission = Admit(context, method);
    const std::shared_ptr<AuditedCall> call = Audit(admission, method, resource);
    const log::RequestScope request(log::AsRequestId(admission.request_id));
    const RecorderScope recorder(call);
    Result<Reply> result = [&]() -> Result<Reply> {
      if (!admission.status.ok()) return admission.status.error();
      if (call != nullptr) CLEAT_TRY(call->Begin());
      if constexpr (std::is_invocable_v<Serve, const Caller&>) {
        return serve(admission.caller);
      } else {
        return serve();
      }
    }();
    if (call != nullptr) call->End(result.ok() ? nullptr : &result.error());
    if (!result.ok()) return ToGrpc(result.error());
    *reply = std::move(*result);
    return grpc::Status::OK;
  }

  struct Admission {
    Caller caller;
    Role role = Role::kNone;
    Status status;
    std::string request_id = {};
  };
  Admission Admit(const grpc::ServerContext& context, const Method& method) const;

 private:
  // Null: the method changes nothing.
  std::shared_ptr<AuditedCall> Audit(const Admission& admission, const Method& method,
                                     const std::string& resource);

  const Grants& grants_;
  const UnixListener& listener_;
  AuditLog& audit_;
};

}  // namespace cleat::control
