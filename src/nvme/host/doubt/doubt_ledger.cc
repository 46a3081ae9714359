// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/doubt/doubt_ledger.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"

namespace cleat::nvme::host {

// Until its first table a view holds every write, so that it obeys what is in doubt already.
uint32_t DoubtLedger::Joined() {
  const auto free = std::find_if(reactors_.begin(), reactors_.end(),
                                 [](const Reactor& reactor) { return !reactor.present; });
  const auto number = static_cast<uint32_t>(free - reactors_.begin());
  if (free == reactors_.end()) {
    reactors_.emplace_back();
  }
  reactors_[number] = {.present = true, .acked_version = version_, .reports = 0, .barriers = {}};
  return number;
}

void DoubtLedger::Left(uint32_t reactor) {
  CLEAT_CHECK(reactors_.at(reactor).present);
  reactors_[reactor] = {};
  for (auto& [id, life] : lives_) life.reactors.erase(reactor);
  std::erase_if(lives_, [](const auto& life) { return IsHarmless(life.second); });
  OpenRetries();
}

DoubtLedger::Life& DoubtLedger::LifeOf(LifeId id) {
  const auto [life, is_new] = lives_.try_emplace(id);
  if (is_new) life->second.number = ++lives_ever_;
  return life->second;
}

void DoubtLedger::Over(LifeId id) {
  Life& life = LifeOf(id);
  CLEAT_CHECK(!life.over);
  life.over = true;
  std::set<uint32_t> awaited;
  for (uint32_t reactor = 0; reactor < reactors_.size(); ++reactor) {
    if (reactors_[reactor].present && !life.reactors.contains(reactor)) {
      awaited.insert(reactor);
    }
  }
  life.reactors = std::move(awaited);
  ForgetIfHarmless(id);
}

void DoubtLedger::Take(const LifeReport& report) {
  CLEAT_CHECK(reactors_.at(report.reactor).present);
  Life& life = LifeOf(report.life);
  const bool is_first =
      life.over ? life.reactors.erase(report.reactor) == 1 : life.reactors.insert(report.reactor).second;
  CLEAT_CHECK(is_first);
  ++reactors_[report.reactor].reports;
  ++version_;
  for (const Attempt& attempt : report.perhaps) {
    Add(attempt, {&report.life, 1});
    ++doubts_;
  }
  ForgetIfHarmless(report.life);
  if (lives_.size() > kLivesMax) FoldOldLives();
}

void DoubtLedger::Take(const DoubtAck& ack) {
  Reactor& reactor = reactors_.at(ack.reactor);
  CLEAT_CHECK(reactor.present);
  CLEAT_CHECK(ack.version <= version_ && ack.version >= reactor.acked_version);
  reactor.acked_version = ack.version;
  reactor.barriers = ack.barriers;
  OpenRetries();
}

void DoubtLedger::Take(const BarrierEnded& ended) {
  std::erase_if(reactors_.at(ended.reactor).barriers,
                [&](const Attempt& barrier) { return barrier.origin == ended.origin; });
  OpenRetries();
}

cleat::Status DoubtLedger::Proved(LifeId life, Proof proof) {
  if (!policy_.Accepts(proof) || (life == kManyLives && proof != Proof::kOperatorConfirmed)) {
    return Error(ErrorCode::kFailedPrecondition,
                 "life " + std::to_string(life) +
                     ": its target does not promise that this proof holds; confirm that it is dead by hand");
  }
  const auto found = lives_.find(life);
  if (found == lives_.end()) {
    return Error(ErrorCode::kNotFound,
                 "life " + std::to_string(life) +
                     ": nothing of it is in doubt; see the disk's status for those that are");
  }
  if (!IsReported(life)) {
    return Error(ErrorCode::kFailedPrecondition,
                 "life " + std::to_string(life) +
                     ": a reactor's socket may still send for it; prove it once all have ended");
  }
  lives_.erase(found);
  doubts_ += std::erase_if(
      entries_, [&](Entry& entry) { return std::erase(entry.lives, life) > 0 && entry.lives.empty(); });
  ++version_;
  OpenRetries();
  return {};
}

void DoubtLedger::Doubt(std::span<const LifeId> lives, std::span<const BlockRange> ranges) {
  CLEAT_CHECK(!lives.empty());
  if (ranges.empty()) return;
  // A life that is known already may still have to be reported.
  for (const LifeId id : lives) {
    const bool is_new = !lives_.contains(id);
    Life& life = LifeOf(id);
    if (is_new) life.over = true;
  }
  ++version_;
  for (const BlockRange& range : ranges) {
    Add({.origin = kNobody, .range = range}, lives);
    ++doubts_;
  }
}

void DoubtLedger::Disown(OriginId origin) {
  for (Entry& entry : entries_) {
    if (entry.ghost.origin == origin) {
      entry.ghost.origin = kNobody;
      ++version_;
    }
  }
}

DoubtTable DoubtLedger::TableFor(uint32_t reactor) const {
  DoubtTable table{.version = version_, .reports_seen = reactors_.at(reactor).reports, .ghosts = {}};
  table.ghosts.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    table.ghosts.push_back(entry.ghost);
  }
  return table;
}

