// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/doubt/quiesced_lives.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"

namespace cleat::modules {

using nvme::host::LifeId;

namespace {

uint64_t WaitOf(const nvme::host::AssociationInfo& info) {
  const uint64_t timeouts = info.fabrics.traffic_keeps_alive ? 3 : 2;
  return (timeouts * info.kato_ms + info.fabrics.command_quiesce_ms) * kNsPerMs;
}

}  // namespace

void QuiescedLives::Began(uint32_t path, LifeId life, const nvme::host::AssociationInfo& info) {
  if (info.fabrics.command_quiesce_ms == 0) silent_ = fmt::format("controller {}", info.controller_id);
  std::optional<uint64_t>& wait_ns = waits_ns_.at(path);
  wait_ns = std::max(wait_ns.value_or(0), WaitOf(info));
  own_.push_back(life);
  if (own_.size() > kOwnMax) own_.pop_front();
}

void QuiescedLives::SetInDoubt(std::span<const LifeId> lives, uint64_t now_ns) {
  std::erase_if(in_doubt_, [&](const auto& known) {
    return std::find(lives.begin(), lives.end(), known.first) == lives.end();
  });
  for (const LifeId life : lives) in_doubt_.emplace(life, now_ns);
}

// An engine before may have had a life by any path.
std::optional<uint64_t> QuiescedLives::WaitNs(LifeId life) const {
  if (!silent_.empty()) return std::nullopt;
  const bool is_own = std::find(own_.begin(), own_.end(), life) != own_.end();
  uint64_t longest_ns = 0;
  for (const std::optional<uint64_t>& wait_ns : waits_ns_) {
    if (!wait_ns && !is_own) return std::nullopt;
    longest_ns = std::max(longest_ns, wait_ns.value_or(0));
  }
  return longest_ns;
}

std::vector<LifeId> QuiescedLives::Due(uint64_t now_ns) const {
  std::vector<LifeId> due;
  for (const auto& [life, since_ns] : in_doubt_) {
    const std::optional<uint64_t> wait_ns = WaitNs(life);
    if (wait_ns && now_ns >= since_ns + *wait_ns) due.push_back(life);
  }
  return due;
}

std::optional<uint64_t> QuiescedLives::next_ns() const {
  std::optional<uint64_t> next_ns;
  for (const auto& [life, since_ns] : in_doubt_) {
    const std::optional<uint64_t> wait_ns = WaitNs(life);
    if (wait_ns) next_ns = std::min(next_ns.value_or(UINT64_MAX), since_ns + *wait_ns);
  }
  return next_ns;
}

std::string QuiescedLives::WhyNotProved() const {
  if (in_doubt_.empty()) return {};
  if (!silent_.empty()) return silent_ + " gives no Command Quiesce Time (CQT)";
  const bool is_each_known = std::all_of(in_doubt_.begin(), in_doubt_.end(),
                                         [this](const auto& each) { return WaitNs(each.first); });
  return is_each_known ? "" : "a path that an engine before may have used has not been connected yet";
}

}  // namespace cleat::modules
