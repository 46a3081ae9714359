// SPDX-License-Identifier: Apache-2.0
#include "ctl/reasons.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include <google/rpc/error_details.pb.h>

namespace cleat::ctl {
namespace {

constexpr std::string_view kPrefix = "REASON_";
constexpr std::string_view kDomain = "cleat";

}  // namespace

std::vector<ExplainedReason> AllReasons() {
  std::vector<ExplainedReason> all;
  const auto& type = *v1::Reason_descriptor();
  for (int i = 0; i < type.value_count(); ++i) {
    const auto& value = *type.value(i);
    if (!value.options().HasExtension(v1::reason_info)) continue;
    all.push_back(
        {.name = value.name().substr(kPrefix.size()), .info = value.options().GetExtension(v1::reason_info)});
  }
  return all;
}

std::vector<ExplainedReason> FindReason(std::string_view name) {
  std::string wanted(name);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(),
                 [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
  if (wanted.starts_with(kPrefix)) wanted.erase(0, kPrefix.size());
  std::vector<ExplainedReason> all = AllReasons();
  std::erase_if(all, [&](const ExplainedReason& reason) { return reason.name != wanted; });
  return all;
}

std::string ReasonOf(const google::rpc::Status& status) {
  for (const auto& detail : status.details()) {
    google::rpc::ErrorInfo info;
    if (detail.Is<google::rpc::ErrorInfo>() && detail.UnpackTo(&info) && info.domain() == kDomain)
      return info.reason();
  }
  return {};
}

google::rpc::Status DetailsOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) details.Clear();
  details.set_code(status.error_code());
  details.set_message(status.error_message());
  return details;
}

std::string_view CodeName(int code) {
  constexpr std::string_view kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  return code >= 0 && static_cast<size_t>(code) < std::size(kNames) ? kNames[code] : "UNKNOWN";
}

}  // namespace cleat::ctl
