// SPDX-License-Identifier: Apache-2.0
// The paths of a disk that broke, as people hear of them: how many there were, which of them have left writes in doubt, and which of those
// writes are not waited for.
//
// Ownership: the disk's core owns it, on the control reactor. Limits: kNamedMax lost paths are named, the latest and those that have left
// something before others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "base/result.h"
#include "block/in_doubt.h"
#include "nvme/host/doubt/doubt.h"
#include "nvme/host/doubt/doubt_ledger.h"

namespace cleat::modules {

class PathLosses {
 public:
  static constexpr size_t kNamedMax = 16;

  // `disk` begins lines of the log. `ledger` outlives it.
  PathLosses(std::string disk, const nvme::host::DoubtLedger& ledger)
      : disk_(std::move(disk)), ledger_(ledger) {}

  // A path has broken: `where` it leads to, and the `reason`, which may begin with that. `failed_over`: another one serves the disk.
  void Note(const std::string& where, nvme::host::LifeId life, const Error& reason, bool failed_over);
  // The disk accepts that what is in doubt may overwrite newer writes: logged once for each path that has left something, and once for what
  // an engine before has.
  void LogAccepted();
  // Names the path that has left what is in doubt; empty: nothing is.
  std::string DoubtLeftBy() const;
  // Fills in the totals.
  void Count(block::PathsReport& report) const;

 private:
  struct Loss {
    nvme::host::LifeId life = 0;
    std::string what;          // which path, and why
    bool is_accepted = false;  // and the log has said so
  };

  bool IsNamed(nvme::host::LifeId life) const;
  void MakeRoom();
  void LogAccepted(const std::string& left_by);

  const std::string disk_;
  const nvme::host::DoubtLedger& ledger_;
  std::deque<Loss> losses_;       // the latest last
  bool has_forgotten_ = false;    // one that had left something in doubt
  bool accepts_unnamed_ = false;  // the log has said that what others left is not waited for
  uint64_t losses_total_ = 0;
  uint64_t failovers_ = 0;
  uint64_t accepted_ = 0;
};

}  // namespace cleat::modules
