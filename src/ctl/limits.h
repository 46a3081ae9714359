// SPDX-License-Identifier: Apache-2.0
// Limits as people write and read them. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"

namespace cleat::ctl {

// How a limit is written, for help texts.
inline constexpr const char* kLimitForm = "NAME=RATE[,burst=RATE/TIME]";

// "iops=6000", "iops=6000,burst=12000/30s", "read_bytes=100M,burst=1G/500ms". Rates of requests are whole numbers, also
// 6k and 1M (powers of 1000); rates of bytes are sizes. kInvalidArgument, with what to write instead.
Status ParseLimit(std::string_view text, v1::Limits* limits);
// All of them; each name once. "none" alone: no limits.
Result<v1::Limits> ParseLimits(const std::vector<std::string>& texts);

// "iops 6000, burst 12000 for 30 s; bytes 100 MiB"; empty when there are none.
std::string ShowLimits(const v1::Limits& limits);

}  // namespace cleat::ctl
