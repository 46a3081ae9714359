// SPDX-License-Identifier: Apache-2.0
// The one place that every call goes through: finds the caller and the role, refuses what the role does not allow,
// records changes, and gives errors their form. gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string>
#include <type_traits>
#include <utility>

#include <google/rpc/status.pb.h>
#include "base/result.h"
#include "control/callers/access.h"
#include "control/callers/audit_log.h"
#include "control/callers/unix_listener.h"

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
    const auto started = std::chrono::steady_clock::now();
    const Admission admission = Admit(context, method);
    Result<Reply> result = [&]() -> Result<Reply> {
      if (!admission.status.ok()) return admission.status.error();
      if (method.change) CLEAT_TRY(RecordIntent(admission, method, resource));
      if constexpr (std::is_invocable_v<Serve, const Caller&>) {
        return serve(admission.caller);
      } else {
        return serve();
      }
    }();
    if (method.change) Record(admission, method, resource, result.ok() ? nullptr : &result.error(), started);
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
  // Before the change, where it has to be recorded. An error: it can't be, and the change is not made.
  Status RecordIntent(const Admission& admission, const Method& method, const std::string& resource);
  void Record(const Admission& admission, const Method& method, const std::string& resource,
              const Error* error, std::chrono::steady_clock::time_point started);

  const Grants& grants_;
  const UnixListener& listener_;
  AuditLog& audit_;
};

}  // namespace cleat::control
