// SPDX-License-Identifier: Apache-2.0
// What another engine has counted of a controller's disks, for this one's counters to go on from when the controller
// comes over: totals and histograms rise for ever, whoever serves.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "observe/disk_counters.h"
#include "observe/reader.h"

namespace cleat::observe {

// One disk's, over all reactors.
struct CarriedCounters {
  std::string disk;
  uint64_t since_ns = 0;
  std::vector<OpCount> ops;                        // by OpColumn
  std::vector<std::vector<Histogram>> histograms;  // [OpColumn][RequestStage]

  // Adds them to this engine's counters of the same disk, on their reactor.
  void AddTo(DiskCounters& counters) const;
};

// By target. `counters` is what that engine's Segment::OpenForReaders gave. failed_precondition: its operations or
// stages are others, as another version's may be. `cells`: the controller's, by index; others are passed over. Without
// them all are looked at, which takes milliseconds where there are thousands of disks.
Result<std::map<uint32_t, CarriedCounters>> ReadCarriedCounters(UniqueFd counters,
                                                                const std::string& controller,
                                                                std::span<const uint64_t> cells = {});

}  // namespace cleat::observe
