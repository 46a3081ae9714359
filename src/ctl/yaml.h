// SPDX-License-Identifier: Apache-2.0
// YAML, in both directions. It says the same as the JSON of a message, with the field names of the .proto; so JSON,
// which is a part of YAML, can be read too. Pure functions.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace cleat::ctl {

// Text that was JSON as YAML in block style. Numbers stay numbers, strings strings.
std::string JsonToYaml(const std::string& json);

// Adds what the documents in `text` say to the message. More than proto's JSON can say:
//   sizes (fields that end in _bytes)   10G, 512MiB
//   enums                               SCSI or scsi for CONTROLLER_TYPE_SCSI
// `ignored` is a field of the top level that is skipped. An error (kInvalidArgument) has `source`, the line, and the
// way to the field: "host.yaml:7: disks[0].spec.size_bytes: ...".
Status MergeYaml(const std::string& text, std::string_view source, std::string_view ignored,
                 google::protobuf::Message& message);

}  // namespace cleat::ctl
