// SPDX-License-Identifier: Apache-2.0
// All that is in doubt of one disk. One a disk, on one thread (control); learns of lives that ended and of proofs, and publishes the ghosts
// to the reactors' DoubtViews. After each call that may change something the owner asks TableFor each reactor when version() has grown.
//
// Never forgets: beyond kGhostsMax neighbours become one larger ghost that nobody's retry may pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/result.h"
#include "nvme/host/doubt.h"

namespace cleat::nvme::host {

inline constexpr size_t kGhostsMax = 4096;
// A request is not tried on more paths than this as long as no proof comes: each attempt may leave one more life to prove.
inline constexpr size_t kLivesOfGhostMax = 64;

class DoubtLedger {
 public:
  DoubtLedger(uint32_t reactors, ProofPolicy policy);

  // Each reactor, once for each life, whether it had a queue on it or not.
  void Take(const LifeReport& report);
  void Take(const DoubtAck& ack);
  void Take(const BarrierEnded& ended);
  // Nothing of `life` will be executed any more. Refused where the target's policy does not accept the proof, and before a reactor has
  // reported the life's end: what it has not reported may still be sent.
  Status Proved(LifeId life, Proof proof);
  // The engine's start without a log of the engine before it: the whole disk is in doubt, until a person says otherwise of `life`.
  void DoubtAll(LifeId life, uint64_t blocks);
  // A request will never be retried: its ghosts hold everybody.
  void Disown(OriginId origin);

  uint64_t version() const { return version_; }
  DoubtTable TableFor(uint32_t reactor) const;
  size_t ghosts() const { return entries_.size(); }

 private:
  struct Entry {
    Ghost ghost;
    std::vector<LifeId> lives;  // of each an attempt may be executed
    uint64_t since_version = 0;
  };
  struct Reactor {
    uint64_t acked_version = 0;
    uint64_t reports = 0;
    std::vector<Attempt> barriers;
  };

  void Add(const Attempt& attempt, LifeId life);
  void MergeClosest();
  void ForgetIfHarmless(LifeId life);
  void OpenRetries();
  bool IsObeyed(const Entry& entry) const;
  bool IsOpen(const Entry& entry) const;

  const ProofPolicy policy_;
  uint64_t version_ = 0;
  std::vector<Reactor> reactors_;
  std::vector<Entry> entries_;                       // by range.first
  std::map<LifeId, std::vector<bool>> reported_by_;  // lives that ended and are not proved
};

}  // namespace cleat::nvme::host
