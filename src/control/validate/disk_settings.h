// SPDX-License-Identifier: Apache-2.0
// The settings of a disk that change while it is attached, and that engines are told under one revision (DiskRow::limits_revision): its
// limits, what it does without space, and what with writes in doubt. Pure functions, of specs that are complete but for CompleteInDoubt's.
#pragma once

#include <string>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"

namespace cleat::control {

inline constexpr uint32_t kFailAfterMaxS = 86'400;

inline bool WaitsForSpace(const v1::DiskSpec& spec) {
  return spec.on_no_space() == v1::ON_NO_SPACE_WAIT;
}

// Whether the disk has any.
inline bool HasSettings(const v1::DiskSpec& spec) {
  return spec.has_limits() || WaitsForSpace(spec) || spec.has_in_doubt();
}
bool SameSettings(const v1::DiskSpec& a, const v1::DiskSpec& b);
void CopySettings(const v1::DiskSpec& from, v1::DiskSpec& to);
// A line of the log for each that is another one now.
void LogSettings(const std::string& disk, const v1::DiskSpec& before, const v1::DiskSpec& now);

// Takes out what says no more than the default. INVALID_FIELD: a rule or a time that makes no sense, or a disk of which nothing is ever in
// doubt.
Status CompleteInDoubt(const std::string& disk, v1::DiskSpec& spec);
// "hold", "fail after 30 s", "accept".
std::string InDoubtInWords(const v1::InDoubt& in_doubt);

}  // namespace cleat::control
