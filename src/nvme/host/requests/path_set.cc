// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/requests/path_set.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::nvme::host {

uint32_t PathSet::PlaceOf(LifeId life) const {
  const auto found = std::find_if(paths_.begin(), paths_.end(), [life](const Path& path) {
    return path.queue != nullptr && path.life == life;
  });
  return static_cast<uint32_t>(found - paths_.begin());
}

PathSet::Path& PathSet::Add(LifeId life, fabrics::QueuePair& queue, PathState state) {
  CLEAT_CHECK(PlaceOf(life) == kNone);
  const auto free =
      std::find_if(paths_.begin(), paths_.end(), [](const Path& path) { return path.queue == nullptr; });
  CLEAT_CHECK(free != paths_.end());
  free->queue = &queue;
  free->life = life;
  free->conflict_told = false;
  Standing& standing = standings_[static_cast<size_t>(free - paths_.begin())];
  standing = {};
  standing.state = state;
  See();
  return *free;
}

void PathSet::Remove(uint32_t place) {
  CLEAT_CHECK(commands_[place] == 0);
  paths_[place].queue = nullptr;
  standings_[place] = {};
  See();
}

void PathSet::SetState(uint32_t place, PathState state) {
  standings_[place].state = state;
  See();
}

void PathSet::SetBreaks(uint32_t place) {
  if (!std::exchange(standings_[place].breaks, true)) See();
}

// A mark that is there already is not made longer: commands that were sent before it may be answered for a long time.
bool PathSet::Refuse(uint32_t place, Refusal refusal) {
  Standing& standing = standings_[place];
  const bool is_gone = refusal == Refusal::kNamespaceGone && !standing.awaits_look;
  if (standing.refused && !is_gone) return false;
  if (!standing.refused) standing.refused_until_ns = 0;
  standing.refused = true;
  standing.awaits_look |= is_gone;
  See();
  return true;
}

void PathSet::Looked(uint32_t place) {
  if (std::exchange(standings_[place].awaits_look, false)) See();
}

void PathSet::Tick(uint64_t now_ns) {
  if (!has_refused_) return;
  for (Standing& standing : standings_) {
    if (!standing.refused) continue;
    if (standing.refused_until_ns == 0) {
      standing.refused_until_ns = now_ns + pause_ns_;
    } else if (standing.refused_until_ns <= now_ns) {
      standing.refused = false;
    }
  }
  See();
}

// What follows from the standings.
void PathSet::See() {
  PathState best = PathState::kUnusable;
  candidate_count_ = 0;
  has_refused_ = false;
  for (uint32_t place = 0; place < kMax; ++place) {
    Standing& standing = standings_[place];
    has_refused_ |= standing.refused;
    standing.is_open = standing.state != PathState::kUnusable && !standing.breaks && !standing.refused &&
                       !standing.awaits_look;
    if (!standing.is_open || standing.state < best) continue;
    if (standing.state > best) candidate_count_ = 0;
    best = standing.state;
    candidates_[candidate_count_++] = static_cast<uint8_t>(place);
  }
}

uint32_t PathSet::ChooseAmong() const {
  uint32_t chosen = kNone;
  uint32_t least = UINT32_MAX;
  for (uint32_t i = 0; i < candidate_count_; ++i) {
    const uint32_t place = candidates_[i];
    const uint32_t way = (place - last_chosen_ - 1) % kMax;
    const uint32_t rank = commands_[place] * kMax + way;
    if (rank >= least || paths_[place].queue->room() == 0) continue;
    chosen = place;
    least = rank;
  }
  return chosen;
}

}  // namespace cleat::nvme::host
