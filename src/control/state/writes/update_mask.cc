// SPDX-License-Identifier: Apache-2.0
#include "control/state/writes/update_mask.h"

#include <fmt/format.h>

#include <algorithm>

#include "control/model/reasons.h"

namespace cleat::control {

Status CheckMask(const std::string& resource, const google::protobuf::FieldMask& mask,
                 std::initializer_list<std::string_view> known) {
  const std::string list = fmt::format("{}", fmt::join(known, ", "));
  if (mask.paths().empty()) {
    return RefuseFor(resource, v1::REASON_INVALID_UPDATE_MASK,
                     fmt::format("{}: update_mask is empty: name what to change ({})", resource, list));
  }
  for (const std::string& path : mask.paths()) {
    if (std::find(known.begin(), known.end(), path) != known.end()) continue;
    return RefuseFor(resource, v1::REASON_INVALID_UPDATE_MASK,
                     fmt::format("{}: '{:.80}' can't be updated: only {} can", resource, path, list),
                     {{"field", path}});
  }
  return Ok{};
}

bool Names(const google::protobuf::FieldMask& mask, std::string_view path) {
  return std::find(mask.paths().begin(), mask.paths().end(), path) != mask.paths().end();
}

}  // namespace cleat::control
