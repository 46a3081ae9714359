// SPDX-License-Identifier: Apache-2.0
// Extents of a pool, by number: runs of them, and sets that a disk's extents are taken from. Plain values without threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace cleat::pool {

// Extents that lie side by side.
struct ExtentRun {
  uint32_t first = 0;
  uint32_t count = 0;

  uint64_t end() const { return uint64_t{first} + count; }
  bool operator==(const ExtentRun&) const = default;
};

// In the order in which they were written down: for a disk's, that in which the disk goes over them.
using ExtentRuns = std::vector<ExtentRun>;

uint64_t CountOf(const ExtentRuns& runs);
// The same extents in the same order, in as few runs as can be: equal for equal extents, however they were written down.
ExtentRuns Joined(const ExtentRuns& runs);
// Whether a disk that has `all` may have had `first` before, since disks only grow. Both are Joined.
bool BeginsWith(const ExtentRuns& all, const ExtentRuns& first);
// Whether each run has an extent, ends before `extents`, and no extent is named twice.
bool AreWithin(const ExtentRuns& runs, uint32_t extents);

class ExtentSet {
 public:
  ExtentSet() = default;

  // Whether none of the run's extents is in the set.
  bool IsFree(ExtentRun run) const;
  // Whether all of them are.
  bool HasAll(ExtentRun run) const;
  // None of them is in the set.
  void Add(ExtentRun run);
  void Add(const ExtentRuns& runs);
  // All of them are.
  void Remove(ExtentRun run);
  void Remove(const ExtentRuns& runs);
  // Removes that many and returns them, in as few runs as can be: of the runs that are long enough the shortest, else the longest first.
  // nullopt, and nothing is removed, when there are fewer.
  std::optional<ExtentRuns> Take(uint32_t count);

  uint64_t count() const { return count_; }
  bool empty() const { return count_ == 0; }
  uint32_t longest() const;  // run
  // In the extents' order; neighbours are one run.
  ExtentRuns Runs() const;

 private:
  std::map<uint32_t, uint32_t> runs_;  // first -> count
  uint64_t count_ = 0;
};

}  // namespace cleat::pool
