// SPDX-License-Identifier: Apache-2.0
#include "ctl/client.h"

#include <fmt/format.h>

#include "ctl/reasons.h"

namespace cleat::ctl {
namespace {

constexpr std::chrono::seconds kConnectTime{5};

}  // namespace

ExitCode Client::Dial() {
  if (stub_ != nullptr) return kOk;
  const auto channel = Connect(globals_.connection, kConnectTime);
  if (!channel.ok()) {
    dialled_ = channel.error().code == ErrorCode::kInvalidArgument ? kUsage : kUnreachable;
    return Fail(dialled_, channel.error().message);
  }
  stub_ = v1::Cleat::NewStub(*channel);
  return kOk;
}

ExitCode Client::Say(const grpc::Status& status) {
  if (status.ok()) return kOk;
  if (dialled_ != kOk) return dialled_;  // was said
  const std::string reason = ReasonOf(DetailsOf(status));
  const bool timed_out = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
  if (!reason.empty()) {
    return Fail(timed_out ? kTimedOut : kFailed, fmt::format("{}\nreason: {} (run cleatctl explain {})",
                                                             status.error_message(), reason, reason));
  }
  // Without a reason it is gRPC that speaks, not cleatd.
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Fail(kUnreachable, Unreachable(globals_.connection, "it does not answer in time"));
    case grpc::StatusCode::UNAVAILABLE:
      return Fail(kUnreachable, Unreachable(globals_.connection, status.error_message()));
    case grpc::StatusCode::UNIMPLEMENTED:
      return Fail(kFailed, fmt::format("cleatd does not know this call: it is older than cleatctl ({})",
                                       status.error_message()));
    default:
      return Fail(kFailed, fmt::format("{} ({})", status.error_message(), CodeName(status.error_code())));
  }
}

void Client::Show(const google::protobuf::Message& message, const std::function<std::string()>& table) const {
  switch (globals_.format) {
    case Format::kTable:
      return Print(table());
    case Format::kJson:
      return Print(ToJson(message, true));
    case Format::kYaml:
      return Print(ToYaml(message));
  }
}

std::string FullName(std::string_view collection, std::string_view argument) {
  return argument.starts_with(collection) ? std::string(argument) : fmt::format("{}{}", collection, argument);
}

std::string_view IdOf(std::string_view name) {
  return name.substr(name.rfind('/') + 1);
}

}  // namespace cleat::ctl
