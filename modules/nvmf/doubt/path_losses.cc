// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/doubt/path_losses.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"

namespace cleat::modules {

using nvme::host::LifeId;

void PathLosses::Note(const std::string& where, LifeId life, const Error& reason, bool failed_over) {
  ++losses_total_;
  if (failed_over) ++failovers_;
  if (losses_.size() == kNamedMax) MakeRoom();
  const bool is_named = reason.message.starts_with(where);
  losses_.push_back({.life = life, .what = is_named ? reason.message : where + ": " + reason.message});
}

// The oldest that has left nothing goes. One that broke just now may only seem so, as not all reactors have reported yet.
void PathLosses::MakeRoom() {
  const auto harmless = std::find_if(losses_.begin(), losses_.end(),
                                     [this](const Loss& loss) { return !ledger_.HasGhost(loss.life); });
  if (harmless == losses_.end()) has_forgotten_ = true;
  losses_.erase(harmless == losses_.end() ? losses_.begin() : harmless);
}

bool PathLosses::IsNamed(LifeId life) const {
  return std::any_of(losses_.begin(), losses_.end(), [life](const Loss& loss) { return loss.life == life; });
}

void PathLosses::LogAccepted() {
  for (Loss& loss : losses_) {
    if (ledger_.HasGhost(loss.life) && !std::exchange(loss.is_accepted, true)) LogAccepted(loss.what);
  }
  const std::vector<LifeId> lives = ledger_.lives();
  const bool has_unnamed = std::any_of(
      lives.begin(), lives.end(), [this](LifeId life) { return ledger_.HasGhost(life) && !IsNamed(life); });
  if (has_unnamed && !has_forgotten_ && !std::exchange(accepts_unnamed_, true))
    LogAccepted("an engine before");
}

void PathLosses::LogAccepted(const std::string& left_by) {
  ++accepted_;
  spdlog::warn(
      "{}: writes in doubt are accepted: older ones may overwrite what is written from now on; left by {}",
      disk_, left_by);
}

// The latest first: its reason is the one that people can still look into.
std::string PathLosses::DoubtLeftBy() const {
  if (ledger_.ghosts() == 0) return {};
  const auto latest = std::find_if(losses_.rbegin(), losses_.rend(),
                                   [this](const Loss& loss) { return ledger_.HasGhost(loss.life); });
  if (latest == losses_.rend())
    return has_forgotten_ ? "left by paths that broke" : "left by an engine before";
  return "left by " + latest->what + (ledger_.lives().size() > 1 ? " and others before" : "");
}

void PathLosses::Count(block::PathsReport& report) const {
  report.losses = losses_total_;
  report.failovers = failovers_;
  report.accepted = accepted_;
}

}  // namespace cleat::modules
