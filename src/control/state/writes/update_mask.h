// SPDX-License-Identifier: Apache-2.0
// Which fields an Update changes: google.protobuf.FieldMask, of which each kind of resource knows a few paths.
#pragma once

#include <google/protobuf/field_mask.pb.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cleat::control {

inline constexpr char kSizePath[] = "spec.size_bytes";
inline constexpr char kSpecPath[] = "spec";
inline constexpr char kLimitsPath[] = "spec.limits";
inline constexpr char kOnNoSpacePath[] = "spec.on_no_space";
inline constexpr char kInDoubtPath[] = "spec.in_doubt";
inline constexpr char kHostsPath[] = "spec.exported.hosts";
inline constexpr char kLabelsPath[] = "labels";

// INVALID_UPDATE_MASK when it is empty or has a path that is not `known`.
Status CheckMask(const std::string& resource, const google::protobuf::FieldMask& mask,
                 std::initializer_list<std::string_view> known);
bool Names(const google::protobuf::FieldMask& mask, std::string_view path);

// Puts the spec's limits into the row, with its intent_revision, which is then the limits' too.
template <typename Spec, typename Row>
void SetLimits(const Spec& spec, Row& row) {
  row.spec.clear_limits();
  if (spec.has_limits()) *row.spec.mutable_limits() = spec.limits();
  row.limits_revision = row.intent_revision;
}

}  // namespace cleat::control
