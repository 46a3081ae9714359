// SPDX-License-Identifier: Apache-2.0
#include "control/callers/call_guard.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>

#include <google/rpc/error_details.pb.h>
#include <google/rpc/status.pb.h>
#include "control/model/reasons.h"

namespace cleat::control {
namespace {

// gRPC's clients drop a status whose headers exceed 8 KiB. A message goes there twice: with each byte that is not ASCII
// tripled, and in the details, in base64.
constexpr size_t kMessageBytesShown = 1200;
constexpr size_t kMetadataBytesShown = 200;
constexpr size_t kMetadataShown = 6;
constexpr size_t kResourceBytesRecorded = 256;
constexpr size_t kRequestIdBytesMax = 128;

// Does not cut a character of UTF-8 in two.
std::string Shorten(const std::string& text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + " ...";
}

grpc::StatusCode CodeOf(v1::Reason reason) {
  using grpc::StatusCode;
  static constexpr std::pair<std::string_view, StatusCode> kCodes[] = {
      {"INVALID_ARGUMENT", StatusCode::INVALID_ARGUMENT},
      {"DEADLINE_EXCEEDED", StatusCode::DEADLINE_EXCEEDED},
      {"NOT_FOUND", StatusCode::NOT_FOUND},
      {"ALREADY_EXISTS", StatusCode::ALREADY_EXISTS},
      {"PERMISSION_DENIED", StatusCode::PERMISSION_DENIED},
      {"RESOURCE_EXHAUSTED", StatusCode::RESOURCE_EXHAUSTED},
      {"FAILED_PRECONDITION", StatusCode::FAILED_PRECONDITION},
      {"ABORTED", StatusCode::ABORTED},
      {"OUT_OF_RANGE", StatusCode::OUT_OF_RANGE},
      {"UNAVAILABLE", StatusCode::UNAVAILABLE},
      {"DATA_LOSS", StatusCode::DATA_LOSS},
      {"UNAUTHENTICATED", StatusCode::UNAUTHENTICATED},
  };
  const std::string& name = InfoOf(reason).code();
  const auto* found =
      std::find_if(std::begin(kCodes), std::end(kCodes), [&](const auto& c) { return c.first == name; });
  return found == std::end(kCodes) ? StatusCode::INTERNAL : found->second;
}

// The caller's name for the call, else one of ours.
std::string RequestIdOf(const grpc::ServerContext& context) {
  const auto given = context.client_metadata().find("x-request-id");
  if (given != context.client_metadata().end() && !given->second.empty())
    return Shorten(std::string(given->second.data(), given->second.size()), kRequestIdBytesMax);
  uint64_t drawn = 0;
  (void)!getrandom(&drawn, sizeof(drawn), 0);
  return fmt::format("{:016x}", drawn);
}

std::vector<std::string> NamesIn(const grpc::AuthContext& auth) {
  std::vector<std::string> names;
  for (const char* property : {"x509_common_name", "x509_subject_alternative_name"}) {
    for (const grpc::string_ref& name : auth.FindPropertyValues(property))
      names.emplace_back(name.data(), name.size());
  }
  return names;
}

}  // namespace

google::rpc::Status ToRpcStatus(const Error& error) {
  const v1::Reason reason = ReasonOf(error);
  google::rpc::Status status;
  status.set_code(CodeOf(reason));
  status.set_message(Shorten(error.message, kMessageBytesShown));
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(ReasonName(reason)));
  info.set_domain(std::string(kErrorDomain));
  if (error.detail) {
    for (const auto& [key, value] : error.detail->metadata) {
      if (info.metadata().size() < kMetadataShown)
        (*info.mutable_metadata())[key] = Shorten(value, kMetadataBytesShown);
    }
  }
  status.add_details()->PackFrom(info);
  return status;
}

grpc::Status ToGrpc(const Error& error) {
  const google::rpc::Status status = ToRpcStatus(error);
  return {static_cast<grpc::StatusCode>(status.code()), status.message(), status.SerializeAsString()};
}

CallGuard::Admission CallGuard::Admit(const grpc::ServerContext& context, const Method& method) const {
  Admission admission;
  if (method.change) admission.request_id = RequestIdOf(context);
  admission.caller = listener_.CallerOf(context.peer());
  const auto auth = context.auth_context();
  if (admission.caller.kind == Caller::Kind::kUnknown && auth != nullptr && auth->IsPeerAuthenticated()) {
    admission.caller.kind = Caller::Kind::kCertificate;
    admission.caller.names = NamesIn(*auth);
  }
  if (admission.caller.kind == Caller::Kind::kUnknown) {
    admission.status =
        Refuse(v1::REASON_CALLER_UNKNOWN, "nobody knows who calls: use the unix socket or a certificate");
    return admission;
  }
  admission.role = grants_.RoleOf(admission.caller);
  if (admission.role >= method.role) return admission;
  const std::string caller = admission.caller.ToString();
  admission.status = Refuse(v1::REASON_ROLE_MISSING,
                            fmt::format("{} takes the role {}; {} has {}: have it granted (cleatd --grant)",
                                        method.name, RoleName(method.role), caller, RoleName(admission.role)),
                            {{"required_role", std::string(RoleName(method.role))},
                             {"role", std::string(RoleName(admission.role))},
                             {"caller", caller}});
  return admission;
}

std::shared_ptr<AuditedCall> CallGuard::Audit(const Admission& admission, const Method& method,
                                              const std::string& resource) {
  if (!method.change) return nullptr;
  AuditRecord record;
  record.caller = admission.caller.ToString();
  record.role = admission.role;
  record.method = method.name;
  record.resource = Shorten(resource, kResourceBytesRecorded);
  record.request_id = admission.request_id;
  return std::make_shared<AuditedCall>(audit_, std::move(record));
}

}  // namespace cleat::control
