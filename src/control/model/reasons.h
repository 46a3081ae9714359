// SPDX-License-Identifier: Apache-2.0
// Errors with a reason. The table of reasons - gRPC code, meaning, what the caller should do - is
// proto/cleat/v1/reason.proto; here are the ways to read it and to make errors of it. Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cleat/v1/reason.pb.h"

namespace cleat {

// What ErrorInfo says of an error beside its domain.
struct ErrorDetail {
  v1::Reason reason;
  std::vector<std::pair<std::string, std::string>> metadata;
};

}  // namespace cleat

namespace cleat::control {

inline constexpr std::string_view kErrorDomain = "cleat";

using Metadata = std::vector<std::pair<std::string, std::string>>;

// An error with that reason, and the code that the table gives it.
Error Refuse(v1::Reason reason, std::string message, Metadata metadata = {});
// The same for the resource of that name, which comes first in the metadata.
Error RefuseFor(std::string_view resource, v1::Reason reason, std::string message, Metadata metadata = {});

// The reason of an error, or, for one without (from a file, the store, memory), the one that fits its code.
v1::Reason ReasonOf(const Error& error);
// The value of a key in an error's metadata; empty when there is none.
std::string_view MetadataOf(const Error& error, std::string_view key);

// "DISK_IN_USE"
std::string_view ReasonName(v1::Reason reason);
const v1::ReasonInfo& InfoOf(v1::Reason reason);
// All but UNSPECIFIED, in the table's order.
std::vector<v1::Reason> AllReasons();

}  // namespace cleat::control
