// SPDX-License-Identifier: Apache-2.0
#include "ctl/in_doubt.h"

#include <fmt/format.h>

#include <charconv>

namespace cleat::ctl {
namespace {

constexpr std::string_view kFailAfter = "fail-after=";

}  // namespace

Result<v1::InDoubt> ParseInDoubt(std::string_view text) {
  v1::InDoubt rule;
  if (text == "hold") {
    rule.set_policy(v1::IN_DOUBT_POLICY_HOLD);
    return rule;
  }
  if (text == "accept") {
    rule.set_policy(v1::IN_DOUBT_POLICY_ACCEPT);
    return rule;
  }
  if (text.starts_with(kFailAfter)) {
    std::string_view number = text.substr(kFailAfter.size());
    if (number.ends_with('s')) number.remove_suffix(1);
    uint32_t seconds = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), seconds);
    if (error == std::errc{} && end == number.data() + number.size()) {
      rule.set_policy(v1::IN_DOUBT_POLICY_FAIL_AFTER);
      rule.set_fail_after_s(seconds);
      return rule;
    }
  }
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("--in-doubt {:.40}: give {}, as fail-after=30", text, kInDoubtForm));
}

std::string ShowInDoubt(const v1::InDoubt& rule) {
  switch (rule.policy()) {
    case v1::IN_DOUBT_POLICY_FAIL_AFTER:
      return fmt::format("fail after {} s", rule.fail_after_s());
    case v1::IN_DOUBT_POLICY_ACCEPT:
      return "accept";
    default:
      return "hold";
  }
}

std::string ShowPaths(const v1::PathsStatus& paths) {
  std::string text;
  const auto add = [&text](uint64_t count, const char* what, const char* before) {
    if (count == 0) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : before, count, what);
  };
  add(paths.optimized(), "optimized", ", ");
  add(paths.non_optimized(), "non-optimized", ", ");
  add(paths.unusable(), "unusable", ", ");
  add(paths.losses(), "lost so far", "; ");
  add(paths.failovers(), "failovers", ", ");
  add(paths.waiting(), "requests wait for writes in doubt", "; ");
  add(paths.failed(), "failed in doubt", "; ");
  return text;
}

}  // namespace cleat::ctl
