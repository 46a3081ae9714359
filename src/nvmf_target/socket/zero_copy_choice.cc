// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/socket/zero_copy_choice.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace cleat::nvmf_target {

void ZeroCopyChoice::Cost::Add(uint64_t sample) {
  constexpr uint64_t kMost = uint64_t{1} << 40;
  const uint64_t of_sample = std::min(sample, kMost) * kScale;
  scaled = samples == 0 ? of_sample : (7 * scaled + std::min(of_sample, 2 * scaled + kScale)) / 8;
  samples += samples < UINT32_MAX ? 1 : 0;
}

uint32_t ZeroCopyChoice::ClassOf(uint32_t bytes) {
  const auto number = static_cast<uint32_t>(std::bit_width(std::max(bytes, kLeastBytes) / kLeastBytes)) - 1;
  return std::min(number, kClasses - 1);
}

ZeroCopyChoice::Way ZeroCopyChoice::WayOf(uint32_t bytes) const {
  if (trials_left_ == 0) return bytes >= from_bytes_ ? Way::kZeroCopy : Way::kCopy;
  const auto& [copy, zero_copy] = classes_[ClassOf(bytes)].by_way;
  if (copy.samples >= kSamplesLeast && zero_copy.samples < kSamplesLeast) return Way::kZeroCopy;
  if (zero_copy.samples >= kSamplesLeast && copy.samples < kSamplesLeast) return Way::kCopy;
  return trial_way_;
}

void ZeroCopyChoice::Tried(Way way, uint32_t bytes, uint64_t cost_ns, uint64_t now_ns) {
  if (way == Way::kZeroCopy) cost_ns += notification_.scaled / kScale;
  Class& of_size = classes_[ClassOf(bytes)];
  of_size.by_way[static_cast<size_t>(way)].Add(cost_ns * 1024 / bytes);
  of_size.tried_ns = now_ns;
  CLEAT_CHECK(trials_left_ > 0);
  if (--trials_left_ == 0) next_trial_ns_ = now_ns + kTrialNs;
  // Not by turns: of what is sent together the first pays for packets that leave at once.
  trial_way_ = random_.Chance(1, 2) ? Way::kCopy : Way::kZeroCopy;
  Learn(now_ns);
}

void ZeroCopyChoice::Notified(uint32_t sends, uint32_t copied, uint64_t cost_ns, uint64_t now_ns) {
  if (copied > sends / 2) return InVain(now_ns);
  notification_.Add(cost_ns / sends);
  in_vain_ = 0;
  pause_ns_ = kPauseNs;
  if (std::exchange(paused_until_ns_, 0) != 0) trials_left_ = kTrialsAtFirst;
}

void ZeroCopyChoice::InVain(uint64_t now_ns) {
  if (++in_vain_ < kInVainMost) return;
  if (now_ns < paused_until_ns_) return;  // a send from before the pause
  from_bytes_ = kNever;
  trials_left_ = 0;
  classes_ = {};
  next_trial_ns_ = paused_until_ns_ = now_ns + pause_ns_;
  pause_ns_ = std::min(2 * pause_ns_, kPauseMaxNs);
}

// From the largest size down, as long as it is the cheaper way; of sizes that are not sent nothing is known.
void ZeroCopyChoice::Learn(uint64_t now_ns) {
  uint32_t from = kNever;
  for (uint32_t number = kClasses; number-- > 0;) {
    Class& of_size = classes_[number];
    if (now_ns - of_size.tried_ns > kForgetNs) of_size = {};
    const auto& [copy, zero_copy] = of_size.by_way;
    if (copy.samples < kSamplesLeast || zero_copy.samples < kSamplesLeast) continue;
    if (zero_copy.scaled >= copy.scaled) break;
    from = kLeastBytes << number;
  }
  from_bytes_ = from;
}

}  // namespace cleat::nvmf_target
