// SPDX-License-Identifier: Apache-2.0
// The file of `apply`: what a host should have, in YAML or JSON, with the field names of the .proto.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"

namespace cleat::ctl {

// The clusters, subsystems, groups, disks, controllers and attachments of the file; "-": of standard input. What the list commands print as yaml or
// json is such a file; several documents add up. kInvalidArgument: the file, the line and the cause.
Result<v1::ApplyHostRequest> ReadHostFile(const std::string& path);

// The same of its text; `source` is its name in messages.
Result<v1::ApplyHostRequest> ParseHostFile(const std::string& text, std::string_view source);

}  // namespace cleat::ctl
