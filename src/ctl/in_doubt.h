// SPDX-License-Identifier: Apache-2.0
// What a disk does with writes in doubt, as people write and read it. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"

namespace cleat::ctl {

// How it is written, for help texts.
inline constexpr const char* kInDoubtForm = "hold|fail-after=SECONDS|accept";

// "hold", "fail-after=30", also "fail-after=30s", "accept". kInvalidArgument, with what to write instead; whether so many seconds are taken
// is cleatd's to say.
Result<v1::InDoubt> ParseInDoubt(std::string_view text);

// "hold", "fail after 30 s", "accept".
std::string ShowInDoubt(const v1::InDoubt& rule);

// "1 optimized, 1 unusable; 3 lost, 2 failovers; 2 requests wait": what there is of it.
std::string ShowPaths(const v1::PathsStatus& paths);

}  // namespace cleat::ctl
