// SPDX-License-Identifier: Apache-2.0
// Writes in doubt: what a dead path left unanswered and a slow target may still execute. Plain values that a disk's DoubtLedger
// (doubt_ledger.h, one, on the control thread) and its DoubtViews (doubt_view.h, one a reactor) send each other by mail, which is FIFO
// between two of them and otherwise in any order. The rules and their proof: docs/nvmeof.md, "Writes in doubt".
//
// Source: NVM Express Base Specification 2.1, 9.6 (Communication Loss Handling).
#pragma once

#include <cstdint>
#include <vector>

namespace cleat::nvme::host {

// An association over one path: 64 random bits, never used again.
using LifeId = uint64_t;
// A write-like request (write, write zeroes, discard) of a disk, whatever becomes of it; never used again, nor by a
// later engine.
using OriginId = uint64_t;
inline constexpr OriginId kNobody = 0;  // the origin of a ghost whose request nobody will retry

// The blocks that ranges in doubt are counted in, whatever the namespace's are: those of requests that came before any path are known too.
inline constexpr uint32_t kDoubtBlockBytes = 512;

struct BlockRange {
  uint64_t first = 0;
  uint64_t blocks = 0;  // > 0, and first + blocks does not overflow

  uint64_t end() const { return first + blocks; }
  bool Overlaps(const BlockRange& other) const { return first < other.end() && other.first < end(); }
  bool operator==(const BlockRange&) const = default;
};

// An attempt that was sent and not answered, or a request that has one. An origin has at most one attempt under way at a time, on one life,
// however many commands carry it.
struct Attempt {
  OriginId origin = kNobody;
  BlockRange range;
};

// What a view needs to know of one ghost. `is_obeyed`: each reactor obeys a table that has the ghost. `retry_open`: and no other write that
// was sent before is under way over it, so that its own request may be sent again.
struct Ghost {
  BlockRange range;
  OriginId origin = kNobody;
  bool is_obeyed = false;
  bool retry_open = false;
};

// View to ledger, once for each life and reactor, also with no attempts: the life is over, its socket can send nothing any more, and these
// attempts may have reached the target (fabrics::Reached::kPerhapsAll).
struct LifeReport {
  uint32_t reactor = 0;
  LifeId life = 0;
  std::vector<Attempt> perhaps;
};

// Ledger to view. `reports_seen`: how many of the reactor's reports the ghosts take into account.
struct DoubtTable {
  uint64_t version = 0;
  uint64_t reports_seen = 0;
  std::vector<Ghost> ghosts;  // by range.first
};

// View to ledger: from now on the reactor obeys this version; `barriers` are its writes under way over another request's ghost.
struct DoubtAck {
  uint32_t reactor = 0;
  uint64_t version = 0;
  std::vector<Attempt> barriers;
};

// View to ledger: a barrier was answered, or the reactor's LifeReport before this names it.
struct BarrierEnded {
  uint32_t reactor = 0;
  OriginId origin = kNobody;
};

// Why a life's commands will never be executed any more. Which of them hold depends on the target: docs/nvmeof.md.
enum class Proof : uint8_t {
  kControllerReset,   // Cross-Controller Reset of that life's controller succeeded
  kTimeElapsed,       // KATO + CQT since the socket was dead and no keep alive could be in it
  kPreempted,         // the life's own host was preempted and aborted by a reservation
  kOperatorConfirmed  // a person has said that the target is dead
};

// The proofs that count for a target, chosen when its disk is configured. A person's word counts always.
struct ProofPolicy {
  bool controller_reset = false;
  bool time_elapsed = false;
  bool preempted = false;

  bool Accepts(Proof proof) const {
    switch (proof) {
      case Proof::kControllerReset:
        return controller_reset;
      case Proof::kTimeElapsed:
        return time_elapsed;
      case Proof::kPreempted:
        return preempted;
      case Proof::kOperatorConfirmed:
        return true;
    }
    return false;
  }
};

}  // namespace cleat::nvme::host
