// SPDX-License-Identifier: Apache-2.0
#include "control/validate/disk_settings.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "control/model/reasons.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {

bool SameSettings(const v1::DiskSpec& a, const v1::DiskSpec& b) {
  return SameSpec(a.limits(), b.limits()) && a.on_no_space() == b.on_no_space() &&
         SameSpec(a.in_doubt(), b.in_doubt());
}

void CopySettings(const v1::DiskSpec& from, v1::DiskSpec& to) {
  to.clear_limits();
  if (from.has_limits()) *to.mutable_limits() = from.limits();
  to.set_on_no_space(from.on_no_space());
  to.clear_in_doubt();
  if (from.has_in_doubt()) *to.mutable_in_doubt() = from.in_doubt();
}

void LogSettings(const std::string& disk, const v1::DiskSpec& before, const v1::DiskSpec& now) {
  if (!SameSpec(before.limits(), now.limits())) spdlog::info("{}: limits changed", disk);
  if (before.on_no_space() != now.on_no_space())
    spdlog::info("{}: on_no_space changed: {}", disk, WaitsForSpace(now) ? "wait" : "error");
  if (!SameSpec(before.in_doubt(), now.in_doubt()))
    spdlog::info("{}: in_doubt changed: {}", disk, InDoubtInWords(now.in_doubt()));
}

Status CompleteInDoubt(const std::string& disk, v1::DiskSpec& spec) {
  if (!spec.has_in_doubt()) return Ok{};
  const v1::InDoubt& rule = spec.in_doubt();
  const auto refuse = [&disk](const char* field, const std::string& why) {
    return RefuseFor(disk, v1::REASON_INVALID_FIELD, disk + ": " + why,
                     {{"field", std::string("spec.in_doubt") + field}});
  };
  if (!v1::InDoubtPolicy_IsValid(rule.policy())) {
    return refuse(".policy", fmt::format("in_doubt.policy is {}, which this version does not know",
                                         static_cast<int>(rule.policy())));
  }
  const bool fails = rule.policy() == v1::IN_DOUBT_POLICY_FAIL_AFTER;
  if (fails && (rule.fail_after_s() == 0 || rule.fail_after_s() > kFailAfterMaxS)) {
    return refuse(".fail_after_s", fmt::format("in_doubt.fail_after_s is {}: give 1 to {}",
                                               rule.fail_after_s(), kFailAfterMaxS));
  }
  if (!fails && rule.fail_after_s() != 0) {
    return refuse(".fail_after_s",
                  fmt::format("in_doubt.fail_after_s is {}, and nothing fails that waits: leave it out, or "
                              "give FAIL_AFTER as the policy",
                              rule.fail_after_s()));
  }
  if (!fails && rule.policy() != v1::IN_DOUBT_POLICY_ACCEPT) {
    spec.clear_in_doubt();
    return Ok{};
  }
  if (spec.backend_case() != v1::DiskSpec::kNvmeTcp || spec.access_mode() == v1::ACCESS_MODE_MANY_READERS) {
    return refuse("",
                  "in_doubt is given, and nothing of it is ever in doubt: only a disk over NVMe-oF that is "
                  "written has writes in doubt; leave it out");
  }
  return Ok{};
}

std::string InDoubtInWords(const v1::InDoubt& in_doubt) {
  switch (in_doubt.policy()) {
    case v1::IN_DOUBT_POLICY_FAIL_AFTER:
      return fmt::format("fail after {} s", in_doubt.fail_after_s());
    case v1::IN_DOUBT_POLICY_ACCEPT:
      return "accept";
    default:
      return "hold";
  }
}

}  // namespace cleat::control
