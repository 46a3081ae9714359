// SPDX-License-Identifier: Apache-2.0
// One run of the crash simulation: whole engines in virtual time, each a process that is killed between two of its
// stores, at some other moment, or told to end; the next one takes over what is left. In an upgrade there are two of them,
// which die together, as in a kill of all but the VMs. Everything is drawn from the seed
// but what the caller sets. At the end every request has been answered once, each answer was right, and the disks hold
// what was acknowledged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "defect.h"

namespace cleat::sim {

struct CrashConfig {
  uint64_t seed = 1;
  bool trace = false;
  Defect defect = Defect::kNone;
  std::optional<bool> packed;
  std::optional<bool> scsi;
  std::optional<bool>
      upgraded;  // each process gives its controllers to another one beside it, while it lives
  std::optional<bool>
      swapped;  // disks take one another's place while each process lives, and before the next one
  // One process after the other dies before its store of that number; the one behind the last lives on. Empty: drawn.
  std::vector<uint64_t> kills;
};

struct CrashResult {
  std::string violated;          // empty: nothing
  std::vector<uint64_t> stores;  // of each process
  uint64_t kills = 0;
  uint64_t terminations = 0;
  uint64_t moves = 0;         // of controllers to another process
  uint64_t resumed = 0;       // ... that had to be tried again: not all had drained in time
  uint64_t swaps = 0;         // of disks
  uint64_t swapped_back = 0;  // ... before the guest had forgotten the first
  uint64_t answered = 0;
  uint64_t replayed = 0;     // writes
  uint64_t landed_late = 0;  // blocks, after the process that had asked was dead
  uint64_t digest = 0;
};

CrashResult RunCrash(const CrashConfig& config);

}  // namespace cleat::sim
