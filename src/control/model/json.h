// SPDX-License-Identifier: Apache-2.0
// Pieces of JSON for audit records. Pure.
#pragma once

#include <string>
#include <string_view>

#include "control/model/model.h"

namespace google::protobuf {
class Message;
}

namespace cleat::control {

// A string, quoted.
std::string JsonString(std::string_view text);
// An object, in the order of the keys.
std::string JsonLabels(const Labels& labels);
// The message as proto3 has it in JSON, with the fields' own names, those at their defaults left out, on one line. Fields of type `bytes`, and
// those called `plain_key`, are keys and are left out.
std::string JsonWithoutKeys(const google::protobuf::Message& message);

}  // namespace cleat::control