void DoubtLedger::Add(const Attempt& attempt, std::span<const LifeId> lives) {
  const BlockRange& range = attempt.range;
  CLEAT_CHECK(range.blocks > 0 && range.end() > range.first);
  for (Entry& entry : entries_) {
    const bool is_same = entry.ghost.range.first == range.first && entry.ghost.range.blocks == range.blocks;
    if (is_same && entry.ghost.origin == attempt.origin) {
      AddLives(entry, lives);
      entry.ghost.retry_open = entry.ghost.retry_open && entry.lives.size() < kLivesOfGhostMax;
      return;
    }
  }
  const auto behind = std::partition_point(
      entries_.begin(), entries_.end(), [&](const Entry& e) { return e.ghost.range.first <= range.first; });
  const auto entry = entries_.insert(
      behind, {.ghost = {.range = range, .origin = attempt.origin}, .lives = {}, .since_version = version_});
  AddLives(*entry, lives);
  if (entries_.size() > kGhostsMax) {
    MergeClosest();
  }
}

void DoubtLedger::AddLives(Entry& entry, std::span<const LifeId> lives) {
  for (const LifeId life : lives) {
    if (std::find(entry.lives.begin(), entry.lives.end(), life) != entry.lives.end()) continue;
    entry.lives.push_back(life);
    ++LifeOf(life).entries;
  }
}

// Half of them at once, as each entry is looked through.
void DoubtLedger::FoldOldLives() {
  std::vector<Lives::iterator> old;
  for (auto life = lives_.begin(); life != lives_.end(); ++life) {
    if (life->first != kManyLives && life->second.over && life->second.reactors.empty()) old.push_back(life);
  }
  const size_t keep = std::min(old.size(), kLivesMax / 2);
  std::sort(old.begin(), old.end(), [](auto a, auto b) { return a->second.number < b->second.number; });
  old.resize(old.size() - keep);
  if (old.empty()) return;
  std::set<LifeId> folded;
  for (const auto& life : old) folded.insert(life->first);
  LifeOf(kManyLives).over = true;
  for (Entry& entry : entries_) {
    if (std::erase_if(entry.lives, [&folded](LifeId life) { return folded.contains(life); }) > 0)
      AddLives(entry, {&kManyLives, 1});
  }
  for (const auto& life : old) lives_.erase(life);
}

void DoubtLedger::MergeClosest() {
  size_t best = 0;
  uint64_t best_blocks = std::numeric_limits<uint64_t>::max();
  for (size_t i = 0; i + 1 < entries_.size(); ++i) {
    const BlockRange& left = entries_[i].ghost.range;
    const uint64_t blocks = std::max(left.end(), entries_[i + 1].ghost.range.end()) - left.first;
    if (blocks < best_blocks) {
      best_blocks = blocks;
      best = i;
    }
  }
  Entry& left = entries_[best];
  AddLives(left, entries_[best + 1].lives);
  const Entry& right = entries_[best + 1];
  for (const LifeId life : right.lives) --LifeOf(life).entries;
  left.since_version = std::max(left.since_version, right.since_version);
  left.ghost = {.range = {.first = left.ghost.range.first, .blocks = best_blocks},
                .origin = kNobody,
                .is_obeyed = left.ghost.is_obeyed && right.ghost.is_obeyed,
                .retry_open = false};
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
}

bool DoubtLedger::IsReported(LifeId life) const {
  const auto found = lives_.find(life);
  return found == lives_.end() || (found->second.over && found->second.reactors.empty());
}

std::vector<LifeId> DoubtLedger::lives() const {
  std::vector<LifeId> ids;
  for (const auto& [id, life] : lives_) {
    ids.push_back(id);
  }
  return ids;
}

std::vector<BlockRange> DoubtLedger::ranges() const {
  std::vector<BlockRange> ranges;
  ranges.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    ranges.push_back(entry.ghost.range);
  }
  return ranges;
}

bool DoubtLedger::HasGhost(LifeId life) const {
  const auto found = lives_.find(life);
  return found != lives_.end() && found->second.entries > 0;
}

// A path that flaps ends one life after the other, most of them with nothing in doubt.
void DoubtLedger::ForgetIfHarmless(LifeId life) {
  if (const auto found = lives_.find(life); IsHarmless(found->second)) lives_.erase(found);
}

bool DoubtLedger::IsObeyed() const {
  return std::all_of(reactors_.begin(), reactors_.end(), [this](const Reactor& reactor) {
    return !reactor.present || reactor.acked_version == version_;
  });
}

bool DoubtLedger::IsObeyed(const Entry& entry) const {
  return std::all_of(reactors_.begin(), reactors_.end(), [&](const Reactor& reactor) {
    return !reactor.present || reactor.acked_version >= entry.since_version;
  });
}

bool DoubtLedger::IsOpen(const Entry& entry) const {
  return entry.ghost.is_obeyed && entry.ghost.origin != kNobody && entry.lives.size() < kLivesOfGhostMax &&
         std::all_of(reactors_.begin(), reactors_.end(), [&](const Reactor& reactor) {
           return std::none_of(reactor.barriers.begin(), reactor.barriers.end(), [&](const Attempt& barrier) {
             return barrier.origin != entry.ghost.origin && barrier.range.Overlaps(entry.ghost.range);
           });
         });
}

void DoubtLedger::OpenRetries() {
  for (Entry& entry : entries_) {
    if (!entry.ghost.is_obeyed && IsObeyed(entry)) {
      entry.ghost.is_obeyed = true;
      ++version_;
    }
    if (!entry.ghost.retry_open && IsOpen(entry)) {
      entry.ghost.retry_open = true;
      ++version_;
    }
  }
}

}  // namespace cleat::nvme::host
