// SPDX-License-Identifier: Apache-2.0
// Sizes and times as people write them. Pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cleat::ctl {

// "4096", "512M", "10G", "10GiB", "1.5T": bytes, or powers of 1024, upper or lower case. "10GB" is refused, since it
// is 10^10 to some. kInvalidArgument, with what to write instead.
Result<uint64_t> ParseSize(std::string_view text);

// "10 GiB", "512 B", "1.5 MiB"; always exact: in bytes when it is not a multiple of half a unit.
std::string HumanSize(uint64_t bytes);
// For what is counted and not chosen: one digit after the point, rounded down: "894.2 GiB".
std::string RoundedSize(uint64_t bytes);

// "500ms", "30s", "5m", "1h".
Result<std::chrono::milliseconds> ParseMilliseconds(std::string_view text);

// "30", "30s", "5m", "1h".
Result<std::chrono::seconds> ParseSeconds(std::string_view text);

}  // namespace cleat::ctl
