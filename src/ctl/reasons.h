// SPDX-License-Identifier: Apache-2.0
// Why a call failed: the reason in its status, and what the table of proto/cleat/v1/reason.proto says of it. Pure
// functions.
#pragma once

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>
#include <vector>

#include <google/rpc/status.pb.h>
#include "cleat/v1/reason.pb.h"

namespace cleat::ctl {

struct ExplainedReason {
  std::string name;  // "DISK_IN_USE"
  v1::ReasonInfo info;
};

// All of the table, in its order.
std::vector<ExplainedReason> AllReasons();
// By name, in any case, with or without REASON_, dashes for underscores; empty when there is none.
std::vector<ExplainedReason> FindReason(std::string_view name);

// Of the google.rpc.ErrorInfo that cleatd put into the status; empty when there is none.
std::string ReasonOf(const google::rpc::Status& status);
google::rpc::Status DetailsOf(const grpc::Status& status);
// "FAILED_PRECONDITION"
std::string_view CodeName(int code);

}  // namespace cleat::ctl
