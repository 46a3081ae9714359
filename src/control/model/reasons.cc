// SPDX-License-Identifier: Apache-2.0
#include "control/model/reasons.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"

namespace cleat::control {
namespace {

constexpr std::string_view kReasonPrefix = "REASON_";

const google::protobuf::EnumValueDescriptor& Describe(v1::Reason reason) {
  const auto* value = v1::Reason_descriptor()->FindValueByNumber(reason);
  CLEAT_CHECK(value != nullptr);
  return *value;
}

// cleat::ErrorCode has no value for the few codes that only an API needs; gRPC gets those from the table.
ErrorCode CodeOf(v1::Reason reason) {
  std::string name = InfoOf(reason).code();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    if (ErrorCodeName(static_cast<ErrorCode>(code)) == name) return static_cast<ErrorCode>(code);
  }
  return ErrorCode::kFailedPrecondition;
}

v1::Reason DefaultReason(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return v1::REASON_INVALID_FIELD;
    case ErrorCode::kNotFound:
      return v1::REASON_RESOURCE_NOT_FOUND;
    case ErrorCode::kAlreadyExists:
      return v1::REASON_CONTENT_DIFFERS;
    case ErrorCode::kPermissionDenied:
      return v1::REASON_FILE_ACCESS_DENIED;
    case ErrorCode::kFailedPrecondition:
      return v1::REASON_FILE_UNUSABLE;
    case ErrorCode::kAborted:
      return v1::REASON_RESOURCE_BUSY;
    case ErrorCode::kResourceExhausted:
      return v1::REASON_HOST_OUT_OF_SPACE;
    case ErrorCode::kUnavailable:
      return v1::REASON_STORE_UNWRITABLE;
    case ErrorCode::kDeadlineExceeded:
      return v1::REASON_WAIT_TIMED_OUT;
    case ErrorCode::kDataLoss:
      return v1::REASON_STORE_DAMAGED;
    case ErrorCode::kCancelled:
    case ErrorCode::kIo:
    case ErrorCode::kUnimplemented:
    case ErrorCode::kInternal:
      break;
  }
  return v1::REASON_INTERNAL;
}

}  // namespace

Error Refuse(v1::Reason reason, std::string message, Metadata metadata) {
  Error error(CodeOf(reason), std::move(message));
  error.detail =
      std::make_shared<const ErrorDetail>(ErrorDetail{.reason = reason, .metadata = std::move(metadata)});
  return error;
}

Error RefuseFor(std::string_view resource, v1::Reason reason, std::string message, Metadata metadata) {
  metadata.emplace(metadata.begin(), "resource", resource);
  return Refuse(reason, std::move(message), std::move(metadata));
}

v1::Reason ReasonOf(const Error& error) {
  return error.detail ? error.detail->reason : DefaultReason(error.code);
}

std::string_view MetadataOf(const Error& error, std::string_view key) {
  if (!error.detail) return {};
  for (const auto& [name, value] : error.detail->metadata) {
    if (name == key) return value;
  }
  return {};
}

std::string_view ReasonName(v1::Reason reason) {
  return std::string_view(Describe(reason).name()).substr(kReasonPrefix.size());
}

const v1::ReasonInfo& InfoOf(v1::Reason reason) {
  return Describe(reason).options().GetExtension(v1::reason_info);
}

std::vector<v1::Reason> AllReasons() {
  std::vector<v1::Reason> reasons;
  const auto* all = v1::Reason_descriptor();
  for (int i = 0; i < all->value_count(); ++i) {
    if (all->value(i)->number() != v1::REASON_UNSPECIFIED)
      reasons.push_back(static_cast<v1::Reason>(all->value(i)->number()));
  }
  return reasons;
}

}  // namespace cleat::control
