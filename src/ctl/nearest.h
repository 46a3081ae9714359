// SPDX-License-Identifier: Apache-2.0
// "Did you mean": what somebody who mistyped a name may have meant. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cleat::ctl {

// Of `names` those that are a few letters away from `word`, or contain it; the nearest first, at most 3.
std::vector<std::string> Nearest(std::string_view word, const std::vector<std::string>& names);

// ". Did you mean a, b or c?"; empty when nothing is near.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& names);

}  // namespace cleat::ctl
