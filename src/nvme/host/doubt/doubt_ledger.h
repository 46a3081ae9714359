// SPDX-License-Identifier: Apache-2.0
// All that is in doubt of one disk. One a disk, on one thread (control); learns of lives that ended and of proofs, and publishes the ghosts
// to the reactors' DoubtViews. After each call that may change something the owner asks TableFor each reactor when version() has grown.
//
// Never forgets: beyond kGhostsMax neighbours become one larger ghost that nobody's retry may pass, and beyond kLivesMax the oldest lives
// become one that only a person's word proves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/result.h"
#include "nvme/host/doubt/doubt.h"

namespace cleat::nvme::host {

inline constexpr size_t kGhostsMax = 4096;
// A request is not tried on more paths than this as long as no proof comes: each attempt may leave one more life to prove.
inline constexpr size_t kLivesOfGhostMax = 64;
// Lives that have left something in doubt and are known each by itself.
inline constexpr size_t kLivesMax = 512;
// Stands for the oldest of more than that. No life's own number (DrawLife).
inline constexpr LifeId kManyLives = UINT64_MAX;

class DoubtLedger {
 public:
  explicit DoubtLedger(ProofPolicy policy) : policy_(policy) {}

  // A reactor's view was made: its number, from now on, and the table that it has to adopt first (TableFor). Numbers of those that left are
  // given again.
  uint32_t Joined();
  // The view is no more: nothing of its reactor is under way, and all of its mail was taken.
  void Left(uint32_t reactor);

  // A life is over, once: each reactor that is there now has reported it or will, whether it had a queue on it or not; those that join from
  // now on won't. A report may come before.
  void Over(LifeId life);
  void Take(const LifeReport& report);
  void Take(const DoubtAck& ack);
  void Take(const BarrierEnded& ended);
  // Whether no reactor can send anything of the life any more: it is over, and all have reported.
  bool IsReported(LifeId life) const;
  // Nothing of `life` will be executed any more. Refused where the target's policy does not accept the proof, and before IsReported: what a
  // reactor has not reported may still be sent.
  cleat::Status Proved(LifeId life, Proof proof);
  // The engine's start: what the log of the engine before has (doubt_log.h), or without one the whole disk, is in doubt until each of these
  // lives is proved, which are over and at least one; it is nobody's retry.
  void Doubt(std::span<const LifeId> lives, std::span<const BlockRange> ranges);
  // A request will never be retried: its ghosts hold everybody.
  void Disown(OriginId origin);

  uint64_t version() const { return version_; }
  // Another number whenever something has come into doubt, or was proved: for the log (DoubtLog::Store).
  uint64_t doubts() const { return doubts_; }
  // Whether every reactor obeys what is in doubt as of this version.
  bool IsObeyed() const;
  DoubtTable TableFor(uint32_t reactor) const;
  size_t ghosts() const { return entries_.size(); }
  // What of the disk is in doubt, for the log: at most kGhostsMax.
  std::vector<BlockRange> ranges() const;
  // The lives that left something in doubt and are not proved, or have not been reported by all.
  std::vector<LifeId> lives() const;
  // Whether the life has left something in doubt.
  bool HasGhost(LifeId life) const;

 private:
  struct Entry {
    Ghost ghost;
    std::vector<LifeId> lives;  // of each an attempt may be executed
    uint64_t since_version = 0;
  };
  struct Reactor {
    bool present = false;
    uint64_t acked_version = 0;
    uint64_t reports = 0;
    std::vector<Attempt> barriers;
  };
  struct Life {
    bool over = false;
    // Until it is over those that have reported, from then on those that have not.
    std::set<uint32_t> reactors;
    size_t entries = 0;   // that name it
    uint64_t number = 0;  // of lives, in the order in which they came to be known
  };
  using Lives = std::map<LifeId, Life>;

  Life& LifeOf(LifeId life);
  static bool IsHarmless(const Life& life) { return life.over && life.reactors.empty() && life.entries == 0; }
  void Add(const Attempt& attempt, std::span<const LifeId> lives);
  void AddLives(Entry& entry, std::span<const LifeId> lives);
  void MergeClosest();
  void FoldOldLives();
  void ForgetIfHarmless(LifeId life);
  void OpenRetries();
  bool IsObeyed(const Entry& entry) const;
  bool IsOpen(const Entry& entry) const;

  const ProofPolicy policy_;
  uint64_t version_ = 1;  // 0 is a view's that has no table
  uint64_t doubts_ = 0;
  std::vector<Reactor> reactors_;
  std::vector<Entry> entries_;  // by range.first
  Lives lives_;                 // that ended and are not proved
  uint64_t lives_ever_ = 0;
};

}  // namespace cleat::nvme::host
