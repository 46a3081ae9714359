// SPDX-License-Identifier: Apache-2.0
// A target under hosts that keep no rules: attackers commit one abuse after another, each on a connection of its own, a crowd of
// connections does nothing, and a witness (witness.h) checks that the target still serves right data. Everything that is random follows
// from the seed: attack N of a seed is the same in every run, whoever commits it. The caller's thread starts the others and waits for them.
// The namespace's content is lost.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/nvme_hostile/attack.h"
#include "perf/nvme_hostile/witness.h"

namespace cleat::perf {

inline constexpr uint16_t kNvmeAttackersMax = 64;
inline constexpr uint32_t kNvmeCrowdMax = 20'000;
inline constexpr size_t kNvmeFindingsMax = 20;  // that are told; all are counted

struct NvmeHostileOptions {
  NvmeTcpOptions target;  // with the digests that it has
  uint64_t seed = 1;
  uint64_t first_attack = 0;      // its number; those of lower ones are left out
  uint64_t attacks = 0;           // so many; 0: no limit. One of the two has to be set
  uint64_t time_ns = 0;           // 0: no limit
  uint16_t attackers = 2;         // threads
  uint32_t crowd = 64;            // connections at once that do nothing
  uint64_t patience_ns = 0;       // how long an attacker waits for an answer
  std::vector<std::string> only;  // abuses by name; empty: all that the target's digests allow
  const std::atomic<bool>* stop = nullptr;
};

struct NvmeHostileReport {
  struct Kind {
    const char* name = "";
    uint64_t sent = 0;
    std::array<uint64_t, kNvmeOutcomeNames.size()> outcomes{};
    std::map<uint16_t, uint64_t> reasons;   // FES of terminations
    std::map<uint16_t, uint64_t> statuses;  // of commands that failed
  };
  std::vector<Kind> kinds;  // all that were chosen
  uint64_t attacks = 0;
  uint64_t not_begun = 0;      // of these: nothing was sent
  uint64_t finding_count = 0;  // of what the target did against the rules
  std::vector<std::string> findings;
  std::string first_problem;  // why one did not begin
  uint64_t crowd_opened = 0;
  uint64_t crowd_refused = 0;
  uint32_t crowd_most = 0;  // at once
  uint64_t seed = 0;
  uint64_t elapsed_ns = 0;
  NvmeWitnessReport witness;

  bool wrong_data() const { return witness.faults > 0; }
  // A run in which nothing was sent has shown nothing.
  bool good() const {
    return attacks > not_begun && !wrong_data() && finding_count == 0 && witness.errors == 0 &&
           witness.ended.empty();
  }
};

// An error when nothing could begin: options, or a target that does not serve the witness.
Result<NvmeHostileReport> RunHostile(const NvmeHostileOptions& options);

std::string HostileText(const NvmeHostileReport& report);
nlohmann::ordered_json HostileJson(const NvmeHostileReport& report);

}  // namespace cleat::perf
